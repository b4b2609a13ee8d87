"""Sentences of an audit's page. Each function returns text that follows from the counts of a `Findings` alone.

``tests/reporting/test_statements.py`` recomputes every sentence from the rows of random outcomes; a sentence that is
added here needs its recomputation there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.reporting import formatting
from classwise.reporting.figures.heatmap import Confusion
from classwise.reporting.findings import Findings
from classwise.stats.confusion import superclass_leakage
from classwise.stats.intervals import wilson
from classwise.stats.worst_class import above_any

CLEAN_SHARE = 0.5
"""From this share of clean errors among the errors of the worst class on, the headline states its clean accuracy."""


class Headline(NamedTuple):
    """The first line of a page: ``before``, the name that is set off, ``after``."""

    before: str
    name: str
    after: str


def headline(findings: Findings) -> Headline:
    """Name the worst class, or all classes that tie for the lowest accuracy, with the accuracy."""
    names = formatting.listed([findings.names[label] for label in findings.lowest])
    counts, one, number = findings.verdict, findings.singular, len(findings.lowest)
    accuracy = formatting.percent(float(counts.accuracy[findings.worst]))
    if len(findings.order) == 1:
        before = f"The only {one} with images is "
    elif number == len(findings.order):
        before = f"All {formatting.count(number)} {findings.plural} are equally accurate: "
    elif number > 1:
        before = f"The {formatting.count(number)} weakest {findings.plural} are equally accurate: "
    else:
        before = f"The weakest {one} is "
    after = f": {accuracy}" if findings.attacked else f": {accuracy} on clean images"
    clean = wrong_when_clean(findings)
    if clean is not None:
        after = f": {accuracy} under every attack, and {formatting.percent(clean)} on clean images"
    return Headline(before, names, after)


def wrong_when_clean(findings: Findings) -> float | None:
    """The clean accuracy of the lowest classes if at least half of their errors are clean errors, else None.

    None as well without clean predictions or attacks, without an error, or if the two are not of the same images.
    """
    if CLEAN not in findings.counts or not findings.attacked:
        return None
    clean, robust = findings.counts[CLEAN], findings.verdict
    lowest = np.asarray(findings.lowest)
    if not np.array_equal(clean.count[lowest], robust.count[lowest]):
        return None
    errors, before = int(robust.wrong[lowest].sum()), int(clean.wrong[lowest].sum())
    if not errors or before < CLEAN_SHARE * errors:
        return None
    return float(clean.correct[lowest].sum() / clean.count[lowest].sum())


def lead(findings: Findings) -> str:
    """Count the images behind the headline, and those that are classified correctly under every attack."""
    lowest = np.asarray(findings.lowest)
    right, images = (int(values[lowest].sum()) for values in (findings.verdict.correct, findings.verdict.count))
    verb = "is" if right == 1 else "are"
    whose = "Of its" if len(lowest) == 1 else "Of their"
    against = "against every attack" if findings.attacked else "(no attack was run)"
    return (
        f"{whose} {formatting.counted(images, 'image')}, {formatting.count(right)} {verb} still classified correctly "
        f"{against}."
    )


def certainty(findings: Findings) -> list[str]:
    """State which classes may be the worst on new images, and how bad the worst class is."""
    found, one, many = findings.minimum, findings.singular, findings.plural
    classes = len(findings.order)
    if classes == 1:
        return [f"Only one {one} has images, so it is not compared with any other."]
    level, number = formatting.level(findings.alpha), formatting.count(classes)
    split = (
        f" Choosing the {one} on one half of the images and scoring it on the other half gives "
        f"{formatting.percent(found.split)}, which tends to be too high."
        if found.split > found.plug_in
        else ""
    )
    size = (
        f"As the lowest of {number} estimates, {formatting.percent(found.plug_in)} tends to be too low.{split} "
        f"Whichever {one} is the weakest, its accuracy lies within {formatting.span(found.low, found.high)}\u00a0% "
        f"({level}, all {number} {many} covered at once)."
    )
    return [_suspects(findings), size]


def _suspects(findings: Findings) -> str:
    suspects = [findings.names[label] for label in findings.suspects]
    level, classes = formatting.level(findings.alpha), len(findings.order)
    others = [label for label in findings.order if label not in findings.suspects]
    if len(suspects) == 1:
        start = f"On new images the weakest {findings.singular} is {suspects[0]} ({level} confidence)"
    else:
        start = (
            f"On new images the weakest {findings.singular} may be any of {formatting.count(len(suspects))} ({level} "
            f"confidence): {formatting.listed(suspects)}"
        )
    if not others:
        return f"{start}. None of them is significantly above another."
    others_are = f"The other {findings.singular} is" if len(others) == 1 else f"Each of the other {len(others)} is"
    if above_any(findings.verdict, others, findings.suspects, findings.alpha).all():
        if len(suspects) == 1:
            return f"{start}. {others_are} significantly above it."
        return f"{start}. {others_are} significantly above at least one of these."
    assert classes > 2, "of two classes the other can only be above the suspect"
    return f"{start}. {others_are} significantly above at least one lower {findings.singular}."


def mistakes(findings: Findings) -> list[str]:
    """What the worst class is taken for, whether errors stay inside the superclass, images without a prediction."""
    confusion = findings.confusions[ALL]
    found = [taken_for(confusion, findings.worst, findings.alpha)] if findings.kind == "class" else []
    found += [leakage(confusion, findings.alpha), without_prediction(findings)]
    if not confusion.wrong and not int(findings.verdict.wrong.sum()):
        found.append("No image is misclassified.")
    return [sentence for sentence in found if sentence]


def taken_for(confusion: Confusion, label: int, alpha: float = 0.05, most: int = 3) -> str:
    """The most frequent wrong predictions of a class; empty if there is none."""
    row = confusion.row(label).copy()
    images = int(confusion.images[label])
    row[label] = 0
    predicted = [int(other) for other in np.argsort(-row, kind="stable") if row[other]]
    if not predicted:
        return ""
    others = predicted[:most]
    shares = [f"{confusion.names[other]} ({_measured(int(row[other]), images, alpha)})" for other in others]
    often = "most often first taken for" if len(predicted) > len(others) else "first taken for"
    of_images = formatting.counted(images, "image")
    return f"Of its {of_images}, {confusion.names[label]} is {often} {formatting.listed(shares)}."


def leakage(confusion: Confusion, alpha: float = 0.05) -> str:
    """Whether errors stay inside the superclass, beside chance; empty without superclasses or errors."""
    wrong = confusion.wrong
    if confusion.groups is None or not wrong:
        return ""
    inside, chance = superclass_leakage(confusion.matrix, confusion.groups)
    low, high = wilson(round(inside * wrong), wrong, alpha)
    stay = "stays" if round(inside * wrong) == 1 else "stay"
    return (
        f"Of {formatting.counted(wrong, 'error')} of all classes, {formatting.percent(inside)} {stay} inside the "
        f"superclass ({formatting.level(alpha)} interval {formatting.span(float(low), float(high))}\u00a0%); if errors "
        f"fell on all other classes alike, {formatting.percent(chance)} would."
    )


def without_prediction(findings: Findings) -> str:
    """How many misclassified images have no prediction at all; empty if none."""
    number = int(findings.verdict.wrong.sum()) - findings.confusions[ALL].wrong
    if not number:
        return ""
    verb = "has" if number == 1 else "have"
    return (
        f"{formatting.counted(number, 'misclassified image')} {verb} no prediction (logits that are not finite) and "
        f"{'is' if number == 1 else 'are'} in no cell below."
    )


def _measured(part: int, whole: int, alpha: float) -> str:
    low, high = wilson(part, whole, alpha)
    return f"{formatting.percent(part / whole)}, {formatting.span(float(low), float(high))}"
