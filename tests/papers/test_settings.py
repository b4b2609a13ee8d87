"""Settings of the papers, and the deviations of the recipes from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from classwise.core.settings.config import configurable
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.experiment import Context, Experiment, Findings, Training, recipe_at
from classwise.papers.networks import ARCHITECTURE
from classwise.papers.scales import FASHION, FULL, SMOKE, TIAN, Scale
from classwise.papers.settings import (
    ATTACK,
    TRAINING,
    Comparison,
    ItemSettings,
    PaperSettings,
    compare,
    compare_with,
    comparisons,
    deviation_lines,
    epoch_ranges,
    evaluation_settings,
    item_settings,
    number_text,
    read,
    settings_table,
    text,
    training_settings,
)
from classwise.training.recipe import Recipe

NOT_COMPARED = {
    "name",
    "description",
    "source",
    "seed",  # counted as trainings
    "data.root",
    "data.subset",  # the scale has the numbers of images
    "data.subset_seed",
    "data.options",
    "data.imbalance",  # no paper of the catalogue has long-tailed data
    "model.options",
    "model.weights",  # as the training that is declared as start
    "model.normalization",  # decided by the weights
    "model.mean",
    "model.std",
    "model.sync_batch_norm",
    "precision.channels_last",
    "precision.search",  # verdicts are in float32
    "precision.compile",
    "precision.deterministic",
    "precision.graphs",
}
"""Fields of a recipe that are no settings of a paper."""


@configurable
class _Declared(Experiment):
    """An experiment that only declares its trainings."""

    item: str = "kdd21/T1"
    scales: ClassVar[Mapping[Any, Scale]] = {}
    own: Mapping[str, Training]

    def trainings(self, scale: Scale) -> Mapping[str, Training]:
        return self.own

    def run(self, context: Context) -> Findings:
        raise NotImplementedError  # nothing runs it: only its declarations are read


def _stated(more: Mapping[str, Any] | None = None, recipe: str = "at", scale: Scale = TIAN) -> PaperSettings:
    """Settings that equal those of a recipe at a scale, but for some."""
    own = training_settings(recipe_at(scale, Training(recipe=recipe)), scale)
    values = {name: (value,) for name, value in own.items()} | {"trainings": (1,), "initial weights": ("random",)}
    if scale is TIAN:
        values["learning-rate schedule"] = ("x0.1 at epochs 75, 90",)  # as printed; within an epoch of the recipe
    changed = {name: value if isinstance(value, tuple) else (value,) for name, value in (more or {}).items()}
    return PaperSettings(name="stated", source="a test", values={**values, **changed}, code={})


def _lines(stated: ItemSettings, trainings: Mapping[str, Training], scale: Scale = TIAN) -> list[str]:
    return deviation_lines(compare_with(stated, _Declared(own=trainings), scale))


@pytest.mark.parametrize("name", runnable())
def test_each_item_has_settings_or_a_reason(name: str) -> None:
    stated = item_settings(name)
    assert stated is not None, name
    assert bool(stated.trainings) != bool(stated.reason)
    own = experiment(name)
    for scale in own.scales.values():
        for row, training in own.trainings(scale).items():
            assert stated.reason or stated.key_of(row, training.recipe) is not None, (scale.name, row)


@pytest.mark.parametrize("paper", catalogue.papers())
def test_settings_name_items_and_are_complete(paper: str) -> None:
    items = catalogue.paper(paper).items
    assert {item.id for item in items if item.settings or item.no_settings} == {
        item.id for item in items if item.id in runnable()
    }
    for name in (item.id for item in items if item.settings):
        stated = item_settings(name)
        assert stated is not None
        for table in (table for tables in stated.trainings.values() for table in tables):
            needed = (set(TRAINING) - set(ARCHITECTURE)) | (
                set() if table.values["attack"] == ("none",) else set(ATTACK)
            )
            assert needed <= set(table.values), (table.name, needed - set(table.values))
            assert table.source
            assert set(table.sweep) <= {key for key, values in table.values.items() if len(values) > 1}


AT = Training(recipe="at")
RELATIVE = Training(recipe="cfa-at", overrides={"averaging.gate": "relative"})
SAVED = Training(recipe="at", overrides={"checkpoint_epochs": [1, 5, 6, 7, 10, 15, 20, 30]})
SEEDS = {f"seed {seed}": Training(recipe="at", overrides={"seed": seed}) for seed in range(3)}
BETAS = {f"b{beta}": Training(recipe="trades", overrides={"objective.beta": beta}) for beta in (1, 6, 8)}
BOTH = {"one": Training(recipe="trades"), "other": Training(recipe="trades", start="one")}
CFA = _stated(recipe="cfa-at", scale=FULL)
SWEPT = dataclasses.replace(_stated({"loss beta": (1.0, 6.0, 8.0)}, "trades"), sweep=("loss beta",))


@pytest.mark.parametrize(
    ("stated", "trainings", "lines"),
    [
        (_stated(), {"AT": AT}, []),
        (CFA, {"AT": AT}, ["class schedules: ccm (paper), none (here)", "averaging: fawa (paper), none (here)"]),
        (
            CFA,
            {"AT": RELATIVE},
            ["averaging gate: absolute (paper), relative (here)", "averaging threshold: 0.2 (paper), 0.8 (here)"],
        ),
        (_stated({"evaluated epochs": "5-7, 10-20 in steps of 5"}), {"AT": SAVED}, []),
        (SWEPT, BETAS, []),
        (
            SWEPT,
            {name: BETAS[name] for name in ("b1", "b6")},
            ["further values of loss beta: 8 (paper), none (here)"],
        ),
        (_stated({"trainings": 3}), SEEDS, []),
        (
            _stated({"trainings": 3}),
            {name: SEEDS[name] for name in ("seed 0", "seed 1")},
            ["trainings: 3 (paper), 2 (here)"],
        ),
        (
            _stated({"initial weights": "random"}, "trades"),
            BOTH,
            ["other: initial weights: random (paper), trades (here)"],
        ),
    ],
    ids=[
        "equal",
        "missing parts",
        "lost options",
        "more epochs",
        "sweep",
        "sweep in part",
        "seeds",
        "fewer seeds",
        "initial weights",
    ],
)
def test_deviations(stated: PaperSettings, trainings: Mapping[str, Training], lines: list[str]) -> None:
    """Complete lists: a part that is missing deviates once; seeds are counted; further epochs do not deviate."""
    assert _lines(ItemSettings(trainings={"*": [stated]}), trainings, FULL if stated is CFA else TIAN) == lines


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ({"optimizer.lr": 0.05}, "learning rate: 0.1 (paper), 0.05 (here)"),
        ({"optimizer.momentum": 0.8}, "momentum: 0.9 (paper), 0.8 (here)"),
        ({"optimizer.weight_decay": 5e-4}, "weight decay: 0.0002 (paper), 0.0005 (here)"),
        ({"optimizer.nesterov": True}, "optimiser: sgd (paper), sgd, Nesterov (here)"),
        ({"epochs": 12}, "epochs: 100 (paper), 12 (here)"),
        ({"batch_size": 64}, "batch size: 128 (paper), 64 (here)"),
        (
            {"lr_schedule.milestones": [0.5, 0.9]},
            "learning-rate schedule: x0.1 at epochs 75, 90 (paper), x0.1 at epochs 50, 90 (here)",
        ),
        (
            {"lr_schedule.gamma": 0.2},
            "learning-rate schedule: x0.1 at epochs 75, 90 (paper), x0.2 at epochs 74, 89 (here)",
        ),
        ({"model.name": "wrn-34-10"}, "network: resnet18 (paper), wrn-34-10 (here)"),
        ({"model.width": 0.25}, "network width: 1 (paper), 0.25 (here)"),
        ({"threat": "Linf:8/255"}, "threat: Linf:0.031 (paper), Linf:8/255 (here)"),
        ({"attack.steps": 7}, "attack steps: 10 (paper), 7 (here)"),
        ({"attack.step_size": "2/255"}, "attack step size: 0.007 (paper), 2/255 (here)"),
        ({"attack.random_init": "none"}, "attack initialisation: uniform (paper), none (here)"),
        ({"attack_mode": "train"}, "attack mode: eval (paper), train (here)"),
        ({"objective": "trades"}, "loss: at (paper), trades (here)"),
        ({"data.validation": 0.06}, "validation share: 0 (paper), 0.06 (here)"),
        ({"data.augment": "none"}, "augmentation: crop-flip (paper), none (here)"),
        ({"selection": "last"}, "selection: epoch 75 (paper), last epoch (here)"),
        ({"averaging": "ema"}, "averaging: none (paper), ema (here)"),
        ({"averaging": "ema"}, "averaging limit: 1 (paper), none (here)"),  # which it does not have
        ({"update": "awp"}, "update: plain (paper), awp (here)"),
        ({"reduction": "normalised"}, "reduction: mean (paper), normalised (here)"),
        ({"schedules": [{"name": "ccm"}]}, "class schedules: none (paper), ccm (here)"),
        ({"precision.dtype": "bfloat16"}, "precision: float32 (paper), bfloat16 (here)"),
        ({"checkpoint_epochs": [5, 6, 20]}, "evaluated epochs: 5-7 (paper), 5-6, 20 (here)"),
        ({}, "evaluated epochs: 5-7 (paper), none (here)"),
    ],
)
def test_each_changed_setting_is_a_deviation(override: dict[str, Any], line: str) -> None:
    stated = _stated({"evaluated epochs": "5-7", "averaging limit": 1})
    assert line in _lines(ItemSettings(trainings={"AT": [stated]}), {"AT": Training(recipe="at", overrides=override)})


def test_the_evaluated_split_is_a_setting() -> None:
    """kdd21/F1 draws test images, as the paper; an experiment on validation images deviates."""
    stated = ItemSettings(trainings={"AT": [_stated({})]}, evaluations=item_settings("kdd21/F1").evaluations)  # type: ignore[union-attr]
    one = experiment("kdd21/F1")
    assert [entry.here for entry in compare("kdd21/F1", "full").settings if entry.name == "split"] == ["test"] * 6
    on_validation = type("OnValidation", (type(one),), {"split": "validation"})(item="kdd21/F1")
    lines = deviation_lines(compare_with(stated, on_validation, TIAN))
    assert any("split: test (paper), validation (here)" in line for line in lines)


def test_each_recipe_field_is_compared() -> None:
    """A new field of recipes must be compared, or listed as no setting of a paper."""
    base = TIAN.with_overrides(selection="overall", data__validation=0.02)
    before = training_settings(recipe_at(base, Training(recipe="at")), base)
    changed: dict[str, Any] = {
        "data.name": None,  # the scale has the data set
        "data.validation": 0.1,
        "data.augment": "none",
        "data.unlabelled": {"name": "unlabelled.npz", "teacher": "teacher"},
        "model.name": "lenet",
        "model.width": 2,
        "threat": "Linf:0.1",
        "objective": "mart",
        "attack": "fgsm",
        "attack_mode": "train",
        "schedules": [{"name": "ccm"}],
        "reduction": "normalised",
        "update": "awp",
        "optimizer": {"name": "adam", "lr": 0.1},
        "lr_schedule": "cosine",
        "averaging": "ema",
        "selection": "worst",
        "validation_attack": "pgd:steps=3",
        "epochs": 10,
        "batch_size": 5,
        "checkpoint_epochs": [3],
        "precision.dtype": "bfloat16",
    }
    fields = {field.name for field in dataclasses.fields(Recipe)} - {"data", "model", "precision"}
    for part in ("data", "model", "precision"):
        fields |= {f"{part}.{field.name}" for field in dataclasses.fields(getattr(Recipe(), part))}
    assert fields == set(changed) | NOT_COMPARED
    small = dataclasses.replace(base, train=500)
    for field, value in changed.items():
        if value is not None:
            scale = small if field == "data.unlabelled" else base
            after = training_settings(recipe_at(scale, Training(recipe="at", overrides={field: value})), scale)
            assert {**after, "training images": "all"} != before, field


def test_parameters_of_parts() -> None:
    own = training_settings(recipe_at(FULL, Training(recipe="cfa-trades")), FULL)
    expected = {
        "loss beta": 6,
        "class schedules": "ccm, ccr",
        "ccm lambda1": 0.3,
        "ccr lambda2": 0.5,
        "averaging": "fawa",
        "averaging decay": 0.85,
        "averaging start epoch": 50,
        "averaging threshold": 0.2,
        "attack initialisation": "normal",
        "attack loss": "kl",
        "validation attack": "pgd, 10 steps of 2/255",
    }
    assert {name: own[name] for name in expected} == expected
    standard = training_settings(recipe_at(FULL, Training(recipe="standard")), FULL)
    assert standard["attack"] == "none"
    assert not set(ATTACK) & set(standard)
    lis = training_settings(recipe_at(TIAN, Training(recipe="he-lis")), TIAN)
    assert (lis["criterion"], lis["criterion margin"], lis["lis last"]) == ("he", 0, 75)


def test_equal_deviations_share_a_line() -> None:
    stated = ItemSettings(trainings={"*": [_stated()]}, evaluations=[_evaluation()])
    wide, slow = (
        Training(recipe="at", overrides=overrides)
        for overrides in ({"model.name": "wrn-34-10"}, {"optimizer.lr": 0.01})
    )
    lines = [line for line in _lines(stated, {"one": AT, "other": wide}) if ": network:" in line]
    assert lines == ["other: network: resnet18 (paper), wrn-34-10 (here)"]
    assert _lines(stated, {"one": slow, "other": slow}) == ["learning rate: 0.1 (paper), 0.01 (here)"]
    lines = _lines(stated, {"one": AT, "other": AT}, dataclasses.replace(TIAN, threat="Linf:8/255"))
    assert "all; evaluation: threat: Linf:0.031 (paper), Linf:8/255 (here)" in lines


def _evaluation(**more: Any) -> PaperSettings:
    values: dict[str, Any] = {
        "data set": ("cifar10",),
        "test images": ("all",),
        "threat": ("Linf:0.031",),
        "steps": (20,),
    }
    return PaperSettings(name="evaluation", source="a test", values={**values, **more}, code={})


def test_evaluation() -> None:
    assert evaluation_settings(TIAN)["threat"] == "Linf:0.031"
    assert "steps" not in evaluation_settings(TIAN), "those of the paper, unless the scale replaces them"
    assert evaluation_settings(FASHION)["step size"] == pytest.approx(0.005)
    stated = ItemSettings(trainings={"*": [_stated(scale=FASHION)]}, evaluations=[_evaluation(steps=(50,))])
    scale = dataclasses.replace(FASHION, few=None)
    assert _lines(stated, {"AT": AT}, scale) == [
        "evaluation: threat: Linf:0.031 (paper), Linf:0.05 (here)",
        "evaluation: steps: 50 (paper), 20 (here)",
    ]


@pytest.mark.parametrize(
    ("spec", "steps", "size"),
    [
        ("pgd:steps=10,step_size=2/255", 10, 2 / 255),
        ("pgd:steps=7,step_size=0.5eps", 7, 0.5 * 0.031),
        ({"name": "pgd", "steps": 5, "step_size": 0.01}, 5, 0.01),
    ],
)
def test_declared_attacks(spec: Any, steps: int, size: float) -> None:
    own = evaluation_settings(TIAN, {"robust": spec})
    assert (own["attacks"], own["steps"]) == ("pgd", steps)
    assert own["step size"] == pytest.approx(size)
    several = evaluation_settings(FASHION, {"one": spec, "other": "square"})
    assert several["attacks"] == "pgd, square"
    assert "steps" not in several


def test_rows_and_data_sets_that_are_not_trained() -> None:
    tables = [_stated(), _stated({"data set": "mnist"})]
    stated = ItemSettings(trainings={"AT": tables, "MART": [_stated()], "control": ()})
    experiment = _Declared(own={"AT": AT, "control": Training(recipe="trades")})
    found = compare_with(stated, experiment, TIAN)
    assert deviation_lines(found) == [
        "further data sets: mnist (paper), none (here)",
        "MART: training: stated (paper), none (here)",
    ]
    assert found.ours == ["control"]


def test_a_data_set_that_the_paper_does_not_use() -> None:
    """It is compared with the first one if it takes the place of all, and is no row of the paper otherwise."""
    tables = [_stated(scale=FULL), _stated({"data set": "svhn", "epochs": 1}, scale=FULL)]
    stated = ItemSettings(trainings={"*": tables})
    fashion, svhn = (Training(recipe="at", data=data) for data in ("fashion-mnist", "svhn"))
    lines = _lines(stated, {"AT": fashion}, FULL)
    assert "data set: cifar10 (paper), fashion-mnist (here)" in lines
    assert not any(line.startswith("epochs") for line in lines)
    assert "further data sets: cifar10, svhn (paper), none (here)" in lines
    found = compare_with(stated, _Declared(own={"AT": svhn, "AT, more": fashion}), FULL)
    assert found.ours == ["AT, more"]
    lines = deviation_lines(found)
    assert "epochs: 1 (paper), 200 (here)" in lines
    assert "further data sets: cifar10 (paper), none (here)" in lines


def test_repetitions_multiply_the_trainings() -> None:
    stated = ItemSettings(trainings={"*": [_stated({"trainings": 5})]})
    experiment = _Declared(own={"AT": AT})
    assert compare_with(stated, experiment, TIAN, 5).deviations == []
    assert deviation_lines(compare_with(stated, experiment, TIAN, 3)) == ["trainings: 5 (paper), 3 (here)"]


@pytest.mark.parametrize(
    ("paper", "field", "here", "deviates"),
    [
        ({"threat": f"Linf:{number_text(read('0.031'))}"}, "threat", "Linf:8/255", True),
        ({"threat": f"Linf:{number_text(read('8/255'))}"}, "threat", f"Linf:{8 / 255!r}", False),
        ({"threat": f"Linf:{number_text(read('0.0314'))}"}, "threat", "Linf:8/255", True),
        ({}, "lr_schedule.milestones", [0.74, 0.9], False),
        ({}, "lr_schedule.milestones", [0.75, 0.91], False),
        ({}, "lr_schedule.milestones", [0.73, 0.9], True),
        ({}, "lr_schedule.milestones", [0.75], True),
    ],
)
def test_rounded_radii_and_milestones_one_epoch_apart_are_equal(
    paper: Mapping[str, Any], field: str, here: Any, deviates: bool
) -> None:
    """At the 75th epoch: before or after it."""
    stated = ItemSettings(trainings={"AT": [_stated(paper)]})
    assert bool(_lines(stated, {"AT": Training(recipe="at", overrides={field: here})})) == deviates


def test_texts() -> None:
    assert epoch_ranges([5, 6, 7, 10, 20, 30, 41]) == "5-7, 10-30 in steps of 10, 41"
    assert [number_text(value) for value in (8 / 255, 0.2, 0.031, 5000, 500_000.0, 2e-4, "all")] == [
        "8/255",
        "0.2",
        "0.031",
        "5,000",
        "500,000",
        "0.0002",
        "all",
    ]
    assert (text(), text(1.0, 2.0), text(None)) == ("not stated", "1 or 2", "none")


def test_unstated_settings_do_not_deviate() -> None:
    stated = ItemSettings(trainings={"AT": [_stated({"epochs": ()})]})
    found = compare_with(stated, _Declared(own={"AT": AT}), TIAN)
    assert not found.deviations
    assert "epochs" in found.not_stated
    assert "learning rate" not in found.not_stated


HOLDS_OUT = "validation share: 0 (paper), 0.02 (here)"
_HERE = "convolutions: He et al., fan-in; linear: PyTorch's default"
DROPOUT, ZEROS = (
    "network dropout: 0.5 (paper), 0 (here)",
    f"network initialisation: {_HERE}, last layer zero (paper), {_HERE} (here)",
)
"""Deviations of the four-layer CNN from its public code."""
CROPS = "random crops of 128, 224 and 288 pixels in the three stages, flips"
ON_IMAGENET = [
    f"adversarial, imagenet: augmentation: {CROPS} (public code), crop-flip (here)",
    "adversarial, imagenet: batch size: 512, 224 and 128 in the three stages (public code), 128 (here)",
]
"""The stages of fast training have growing images and shrinking batches."""
ON_MNIST = [f"adversarial, mnist: {line}" for line in (DROPOUT, ZEROS)]


@pytest.mark.parametrize(
    ("item", "lines"),
    [
        (
            "cfa23/T1",
            [
                "TRADES: loss scaled: no (paper), yes (here)",
                "start of FRL: validation share: 0.02 (paper), 0.06 (here)",
            ],
        ),
        ("cfa23/F4", []),
        ("cfa23/E1", []),
        ("cfa23/F2bc", []),
        ("cfa23/F2a", []),
        ("cfa23/F7", ["TRADES: loss scaled: no (paper), yes (here)"]),
        (
            "kdd21/T1",
            [
                "Madry: epochs: 205 (public code), 100 (here)",
                "Madry: learning-rate schedule: x0.1 at epochs 102, 154 (public code), x0.1 at epochs 74, 89 (here)",
                f"MART: {HOLDS_OUT}",
            ],
        ),
        ("kdd21/F5bc", ["coloured; evaluation: threat: Linf:0.5 (paper), Linf:0.3 (here)", DROPOUT, ZEROS]),
        ("kdd21/F1", [*ON_MNIST, *ON_IMAGENET]),
        ("kdd21/E2", [*ON_MNIST, *ON_IMAGENET]),
        ("iclr21/F6", ON_IMAGENET),
        ("iclr21/F8", []),
        ("benz20/F1", []),
        ("benz20/P1.1", []),
        ("benz20/P2.2", []),
        ("benz20/F2", []),
        ("benz20/P1.4", []),
        (
            "benz20/F2 small",
            [
                "training images: all (paper), 5,000 (here)",
                "network: resnet18 (paper), preactresnet18 (here)",
                "network width: 1 (paper), 0.25 (here)",
                "network parameters: 11,173,962 (paper), 701,018 (here)",
                "network GFLOP: 1.1 (paper), 0.07 (here)",
            ],
        ),
        (
            "cfa23/T3 medium",
            [
                "epochs: 200 (paper), 30 (here)",
                "learning rate: 0.1 (paper), 0.2 (here)",
                "learning-rate schedule: x0.1 at epochs 100, 150 (paper), one-cycle, peak at epoch 12 (here)",
                "trainings: 5 (paper), 3 (here)",
                "averaging start epoch: 50 (paper), 8 (here)",
                "TRADES + EMA; TRADES + FAWA: loss scaled: no (paper), yes (here)",
            ],
        ),
    ],
)
def test_deviations_of_items(item: str, lines: list[str]) -> None:
    """Complete lists, written by hand; a change of a definition must change them. The scale is full by default."""
    name, _, scale = item.partition(" ")
    assert sorted(deviation_lines(compare(name, scale or "full"))) == sorted(lines)


def test_substituted_attacks_deviate() -> None:
    attacks = "evaluation: attacks: apgd-ce, apgd-t, fab-t, square (paper), pgd (here)"
    assert attacks in deviation_lines(compare("cfa23/T1", "small"))


def test_medium_scale_changes_the_budget_alone() -> None:
    """Networks, data and radii are those of the paper."""
    named = [line.partition(" (paper)")[0] for line in deviation_lines(compare("kdd21/T1", "medium"))]
    assert not any(f"{setting}:" in line for line in named for setting in ("network", "data set", "threat", "steps"))


def test_equal_values_of_scales_are_stated_once() -> None:
    table = settings_table("cfa23/T1")
    assert table is not None
    rows = {row.name: [cell.text for cell in row.cells] for row in reversed(table.rows)}
    assert len([row for row in table.rows if row.name == "network width"]) == 1, "also of rows at some scales only"
    assert rows["averaging decay"][1:] == ["0.85; authors' code: 0.88", "0.85"]
    assert rows["network width"] == ["all", "1", "1 (full, medium); 0.25 (reduced); 0.5 (small)"]
    assert settings_table("cfa23/F1") is None


def test_smoke_is_not_compared() -> None:
    assert list(comparisons("kdd21/T1")) == ["full", "medium", "reduced", "small"]
    assert isinstance(compare("kdd21/T1", SMOKE.name), Comparison)
