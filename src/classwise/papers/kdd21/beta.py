"""kdd21/F4c: TRADES with a lower beta for the class that takes most images from that of the case study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.temperature import tpgd
from classwise.papers.scales import CIFAR, CLASSWISE, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table
from classwise.report.figures.lines import OVERALL, class_lines, line_chart
from classwise.stats.bootstrap import Resampled
from classwise.stats.counts import ClassCounts

VICTIM, TAKER = 3, 5
"""The classes of the case study: cat and dog in CIFAR-10. Other data have other classes of these numbers."""
BETA = 6.0
"""Of TRADES, and of every class whose beta is not lowered."""
LOWERED: Mapping[Name, Sequence[float]] = {"smoke": (0.5,), "laptop": (0.5,), "full": (4.0, 2.0, 1.0, 0.5)}
"""The paper says of its betas that they go from 6 to 0.5; what lies between is ours."""
LOWEST = 0.5
ATTACK, INVERSE = "T-PGD", 5.0
"""Temperature-PGD at the paper's best 1/T for TRADES (kdd21 Table 3)."""


def trades(bench: Bench, beta: float = BETA) -> Trained:
    """TRADES with this beta for class 5 (kdd21 equation 5)."""
    schedule = {"name": "vector-beta", "beta": {str(TAKER): beta}}
    return bench.trained("trades", {} if beta == BETA else {"schedules": [schedule]})


def tempered(bench: Bench) -> dict[str, dict[str, Any]]:
    """The attack of the case study."""
    return {ATTACK: bench.pgd(tpgd(INVERSE))}


class BetaOfOneClass(Experiment):
    """kdd21 Figure 4c: class robustness over the beta of class 5, '66666X6666'."""

    item = "kdd21/F4c"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """A training for each beta; claim C21 between the ends."""
        names = bench.test_images.class_names
        betas = (BETA, *LOWERED[bench.scale.name])
        tables = {beta: bench.audited(trades(bench, beta), tempered(bench)).outcomes for beta in betas}
        counts: dict[Key, ClassCounts] = {
            (f"beta {beta:g} for {names[TAKER]}", attack): table.counts(attack)
            for attack in (ATTACK, "clean")
            for beta, table in tables.items()
        }
        tests, beyond = [], other_data("kdd21/C21", bench.scale)
        if bench.scale.data == CIFAR:
            ends = _together(tables[LOWEST], tables[BETA])
            gain, loss = f"class {VICTIM} at beta {LOWEST:g} minus at {BETA:g}", f"class {TAKER} the other way round"
            test = Test(
                claim="kdd21/C21",
                estimand=f"{gain}; {loss}",
                parts=[
                    ends.part(lambda a: np.asarray(a[..., 0, VICTIM] - a[..., 1, VICTIM]), 100),
                    ends.part(lambda a: np.asarray(a[..., 1, TAKER] - a[..., 0, TAKER]), 100),
                ],
                note="one training at each beta: intervals speak of new images only",
            )
            tests, beyond = [test], {}
        lines = class_lines(accuracies(tables))
        drawing = line_chart(f"Class accuracy under {ATTACK}, in percent", lines, f"beta of {names[TAKER]}")
        caption = f"A line for each class; every other class keeps beta {BETA:g}. 1/T = {INVERSE:g}."
        return Findings(
            tables=(class_table("Class accuracy, in percent", counts, names),),
            figures=((drawing, caption),),
            tests=tests,
            beyond=beyond,
        )


def accuracies(tables: Mapping[float, Outcomes]) -> pd.DataFrame:
    """Under the attack: a row for each beta, ascending, a column for each class, and that of all images last."""
    rows = {}
    for beta, table in sorted(tables.items()):
        counts = table.counts(ATTACK)
        overall = counts.correct.sum() / counts.count.sum()
        rows[beta] = dict(zip((*table.class_names, OVERALL), (*counts.accuracy, overall), strict=True))
    return pd.DataFrame.from_dict(rows, orient="index")


def _together(first: Outcomes, second: Outcomes) -> Resampled:
    rows = np.stack([first.correct(ATTACK), second.correct(ATTACK)])
    return Resampled(rows, first.labels, first.num_classes)
