"""Settings of kdd21 and iclr21: trainings at every scale, step sizes of PGD, and the precision of Temperature-PGD."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Context, Training, recipe_at
from classwise.papers.experiments.protocol import (
    DEFENCES,
    HYPERSPHERE,
    RST_TEST_STEP,
    SCALES,
    SETUP_STEP,
    SPHERE_SCALES,
    TEMPERATURE_SCALES,
    defences,
    pgd,
    settings_table,
    substitute,
    temperature_grid,
    tpgd,
    under_pgd,
    with_rst,
)
from classwise.papers.scales import CLASSWISE, FASHION, NAMES, SMALL, Scale, on_data_set
from classwise.papers.settings import compare
from classwise.papers.store import Store
from classwise.training.folder import Run
from classwise.training.recipe import Recipe

ITEMS = (
    *(f"kdd21/{name}" for name in ("T1", "T3", "T4", "F3a", "F3b-d", "F4a", "F4b", "F4c", "F6")),
    *(f"kdd21/{name}" for name in ("E3", "E4", "E5", "E6", "E7", "E8", "E9")),
    *(f"iclr21/{name}" for name in ("T2", "T3", "T4", "T5", "T6", "F5a", "F5b-d", "F5e", "F5f-h", "E5", "E6")),
)
RESNET_18 = ("kdd21/F4a", "kdd21/F4b", "kdd21/E8", *(f"iclr21/{name}" for name in ("T5", "T6", "F5e", "F5f-h", "E5")))


def declared(item: str, scale: Scale) -> Mapping[str, Training]:
    return experiment(item).trainings(scale)


@pytest.mark.parametrize("item", ITEMS)
def test_every_training_is_declared_and_parses(item: str) -> None:
    for name in NAMES:
        scale = experiment(item).scales[name]
        trainings = declared(item, scale)
        assert trainings
        assert all(isinstance(recipe_at(scale, training), Recipe) for training in trainings.values())


@pytest.mark.parametrize("item", ITEMS)
def test_the_network_and_the_radius_of_the_paper(item: str) -> None:
    scale = experiment(item).scales["full"]
    recipes = {name: recipe_at(scale, training) for name, training in declared(item, scale).items()}
    networks = {name: recipe.model.name for name, recipe in recipes.items()}
    wanted = "resnet18" if item in RESNET_18 else "wrn-34-10"
    assert set(networks.values()) - ({"wrn-28-10"} if "RST" in networks else set()) == {wanted}
    assert {recipe.threat for recipe in recipes.values()} == {"Linf:0.031"}
    for recipe in recipes.values():
        attack: Any = recipe.attack
        assert recipe.parts.objective.attacks == (recipe.name.startswith("standard") is False)
        assert not recipe.parts.objective.attacks or (attack["steps"], attack["step_size"]) == (10, 0.007)


def test_each_defence_has_the_settings_of_its_own_paper() -> None:
    recipes = {name: recipe_at(SCALES["full"], training) for name, training in with_rst(SCALES["full"]).items()}
    recipes["HE"] = recipe_at(SCALES["full"], defences(SCALES["full"])["HE"])
    optimisers: dict[str, Any] = {name: recipe.optimizer for name, recipe in recipes.items()}
    assert {name: (optimiser["lr"], optimiser["weight_decay"]) for name, optimiser in optimisers.items()} == {
        "Madry": (0.1, 2e-4),
        "TRADES": (0.1, 2e-4),
        "MART": (0.1, 7e-4),
        "HE": (0.1, 2e-4),
        "RST": (0.1, 5e-4),
        "standard": (0.1, 2e-4),
    }
    losses: dict[str, Any] = {name: recipes[name].objective for name in ("TRADES", "MART", "RST")}
    assert {name: loss["beta"] for name, loss in losses.items()} == {"TRADES": 6, "MART": 6, "RST": 6}
    assert recipes["MART"].epochs == 90
    assert recipes["RST"].selection == "last"
    assert recipes["standard"].seed != recipes["Madry"].seed


@pytest.mark.parametrize("name", ["small", "full"])
def test_the_models_of_appendix_g_have_one_budget(name: Any) -> None:
    scale = SPHERE_SCALES[name]
    recipes = [recipe_at(scale, training) for training in HYPERSPHERE.values()]
    budgets = {
        (
            recipe.model.name,
            recipe.epochs,
            recipe.batch_size,
            str(recipe.optimizer),
            str(recipe.lr_schedule),
            recipe.selection,
        )
        for recipe in recipes
    }
    ((network, epochs, *_),) = budgets
    assert (network, epochs) == {"small": ("small-cnn", 12), "full": ("resnet18", 100)}[name]


def test_the_evaluated_epoch_has_the_lower_learning_rate() -> None:
    """In the public code of TRADES the rate is lower from the 75th epoch on, whose model the papers evaluate."""
    for scale, others in ((CLASSWISE["full"], ()), (on_data_set(CLASSWISE["full"], "mnist"), (54,))):
        schedule = recipe_at(scale, Training(recipe="at")).parts.lr_schedule
        drops = [epoch for epoch in range(1, 100) if schedule.factor(epoch / 100) < schedule.factor((epoch - 1) / 100)]
        assert drops == [*others, 74, 89]  # epochs that were finished before the drop


def test_defences_share_a_budget_at_reduced_scale() -> None:
    assert defences(SMALL) == DEFENCES
    assert {recipe_at(SMALL, defence).epochs for defence in DEFENCES.values()} == {12}


def test_the_table_of_settings() -> None:
    table = settings_table(SCALES["full"], {**defences(SCALES["full"]), "standard": substitute(SCALES["full"])})
    rows = {row.name: dict(zip(table.heads[1:], [cell.text for cell in row.cells], strict=True)) for row in table.rows}
    assert rows["MART"]["weight decay"] == "0.0007"
    assert rows["MART"]["loss"] == "mart, beta 6"
    assert rows["HE"]["loss"] == "at, he, scale 15, margin 0.2"
    assert rows["TRADES"]["attack"] == "pgd, steps 10, step size 0.007"
    assert rows["standard"]["attack"] == "–"
    lis = settings_table(SPHERE_SCALES["small"], {"HE-LIS": HYPERSPHERE["HE-LIS"]}).rows[0]
    assert lis.cells[1].text == "small-cnn, width 0.5"
    assert any("lis, first 1" in cell.text for cell in lis.cells)


def at(scale: Scale, folder: Path) -> Context:
    return Context(scale, Store(folder / "store"))


def test_step_sizes(tmp_path: Path) -> None:
    full, reduced, fashion = (at(scale, tmp_path) for scale in (SCALES["full"], SMALL, FASHION))
    assert pgd(full) == {"name": "pgd", "steps": 20, "step_size": 0.003}
    assert pgd(full, SETUP_STEP)["step_size"] == 0.007
    assert pgd(full, RST_TEST_STEP, steps=40) == {"name": "pgd", "steps": 40, "step_size": 0.01}
    assert [pgd(reduced, step)["step_size"] for step in (0.003, 0.007, 0.01)] == ["0.1eps", "0.23eps", "0.32eps"]
    assert pgd(fashion, RST_TEST_STEP, steps=40) == {"name": "pgd", "steps": 20, "step_size": "0.1eps"}
    assert tpgd(full, 5)["step_size"] == 0.003
    assert list(temperature_grid(full)) == ["PGD", "2", "5", "10", "50"]


@pytest.mark.parametrize("item", ITEMS)
def test_only_the_validation_split_and_madry_s_budget_deviate_at_full_scale(item: str) -> None:
    deviations = {(deviation.row, deviation.name) for deviation in compare(item, "full").deviations}
    budget = {("Madry", "epochs"), ("Madry", "learning-rate schedule")}
    assert {name for row, name in deviations - budget} <= {"validation share"}


class Audits:
    """A store that records the precision and the attacks of audits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.precisions: list[Precision] = []
        self.attacks: list[Mapping[str, Any]] = []
        monkeypatch.setattr(Store, "audit", self.audit)
        monkeypatch.setattr(Context, "test_images", range(100))
        self.trained = Run(folder)

    def audit(self, trained: Run, images: Any, attacks: Any, threat: str, **more: Any) -> None:
        self.precisions.append(more["precision"])
        self.attacks.append(attacks)


@pytest.mark.parametrize("scale", [CLASSWISE["full"], *TEMPERATURE_SCALES.values(), FASHION])
def test_the_paper_s_arithmetic_is_float32(scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every scale, and for PGD in the same audit; other audits have the precision of the scale."""
    context, audits = at(scale, tmp_path), Audits(monkeypatch, tmp_path)
    context.audit(audits.trained, temperature_grid(context))
    context.audit(audits.trained, {"a": "pgd:steps=2", "b": "tpgd:steps=2,arithmetic=paper"})
    assert audits.precisions == [EXACT, EXACT]
    context.audit(audits.trained, {"stable": {**tpgd(context, 5), "arithmetic": "stable"}})
    under_pgd(context, audits.trained)
    assert audits.precisions[2:] == [scale.precision] * 2
    assert audits.attacks[-1] == {"PGD": pgd(context, SETUP_STEP)}
    context.audit(audits.trained, {"PGD": pgd(context)}, precision=FAST)
    assert audits.precisions[-1] == FAST
