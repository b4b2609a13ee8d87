"""t-SNE of the features of natural and adversarial test images: iclr21/F8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from classwise.analysis.embedding import embedding
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import AT, under_pgd
from classwise.papers.interval_estimators import difference, interval
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate


class Purity(NamedTuple):
    """A row of `Embedding.purity`: the share of neighbours of the same group, its interval, and the chance level."""

    purity: float
    low: float
    high: float
    chance: float

    @property
    def beyond_chance(self) -> Estimate:
        """Chance-corrected purity (purity - chance) / (1 - chance): 0 for random, 1 for pure neighbourhoods."""
        return Estimate(*((end - self.chance) / (1 - self.chance) for end in self[:3]))


class FeaturesOnAPlane(Experiment):
    """iclr21 Figure 8: t-SNE of penultimate features of an adversarially trained model, clean and attacked."""

    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE
    declared: ClassVar[Trainings] = {"AT": AT}

    def run(self, context: Context) -> Findings:
        """Compute the embedding and the purity of neighbourhoods; test claim C15."""
        trained = context.train_all(self.trainings(context.scale))["AT"]
        projection = embedding(under_pgd(context, trained, save=("features",)), "PGD")
        values = projection.purity[list(Purity._fields)].to_numpy(dtype=float).tolist()
        places = projection.purity.index.to_list()
        purity = {place: Purity(*row) for place, row in zip(places, values, strict=True)}
        rows = [
            Row(f"{kind}, {level}", [estimate_cell(Estimate(*one[:3])), Cell(f"{100 * one.chance:.1f}")])
            for (kind, level), one in purity.items()
        ]
        heads = ("images, neighbours of the same", "percent", "by chance")
        note = (
            "Small print: 95 % confidence intervals over images. Neighbours are found in feature space, not in the "
            "plane."
        )
        table = Table("Share of the ten nearest neighbours", heads, rows, note)
        caption = "Penultimate features; the paper does not state the layer."
        if ("clean", "superclass") not in purity:
            not_tested = {"iclr21/C15": f"{context.scale.data} has no superclasses"}
            return Findings(tables=(table,), figures=((projection.figure(), caption),), not_tested=not_tested)
        separates = Test(
            claim="iclr21/C15",
            estimand="chance-corrected share of neighbours (Cohen's kappa): superclass minus class, clean and attacked",
            estimators=[
                interval(difference(purity[kind, "superclass"].beyond_chance, purity[kind, "class"].beyond_chance))
                for kind in ("clean", "PGD")
            ],
            unit="",
            note="the two are treated as independent; images share neighbours, so the intervals are slightly too "
            "narrow",
        )
        return Findings(tables=(table,), figures=((projection.figure(), caption),), tests=(separates,))
