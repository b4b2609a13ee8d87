"""Does the sign of an effect on the worst class survive APGD-T? Class-wise methods against AT, three seeds.

``OMP_NUM_THREADS=1 python -m benchmarks attack-signs`` trains and audits; see `benchmarks.studies`. One audit of each
model has PGD-20, margin PGD-20 and APGD-T as a cascade, so that the differences of a pair under each are of the same
weights and images. The constants of the logit adjustment are fitted under each attack of `benchmarks.adjustment`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.adjustment import FITS
from benchmarks.comparison.methods import SHORT, LogitAdjusted, Method, Scale, Trained
from benchmarks.studies import QUICK, SUITE, Study, effect, percent, verdict
from benchmarks.tables import table
from classwise.auditing.compare.comparison import Comparison
from classwise.stats.intervals import Estimate

EPOCHS = 8
_CRAFT = {"attack.steps": 5, "attack.step_size": "0.5eps"}
_LATE: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.5], "gamma": 0.1},
}
"""FAAL's learning rates: 0.01, and 0.001 in the second half."""
START = Trained("N-FGSM", "n-fgsm", {}, EPOCHS)
SMALLER, LARGER = (
    Trained(f"N-FGSM-{name}", "n-fgsm", {"schedules": [{"name": "margins", "slope": slope, "floor": 0.1}]}, EPOCHS)
    for name, slope in (("smaller", 1), ("larger", -1))
)


def tuned(
    name: str, recipe: str, fields: Mapping[str, Any], start: Trained = START, budget: str | None = None
) -> Trained:
    """A recipe for two epochs from the weights of N-FGSM."""
    return Trained(name, recipe, {**_LATE, **_CRAFT, **fields}, 2, start, budget)


AT = tuned("AT", "at", {})
FAAL = tuned("FAAL", "faal", {})
CCM = tuned("AT+CCM", "cfa-at", {"averaging": "none"})
TRADES = tuned("TRADES", "trades", {})
DAFA = tuned("DAFA", "dafa", {"schedules.0.start_epoch": 1}, budget=SHORT)
FROM_SMALLER = tuned("AT-from-smaller", "at", {}, SMALLER)
CE, MARGIN, APGD_T = (LogitAdjusted(f"AT+adjusted-{fit}", AT, attack) for fit, attack in FITS.items())
METHODS: tuple[Method, ...] = (
    START,
    SMALLER,
    AT,
    MARGIN,
    FAAL,
    CCM,
    LARGER,
    CE,
    APGD_T,
    DAFA,
    FROM_SMALLER,
    TRADES,
)
EFFECTS = (
    (SMALLER, START),
    (LARGER, START),
    (FROM_SMALLER, AT),
    (FAAL, AT),
    (CCM, AT),
    (TRADES, AT),
    (DAFA, AT),
    (DAFA, TRADES),
    (MARGIN, AT),
)
"""Pairs of methods; the first minus the second."""
FIT_EFFECTS = ((CE, AT), (MARGIN, AT), (APGD_T, AT), (MARGIN, CE), (APGD_T, CE), (APGD_T, MARGIN))
"""Pairs of fits of the logit adjustment, and each against none."""
SHOWN = {"pgd": "PGD-20", "pgd-margin": "margin PGD-20", "apgd-t": "APGD-T"}
"""The attacks in the order of the cascade, by the name of their column."""
ATTACKS = {
    SUITE: (
        None,
        (
            "pgd:steps=20,step_size=0.1eps",
            "pgd:steps=20,step_size=0.1eps,objective=margin",
            "apgd-t:steps=20,targets=3",
        ),
    )
}
QUICK_ATTACKS = {SUITE: (None, ("pgd:steps=2", "pgd:steps=2,objective=margin", "apgd-t:steps=2,targets=1"))}
_FIELDS = {"data.augment": "none", "model.name": "small-cnn", "batch_size": 32, "optimizer.lr": 0.05}
_FIXED = {"selection": "last", "validation_attack": {"name": "pgd", "steps": 2, "step_size": "0.5eps"}}
"""The last epoch; validation only observes, at less cost."""
SCALE = Scale(
    data="fashion-mnist",
    train=3000,
    validation=0.2,
    test=1000,
    threat="Linf:0.1",
    fields={
        **_FIELDS,
        **_FIXED,
        "model.width": 0.25,
        "precision": {"dtype": "float32", "channels_last": True},
    },
    suites=ATTACKS,
    options={"cascade": True, "guards": "off"},
)
TRIAL = replace(QUICK, suites=QUICK_ATTACKS, options={"cascade": True, "guards": "off"})


def page(comparison: Comparison, scale: Scale, root: Path) -> str:
    """The tables: effects and fits under each attack, and the accuracies of the methods."""
    del scale, root
    under = {attack: Comparison(comparison.audits, attack) for attack in SHOWN}
    return "\n".join(
        [
            _differences(under, "Each method minus its control, points", EFFECTS),
            _differences(under, "Fits of the logit adjustment, points", FIT_EFFECTS),
            _accuracies(under),
        ]
    )


def _differences(under: Mapping[str, Comparison], title: str, pairs: Sequence[tuple[Method, Method]]) -> str:
    """Two rows for each pair of methods, overall and worst class, with a column for each attack."""
    rows = []
    for first, second in pairs:
        found = [effect(comparison, first.name, second.name) for comparison in under.values()]
        effects = [one for one in found if one is not None]
        for measure, shown in (("overall", "overall"), ("worst", "worst class")) if effects else ():
            values = [getattr(one, measure) for one in effects]
            cells = [percent(value, "+") for value in values]
            pair = f"{first.name} minus {second.name}"
            rows.append([pair, f"{effects[0].seeds}", shown, *cells, sign(values[0], values[-1])])
    return table(title, ["difference", "seeds", "accuracy", *SHOWN.values(), "sign under APGD-T"], rows)


def sign(weak: Estimate, strong: Estimate) -> str:
    """The signs of the estimates under a weaker and a stronger attack, and the verdicts if they differ."""
    product = weak.value * strong.value
    estimates = "zero" if product == 0 else "same" if product > 0 else "opposite"
    verdicts = dict.fromkeys((verdict(weak), verdict(strong)))
    return f"{estimates}; {' to '.join(verdicts)}"


def _accuracies(under: Mapping[str, Comparison]) -> str:
    """A row for each method, with the overall accuracy, the worst class and its name under each attack."""
    rows = []
    for name in next(iter(under.values())).names:
        facts = [comparison.table.loc[name].to_dict() for comparison in under.values()]
        cells = [
            f"{percent(Estimate(*(row[f'{measure}{end}'] for end in ('', '_low', '_high'))))}{label}"
            for row in facts
            for measure, label in (("overall", ""), ("worst", f" {row['worst_class']}"))
        ]
        rows.append([name, f"{facts[0]['seeds']:.0f}", f"{100 * facts[0]['clean']:.1f}", *cells])
    heads = [f"{attack}: {measure}" for attack in SHOWN.values() for measure in ("overall", "worst class")]
    return table("Robust accuracy, percent", ["method", "seeds", "clean", *heads], rows)


STUDY = Study("attack-signs", METHODS, SCALE, TRIAL, page, archived=True)
