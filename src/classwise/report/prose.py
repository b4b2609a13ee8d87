"""What a page says in sentences."""

from __future__ import annotations

import numpy as np

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.report import wording
from classwise.report.figures.heatmap import Confusion
from classwise.report.findings import Findings
from classwise.stats.confusion import superclass_leakage
from classwise.stats.intervals import wilson


def lead(findings: Findings) -> str:
    """What the headline's number is a share of."""
    right, images = (int(values[findings.worst]) for values in (findings.verdict.correct, findings.verdict.count))
    verb = "is" if right == 1 else "are"
    attacks = [name for name in findings.meta.applicable if name != CLEAN]
    against = "against every attack" if attacks else "(no attack was run)"
    return f"Of its {wording.count(images)} images, {wording.count(right)} {verb} still classified correctly {against}."


def certainty(findings: Findings) -> list[str]:
    """How sure it is which class is the worst, and how bad the worst class is."""
    found, suspects = findings.minimum, [findings.names[label] for label in findings.suspects]
    one, many = findings.singular, findings.plural
    if len(suspects) == 1:
        which = (
            f"On new images no other {one} can be expected below {suspects[0]}: all of them are significantly above it."
        )
    else:
        which = (
            f"On new images the weakest {one} may be any of {len(suspects)}: {wording.listed(suspects)}. "
            f"All other {many} are significantly above one of these."
        )
    split = (
        f" Choosing the {one} on one half of the images and scoring it on the other half gives "
        f"{wording.percent(found.split)}, a little too high on average."
        if not np.isnan(found.split)
        else ""
    )
    size = (
        f"The {wording.percent(found.plug_in)} was chosen for being the lowest, so it is a little too low on "
        f"average.{split} Whichever {one} is the weakest, its accuracy lies within "
        f"{wording.span(found.low, found.high)}\u00a0% ({wording.level(findings.alpha)}, all {many} covered at once)."
    )
    return [which, size]


def mistakes(findings: Findings) -> list[str]:
    """What the worst class is taken for, and whether errors stay inside the superclass."""
    confusion = findings.confusions[ALL]
    found = [taken_for(confusion, findings.worst, findings.alpha)] if findings.kind == "class" else []
    return [sentence for sentence in (*found, leakage(confusion, findings.alpha)) if sentence]


def taken_for(confusion: Confusion, label: int, alpha: float = 0.05, most: int = 3) -> str:
    """The most frequent wrong predictions of a class; empty if there is none."""
    row = confusion.row(label).copy()
    images = int(confusion.images[label])
    row[label] = 0
    others = [int(other) for other in np.argsort(-row, kind="stable")[:most] if row[other]]
    if not others:
        return ""
    shares = [f"{confusion.names[other]} ({_measured(int(row[other]), images, alpha)})" for other in others]
    return (
        f"Of its {wording.count(images)} images, {confusion.names[label]} is first taken for {wording.listed(shares)}."
    )


def leakage(confusion: Confusion, alpha: float = 0.05) -> str:
    """Whether errors stay inside the superclass, beside chance; empty without superclasses or errors."""
    wrong = confusion.wrong
    if confusion.groups is None or not wrong:
        return ""
    inside, chance = superclass_leakage(confusion.matrix, confusion.groups)
    low, high = wilson(round(inside * wrong), wrong, alpha)
    return (
        f"Of {wording.count(wrong)} errors of all classes, {wording.percent(inside)} stay inside the superclass "
        f"({wording.level(alpha)} interval {wording.span(float(low), float(high))}\u00a0%); if errors fell on all "
        f"other classes alike, {wording.percent(chance)} would."
    )


def _measured(part: int, whole: int, alpha: float) -> str:
    low, high = wilson(part, whole, alpha)
    return f"{wording.percent(part / whole)}, {wording.span(float(low), float(high))}"
