"""Class accuracies on several data sets: benz20/P1.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.gap import gap
from classwise.analysis.spread import spread
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.data_set_audits import (
    DRAWN,
    SCALES,
    DataSetAudits,
    audit_each,
    data_tables,
    declare,
)
from classwise.papers.interval_estimators import widest
from classwise.papers.scales import CIFAR, MNIST, RESNET18, SMOKE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals

DATA: Sequence[str] = (MNIST, "svhn", CIFAR, "cifar100", "tiny-imagenet")
"""The data sets of the plan."""


class DataSets(Experiment):
    """benz20 plan: a standard and an adversarially trained model on each of five data sets."""

    scales: ClassVar[Mapping[Name, Scale]] = {
        **SCALES,
        "full": replace(
            RESNET18, about="ResNet-18 on five data sets, each with its radius; unavailable ones are skipped"
        ),
    }

    def trainings(self, scale: Scale) -> Trainings:
        """A standard and an adversarially trained model of each data set."""
        return declare(scale, data_sets=_data(scale), network=_network(scale))

    def run(self, context: Context) -> Findings:
        """Tabulate averages and gaps of both models on each available data set; test claims C1 and C4."""
        audited, absent = audit_each(context, data_sets=_data(context.scale), network=_network(context.scale))
        heads = ["model"]
        for attack in ("clean", "PGD"):
            heads += [f"{attack}: average", "worst class", "MCD"]
        fit = [one for one in audited if not one.fault]
        note = f"on {', '.join(one.data for one in fit)}; one training of each model"
        any_gap = Test(
            claim="benz20/C1",
            estimand="MCD of clean accuracy, standard training, each data set",
            estimators=[widest(one.counts("standard", "clean")) for one in fit],
            note=f"{note}; 'non-trivial' is interpreted as above zero by simultaneous intervals for all classes",
        )
        tests = [any_gap] if fit else []
        for one in audited:
            if one.judges("benz20/C4"):
                estimand = f"MCD under PGD, adversarial training on {one.data}"
                gaps = [widest(one.counts())]
                tests.append(Test(claim="benz20/C4", covers=(one.data,), estimand=estimand, estimators=gaps))
        rows = [Row(f"{one.data}, {kind}", _cells(one, kind, tests)) for one in audited for kind in one.audits]
        small_print = "Small print: 95 % confidence intervals for new images."
        table = Table("In percent and points", (*heads, "weakest"), rows, small_print)
        reason = "; ".join(f"{one.data}: {one.fault}" for one in audited)
        return Findings(
            tables=(table, *data_tables(audited, absent)),
            figures=[(_drawn(one), f"{one.data}: standard clean, adversarial under PGD.") for one in audited],
            tests=tests,
            not_tested={} if fit else {"benz20/C1": reason, "benz20/C4": reason},
        )


def _data(scale: Scale) -> Sequence[str]:
    return (SMOKE.data,) if scale.name == "smoke" else DATA


def _network(scale: Scale) -> str:
    """ResNet-18 on all data sets, as in the plan; at smaller scales the network of each."""
    return str(scale.overrides["model.name"]) if scale.name == "full" else ""


def _cells(one: DataSetAudits, kind: str, tests: Sequence[Test]) -> list[Cell]:
    cells = []
    for attack in ("clean", "PGD"):
        counts = one.counts(kind, attack)
        tested = tests if (kind, attack) in (("standard", "clean"), ("adversarial", "PGD")) else ()
        cells += [estimate_cell(of(counts)) for of in (metric_intervals.macro, metric_intervals.worst)]
        cells.append(estimate_cell(metric_intervals.discrepancy(counts), tests=tested))
    label = metric_intervals.worst_label(one.counts(kind))
    return [*cells, Cell(one.outcomes(kind).class_names[label])]


def _drawn(one: DataSetAudits) -> Drawing:
    """Draw the accuracy of each class; for many classes, a histogram."""
    standard, adversarial = (one.outcomes(kind) for kind in ("standard", "adversarial"))
    if adversarial.num_classes <= DRAWN:
        return gap(standard, adversarial, "PGD").figure()
    return spread(adversarial, "PGD").figure()
