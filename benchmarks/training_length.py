"""Does the sign of CFA's effect change with the length of training? Fashion-MNIST, three seeds, three lengths.

``OMP_NUM_THREADS=1 python -m benchmarks training-length`` trains and audits; see `benchmarks.studies`. Averaging does
not change the online model, so one run has the model without FAWA and its average with FAWA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison.methods import Saved, Scale, Trained
from benchmarks.studies import (
    ATTACKS,
    DOWN,
    INCONCLUSIVE,
    QUICK,
    UP,
    Effect,
    Study,
    accuracy_table,
    effect,
    percent,
    verdict,
)
from benchmarks.tables import table
from classwise.auditing.compare.comparison import Comparison
from classwise.training.folder import Run, Which

LENGTHS = (12, 50, 100)
CLASSES = 10
_GATE = {"averaging": {"name": "fawa", "decay": 0.85, "start_fraction": 0.25, "gate": "absolute"}}
_CCR = {"schedules": [{"name": "ccr", "lambda2": 0.5}]}
RUNS: tuple[tuple[str, Mapping[str, Any], str, str | None], ...] = (
    ("at", _GATE, "AT", "AT+FAWA"),
    ("cfa-at", {}, "AT+CCM", "CFA-AT"),
    ("trades-scaled", {}, "TRADES, scaled", None),
    ("cfa-trades", {}, "TRADES+CCM+CCR", "CFA-TRADES"),
    ("trades", _CCR, "TRADES+CCR", None),
    ("trades", {}, "TRADES", None),
)
"""Recipe, changed fields, name of the method of the online model, and name of the method of its average."""
SAVED: dict[str, tuple[Which, Which]] = {"selected": ("best", "best-average"), "last": ("last", "average")}
"""Names of the weights of the online model and of its average: of the selected and of the last epoch."""
EFFECTS = (
    ("AT+CCM", "AT"),
    ("AT+FAWA", "AT"),
    ("CFA-AT", "AT"),
    ("TRADES, scaled", "TRADES"),
    ("TRADES+CCR", "TRADES, scaled"),
    ("TRADES+CCM+CCR", "TRADES, scaled"),
    ("CFA-TRADES", "TRADES, scaled"),
    ("TRADES+CCR", "TRADES"),
    ("CFA-TRADES", "TRADES"),
)
"""Pairs of methods; the first minus the second."""
_NETWORK = {"data.augment": "none", "model.name": "small-cnn"}
_CRAFT = {f"{attack}.{field}": value for attack in ("attack", "validation_attack") for field, value in
          (("steps", 5), ("step_size", "0.5eps"))}  # fmt: skip
SCALE = Scale(
    data="fashion-mnist",
    train=1500,
    validation=1 / 3,
    test=2000,
    threat="Linf:0.02",
    fields={
        **_NETWORK,
        **_CRAFT,
        "model.width": 0.5,
        "batch_size": 32,
        "optimizer.lr": 0.05,
        "precision": {"dtype": "bfloat16", "channels_last": True},
    },
    suites=ATTACKS,
)


def method_name(label: str, length: int, when: str) -> str:
    """The name of a method: that of the folder of its audits."""
    return f"{label}-{length}-{when}".replace(", ", "-")


def run_name(recipe: str, label: str, length: int) -> str:
    return f"run-{recipe}-{label}-{length}".replace(", ", "-")


def _methods() -> Iterator[Saved]:
    """The weights of every run: all lengths of a run before the next run, and those of the last epochs at the end."""
    for when, weights in SAVED.items():
        for recipe, fields, plain, averaged in RUNS:
            for length in LENGTHS:
                run = Trained(run_name(recipe, plain, length), recipe, fields, length)
                for label, which in zip((plain, averaged), weights, strict=True):
                    if label is not None:
                        yield Saved(method_name(label, length, when), run, which)


NOTES = """
- {data}, {train:,} training images and {valid:,} validation images of a class-balanced subset, the four-layer CNN at
  half width, {threat}, batch 32, bfloat16, no augmentation. Three lengths with one schedule, that of the paper:
  learning rate 0.05, divided by 10 at 1/2 and 3/4 of training. The radius is a fifth of the usual one, so that the
  worst class of short trainings of so few images is above 0 %.
- Training and validation attack: PGD with 5 steps of half the radius (the paper: 10 steps of a quarter).
- CFA's settings are the paper's: lambda1 0.5 on AT and 0.3 on TRADES, lambda2 0.5; FAWA from 1/4 of training with
  decay 0.85, admitting the epochs whose worst class reaches 20 % on {valid_per_class} validation images per class.
  While no epoch is admitted, the average is that of all epochs.
- AT+FAWA is the average of the run of AT, CFA-AT that of AT+CCM, CFA-TRADES that of TRADES+CCM+CCR.
- "TRADES, scaled" is (1-b) CE + b KL with b = beta/(1+beta), the scale of CCR; "TRADES" is CE + beta KL.
- Evaluation: PGD-20 on the margin of the logits, with steps of a tenth of the radius, on {test:,} test images. No
  APGD-T or AutoAttack, under which the signs of these differences are not known.
- Weights: of the epoch of highest overall + worst-class robust accuracy on the validation split ("selected"), and of
  the last epoch.
- Intervals of 95 % cover new seeds and new images (`classwise.stats.seeds`). They are not corrected for the number of
  comparisons.
"""
COMMAND = """## Command

    KEEP=runs/training-length SEEDS=0,1,2 OMP_NUM_THREADS=1 python -m benchmarks training-length
    KEEP=runs/training-length python -m benchmarks training-length --report

Counts by method, seed and class: training-length.csv.
"""


def page(comparison: Comparison, scale: Scale, root: Path) -> str:
    """The page: answers, differences, accuracies, and epochs that FAWA admitted."""
    assert scale.train is not None
    valid = round(scale.train * scale.validation)
    facts = {"data": scale.data, "train": scale.train - valid, "valid": valid, "test": scale.test}
    facts["valid_per_class"] = valid // CLASSES
    parts = ["# CFA's effect and the length of training", "", NOTES.format(**facts, threat=scale.threat).strip(), ""]
    for when in SAVED:
        parts += [_effects(comparison, when)]
    for when in SAVED:
        rows = {
            method_name(label, length, when): (label, str(length))
            for _, _, *labels in RUNS
            for label in labels
            if label is not None
            for length in LENGTHS
        }
        title = f"Robust accuracy of the {when} epoch, percent"
        parts += [accuracy_table(comparison, title, rows, ("method", "epochs"))]
    return "\n".join([*parts, _admitted(root), COMMAND])


def _effects(comparison: Comparison, when: str) -> str:
    """Differences at each length, and whether their sign changes."""
    rows = []
    for first, second in EFFECTS:
        known: dict[int, Effect] = {}
        for length in LENGTHS:
            found = effect(comparison, method_name(first, length, when), method_name(second, length, when))
            if found is not None:
                known[length] = found
        for measure in ("overall", "worst"):
            values = {length: getattr(difference, measure) for length, difference in known.items()}
            cells = [percent(values[length], "+") if length in values else "not run" for length in LENGTHS]
            seeds = sorted({difference.seeds for difference in known.values()})
            shown = {"overall": "overall", "worst": "worst class"}[measure]
            answer = sign_change([verdict(value) for value in values.values()], len(LENGTHS))
            rows.append([f"{first} minus {second}", shown, *cells, "/".join(map(str, seeds)), answer])
    header = ["difference", "accuracy", *(f"{length} epochs" for length in LENGTHS), "seeds", "sign changes"]
    return table(f"Differences of the {when} epoch, points", header, rows)


def sign_change(verdicts: list[str], lengths: int) -> str:
    """Whether the sign of an effect changes with the length, by the verdicts at the finished ones of the lengths."""
    if UP in verdicts and DOWN in verdicts:
        return "supported"
    if len(verdicts) < lengths:
        return "not run"
    return INCONCLUSIVE if INCONCLUSIVE in verdicts else f"no: {verdicts[0]} at every length"


def _admitted(root: Path) -> str:
    """How many epochs FAWA admitted in each run, of those after its start."""
    rows = []
    for recipe, _, plain, averaged in RUNS:
        if averaged is None:
            continue
        cells = []
        for length in LENGTHS:
            folders = sorted(root.glob(f"seed-*/{run_name(recipe, plain, length)}/recipe.yaml"))
            events = [[e for e in Run.open(file.parent).events if e["event"] == "fawa"] for file in folders]
            counts = [f"{sum(bool(event['admitted']) for event in run)} of {len(run)}" for run in events]
            cells.append(", ".join(counts) or "not run")
        rows.append([averaged, *cells])
    header = ["method", *(f"{length} epochs" for length in LENGTHS)]
    return table("Epochs that FAWA admitted, by seed", header, rows)


STUDY = Study("training-length", tuple(_methods()), SCALE, QUICK, page, archived=True)
