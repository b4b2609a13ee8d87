"""Facts that the page of a comparison states, and sentences of them."""

from __future__ import annotations

from dataclasses import dataclass

from classwise.auditing.compare.comparison import Comparison, Pair, narrowing
from classwise.reporting import formatting
from classwise.reporting.facts.comparison_tables import MAX_METHODS, methods_of, unexceeded_methods
from classwise.reporting.facts.sentences import Headline
from classwise.stats.intervals import Estimate
from classwise.stats.power import MOST_PLANNED, images_to_exclude, runs_to_exclude


@dataclass(frozen=True)
class MethodFacts:
    """A method of a comparison.

    Attributes:
        name: its name.
        seeds: number of training runs.
        worst: accuracy of the worst class with its interval; of several runs the mean.
        overall: overall accuracy with its interval.
        lowest: names of all classes with the lowest mean accuracy.
    """

    name: str
    seeds: int
    worst: Estimate
    overall: Estimate
    lowest: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonFacts:
    """What the headline of a comparison's page states.

    Attributes:
        alpha: significance level.
        methods: the methods, in order.
        best: names of those with the highest worst-class accuracy on these images; several if they are equal.
        decided: whether the worst-class accuracy of the first of ``best`` is significantly above that of every other
            method. The intervals of the differences are Bonferroni-corrected for the number of other methods, because
            the best one was selected.
        unexceeded: names of the methods that no other one exceeds in both overall and worst-class accuracy.
    """

    alpha: float
    methods: tuple[MethodFacts, ...]
    best: tuple[str, ...]
    decided: bool
    unexceeded: tuple[str, ...]

    @staticmethod
    def of(comparison: Comparison) -> ComparisonFacts:
        """Compute the facts of a comparison of complete audits."""
        best, lowest = comparison.best, comparison.lowest_classes
        others = [name for name in comparison.names if name != best[0]]
        alpha = comparison.alpha / max(len(others), 1)
        methods = (
            MethodFacts(
                name,
                int(row["seeds"]),
                Estimate(row["worst"], row["worst_low"], row["worst_high"]),
                Estimate(row["overall"], row["overall_low"], row["overall_high"]),
                tuple(lowest[name]),
            )
            for name, row in methods_of(comparison).items()
        )
        return ComparisonFacts(
            alpha=comparison.alpha,
            methods=tuple(methods),
            best=best,
            decided=all(comparison.pair(best[0], name, alpha).minima.low > 0 for name in others),
            unexceeded=tuple(unexceeded_methods(comparison)),
        )


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
            if runs and pair.narrower == "runs":
                if number := runs_to_exclude(min(runs), value, reach, alpha=self.alpha):
                    needed = f"about {formatting.counted(number, 'seed')}"
            elif (number := images_to_exclude(images, value, reach, alpha=self.alpha)) <= MOST_PLANNED:
                needed = f"about {formatting.count(number)} images a {formatting.singular(self.kind)}"
        if needed:
            return f"; {needed} would decide a difference of this size"
        return f"; {narrowing(pair.seeds, pair.narrower)}" if runs else ""


def headline(facts: ComparisonFacts) -> Headline:
    """The headline: with the highlighted accuracy; it names a best method only if it is decided."""
    methods = {method.name: method for method in facts.methods}
    over = {name: f"mean over {method.seeds} seeds" for name, method in methods.items() if method.seeds > 1}
    best = methods[facts.best[0]]
    worst = formatting.percent(best.worst.value)
    strong = f"{worst} ({over.get(best.name) or formatting.listed(best.lowest)})"
    number = f" of {len(methods)}" if len(methods) > 2 else ""
    if len(methods) == 1:
        return Headline("Worst-class accuracy: ", strong, "")
    if facts.decided:
        return Headline(f"{best.name} has the highest worst-class accuracy{number}: ", strong, "")
    before = f"No worst-class accuracy is significantly above all others; the highest{number} is "
    if len(facts.best) == len(methods):
        before = "Equal worst-class accuracies on these images: "
    elif len(methods) == 2:
        before = "No significant difference in worst-class accuracy; the highest is "
    named = formatting.listed([f"{name} ({over[name]})" if name in over else name for name in facts.best])
    return Headline(before, worst, f" with {named}")


def method_sentences(facts: ComparisonFacts) -> list[str]:
    """A sentence per method; for more than `MAX_METHODS` methods one sentence, with those that no other exceeds."""
    if len(facts.methods) <= MAX_METHODS:
        return [_method_sentence(method, facts.alpha) for method in facts.methods]
    named = formatting.listed(facts.unexceeded, limit=len(facts.unexceeded))
    measures = "both overall and worst-class accuracy on these images"
    return [f"Of {len(facts.methods)} methods, no other is higher in {measures} than {named}."]


def _method_sentence(method: MethodFacts, alpha: float) -> str:
    """Worst-class and overall accuracy of a method with intervals, and its number of training runs."""
    classes, (_, low, high) = formatting.listed(method.lowest), method.overall
    worst = f"worst-class accuracy {formatting.percent(method.worst.value)}"
    worst_interval = formatting.interval(method.worst.low, method.worst.high, alpha)
    ends = formatting.interval(low, high, alpha).removeprefix(f"{formatting.level(alpha)} interval ")
    overall = f"overall accuracy {formatting.percent(method.overall.value)} ({ends})"
    if method.seeds == 1:
        return f"{method.name} (one training run): {worst} ({classes}; {worst_interval}), {overall}."
    verb = "have" if len(method.lowest) > 1 else "has"
    start = f"{method.name} (mean over {method.seeds} seeds)"
    return f"{start}: {worst} ({worst_interval}), {overall}; {classes} {verb} the lowest mean."


def pair_sentences(facts: PairFacts) -> list[str]:
    """Sentences on the differences of two methods: worst class, overall, classes, and what intervals cover."""
    pair, significant = facts.pair, list(facts.significant)
    accuracies = (
        f"Difference in worst-class accuracy: {_difference(pair.minima)} percentage points "
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
