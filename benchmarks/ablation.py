"""Which parts of the former recipe ``frontier`` help? Each is removed in turn, under one learning-rate schedule.

``OMP_NUM_THREADS=1 python -m benchmarks ablation`` trains and audits; see `benchmarks.studies`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.comparison.methods import SHORT, LogitAdjusted, Method, Scale, Trained
from benchmarks.studies import ATTACKS, QUICK, Study, accuracy_table, effect, percent, verdict
from benchmarks.tables import table
from classwise.auditing.compare.comparison import Comparison

EPOCHS = 10
WARM_UP = 6
"""The first epoch with DAFA's weights, 64 % of the epochs as in the recipe."""
_TRADES = {"objective": {"name": "trades", "beta": 5}}
PARTS: dict[str, dict[str, Any]] = {
    "AWP": {"update": {"name": "awp", "gamma": 0.005, "start_fraction": 0.05}},
    "IDBH": {"data.augment": "idbh-weak"},
    "DAFA": {"schedules": [{"name": "dafa-average", "strength": 1, "start_epoch": WARM_UP}]},
    "FAAL": {"reduction": {"name": "faal", "radius": 0.1}},
    "EMA": {"averaging": {"name": "ema", "decay": 0.99, "start_fraction": 0, "every": "step"}},
}
"""The parts and their fields; without a part, the field is that of the recipe ``trades``."""


def without(name: str, *removed: str, **changed: dict[str, Any]) -> Trained:
    """All parts except for some, and some of them changed."""
    parts = {part: changed.get(part, fields) for part, fields in PARTS.items() if part not in removed}
    fields = {key: value for part in parts.values() for key, value in part.items()}
    return Trained(name, "trades", {**_TRADES, **fields}, EPOCHS, budget=SHORT)


AT = Trained("AT", "at", {}, EPOCHS, budget=SHORT)
TRADES = without("TRADES", *PARTS)
ALL = without("all-parts")
_SLOW_EMA = {"averaging": {**PARTS["EMA"]["averaging"], "decay": 0.999}}
REMOVED = (
    without("no-AWP", "AWP"),
    without("no-IDBH", "IDBH"),
    without("no-DAFA", "DAFA"),
    without("no-FAAL", "FAAL"),
    without("EMA-0.999", EMA=_SLOW_EMA),
)
"""One part removed, or changed."""
PLAIN = without("no-AWP-IDBH", "AWP", "IDBH")
"""Without the two parts that are designed for long training."""


def adjusted(method: Trained) -> LogitAdjusted:
    return LogitAdjusted(f"{method.name}+adjusted", method)


BASELINE = adjusted(AT)
METHODS: tuple[Method, ...] = (
    *(method for trained in (AT, ALL, TRADES, PLAIN) for method in (trained, adjusted(trained))),
    *REMOVED,
)
SHOWN = {
    "AT": "AT",
    "AT+adjusted": "AT + logit adjustment",
    "TRADES": "TRADES, beta 5 (no part)",
    "TRADES+adjusted": "TRADES + logit adjustment",
    "all-parts": "all parts",
    "all-parts+adjusted": "all parts + logit adjustment",
    "no-AWP": "without AWP",
    "no-IDBH": "without IDBH (crop and flip)",
    "no-DAFA": "without DAFA",
    "no-FAAL": "without FAAL",
    "EMA-0.999": "EMA 0.999 instead of 0.99",
    "no-AWP-IDBH": "without AWP and IDBH",
    "no-AWP-IDBH+adjusted": "without AWP and IDBH + logit adjustment",
}
_CRAFT = {f"{attack}.{field}": value for attack in ("attack", "validation_attack") for field, value in
          (("steps", 5), ("step_size", "0.5eps"))}  # fmt: skip
SCALE = Scale(
    train=2000,
    test=2000,
    fields={
        **_CRAFT,
        "model.width": 0.25,
        "batch_size": 64,
        "optimizer.lr": 0.1,
        "precision": {"dtype": "bfloat16", "channels_last": True},
    },
    suites=ATTACKS,
)
NOTES = """
- {data}, a class-balanced subset of {train:,} training images (10 % of them for validation), quarter-width
  PreActResNet-18, {threat}, batch 64, bfloat16, {epochs} epochs. **One schedule for all rows**: one-cycle with a peak
  of 0.1 after 40 % of training, the budget `short`. Inner and validation attack: PGD with 5 steps of half the radius.
- All parts of the former recipe: TRADES with beta 5; AWP 0.005 after 5 % of
  training; augmentation `idbh-weak`; after 60 %, DAFA's weights and radii with P of the averaged model; FAAL's weights
  with radius 0.1; EMA 0.99 after every step. FAAL acts from the first epoch here, not in a second stage of two
  epochs, so that all rows have one schedule.
- The weights of every row are those of the epoch of highest overall + worst-class robust accuracy on the validation
  split, of the online or the averaged model.
- Logit adjustment fits a constant per class on the validation split (`classwise adjust-logits`).
- Evaluation: PGD-20 on the margin of the logits, with steps of a tenth of the radius, on {test:,} test images. No
  APGD-T or AutoAttack, under which the signs of these differences are not known.
- Intervals of 95 % cover new seeds and new images (`classwise.stats.seeds`). They are not corrected for the number of
  comparisons. The models are weak: compare rows with each other only.
"""
COMMAND = """## Command

    KEEP=runs/ablation SEEDS=0,1,2 OMP_NUM_THREADS=1 python -m benchmarks ablation
    KEEP=runs/ablation python -m benchmarks ablation --report

Counts by method, seed and class: ablation.csv.
"""


def page(comparison: Comparison, scale: Scale, root: Path) -> str:
    """The page: accuracies, the effect of each part, and all methods against AT with logit adjustment."""
    del root
    facts = {"data": scale.data, "train": scale.train, "test": scale.test, "threat": scale.threat or "Linf 8/255"}
    text = NOTES.format(**facts, epochs=scale.epochs_of(EPOCHS)).strip()
    rows = {name: (label,) for name, label in SHOWN.items()}
    accuracies = accuracy_table(comparison, "Robust accuracy, percent", rows, ("method",))
    parts = [(variant.name, ALL.name) for variant in (*REMOVED, PLAIN, TRADES)]
    against = [(name, BASELINE.name) for name in SHOWN if name != BASELINE.name]
    return "\n".join(
        [
            "# Ablation of the former frontier under one schedule",
            "",
            text,
            "",
            accuracies,
            _differences(comparison, "Each part removed, minus all parts, points", parts),
            _differences(comparison, "Each method minus AT + logit adjustment, points", against),
            COMMAND,
        ]
    )


def _differences(comparison: Comparison, title: str, pairs: list[tuple[str, str]]) -> str:
    rows = []
    for first, second in pairs:
        found = effect(comparison, first, second)
        if found is not None:
            cells = [text for value in (found.overall, found.worst) for text in (percent(value, "+"), verdict(value))]
            rows.append([SHOWN[first], str(found.seeds), *cells])
    return table(title, ["method", "seeds", "overall", "verdict", "worst class", "verdict"], rows)


STUDY = Study("ablation", METHODS, SCALE, QUICK, page, archived=True)
