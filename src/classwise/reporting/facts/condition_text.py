"""Results of conditions in words: the same on the terminal, in files for build servers and in tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.criteria.thresholds import REQUIRES, UNITS, Threshold
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.facts.condition_size import size_advice
from classwise.stats import Unit
from classwise.stats.intervals import clopper_pearson, proportion_interval, sidak
from classwise.stats.metrics.lowest import worst_class
from classwise.stats.power import images_to_exclude_loss

_REQUIRED = {"<": "at least", "<=": "more than", ">": "at most", ">=": "less than"}
"""What a build requires for each comparison, which fails it."""


def decision_text(text: str, *, fails: bool) -> str:
    """A condition and whether it is true, in words, since a condition of ``--fail-if`` is passed if it is false.

    Args:
        text: a key of `Threshold.parse_all`.
        fails: whether it fails the build.

    Example:
        >>> decision_text("worst(all) < 0.2", fails=False), decision_text("requires worst(all) >= 0.2", fails=False)
        ('fails if worst(all) < 0.2, which is false', 'requires worst(all) >= 0.2, which is true')
    """
    return f"{case_name(text)}, which is {'true' if fails is not text.startswith(REQUIRES) else 'false'}"


def case_name(text: str) -> str:
    """The name of a condition where only its result is shown beside it: ``fails if worst(all) < 0.2``."""
    return text if text.startswith(REQUIRES) else f"fails if {text}"


def result_text(audit: Audit, threshold: Threshold) -> str:
    """The measured value of a condition with the number of images and the interval, and the required value.

    If the condition is met because there are few images, also how many would do.

    Raises:
        ClasswiseError: see `Threshold.bounds`.

    Example:
        >>> import classwise as cw
        >>> from classwise.auditing.criteria.thresholds import Threshold
        >>> labels = [0] * 50 + [1] * 50
        >>> outcomes = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0] * 80 + [1] * 20})
        >>> result_text(cw.Audit(outcomes), Threshold.parse("overall(pgd) < 80%"))
        'overall under pgd is 70.0 % (100 images; 95 % interval 60.0–78.8 %); required: at least 80 %'
    """
    low, high = threshold.bounds(audit)
    if low == high:
        value = f"is {threshold.shown(low)} ({_basis(audit, threshold)})"
    else:
        between = "" if math.isnan(low) else f": {threshold.shown(low)} to {threshold.shown(high)}"
        value = f"depends on images not evaluated{between}"
    subject = threshold.measure
    if threshold.group is not None:
        subject = f"{'lower end' if subject == 'worst.low' else subject} of {threshold.group}"
    advice = size_advice(audit, threshold) if threshold.decide(audit) else ""
    return f"{subject} under {threshold.attack} {value}; required: {_required(threshold)}{advice and f'; {advice}'}"


def change_text(
    comparison: Comparison, method: str, threshold: ChangeThreshold, losses: Mapping[str, float] | None = None
) -> str:
    """The measured change of a method against the first one, with the number of images and the interval.

    Args:
        comparison: of the methods.
        method: one of them.
        threshold: the condition.
        losses: the smallest losses with which a condition on the end of an interval would be met, which are stated
            where it is not (`ChangeThreshold.smallest_losses`).

    Raises:
        ClasswiseError: see `ChangeThreshold.value`.
    """
    met = threshold.holds(comparison, method)
    detectable = _smallest_loss(threshold, losses or {}, met=met)
    comparison = comparison.under(threshold.attack)
    pair = comparison.pair(method, comparison.names[0])
    decisive = threshold.of_deciding_class(comparison, method)
    of = "" if decisive is threshold else f" of {decisive.group}"
    threshold = decisive
    measure = threshold.measure.partition(".")[0]
    images = int(pair.classes["n"].sum())
    change = low = high = math.nan
    if threshold.group is not None:
        row = pair.classes.to_dict("index")[threshold.group]
        images, change, low, high = int(row["n"]), row["difference"], row["low"], row["high"]
    elif measure in ("overall", "worst"):
        change, low, high = pair.overall if measure == "overall" else pair.minima
    at_end = f" around a change of {formatting.points(change, sign=True)}" if "." in threshold.measure else ""
    interval = f"{_level(comparison.alpha)} interval {formatting.signed_span(low, high)} points{at_end}; "
    basis = f"{formatting.counted(images, 'image')}{of}; {'' if math.isnan(low) else interval}"
    value = threshold.shown(threshold.value(comparison, method))
    end = {"low": "lower end ", "high": "upper end "}.get(threshold.measure.partition(".")[2], "")
    if met and end == "lower end " and measure != "worst" and pair.seeds == (1, 1):
        one, other = (
            comparison.audits[name][0].outcomes.correct(comparison.attack) for name in (pair.first, pair.second)
        )
        different = (int((one != other).sum()) + 0.5) / (len(one) + 1)
        classes, alpha = len(pair.classes), comparison.alpha
        if not of:  # the interval of a class is simultaneous over the classes, one of which must hold
            classes, alpha = 1, sidak(alpha, 1 if threshold.group is None else classes)
        detectable += _images_without_change(threshold, different, images, classes, alpha)
    return f"{end}{value}; {basis}required: {_required(threshold)}{detectable}"


def _images_without_change(
    threshold: ChangeThreshold, different: float, images: int, classes: int, alpha: float
) -> str:
    """The images with which a lower limit on a change would hold with a power of 80 %, if the accuracy does not change.

    Args:
        threshold: the condition, for ``any`` on the deciding class.
        different: fraction of the images with different outcomes.
        images: number of images now.
        classes: number of classes, all of which must hold, for ``any``; else 1.
        alpha: 1 minus the coverage of the intervals of all classes together.
    """
    if not -1 < threshold.limit < 0:
        return ""
    number = images_to_exclude_loss(different, -float(threshold.limit), classes, alpha=alpha)
    if number is None or number <= images:
        return ""
    of = " a class" if classes > 1 else "" if threshold.group is None else f" of {threshold.group}"
    return f"; about {formatting.counted(number, 'image')}{of} would pass in 80 % of cases if nothing changes"


def _smallest_loss(threshold: ChangeThreshold, losses: Mapping[str, float], *, met: bool) -> str:
    """The smallest loss that could have met a condition, or that none is necessary."""
    smallest = min(losses.values(), default=math.nan)
    if met:
        return "" if smallest else "; with these images it also fails without any change"
    if not threshold.measure.endswith("high") or math.isnan(smallest):
        return ""
    measure = threshold.measure.partition(".")[0]
    where = {"any": " in one class", "overall": " overall", "worst": " of the worst class"}.get(measure, "")
    of = where if threshold.group is None else f" of {threshold.group}"
    if math.isinf(smallest):
        return f"; no loss{of} could have failed this with these images"
    return f"; smallest loss{of} that could have failed this: {formatting.bare_percent(smallest)} points"


def _required(threshold: Threshold | ChangeThreshold) -> str:
    return f"{_REQUIRED[threshold.comparison]} {threshold.shown_limit}"


class Measured(NamedTuple):
    """What a condition is computed from.

    Attributes:
        images: number of images; of an incomplete audit of those whose verdict is known.
        correct: number of correct predictions, for an accuracy over images.
        group: the worst class, for the worst-class accuracy.
        low: lower end of the interval; NaN without one.
        high: upper end.
        interval: name of the interval.
    """

    images: int
    correct: int | None = None
    group: str = ""
    low: float = math.nan
    high: float = math.nan
    interval: str = ""


def measured(audit: Audit, threshold: Threshold) -> Measured:
    """The number of images that the measure of a condition is computed from, and its interval."""
    bounded, measure = audit.bounds(threshold.attack), threshold.measure.partition(".")[0]
    if not bounded.complete:
        known = slice(None) if threshold.group is None else audit.group_names.index(threshold.group)
        return Measured(int(bounded.judged[known].sum()))
    counts = audit.counts(threshold.attack)
    group, name, label = "", f"{_level(audit.alpha)} interval", None
    low = high = math.nan
    if threshold.group is not None:
        label = audit.group_names.index(threshold.group)
        interval = clopper_pearson if threshold.measure.startswith("worst") else proportion_interval
        low, high = (float(end[label]) for end in interval(counts.correct, counts.count, audit.alpha))
    elif threshold.metric is not None:
        _, low, high = threshold.metric.estimate(audit.inputs(threshold.attack), audit.alpha)
    if threshold.group is None and measure == "worst":
        if not threshold.measure.endswith("split"):  # which is of several classes
            label = worst_class(counts.accuracy).label
            group = audit.group_names[label]
        name = formatting.lowest_interval_name(audit.alpha, audit.group)
    of = slice(None) if label is None else label
    images, correct = int(counts.count[of].sum()), int(counts.correct[of].sum())
    known = label is not None or measure == "overall"
    return Measured(images, correct if known else None, group, low, high, name)


def _basis(audit: Audit, threshold: Threshold) -> str:
    """The number of images that a measure is computed from, and its interval."""
    found = measured(audit, threshold)
    images = formatting.counted(found.images, "image")
    if not found.interval:
        return f"{images} with a result"
    unit: Unit = "fraction" if threshold.metric is None else threshold.metric.unit
    ends = formatting.span_in_unit(found.low, found.high, unit)
    own = threshold.metric is not None and threshold.metric.interval is None
    absent = "; no interval" if own else ""
    interval = absent if math.isnan(found.low) else f"; {found.interval} {ends}{UNITS[unit][1]}"
    return f"{images}{f' of {found.group}' if found.group else ''}{interval}"


def _level(alpha: float) -> str:
    return formatting.level(alpha).replace("\N{NO-BREAK SPACE}", " ")
