"""kdd21/T3: Temperature-PGD on four defences, with the changes against PGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes import Outcomes
from classwise.papers import catalogue
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import CIFAR, PGD, SCALES, defended
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import Key, class_table, summary_table
from classwise.report.tables import Cell, Row, Table
from classwise.stats.bootstrap import Resampled, beyond_others
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.interval_estimators import IntervalEstimator, greatest, wider

HARDEST = (3, 4)
"""The classes of CIFAR-10 that the paper finds hit hardest."""


class Temperature(Experiment):
    """kdd21 Table 3: the best of the grid of temperatures for each defence, against PGD."""

    item = "kdd21/T3"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, bench: Bench) -> Findings:
        """PGD and the grid on each defence, in the paper's arithmetic; claims C12, C13, C14."""
        names = bench.test_images.class_names
        attacks = grid(bench)
        found = {defence: bench.audited(one, attacks) for defence, one in defended(bench).items()}
        ours: dict[Key, ClassCounts] = {}
        changes = []
        paired: dict[str, Resampled] = {}
        bests: dict[str, str] = {}
        for defence, audit in found.items():
            standing = {f"{t:g}": int(audit.counts(f"{t:g}").correct.sum()) for t in TEMPERATURES}
            best = bests[defence] = min(standing, key=standing.__getitem__)
            ours[defence, f"1/T = {best}"] = audit.counts(best)
            rows = np.stack([audit.outcomes.correct(label) for label in (best, "PGD")])
            paired[defence] = Resampled(rows, audit.outcomes.labels, len(names))
            changes.append(_change_row(defence, best, paired[defence]))
        rows_there = catalogue.printed_rows("kdd21/T3")
        printed: dict[Key, Mapping[str, Any]] = {(row["defence"], f"1/T = {row['inv_T']}"): row for row in rows_there}
        theirs = [f"{row['defence']} {row['d_tot']:+g} at 1/T = {row['inv_T']}" for row in rows_there]
        table = Table(
            "Change from PGD to the best temperature, in points",
            ("defence", "1/T", "total", "MCD", "CV, %²"),
            changes,
            f"Printed changes of the total: {', '.join(theirs)}. Small: 95 % intervals.",
        )
        tests = [
            Test(
                claim="kdd21/C12",
                estimand="total under PGD minus that under the best temperature, each defence",
                parts=[largest_drop(audit.outcomes, list(attacks)) for audit in found.values()],
            ),
            Test(
                claim="kdd21/C13",
                covers=("CV",),
                estimand="CV under the best temperature minus that under PGD, each defence",
                parts=[one.part(lambda a: _cv(a, 0) - _cv(a, 1), 1e4) for one in paired.values()],
                unit="%²",
            ),
            Test(
                claim="kdd21/C13",
                covers=("MCD",),
                estimand="MCD under the best temperature minus that under PGD, each defence",
                parts=[
                    wider(found[defence].counts(best), found[defence].counts("PGD")) for defence, best in bests.items()
                ],
            ),
        ]
        beyond = {}
        if bench.scale.data == CIFAR:
            tests.append(
                Test(
                    claim="kdd21/C14",
                    estimand="drop of classes 3 and 4 minus that of the others, each defence",
                    parts=[one.part(lambda a: beyond_others(_drop(a), HARDEST), 100) for one in paired.values()],
                )
            )
        else:
            beyond["kdd21/C14"] = f"the claim names classes of CIFAR-10, and this scale has {bench.scale.data}"
        return Findings(
            tables=(
                table,
                summary_table("Under the best temperature, in percent", ours, printed, names),
                class_table("The same by class, in percent", ours, names),
            ),
            tests=tests,
            beyond=beyond,
        )


def tpgd(inverse: float) -> dict[str, Any]:
    """Temperature-PGD at one 1/T, in the paper's arithmetic."""
    return {**PGD, "name": "tpgd", "inverse_temperature": inverse, "arithmetic": "paper"}


def grid(bench: Bench) -> dict[str, dict[str, Any]]:
    """PGD and Temperature-PGD at each 1/T of the paper's grid; the name of each of these is its 1/T."""
    return {"PGD": bench.pgd(PGD), **{f"{inverse:g}": bench.pgd(tpgd(inverse)) for inverse in TEMPERATURES}}


def largest_drop(table: Outcomes, attacks: Sequence[str]) -> IntervalEstimator:
    """The largest drop of the total from the first attack to one of the others, in points, whichever that is."""
    rows = np.stack([table.correct(name) for name in attacks])
    images = Resampled(rows, table.labels, table.num_classes)
    return greatest([images.total(0, place) for place in range(1, len(rows))])


def _mean(accuracy: FloatArray, row: int) -> FloatArray:
    return np.asarray(accuracy[..., row, :].mean(axis=-1))


def _cv(accuracy: FloatArray, row: int) -> FloatArray:
    return np.asarray(accuracy[..., row, :].var(axis=-1))


def _mcd(accuracy: FloatArray, row: int) -> FloatArray:
    return np.asarray(np.ptp(accuracy[..., row, :], axis=-1))


def _drop(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 1, :] - accuracy[..., 0, :])


def _change_row(defence: str, best: str, one: Resampled) -> Row:
    cells = [Cell(best)]
    for metric, scale in ((_mean, 100), (_mcd, 100), (_cv, 1e4)):
        found = one.part(lambda a, m=metric: m(a, 0) - m(a, 1), scale)(0.05)  # type: ignore[misc]
        cells.append(Cell(f"{found.value:+z.1f}", f"{found.low:+z.1f} to {found.high:+z.1f}"))
    return Row(defence, cells)
