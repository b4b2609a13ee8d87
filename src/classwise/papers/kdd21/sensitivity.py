"""kdd21/E7: CVC beside robustness and beside the temperature drop, class by class and defence by defence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import smoothness
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import SCALES, defended
from classwise.papers.kdd21.temperature import grid, largest_drop
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Cell, Row, Table
from classwise.stats.bootstrap import Resampled
from classwise.stats.counts import FloatArray
from classwise.stats.interval_estimators import difference, interval, minus, negative, plus

LITTLE = 1
"""Points of the total to whose loss a model hardly reacts."""
PLAIN, STEEP, SMOOTH = "PGD", "Madry", "HE"
"""The plain attack; the defences whose confidences the paper finds steepest and smoothest."""


class SmoothVulnerableSensitive(Experiment):
    """kdd21 section 5: are smooth classes the vulnerable ones, and those that a temperature hits?"""

    item = "kdd21/E7"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """Rank correlations over the classes of each defence; claim C29 over them; C15 over the defences."""
        tables = {defence: bench.audited(one, grid(bench)).outcomes for defence, one in defended(bench).items()}
        best = {defence: strongest(table) for defence, table in tables.items()}
        found = {defence: sensitivity(table, PLAIN, best[defence]) for defence, table in tables.items()}
        means = smoothness(tables, PLAIN)
        rows = []
        for defence, one in found.items():
            drop = _paired([tables[defence]], [best[defence]]).part(lambda a: _drop(a, 0), 100)(0.05)
            both = [estimate_cell(link, 1, 2) for link in (one.vulnerable, one.sensitive)]
            cells = [*both, estimate_cell(means.mean(defence), 1000, 2), Cell(best[defence]), estimate_cell(drop, 1)]
            rows.append(Row(defence, cells))
        heads = (
            "defence",
            "CVC and robustness",
            "CVC and drop",
            "mean CVC, thousandths",
            "best 1/T",
            "drop of the total, points",
        )
        note = "Spearman over the classes; CVC of the images that PGD left. Small: 95 % intervals for new images."
        drops = {
            defence: largest_drop(table, [PLAIN, *(f"{t:g}" for t in TEMPERATURES)])
            for defence, table in tables.items()
        }
        others = [defence for defence in tables if defence != SMOOTH]
        order = [(STEEP, other) for other in others if other != STEEP] + [(other, SMOOTH) for other in others]
        tests = [
            Test(
                claim="kdd21/C29",
                estimand="Spearman's correlation of CVC and robustness over the classes, each defence",
                parts=[interval(one.vulnerable) for one in found.values()],
                unit="",
                limits=CORRELATION,
            ),
            Test(
                claim="kdd21/C15",
                covers=("HE reacts most",),
                estimand=f"largest drop of the total over 1/T: {SMOOTH} minus each other defence",
                parts=[minus(drops[SMOOTH], drops[other]) for other in others],
            ),
            Test(
                claim="kdd21/C15",
                covers=("Madry hardly reacts",),
                estimand=f"{LITTLE} point minus the largest drop of {STEEP}",
                parts=[plus(negative(drops[STEEP]), LITTLE)],
                note=f"'hardly reacts' is read as: less than {LITTLE} point",
            ),
            Test(
                claim="kdd21/C15",
                covers=("order of the confidences",),
                estimand=f"mean CVC: {STEEP} minus TRADES and MART, each of the three minus {SMOOTH}",
                parts=[interval(difference(means.mean(one), means.mean(other)), 1000) for one, other in order],
                unit="thousandths",
            ),
        ]
        return Findings(
            tables=(Table("Smooth, vulnerable, sensitive", heads, rows, note),),
            figures=[(one.figure(), f"{defence}; 1/T = {best[defence]}.") for defence, one in found.items()],
            tests=tests,
        )


def strongest(table: Outcomes) -> str:
    """The 1/T of the grid that leaves the fewest images; the first at a tie."""
    return min((f"{inverse:g}" for inverse in TEMPERATURES), key=lambda name: int(table.correct(name).sum()))


def _paired(tables: list[Outcomes], attacks: list[str]) -> Resampled:
    """For each model two rows on the same images: plain, and its attack."""
    rows = [table.correct(name) for table, attack in zip(tables, attacks, strict=True) for name in (PLAIN, attack)]
    return Resampled(np.stack(rows), tables[0].labels, tables[0].num_classes)


def _drop(accuracy: FloatArray, row: int) -> FloatArray:
    """The total of a row minus that of the next."""
    total = accuracy.mean(axis=-1)
    return np.asarray(total[..., row] - total[..., row + 1])
