"""Temperature ablation: the change of each class's accuracy under Temperature-PGD against plain PGD, at every 1/T.

kdd21 section 5 and Table 3; iclr21 Appendix F, Table 4, and Table 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, check_alone
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError, unknown
from classwise.reporting.figures.lines import Series, class_lines, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.stats.counts import PairedCounts, ratio
from classwise.stats.paired import paired_interval, paired_p_value

OVERALL = "overall"


@dataclass(frozen=True, eq=False)
class Ablation(AnalysisResult):
    """Changes of accuracy against a plain attack.

    Attributes:
        baseline: the plain attack.
        rows: a row for each model, 1/T and class (``overall`` last): ``model``, ``inverse_temperature``, ``class``,
            ``n``, ``baseline`` and ``accuracy`` (fractions), ``change`` with ``low`` and ``high`` (negative if the
            temperature makes the attack stronger) and ``p`` (McNemar). Intervals and p-values agree
            (`classwise.stats.paired.paired_interval`); neither is adjusted for the number of rows.
    """

    baseline: str
    rows: pd.DataFrame

    @property
    def best(self) -> pd.DataFrame:
        """The 1/T of lowest overall accuracy of each model, as in kdd21 Table 3, and the change.

        Because of the selection, the change is biased downwards; intervals and p-values of the rows do not account for
        it, and are left out.
        """
        overall = self.rows[self.rows["class"] == OVERALL].drop(columns=["low", "high", "p"])
        return overall.loc[overall.groupby("model", sort=False)["accuracy"].idxmin()].set_index("model")

    def figure(self) -> Drawing:
        """iclr21 Table 4 as lines: the change of each class over 1/T; for several models the overall changes."""
        rows = self.rows
        title = f"Change against {self.baseline}, in points"
        if len(self.best) == 1:
            table = rows.pivot_table(index="inverse_temperature", columns="class", values="change", sort=False)
            return line_chart(title, class_lines(table), "1/T", difference=True)
        overall = rows[rows["class"] == "overall"]
        lines = [
            Series(
                str(model),
                frame["inverse_temperature"].tolist(),
                frame["change"].tolist(),
                f"stroke-{SERIES[number % len(SERIES)]}",
                frame["low"].tolist(),
                frame["high"].tolist(),
            )
            for number, (model, frame) in enumerate(overall.groupby("model", sort=False))
        ]
        return line_chart(f"{title}, all classes", lines, "1/T", difference=True)


def ablation(
    audits: Mapping[str, Outcomes], baseline: str = "pgd", family: str = "tpgd", *, alpha: float = 0.05
) -> Ablation:
    """Compare every temperature with the plain attack on the same images (kdd21 section 5).

    Args:
        audits: outcomes by the name of the model, with the plain attack and the family.
        baseline: the plain attack.
        family: family of attacks that differ in ``inverse_temperature``.
        alpha: 1 minus the coverage of the intervals, for new images.

    Raises:
        ClasswiseError: if the attack or the family is missing.
    """
    frames = [_of(model, outcomes, baseline, family, alpha) for model, outcomes in audits.items()]
    if not frames:
        raise ClasswiseError("audits: empty; pass the outcomes of at least one model")
    return Ablation(baseline, pd.concat(frames, ignore_index=True))


def _of(model: str, outcomes: Outcomes, baseline: str, family: str, alpha: float) -> pd.DataFrame:
    members = outcomes.families.get(family, (family,) if family in outcomes.attacks else ())
    if not members:
        raise unknown(f"family of attacks of {model!r}", family, outcomes.families)
    for attack in (baseline, *members):
        check_alone(outcomes, attack)
    plain = outcomes.correct(baseline)
    frames = []
    for member in members:
        pairs = PairedCounts.from_labels(outcomes.labels, outcomes.correct(member), plain, outcomes.num_classes)
        gained, lost, count = (
            np.append(cells, cells.sum()) for cells in (pairs.only_first, pairs.only_second, pairs.count)
        )
        low, high = paired_interval(gained, lost, count, alpha)
        spec = outcomes.meta.attacks[member] or {}
        if "inverse_temperature" not in spec:
            raise ClasswiseError(
                f"{model!r}: the outcomes contain no 1/T of {member!r}; set inverse_temperature in the attack's spec"
            )
        frame = pd.DataFrame(
            {
                "model": model,
                "inverse_temperature": float(spec["inverse_temperature"]),
                "class": [*outcomes.class_names, OVERALL],
                "n": count,
                "baseline": np.append(pairs.second.accuracy, plain.mean()),
                "accuracy": np.append(pairs.first.accuracy, outcomes.correct(member).mean()),
                "change": ratio(gained - lost, count),
                "low": low,
                "high": high,
                "p": paired_p_value(gained, lost),
            }
        )
        frames.append(frame[frame["n"] > 0])
    return pd.concat(frames, ignore_index=True)
