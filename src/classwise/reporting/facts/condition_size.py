"""How many images decide a condition on an end of an interval, in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.stats.counts import IntArray
from classwise.stats.intervals import sidak
from classwise.stats.power import images_to_exceed, least_accuracy, rounded_up


def size_advice(audit: Audit, threshold: Threshold) -> str:
    """The images with which a condition that a complete audit meets could be false; empty if more would not help.

    Args:
        audit: the audit, by whose intervals the build fails.
        threshold: a condition on the end of an interval, such as ``worst(all).low < 0.9``.

    Returns:
        The smallest number with which it can be false at all, else the number with which it is in 80 % of audits if the
        accuracy is as measured.
    """
    if not threshold.needs_images or not audit.bounds(threshold.attack).complete:
        return ""
    counts = audit.counts(threshold.attack)
    label = _label(threshold, audit.group_names)
    if impossible := _impossible(threshold, counts.count, audit.group_names, audit.alpha, audit.group):
        return impossible
    place = label if label is not None else slice(None) if _overall(threshold) else int(np.nanargmin(counts.accuracy))
    right, images = (int(values[place].sum()) for values in (counts.correct, counts.count))
    measured: ArrayLike = _oriented(threshold, right / images)
    if threshold.measure == "worst.low":  # the bounds of all classes must exceed the limit
        measured = counts.accuracy[counts.count > 0]
    alpha = _level(threshold, counts.count, audit.alpha)
    needed = images_to_exceed(measured, _oriented(threshold, float(threshold.limit)), 0.8, alpha)
    if needed is None or needed <= images:
        return ""
    per = "" if _overall(threshold) else f" a {formatting.singular(audit.group)}"
    return f"at this accuracy, about {formatting.count(rounded_up(needed))} images{per} pass with a power of 80 %"


def _level(threshold: Threshold, count: IntArray, alpha: float) -> float:
    """The level of the interval of one class; the upper end of ``worst`` is the lowest of those of all classes."""
    return 2 * sidak(alpha / 2, int((count > 0).sum())) if threshold.measure == "worst.high" else alpha


def size_before(threshold: Threshold, count: IntArray, names: tuple[str, ...], alpha: float = 0.05) -> str:
    """Whether so many images can decide a condition, before an audit; empty for one on no end of an interval.

    Args:
        threshold: the condition.
        count: (C,) images of each class.
        names: of the classes.
        alpha: 1 minus the coverage of the intervals.
    """
    if not threshold.needs_images or not count.any():
        return ""
    label = _label(threshold, names)
    if impossible := _impossible(threshold, count, names, alpha, None):
        return impossible
    images = int(count.sum() if _overall(threshold) else count[count > 0].min() if label is None else count[label])
    level = _level(threshold, count, alpha)
    accuracy = _oriented(threshold, least_accuracy(images, _oriented(threshold, float(threshold.limit)), 0.8, level))
    side = "at least" if threshold.measure.endswith("low") else "at most"
    alone = _overall(threshold) or label is not None
    of, whose, others = ("", "", "") if alone else (" a class", " of the worst class", " and no other class is near it")
    return (
        f"{formatting.counted(images, 'image')}{of} pass with a power of 80 % if the true accuracy{whose} is {side} "
        f"{formatting.bare_percent(accuracy)} %{others}"
    )


def _overall(threshold: Threshold) -> bool:
    return threshold.group is None and threshold.measure.startswith("overall")


def _label(threshold: Threshold, names: tuple[str, ...]) -> int | None:
    return None if threshold.group is None else names.index(threshold.group)


def _oriented(threshold: Threshold, share: float) -> float:
    """The share, or 1 minus it for an upper end."""
    return share if threshold.measure.endswith("low") else 1 - share


def _impossible(threshold: Threshold, count: IntArray, names: tuple[str, ...], alpha: float, kind: str | None) -> str:
    """Why the condition is met whatever the outcomes on these images are; empty if it is not."""
    if (found := threshold.least_images(count, names, alpha)) is None:
        return ""
    (images, least), end, label = found, threshold.best_end(count, names, alpha), _label(threshold, names)
    which, side = ("correct", "lower") if threshold.measure.endswith("low") else ("misclassified", "upper")
    per = "" if _overall(threshold) or label is not None else f" a {formatting.singular(kind)}"
    return (
        f"with {formatting.counted(images, 'image')}{per} the {side} end is {threshold.shown(end)} even if all are "
        f"{which}; at least {formatting.count(least)} images{per} are required"
    )
