"""The report of an audit that is not complete: bounds and numbers of judged images, or estimates from a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.table import ALL
from classwise.auditing.run.estimators import LOWER, UPPER
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import TwoPhaseEstimator
from classwise.reporting import formatting
from classwise.reporting.facts.audit_summary import MAX_BARS, heading, inputs_of
from classwise.reporting.facts.audit_tables import PAGE_ORDER, metrics_note
from classwise.reporting.facts.comparison_tables import worst_of
from classwise.reporting.facts.provenance import settings_of
from classwise.reporting.facts.sentences import caveats
from classwise.reporting.figures.dots import MAX_ESTIMATES, estimate_dots
from classwise.reporting.figures.ranges import range_bars
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, ExplainedTable, Row, Table, share_cell
from classwise.reporting.templating import both_widths
from classwise.stats import Unit
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.metrics.averages import overall_bounds
from classwise.stats.registry import arranged, failures_note
from classwise.stats.two_phase import SampledAccuracy

BOUNDS_NOTE = (
    "Images that are not judged count as misclassified in the lower bound and as correct in the upper bound. "
    "Bounds are not confidence intervals."
)


class IncompleteReport:
    """What text, pages, notebooks and exports show of an audit that is not complete: bounds, and no estimates.

    Args:
        audit: the audit.
    """

    state, brackets = "incomplete", "({})"
    """What titles of tables of the text state, and the form of the second number of their cells."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @property
    def headline(self) -> str:
        """The heading of the page."""
        return f"Incomplete audit: {self.audit.outcomes.unfinished} images are not judged under every attack"

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"{self.headline}: {self.audit.outcomes.meta.model or self.audit.name}"

    @property
    def note(self) -> str:
        """What the numbers mean."""
        return BOUNDS_NOTE

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """Estimates as JSON-compatible data; None if there are none."""
        return None

    def tables(self) -> Iterator[Table]:
        """The tables of the text; the first one is that of the classes."""
        yield class_bounds_table(self.audit)
        yield attack_bounds_table(self.audit)

    def lines(self) -> Iterator[str]:
        """The lines below the tables of the text."""
        yield f"{BOUNDS_NOTE} The {worst_of(self.audit.group)} is reported once every image is judged."

    def drawing(self, *, width: float | None = None) -> Drawing:
        """Bounds of the class accuracies under all attacks; at most `MAX_BARS` classes, lowest upper bounds first."""
        counts = self.audit.bounds(ALL)
        low, high = counts.accuracy
        shown = sorted(_shown(counts), key=lambda label: (high[label], low[label]))[:MAX_BARS]
        names = [self.audit.group_names[label] for label in shown]
        ends = ([float(limits[label]) for label in shown] for limits in (low, high))
        return range_bars("Bounds of the accuracy under all attacks, percent", names, *ends, width=width)

    def contents(
        self, width: float | None = None
    ) -> tuple[dict[str, pd.DataFrame], dict[str, Table], dict[str, Drawing]]:
        """Frames, tables and figures of an export; ``width``: of the figures, in pixels."""
        audit = self.audit
        frames = {"classes": audit.by_class.reset_index(), "attacks": audit.by_attack.reset_index()}
        tables = {"classes": class_bounds_table(audit), "attacks": attack_bounds_table(audit)}
        return frames, tables, {"classes": IncompleteReport.drawing(self, width=width)}

    def context(self) -> dict[str, Any]:
        """Template context of the page."""
        audit, meta = self.audit, self.audit.outcomes.meta
        where = formatting.data_name(meta.data, meta.split)
        over = f"classwise audit {audit.name}", meta.model, where, meta.threat
        return {
            "title": self.title,
            "headline": self.headline,
            "over": [part for part in over if part],
            "meaning": self.note,
            "figure": both_widths(self.drawing),
            "warnings": [warning for warning in audit.warnings if warning.name != "incomplete"],
            "caveats": caveats(audit),
            "attacks": attack_bounds_table(audit),
            "classes": next(self.tables()),
            "kind": audit.group or "class",
            "settings": settings_of(audit),
            **self._sentences(),
        }

    def _sentences(self) -> dict[str, Any]:
        """The entries of `context` that differ between bounds and estimates."""
        counts = self.audit.bounds(ALL)
        low, high = (formatting.percent(float(end)) for end in overall_bounds(counts))
        return {
            "lead": f"The accuracy under all attacks is between {low} and {high}.",
            "advice": (
                f"The worst {self.audit.group or 'class'} depends on the images that are not judged, so it is not "
                "reported. Repeat the command with --resume to continue the audit."
            ),
            "population": "Bounds are valid for every possible outcome of the images that are not judged.",
            "caption": "The figure shows the rows with the lowest upper bounds."
            if len(_shown(counts)) > MAX_BARS
            else "",
        }


class SampleReport(IncompleteReport):
    """The report of an audit that estimates AutoAttack's accuracies from a sample (two-phase sampling).

    Args:
        audit: the audit.
        estimator: its estimator.
    """

    state, brackets = "", "[{}]"

    def __init__(self, audit: Audit, estimator: TwoPhaseEstimator) -> None:
        super().__init__(audit)
        self.estimator = estimator

    @property
    def headline(self) -> str:
        """The overall accuracy with its interval for these images: ``AutoAttack, estimated: 38.9 % [38.4, 39.1]``."""
        return f"AutoAttack, estimated: {_with_interval(self.estimator.estimate.overall)}"

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"{self.audit.outcomes.meta.model or self.audit.name}: {self.headline}"

    @property
    def note(self) -> str:
        """What the intervals and their confidence refer to."""
        alpha = self.audit.alpha
        return (
            f"Intervals in brackets have {formatting.level(alpha)} confidence for these images; the probability is "
            "over the random order of the sample. Those for new images of the same classes also cover the choice of "
            f"the images. Beside the worst class: {formatting.lowest_interval_name(alpha)}. The estimate is not a "
            "complete audit by AutoAttack: its accuracy on these images is known once every attack has run on every "
            "survivor."
        )

    def tables(self) -> Iterator[Table]:
        """The table of the estimates."""
        yield self._table()

    def lines(self) -> Iterator[str]:
        """The estimates, the size of the sample, and what the intervals mean."""
        yield self.headline
        yield self._worst()
        yield self._new_images()
        yield f"sample: {self._sample()}"
        yield self.note

    def contents(
        self, width: float | None = None
    ) -> tuple[dict[str, pd.DataFrame], dict[str, Table], dict[str, Drawing]]:
        """Frames, tables and figures of an export: those of the bounds, and ``estimates``."""
        frames, tables, drawings = super().contents(width)
        return (
            frames | {"estimates": self.estimator.estimates.reset_index()},
            tables | {"estimates": self._table()},
            drawings | {"estimates": self.drawing(width=width)},
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """AutoAttack's accuracies; the fields ``low`` and ``high`` are for these images."""
        found, estimate = self.estimator, self.estimator.estimate
        return {
            "text": self.headline,
            "suite": "autoattack",
            "settle": found.sampling.settle,
            "settled": estimate.settled,
            "confidence": 1 - estimate.alpha,
            "overall": estimate.overall._asdict(),
            "worst": {"class": found.worst, **estimate.worst._asdict(), "possibly": list(found.possibly)},
            "classes": found.estimates.to_dict("index"),
            "survivors": int(estimate.survivors.sum()),
            "sampled": int(estimate.drawn.sum()),
            "passes": found.passes,
            "full_audit_passes": found.full_audit_passes,
        }

    def drawing(self, *, width: float | None = None) -> Drawing:
        """Dot plot of the estimates with their intervals for these images, lowest first."""
        title = "Accuracy under AutoAttack, estimated, %"
        return estimate_dots(title, self.estimator.estimates, alpha=self.audit.alpha, width=width)

    def context(self) -> dict[str, Any]:
        """Template context of the page."""
        context, settle = super().context(), f"{100 * self.estimator.sampling.settle:.6g} points"
        over = [*context["over"], formatting.counted(len(self.audit.outcomes), "image")]
        return context | {"over": over, "settings": [*context["settings"], ("Settle", settle)]}

    def _sentences(self) -> dict[str, Any]:
        hidden = len(self.estimator.estimates) - MAX_ESTIMATES
        return {
            "lead": formatting.sentence(self._worst()),
            "meaning": formatting.sentence(self._new_images()),
            "advice": f"{formatting.sentence(self._sample())} {self.note} To complete the audit, repeat the command "
            f"with {self.audit.outcomes.meta.completion}.",
            "population": "Intervals for these images cover the random order of the sample, with the model fixed.",
            "caption": f"The figure shows the {MAX_ESTIMATES} classes of lowest estimate." if hidden > 0 else "",
        }

    def _worst(self) -> str:
        """The worst class with the interval of the lowest accuracy of these images, and the other candidates."""
        found = self.estimator
        others = [name for name in found.possibly if name != found.worst]
        candidates = f"; other candidates: {formatting.listed(others)}" if others else ""
        worst = _with_interval(found.estimate.worst)
        return f"worst class, estimated: {found.worst}, {worst} of these images{candidates}"

    def _new_images(self) -> str:
        """The intervals for new images of the same classes."""
        overall, worst = self.estimator.estimate.overall, self.estimator.estimate.worst
        return (
            f"new images: overall {formatting.bracketed(overall.new_low, overall.new_high)}, "
            f"lowest class accuracy {formatting.bracketed(worst.new_low, worst.new_high)}"
        )

    def _sample(self) -> str:
        """The size and the cost of the sample, and whether it reached the requested width."""
        found, design = self.estimator, self.estimator.sampling
        sampled, survivors = (int(values.sum()) for values in (found.estimate.drawn, found.estimate.survivors))
        images = formatting.counted(survivors, "survivor")
        share = found.passes / found.full_audit_passes
        cost = "under 1 %" if share < 0.01 else f"about {100 * share:.0f} %"
        intervals = "the overall and worst-class intervals for these images"
        reached = f"{intervals} are" if found.finished else f"stopped before {intervals} were"
        return (
            f"{formatting.listed(design.second)} ran on {formatting.count(sampled)} of the {images} of "
            f"{formatting.listed(design.first)}; {cost} of the passes of a full audit; {reached} within "
            f"{100 * design.settle:.6g} points of the estimates"
        )

    def _table(self) -> Table:
        """Estimates per class, in label order."""
        rows, found = [], self.estimator
        tied = int((found.estimates["estimate"] == found.estimates["estimate"].min()).sum())
        for name, row in found.estimates.iterrows():
            cells = [
                Cell(formatting.count(row["n"])),
                Cell(formatting.bare_percent(row["clean"])),
                Cell(formatting.bare_percent(row["first"])),
                share_cell(row["estimate"], row["low"], row["high"]),
                Cell(formatting.span(row["new_low"], row["new_high"])),
                Cell(f"{formatting.count(row['sampled'])} of {formatting.count(row['survivors'])}"),
                Cell("yes" if row["may_be_worst"] else ""),
            ]
            rows.append(Row(str(name), cells, weak=tied == 1 and str(name) == found.worst))
        first, level = formatting.listed(found.sampling.first), formatting.level(self.audit.alpha)
        bold = "Bold: the class with the lowest estimate. " if tied == 1 else ""
        note = (
            f"{bold}Each class has {level} intervals of its own: beside the estimate for these images, and for new "
            "images. The interval of the worst class accounts for the number of classes, and so do the wider "
            "intervals by which a class may be the worst. Sampled: survivors on which "
            f"{formatting.listed(found.sampling.second)} ran."
        )
        heads = ["class", "n", "clean", first, f"{ALL}, estimated", "new images", "sampled", "may be the worst"]
        return Table("AutoAttack per class, estimated, percent", heads, rows, note)


def report_of(audit: Audit) -> IncompleteReport:
    """The report of an audit that is not complete, by its estimator."""
    estimator = audit.estimator
    return SampleReport(audit, estimator) if isinstance(estimator, TwoPhaseEstimator) else IncompleteReport(audit)


def _with_interval(accuracy: SampledAccuracy[float]) -> str:
    return f"{formatting.bare_percent(accuracy.value)} % {formatting.bracketed(accuracy.low, accuracy.high)}"


def class_bounds_table(audit: Audit) -> Table:
    """Bounds per class: number of images, then under each attack the bounds and the number of judged images."""
    names, kind, rows = audit.names, audit.group or "class", []
    for group, row in audit.by_class.iterrows():
        cells = [Cell(formatting.count(row["n"]))]
        for name in names:
            ends = Bounds(float(row[f"{name}_{LOWER}"]), float(row[f"{name}_{UPPER}"]))
            cells.append(Cell(_range(ends), f"{formatting.count(row[f'{name}_judged'])} judged"))
        rows.append(Row(str(group), cells))
    unplaced = audit.bounds(ALL).unplaced
    note = f"The {kind} of {_number(unplaced)} images that are not judged is unknown." if unplaced else ""
    heads = [kind, "n", *(heading(audit.outcomes.meta, name) for name in names)]
    return Table(f"Bounds of the accuracy per {kind}, percent", heads, rows, note)


def attack_bounds_table(audit: Audit) -> Table:
    """Bounds of every metric per attack, with the numbers of images that are and are not judged."""
    shown, rows, read = arranged(*PAGE_ORDER), [], []
    for name in audit.names:
        inputs = inputs_of(audit, name)
        read.append(inputs)
        cells = [Cell(_number(inputs.counts.judged.sum())), Cell(_number(inputs.counts.unjudged))]
        cells += [Cell(_range(metric.possible_in_table(inputs), metric.unit)) for metric in shown]
        rows.append(Row(heading(audit.outcomes.meta, name), cells))
    heads = ["attack", "judged", "not judged", *(metric.title for metric in shown)]
    text = f"{BOUNDS_NOTE} {failures_note(read)}".rstrip()
    return ExplainedTable("Bounds per attack, percent", heads, rows, text, about_columns=metrics_note)


def _shown(counts: BoundedCounts) -> list[int]:
    """Labels of the classes that have or may have images."""
    return [int(label) for label in np.flatnonzero((counts.count > 0) | (counts.unplaced > 0))]


def _range(bounds: Bounds[Fraction] | Bounds[float], unit: Unit = "fraction") -> str:
    """Format bounds in their unit; one number if they are equal."""
    low, high = map(float, bounds)
    return formatting.in_unit(low, unit) if low == high else formatting.span_in_unit(low, high, unit)


def _number(images: float) -> str:
    return "an unknown number" if math.isinf(images) else formatting.count(images)
