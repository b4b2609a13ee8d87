"""Coverage and width of the intervals of the worst-class accuracy, of CV, and of differences between two models.

Those over training runs are simulated by `benchmarks.seed_coverage`. For one run, the correct predictions of a class
are binomial and the classes independent. For the worst class the coverage is exact: an end of the interval is a minimum
over the classes, so its distribution is a product. The other intervals are simulated with the functions of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import seed_coverage
from benchmarks.tables import table
from classwise.stats.counts import ClassCounts, PairedCounts
from classwise.stats.gap_intervals import deviation_difference, discrepancy_difference, variance
from classwise.stats.intervals import Estimate, class_intervals, sidak
from classwise.stats.paired import difference_of_minima

Floats = NDArray[np.float64]
PAGE = Path(__file__).parents[1] / "docs" / "results" / "interval-coverage.md"

CLASSES = (2, 3, 10, 20, 100, 200)
IMAGES = (10, 25, 100, 500, 1000)
LEVELS = (0.10, 0.05, 0.01)
PROFILES: Mapping[str, Callable[[int], Floats]] = {
    "all tied at 40 %": lambda classes: np.full(classes, 0.4),
    "all tied at 95 %": lambda classes: np.full(classes, 0.95),
    "two tied at 30 %, others 50 %": lambda classes: np.where(np.arange(classes) < 2, 0.3, 0.5),
    "evenly spread, 20 to 80 %": lambda classes: np.linspace(0.2, 0.8, classes),
    "one at 10 %, others 60 %": lambda classes: np.where(np.arange(classes) < 1, 0.1, 0.6),
    "near zero, 0.5 to 5 %": lambda classes: np.linspace(0.005, 0.05, classes),
}
"""True class accuracies."""
SIMULATED_CLASSES = (2, 10, 100)
SIMULATED_IMAGES = (25, 100, 1000)
ROUNDING = 1e-12
RUNS, QUICK_RUNS = 500, 40


class Coverage(NamedTuple):
    """Probability that the lower end is above the truth, that the upper end is below it, and the expected width."""

    above: float
    below: float
    width: float

    @property
    def covered(self) -> float:
        return 1 - self.above - self.below


@cache
def corrected_bounds(images: int, classes: int, alpha: float) -> tuple[Floats, Floats]:
    """Bounds of a class by its correct predictions, (images + 1,): both corrected for all classes, mostly Wilson's."""
    low, high = class_intervals(_every(images), sidak(alpha, classes))
    return low, high


@cache
def lowest_bounds(images: int, classes: int, alpha: float, *, guaranteed: bool = True) -> tuple[Floats, Floats]:
    """Bounds as in `classwise.stats.intervals.lowest_interval`: only the upper ones are corrected."""
    lower = class_intervals(_every(images), alpha, guaranteed=guaranteed).low
    return lower, class_intervals(_every(images), 2 * sidak(alpha / 2, classes), guaranteed=guaranteed).high


def _every(images: int) -> ClassCounts:
    return ClassCounts(np.full(images + 1, images), np.arange(images + 1))


def worst_class_coverage(accuracy: Floats, images: int, bounds: tuple[Floats, Floats]) -> Coverage:
    """Exact coverage and mean width of [min_c L_c, min_c U_c] for classes with these accuracies.

    Args:
        accuracy: (C,) true accuracies.
        images: number of images of each class.
        bounds: lower and upper bound of a class by its number of correct predictions, (images + 1,) each.
    """
    truth = accuracy.min()
    distinct = np.unique(accuracy)
    number = (accuracy == distinct[:, None]).sum(axis=1)
    law = np.asarray(stats.binom.pmf(np.arange(images + 1), images, distinct[:, None]))
    low, high = bounds
    above = float(np.prod((law @ (low > truth + ROUNDING)) ** number))
    below = 1 - float(np.prod((1 - law @ (high < truth - ROUNDING)) ** number))
    return Coverage(above, below, _mean_of_minimum(high, law, number) - _mean_of_minimum(low, law, number))


def _mean_of_minimum(bound: Floats, law: Floats, number: NDArray[np.int64]) -> float:
    """Mean of the minimum over independent classes: the integral of the product of their survival functions."""
    order = np.argsort(bound)
    values, beyond = bound[order], np.clip(1 - np.cumsum(law[:, order], axis=1), 0, 1)
    survival = np.prod(beyond ** number[:, None], axis=0)
    return float(values[0] + (np.diff(values) * survival[:-1]).sum())


class Row(NamedTuple):
    """A setting with the coverage of three intervals of the worst class."""

    alpha: float
    profile: str
    classes: int
    images: int
    corrected: Coverage
    wilson: Coverage
    lowest: Coverage


def worst_class_rows(*, quick: bool) -> Iterator[Row]:
    for alpha in LEVELS[1:2] if quick else LEVELS:
        for classes in CLASSES[:3] if quick else CLASSES:
            for images in IMAGES[:3] if quick else IMAGES:
                for name, profile in PROFILES.items():
                    accuracy = profile(classes)
                    kinds = (
                        corrected_bounds(images, classes, alpha),
                        lowest_bounds(images, classes, alpha, guaranteed=False),
                        lowest_bounds(images, classes, alpha),
                    )
                    found = (worst_class_coverage(accuracy, images, bounds) for bounds in kinds)
                    yield Row(alpha, name, classes, images, *found)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def worst_class_tables(*, quick: bool) -> str:
    rows = list(worst_class_rows(quick=quick))
    heads = ["level", "classes", "new: least coverage", "new: most, low end too high", "new: most, high end too low"]
    heads += [
        "new/old width: median (least to most)",
        "old: least coverage",
        "new, with Wilson: least coverage",
    ]
    summary = []
    for alpha, classes in sorted({(row.alpha, row.classes) for row in rows}, key=lambda key: (-key[0], key[1])):
        group = [row for row in rows if (row.alpha, row.classes) == (alpha, classes)]
        ratios = [row.lowest.width / row.corrected.width for row in group]
        cells = [f"{100 * (1 - alpha):g} %", str(classes), _percent(min(row.lowest.covered for row in group))]
        cells += [_percent(max(row.lowest.above for row in group)), _percent(max(row.lowest.below for row in group))]
        cells += [f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]
        cells += [_percent(min(getattr(row, kind).covered for row in group)) for kind in ("corrected", "wilson")]
        summary.append(cells)
    heads_95 = ["true accuracies", "classes", "images", "old: coverage", "old: width (points)", "new: coverage"]
    heads_95 += ["new: low end too high", "new: high end too low", "new: width (points)", "new/old width"]
    every = [
        [
            row.profile,
            str(row.classes),
            f"{row.images:,}",
            _percent(row.corrected.covered),
            f"{100 * row.corrected.width:.1f}",
            *map(_percent, (row.lowest.covered, row.lowest.above, row.lowest.below)),
            f"{100 * row.lowest.width:.1f}",
            f"{row.lowest.width / row.corrected.width:.2f}",
        ]
        for row in sorted(rows, key=lambda row: list(PROFILES).index(row.profile))
        if row.alpha == 0.05
    ]
    return "\n".join(
        [
            table("Worst class: all profiles and numbers of images together (exact, percent)", heads, summary),
            table("Worst class at 95 %, each setting (exact, percent)", heads_95, every),
        ]
    )


def _sampled(generator: np.random.Generator, law: Floats, images: int) -> ClassCounts:
    return ClassCounts(np.full(len(law), images), generator.binomial(images, law))


def _pairs(generator: np.random.Generator, law: Floats, images: int) -> PairedCounts:
    """Two models of equal class accuracies that share the outcome of about nine images of ten."""
    shared = generator.binomial(images, 0.9, size=len(law))
    common = generator.binomial(shared, law)
    own = images - shared
    cells = np.stack([law * law, law * (1 - law), (1 - law) * law, (1 - law) ** 2], axis=1)
    parts = np.stack([generator.multinomial(n, cell) for n, cell in zip(own, cells, strict=True)])
    return PairedCounts(parts[:, 0] + common, parts[:, 1], parts[:, 2], parts[:, 3] + shared - common)


def difference_tables(*, quick: bool) -> str:
    """Simulated coverage of CV and of differences between two models whose true difference is 0."""
    runs = QUICK_RUNS if quick else RUNS
    kinds: dict[str, Callable[[np.random.Generator, Floats, int], tuple[Estimate, float]]] = {
        "CV": lambda rng, law, images: (variance(_sampled(rng, law, images)), float(law.var())),
        "difference of root CV": lambda rng, law, images: (
            deviation_difference(_sampled(rng, law, images), _sampled(rng, 1 - law, images)),
            0.0,
        ),
        "difference of MCD": lambda rng, law, images: (
            discrepancy_difference(_sampled(rng, law, images), _sampled(rng, 1 - law, images)),
            0.0,
        ),
        "difference of worst classes": lambda rng, law, images: (
            difference_of_minima(_pairs(rng, law, images)),
            0.0,
        ),
    }
    rows: list[list[str]] = []
    for kind, sample in kinds.items():
        for name, profile in PROFILES.items():
            for classes in SIMULATED_CLASSES[:2] if quick else SIMULATED_CLASSES:
                cells = [kind, name, str(classes)]
                for images in SIMULATED_IMAGES:
                    count = runs // 4 if kind == "difference of worst classes" else runs
                    rng = np.random.default_rng([len(rows), images])
                    drawn = [sample(rng, profile(classes), images) for _ in range(count)]
                    above = np.mean([interval.low > truth + ROUNDING for interval, truth in drawn])
                    below = np.mean([interval.high < truth - ROUNDING for interval, truth in drawn])
                    cells.append(f"{100 * (1 - above - below):.1f} ({100 * above:.1f}, {100 * below:.1f})")
                rows.append(cells)
    heads = ["interval", "true accuracies", "classes", *(f"{images:,} images" for images in SIMULATED_IMAGES)]
    title = f"CV and differences at 95 %: simulated coverage (low end too high, high end too low), {runs:,} simulations"
    return table(title, heads, rows)


NOTES = """# Coverage and width of intervals

`python -m benchmarks interval-coverage`, about 45 minutes on one core, most of them for the tables over runs.

**Over training runs** (simulated; population: new images and new runs). "Former" is the bootstrap of seeds and images
that was used until 26 November 2026, with 200 resamples, in at most 200 repetitions. The intervals of worst classes are
those of `classwise.stats.seeds.worst_over_seeds` and `worst_difference_over_seeds`, those of class means
`mean_over_seeds` and `difference_over_seeds`. Run s is correct on an image with probability expit(logit + run effect +
image difficulty), with normal effects. The truth is the expected worst-class accuracy of a new run; with one run, that
of this run. A low end fails if it is too high, a high end if it is too low. With 2,000 repetitions the standard error
of a coverage of 95 % is 0.5 points, with 400 it is 1.1, with 150 it is 1.8.

- Within the assumptions the coverage is at least 94 % up to this error in every regime.
- Where the former interval covers, the median of new/former widths is below 1.1 for three, five and ten runs; single
  regimes with ties reach 1.8 for three runs, whose spread is estimated with two degrees of freedom.
- Two runs are valid and wide. Three or more are needed.
- Runs that fail rarely (last rows of the third table) are not covered with three runs.
- If both methods have several nearly tied classes, differences are wide: either worst class may be any of them.

**One run** (the other tables; population: new images of the same classes, the models fixed). The correct predictions of
a class are binomial, the classes independent, with equal numbers of images.

**Worst class.** Old interval: [min L, min U], both bounds at Sidak's level for all classes, Wilson's unless n p (1-p)
is below 10. New interval (`classwise.stats.intervals.lowest_interval`): Clopper and Pearson's bounds, L at alpha/2
without a correction for the number of classes, U at Sidak's level for a total of alpha/2. Coverage and mean width are
exact, not simulated: the ends are minima over independent classes.

- The lower end needs no correction: it is too high with probability at most alpha/2 in every setting, as proved.
- At 95 % the coverage is above 97 % from ten classes on, and above 96.5 % for two and three. The median width is 3 to
  13 % below that of the old interval; single settings range from 1 % above to 31 % below.
- The upper end needs it, and Wilson's upper bounds are not enough: with many classes tied near 1 they fail far more
  often than the level, in the old interval and in a new one with Wilson's bounds (last two columns of the first table).

**CV and differences** are simulated, {runs:,} times per cell, a quarter of that for the worst classes: the standard
error at 95 % is {error:.1f} ({error_quarter:.1f}) points. The true difference is 0: the models have class accuracies p
and 1 - p (CV, MCD), or both p, with nine outcomes of ten in common (worst class).

"""


def run(*, quick: bool) -> str:
    runs = QUICK_RUNS if quick else RUNS
    error = 100 * np.sqrt(0.95 * 0.05 / runs)
    tables = [seed_coverage.tables(quick=quick), worst_class_tables(quick=quick), difference_tables(quick=quick)]
    if not quick:
        page = NOTES.format(runs=runs, error=error, error_quarter=2 * error)
        PAGE.write_text((page + "\n".join(tables)).rstrip() + "\n", encoding="utf-8")
    return "\n".join(tables)
