"""kdd21/T1, four defences under five attacks, and what the paper reads from it: E3, E4, E5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from classwise.auditing.outcomes import Judgement
from classwise.auditing.result import Audit
from classwise.papers import catalogue
from classwise.papers.claims import Test, exactly
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.resampling import Resampled
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import Key, by_name, class_table, summary_table
from classwise.report.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.worst import possibly_best, possibly_worst

DEFENCES: Mapping[str, str] = {"Madry": "at", "TRADES": "trades", "MART": "mart", "HE": "he"}
"""The paper's defences, and our recipes for them."""
VULNERABLE, ROBUST = (2, 3, 4, 5), (0, 1, 6, 7, 8, 9)
"""The classes of CIFAR-10 below and above the total under PGD, for all four defences of the paper."""
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

    def judged(self, attack: str) -> Judgement:
        """Which images stand against an attack of either."""
        return (self.few if attack in self.few.attacks else self.main).outcomes.judged(attack)

    def counts(self, attack: str) -> ClassCounts:
        """The same by class."""
        return (self.few if attack in self.few.attacks else self.main).outcomes.counts(attack)

    def paired(self, attacks: Sequence[str]) -> Resampled:
        """Attacks on the images that all of them were run on, resampled together."""
        found = [self.judged(attack) for attack in attacks]
        common = found[0].image
        for one in found[1:]:
            common = np.intersect1d(common, one.image)
        rows = [one.correct[np.isin(one.image, common)] for one in found]
        labels = found[0].label[np.isin(found[0].image, common)]
        return Resampled(np.stack(rows), labels, self.main.outcomes.num_classes)


def defended(bench: Bench) -> dict[str, Trained]:
    """The four defences, trained."""
    return {defence: bench.trained(recipe) for defence, recipe in DEFENCES.items()}


def attacked(bench: Bench) -> dict[str, Attacked]:
    """The four defences under the five attacks."""
    substitute = bench.trained("standard", {"seed": 1})
    transfer = {"name": "transfer", "surrogate": str(substitute.run.path), "attack": bench.pgd(PGD)}
    main = {"FGSM": {"name": "fgsm", "begin": "uniform"}, "PGD": bench.pgd(PGD), "transfer": transfer}
    few = {name: dict(spec) for name, spec in COSTLY[bench.scale.name].items()}
    return {
        defence: Attacked(
            defence,
            bench.audited(trained, main, surrogates=[substitute]),
            bench.audited(trained, few, few=True, stop="broken"),
        )
        for defence, trained in defended(bench).items()
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
            (defence, attack): one.counts(attack)
            for attack in ("FGSM", "CW_inf", "PGD", "transfer", "N_attack")
            for defence, one in found.items()
        }
        printed = by_name(catalogue.printed_rows("kdd21/T1"), "defence", "attack")
        tests = [
            _rises(
                found,
                "kdd21/C10",
                "CV under PGD minus that under FGSM, each defence",
                _cv,
                "%²",
                1e4,
            ),
        ]
        beyond = {}
        if bench.scale.data == CIFAR:
            tests.append(_extremes(ours))
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


def _cv(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy.var(axis=-1))


def _rises(found: Mapping[str, Attacked], claim: str, estimand: str, metric: Any, unit: str, scale: float) -> Test:
    """That a metric of the classes is larger under PGD than under FGSM, for every defence."""
    parts = []
    for one in found.values():
        images = one.paired(["PGD", "FGSM"])
        parts.append(images.part(lambda a: metric(a[..., 0, :]) - metric(a[..., 1, :]), scale))
    return Test(claim=claim, estimand=estimand, parts=parts, unit=unit)


def _extremes(ours: Mapping[Key, ClassCounts]) -> Test:
    """That class 1 is the best and class 3 the worst in every row: an estimate above zero where it is so alone."""

    def part(counts: ClassCounts) -> Any:
        def at(level: float) -> Estimate:
            best, worst = possibly_best(counts, level / 2), possibly_worst(counts, level / 2)
            sure = best[1] and worst[3] and best.sum() == worst.sum() == 1
            wrong = not (best[1] and worst[3])
            end = 1.0 if sure else -1.0 if wrong else 0.0
            return Estimate(end, min(end, 0.5) if sure else -1.0, max(end, -0.5) if wrong else 1.0)

        return at

    return Test(
        claim="kdd21/C8",
        estimand="class 1 alone possibly best and class 3 alone possibly worst, in every row (1 yes, -1 no, 0 unclear)",
        parts=[part(counts) for counts in ours.values()],
        unit="",
    )


class RankConsistency(Experiment):
    """kdd21 claim C9: the order of the classes is the same under every attack and defence."""

    item = "kdd21/E3"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Spearman's correlation of all pairs of rows of T1, ours and printed."""
        found = attacked(bench)
        ours = {
            f"{defence}, {attack}": one.counts(attack).accuracy
            for defence, one in found.items()
            for attack in ("FGSM", "PGD", "transfer")
        }
        rows = catalogue.printed_rows("kdd21/T1")
        theirs = [np.array(row["per_class"]) for row in rows]
        of_ours, of_theirs = pairwise_spearman(list(ours.values())), pairwise_spearman(theirs)
        cells = [
            Row(
                name,
                [Cell(str(len(values))), *(Cell(f"{each(values):.2f}") for each in (np.min, np.median, np.mean))],
            )
            for name, values in (("this run", of_ours), ("printed rows of kdd21/T1", of_theirs))
        ]
        heads = ("rows of", "pairs", "least", "median", "mean")
        table = Table("Spearman's correlation of class accuracies, over all pairs of rows", heads, cells)
        parts = [_between_defences(found, first, second) for first, second in (("Madry", "TRADES"), ("Madry", "MART"))]
        return Findings(
            tables=(table,),
            tests=(
                Test(
                    claim="kdd21/C9",
                    estimand="Spearman's correlation of class accuracies under PGD: Madry with TRADES, Madry with MART",
                    parts=parts,
                    unit="",
                ),
                Test(
                    claim="kdd21/C9",
                    estimand="the least of the 190 correlations of the printed rows, above 0.5",
                    parts=[exactly(float(of_theirs.min()) - 0.5)],
                    unit="",
                    exact=True,
                    note="about the printed numbers, not about this run",
                ),
            ),
        )


def pairwise_spearman(rows: Sequence[FloatArray]) -> FloatArray:
    """Spearman's correlation of every two rows (C,), in the order of `itertools.combinations`."""
    ranks = np.stack([stats.rankdata(row) for row in rows])
    upper = np.triu_indices(len(rows), k=1)
    return np.asarray(np.asarray(np.corrcoef(ranks))[upper])


def _between_defences(found: Mapping[str, Attacked], first: str, second: str) -> Any:
    """The correlation of two defences' class accuracies, images resampled jointly."""
    one, two = found[first].judged("PGD"), found[second].judged("PGD")
    images = Resampled(np.stack([one.correct, two.correct]), one.label, found[first].main.outcomes.num_classes)

    def correlation(accuracy: FloatArray) -> FloatArray:
        ranks = stats.rankdata(accuracy, axis=-1)
        ranks = ranks - ranks.mean(axis=-1, keepdims=True)
        scatter = np.sqrt((ranks**2).sum(axis=-1).prod(axis=-1))
        return np.asarray((ranks[..., 0, :] * ranks[..., 1, :]).sum(axis=-1) / np.maximum(scatter, 1e-12))

    return images.part(correlation)


class _Drop(Experiment):
    """How much more a stronger attack takes from the vulnerable classes than from the others.

    Which classes are vulnerable is read off one half of the images (below the overall accuracy of the stronger attack),
    and the drops are measured on the other; then the halves are exchanged.
    """

    claim: ClassVar[str]
    weak: ClassVar[str]
    strong: ClassVar[str]
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Both attacks on the same images, for every defence."""
        found = attacked(bench)
        parts, rows = [], []
        printed = {
            (row["defence"], row["attack"]): np.array(row["per_class"]) for row in catalogue.printed_rows("kdd21/T1")
        }
        for defence, one in found.items():
            part = excess_drop(one, self.weak, self.strong)
            parts.append(part)
            ours = part(0.05)
            drop = printed[defence, self.weak] - printed[defence, self.strong]
            theirs = drop[list(VULNERABLE)].mean() - drop[list(ROBUST)].mean()
            rows.append(
                Row(
                    defence,
                    [Cell(f"{ours.value:+.1f}", f"{ours.low:+.1f} to {ours.high:+.1f}"), Cell(f"{theirs:+.1f}")],
                )
            )
        table = Table(
            f"Drop from {self.weak} to {self.strong}: vulnerable classes minus the others, in points",
            ("defence", "this run", "printed (classes 2-5)"),
            rows,
            "Small: 95 % intervals. Vulnerable classes are chosen on one half of the images and judged on the other.",
        )
        estimand = f"drop from {self.weak} to {self.strong}: vulnerable classes minus the others, each defence"
        return Findings(tables=(table,), tests=(Test(claim=self.claim, estimand=estimand, parts=parts),))


def excess_drop(one: Attacked, weak: str, strong: str) -> Any:
    """Mean drop of the vulnerable classes minus that of the others, in points, as a function of the error level."""
    first, second = one.judged(weak), one.judged(strong)
    common = np.intersect1d(first.image, second.image)
    rows = np.stack([each.correct[np.isin(each.image, common)] for each in (first, second)])
    labels = first.label[np.isin(first.image, common)]
    classes = one.main.outcomes.num_classes
    half = np.zeros(len(labels), dtype=np.bool_)
    for label in range(classes):
        half[np.flatnonzero(labels == label)[::2]] = True
    sides = [(half, ~half), (~half, half)]
    estimates = []
    for choose, score in sides:
        chosen = ClassCounts.from_labels(labels[choose], rows[1][choose], classes).accuracy
        vulnerable = chosen < rows[1][choose].mean()
        if vulnerable.all() or not vulnerable.any():
            continue
        images = Resampled(rows[:, score], labels[score], classes)

        def excess(accuracy: FloatArray, vulnerable: Any = vulnerable) -> FloatArray:
            drop = accuracy[..., 0, :] - accuracy[..., 1, :]
            return np.asarray(drop[..., vulnerable].mean(axis=-1) - drop[..., ~vulnerable].mean(axis=-1))

        estimates.append(images.part(excess, 100))

    def at(level: float) -> Estimate:
        if not estimates:
            return Estimate(0.0, -100.0, 100.0)
        found = [part(level) for part in estimates]
        value = float(np.mean([each.value for each in found]))
        # Given the choices the halves are other images; the mean of two has their reaches in quadrature over two.
        reach = float(np.sqrt(sum((each.high - each.value) ** 2 for each in found))) / len(found)
        return Estimate(value, value - reach, value + reach)

    return at


class WhiteBoxDrop(_Drop):
    """kdd21 claim C10, in drops: from FGSM to PGD."""

    item = "kdd21/E4"
    claim = "kdd21/C10"
    weak = "FGSM"
    strong = "PGD"


class BlackBoxDrop(_Drop):
    """kdd21 claim C11: from the transfer attack to the query attack."""

    item = "kdd21/E5"
    claim = "kdd21/C11"
    weak = "transfer"
    strong = "N_attack"
