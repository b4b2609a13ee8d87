"""Does Sy-FAR make confusions under attack symmetric, and what does it change in accuracy?

``OMP_NUM_THREADS=1 python -m benchmarks symmetry`` trains and audits; see `benchmarks.studies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.comparison import methods as comparison
from benchmarks.comparison.methods import EPOCHS, SUITES, WARM, Method, Scale
from benchmarks.studies import QUICK, SUITE, Study, accuracy_table, effect, percent, seed_of, verdict
from benchmarks.tables import conditions, table
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.run.result import Audit
from classwise.papers.scales import FASHION
from classwise.stats import metrics
from classwise.stats.intervals import student

OURS, BASELINE = "Sy-FAR", "AT"
METHODS: tuple[Method, ...] = tuple(
    method for method in comparison.METHODS if method.name in (BASELINE, "AT+offset", "FAAL", OURS)
)
"""As in ``comparison``; FAAL and Sy-FAR fine-tune the same models."""
SCALE = Scale(
    data=FASHION.data,
    train=5000,
    test=2000,
    threat=FASHION.threat,
    fields={**FASHION.overrides, "data.validation": 0.1},
    suites={SUITE: SUITES[SUITE]},
    default_suites=(SUITE,),
)
MEASURES: dict[str, tuple[float, Callable[[Audit], float]]] = {
    "largest asymmetry": (100, lambda audit: metrics.max_asymmetry(audit.outcomes.confusion()).gap),
    "asymmetry penalty": (1, lambda audit: metrics.asymmetry_penalty(audit.outcomes.confusion())),
    "largest target share": (100, lambda audit: float(metrics.target_shares(audit.outcomes.confusion()).max())),
    "gap of target shares": (100, lambda audit: float(np.ptp(metrics.target_shares(audit.outcomes.confusion())))),
}
"""Measures of the confusion matrix under all attacks, and the factor of their unit in the table."""
NOTES = """
- {data}, a class-balanced subset of {train:,} training images (10 % of them for validation), the four-layer CNN at half
  width, {threat}, batch 128 if not stated, bfloat16, {epochs} epochs. The weights of every method are those of highest
  overall + worst-class robust accuracy on the validation split. The models are weak: compare rows with each other only.
- `AT`: one-cycle, {epochs} epochs. `FAAL` and `Sy-FAR`: {late} epochs after {warm} shared epochs of AT, as in
  the comparison of all defences; FAAL at a learning rate of 0.01, then 0.001; Sy-FAR at 0.001 in batches of 16, as its
  public code (8 to 16). `AT+offset`: `classwise adjust-logits` after `AT`.
- Inner attack of every method: PGD with 10 steps of a quarter of the radius (the public code of Sy-FAR attacks by
  rectangular occlusion). Penalty of strength 10 with smoothing 0.1; weights of the clean and the adversarial
  cross-entropy 0.1 and 1, those of the public code.
- The same penalty in batches of 128, which have all classes, brings the model to chance: a robust accuracy of 10.0 % on
  the validation images in three seeds, after one epoch of fine-tuning at 0.01, and after three epochs of AT's schedule
  from random weights (these runs were stopped then).
- Evaluation: PGD-20 and PGD-20 on the margin of the logits, steps of a tenth of the radius, on {test:,} test images
  ({per_class} per class). An image counts by its first misclassification.
- Measures of confusions are plug-in estimates, biased upwards. Means over seeds with Student's interval for new
  training runs on these images; their differences are paired by seed. They are not corrected for the number of
  comparisons. Intervals of accuracies are for new images and new seeds (`classwise.stats.seeds`).
"""
COMMAND = """## Command

    KEEP=runs/symmetry SEEDS=0,1,2 OMP_NUM_THREADS=1 python -m benchmarks symmetry
    KEEP=runs/symmetry python -m benchmarks symmetry --report

Counts by method, seed and class: symmetry.csv. With the protocol of the comparison, on
CIFAR-10: `METHODS=AT,FAAL,Sy-FAR SEEDS=0,1,2 python -m benchmarks comparison`.
"""


def page(found: Comparison, scale: Scale, root: Path) -> str:
    """The page: accuracies, measures of confusions, differences from AT, and the classes that are named."""
    del root
    facts = {"data": scale.data, "train": scale.train, "test": scale.test, "threat": scale.threat}
    per_class = (scale.test or 0) // len(found.group_names)
    epochs = {"epochs": scale.epochs_of(EPOCHS), "warm": WARM, "late": EPOCHS - WARM}
    rows = {method.name: (method.name, method.description) for method in METHODS}
    return "\n".join(
        [
            "# Sy-FAR: symmetric confusions under attack",
            "",
            f"{conditions()}.",
            "",
            NOTES.format(**facts, **epochs, per_class=per_class).strip(),
            "",
            accuracy_table(found, "Robust accuracy, percent", rows, ("method", "recipe, epochs")),
            _measures(found),
            _differences(found),
            _named(found),
            COMMAND,
        ]
    )


def _measured(audits: Sequence[Audit], name: str) -> dict[int, float]:
    """A measure of each audit by its seed, in the unit of the table."""
    unit, measure = MEASURES[name]
    return {seed_of(audit): unit * measure(audit) for audit in audits}


def _over_seeds(values: Sequence[float], name: str, sign: str = "") -> str:
    """The mean over seeds with Student's interval; the penalty with two decimals."""
    mean, low, high = student(values)
    digits = 2 if MEASURES[name][0] == 1 else 1
    return f"{mean:{sign}.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _measures(found: Comparison) -> str:
    rows = [
        [name, *(_over_seeds(list(_measured(audits, measure).values()), measure) for measure in MEASURES)]
        for name, audits in found.audits.items()
    ]
    return table(
        "Confusions under attack, in points and percent (asymmetry penalty: a number)", ["method", *MEASURES], rows
    )


def _differences(found: Comparison) -> str:
    """Each method minus AT, over the seeds that both have."""
    rows = []
    for name in found.names:
        change = None if name == BASELINE else effect(found, name, BASELINE)
        if change is None:
            continue
        cells = [text for value in (change.overall, change.worst) for text in (percent(value, "+"), verdict(value))]
        for measure in MEASURES:
            ours, base = (_measured(found.audits[method], measure) for method in (name, BASELINE))
            cells.append(_over_seeds([ours[seed] - base[seed] for seed in ours if seed in base], measure, "+"))
        rows.append([name, str(change.seeds), *cells])
    head = ["method", "seeds", "overall", "verdict", "worst class", "verdict", *MEASURES]
    return table(f"Each method minus {BASELINE}, in points (asymmetry penalty: a number)", head, rows)


def _named(found: Comparison) -> str:
    """By seed: the most asymmetric pair, and the class that absorbs the most misclassifications."""
    rows = []
    for name, audits in found.audits.items():
        cells = []
        for audit in audits:
            names, matrix = audit.outcomes.class_names, audit.outcomes.confusion()
            label, predicted, gap = metrics.max_asymmetry(matrix)
            shares = metrics.target_shares(matrix)
            cells.append(
                f"{names[label]} to {names[predicted]} +{100 * gap:.1f}; {names[int(shares.argmax())]} "
                f"{100 * shares.max():.1f}"
            )
        rows.append([name, "<br>".join(cells)])
    return table(
        "By seed: most asymmetric pair, points; class that absorbs the most misclassifications, percent",
        ["method", "seeds in order"],
        rows,
    )


STUDY = Study("symmetry", METHODS, SCALE, QUICK, page, archived=True)
