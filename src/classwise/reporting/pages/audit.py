"""The page of an audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import Weakness, weakness
from classwise.reporting import formatting
from classwise.reporting.facts import sentences
from classwise.reporting.facts.audit_summary import MAX_BARS, AuditSummary, shown_warnings
from classwise.reporting.facts.audit_tables import CUMULATIVE_NOTE, attack_table, class_table, own_intervals_note
from classwise.reporting.facts.examples import example_images, thumbnails
from classwise.reporting.facts.incomplete import report_of
from classwise.reporting.facts.provenance import settings_of, weights_name
from classwise.reporting.facts.repeats import repeats_table
from classwise.reporting.facts.training_curves import Curves, curves_of_audit
from classwise.reporting.facts.weakness_sentences import (
    NOTE,
    clearest_heading,
    failure_text,
    weakness_sentences,
    weakness_title,
)
from classwise.reporting.links import images_link, viewer_link
from classwise.reporting.tables import Table
from classwise.reporting.templating import Context, both_widths, markup, render
from classwise.stats import Unit
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.averages import overall_estimate
from classwise.stats.metrics.discrepancy import mcd_estimate
from classwise.stats.metrics.lowest import best_estimate, worst20_estimate
from classwise.stats.metrics.variance import cv_estimate

if TYPE_CHECKING:
    from classwise.training.folder import Run

MAX_BYTES = 500_000
"""Maximum size of a page; omitted parts are noted on the page and included in exports."""
MAX_MATRIX_CLASSES = 12
"""Maximum number of classes for which a page shows the confusion matrices of single attacks."""


@dataclass(frozen=True)
class KeyMetric:
    """A metric in the overview: its name, value, unit, and interval with the number of images."""

    name: str
    value: str
    unit: str
    span: str


def audit_page(audit: Audit, run: Run | None = None, folder: Path | None = None) -> str:
    """Render the page of an audit, below `MAX_BYTES`.

    For an incomplete audit, it has bounds instead of estimates; of a sample, estimates from it.

    Args:
        audit: the audit to report.
        run: the training run of the model; by default the run whose folder contains the audit.
        folder: that of the page, which links to the viewer of the audit if it is built; None: without links.
    """
    if audit.complete:
        summary = AuditSummary.of(audit)
        template, contexts = (
            "audit.html",
            _by_decreasing_size(audit_context(audit, summary, run, viewer_link(audit, folder)), class_table(summary)),
        )
    else:
        context = report_of(audit).context()
        template, contexts = "incomplete.html", iter([{**context, "classes": context["classes"].first()}])
    for reduced in contexts:
        text = render(template, reduced)
        if len(text.encode()) < MAX_BYTES:
            break
    return text


def audit_context(audit: Audit, summary: AuditSummary, run: Run | None = None, viewer: str = "") -> dict[str, Any]:
    """Template context of the page of an audit."""
    worst, meta = summary.minimum, summary.meta
    where = formatting.data_name(meta.data, meta.split)
    weights = weights_name(audit.environment)
    over = [
        meta.model,
        f"weights {weights}" if weights else "",
        where,
        meta.threat,
        formatting.counted(int(summary.under_all.count.sum()), "image"),
    ]
    facts = sentences.AuditFacts.of(summary)
    about_worst = weakness(audit, run=run)
    headline = sentences.headline(facts)
    return {
        "title": f"{meta.model or audit.name}: {''.join(headline)}",
        "over": [f"classwise audit {audit.name}".replace(" audit audit", " audit"), *filter(None, over)],
        "headline": headline,
        "worst": {
            "interval": f"{formatting.lowest_interval_name(summary.alpha, summary.kind)}: "
            f"{formatting.span(worst.low, worst.high)}\u00a0%",
            "lead": sentences.lead(facts),
        },
        "population": (
            f"Intervals are {formatting.level(summary.alpha)} confidence intervals for new images of the same classes, "
            "with the model fixed."
        ),
        "kind": summary.singular,
        "strip": both_widths(summary.strip, viewer=viewer),
        "viewer": viewer,
        "metrics": _key_metrics(summary),
        "warnings": shown_warnings(audit, audit.group),
        "caveats": sentences.caveats(audit),
        "uncertainty": sentences.uncertainty(facts),
        "bars": _bars(summary, viewer),
        "classes": class_table(summary).first(),
        "weakness": _weakness(audit, about_worst, viewer),
        "errors": sentences.confusion_sentences(facts),
        "confusions": _confusions(audit, summary, viewer),
        "examples": _examples(audit, summary),
        "training": _training(curves_of_audit(audit, run)),
        "attacks": attack_table(summary),
        "probabilities": None if meta.repeats == 1 else repeats_table(audit).first(),
        "settings": settings_of(audit, run),
    }


def _key_metrics(summary: AuditSummary) -> list[KeyMetric]:
    counts, alpha = summary.under_all, summary.alpha
    best, all_images = int(summary.order[-1]), int(counts.count.sum())
    tied = int((counts.accuracy == counts.accuracy[best]).sum()) - 1
    equal = f" (and {formatting.count(tied)} more)" if tied else ""
    kind = f"{'Robust' if summary.attacked else 'Clean'} accuracy"
    metrics = [
        _key_metric(f"{kind}, overall", overall_estimate(counts, alpha), all_images),
        _key_metric(f"{kind}, worst 20\u00a0%", worst20_estimate(counts, alpha), all_images),
        _key_metric(
            f"Highest {summary.singular} accuracy: {summary.names[best]}{equal}",
            best_estimate(counts, alpha),
            int(counts.count[best]),
        ),
        _key_metric("Class discrepancy (MCD)", mcd_estimate(counts, alpha), all_images, shown="points"),
        _key_metric("Class-wise variance", cv_estimate(counts, alpha), all_images, "%²", "fraction squared"),
    ]
    if CLEAN in summary.counts and summary.attacked:
        clean = summary.counts[CLEAN]
        overall = overall_estimate(clean, alpha)
        metrics.insert(0, _key_metric("Clean accuracy, overall", overall, int(clean.count.sum())))
    return metrics


def _key_metric(name: str, estimate: Estimate, images: int, shown: str = "%", unit: Unit = "fraction") -> KeyMetric:
    span = f"{formatting.span_in_unit(estimate.low, estimate.high, unit)}, n {formatting.count(images)}"
    return KeyMetric(name, formatting.in_unit(estimate.value, unit), shown, span)


def _bars(summary: AuditSummary, viewer: str = "") -> dict[str, Any]:
    hidden = len(summary.order) - MAX_BARS
    caption = (
        f"Lines on the bars are {formatting.level(summary.alpha)} intervals; the dashed line is the overall accuracy. "
        f"The worst {summary.singular} of each panel is highlighted (none if several tie)."
    )
    caption += f" {own}" if (own := own_intervals_note(summary)) else ""
    if summary.meta.cascade:
        caption += f" {CUMULATIVE_NOTE}"
    if len(summary.worst_candidates) > 1:
        caption += f" Coloured names: {summary.plural} that may be the worst."
    if hidden > 0:
        caption += (
            f" The figure shows the {MAX_BARS} of {len(summary.order)} {summary.plural} with the lowest accuracy "
            f"{'under all attacks' if summary.attacked else 'on clean images'}; the worst {summary.singular} of "
            "another panel may be missing."
        )
    return {
        "svg": both_widths(summary.bars, summary.main, viewer=viewer),
        "caption": caption,
        "members": both_widths(summary.bars, summary.members, viewer=viewer)
        if summary.members and hidden <= 0
        else None,
    }


def _confusions(audit: Audit, summary: AuditSummary, viewer: str = "") -> list[dict[str, Any]]:
    """The confusion matrix under all attacks; for few classes also of the strongest attack and of clean images."""
    small = len(summary.meta.class_names) <= MAX_MATRIX_CLASSES
    others = [name for name in (summary.strongest, CLEAN) if name in summary.confusions and small]
    if list(summary.meta.attacks) == [CLEAN]:
        others = []
    return [_confusion(audit, summary, name, viewer, collapsed=name != ALL) for name in (ALL, *others) if name]


def _confusion(audit: Audit, summary: AuditSummary, name: str, viewer: str, *, collapsed: bool) -> dict[str, Any]:
    condensed, note = summary.confusions[name].condensed()
    if name == ALL:
        order = formatting.listed([label for label in summary.meta.attacks if label in audit.attacks])
        diagonal = "; the diagonal counts images that are classified correctly under all of them"
        about = (
            f"Each image is counted by its first incorrect prediction, in the order {order}"
            f"{'' if condensed.of_superclasses else diagonal}."
            if summary.attacked
            else "Predictions on clean images."
        )
    else:
        about = f"Shown: {audit.shows(name)}."
    frames = "Frames mark superclasses." if condensed.groups is not None else ""
    return {
        "title": "Over all attacks"
        if name == ALL and summary.attacked
        else "Clean images"
        if name in {ALL, CLEAN}
        else f"Under {name}",
        "matrices": [both_widths(summary.matrix, name, kind, viewer=viewer) for kind in ("rates", "errors")],
        "caption": " ".join(part for part in (about, frames, note) if part),
        "collapsed": collapsed,
    }


def _weakness(audit: Audit, facts: Weakness, viewer: str) -> dict[str, Any]:
    """The section on the class of lowest accuracy; its clearest failures are linked to the viewer if it is built."""
    pixels = thumbnails(audit, [failure.image for failure in facts.clearest])
    return {
        "title": weakness_title(facts),
        "sentences": weakness_sentences(facts),
        "heading": clearest_heading(facts),
        "clearest": [
            {
                "text": failure_text(failure),
                "link": images_link(viewer, {"group": facts.label, "image": failure.image}) if viewer else "",
                "pixels": pixels.get(failure.image, ""),
            }
            for failure in facts.clearest
        ],
        "note": NOTE,
    }


def _examples(audit: Audit, summary: AuditSummary) -> dict[str, Any] | None:
    examples = example_images(audit, summary)
    if examples is None:
        return None
    encoded, factor = examples
    name = summary.names[summary.worst]
    return {
        "triples": encoded,
        "intro": (
            f"Correctly classified images of {name}, the same images after the attack, and their differences, "
            f"amplified {factor:.{0 if factor >= 10 else 1}f} times around grey."
        ),
    }


def _training(curves: Curves | None) -> dict[str, Any] | None:
    if curves is None:
        return None
    return {
        "intro": " ".join(curves.sentences),
        "curves": [markup(drawing) for drawing in curves.drawings.values()],
        "caption": curves.caption,
    }


def _by_decreasing_size(context: Context, classes: Table) -> Iterator[Context]:
    """The full context, then reduced ones, largest first.

    Args:
        context: the full context.
        classes: the table of all classes.
    """
    yield context
    first = list(context["confusions"])[:1]
    yield {**context, "confusions": first}
    yield {**context, "confusions": first, "classes": classes.first(50)}
    yield {**context, "confusions": [], "examples": None, "training": None, "classes": classes.first(50)}
