"""iclr21/F4, E1 and E2: class accuracies beside the norms of the classifier's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.norm_link import norm_link, row_norms
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report import wording
from classwise.report.tables import Cell, Row, Table
from classwise.stats.interval_estimators import interval, raised
from classwise.stats.intervals import Estimate

NONE = 0.5
"""A rank correlation below this in size is read as none."""


class NormsAndRobustness(Experiment):
    """iclr21 Figure 4: robust classes have long rows in adversarial training, not in standard training."""

    item = "iclr21/F4"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """The adversarially trained model under PGD, the standard one on clean images; claims C5 and C6."""
        rows, figures, links = [], [], {}
        for name, recipe, attack in (("adversarial", "at", "PGD"), ("standard", "standard", "clean")):
            trained = bench.trained(recipe, {"seed": 1} if recipe == "standard" else None)
            audit = under_pgd(bench, trained)
            found = links[name] = norm_link(audit.outcomes, attack, row_norms(trained.run.model()))
            cells = [estimate_cell(one, 1, 2) for one in found.intervals]
            rows.append(Row(f"{name}, {attack}", [*cells, Cell(wording.probability(found.spearman.p_value))]))
            figures.append((found.figure(), f"The {name} model, {attack}."))
        heads = ("model", "Pearson", "Spearman", "Kendall", "p of Spearman")
        note = "Small: 95 % intervals for new images. p by permutation of the classes."
        size = links["standard"].intervals[1]
        ends = sorted(abs(end) for end in (size.low, size.high))
        weak = Estimate(NONE - abs(size.value), NONE - ends[1], NONE - (0.0 if size.low <= 0 <= size.high else ends[0]))
        return Findings(
            tables=(Table("Correlation of class accuracy with the norm of the class's row", heads, rows, note),),
            figures=figures,
            tests=(
                Test(
                    claim="iclr21/C5",
                    covers=(bench.scale.data,),
                    estimand="Spearman's correlation of robustness and norm, adversarial training",
                    parts=[interval(links["adversarial"].intervals[1])],
                    unit="",
                    limits=CORRELATION,
                    note=f"on {bench.scale.data} of the six data sets",
                ),
                Test(
                    claim="iclr21/C6",
                    estimand="0.5 minus the size of Spearman's correlation of clean accuracy and norm, standard",
                    parts=[raised(interval(weak), NONE - 1)],
                    unit="",
                    limits=(NONE - 1, NONE),
                    note="'none' is read as: smaller than 0.5; noise lowers it, so this can only be refuted",
                ),
            ),
        )


class NormsOfRobustModels(NormsAndRobustness):
    """iclr21 section 3.2: the same as numbers."""

    item = "iclr21/E1"


class NormsOfStandardModels(NormsAndRobustness):
    """iclr21 section 3.2: standard training for comparison."""

    item = "iclr21/E2"
