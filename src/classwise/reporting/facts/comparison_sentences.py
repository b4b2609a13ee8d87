"""Facts that the page of a comparison states, and sentences of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from classwise.auditing.compare.comparison import Comparison, Pair, narrowing
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.facts.audit_summary import shown_warnings
from classwise.reporting.facts.comparison_tables import (
    MAX_METHODS,
    exceeds_all,
    methods_of,
    unexceeded_methods,
    worst_of,
)
from classwise.reporting.facts.sentences import Headline
from classwise.stats.intervals import Estimate
from classwise.stats.power import MOST_PLANNED, images_to_exclude, runs_to_exclude


@dataclass(frozen=True)
class PairFacts:
    """What the sentences on two methods state.

    Attributes:
        pair: the differences of the accuracies of two methods, with tests.
        alpha: significance level.
        kind: ``"class"``, or the name of another grouping.
        images: number of images.
        tested: number of classes whose difference was tested.
        significant: the classes with a significant difference, and the differences.
    """

    pair: Pair
    alpha: float
    kind: str
    images: int
    tested: int
    significant: dict[str, float]

    @staticmethod
    def of(comparison: Comparison, pair: Pair) -> PairFacts:
        """Compute the facts of two methods of a comparison."""
        significant = pair.classes[pair.classes["adjusted"] < comparison.alpha]["difference"]
        return PairFacts(
            pair=pair,
            alpha=comparison.alpha,
            kind=comparison.group or "class",
            images=int(pair.classes["n"].sum()),
            tested=int(pair.classes["adjusted"].notna().sum()),
            significant={str(name): float(difference) for name, difference in significant.items()},
        )

    @property
    def advice(self) -> str:
        """What would decide the difference of the worst classes, or narrow its interval, after a semicolon, or nothing.

        The number has a power of 80 % for a difference of the estimated size (`classwise.stats.power`).
        """
        pair, (value, low, high) = self.pair, self.pair.minima
        runs, images = [number for number in pair.seeds if number > 1], int(pair.classes["n"].min())
        reach = value - low if value > 0 else high - value
        needed = ""
        if value and low <= 0 <= high:
            of_images, of_runs = (reach * math.sqrt(share) for share in (pair.of_images, 1 - pair.of_images))
            if runs and pair.narrower == "runs":
                if number := runs_to_exclude(min(runs), value, reach, alpha=self.alpha, fixed=of_images):
                    needed = f"about {formatting.counted(number, 'seed')}"
            else:
                number = images_to_exclude(images, value, reach, alpha=self.alpha, fixed=of_runs)
                if number and number <= MOST_PLANNED:
                    needed = f"about {formatting.count(number)} images a {formatting.singular(self.kind)}"
        if needed:
            return f"; {needed} would decide a difference of this size"
        return f"; {narrowing(pair.seeds, pair.narrower)}" if runs else ""


def decision(comparison: Comparison, method: str) -> str:
    """Which classes of a method are better, worse and undecided against the first method, attacked and clean.

    Example:
        >>> import classwise as cw
        >>> labels = [0] * 50 + [1] * 50
        >>> at, ours = (
        ...     cw.Outcomes.from_predictions(labels, labels, {"pgd": attacked}, class_names=["cat", "dog"])
        ...     for attacked in ([1] * 100, labels)
        ... )
        >>> decision(cw.compare({"at": cw.Audit(at), "ours": cw.Audit(ours)}), "ours")
        'ours against at: attacked better cat, worse none, undecided 1 of 2; clean better none, worse none, undecided 2 of 2'
    """  # noqa: E501  # one line of output
    first, texts = comparison.names[0], list[str]()
    clean = all(CLEAN in audit.names for audits in comparison.audits.values() for audit in audits)
    for attack in dict.fromkeys([comparison.attack, *([CLEAN] if clean else [])]):
        under = comparison.under(attack)
        facts = PairFacts.of(under, under.pair(method, first))
        better = [name for name, difference in facts.significant.items() if difference > 0]
        worse = [name for name in facts.significant if name not in better]
        undecided = f"{facts.tested - len(facts.significant)} of {facts.tested}"
        what = "attacked" if under.attacked else "clean"
        texts.append(f"{what} better {_listed(better)}, worse {_listed(worse)}, undecided {undecided}")
    return f"{method} against {first}: {'; '.join(texts)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def headline(comparison: Comparison) -> Headline:
    """The headline: with the highlighted accuracy; it names a best method only if it is decided."""
    methods, best = methods_of(comparison), comparison.best
    over = {name: f"mean over {row['seeds']} seeds" for name, row in methods.items() if row["seeds"] > 1}
    worst, measure = formatting.percent(methods[best[0]]["worst"]), f"{worst_of(comparison.group, '-')} accuracy"
    strong = f"{worst} ({over.get(best[0]) or formatting.listed(comparison.lowest_classes[best[0]])})"
    number = f" of {len(methods)}" if len(methods) > 2 else ""
    if len(methods) == 1:
        return Headline(f"{measure.capitalize()}: ", strong, "")
    if exceeds_all(comparison, best[0], "worst"):
        return Headline(f"{best[0]} has the highest {measure}{number}: ", strong, "")
    before = f"No {measure} is significantly above all others; the highest{number} is "
    if len(best) == len(methods):
        before = f"Equal {measure.removesuffix('y')}ies on these images: "
    elif len(methods) == 2:
        before = f"No significant difference in {measure}; the highest is "
    named = formatting.listed([f"{name} ({over[name]})" if name in over else name for name in best])
    return Headline(before, worst, f" with {named}")


def method_sentences(comparison: Comparison) -> list[str]:
    """A sentence per method; for more than `MAX_METHODS` methods one sentence, with those that no other exceeds."""
    methods = methods_of(comparison)
    if len(methods) <= MAX_METHODS:
        return [_method_sentence(row, comparison) for row in methods.values()]
    best = unexceeded_methods(comparison)
    measures = f"both overall and {worst_of(comparison.group, '-')} accuracy on these images"
    named = formatting.listed(best, limit=len(best))
    return [f"Of {len(methods)} methods, no other is higher in {measures} than {named}."]


def _method_sentence(row: Mapping[str, Any], comparison: Comparison) -> str:
    """Worst-class and overall accuracy of a method with intervals, and its number of training runs."""
    name, seeds, alpha = row["method"], row["seeds"], comparison.alpha
    lowest = comparison.lowest_classes[name]
    classes = formatting.listed(lowest)
    worst = f"{worst_of(comparison.group, '-')} accuracy {formatting.percent(row['worst'])}"
    worst_interval = formatting.interval(row["worst_low"], row["worst_high"], alpha)
    ends = formatting.interval(row["overall_low"], row["overall_high"], alpha)
    ends = ends.removeprefix(f"{formatting.level(alpha)} interval ")
    overall = f"overall accuracy {formatting.percent(row['overall'])} ({ends})"
    if seeds == 1:
        return f"{name} (one training run): {worst} ({classes}; {worst_interval}), {overall}."
    verb = "have" if len(lowest) > 1 else "has"
    start = f"{name} (mean over {seeds} seeds)"
    return f"{start}: {worst} ({worst_interval}), {overall}; {classes} {verb} the lowest mean."


def pair_sentences(facts: PairFacts) -> list[str]:
    """Sentences on the differences of two methods: worst class, overall, classes, and what intervals cover."""
    pair, significant = facts.pair, list(facts.significant)
    worst = worst_of(None if facts.kind == "class" else facts.kind, "-")
    accuracies = (
        f"Difference in {worst} accuracy: {_difference(pair.minima)} percentage points "
        f"({formatting.level(facts.alpha)} interval {_span(pair.minima)}{facts.advice}). Difference in overall "
        f"accuracy: {_difference(pair.overall)} percentage points ({_span(pair.overall)}; p "
        f"{formatting.probability(pair.p_value)}, {pair.test}, not adjusted for other comparisons), on "
        f"{formatting.counted(facts.images, 'image')}."
    )
    classes = (
        f"{'Classes' if facts.kind == 'class' else 'Groups'} with a significant difference "
        f"(p\u00a0<\u00a0{facts.alpha:g}, adjusted for {facts.tested} tests): "
        f"{formatting.listed(significant, limit=len(significant)) or 'none'}."
    )
    return [accuracies, classes, formatting.sentence(pair.population)]


def _difference(estimate: Estimate) -> str:
    return formatting.points(estimate.value, sign=True)


def _span(estimate: Estimate) -> str:
    return formatting.signed_span(estimate.low, estimate.high)


def run_name(name: str, number: int, seeds: int) -> str:
    """A method, and which run of it if it has several."""
    return name if seeds == 1 else f"{name}, run {number + 1} of {seeds}"


def comparison_warnings(methods: Mapping[str, tuple[Audit, ...]], group: str | None = None) -> list[dict[str, str]]:
    """Warnings of all audits, compared by a grouping, prefixed with the methods or single runs that raised them."""
    runs_by_warning: dict[tuple[str, str], dict[str, list[int]]] = {}
    for name, audits in methods.items():
        for number, audit in enumerate(audits):
            for warning in shown_warnings(audit, group):
                runs_by_warning.setdefault((warning.name, warning.sentence), {}).setdefault(name, []).append(number)
    all_runs = {name: list(range(len(audits))) for name, audits in methods.items()}
    shown = []
    for (guard, sentence), runs in runs_by_warning.items():
        names = []
        for name, numbers in runs.items():
            total = len(methods[name])
            names += [name] if numbers == all_runs[name] else [run_name(name, number, total) for number in numbers]
        shown.append(
            {
                "name": guard,
                "sentence": sentence if runs == all_runs else f"{formatting.listed(names, len(names))}: {sentence}",
            }
        )
    return shown
