"""Class accuracies of models that the user names, on the user's images: benz20/P1.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from classwise.analysis.gap import gap
from classwise.analysis.spread import spread
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.splits import stratified_subset
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.class_wise import class_dots, discrepancy_tests
from classwise.papers.experiments.data_set_audits import DRAWN, LEAST_IMAGES
from classwise.papers.experiments.protocol import AT, PGD, STANDARD, under_pgd
from classwise.papers.interval_estimators import widest
from classwise.papers.scales import SMOKE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts

WEAKEST = 5
"""Number of weakest classes listed for each model."""
ATTACKS = ("clean", "PGD")
IMAGENET = Scale(
    name="full", about="the named models on all named images, PGD-20 at Linf 4/255", data="", threat="Linf:4/255"
)
REDUCED = replace(
    IMAGENET,
    name="reduced",
    about="the named models on at most 1,000 of the named images, PGD-5 at Linf 4/255",
    test=1000,
    attack_steps=5,
)


class PretrainedModels(Experiment):
    """benz20 plan: public models of ImageNet, standard and adversarially trained, without training."""

    takes_models = True
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": replace(SMOKE, about=f"{SMOKE.about}; without --model, a standard and a robust model are trained"),
        "reduced": REDUCED,
        "full": IMAGENET,
    }

    def trainings(self, scale: Scale) -> Trainings:
        """None; at smoke scale, two models instead of named ones."""
        return {"standard": STANDARD, "adversarial": AT} if scale.name == "smoke" else {}

    def run(self, context: Context) -> Findings:
        """Tabulate accuracy and robustness of each model; test claim C1 on each model, and C2 on two models."""
        outcomes = _outcomes(context, self.trainings(context.scale))
        rows = [
            Row(f"{name}, {attack}", _cells(table, attack)) for name, table in outcomes.items() for attack in ATTACKS
        ]
        counts = next(iter(outcomes.values())).counts("clean")
        heads = ("model, images", "average", "worst class", "MCD", f"the {WEAKEST} weakest classes, percent")
        note = (
            f"{int(counts.count.sum()):,} images of {int(counts.present.sum())} classes, {context.scale.threat}. "
            "Small print: 95 % confidence intervals for new images."
        )
        hashes = [Row(name, [Cell(str(table.meta.model_hash)[:12])]) for name, table in outcomes.items()]
        tests, not_tested = _tests(outcomes, smoke=context.scale.name == "smoke")
        return Findings(
            tables=(Table("In percent and points", heads, rows, note), Table("Models", ("model", "SHA-256"), hashes)),
            figures=_figures(outcomes),
            tests=tests,
            not_tested=not_tested,
        )


def _outcomes(context: Context, trainings: Mapping[str, Training]) -> dict[str, Outcomes]:
    """Outcomes by model: of the named models on the named images, or of two trained ones at smoke scale."""
    if not context.inputs:
        models = context.train_all(trainings)
        return {name: under_pgd(context, trained).outcomes for name, trained in models.items()}
    scale = context.scale
    images = context.inputs.load_images(scale.test)
    if scale.test is not None and scale.test < len(images):
        images = images.take(stratified_subset(images.y, scale.test))
    attacks = {"PGD": context.pgd(PGD)}
    context.note_audit(images, attacks)
    return {
        name: context.store.audit_model(
            model,
            images,
            attacks,
            scale.threat,
            precision=scale.precision,
            device=context.device,
            progress=context.progress,
        ).outcomes
        for name, model in context.inputs.load_models(images, context.device).items()
    }


def _cells(table: Outcomes, attack: str) -> list[Cell]:
    counts = table.counts(attack)
    metrics = (metric_intervals.macro, metric_intervals.worst, metric_intervals.discrepancy)
    weakest = np.argsort(np.where(counts.present, counts.accuracy, np.inf), kind="stable")[:WEAKEST]
    shown = [label for label in weakest.tolist() if counts.present[label]]
    names = [f"{table.class_names[label]} {100 * counts.accuracy[label]:.0f}" for label in shown]
    return [*(estimate_cell(of(counts)) for of in metrics), Cell(", ".join(names))]


def _tests(outcomes: Mapping[str, Outcomes], *, smoke: bool) -> tuple[Sequence[Test], dict[str, str]]:
    """Tests of C1 and C2, and the reasons where they are not tested."""
    tables = list(outcomes.values())
    counts = tables[0].counts("clean")
    least = int(counts.count[counts.present].min())
    if least < LEAST_IMAGES and not smoke:
        reason = f"{least} test images in a class, of at least {LEAST_IMAGES}"
        return (), {"benz20/C1": reason, "benz20/C2": reason}
    any_gap = Test(
        claim="benz20/C1",
        estimand="MCD of clean accuracy, the first model",
        estimators=[widest(counts)],
        note="the first model is taken to be a standard one; 'non-trivial' is interpreted as above zero by "
        "simultaneous intervals for all classes",
    )
    if len(tables) != 2:
        return (any_gap,), {"benz20/C2": "the claim compares a standard and an adversarially trained model"}
    note = "the second model is taken to be adversarially trained"
    robust, clean = (gap(tables[0], tables[1], attack) for attack in ("PGD", "clean"))
    return (any_gap, *(replace(test, note=note) for test in discrepancy_tests(robust, clean))), {}


def _figures(outcomes: Mapping[str, Outcomes]) -> list[tuple[Drawing, str]]:
    """A drawing of the classes with one point for each model; for many classes, a histogram of each model."""
    figures = []
    for attack in ATTACKS:
        tables = list(outcomes.values())
        present = np.flatnonzero(tables[0].counts(attack).present)
        if len(present) > DRAWN:
            figures += [(spread(table, attack).figure(), f"{name}, {attack}.") for name, table in outcomes.items()]
            continue
        each = [ClassCounts(one.count[present], one.correct[present]) for one in (t.counts(attack) for t in tables)]
        names = [tables[0].class_names[label] for label in present]
        figures.append((class_dots(f"{attack}, in percent", each, list(outcomes), names), f"All models, {attack}."))
    return figures
