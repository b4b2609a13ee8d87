"""Sentences of an audit's page, computed from the counts of an `AuditSummary` alone.

``tests/reporting/test_statements.py`` recomputes every sentence from the rows of random outcomes; a new sentence needs
a recomputation there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.reporting import formatting
from classwise.reporting.audit_summary import AuditSummary
from classwise.reporting.figures.heatmap import Confusion
from classwise.stats.confusion import superclass_leakage
from classwise.stats.intervals import wilson
from classwise.stats.metrics import overall_micro
from classwise.stats.worst_class import above_any

CLEAN_SHARE = 0.5
"""Smallest share of clean errors among the errors of the worst class at which the headline reports clean accuracy."""


class Headline(NamedTuple):
    """The first line of a page: ``before``, the highlighted name, ``after``."""

    before: str
    name: str
    after: str


def headline(summary: AuditSummary) -> Headline:
    """Overall and worst-class accuracy, with the names of all classes that tie for the lowest accuracy."""
    names = formatting.listed([summary.names[label] for label in summary.lowest])
    counts, one, number = summary.under_all, summary.singular, len(summary.lowest)
    lowest = formatting.percent(float(counts.accuracy[summary.worst]))
    kind = f"{summary.accuracy_kind} accuracy"
    overall = f"{formatting.percent(overall_micro(counts))} {kind} overall"
    if len(summary.order) == 1:
        before = f"{lowest} {kind} on the only {one} with images"
    elif number == len(summary.order):
        before = f"{lowest} {kind} on each of {formatting.count(number)} {summary.plural}"
    elif number > 1:
        before = f"{overall}, {lowest} on each of the {formatting.count(number)} worst {summary.plural}"
    else:
        before = f"{overall}, {lowest} on the worst {one}"
    clean = dominant_clean_accuracy(summary)
    after = ")" if clean is None else f"), whose clean accuracy is {formatting.percent(clean)}"
    return Headline(f"{before} (", names, after)


def dominant_clean_accuracy(summary: AuditSummary) -> float | None:
    """Clean accuracy of the worst classes if at least `CLEAN_SHARE` of their errors are clean errors, else None.

    Also None without clean predictions, attacks or errors, or if the clean counts are of other images.
    """
    if CLEAN not in summary.counts or not summary.attacked:
        return None
    clean, robust = summary.counts[CLEAN], summary.under_all
    lowest = np.asarray(summary.lowest)
    if not np.array_equal(clean.count[lowest], robust.count[lowest]):
        return None
    errors, clean_errors = int(robust.wrong[lowest].sum()), int(clean.wrong[lowest].sum())
    if not errors or clean_errors < CLEAN_SHARE * errors:
        return None
    return float(clean.correct[lowest].sum() / clean.count[lowest].sum())


def lead(summary: AuditSummary) -> str:
    """Numbers of images and of correctly classified images of the worst class, or of all classes that tie for it."""
    lowest = np.asarray(summary.lowest)
    correct, images = (int(values[lowest].sum()) for values in (summary.under_all.correct, summary.under_all.count))
    verb = "is" if correct == 1 else "are"
    of = f"this {summary.singular}" if len(lowest) == 1 else f"these {summary.plural}"
    condition = "under every attack" if summary.attacked else "(no attack was run)"
    return (
        f"Of the {formatting.counted(images, 'image')} of {of}, {formatting.count(correct)} {verb} classified "
        f"correctly {condition}."
    )


def uncertainty(summary: AuditSummary) -> list[str]:
    """Sentences on which classes may be the worst on new images, and on the lowest accuracy."""
    estimates, one, many = summary.minimum, summary.singular, summary.plural
    classes = len(summary.order)
    if classes == 1:
        return [f"Only one {one} has images, so no {many} are compared."]
    number, name = formatting.count(classes), formatting.lowest_interval_name(summary.alpha, summary.kind)
    split = (
        f" Sample splitting ({one} chosen on one half of the images, accuracy measured on the other half) gives "
        f"{formatting.percent(estimates.split)}, which is biased upwards."
        if estimates.split > estimates.plug_in
        else ""
    )
    size = (
        f"The plug-in estimate, {formatting.percent(estimates.plug_in)}, is the minimum of {number} estimates and "
        f"therefore biased downwards.{split} The {name}, is {formatting.span(estimates.low, estimates.high)}\u00a0%; "
        f"its upper end is corrected for {number} {many}."
    )
    return [_worst_candidates(summary), size]


def _worst_candidates(summary: AuditSummary) -> str:
    candidates = [summary.names[label] for label in summary.worst_candidates]
    level, classes = formatting.level(summary.alpha), len(summary.order)
    others = [label for label in summary.order if label not in summary.worst_candidates]
    start = f"With {level} confidence, the worst {summary.singular} on new images is "
    start += f"one of {formatting.count(len(candidates))}: " if len(candidates) > 1 else ""
    start += formatting.listed(candidates)
    if not others:
        return f"{start}. No difference between two of them is significant."
    others_are = (
        f"The other {summary.singular} is"
        if len(others) == 1
        else f"Each of the other {formatting.count(len(others))} is"
    )
    if above_any(summary.under_all, others, summary.worst_candidates, summary.alpha).all():
        than = "it" if len(candidates) == 1 else "at least one of these"
        return f"{start}. {others_are} significantly more accurate than {than}."
    assert classes > 2, "of two classes the other can only be above the candidate"
    return f"{start}. {others_are} significantly more accurate than at least one {summary.singular} of lower accuracy."


def confusion_sentences(summary: AuditSummary) -> list[str]:
    """Sentences on the errors: of the worst class, within superclasses, and images without a prediction."""
    confusion = summary.confusions[ALL]
    sentences = [misclassifications(confusion, summary.worst, summary.alpha)] if summary.kind == "class" else []
    sentences += [within_superclass(confusion, summary.alpha), without_prediction(summary)]
    if not confusion.wrong and not int(summary.under_all.wrong.sum()):
        sentences.append("No image is misclassified.")
    return [sentence for sentence in sentences if sentence]


def misclassifications(confusion: Confusion, label: int, alpha: float = 0.05, most: int = 3) -> str:
    """The ``most`` frequent first misclassifications of a class; empty if there is none."""
    row = confusion.row(label).copy()
    images = int(confusion.images[label])
    row[label] = 0
    predicted = [int(other) for other in np.argsort(-row, kind="stable") if row[other]]
    if not predicted:
        return ""
    others = predicted[:most]
    shares = [f"{confusion.names[other]} ({_measured(int(row[other]), images, alpha)})" for other in others]
    start = "Most frequent first misclassifications" if len(predicted) > len(others) else "First misclassifications"
    of_images = formatting.counted(images, "image")
    return f"{start} of the {of_images} of {confusion.names[label]}: {formatting.listed(shares)}."


def within_superclass(confusion: Confusion, alpha: float = 0.05) -> str:
    """The share of errors within the true superclass, and its expectation; empty without superclasses or errors."""
    wrong = confusion.wrong
    if confusion.groups is None or not wrong:
        return ""
    inside, chance = superclass_leakage(confusion.matrix, confusion.groups)
    low, high = wilson(round(inside * wrong), wrong, alpha)
    verb = "is" if round(inside * wrong) == 1 else "are"
    return (
        f"Of {formatting.counted(wrong, 'error')} over all classes, {formatting.percent(inside)} {verb} within the "
        f"true superclass ({formatting.level(alpha)} interval {formatting.span(float(low), float(high))}\u00a0%); "
        f"expected if errors were uniform over the other classes: {formatting.percent(chance)}."
    )


def without_prediction(summary: AuditSummary) -> str:
    """The number of misclassified images without a prediction; empty if there is none."""
    number = int(summary.under_all.wrong.sum()) - summary.confusions[ALL].wrong
    if not number:
        return ""
    verb = "has" if number == 1 else "have"
    return (
        f"{formatting.counted(number, 'misclassified image')} {verb} no prediction (non-finite logits) and "
        f"{'is' if number == 1 else 'are'} not counted in the matrices."
    )


def _measured(part: int, whole: int, alpha: float) -> str:
    low, high = wilson(part, whole, alpha)
    return f"{formatting.percent(part / whole)}, {formatting.span(float(low), float(high))}"
