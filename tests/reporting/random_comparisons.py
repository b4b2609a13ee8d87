"""Random comparisons with their raw outcomes, and statistics of these.

Statistics of one run are textbook formulas. Those over seeds, and tests of two models, are functions of the package
that have tests of their own (`tests.stats`); here it matters that they are shown, of the right outcomes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.stats.counts import ClassCounts, PairedCounts
from classwise.stats.metrics.variance import variance_interval
from classwise.stats.paired import class_differences, difference_of_minima
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)

from .random_audits import CLASSES, KINGDOMS, SITES, exact, usual

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
METHODS = ("at", "cfa", "dafa")
QUICK = settings(max_examples=8, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
WARNINGS = (
    AuditWarning("zero-gradients", "Half of the gradients are zero.", 0.5),
    AuditWarning("few-images", "A class has 3 images.", 3.0),
)


class Ends(NamedTuple):
    """A value and its interval; the limits are NaN if there is none."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A difference with its interval and p-value."""

    value: float
    low: float
    high: float
    p: float


def sidak(alpha: float, tests: int) -> float:
    return 1 - math.pow(1 - alpha, 1 / tests)


def mean_of_seeds(right: Bools, alpha: float) -> Ends:
    """Mean of (S, n) outcomes with its interval."""
    found = mean_over_seeds(right, np.zeros(right.shape[1], np.int64), 1, alpha)
    return Ends(*(float(field[0]) for field in found))


def near(text: str, value: float, digits: int = 1) -> bool:
    """Whether a text is the rounded value; ties may be rounded either way."""
    if math.isnan(value) or text == "–":
        return math.isnan(value) and text == "–"
    text = text.replace("−", "-").replace(",", "")
    assert len(text.partition(".")[2]) == digits
    return bool(abs(float(text) - value) <= 10.0**-digits / 2 + 1e-6)


def is_span(text: str, ends: tuple[float, ...], separator: str = "–", scale: float = 100, digits: int = 1) -> bool:
    """Whether a text is an interval in percent; the last two numbers are its ends."""
    low, high = ends[-2:]
    if text == "–" or math.isnan(low):
        return text == "–" and math.isnan(low) and math.isnan(high)
    texts = text.split(separator)
    return all(near(end, scale * value, digits) for end, value in zip(texts, (low, high), strict=True))


Cells = list[tuple[int, int]]

exact_binomial = cache(exact)


def lowest_ends(cells: Cells, alpha: float, number: int = 1) -> tuple[float, float]:
    """Interval of the mean of the lowest accuracies: ends at alpha/2, corrected for ``number`` and for all classes."""
    lower, upper = (2 * sidak(alpha / 2, tests) for tests in (number, len(cells)))
    lows = sorted(exact_binomial(right, images, lower)[0] for right, images in cells)
    highs = sorted(exact_binomial(right, images, upper)[1] for right, images in cells)
    return sum(lows[:number]) / number, sum(highs[:number]) / number


def fifth(shares: list[float]) -> float:
    return float(np.mean(sorted(shares)[: -(-len(shares) // 5)]))


def harmonic(one: float, other: float) -> float:
    return 2 * one * other / (one + other) if one + other else 0.0


def variance_ends(cells: Cells, alpha: float) -> tuple[float, float]:
    """The interval of CV."""
    right, images = np.array(list(cells)).T
    return variance_interval(ClassCounts(images, right), alpha)


def discrepancy_ends(cells: Cells, alpha: float) -> tuple[float, float]:
    """The interval of MCD: the lower end is corrected for all bounds, the upper end for two."""
    if len(cells) == 1:
        return 0.0, 0.0
    inner, outer = (
        list(zip(*(exact(right, images, level) for right, images in cells), strict=True))
        for level in (sidak(alpha / 2, len(cells)), 2 * sidak(alpha / 2, 2))
    )
    return max(max(inner[0]) - min(inner[1]), 0.0), max(outer[1]) - min(outer[0])


def measures(cells: Cells, clean: tuple[int, int] | None, alpha: float) -> dict[str, Ends]:
    """Measures of one run by table head, each with its interval for new images."""
    shares = [right / images for right, images in cells]
    right, images = sum(right for right, _ in cells), sum(images for _, images in cells)
    overall, half = right / images, sidak(alpha, 2)
    whole, worst = usual(right, images, half), lowest_ends(cells, half)
    none = Ends(math.nan, math.nan, math.nan)
    by_head = {
        "overall": Ends(overall, *usual(right, images, alpha)),
        "worst": Ends(min(shares), *lowest_ends(cells, alpha)),
        "worst 20 %": Ends(fifth(shares), *lowest_ends(cells, alpha, -(-len(cells) // 5))),
        "MCD": Ends(max(shares) - min(shares), *discrepancy_ends(cells, alpha)),
        "class-wise variance": Ends(
            float(np.mean((np.array(shares) - np.mean(shares)) ** 2)), *variance_ends(cells, alpha)
        ),
        "HMW": Ends(harmonic(overall, min(shares)), *(harmonic(a, b) for a, b in zip(whole, worst, strict=True))),
        "clean": none,
        "NRR": none,
    }
    if clean is not None:
        share, ends = clean[0] / clean[1], usual(*clean, half)
        by_head["clean"] = Ends(share, *usual(*clean, alpha))
        by_head["NRR"] = Ends(harmonic(share, overall), *(harmonic(a, b) for a, b in zip(ends, whole, strict=True)))
    return by_head


@dataclass(frozen=True, repr=False)
class Compared:
    """A comparison and its raw outcomes.

    Attributes:
        comparison: the comparison to report.
        correct: for each method, (S, N) outcomes under the compared attack.
        clean: for each method, (N,) clean outcomes of each run; None if a run has none.
        seeds: for each method, the training seed of each run; None if unknown.
        ids: (N,) class or group of each image.
        units: names of the classes or groups.
        order: the attacks of the audits, including ``clean``.
        warnings: for each method, the names of each run's warnings.
    """

    comparison: Comparison
    correct: dict[str, Bools]
    clean: dict[str, list[Bools | None]]
    seeds: dict[str, list[int | None]]
    ids: Ints
    units: tuple[str, ...]
    order: tuple[str, ...]
    warnings: dict[str, list[tuple[str, ...]]]

    def __repr__(self) -> str:
        runs = {name: len(right) for name, right in self.correct.items()}
        sizes = np.bincount(self.ids, minlength=len(self.units)).tolist()
        return f"Compared({runs}, sizes={sizes}, {self.order}, under {self.attack}, group={self.comparison.group})"

    @property
    def alpha(self) -> float:
        return self.comparison.alpha

    @property
    def attack(self) -> str:
        return self.comparison.attack

    @property
    def kind(self) -> str:
        return self.comparison.group or "class"

    @property
    def attacked(self) -> bool:
        return self.attack != "clean" and self.order != ("clean",)

    @property
    def conditions(self) -> str:
        if not self.attacked:
            return "on clean images"
        if self.attack == "all":
            return "under every attack together"
        return f"under {self.attack}" + ", counts cumulative over the cascade" * self.cascade

    def number(self, name: str) -> int:
        """Number of runs of a method."""
        return len(self.correct[name])

    @cached_property
    def decided(self) -> bool:
        """Whether the worst class of the best method is above that of every other one, Bonferroni-corrected."""
        others = [name for name in self.correct if name != self.best[0]]
        return all(self.minima(self.best[0], name, self.alpha / len(others)).low > 1e-9 for name in others)

    @property
    def cascade(self) -> bool:
        return next(iter(self.comparison.audits.values()))[0].outcomes.meta.cascade

    @cached_property
    def present(self) -> list[str]:
        return [self.units[unit] for unit in sorted(set(self.ids.tolist()))]

    def images(self, unit: str) -> int:
        return int((self.ids == self.units.index(unit)).sum())

    def part(self, name: str, unit: str) -> Bools:
        """Outcomes (S, n) of a method on the images of a class."""
        return self.correct[name][:, self.ids == self.units.index(unit)]

    def cells(self, run: Bools) -> Cells:
        """(correct, images) of each class with images."""
        masks = [self.ids == self.units.index(unit) for unit in self.present]
        return [(int(run[mask].sum()), int(mask.sum())) for mask in masks]

    @cached_property
    def worst(self) -> dict[str, Fraction]:
        """Mean over runs of the lowest accuracy, without rounding."""
        found = {}
        for name, right in self.correct.items():
            lowest = [min(Fraction(good, images) for good, images in self.cells(run)) for run in right]
            found[name] = sum(lowest, Fraction(0)) / len(right)
        return found

    @cached_property
    def best(self) -> list[str]:
        return [name for name, worst in self.worst.items() if worst == max(self.worst.values())]

    def lowest(self, name: str) -> list[str]:
        """The classes with the lowest mean over the runs."""
        means = {unit: Fraction(int(self.part(name, unit).sum()), self.part(name, unit).size) for unit in self.present}
        return [unit for unit in self.present if means[unit] == min(means.values())]

    @cached_property
    def rows(self) -> dict[str, dict[str, Ends]]:
        """Measures of each method with intervals; for several runs, means, and intervals of overall and worst only."""
        found = {}
        for name, right in self.correct.items():
            runs = self.runs[name]
            if len(runs) == 1:
                found[name] = runs[0]
                continue
            row = {
                head: Ends(float(np.mean([run[head].value for run in runs])), math.nan, math.nan) for head in runs[0]
            }
            worst = worst_over_seeds(right, self.ids, len(self.units), self.alpha)
            row |= {"overall": mean_of_seeds(right, self.alpha), "worst": Ends(*worst[:3])}
            found[name] = row
        return found

    @cached_property
    def runs(self) -> dict[str, list[dict[str, Ends]]]:
        """Measures of each method and run."""
        found: dict[str, list[dict[str, Ends]]] = {name: [] for name in self.correct}
        for name in self.correct:
            for run, clean in zip(self.correct[name], self.clean[name], strict=True):
                counted = None if clean is None else (int(clean.sum()), len(clean))
                values = measures(self.cells(run), counted, self.alpha)
                found[name].append(values if self.attacked else values | {"NRR": Ends(math.nan, math.nan, math.nan)})
        return found

    def deviation(self, name: str, head: str) -> float:
        """Standard deviation over runs; NaN for one run."""
        values = [run[head].value for run in self.runs[name]]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    def of_class(self, name: str, unit: str) -> Ends:
        right = self.part(name, unit)
        if len(right) > 1:
            return mean_of_seeds(right, self.alpha)
        return Ends(float(right.mean()), *usual(int(right.sum()), right.size, self.alpha))

    def difference(self, first: str, second: str) -> Difference:
        """Difference on all images."""
        return self._differences(first, second, np.zeros_like(self.ids), 1)[0]

    def differences(self, first: str, second: str) -> dict[str, Difference]:
        """Differences on the classes; intervals and p-values are simultaneous."""
        found = self._differences(first, second, self.ids, len(self.units))
        return {unit: found[self.units.index(unit)] for unit in self.present}

    def _differences(self, first: str, second: str, ids: Ints, number: int) -> list[Difference]:
        one, other = self.correct[first], self.correct[second]
        if len(one) == len(other) == 1:
            found: Any = class_differences(PairedCounts.from_labels(ids, one[0], other[0], number), self.alpha)
        else:
            found = difference_over_seeds(one, other, ids, number, self.alpha, paired=False)
        columns = (found.difference, found.low, found.high, found.adjusted)
        return [Difference(*map(float, row)) for row in zip(*columns, strict=True)]

    def minima(self, first: str, second: str, alpha: float) -> Ends:
        one, other = self.correct[first], self.correct[second]
        if len(one) == len(other) == 1:
            cells = PairedCounts.from_labels(self.ids, one[0], other[0], len(self.units))
            return Ends(*difference_of_minima(cells, alpha))
        return Ends(*worst_difference_over_seeds(one, other, self.ids, len(self.units), alpha)[:3])


_SIZES = st.sampled_from((0, 1, 2, 6, 15, 40))
_SHARES = st.sampled_from((0.0, 0.3, 0.5, 0.5, 0.9, 1.0))


@st.composite
def comparisons(draw: st.DrawFn) -> Compared:
    """One to three methods of one to three runs on up to five classes, with similar, equal or distant accuracies.

    Attacks alone, in families and in cascades; what is compared is any of them, all, or the clean pass; classes may be
    empty or of one image; training seeds are known or not, the same or others.
    """
    number = draw(st.integers(1, 5))
    sizes = draw(st.lists(_SIZES, min_size=number, max_size=number).filter(any))
    clear = number > 1 and draw(st.sampled_from((False, False, True)))  # the last method is the best by far
    sizes = [40] * number if clear else sizes
    labels = np.repeat(np.arange(number), sizes)
    attacks = draw(st.sampled_from(((), ("pgd",), ("pgd", "cw"), ("pgd", "cw"), ("pgd", "t[2]", "t[5]"))))
    cascade = len(attacks) > 1 and draw(st.booleans())
    has_clean = not attacks or draw(st.sampled_from((True, True, False)))
    order = (("clean",) if has_clean else ()) + attacks
    families = {"t": ("t[2]", "t[5]")} if "t[5]" in attacks else {}
    names = [*order, "all", *(["t-union"] + ["t-best"] * (not cascade) if families else [])]
    attack = draw(st.sampled_from(["all", "all", *names]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    group = draw(st.sampled_from((None, None, "site", "superclass")))
    sites = random.integers(0, len(SITES), len(labels))
    alpha = draw(st.sampled_from((0.05, 0.05, 0.1, 0.01)))
    same = not clear and draw(st.sampled_from((False, False, True)))  # every run of every method has the same answers
    about: dict[str, Any] = {
        "data": draw(st.sampled_from(("", "toy"))),
        "model": "net",
        "threat": draw(st.sampled_from((None, "Linf:8/255"))),
        "early_stop": None if cascade else draw(st.sampled_from((None, False))),
        "superclasses": tuple(label % 3 for label in range(number)),
        "superclass_names": KINGDOMS,
        "families": families,
    }
    correct: dict[str, Bools] = {}
    clean: dict[str, list[Bools | None]] = {}
    seeds: dict[str, list[int | None]] = {}
    warnings: dict[str, list[tuple[str, ...]]] = {}
    audits: dict[str, list[Audit]] = {}
    methods = METHODS[: draw(st.sampled_from((1, 2, 2, 2, 3)))]
    for method in methods:
        rates = np.array(draw(st.lists(_SHARES, min_size=number, max_size=number)))
        rates = np.full(number, 0.98 if method == methods[-1] else 0.1) if clear else rates
        runs = draw(st.sampled_from((1, 1, 2, 2, 3)))
        known = draw(st.sampled_from(("alike", "alike", "own", "none")))
        start = 10 + 3 * METHODS.index(method) if known == "own" else 0
        numbered: list[int | None] = [None if known == "none" else start + run for run in range(runs)]
        order_of_seeds = draw(st.permutations(numbered))
        seeds[method], clean[method], warnings[method], audits[method], answers = order_of_seeds, [], [], [], []
        for seed in order_of_seeds:
            if same:
                random, rates = np.random.default_rng(0), np.full(number, 0.5)
            right = {
                name: random.random(len(labels)) < rates[labels] ** (0.5 if name == "clean" else 1) for name in order
            }
            if number == 1:
                right = {name: np.ones(len(labels), bool) for name in order}
            # An audit under one attack may lack the clean pass that another run has.
            listed = order[1:] if has_clean and attack in attacks and not cascade and draw(st.booleans()) else order
            if cascade:
                for before, after in itertools.pairwise(listed):
                    right[after] = right[after] & right[before]
            predictions = {name: np.where(right[name], labels, (labels + 1) % number) for name in listed}
            outcomes = Outcomes.from_predictions(
                labels,
                predictions.get("clean"),
                {name: predictions[name] for name in listed if name != "clean"},
                CLASSES[:number],
                **about,
                cascade=cascade,
            ).add_groups("site", sites, SITES)
            raised = draw(st.sampled_from(((), (), WARNINGS[:1], WARNINGS)))
            path = None if seed is None else Path("/nowhere") / method / f"seed-{seed}"
            audits[method].append(Audit(outcomes, raised, path=path))
            warnings[method].append(tuple(warning.name for warning in raised))
            clean[method].append(right["clean"] if "clean" in listed else None)
            answers.append(_under(attack, {name: right[name] for name in listed}))
        correct[method] = np.stack(answers)
    ids = {None: labels, "site": sites, "superclass": labels % 3}[group]
    units: tuple[str, ...] = {None: CLASSES[:number], "site": SITES, "superclass": KINGDOMS}[group]
    return Compared(
        compare(audits, attack=attack, group=group, confidence=1 - alpha),
        correct,
        clean,
        seeds,
        np.asarray(ids, dtype=np.int64),
        units,
        order,
        warnings,
    )


def _under(attack: str, right: dict[str, Bools]) -> Bools:
    """Outcomes under one attack, all attacks, or a family."""
    if attack in right:
        return right[attack]
    family = [right[name] for name in right if name.startswith("t[")]
    if attack == "t-best":
        return min(family, key=lambda one: float(one.sum()))
    chosen = family if attack == "t-union" else list(right.values())
    return np.asarray(np.logical_and.reduce(chosen))
