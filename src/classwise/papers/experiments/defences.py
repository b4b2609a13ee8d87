"""Class accuracies of four defences under five attacks, and the drop of vulnerable classes under stronger attacks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from classwise.analysis.consistency import Consistency, consistency, ranked_alike
from classwise.analysis.drop import drop
from classwise.attacks.suites import SUITES
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Spec, configurable
from classwise.papers import catalogue
from classwise.papers.claims import CORRELATION, Test, unless
from classwise.papers.declared import Measures, declared_tests
from classwise.papers.experiment import Context, Evaluation, Experiment, Findings, Training, pgd_of
from classwise.papers.experiments.protocol import (
    CAR,
    CAT,
    DEFENCES,
    ROBUST,
    RST_TEST_STEP,
    SCALES,
    VULNERABLE,
    defences,
    pgd,
    resampled,
    settings_table,
    substitute,
    unlabelled_note,
    unmet_preconditions,
    with_rst,
)
from classwise.papers.interval_estimators import (
    IntervalEstimator,
    Resampled,
    exactly,
    in_points,
    wider,
)
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import PRINTED, class_table, estimate_cell, row_name, summary_table
from classwise.reporting import formatting
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.worst_class import possibly_best, possibly_worst

COSTLY: Mapping[Name, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "CW_inf": {"name": "cw", "steps": 10, "binary_search_steps": 2},
        "N_attack": {"name": "nattack", "steps": 3, "samples": 20, "sigma": 0.1, "learning_rate": 0.1},
    },
    "small": {
        "CW_inf": {"name": "cw", "steps": 100},
        "N_attack": {"name": "nattack", "steps": 50, "samples": 100},
    },
    "full": {"CW_inf": {"name": "cw"}, "N_attack": {"name": "nattack"}},
}
"""The two attacks that cost thousands of passes; the paper runs them on 200 images per class."""
FIVE = ("FGSM", "CW_inf", "PGD", "transfer", "N_attack")
"""The attacks, in the order of the table."""
FGSM: Mapping[str, Any] = {"name": "fgsm", "random_init": "uniform"}
FGSM_NOTE = "FGSM starts at a random point of the ball, as in the paper."


@dataclass(frozen=True)
class Attacked:
    """Audits of one defence: ``main`` on all test images, ``few`` on a subset."""

    defence: str
    main: Audit
    few: Audit

    def outcomes(self, *attacks: str) -> Outcomes:
        """Outcomes with these attacks: those of all images if possible, else those of the subset."""
        return (self.main if set(attacks) <= set(self.main.attacks) else self.few).outcomes

    def counts(self, attack: str) -> ClassCounts:
        """Per-class counts of images that are robust against an attack."""
        return self.outcomes(attack).counts(attack)

    def paired(self, *attacks: str) -> Resampled:
        """Resample attacks on the same images jointly."""
        return resampled(self.outcomes(*attacks), attacks)


def attacked_trainings(scale: Scale) -> Mapping[str, Training]:
    """The four defences of kdd21, and the substitute of the transfer attack."""
    return {**defences(scale), "standard": substitute(scale)}


def audit_defences(context: Context, trainings: Mapping[str, Training]) -> dict[str, Attacked]:
    """Audit defences under the five attacks.

    Args:
        context: the scale.
        trainings: the defences, and the substitute of the transfer attack as ``standard``. A defence called ``RST`` is
            attacked by PGD-40 with step size 0.01 (iclr21 appendix E).
    """
    models = context.train_all(trainings)
    standard = models.pop("standard")
    transfer = {"name": "transfer", "surrogate": str(standard.path), "attack": pgd(context)}
    few = {"transfer": transfer, **{name: dict(spec) for name, spec in context.scale.entry(COSTLY).items()}}
    audits = {}
    for defence, trained in models.items():
        own = pgd(context, RST_TEST_STEP, steps=40) if defence == "RST" else pgd(context)
        main: dict[str, Spec] = {"FGSM": FGSM, "PGD": own, "transfer": transfer}
        audits[defence] = Attacked(
            defence,
            context.audit(trained, main, surrogates=[standard]),
            context.audit(trained, few, few=True, early_stop=True, surrogates=[standard]),
        )
    return audits


class _Attacked(Experiment):
    """An experiment with the audits of `audit_defences`."""

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The five attacks on a defence; those that cost thousands of passes on few images, and the transfer twice."""
        if name == "standard":
            return []
        (spec,) = pgd_of(scale).values()
        steps = 40 if name == "RST" and scale.attack_steps is None else spec["steps"]
        main: dict[str, Spec] = {"FGSM": "fgsm", "PGD": {**spec, "steps": steps}, "transfer": spec}
        few: dict[str, Spec] = {"transfer": spec, **scale.entry(COSTLY)}
        return [Evaluation(attacks=main), Evaluation(attacks=few, images="few")]


class DefencesByAttacks(_Attacked, scales=SCALES, trainings=attacked_trainings):
    """kdd21 Table 1: class accuracies, total, CV and MCD of four defences under five attacks."""

    def run(self, context: Context) -> Findings:
        """Audit each defence twice, and tabulate the accuracies."""
        trainings, names = self.trainings(context.scale), context.test_images.class_names
        audits = audit_defences(context, trainings)
        ours = {f"{defence}, {attack}": audit.counts(attack) for attack in FIVE for defence, audit in audits.items()}
        printed = catalogue.printed_rows(self.item)
        summary = summary_table("Four defences under five attacks, in percent", ours, printed, names)
        tables = [audit.main.outcomes for audit in audits.values()]
        rows = [table.correct(name) for table in tables for name in table.attacks if name != CLEAN]
        images = Resampled(np.stack(rows), tables[0].labels, tables[0].num_classes)

        def mean_over_rows(one: str, other: str) -> IntervalEstimator:
            return images.part(lambda a: (a[..., int(one)] - a[..., int(other)]).mean(axis=-1), 100)

        measures: Measures = {
            "CV": lambda name, one, other: audits[name].paired(one, other).part(_cv_change, 1e4),
            "MCD": lambda name, one, other: wider(audits[name].counts(one), audits[name].counts(other)),
            "drop of class 3 beyond class 1": lambda name, weak, strong: (
                audits[name].paired(weak, strong).part(_cat_beyond_car, 100)
            ),
            "drop of other vulnerable classes": lambda name, weak, strong: (
                audits[name].paired(weak, strong).part(_others_beyond_robust, 100)
            ),
            "class": mean_over_rows,
            "extremes": lambda name, attack: _extremes(ours[f"{name}, {attack}"]),
        }
        return Findings(
            tables=(
                replace(summary, note=f"{summary.note} {FGSM_NOTE} {_rst_note(context, trainings)}".strip()),
                class_table("By class, in percent", ours, names),
                settings_table(context.scale, trainings),
            ),
            tests=declared_tests(self.tests, measures, excluded=_unmet(context.scale, audits)),
        )


def _unmet(scale: Scale, audits: Mapping[str, Attacked]) -> dict[str, str]:
    """Unmet preconditions of the defences under PGD, and of the attacks that run on few images."""
    (few, *_) = (audit.few.outcomes for audit in audits.values())
    return {
        **unmet_preconditions(scale, {defence: audit.main.outcomes for defence, audit in audits.items()}),
        **unmet_preconditions(scale, dict.fromkeys(scale.entry(COSTLY), few), CLEAN),
    }


def _rst_note(context: Context, trainings: Mapping[str, Training]) -> str:
    """Note on the attack of RST, and on the source of its unlabelled images; empty without it."""
    if "RST" not in trainings:
        return ""
    spec = pgd(context, RST_TEST_STEP, steps=40)
    attack = f"RST: PGD-{spec['steps']} with step size {spec['step_size']}; in the paper 40 steps of 0.01 at 0.031."
    return f"{attack} {unlabelled_note(context, trainings)}"


def _cv_change(accuracy: FloatArray) -> FloatArray:
    cv = accuracy.var(axis=-1)
    return np.asarray(cv[..., 0] - cv[..., 1])


def _cat_beyond_car(a: FloatArray) -> FloatArray:
    """Drop of class 3 from the first to the second row minus that of class 1."""
    return np.asarray((a[..., 0, CAT] - a[..., 1, CAT]) - (a[..., 0, CAR] - a[..., 1, CAR]))


def _others_beyond_robust(a: FloatArray) -> FloatArray:
    """Mean drop of the vulnerable classes except class 3, from the first to the second row, minus the robust ones'."""
    change = a[..., 0, :] - a[..., 1, :]
    others = [label for label in VULNERABLE if label != CAT]
    return np.asarray(change[..., others].mean(axis=-1) - change[..., list(ROBUST)].mean(axis=-1))


def _extremes(counts: ClassCounts) -> IntervalEstimator:
    """1 if class 1 alone is possibly best and class 3 alone possibly worst, -1 if one of them cannot be, else 0."""

    def at(level: float) -> Estimate:
        best, worst = possibly_best(counts, level / 2), possibly_worst(counts, level / 2)
        certain = best[CAR] and worst[CAT] and best.sum() == worst.sum() == 1
        wrong = not (best[CAR] and worst[CAT])
        end = 1.0 if certain else -1.0 if wrong else 0.0
        return Estimate(end, min(end, 0.5) if certain else -1.0, max(end, -0.5) if wrong else 1.0)

    return at


class DefencesWithRST(DefencesByAttacks, trainings=with_rst):
    """iclr21 Table 2: class accuracies of Madry's model, TRADES, MART and RST under five attacks."""


class RankConsistency(_Attacked, scales=SCALES, trainings=attacked_trainings):
    """kdd21 claim C9: the order of the classes is the same under every attack and defence."""

    def run(self, context: Context) -> Findings:
        """Compute Spearman's correlation of all pairs of rows of T1 and Kendall's W, measured and printed."""
        audits = audit_defences(context, self.trainings(context.scale))
        ours = ranked_alike({defence: (audit.main.outcomes, audit.few.outcomes) for defence, audit in audits.items()})
        rows = catalogue.printed_rows("kdd21/T1")
        printed = consistency(pd.DataFrame([row["per_class"] for row in rows], index=[row_name(row) for row in rows]))
        heads = ("rows of", "pairs", "lowest correlation", "mean", "Kendall's W", "p")
        measured = Test(
            claim="kdd21/C9",
            estimand="lowest of Spearman's correlations of class accuracies, four defences, five attacks",
            estimators=[ours.lowest_at],
            unit="",
            limits=CORRELATION,
            covers=("this run",),
        )
        tests = [
            *unless("; ".join(_unmet(context.scale, audits).values()), [measured]),
            Test(
                claim="kdd21/C9",
                estimand="lowest of the 190 correlations of the printed rows, minus 0.5",
                estimators=[exactly(printed.lowest.value - 0.5)],
                unit="",
                exact=True,
                basis="printed numbers",
                covers=("printed numbers",),
            ),
        ]
        cells = [_agreement_row("this run", ours, tests), _agreement_row("kdd21/T1, printed", printed)]
        note = "95 % confidence intervals. p by permutation of the classes."
        return Findings(
            tables=(Table("Agreement of the class rankings over all pairs of rows", heads, cells, note),),
            figures=((ours.figure(), f"Every attack on every defence of this run. {FGSM_NOTE}"),),
            tests=tests,
        )


def _agreement_row(name: str, rows: Consistency, tests: Sequence[Test] = ()) -> Row:
    size, agreement = len(rows.correlations), rows.agreement
    both = [estimate_cell(correlation, 1, 2, tests=tests) for correlation in (rows.lowest, rows.mean)]
    ends = [Cell(f"{agreement.value:.2f}"), Cell(formatting.probability(agreement.p_value))]
    return Row(name, [Cell(str(size * (size - 1) // 2)), *both, *ends])


SUITE: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"apgd-ce": "apgd-ce:steps=5", "apgd-dlr": "apgd-dlr:steps=5"},
    "small": {spec: spec for spec in SUITES["fast"]["standard"]},
    "full": {spec: spec for spec in SUITES["autoattack"]["standard"]},
}
"""AutoAttack at full scale; at small scale the suite ``fast``, which has no black-box attack."""


@configurable
class Drops(Experiment):
    """Drop from a weaker to a stronger attack: vulnerable classes minus the others.

    Attributes:
        claim: the claim that is tested.
        weak: name of the weaker attack.
        strong: name of the stronger attack.
        covers: the parts of the claim that are tested.
    """

    claim: str
    weak: str
    strong: str
    covers: tuple[str, ...] = ()

    @abstractmethod
    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of both attacks on the same images, by model."""

    def printed(self) -> Mapping[str, float]:
        """Printed differences in points, by model; empty if the paper prints none."""
        return {}

    def run(self, context: Context) -> Findings:
        """Measure the drop of every model, and test the claim."""
        drops, parts, rows, figures = dict[str, Estimate](), list[IntervalEstimator](), [], []
        printed = self.printed()
        tables = self.tables(context)
        reasons = [*unmet_preconditions(context.scale, tables, self.strong).values()]
        for name, table in tables.items():
            try:
                class_drop = drop(table, self.weak, self.strong)
            except ClasswiseError as error:
                reasons.append(f"{name}: {error}")
                drops[name] = Estimate(math.nan, math.nan, math.nan)
                continue
            drops[name] = class_drop.difference
            parts.append(lambda level, of=table: in_points(drop(of, self.weak, self.strong, alpha=level).difference))  # type: ignore[misc]
            figures.append((class_drop.figure(), f"{name}."))
        estimand = f"drop from {self.weak} to {self.strong}: vulnerable classes minus the others, each defence"
        test = Test(claim=self.claim, estimand=estimand, estimators=parts, covers=self.covers)
        tests = unless("; ".join(reasons), [test])
        for name, difference in drops.items():
            printed_cells = [Cell(f"{printed[name]:+z.1f}")] if name in printed else []
            rows.append(Row(name, [estimate_cell(difference, sign="+", tests=tests), *printed_cells]))
        shown = Table(
            f"Drop from {self.weak} to {self.strong}: vulnerable classes minus the others, in points",
            ("defence", "this run", *([f"{PRINTED}, classes 2-5"] if printed else [])),
            rows,
            f"{f'{FGSM_NOTE} ' if self.weak == 'FGSM' else ''}95 % confidence intervals. The vulnerable "
            f"classes under {self.weak} are selected on one half of the images and evaluated on the other.",
        )
        return Findings(tables=(shown,), figures=figures, tests=tests)


class DropOfDefences(_Attacked, Drops, scales=SCALES, trainings=attacked_trainings):
    """The four defences of kdd21 Table 1."""

    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of both attacks from the audits of Table 1."""
        audits = audit_defences(context, self.trainings(context.scale))
        return {name: audit.outcomes(self.weak, self.strong) for name, audit in audits.items()}

    def printed(self) -> Mapping[str, float]:
        """Differences computed from the printed rows of Table 1."""
        rows = {
            (row["defence"], row["attack"]): np.array(row["per_class"]) for row in catalogue.printed_rows("kdd21/T1")
        }
        drops = {name: rows[name, self.weak] - rows[name, self.strong] for name in DEFENCES}
        return {
            name: float(by_class[list(VULNERABLE)].mean() - by_class[list(ROBUST)].mean())
            for name, by_class in drops.items()
        }


class HiddenGradients(Drops, trainings=lambda scale: {name: defences(scale)[name] for name in ("TRADES", "MART")}):
    """iclr21 Appendix F: is the gap between PGD and a stronger attack larger in vulnerable classes?"""

    scales: ClassVar[Mapping[Name, Scale]] = {
        name: replace(scale, about=f"{scale.about}; PGD against {', '.join(scale.entry(SUITE))}")
        for name, scale in SCALES.items()
    }

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """PGD and the suite."""
        return [Evaluation(attacks={**pgd_of(scale), **scale.entry(SUITE)})]

    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of PGD and of a suite on the same images, without a cascade."""
        attacks = {"PGD": pgd(context), **context.scale.entry(SUITE)}
        models = context.train_all(self.trainings(context.scale))
        return {name: context.audit(model, attacks, early_stop=True).outcomes for name, model in models.items()}
