"""Methods for long-tailed data, beside loops over the formulas: RobustLT's radii and the balanced softmax."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import classwise as cw
from classwise.attacks.losses import cross_entropy
from classwise.core.settings.config import make
from classwise.data import load_data, long_tailed
from classwise.training import OBJECTIVES
from classwise.training.averaging import EMA
from classwise.training.classes.signals import ClassSettings
from classwise.training.criteria.softmax import Focal, Hypersphere, LabelSmoothing, Softmax
from classwise.training.objectives.adversarial import boosted_cross_entropy
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import budgets_of, recipe_names
from classwise.training.schedules.base import Classes
from classwise.training.schedules.long_tail import BalancedSoftmax, RobustLT
from classwise.training.setup import averaging_notes, schedule_notes, setup_notes, start_notes, steps_per_epoch

from .by_hand import EPSILON, batch_of, close, constants
from .on_digits import TINY


def with_counts(*counts: int) -> Classes:
    return Classes(tuple(f"class {label}" for label in range(len(counts))), torch.tensor(counts))


def radii(schedule: RobustLT, counts: tuple[int, ...], epoch: int) -> list[float]:
    """The radii of an epoch, relative to eps."""
    found = schedule.settings(schedule.start(with_counts(*counts)), constants(len(counts)), epoch).epsilon
    assert found is not None
    return (found.double() / EPSILON).tolist()


def formula(counts: tuple[int, ...], alpha: float) -> list[float]:
    """The paper's radii relative to eps, class by class."""
    total, most = sum(counts), max(counts)
    denominator = 0.0
    for count in counts:
        denominator += count / total * math.sqrt(math.log(most / count))
    return [(1 - alpha) + alpha / denominator * math.sqrt(math.log(most / count)) for count in counts]


def test_the_radii_of_three_classes_by_hand() -> None:
    found = radii(RobustLT(alpha=0.5, epochs=0), (55, 20, 1), 0)
    s = [0.0, math.sqrt(math.log(55 / 20)), math.sqrt(math.log(55))]
    mean = (20 * s[1] + s[2]) / 76
    assert found == pytest.approx([0.5, 0.5 + 0.5 * s[1] / mean, 0.5 + 0.5 * s[2] / mean], abs=1e-6)


@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=30).filter(lambda counts: len(set(counts)) > 1),
    st.floats(0, 1),
    st.integers(0, 120),
    st.integers(0, 100),
)
def test_the_radii_have_the_mean_eps_and_decrease_with_the_images(
    counts: list[int], alpha: float, epoch: int, epochs: int
) -> None:
    given_counts = tuple(counts)
    scale = 1.0 if epochs == 0 or epoch >= epochs else epoch / epochs
    found = radii(RobustLT(alpha=alpha, epochs=epochs), given_counts, epoch)
    expected = [scale * radius for radius in formula(given_counts, alpha)]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    mean = sum(count * radius for count, radius in zip(counts, found, strict=True)) / sum(counts)
    assert mean == pytest.approx(scale, rel=1e-5, abs=1e-6)
    by_count = sorted(zip(counts, found, strict=True))
    for (fewer, larger), (more, smaller) in itertools.pairwise(by_count):
        assert larger == pytest.approx(smaller) if fewer == more else larger >= smaller - 1e-6
        if fewer < more and alpha * scale > 0.01:
            assert larger > smaller


def test_the_increase_is_linear_from_zero() -> None:
    found = [radii(RobustLT(alpha=0.3, epochs=4), (8, 2), epoch)[0] for epoch in range(6)]
    assert found == pytest.approx([0, 0.25 * found[4], 0.5 * found[4], 0.75 * found[4], found[4], found[4]])
    assert found[4] == pytest.approx(0.7)


def test_balanced_data_have_equal_radii_and_absent_classes_do_not_count() -> None:
    assert radii(RobustLT(epochs=0), (7, 7, 7), 0) == pytest.approx([1, 1, 1])
    assert radii(RobustLT(epochs=0), (7, 0, 7), 0) == pytest.approx([1, 1, 1])
    with_absent, without = radii(RobustLT(epochs=0), (90, 0, 10), 0), radii(RobustLT(epochs=0), (90, 10), 0)
    assert with_absent == pytest.approx([without[0], 1, without[1]])


def test_the_step_size_and_other_schedules_compose() -> None:
    schedule = RobustLT(alpha=0.4, epochs=2)
    state = schedule.start(with_counts(30, 10))
    before = dataclasses.replace(constants(2), epsilon=torch.tensor([0.1, 0.2]), step_size=torch.tensor([0.01, 0.05]))
    after = schedule.settings(state, before, 1)
    factors = [0.5 * factor for factor in formula((30, 10), 0.4)]
    assert close(after.epsilon, [0.1 * factors[0], 0.2 * factors[1]])
    assert close(after.step_size, [0.01 * factors[0], 0.05 * factors[1]])
    assert schedule.settings(state, constants(2), 1).step_size is None, "a relative step size follows the radius"
    recipe = Recipe.read("trades", {"schedules": ["ccr", "robust-lt:epochs=0", "balanced-softmax"]})
    parts = recipe.parts
    classes = with_counts(60, 20, 5)
    settings = parts.class_settings(classes, [part.start(classes) for part in parts.schedules], 0)
    assert settings.epsilon is not None
    assert settings.beta is not None
    assert close(settings.epsilon, [EPSILON * factor for factor in formula((60, 20, 5), 0.3)])
    assert close(settings.logit_adjustment, [math.log(60), math.log(20), math.log(5)])


def balanced_softmax(logits: list[float], label: int, counts: tuple[int, ...], tau: float) -> float:
    """-log of n_y^tau e^f_y / sum_c n_c^tau e^f_c."""
    weights = [count**tau * math.exp(logit) for count, logit in zip(counts, logits, strict=True)]
    return -math.log(weights[label] / sum(weights))


@given(st.lists(st.tuples(st.integers(1, 2000), st.floats(-5, 5)), min_size=2, max_size=12), st.floats(0, 2), st.data())
def test_the_balanced_softmax_beside_its_formula(
    classes: list[tuple[int, float]], tau: float, data: st.DataObject
) -> None:
    counts, logits = tuple(count for count, _ in classes), [logit for _, logit in classes]
    label = data.draw(st.integers(0, len(counts) - 1))
    schedule = BalancedSoftmax(tau=tau)
    settings = schedule.settings(schedule.start(with_counts(*counts)), ClassSettings(), 0)
    found = Softmax()(torch.tensor([logits]), torch.tensor([label]), settings)
    assert float(found) == pytest.approx(balanced_softmax(logits, label, counts, tau), rel=1e-4, abs=1e-4)


def test_balanced_data_have_the_unadjusted_loss_and_absent_classes_finite_ones() -> None:
    logits, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    schedule = BalancedSoftmax()
    settings = schedule.settings(schedule.start(with_counts(50, 50, 50)), ClassSettings(), 0)
    assert torch.allclose(Softmax()(logits, y, settings), cross_entropy(logits, y), atol=1e-5)
    settings = schedule.settings(schedule.start(with_counts(50, 0, 1)), ClassSettings(), 0)
    assert close(settings.logit_adjustment, [math.log(50), 0, 0])
    twice = schedule.settings(schedule.start(with_counts(50, 0, 1)), settings, 0)
    assert close(twice.logit_adjustment, [2 * math.log(50), 0, 0])


def test_every_criterion_adjusts_the_logits_of_its_loss() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, y = torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 2, 3, 0])
    shift = torch.tensor([3.0, 1.0, 0.5, 0.0])
    settings = ClassSettings(logit_adjustment=shift)
    for criterion in (Softmax(margin=0.3), Hypersphere(), Focal(), LabelSmoothing(smoothing=0.4)):
        for base in (cross_entropy, boosted_cross_entropy):
            expected = criterion(logits + shift, y, ClassSettings(), base)
            assert torch.allclose(criterion(logits, y, settings, base), expected), criterion
            assert not torch.allclose(expected, criterion(logits, y, ClassSettings(), base))


@pytest.mark.parametrize("spec", ["at", "trades", "mart", "standard", "mixed"])
def test_the_adjustment_changes_the_classification_terms_only(spec: str) -> None:
    """Divergences, points of attacks and accuracies are those of the unadjusted network."""
    objective = make(OBJECTIVES, spec)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    batch = dataclasses.replace(batch_of(torch.arange(6) % 3), x=x)
    points = {"robust": x + 0.5}
    plain = objective.step(lambda x: x, batch, points, ClassSettings())
    shifted = objective.step(lambda x: x, batch, points, ClassSettings(logit_adjustment=torch.tensor([2.0, 1.0, 0.0])))
    assert torch.equal(plain.logits, shifted.logits)
    for name, term in plain.terms.items():
        divergence_only = spec == "trades" and name == "robust"
        assert torch.allclose(term, shifted.terms[name]) == divergence_only, name


@pytest.mark.parametrize("threat", ["Linf:0.1", "L2:0.5", "L1:1"])
def test_an_epoch_without_radius_is_standard_training(threat: str, tmp_path: Path) -> None:
    """In epoch 0 every radius is 0; accuracies under attack are those without, and nothing is NaN."""
    overrides = TINY | {
        "data.subset": 200,
        "data.imbalance": 8,
        "threat": threat,
        "epochs": 1,
        "schedules": ["robust-lt:epochs=2", "balanced-softmax"],
    }
    run = cw.train("trades", data="digits", out=tmp_path / "run", overrides=overrides)
    rows = run.epochs.query("split == 'train'").set_index("class")
    assert (rows["epsilon"] == 0).all()
    assert rows["clean"].notna().all()
    images = long_tailed(load_data("digits", split="train", subset=200), 8)
    held_out = run.epochs.query("split == 'valid'").set_index("class")["count"]
    assert (rows["count"] + held_out).to_list() == images.class_counts().tolist()
    logarithms = [math.log(count) for count in run.data["counts"]["train"]]
    assert rows["logit_adjustment"].to_list() == pytest.approx(logarithms)
    assert all(bool(value.isfinite().all()) for value in run.model().state_dict().values())


def test_a_run_records_increasing_radii(tmp_path: Path) -> None:
    overrides = TINY | {"data.subset": 200, "data.imbalance": 8, "epochs": 3, "schedules.0.epochs": 2}
    run = cw.train("robust-lt", budget="short", data="digits", out=tmp_path / "run", overrides=overrides)
    counts = tuple(run.data["counts"]["train"])
    for epoch, scale in enumerate((0, 0.5, 1)):
        rows = run.epochs.query(f"split == 'train' and epoch == {epoch}")
        assert rows["epsilon"].to_list() == pytest.approx([0.1 * scale * factor for factor in formula(counts, 0.3)])


def test_a_longer_increase_than_the_training_is_noted(tmp_path: Path) -> None:
    images = load_data("digits", split="train", subset=60)
    recipe = Recipe.read("at", {"schedules": ["robust-lt"], "epochs": 30, "threat": "Linf:0.1"})
    threat = recipe.parts.threat
    assert threat is not None
    (note,) = (line for line in setup_notes(recipe, images, threat, resumed=False) if "robust-lt" in line)
    assert note == "schedule 'robust-lt' changes over 80 epochs, and the training has 30; set schedules.0.epochs"
    assert not [line for line in setup_notes(Recipe.read("he-lis"), images, threat, resumed=False) if "lis" in line]


@pytest.mark.parametrize(
    ("name", "epochs", "start"), [("dafa", 70, 70), ("dafa", 71, None), ("cfa-code", 10, 10), ("ldam", 160, 160)]
)
def test_a_schedule_that_never_begins_is_noted(name: str, epochs: int, start: int | None) -> None:
    recipe = Recipe.read(name, {"epochs": epochs})
    part = "ccm" if name == "cfa-code" else name
    late = f"schedule {part!r} begins after {start} epochs, and the training has {epochs}; set schedules.0.start_epoch"
    assert schedule_notes(recipe) == ([late] if start else [])


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        (
            "cfa-at",
            {"epochs": 1},
            "averaging does not begin: start_fraction is 0.25, and the last epoch is at 0 of",
        ),
        ("at-swa", {"epochs": 2}, None),
        ("at-ema-step", {"epochs": 2, "averaging.start_fraction": 0.98}, "averaging does not begin"),
        ("csr", {"epochs": 3}, "objective does not begin: start_fraction is 0.9901, and the last step is at 0.9833 of"),
        ("csr", {"epochs": 202}, None),
        ("trades-awp", {"update.start_fraction": 1}, "set update.start_fraction, or train longer"),
    ],
)
def test_a_part_that_never_begins_is_noted(name: str, fields: dict[str, Any], says: str | None) -> None:
    notes = start_notes(Recipe.read(name, fields), 10)
    assert len(notes) == (says is not None)
    assert says is None or says in notes[0]


def test_the_steps_of_an_epoch_are_those_of_the_labelled_training_images() -> None:
    """50 of 100 images are held out, and half of a batch is unlabelled."""
    images = load_data("digits", split="train", subset=100)
    unlabelled = {"data.unlabelled": {"name": "digits", "teacher": "runs/at"}}
    fields = {"data.validation": 0.5, "batch_size": 20}
    assert steps_per_epoch(Recipe.read("at", fields), images) == 3
    assert steps_per_epoch(Recipe.read("at", fields | unlabelled), images) == 5


@pytest.mark.parametrize(("epochs", "kept"), [(8, "73 %"), (100, "1.8 %"), (200, "")])
def test_an_average_over_few_steps_is_noted(epochs: int, kept: str) -> None:
    """It is mostly of the weights that it began with: 0.9995 to the power of the steps, here 80 of each epoch."""
    recipe = Recipe.read("at-wa", {"epochs": epochs, "batch_size": 100})
    assert isinstance(recipe.parts.averaging, EMA)
    assert recipe.parts.averaging.start_fraction == 0
    notes = averaging_notes(recipe, 80)
    assert [note.partition("still has ")[2].partition(" of")[0] for note in notes] == ([kept] if kept else [])
    assert averaging_notes(Recipe.read("at"), 80) == []
    for note in notes:  # following the advice ends it
        advised = float(note.rpartition("at most ")[2])
        assert averaging_notes(Recipe.read("at-wa", {"epochs": epochs, "averaging.decay": advised}), 80) == []


@pytest.mark.parametrize("name", recipe_names())
def test_no_budget_of_a_recipe_is_too_short_for_its_average(name: str) -> None:
    """Of CIFAR-10, with 98 % of 50,000 images in batches of the recipe."""
    for budget in (None, *budgets_of(name)):
        recipe = Recipe.read(name, budget=budget)
        assert averaging_notes(recipe, math.ceil(49_000 / recipe.batch_size)) == []


@pytest.mark.parametrize(("name", "beta"), [("at", None), ("trades", 6.0)])
def test_settings_begin_as_the_constants_of_the_recipe(name: str, beta: float | None) -> None:
    """As documented for schedules, which multiply them: ``before.epsilon`` is never None in training."""
    recipe = Recipe.read(name, {"threat": "Linf:0.1"})
    settings = recipe.parts.class_settings(with_counts(3, 2), [], 0)
    assert close(settings.epsilon, [0.1, 0.1])
    assert settings.beta is None if beta is None else close(settings.beta, [beta, beta])
