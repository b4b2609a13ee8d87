"""Similarity of class logits and robustness: benz20/P2.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from classwise.analysis.similarity import Similarity, similarity_of
from classwise.auditing.run.result import Audit
from classwise.core.precision import EXACT
from classwise.data.images import Images
from classwise.models.modes import evaluating
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.interval_estimators import interval
from classwise.papers.scales import PRELIMINARY, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting import formatting
from classwise.reporting.figures.points import scatter
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import Estimate

ATTACKS: Mapping[str, str] = {"adversarial": "PGD", "standard": "clean"}
"""The attack under which each model is evaluated."""
BATCH = 256


class SimilarityAndRobustness(Experiment):
    """benz20 plan: correlation of the greatest logit cosine of each class with its accuracy."""

    scales: ClassVar[Mapping[Name, Scale]] = PRELIMINARY
    declared: ClassVar[Trainings] = {"adversarial": AT, "standard": STANDARD}

    def run(self, context: Context) -> Findings:
        """Evaluate the adversarial model under PGD and the standard one on clean images; test claim C6."""
        rows, figures, links = [], [], dict[str, Estimate]()
        for name, trained in context.train_all(self.trainings(context.scale)).items():
            attack = ATTACKS[name]
            audit = under_pgd(context, trained)
            similarity = _similarity(trained.run.model().to(context.device), context.test_images, audit, attack)
            assert similarity.link is not None
            assert similarity.interval is not None
            links[name] = similarity.interval
            alike = int(np.nanargmax(similarity.nearest))
            cells = [
                estimate_cell(similarity.interval, 1, 2),
                Cell(formatting.probability(similarity.link.p_value)),
                Cell(f"{similarity.nearest[alike]:.2f}", similarity.class_names[alike]),
            ]
            rows.append(Row(f"{name}, {attack}", cells))
            figures.append((similarity.figure(), f"The {name} model, clean images."))
            drawing = scatter(
                "Class accuracy and similarity to the nearest class",
                similarity.class_names,
                similarity.nearest,
                audit.counts(attack).accuracy,
                ("greatest cosine with another class", f"accuracy, {attack}, percent"),
                f"Spearman {similarity.link.value:.2f}",
            )
            figures.append((drawing, f"The {name} model."))
        heads = ("model", "Spearman", "p", "greatest cosine")
        note = (
            "Correlation of each class's greatest cosine with another class and its accuracy. Small print: 95 % "
            "confidence "
            "intervals for new images."
        )
        ends = links["adversarial"]
        return Findings(
            tables=(Table("Rank correlation of logit similarity and accuracy", heads, rows, note),),
            figures=figures,
            tests=(
                Test(
                    claim="benz20/C6",
                    estimand="minus Spearman's correlation of the greatest cosine and robust accuracy over the classes",
                    estimators=[interval(Estimate(-ends.value, -ends.high, -ends.low))],
                    unit="",
                    limits=CORRELATION,
                    note="one adversarial training; uses the greatest cosine, where the plan may mean the average",
                ),
            ),
        )


def _similarity(model: nn.Module, images: Images, audit: Audit, attack: str) -> Similarity:
    judged = audit.outcomes.judged(attack)
    order = torch.argsort(images.index)
    assert np.array_equal(images.index[order].cpu().numpy(), judged.image)
    return similarity_of(clean_logits(model, images.take(order)), judged.label, images.class_names, judged.correct)


def clean_logits(model: nn.Module, images: Images) -> FloatArray:
    """Logits of a model in evaluation mode, float64 (N, C), in the order of the images."""
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        forward = EXACT.forward(model)
        parts = [forward(batch.x.to(device)).double().cpu() for batch in images.batches(BATCH)]
    logits: FloatArray = torch.cat(parts).numpy()
    return logits
