"""Facts that an audit's page states, and sentences of them.

The facts are computed from the counts of an `AuditSummary`; a sentence is a function of the facts alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY, cross_entropy_only
from classwise.reporting import formatting
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.figures.heatmap import Confusion
from classwise.stats.confusion import confusion_rates, superclass_leakage
from classwise.stats.intervals import Estimate, proportion_estimate
from classwise.stats.metrics import overall_micro
from classwise.stats.metrics.asymmetry import asymmetry_estimate, max_asymmetry
from classwise.stats.metrics.targets import target_share_estimate, target_shares
from classwise.stats.worst_class import above_any

CLEAN_SHARE = 0.5
"""Smallest share of clean errors among the errors of the worst class at which the headline reports clean accuracy."""


@dataclass(frozen=True)
class Asymmetry:
    """The pair of classes whose confusion rates differ most.

    Attributes:
        names: of the class that is misclassified as the other one more often, and of the other one.
        rates: of the first class misclassified as the second one, and of the second as the first.
        gap: the difference of the rates, with the interval of the largest difference, whichever pair it is of.
    """

    names: tuple[str, str]
    rates: tuple[float, float]
    gap: Estimate


@dataclass(frozen=True)
class TargetShares:
    """How the errors are distributed over the predicted classes.

    Attributes:
        names: of the class that is predicted for most errors, and of that for the fewest.
        most: its share of the errors, with the interval of the largest share, whichever class it is of.
        fewest: the smallest share.
    """

    names: tuple[str, str]
    most: Estimate
    fewest: float


@dataclass(frozen=True)
class Commonest:
    """The confusion with the most images.

    Attributes:
        names: of the class, and of the class that it is misclassified as.
        images: the misclassified images.
        of: all images of the class.
        equal: number of other confusions with as many images.
    """

    names: tuple[str, str]
    images: int
    of: int
    equal: int


@dataclass(frozen=True)
class AuditFacts:
    """What the sentences of an audit's page state.

    Attributes:
        kind: ``"class"``, or the name of another grouping.
        attacked: whether at least one attack was run.
        alpha: significance level.
        classes: number of classes with images.
        overall: accuracy over all images under all attacks.
        lowest: names of all classes that tie for the lowest accuracy.
        accuracy: their accuracy.
        images: their number of images.
        correct: how many of these are classified correctly.
        clean: their clean accuracy, see `dominant_clean_accuracy`.
        interval: of the lowest accuracy on new images, whichever class it is.
        split: estimate by sample splitting; NaN without one.
        candidates: names of the classes that may be the worst on new images, lowest accuracy first.
        above_candidates: whether each of the other classes is significantly above at least one candidate.
        misclassified: of the first of ``lowest``: its number of images, and for each class that it is first
            misclassified as the name and the share, most frequent first; None for groups that are not classes.
        commonest: None without errors.
        errors: number of wrong predictions, each image with its first one.
        within: share of errors within the true superclass; None without superclasses or errors.
        chance: this share if errors were uniform over the other classes.
        asymmetry: None without errors, without two classes, for groups that are not classes, or for very many classes.
        targets: None in the same cases.
        wrong: number of misclassified images, including those without a prediction.
    """

    kind: str
    attacked: bool
    alpha: float
    classes: int
    overall: float
    lowest: tuple[str, ...]
    accuracy: float
    images: int
    correct: int
    clean: float | None
    interval: tuple[float, float]
    split: float
    candidates: tuple[str, ...]
    above_candidates: bool
    misclassified: tuple[int, tuple[tuple[str, Estimate], ...]] | None
    commonest: Commonest | None
    errors: int
    within: Estimate | None
    chance: float
    asymmetry: Asymmetry | None
    targets: TargetShares | None
    wrong: int

    @staticmethod
    def of(summary: AuditSummary) -> AuditFacts:
        """Compute the facts of an audit."""
        counts, confusion, alpha = summary.under_all, summary.confusions[ALL], summary.alpha
        lowest, minimum = np.asarray(summary.lowest), summary.minimum
        others = [label for label in summary.order if label not in summary.worst_candidates]
        inside, chance, within = np.nan, np.nan, None
        if confusion.groups is not None and confusion.wrong:
            inside, chance = superclass_leakage(confusion.matrix, confusion.groups)
            within = proportion_estimate(round(inside * confusion.wrong), confusion.wrong, alpha)
        compared = summary.kind == "class" and confusion.wrong > 0 and isinstance(confusion.matrix, np.ndarray)
        return AuditFacts(
            kind=summary.kind,
            attacked=summary.attacked,
            alpha=alpha,
            classes=len(summary.order),
            overall=float(overall_micro(counts)),
            lowest=tuple(summary.names[label] for label in summary.lowest),
            accuracy=float(counts.accuracy[summary.worst]),
            images=int(counts.count[lowest].sum()),
            correct=int(counts.correct[lowest].sum()),
            clean=dominant_clean_accuracy(summary),
            interval=(minimum.low, minimum.high),
            split=minimum.split,
            candidates=tuple(summary.names[label] for label in summary.worst_candidates),
            above_candidates=not others or bool(above_any(counts, others, summary.worst_candidates, alpha).all()),
            misclassified=_misclassified(summary) if summary.kind == "class" else None,
            commonest=commonest(confusion),
            errors=confusion.wrong,
            within=within,
            chance=float(chance),
            asymmetry=_asymmetric(summary) if compared else None,
            targets=_targets(summary) if compared else None,
            wrong=int(counts.wrong.sum()),
        )


def objective_caveat(meta: Meta) -> str:
    """`CROSS_ENTROPY`, if every applicable attack maximises the cross-entropy only; else empty."""
    return CROSS_ENTROPY if cross_entropy_only({label: meta.attacks[label] for label in meta.applicable}) else ""


def caveats(audit: Audit) -> list[str]:
    """What limits the conclusions of an audit beside its warnings: guards without a result, and its objectives."""
    guards = "" if audit.guards is None else audit.guards.sentence
    return [*filter(None, (guards, objective_caveat(audit.outcomes.meta)))]


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


def _misclassified(summary: AuditSummary) -> tuple[int, tuple[tuple[str, Estimate], ...]]:
    confusion, label = summary.confusions[ALL], summary.worst
    row, images = confusion.row(label).copy(), int(confusion.images[label])
    row[label] = 0
    predicted = [int(other) for other in np.argsort(-row, kind="stable") if row[other]]
    return images, tuple(
        (confusion.names[other], proportion_estimate(int(row[other]), images, summary.alpha)) for other in predicted
    )


def commonest(confusion: Confusion) -> Commonest | None:
    """The confusion with the most images; of several the one of the highest rate, then the first; None without one."""
    cells = sparse.coo_array(confusion.matrix)
    wrong = (cells.row != cells.col) & (cells.data > 0)
    truth, predicted, count = cells.row[wrong], cells.col[wrong], cells.data[wrong]
    if not len(count):
        return None
    images = np.asarray(confusion.images)[truth]
    first = int(np.lexsort((predicted, truth, images, -count))[0])
    names = confusion.names[int(truth[first])], confusion.names[int(predicted[first])]
    return Commonest(names, int(count[first]), int(images[first]), int((count == count[first]).sum()) - 1)


def _asymmetric(summary: AuditSummary) -> Asymmetry | None:
    matrix, names = summary.confusions[ALL].dense, summary.confusions[ALL].names
    label, predicted, gap = max_asymmetry(matrix)
    if not gap > 0:
        return None
    rates = confusion_rates(matrix)
    pair = float(rates[label, predicted]), float(rates[predicted, label])
    return Asymmetry((names[label], names[predicted]), pair, asymmetry_estimate(matrix, summary.alpha))


def _targets(summary: AuditSummary) -> TargetShares:
    matrix, names = summary.confusions[ALL].dense, summary.confusions[ALL].names
    shares = target_shares(matrix)
    ends = names[int(shares.argmax())], names[int(shares.argmin())]
    return TargetShares(ends, target_share_estimate(matrix, summary.alpha), float(shares.min()))


class Headline(NamedTuple):
    """The first line of a page: ``before``, the highlighted name or accuracy, ``after``."""

    before: str
    name: str
    after: str


def headline(facts: AuditFacts) -> Headline:
    """Overall and worst-class accuracy, with the names of all classes that tie for the lowest accuracy."""
    number, one, many = len(facts.lowest), formatting.singular(facts.kind), formatting.plural(facts.kind)
    lowest, kind = formatting.percent(facts.accuracy), f"{'robust' if facts.attacked else 'clean'} accuracy"
    overall = f"{formatting.percent(facts.overall)} {kind} overall"
    if facts.classes == 1:
        before = f"{lowest} {kind} on the only {one} with images"
    elif number == facts.classes:
        before = f"{lowest} {kind} on each of {formatting.count(number)} {many}"
    elif number > 1:
        before = f"{overall}, {lowest} on each of the {formatting.count(number)} worst {many}"
    else:
        before = f"{overall}, {lowest} on the worst {one}"
    after = ")" if facts.clean is None else f"), whose clean accuracy is {formatting.percent(facts.clean)}"
    return Headline(f"{before} (", formatting.listed(facts.lowest), after)


def lead(facts: AuditFacts) -> str:
    """Numbers of images and of correctly classified images of the worst class, or of all classes that tie for it."""
    verb = "is" if facts.correct == 1 else "are"
    one = len(facts.lowest) == 1
    of = f"this {formatting.singular(facts.kind)}" if one else f"these {formatting.plural(facts.kind)}"
    condition = "under every attack" if facts.attacked else "(no attack was run)"
    return (
        f"Of the {formatting.counted(facts.images, 'image')} of {of}, {formatting.count(facts.correct)} {verb} "
        f"classified correctly {condition}."
    )


def uncertainty(facts: AuditFacts) -> list[str]:
    """Sentences on which classes may be the worst on new images, and on the lowest accuracy."""
    one, many = formatting.singular(facts.kind), formatting.plural(facts.kind)
    if facts.classes == 1:
        return [f"Only one {one} has images, so no {many} are compared."]
    number, name = formatting.count(facts.classes), formatting.lowest_interval_name(facts.alpha, facts.kind)
    split = (
        f" The {one} that is lowest on one half of the images has {formatting.percent(facts.split)} on the other half, "
        "which is too high on average."
        if facts.split > facts.accuracy
        else ""
    )
    size = (
        f"The lowest of {number} measured accuracies, {formatting.percent(facts.accuracy)}, is too low on average, "
        f"since it was selected for being low.{split} The {name}, is {formatting.span(*facts.interval)}\u00a0%; "
        f"its upper end accounts for the selection among {number} {many}."
    )
    return [_worst_candidates(facts), size]


def _worst_candidates(facts: AuditFacts) -> str:
    candidates, others = len(facts.candidates), facts.classes - len(facts.candidates)
    one = formatting.singular(facts.kind)
    start = f"With {formatting.level(facts.alpha)} confidence, the worst {one} on new images is "
    start += f"one of {formatting.count(candidates)}: " if candidates > 1 else ""
    start += formatting.listed(facts.candidates)
    if not others:
        return f"{start}. No difference between two of them is significant."
    others_are = f"The other {one} is" if others == 1 else f"Each of the other {formatting.count(others)} is"
    than = "it" if candidates == 1 else "at least one of these"
    if not facts.above_candidates:
        than = f"at least one {one} of lower accuracy"
    return f"{start}. {others_are} significantly more accurate than {than}."


def confusion_sentences(facts: AuditFacts) -> list[str]:
    """Sentences on the errors: of the worst class, within superclasses, asymmetry, targets, and no predictions."""
    sentences = [
        _commonest(facts),
        _misclassifications(facts),
        _within_superclass(facts),
        _most_asymmetric(facts),
        _target_classes(facts),
        _without_prediction(facts),
    ]
    sentences += [] if facts.wrong else ["No image is misclassified."]
    return [sentence for sentence in sentences if sentence]


def commonest_phrase(found: Commonest) -> str:
    """The commonest confusion, without a full stop."""
    (name, predicted), of = found.names, formatting.counted(found.of, "image")
    others = "1 other confusion has" if found.equal == 1 else f"{found.equal:,} other confusions have"
    equal = f" ({others} as many images)" if found.equal else ""
    return f"{name} as {predicted}, {formatting.count(found.images)} of the {of} of {name}{equal}"


def _commonest(facts: AuditFacts) -> str:
    return (
        "" if facts.commonest is None else f"Commonest confusion of all classes: {commonest_phrase(facts.commonest)}."
    )


def _misclassifications(facts: AuditFacts, most: int = 3) -> str:
    images, predicted = facts.misclassified or (0, ())
    if not predicted:
        return ""
    shares = [f"{name} ({formatting.percent(share.value)}, {_span(share)})" for name, share in predicted[:most]]
    start = "Most frequent first misclassifications" if len(predicted) > most else "First misclassifications"
    of_images = formatting.counted(images, "image")
    return f"{start} of the {of_images} of {facts.lowest[0]}: {formatting.listed(shares)}."


def _within_superclass(facts: AuditFacts) -> str:
    if facts.within is None:
        return ""
    verb = "is" if round(facts.within.value * facts.errors) == 1 else "are"
    return (
        f"Of {formatting.counted(facts.errors, 'error')} over all classes, {formatting.percent(facts.within.value)} "
        f"{verb} within the true superclass ({formatting.level(facts.alpha)} interval {_span(facts.within)}\u00a0%); "
        f"expected if errors were uniform over the other classes: {formatting.percent(facts.chance)}."
    )


def _most_asymmetric(facts: AuditFacts) -> str:
    if facts.asymmetry is None:
        return ""
    (label, predicted), (there, back), gap = facts.asymmetry.names, facts.asymmetry.rates, facts.asymmetry.gap
    return (
        f"Largest asymmetry: {formatting.percent(there)} of {label} are misclassified as {predicted}, "
        f"{formatting.percent(back)} of {predicted} as {label}, a difference of {formatting.bare_percent(gap.value)} "
        f"points ({formatting.level(facts.alpha)} interval {_span(gap)})."
    )


def _target_classes(facts: AuditFacts) -> str:
    if facts.targets is None:
        return ""
    most, fewest = facts.targets.names
    return (
        f"Class that absorbs the most misclassifications: {most}, {formatting.percent(facts.targets.most.value)} of "
        f"the {formatting.counted(facts.errors, 'error')} ({formatting.level(facts.alpha)} interval "
        f"{_span(facts.targets.most)}\u00a0%); the fewest: {fewest}, {formatting.percent(facts.targets.fewest)}."
    )


def _without_prediction(facts: AuditFacts) -> str:
    number = facts.wrong - facts.errors
    if not number:
        return ""
    verb = "has" if number == 1 else "have"
    return (
        f"{formatting.counted(number, 'misclassified image')} {verb} no prediction (non-finite logits) and "
        f"{'is' if number == 1 else 'are'} not counted in the matrices."
    )


def _span(share: Estimate) -> str:
    return formatting.span(share.low, share.high)
