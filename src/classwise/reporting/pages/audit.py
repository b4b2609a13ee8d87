"""The page of an audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.auditing.result import Audit
from classwise.reporting import formatting, sentences
from classwise.reporting.audit_tables import CUMULATIVE_NOTE, attack_table, class_table
from classwise.reporting.examples import example_images
from classwise.reporting.figures.heatmap import heatmap
from classwise.reporting.findings import MOST_BARS, Findings
from classwise.reporting.image_data import triples
from classwise.reporting.incomplete import incomplete_context
from classwise.reporting.provenance import settings_of
from classwise.reporting.tables import Table
from classwise.reporting.templating import Context, markup, render
from classwise.reporting.training_run import curves_around
from classwise.stats import metric_intervals
from classwise.stats.intervals import Estimate

if TYPE_CHECKING:
    from classwise.reporting.training_curves import Curves
    from classwise.training.folder import Run

MOST_BYTES = 500_000
"""A page stays below this; what it leaves out for that is said on it, and is in the exported files."""
MOST_ROWS = 200
"""Rows of a table on a page."""
MOST_CELLS = 12
"""Up to so many classes, a page has the confusion matrices of single attacks too."""


@dataclass(frozen=True)
class Fact:
    """A single number: its name, the number, its unit, its interval."""

    name: str
    value: str
    unit: str
    span: str


def audit_page(audit: Audit, run: Run | None = None) -> str:
    """The page of an audit, below 500 KB; of an incomplete one with bounds and without estimates.

    Args:
        audit: what to show.
        run: the training run of the model; None: the run whose folder holds the audit.
    """
    if audit.complete:
        findings = Findings.of(audit)
        template, lighter = "audit.html", _diets(audit_context(audit, findings, run), class_table(findings))
    else:
        context = incomplete_context(audit)
        template, lighter = "incomplete.html", iter([{**context, "classes": context["classes"].first(MOST_ROWS)}])
    for shown in lighter:
        text = render(template, shown)
        if len(text.encode()) < MOST_BYTES:
            break
    return text


def audit_context(audit: Audit, findings: Findings, run: Run | None = None) -> dict[str, Any]:
    """Everything that the template of an audit's page shows."""
    worst, meta = findings.reading(findings.worst), findings.meta
    where = " ".join(filter(None, (meta.data, meta.split)))
    over = [meta.model, where, meta.threat, f"{formatting.count(findings.verdict.count.sum())} images"]
    headline = sentences.headline(findings)
    return {
        "title": f"{meta.model or audit.name}: {''.join(headline)}",
        "over": [f"classwise audit {audit.name}".replace(" audit audit", " audit"), *filter(None, over)],
        "headline": headline,
        "worst": {
            "interval": f"{formatting.level(findings.alpha)} interval {formatting.span(worst.low, worst.high)}\u00a0%",
            "lead": sentences.lead(findings),
        },
        "population": (
            f"Intervals are {formatting.level(findings.alpha)} and speak of new images of the same classes, with the "
            "model fixed."
        ),
        "kind": findings.singular,
        "strip": markup(findings.strip()),
        "facts": _facts(findings),
        "warnings": list(audit.warnings),
        "fine": "No guard of the evaluation raised a warning." if meta.model_hash else "",
        "certainty": sentences.certainty(findings),
        "bars": _bars(findings),
        "classes": class_table(findings).first(MOST_ROWS),
        "mistakes": sentences.mistakes(findings),
        "confusions": _confusions(audit, findings),
        "pictures": _pictures(audit, findings),
        "training": _training(curves_around(audit, run)),
        "attacks": attack_table(findings),
        "settings": settings_of(audit),
    }


def _facts(findings: Findings) -> list[Fact]:
    counts, alpha = findings.verdict, findings.alpha
    best, all_images = int(findings.order[-1]), int(counts.count.sum())
    tied = int((counts.accuracy == counts.accuracy[best]).sum()) - 1
    equal = f" (and {formatting.count(tied)} more)" if tied else ""
    kind = findings.all_label.capitalize()
    facts = [
        _fact(f"{kind}, all images", metric_intervals.overall(counts, alpha), all_images),
        _fact(f"{kind}, worst fifth", metric_intervals.worst_fifth(counts, alpha), all_images),
        _fact(f"Best: {findings.names[best]}{equal}", findings.reading(best), int(counts.count[best])),
        _fact("Class gap (MCD)", metric_intervals.discrepancy(counts, alpha), all_images, unit="points"),
        _variance_fact(metric_intervals.variance(counts, alpha), all_images),
    ]
    if CLEAN in findings.counts and findings.attacked:
        clean = findings.counts[CLEAN]
        facts.insert(0, _fact("Clean, all images", metric_intervals.overall(clean, alpha), int(clean.count.sum())))
    return facts


def _fact(name: str, estimate: Estimate, images: int, unit: str = "%") -> Fact:
    span = f"{formatting.span(estimate.low, estimate.high)}, n {formatting.count(images)}"
    return Fact(name, formatting.bare_percent(estimate.value), unit, span)


def _variance_fact(estimate: Estimate, images: int) -> Fact:
    span = f"{formatting.squared_span(estimate.low, estimate.high)}, n {formatting.count(images)}"
    return Fact("Class variance (CV)", formatting.squared_percent(estimate.value), "%²", span)


def _bars(findings: Findings) -> dict[str, Any]:
    hidden = len(findings.order) - MOST_BARS
    caption = (
        f"Accuracy in percent; the line at the end of a bar is its {formatting.level(findings.alpha)} interval, the "
        f"dashed line the accuracy over all images. The lowest {findings.singular} of each panel is set off (of equal "
        "ones the first)."
    )
    if findings.meta.cascade:
        caption += f" {CUMULATIVE_NOTE}"
    if len(findings.suspects) > 1:
        caption += f" Coloured names: the {findings.plural} that may be the weakest."
    if hidden > 0:
        caption += (
            f" Shown are the {MOST_BARS} {findings.plural} that are lowest "
            f"{'under every attack' if findings.attacked else 'on clean images'}, of {len(findings.order)}; the lowest "
            "of another panel may not be among them."
        )
    return {
        "svg": markup(findings.bars(findings.main)),
        "caption": caption,
        "members": markup(findings.bars(findings.members)) if findings.members and hidden <= 0 else None,
    }


def _confusions(audit: Audit, findings: Findings) -> list[dict[str, Any]]:
    """The matrix under all attacks; for few classes also those of the strongest attack and of the clean images."""
    small = len(findings.meta.class_names) <= MOST_CELLS
    others = [name for name in (findings.strongest, CLEAN) if name in findings.confusions and small]
    if list(findings.meta.attacks) == [CLEAN]:
        others = []
    return [_confusion(audit, findings, name, folded=name != ALL) for name in (ALL, *others) if name]


def _confusion(audit: Audit, findings: Findings, name: str, *, folded: bool) -> dict[str, Any]:
    condensed, note = findings.confusions[name].condensed()
    shown = condensed.grouped()
    if name == ALL:
        order = formatting.listed([label for label in findings.meta.attacks if label in audit.attacks])
        about = (
            f"An image counts for its first wrong prediction, in the order {order}; on the diagonal are the images "
            "that are classified correctly under all of them."
            if findings.attacked
            else "Predictions on the images themselves."
        )
    else:
        about = f"Shown: {audit.shows(name)}."
    halves = "Left: percent of each class. Right: counts of misclassified images."
    frames = "Frames hold the classes of a superclass." if shown.groups is not None else ""
    return {
        "title": "Under all attacks together"
        if name == ALL and findings.attacked
        else "Clean images"
        if name in {ALL, CLEAN}
        else f"Under {name}",
        "rates": markup(heatmap(shown, "rates")),
        "errors": markup(heatmap(shown, "errors")),
        "caption": " ".join(part for part in (halves, about, frames, note) if part),
        "folded": folded,
    }


def _pictures(audit: Audit, findings: Findings) -> dict[str, Any] | None:
    examples = example_images(audit, findings)
    if examples is None:
        return None
    found, factor = triples(examples)
    name = findings.names[findings.worst]
    return {
        "triples": found,
        "intro": (
            f"Images of {name} that are classified correctly without an attack, the same images attacked, and the "
            f"difference, amplified {factor:.{0 if factor >= 10 else 1}f} times around grey."
        ),
    }


def _training(found: Curves | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "intro": " ".join(found.sentences),
        "curves": [markup(drawing) for drawing in found.drawings.values()],
        "caption": found.caption,
    }


def _diets(context: Context, classes: Table) -> Iterator[Context]:
    """The page whole, and then with less and less of what weighs most; ``classes`` is the whole table of classes."""
    yield context
    first = list(context["confusions"])[:1]
    yield {**context, "confusions": first}
    yield {**context, "confusions": first, "classes": classes.first(50)}
    yield {**context, "confusions": [], "pictures": None, "training": None, "classes": classes.first(50)}
