"""kdd21/T1, four defences under five attacks, and what the paper reads from it: E3, E4, E5."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from classwise.analysis.consistency import Consistency, consistency, ranked_alike
from classwise.analysis.drop import drop
from classwise.auditing.keeping import Kind
from classwise.auditing.outcomes import CLEAN, Outcomes
from classwise.auditing.result import Audit
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.papers import catalogue
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import Key, by_name, class_table, names_of, summary_table
from classwise.report import wording
from classwise.report.tables import Cell, Row, Table
from classwise.stats.bootstrap import Resampled
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.interval_estimators import exactly, interval, lowered, wider
from classwise.stats.intervals import Estimate
from classwise.stats.worst import possibly_best, possibly_worst
from classwise.training.folder import Which

DEFENCES: Mapping[str, str] = {"Madry": "at", "TRADES": "trades", "MART": "mart", "HE": "he"}
"""The paper's defences, and our recipes for them."""
VULNERABLE, ROBUST = (2, 3, 4, 5), (0, 1, 6, 7, 8, 9)
"""The classes of CIFAR-10 below and above the total under PGD, for all four defences of the paper."""
CAR, CAT = 1, 3
"""The classes of CIFAR-10 that the papers find most robust and most vulnerable."""
CIFAR = "cifar10"
PGD: Mapping[str, Any] = {"name": "pgd", "steps": 20, "step_size": "0.1eps"}
"""kdd21 A.2: step 0.003 at 0.031, a tenth of the radius to a hundredth of it."""
COSTLY: Mapping[Name, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "CW_inf": {"name": "cw", "steps": 20, "searches": 2},
        "N_attack": {"name": "nattack", "steps": 5, "samples": 20, "sigma": 0.1, "learning_rate": 0.1},
    },
    "laptop": {
        "CW_inf": {"name": "cw", "steps": 100},
        "N_attack": {"name": "nattack", "steps": 50, "samples": 100},
    },
    "full": {"CW_inf": {"name": "cw"}, "N_attack": {"name": "nattack"}},
}
"""The two attacks of thousands of passes; the paper gives them 200 images a class."""

FIVE = ("FGSM", "CW_inf", "PGD", "transfer", "N_attack")
"""The attacks, in the order of the table."""

_FULL = USUAL["full"].with_changes(model__name="wrn-34-10")
SCALES: Mapping[Name, Scale] = {
    "smoke": USUAL["smoke"],
    "laptop": USUAL["laptop"],
    "full": Scale(**{**vars(_FULL), "few": 2000, "about": "WideResNet-34-10 on CIFAR-10, each by its own recipe"}),
}


@dataclass(frozen=True)
class Attacked:
    """The audits of one defence: attacks on all test images, and on a few."""

    defence: str
    main: Audit
    few: Audit

    def outcomes(self, *attacks: str) -> Outcomes:
        """The table with these attacks: that of all images, or else that of a few."""
        return (self.main if set(attacks) <= set(self.main.attacks) else self.few).outcomes

    def counts(self, attack: str) -> ClassCounts:
        """Which images stand against an attack, by class."""
        return self.outcomes(attack).counts(attack)

    def paired(self, *attacks: str) -> Resampled:
        """Attacks on the same images, resampled together."""
        table = self.outcomes(*attacks)
        return Resampled(np.stack([table.correct(attack) for attack in attacks]), table.labels, table.num_classes)


def under_pgd(
    bench: Bench,
    trained: Trained,
    *,
    which: Which | None = None,
    keep: Sequence[Kind] = (),
    images: Images | None = None,
) -> Audit:
    """A run on the test images, or others, under the paper's PGD; ``keep`` as in `classwise.audit`."""
    return bench.audited(trained, {"PGD": bench.pgd(PGD)}, which=which, keep=keep, images=images)


def defended(bench: Bench) -> dict[str, Trained]:
    """The four defences, trained."""
    return {defence: bench.trained(recipe) for defence, recipe in DEFENCES.items()}


def attacked(bench: Bench, models: Mapping[str, Trained] | None = None) -> dict[str, Attacked]:
    """The four defences, or these models, under the five attacks."""
    substitute = bench.trained("standard", {"seed": 1})
    transfer = {"name": "transfer", "surrogate": str(substitute.run.path), "attack": bench.pgd(PGD)}
    main = {"FGSM": {"name": "fgsm", "begin": "uniform"}, "PGD": bench.pgd(PGD), "transfer": transfer}
    few = {"transfer": transfer, **{name: dict(spec) for name, spec in COSTLY[bench.scale.name].items()}}
    return {
        defence: Attacked(
            defence,
            bench.audited(trained, main, surrogates=[substitute]),
            bench.audited(trained, few, few=True, stop="broken", surrogates=[substitute]),
        )
        for defence, trained in (models or defended(bench)).items()
    }


class DefencesByAttacks(Experiment):
    """kdd21 Table 1: class accuracies, total, CV and MCD of four defences under five attacks."""

    item = "kdd21/T1"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Two audits of each defence, and claims C8 and C10."""
        found = attacked(bench)
        names = bench.test_images.class_names
        ours: dict[Key, ClassCounts] = {
            (defence, attack): one.counts(attack) for attack in FIVE for defence, one in found.items()
        }
        printed = by_name(catalogue.printed_rows("kdd21/T1"), "defence", "attack")
        tests = [
            Test(
                claim="kdd21/C10",
                covers=("CV",),
                estimand="CV under PGD minus that under FGSM, each defence",
                parts=[one.paired("PGD", "FGSM").part(_cv_rises, 1e4) for one in found.values()],
                unit="%²",
            ),
            Test(
                claim="kdd21/C10",
                covers=("MCD",),
                estimand="MCD under PGD minus that under FGSM, each defence",
                parts=[wider(one.counts("PGD"), one.counts("FGSM")) for one in found.values()],
            ),
        ]
        beyond = {}
        if bench.scale.data == CIFAR:
            tests += [on_average("kdd21/C8", found), extremes("kdd21/C8", ours)]
        else:
            beyond["kdd21/C8"] = f"the claim names classes of CIFAR-10, and this scale has {bench.scale.data}"
        return Findings(
            tables=(
                summary_table("Four defences under five attacks, in percent", ours, printed, names),
                class_table("The same by class, in percent", ours, names),
            ),
            tests=tests,
            beyond=beyond,
        )


def _cv_rises(accuracy: FloatArray) -> FloatArray:
    cv = accuracy.var(axis=-1)
    return np.asarray(cv[..., 0] - cv[..., 1])


def on_average(claim: str, found: Mapping[str, Attacked]) -> Test:
    """That class 1 is above and class 3 below every other class, in the mean over the rows."""
    tables = [one.main.outcomes for one in found.values()]
    rows = [table.correct(name) for table in tables for name in table.attacks if name != CLEAN]
    images = Resampled(np.stack(rows), tables[0].labels, tables[0].num_classes)
    pairs = [(CAR, c) for c in range(tables[0].num_classes) if c != CAR]
    pairs += [(c, CAT) for c in range(tables[0].num_classes) if c not in (CAR, CAT)]
    return Test(
        claim=claim,
        estimand="class 1 minus each other class, and each other minus class 3, mean over defences and attacks",
        parts=[images.part(lambda a, c=c, d=d: (a[..., c] - a[..., d]).mean(axis=-1), 100) for c, d in pairs],  # type: ignore[misc]
        note="the mean of the rows; whether it is so in each of them is asked apart",
        covers=("on average",),
    )


def extremes(claim: str, ours: Mapping[Key, ClassCounts]) -> Test:
    """That class 1 is the best and class 3 the worst in every row: an estimate above zero where it is so alone."""

    def part(counts: ClassCounts) -> Any:
        def at(level: float) -> Estimate:
            best, worst = possibly_best(counts, level / 2), possibly_worst(counts, level / 2)
            sure = best[CAR] and worst[CAT] and best.sum() == worst.sum() == 1
            wrong = not (best[CAR] and worst[CAT])
            end = 1.0 if sure else -1.0 if wrong else 0.0
            return Estimate(end, min(end, 0.5) if sure else -1.0, max(end, -0.5) if wrong else 1.0)

        return at

    return Test(
        claim=claim,
        covers=("in every row",),
        estimand="class 1 alone possibly best and class 3 alone possibly worst, in every row (1 yes, -1 no, 0 unclear)",
        parts=[part(counts) for counts in ours.values()],
        unit="",
    )


class RankConsistency(Experiment):
    """kdd21 claim C9: the order of the classes is the same under every attack and defence."""

    item = "kdd21/E3"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Spearman's correlation of all pairs of rows of T1 and Kendall's W, ours and printed."""
        tables = {defence: one.main.outcomes for defence, one in attacked(bench).items()}
        ours = ranked_alike(tables)
        rows = catalogue.printed_rows("kdd21/T1")
        theirs = consistency(pd.DataFrame([row["per_class"] for row in rows], index=names_of(rows)))
        heads = ("rows of", "pairs", "least correlation", "mean", "Kendall's W", "p")
        cells = [_agreement_row("this run", ours), _agreement_row("printed rows of kdd21/T1", theirs)]
        note = "Small: 95 % intervals, which lie low. p by permutation of the classes."
        return Findings(
            tables=(Table("Agreement of the class rankings over all pairs of rows", heads, cells, note),),
            figures=((ours.figure(), "Every attack on every defence of this run."),),
            tests=(
                Test(
                    claim="kdd21/C9",
                    estimand="the least of Spearman's correlations of class accuracies, four defences, three attacks",
                    parts=[lowered(interval(ours.lowest), CORRELATION[1])],
                    unit="",
                    limits=CORRELATION,
                    note="noise of the images lowers it, so it cannot refute",
                    covers=("this run",),
                ),
                Test(
                    claim="kdd21/C9",
                    estimand="the least of the 190 correlations of the printed rows, above 0.5",
                    parts=[exactly(theirs.lowest.value - 0.5)],
                    unit="",
                    exact=True,
                    note="about the printed numbers, not about this run",
                    covers=("printed numbers",),
                ),
            ),
        )


def _agreement_row(name: str, found: Consistency) -> Row:
    size, agreement = len(found.correlations), found.agreement
    both = [Cell(f"{one.value:.2f}", _span(one)) for one in (found.lowest, found.mean)]
    ends = [Cell(f"{agreement.value:.2f}"), Cell(wording.probability(agreement.p_value))]
    return Row(name, [Cell(str(size * (size - 1) // 2)), *both, *ends])


def _span(one: Estimate) -> str:
    return "" if np.isnan(one.low) else f"{one.low:.2f} to {one.high:.2f}"


class Drops(Experiment):
    """How much more a stronger attack takes from the vulnerable classes than from the others."""

    claim: ClassVar[str]
    weak: ClassVar[str]
    strong: ClassVar[str]
    covers: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def tables(self, bench: Bench) -> Mapping[str, Outcomes]:
        """The outcomes of both attacks on the same images, by model."""

    def printed(self) -> Mapping[str, float]:
        """What the paper prints, in points, by model; nothing unless it does."""
        return {}

    def run(self, bench: Bench) -> Findings:
        """Both attacks on the same images, for every model."""
        parts, rows, beyond = [], [], {}
        figures = []
        printed = self.printed()
        for name, table in self.tables(bench).items():
            theirs = [Cell(f"{printed[name]:+z.1f}")] if name in printed else []
            try:
                found = drop(table, self.weak, self.strong)
            except UserError as error:
                beyond[self.claim] = f"{name}: {error}"
                rows.append(Row(name, [Cell(wording.NONE), *theirs]))
                continue
            parts.append(interval(found.difference, 100))
            value, low, high = (100 * end for end in found.difference)
            rows.append(Row(name, [Cell(f"{value:+z.1f}", f"{low:+z.1f} to {high:+z.1f}"), *theirs]))
            figures.append((found.figure(), f"{name}."))
        shown = Table(
            f"Drop from {self.weak} to {self.strong}: vulnerable classes minus the others, in points",
            ("defence", "this run", *(["printed (classes 2-5)"] if printed else [])),
            rows,
            f"Small: 95 % intervals. Which classes are vulnerable under {self.weak} is read off one half of the images "
            "and judged on the other.",
        )
        estimand = f"drop from {self.weak} to {self.strong}: vulnerable classes minus the others, each defence"
        tests = () if beyond else (Test(claim=self.claim, estimand=estimand, parts=parts, covers=self.covers),)
        return Findings(tables=(shown,), figures=figures, tests=tests, beyond=beyond)


class _DropOfDefences(Drops):
    """The four defences of kdd21 Table 1."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def tables(self, bench: Bench) -> Mapping[str, Outcomes]:
        """The audits of Table 1."""
        return {name: one.outcomes(self.weak, self.strong) for name, one in attacked(bench).items()}

    def printed(self) -> Mapping[str, float]:
        """From the rows of Table 1."""
        rows = {
            (row["defence"], row["attack"]): np.array(row["per_class"]) for row in catalogue.printed_rows("kdd21/T1")
        }
        lost = {name: rows[name, self.weak] - rows[name, self.strong] for name in DEFENCES}
        return {name: float(one[list(VULNERABLE)].mean() - one[list(ROBUST)].mean()) for name, one in lost.items()}


class WhiteBoxDrop(_DropOfDefences):
    """kdd21 claim C10, in drops: from FGSM to PGD."""

    item = "kdd21/E4"
    claim = "kdd21/C10"
    covers = ("vulnerable classes",)
    weak = "FGSM"
    strong = "PGD"


class BlackBoxDrop(_DropOfDefences):
    """kdd21 claim C11: from the transfer attack to the query attack."""

    item = "kdd21/E5"
    claim = "kdd21/C11"
    weak = "transfer"
    strong = "N_attack"
