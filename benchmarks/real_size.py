"""Class-wise fine-tuning at half width on all images of CIFAR-10, from one robust model.

``OMP_NUM_THREADS=1 python -m benchmarks real-size`` trains and audits; several processes may share the folder. See
`benchmarks.studies`. SUITES=apgd adds the attacks of AutoAttack that need gradients on 1,000 images.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison.methods import SHORT, TRAINING, Interpolated, LogitAdjusted, Method, Saved, Scale, Trained
from benchmarks.studies import (
    ATTACKS,
    FIGURE,
    QUICK,
    QUICK_ATTACKS,
    RESULTS,
    SUITE,
    Study,
    accuracy_table,
    effect,
    of_common_seeds,
    percent,
    seed_of,
    shared_seeds,
)
from benchmarks.tables import table
from classwise.auditing.compare.comparison import Comparison

EPOCHS = 15
_LATE: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.5], "gamma": 0.1},
}
"""FAAL's learning rates: 0.01, and 0.001 in the second half."""
_AWP = {"update": {"name": "awp", "gamma": 0.005, "start_fraction": 0}}
START = Trained("N-FGSM", "n-fgsm", {}, EPOCHS)
RADII = tuple(
    Trained(f"N-FGSM-{name}", "n-fgsm", {"schedules": [{"name": "margins", "slope": slope, "floor": 0.1}]}, EPOCHS)
    for name, slope in (("smaller", 1), ("larger", -1))
)
"""A smaller or a larger radius for hard classes, at a constant mean radius, from random weights."""

LAST = tuple(Saved(f"{method.name}-last", method, "last") for method in (START, *RADII))
"""The weights of the last epoch, where the learning rate is 0, in place of the selected ones."""
_FIXED = {"selection": "last", "validation_attack.steps": 2, "validation_attack.step_size": "0.5eps"}
"""The last epoch, so that widths are compared at the end of the schedule; validation only observes, at less cost."""
FULL = Trained("N-FGSM-full-width", "n-fgsm", {"model.width": 1.0, **_FIXED}, 2 * EPOCHS)
"""The width and the epochs of the paper."""
_QUARTER = {"model.width": 0.25, "precision": {"dtype": "float32", "channels_last": True}, **_FIXED}
QUARTER = tuple(
    dataclasses.replace(method, name=f"{method.name}-quarter-width", overrides={**method.overrides, **_QUARTER})
    for method in (START, RADII[0])
)
"""The images and epochs of the half width; in float32, for processors without fast bfloat16."""


def tuned(name: str, recipe: str, fields: Mapping[str, Any], epochs: int = 1, budget: str | None = None) -> Trained:
    """A recipe for few epochs from the weights of N-FGSM."""
    return Trained(name, recipe, {**_LATE, **fields}, epochs, START, budget)


AT = tuned("AT", "at", {})
FROM_SMALLER = dataclasses.replace(AT, name="AT-from-smaller", start=RADII[0])
TRADES = tuned("TRADES", "trades", {}, 2)
TRADES_LAST = Saved("TRADES-last", TRADES, "last")
FAAL = {radius: tuned(f"FAAL-{radius}", "faal", {"reduction.radius": radius}) for radius in (0.1, 0.3, 0.5)}
DAFA = tuned("DAFA", "dafa", {"schedules.0.start_epoch": 1}, 2, SHORT)
CSR = tuned("CSR", "csr", {"objective.start_fraction": 0.5}, 2)
WITH_AWP = tuple(
    tuned(f"{name}-AWP", recipe, {**fields, **_AWP})
    for name, recipe, fields in (("AT", "at", {}), ("FAAL-0.3", "faal", {"reduction.radius": 0.3}))
)
CONTROLS = {
    **{method.name: START.name for method in RADII},
    LAST[0].name: START.name,
    **{method.name: LAST[0].name for method in LAST[1:]},
    AT.name: LAST[0].name,
    FROM_SMALLER.name: AT.name,
    f"{FROM_SMALLER.name}+adjusted": f"{AT.name}+adjusted",
    "N-FGSM-smaller-last+adjusted": "N-FGSM-last+adjusted",
    TRADES.name: LAST[0].name,
    TRADES_LAST.name: LAST[0].name,
    **{method.name: AT.name for method in FAAL.values()},
    DAFA.name: TRADES_LAST.name,
    CSR.name: TRADES_LAST.name,
    "AT-AWP": AT.name,
    "FAAL-0.3-AWP": "AT-AWP",
    QUARTER[0].name: LAST[0].name,
    QUARTER[1].name: QUARTER[0].name,
    f"{QUARTER[1].name}+adjusted": f"{LAST[1].name}+adjusted",
}
"""The method that differs in the class-wise part only (or, for the controls, in the fine-tuning)."""
_FINE_TUNED = (AT, FAAL[0.3], TRADES, TRADES_LAST, DAFA, FAAL[0.1], FAAL[0.5], FROM_SMALLER, CSR, *WITH_AWP)
_INTERPOLATED = tuple(Interpolated(f"{method.name}+interpolated", method) for method in (AT, FAAL[0.3], TRADES, DAFA))
_STARTS: tuple[Trained | Interpolated | Saved, ...] = (
    START,
    *LAST[:2],
    AT,
    TRADES,
    FAAL[0.3],
    DAFA,
    FROM_SMALLER,
    *QUARTER,
    *_INTERPOLATED,
)
_ADJUSTED = tuple(LogitAdjusted(f"{start.name}+adjusted", start) for start in _STARTS)
METHODS: tuple[Method, ...] = (START, *RADII, *LAST, FULL, *QUARTER, *_FINE_TUNED, *_ADJUSTED, *_INTERPOLATED)

SCALE = Scale(
    train=None,
    validation=0.06,
    fields={"model.width": 0.5, "precision": {"dtype": "bfloat16", "channels_last": True}},
    suites={
        **ATTACKS,
        "apgd": (1000, ("apgd-ce", "apgd-t")),
        "autoattack": (1000, ("autoattack",)),
        "pgd-50-10": (1000, ("pgd:steps=50,restarts=10,step_size=0.25eps",)),
    },
    default_suites=(SUITE,),
)
TRIAL = dataclasses.replace(QUICK, suites={**QUICK_ATTACKS, "apgd": (50, ("apgd-ce:steps=5",))})
SHOWN_SUITES = {"apgd": "APGD-CE and APGD-T", "autoattack": "AutoAttack", "pgd-50-10": "PGD-50-10"}


DATA = {"cifar10": "CIFAR-10 stored as JPEG of quality 75"}
"""The images that were used, by the name of the data set."""


def page(comparison: Comparison, scale: Scale, root: Path) -> str:
    """The tables: accuracies, and the effect of each class-wise part.

    Accuracies are of the seeds that all methods have, so that rows differ in the method only.
    """
    comparison = _without_selected(comparison)
    common = of_common_seeds(comparison)
    seeds = sorted({seed_of(audit) for audits in common.audits.values() for audit in audits})
    costs = {name: [_cost(name, seed, root) for seed in seeds] for name in common.names}
    rows = {name: (name, _hours(facts)) for name, facts in costs.items()}
    title = f"Robust accuracy under margin PGD-20, {_count(comparison):,} test images, percent"
    parts = [accuracy_table(common, title, rows, ("method", "hours"))]
    places = dict.fromkeys(record["conditions"] for facts in costs.values() for record in facts if record)
    data = DATA.get(scale.data, scale.data)
    where = f"{data}; training seed {', '.join(map(str, seeds))}{' (one seed)' if len(seeds) == 1 else ''}"
    parts.append(
        f"{where}; intervals for new images. Hours of one thread, validation included, without the start of a "
        "fine-tuned model; rows of one run have the same. Empty: not recorded. Devices: "
        f"{'; '.join(places)}.\n"
    )
    if len(comparison.names) >= 3:
        parts.append(f"![Worst-class against overall accuracy, with 95 % intervals](real-size/{FIGURE})\n")
    for suite, attacks in SHOWN_SUITES.items():
        if (other := STUDY.comparison(root, suite, recorded=scale is SCALE)) is not None:
            title = f"Robust accuracy under {attacks}, {_count(other):,} test images, percent"
            parts += [accuracy_table(other, title, {name: (name,) for name in other.names}, ("method",))]
            parts += [_effects(other, attacks), _post_hoc(other, attacks)]
    parts += [_effects(comparison), _post_hoc(comparison), _against_adjustment(comparison)]
    parts += ["Rows of one seed: intervals for new images; rows of all seeds: for new images and trainings.\n"]
    return "\n".join(filter(None, parts))


def _without_selected(comparison: Comparison) -> Comparison:
    """Without the selected weights of trainings whose last weights are there, too: their epochs differ."""
    selected = {saved.of.name for saved in (*LAST, TRADES_LAST) if saved.name in comparison.names}
    runs = {name: audits for name, audits in comparison.audits.items() if name not in selected}
    return Comparison(runs, comparison.attack)


def _cost(name: str, seed: int, root: Path) -> dict[str, Any]:
    """What is known of the training of a method's weights: seconds, threads, date and processor; empty if nothing."""
    method = next(known for known in METHODS if known.name == name)
    while not isinstance(method, Trained):
        assert isinstance(method, Saved | LogitAdjusted | Interpolated)
        method = method.of
    files = [base / f"seed-{seed}" / method.name / TRAINING for base in (root, RESULTS / STUDY.name)]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return dict(found[0]) if found else {}


def _hours(facts: Sequence[Mapping[str, Any]]) -> str:
    """The hours of threads of some trainings."""
    return ", ".join(f"{record['threads'] * record['seconds'] / 3600:.2f}" for record in facts if record)


def _count(comparison: Comparison) -> int:
    return int(comparison.table["n"].iloc[0])


def _title(text: str, attacks: str) -> str:
    """The title of a table of differences, with the attacks if they are not those of the page."""
    return f"{text}{f' under {attacks}' if attacks else ''}, points"


def _effects(comparison: Comparison, attacks: str = "") -> str:
    pairs = [*CONTROLS.items(), ("FAAL-0.3-AWP", "FAAL-0.3"), (FROM_SMALLER.name, LAST[1].name)]
    pairs.append((f"{FROM_SMALLER.name}+adjusted", f"{LAST[1].name}+adjusted"))
    return _differences(comparison, _title("Each method minus its control", attacks), pairs)


def _against_adjustment(comparison: Comparison) -> str:
    names = [
        *(method.name for method in (*FAAL.values(), DAFA, CSR)),
        "FAAL-0.3+adjusted",
        "DAFA+adjusted",
        "TRADES+adjusted",
        *(f"{method.name}+adjusted" for method in LAST[:2]),
    ]
    pairs = [(name, f"{AT.name}+adjusted") for name in names]
    return _differences(comparison, "Class-wise training minus AT with adjusted logits, points", pairs)


def _post_hoc(comparison: Comparison, attacks: str = "") -> str:
    pairs = [(method.name, method.of.name) for method in _ADJUSTED] + [
        (method.name, method.of.name) for method in _INTERPOLATED
    ]
    return _differences(comparison, _title("After training minus before", attacks), pairs)


def _differences(comparison: Comparison, title: str, pairs: Sequence[tuple[str, str]]) -> str:
    """A row for each pair of methods; of several seeds one more for each seed, whose interval is for new images."""
    rows = []
    for first, second in pairs:
        seeds = shared_seeds(comparison, first, second)
        for seed in (None, *seeds) if len(seeds) > 1 else seeds:
            found = effect(comparison, first, second, seed)
            assert found is not None
            cells = [percent(value, "+") for value in (found.overall, found.worst)]
            rows.append([f"{first} minus {second}", "all" if seed is None else f"{seed}", *cells])
    heads = ["difference", "seed", "overall", "worst class"]
    return table(title, heads, rows) if rows else ""


STUDY = Study("real-size", METHODS, SCALE, TRIAL, page, seeds="0", records=True)
