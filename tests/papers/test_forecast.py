"""Forecasts: declared trainings, passes from the recipes, hours from the rate."""

from __future__ import annotations

import pytest

from classwise.core.compute.rates import RATES, Kind
from classwise.data import DATA
from classwise.models import build_model
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.cost import _network, forecast, passes_per_second, plan
from classwise.papers.experiment import Training, recipe_at
from classwise.papers.networks import architecture
from classwise.papers.runner import scale_of
from classwise.papers.scales import SMOKE
from classwise.training.recipe import Recipe
from tests.refusals import check_refused


def constant(recipe: Recipe, data: str) -> float:
    """1,000 passes per second on any network."""
    return 1000.0


def test_passes_are_those_of_the_recipes() -> None:
    name = "cfa23/E1"
    cost = forecast(name, "smoke", rate=constant).total
    (training,) = experiment(name).trainings(scale_of(name, "smoke")).values()
    recipe = recipe_at(SMOKE, training)
    assert (cost.trainings, cost.epochs) == (1, recipe.epochs)
    assert recipe.parts.passes.equivalents == 2 * 2 + 3  # two steps of PGD, then a step of the weights
    assert cost.passes == 192 * 3 * 7
    assert cost.hours == pytest.approx((cost.passes + cost.evaluation_passes) / 1000 / 3600)


def test_repetitions_have_their_own_trainings_and_items_share_theirs() -> None:
    once, thrice = (forecast("kdd21/T1", "smoke", trainings, rate=constant).total for trainings in (1, 3))
    assert (thrice.trainings, thrice.passes) == (3 * once.trainings, 3 * once.passes)
    several = forecast(["kdd21/T1", "kdd21/E4", "cfa23/E1"], "small", rate=constant)
    assert [cost.trainings for cost in several.items.values()] == [5, 5, 1]
    assert several.total.trainings == 5


def test_full_scale_uses_all_images_of_each_data_set() -> None:
    trainings = list(experiment("benz20/P1.1").trainings(scale_of("benz20/P1.1", "full")).values())
    assert {training.data for training in trainings} <= {*DATA, ""}
    full = forecast("cfa23/F4", "full", rate=constant).total
    assert full.passes == 49_000 * 200 * Recipe.read("cfa-at", {"schedules": []}).parts.passes.equivalents


@pytest.mark.parametrize(
    ("item", "scale", "trainings"),
    [("kdd21/F4b", "full", 12), ("benz20/P3.1", "smoke", 2), ("benz20/P3.2", "smoke", 7), ("benz20/P3.8", "full", 2)],
)
def test_trainings_that_depend_on_results_are_counted(item: str, scale: str, trainings: int) -> None:
    """Homing: a model without each class, and a control. Techniques: for the weakest class of plain training."""
    assert forecast(item, scale, rate=constant).total.trainings == trainings


def test_saved_epochs_are_evaluated_and_need_disk_space() -> None:
    """Eight trainings of 200 saved epochs, and the last and the best one, each evaluated by PGD-10 or PGD-20."""
    cost = forecast("cfa23/F2a", "full", rate=constant).total
    model = build_model("preactresnet18", num_classes=10, in_channels=3)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert 1e9 * cost.gigabytes == pytest.approx(8 * (200 + 2 + 2) * weights, rel=0.01)
    assert cost.evaluation_passes == 8 * 201 * 10_000 * (1 + 2 * 20 + 1)
    assert cost.pflop == pytest.approx(
        (cost.passes + cost.evaluation_passes) * RATES["h100"].operations / 1e15, rel=0.01
    )


def test_networks_are_those_that_are_trained() -> None:
    """ResNet-50 on ImageNet has the stem of large images: 8.2 GFLOP in place of 127."""
    item, data = "kdd21/F1", "imagenet"
    training = experiment(item).trainings(scale_of(item, "full"))[f"adversarial, {data}"]
    recipe = recipe_at(scale_of(item, "full"), training)
    network = _network(recipe, data)
    stated = architecture(recipe.model, data)
    assert network.operations / 1e9 == pytest.approx(stated["network GFLOP"], rel=0.02)
    assert network.size == pytest.approx(4 * float(stated["network parameters"]), rel=0.01)


def test_costly_attacks_exceed_the_trainings() -> None:
    """N attack with 500 steps of 300 samples, and CW with 9 searches of 1,000 steps, on 2,000 images of four models."""
    cost = forecast("kdd21/T1", "full", rate=constant).total
    assert cost.evaluation_passes > 4 * cost.passes


def test_medium_scale_trains_three_times_and_evaluates_two_weights() -> None:
    """Standard training selects no epoch, and an item that names several weights evaluates no more."""
    cost, once = (forecast("benz20/F2", "medium", trainings, rate=constant).total for trainings in (None, 1))
    assert (cost.trainings, cost.epochs) == (6, 6 * 30)
    assert cost.evaluation_passes == 3 * (2 + 1) * 10_000 * (1 + 2 * 20 + 1)
    assert cost.passes == 3 * once.passes
    main, ablation = (forecast(name, "medium", 1, rate=constant).total for name in ("cfa23/T1", "cfa23/T2"))
    full = [forecast(name, "full", 1, rate=constant).total for name in ("cfa23/T1", "cfa23/T2")]
    assert [main.evaluation_passes, ablation.evaluation_passes] == [
        full[0].evaluation_passes,
        2 * full[1].evaluation_passes,
    ]


def test_a_forecast_is_limited_to_some_data_sets() -> None:
    """MNIST at medium scale: three trainings of the four-layer CNN."""
    limited = forecast("kdd21/F1", "medium", data_sets=["mnist"], rates=RATES["h100"])
    assert limited.total.trainings == 3
    assert list(limited.passes_per_second) == ["small-cnn of width 1 on mnist, bfloat16"]
    assert forecast("kdd21/F1", "medium", rates=RATES["h100"]).total.trainings == 3 * 5
    check_refused("kdd21/T1 has a single data set", forecast, "kdd21/T1", "medium", data_sets=["mnist"])


def test_the_tables_of_cfa23_have_five_trainings_at_full_scale() -> None:
    """As in the paper: only these tables, and `--trainings` counts."""
    items = [name for name in runnable() if name.startswith("cfa23") and "full" in experiment(name).scales]
    five = {"cfa23/T1", "cfa23/T2", "cfa23/T3", "cfa23/E2"}
    assert {name for name in items if scale_of(name, "full").trainings == 5} == five
    assert {scale_of(name, scale).trainings for name in five for scale in ("smoke", "small", "reduced")} == {1}
    default, five_times, once = (forecast("cfa23/T2", "full", count, rate=constant).total for count in (None, 5, 1))
    assert default == five_times
    assert default.trainings == 5 * once.trainings


def test_an_item_with_more_saved_epochs_serves_the_others() -> None:
    curves, end = (forecast(name, "full", rate=constant) for name in ("kdd21/F1", "kdd21/E2"))
    both = forecast(["kdd21/E2", "kdd21/F1"], "full", rate=constant).total
    assert (both.trainings, both.passes) == (curves.total.trainings, end.total.passes)
    assert both.gigabytes == curves.total.gigabytes
    assert plan(["kdd21"], "full")[0] == "kdd21/F1"


@pytest.mark.parametrize(("scale", "kind"), [("full", "decision"), ("medium", "training")])
def test_hours_follow_from_measured_rates(scale: str, kind: Kind) -> None:
    """Trainings are in float32 at full scale and in bfloat16 at medium; the forecast has the rate of its dtype."""
    cost = forecast("cfa23/F5", scale, rates=RATES["h100"]).total
    rates = RATES["h100"].images
    seconds = cost.passes / rates[kind] + cost.evaluation_passes / rates["gradient"]
    assert cost.hours == pytest.approx(seconds / 3600, rel=0.01)


def test_an_item_without_the_scale_is_refused() -> None:
    check_refused("has no scale 'small'", forecast, "cfa23/T4", "small", rate=constant)


def test_the_rate_is_measured_once_per_network() -> None:
    calls = []

    def count(recipe: Recipe, data: str) -> float:
        calls.append((recipe.model.name, data))
        return 1.0

    several = forecast(["kdd21/T1", "cfa23/E1"], "smoke", rate=count)
    assert calls == [("small-cnn", "digits")] * 2  # six trainings; the network of HE has another head
    assert list(several.passes_per_second) == [
        "small-cnn of width 0.1 on digits, float32",
        "small-cnn of width 0.1 (head=cosine) on digits, float32",
    ]
    assert passes_per_second(recipe_at(SMOKE, Training(recipe="at")), "digits") > 0
