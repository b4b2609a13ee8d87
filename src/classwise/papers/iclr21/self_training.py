"""iclr21/T2 and T3: four defences, robust self-training (RST) the fourth, under five attacks and Temperature-PGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.papers import catalogue
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.iclr21.temperatures import DEER, resampled
from classwise.papers.iclr21.variants import note, variants
from classwise.papers.kdd21.attacks import CAR, CAT, CIFAR, FIVE, PGD, SCALES, Attacked, attacked, extremes, on_average
from classwise.papers.kdd21.temperature import tpgd
from classwise.papers.scales import Name, Scale, other_data
from classwise.papers.tables import Key, by_name, class_table, estimate_cell, summary_table
from classwise.report.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate

CHOSEN: Mapping[str, float] = {"Madry": 2, "TRADES": 5, "MART": 5, "RST": 5}
"""The paper's 1/T for each defence."""


class DefencesWithRST(Experiment):
    """iclr21 Table 2: class accuracies of Madry's model, TRADES, MART and RST under five attacks."""

    item = "iclr21/T2"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Two audits of each defence, and claims C7, C8 and C9."""
        found = attacked(bench, variants(bench))
        names = bench.test_images.class_names
        ours: dict[Key, ClassCounts] = {
            (defence, attack): one.counts(attack) for attack in FIVE for defence, one in found.items()
        }
        printed = by_name(catalogue.printed_rows(self.item), "defence", "attack")
        tests: list[Test] = []
        beyond: dict[str, str] = {}
        if bench.scale.data == CIFAR:
            tests = [
                on_average("iclr21/C7", found),
                extremes("iclr21/C7", ours),
                _dropped("iclr21/C8", found, "FGSM", "PGD"),
                _dropped("iclr21/C9", found, "transfer", "N_attack"),
            ]
        else:
            for claim in ("iclr21/C7", "iclr21/C8", "iclr21/C9"):
                beyond |= other_data(claim, bench.scale)
        summary = summary_table("Four defences under five attacks, in percent", ours, printed, names)
        classes = class_table("The same by class, in percent", ours, names)
        return Findings(
            tables=(
                Table(summary.caption, summary.heads, summary.rows, f"{summary.note} {note(bench)}"),
                classes,
            ),
            tests=tests,
            beyond=beyond,
        )


class ChosenTemperatures(Experiment):
    """iclr21 Table 3: the change from PGD to Temperature-PGD at the paper's 1/T for each defence."""

    item = "iclr21/T3"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """The audits of kdd21/T3 where there are such; claim C10."""
        names = bench.test_images.class_names
        attacks = {"PGD": bench.pgd(PGD), **{f"{t:g}": bench.pgd(tpgd(t)) for t in TEMPERATURES}}
        printed = {row["defence"]: row for row in catalogue.printed_rows(self.item)}
        rows, parts = [], []
        for name, trained in variants(bench).items():
            table = bench.audited(trained, attacks).outcomes
            pair = resampled(table, [f"{CHOSEN[name]:g}", "PGD"])
            cells = [
                Cell(f"{CHOSEN[name]:g}"),
                estimate_cell(pair.estimate(lambda a: (a[..., 0, :] - a[..., 1, :]).mean(-1))),
            ]
            cells += [Cell(f"{printed[name]['d_tot']:+g}")]
            cells += [
                estimate_cell(pair.estimate(lambda a, c=c: a[..., 0, c] - a[..., 1, c]))  # type: ignore[misc]
                for c in range(len(names))
            ]
            rows.append(Row(name, cells))
            if name != "Madry":
                parts.append(pair.part(lambda a: (a[..., 1, :] - a[..., 0, :]).mean(-1), 100))
                if bench.scale.data == CIFAR:
                    parts.append(pair.part(lambda a: a[..., 1, DEER] - a[..., 0, DEER], 100))
        heads = ("defence", "1/T", "total", "printed", *names)
        caption = "Change from PGD to Temperature-PGD, in points"
        whole = bench.scale.data == CIFAR
        test = Test(
            claim="iclr21/C10",
            covers=("total", "class 4") if whole else ("total",),
            estimand=f"drop of the total{' and of class 4' if whole else ''}, TRADES, MART and RST",
            parts=parts,
            note="" if whole else "without what the claim says of a class of CIFAR-10",
        )
        return Findings(
            tables=(Table(caption, heads, rows, f"Small: 95 % intervals. {note(bench)}"),),
            tests=(test,),
        )


def _dropped(claim: str, found: Mapping[str, Attacked], weak: str, strong: str) -> Test:
    """That class 3 loses more than class 1 from one attack to a stronger one, for every defence."""
    parts: Sequence[Callable[[float], Estimate]] = [
        one.paired(weak, strong).part(
            lambda a: (a[..., 0, CAT] - a[..., 1, CAT]) - (a[..., 0, CAR] - a[..., 1, CAR]), 100
        )
        for one in found.values()
    ]
    estimand = f"drop from {weak} to {strong}: class 3 minus class 1, each defence"
    return Test(claim=claim, estimand=estimand, parts=parts)
