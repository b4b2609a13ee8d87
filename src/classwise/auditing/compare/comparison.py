"""Comparison of methods on the same images: accuracies, differences, and tests."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.auditing.compare.comparability import Named, check_alike, check_runs, members_of, seed_notes, unstated
from classwise.auditing.compare.sources import distillation_notes, teacher_of
from classwise.auditing.outcomes.display import RichDisplay
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY, cross_entropy_only
from classwise.core.errors import ClasswiseError, IncompleteError, printable, unknown
from classwise.core.rounding import in_percent
from classwise.core.settings.arguments import Level, checked
from classwise.stats import metrics
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import BoolArray, ClassCounts, IntArray, PairedCounts, ratio
from classwise.stats.intervals import Estimate, class_intervals, proportion_interval
from classwise.stats.metrics.averages import overall_bounds
from classwise.stats.metrics.lowest import worst_bounds
from classwise.stats.paired import class_differences, difference_of_minima, overall_difference
from classwise.stats.registry import MetricInputs, all_metrics, arranged
from classwise.stats.seeds import (
    OverSeeds,
    SeedMeans,
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)
from classwise.stats.selection import Selected, selected_interval


@dataclass(frozen=True)
class Pair:
    """Two methods on the same images, first minus second, over all training seeds of both.

    Attributes:
        first: name of the first method.
        second: name of the second method.
        classes: a row for each class: ``n``, ``difference``, ``low``, ``high``, and ``adjusted``, the p-value.
            Intervals and p-values are simultaneous over the classes (Sidak): an interval excludes 0 exactly if the
            p-value is below alpha.
        overall: the difference of the overall accuracies with its interval.
        p_value: of no difference over all images, below alpha exactly if ``overall`` excludes 0; not adjusted for the
            number of comparisons.
        minima: the difference of the worst-class accuracies with its interval; over several seeds, that of the mean
            worst-class accuracies of the runs.
        of_images: share of the squared distances to the ends of ``minima`` that is caused by new images.
        seeds: number of runs of each method.
    """

    first: str
    second: str
    classes: pd.DataFrame
    overall: Estimate
    p_value: float
    minima: Estimate
    of_images: float
    seeds: tuple[int, int]

    def __repr__(self) -> str:
        spans = [
            f"{name} {in_percent(found.value):+.1f} [{in_percent(found.low):+.1f}, {in_percent(found.high):+.1f}]"
            for name, found in (("overall", self.overall), ("worst class", self.minima))
        ]
        return printable(f"<Pair {self.first} minus {self.second}, in points: {', '.join(spans)}; {self.test}>")

    @property
    def narrower(self) -> Literal["images", "runs"]:
        """What would narrow the interval of ``minima`` most."""
        return "images" if self.of_images >= 0.5 else "runs"

    @property
    def test(self) -> str:
        """The test behind the p-values, in words."""
        if self.seeds == (1, 1):
            return "McNemar test"
        return "test over seeds and images"

    @property
    def population(self) -> str:
        """The population of intervals and p-values, in words."""
        return population({self.first: self.seeds[0], self.second: self.seeds[1]})


def narrowing(seeds: Sequence[int], narrower: str) -> str:
    """What would narrow an interval of a worst-class accuracy over runs, or of a difference, in words.

    Args:
        seeds: number of runs of each method that the interval is about.
        narrower: see `classwise.stats.seeds.OverSeeds`.
    """
    if 2 in seeds:
        return "with two runs it is valid but wide; three or more are needed"
    if max(seeds) == 1:
        return "more images would narrow it; new training seeds are not covered"
    return f"more {narrower} would narrow it most"


def narrowing_notes(table: pd.DataFrame) -> list[str]:
    """A sentence on the worst-class intervals of methods with equal advice; none if every method has one run.

    Args:
        table: of `classwise.auditing.compare.comparison.Comparison`.
    """
    methods: dict[str, list[str]] = {}
    for name, row in table.iterrows():
        methods.setdefault(narrowing([int(row["seeds"])], row["worst_narrower"]), []).append(str(name))
    several = (table["seeds"] > 1).any()
    return [f"Worst-class interval of {', '.join(names)}: {advice}." for advice, names in methods.items() if several]


def population(seeds: Mapping[str, int]) -> str:
    """The population of differences between methods, in words, by the number of training seeds of each."""
    single = [name for name, number in seeds.items() if number == 1]
    if len(single) == len(seeds):
        whose = "of each method" if len(seeds) > 1 else ""
        return f"one training run {whose}".strip() + ": intervals cover new images, not new training seeds"
    if not single:
        return "intervals cover new images and new training seeds"
    names = " and ".join(single)
    others = " and ".join(name for name in seeds if name not in single)
    verb = "is one training" if len(single) == 1 else "are one training each"
    return f"intervals cover new images and new training seeds of {others}; {names} {verb}"


@checked
@dataclass(frozen=True, eq=False)
class Comparison(RichDisplay):
    """Methods on the same images, each with one audit, or one audit for each training seed.

    The audits have the same images, labels, class names, threat, attacks, early stop, cascade, repeats, grid
    and grouping.

    Attributes:
        audits: by the method's name.
        attack: one of `Audit.names`, under which accuracies are compared.
        group: the grouping that is used instead of the class.
        alpha: 1 minus the coverage of the intervals.
        allow_incomplete: accept incomplete audits, which have `bounds` only.

    Raises:
        IncompleteError: if an audit is incomplete, unless that is allowed.
        ClasswiseError: if the audits differ in one of these fields, lack the attack, or a model occurs twice.

    Example:
        >>> import classwise as cw
        >>> labels, names = [0, 0, 0, 1, 1, 1], ["cat", "dog"]
        >>> at = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0, 0, 1, 1, 0, 0]}, class_names=names)
        >>> trades = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0, 0, 0, 1, 1, 0]}, class_names=names)
        >>> comparison = cw.compare({"at": cw.Audit(at), "trades": cw.Audit(trades)}, attack="pgd")
        >>> comparison.lowest_classes
        {'at': ('dog',), 'trades': ('dog',)}
        >>> comparison.pair("trades", "at").test
        'McNemar test'
    """

    audits: Mapping[str, tuple[Audit, ...]]
    attack: str = ALL
    group: str | None = None
    alpha: Level = 0.05
    allow_incomplete: bool = False

    def __post_init__(self) -> None:
        check_methods(self.audits, self.attack, self.group)
        if not self.complete and not self.allow_incomplete:
            raise IncompleteError(f"{self.advice}, or show bounds with allow_incomplete=True (--allow-incomplete)")

    def __repr__(self) -> str:
        worst: dict[Any, float] = self.table["worst"].to_dict() if self.complete else {}
        rows = [f"{name} worst {in_percent(worst[name]):.1f} %" if name in worst else name for name in self.names]
        return printable(f"<Comparison {self.conditions}{'' if self.complete else ', incomplete'}: {'; '.join(rows)}>")

    @property
    def advice(self) -> str:
        """What the first incomplete audit lacks, and how to continue it."""
        metas = [audit.outcomes.meta for audits in self.audits.values() for audit in audits]
        return f"{self.gaps[0]}; continue it with {max(metas, key=lambda meta: meta.sampled).completion}"

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """A phrase for each audit that lacks verdicts under the compared attack."""
        phrases = []
        for name, audits in self.audits.items():
            for number, audit in enumerate(audits):
                needed, label = self._needed(audit), _label(name, number, len(audits))
                lacking = {attack: count for attack, count in audit.outcomes.unjudged.items() if attack in needed}
                if lacking:
                    counts = ", ".join(f"{count:,} under {attack}" for attack, count in lacking.items())
                    what = audit.outcomes.meta.kind_if_incomplete
                    phrases.append(f"{label} is {what}: images not judged: {counts}")
                elif audit.outcomes.meta.images is None:
                    phrases.append(f"{label} is incomplete: its number of images is unknown")
        return tuple(phrases)

    def _needed(self, audit: Audit) -> tuple[str, ...]:
        """The attacks of an audit whose verdicts enter the comparison."""
        needed = {CLEAN, *members_of(audit.outcomes.meta, self.attack)}
        return tuple(label for label in audit.outcomes.attacks if label in needed)

    @property
    def attacked(self) -> bool:
        """Whether accuracies are compared under an attack, not only on clean images."""
        return self.attack != CLEAN and self._reference.attacks != (CLEAN,)

    @property
    def conditions(self) -> str:
        """The conditions of the accuracies, in words."""
        if not self.attacked:
            return "on clean images"
        if self.attack == ALL:
            return "under every attack together"
        cumulative = ", counts cumulative over the cascade" if self._reference.outcomes.meta.cascade else ""
        return f"under {self.attack}{cumulative}"

    @property
    def complete(self) -> bool:
        """Whether every audit has a verdict on every image under the compared attack."""
        return not self.gaps

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences on fields whose agreement was not checked, or that differ, and on the objectives of the attacks."""
        audits = [audit for runs in self.audits.values() for audit in runs]
        notes = []
        if len(audits) > 1 and (fields := unstated(audits, self.attack)):
            notes.append(f"No audit records these fields, so their agreement was not checked: {', '.join(fields)}.")
        if self.complete and any(audit.outcomes.unjudged for audit in audits):
            notes.append("An audit is incomplete under attacks that are not compared here.")
        kinds = {json.dumps(dict(audit.outcomes.meta.precision), sort_keys=True) for audit in audits}
        if self.attack != CLEAN and len(kinds) > 1:
            notes.append("The audits computed gradients at different precisions.")
        metas = [audit.outcomes.meta for audit in audits]
        ran = ({label: meta.attacks[label] for label in meta.applicable} for meta in metas)
        if self.attack != CLEAN and all(map(cross_entropy_only, ran)):
            notes.append(CROSS_ENTROPY)
        return (*notes, *seed_notes(audits, self.attack), *distillation_notes(self.teachers))

    @cached_property
    def teachers(self) -> dict[str, str]:
        """The teacher that each method distils, as its recipe names it; empty without one."""
        return {name: ", ".join(sorted({*map(teacher_of, audits)} - {""})) for name, audits in self.audits.items()}

    @property
    def seeds(self) -> dict[str, int]:
        """Number of runs of each method."""
        return {name: len(audits) for name, audits in self.audits.items()}

    @cached_property
    def bounds(self) -> pd.DataFrame:
        """A row for each method: bounds on its accuracies, whatever the verdicts on images that are not judged.

        Columns: ``seeds``; ``n`` (images; infinite if unknown); ``judged`` (images with a verdict, in the run that has
        fewest); ``overall_low``, ``overall_high``, ``worst_low``, ``worst_high``: the accuracies if all other images
        are misclassified, and if all are correct; means over the seeds.
        """
        rows = []
        for audits in self.audits.values():
            each = pd.DataFrame([_bounds(audit, self.attack, self.group) for audit in audits])
            rows.append({"seeds": len(audits), **each.mean(), "n": each["n"].max(), "judged": each["judged"].min()})
        return pd.DataFrame(rows, index=pd.Index(self.names, name="method"))

    @property
    def judged_by_all(self) -> int:
        """Number of images that have a verdict in every audit under the compared attack."""
        judged = []
        for audit in (audit for audits in self.audits.values() for audit in audits):
            known = [audit.outcomes.verdicts(label) >= 0 for label in self._needed(audit)]
            judged.append(set(audit.outcomes.index[np.all(known, axis=0)].tolist()))
        return len(set.intersection(*judged))

    def _need_verdicts(self) -> None:
        if not self.complete:
            raise IncompleteError(f"{self.gaps[0]}; only bounds are known")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(self.audits)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups."""
        return self._reference.outcomes.grouping(self.group).names

    @property
    def _reference(self) -> Audit:
        return next(iter(self.audits.values()))[0]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each method.

        Columns: ``seeds`` and ``n`` (images); ``clean`` (overall accuracy); ``overall``, ``worst``, ``worst20``: means
        over the seeds, with ``_low`` and ``_high`` where there is an interval (population P for one seed: new images; T
        for several: new seeds too) and ``_sd``, the standard deviation over seeds (NaN for one seed);
        ``worst_narrower``: what would narrow the interval of the worst class most, ``images`` or ``runs``;
        ``worst_class``: the name of the class of lowest mean over the seeds, the first of equal ones; and each other
        metric of `classwise.stats.METRICS`: means over the seeds. ``clean`` and ``nrr`` are NaN for a run
        without a clean pass, and ``nrr`` also if clean images are compared. If a method distils a teacher, also
        ``teacher``, else empty.
        """
        self._need_verdicts()
        table = pd.DataFrame(
            [self._row(name, audits) for name, audits in self.audits.items()], pd.Index(self.names, name="method")
        )
        return table.assign(teacher=list(self.teachers.values())) if any(self.teachers.values()) else table

    @cached_property
    def _correct(self) -> dict[str, BoolArray]:
        """(seeds, N) for each method: which images are classified correctly."""
        return {
            name: np.stack([audit.outcomes.correct(self.attack) for audit in audits])
            for name, audits in self.audits.items()
        }

    @property
    def _ids(self) -> IntArray:
        """(N,) labels, or groups."""
        return self._reference.outcomes.grouping(self.group).ids

    @cached_property
    def counts(self) -> dict[str, tuple[ClassCounts, ...]]:
        """Number of images and of correct images of each class (or group), for every run of each method."""
        self._need_verdicts()
        groups = len(self.group_names)
        return {
            name: tuple(ClassCounts.from_labels(self._ids, correct, groups) for correct in runs)
            for name, runs in self._correct.items()
        }

    @cached_property
    def inputs(self) -> dict[str, tuple[MetricInputs, ...]]:
        """What metrics are computed from, for every run of each method; without clean counts if these are compared."""
        return {
            name: tuple(self._inputs(*run) for run in zip(self.audits[name], counts, strict=True))
            for name, counts in self.counts.items()
        }

    def _inputs(self, audit: Audit, counts: ClassCounts) -> MetricInputs:
        inputs = audit.outcomes.inputs(self.attack, BoundedCounts.of(counts), self.group)
        return inputs if self.attacked else dataclasses.replace(inputs, clean=None)

    @cached_property
    def lowest_classes(self) -> dict[str, tuple[str, ...]]:
        """For each method the class of lowest mean accuracy over the seeds; several classes if they are equal."""
        lowest = {}
        for name, runs in self.counts.items():
            # All runs have the same images: a single division of integers, so that equal means are equal floats.
            accuracy = ratio(sum(run.correct for run in runs), sum(run.count for run in runs))
            labels = np.flatnonzero(accuracy == metrics.worst_class(accuracy).accuracy)
            lowest[name] = tuple(self.group_names[label] for label in labels)
        return lowest

    def _row(self, name: str, audits: Sequence[Audit]) -> dict[str, Any]:
        each, known = self.counts[name], all_metrics()
        values = pd.DataFrame(
            [{key: metric.value_in_table(inputs) for key, metric in known.items()} for inputs in self.inputs[name]]
        ).assign(
            clean=[
                metrics.overall_micro(audit.outcomes.counts(CLEAN)) if CLEAN in audit.names else np.nan
                for audit in audits
            ]
        )
        mean, deviation = values.mean(skipna=False), values.std(ddof=1, skipna=False)
        if len(audits) > 1:
            mean[[key for key, metric in known.items() if not metric.mean_over_seeds]] = np.nan
        overall, worst = self._intervals(name)
        lowest = self.lowest_classes[name][0]
        row: dict[str, Any] = {"seeds": len(audits), "n": int(each[0].count.sum()), "clean": mean["clean"]}
        for name, interval in (("overall", overall), ("worst", worst)):
            row |= {name: mean[name], f"{name}_low": interval.low, f"{name}_high": interval.high}
            row[f"{name}_sd"] = deviation[name]
        row |= {"worst_class": lowest, "worst_narrower": worst.narrower}
        others = arranged("worst20", "macro", without=("overall", "worst"))
        return row | {"worst20_sd": deviation["worst20"]} | {metric.name: mean[metric.name] for metric in others}

    def _intervals(self, name: str) -> tuple[Estimate, OverSeeds]:
        """Intervals of overall and worst-class accuracy for new images; with several seeds, also for new seeds."""
        correct, labels = self._correct[name], self._ids
        worst = worst_over_seeds(correct, labels, len(self.group_names), self.alpha)
        if len(correct) == 1:
            (counts,) = self.counts[name]
            low, high = proportion_interval(counts.correct.sum(), counts.count.sum(), self.alpha)
            return Estimate(metrics.overall_micro(counts), float(low), float(high)), worst
        means = mean_over_seeds(correct, np.zeros_like(labels), 1, self.alpha)
        return Estimate(float(means.mean[0]), float(means.low[0]), float(means.high[0])), worst

    @cached_property
    def best(self) -> tuple[str, ...]:
        """Names of the methods with the highest worst-class accuracy on these images; several if they are equal."""
        worst: dict[Any, float] = self.table["worst"].round(12).to_dict()
        return tuple(name for name in self.names if worst[name] == max(worst.values()))

    @cached_property
    def selected(self) -> Selected | None:
        """The first of `best`, with intervals that account for its selection; None without another method."""
        number, groups = len(self.names), len(self.group_names)
        if number < 2:
            return None

        def worst(place: int, alpha: float) -> tuple[float, float]:
            corrected = alpha < self.alpha
            found = worst_over_seeds(self._correct[self.names[place]], self._ids, groups, alpha, simultaneous=corrected)
            return found.low, found.high

        def overall(place: int, alpha: float) -> tuple[float, float]:
            # Of one run, the exact interval, which Wilson's does not approximate at a small alpha.
            labels = np.zeros_like(self._ids)
            found = mean_over_seeds(self._correct[self.names[place]], labels, 1, alpha, simultaneous=True)
            return float(found.low[0]), float(found.high[0])

        place = self.names.index(self.best[0])
        # A method with fewer runs has a much wider interval, which would set the upper end of every selected method.
        alike = len(set(self.seeds.values())) == 1
        of_worst = selected_interval(worst, number, place, self.alpha, criterion=alike)
        of_overall = selected_interval(overall, number, place, self.alpha, criterion=False)
        value: dict[Any, float] = self.table.iloc[place][["worst", "overall"]].astype(float).to_dict()
        estimates = Estimate(value["worst"], *of_worst), Estimate(value["overall"], *of_overall)
        return Selected(self.best[0], number, *estimates, tied=len(self.best) - 1)

    @cached_property
    def classes(self) -> pd.DataFrame:
        """A row for each class with images; the columns are pairs (method, value).

        Values: ``mean``, ``low``, ``high``, ``sd`` of each method; ``n`` under the empty name. With several seeds the
        interval is for new seeds and new images.
        """
        self._need_verdicts()
        columns: dict[tuple[str, str], Any] = {}
        count = np.bincount(self._ids, minlength=len(self.group_names))
        for name, runs in self.counts.items():
            accuracies = np.stack([counts.accuracy for counts in runs])
            low, high = self._class_intervals(name)
            spread = accuracies.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(count), np.nan)
            values = {"mean": accuracies.mean(axis=0), "low": low, "high": high, "sd": spread}
            columns |= {(name, key): value for key, value in values.items()}
        columns = {("", "n"): count, **columns}
        frame = pd.DataFrame(columns, index=pd.Index(self.group_names, name=self.group or "class"))
        frame.columns = pd.MultiIndex.from_tuples(list(columns))
        return frame[frame["", "n"] > 0]

    def _class_intervals(self, name: str) -> tuple[Any, Any]:
        if len(self.counts[name]) == 1:
            return class_intervals(self.counts[name][0], self.alpha)
        means: SeedMeans = mean_over_seeds(self._correct[name], self._ids, len(self.group_names), self.alpha)
        return means.low, means.high

    def pair(self, first: str, second: str, alpha: Level | None = None) -> Pair:
        """Compare two methods on the same images, over all seeds of each: first minus second.

        With one seed each: McNemar tests and the intervals that agree with them (`classwise.stats.paired`), for new
        images and these two models. With several seeds: tests over seeds and images (`classwise.stats.seeds`). Images
        are paired. Equal seeds are not: the runs of each method show their own spread, with twice the degrees of
        freedom of differences per seed.

        Args:
            first: name of a method.
            second: name of another method.
            alpha: 1 minus the coverage of the intervals; None: that of the comparison.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: for an unknown method.
        """
        self._need_verdicts()
        alpha = self.alpha if alpha is None else alpha
        for name in (first, second):
            if name not in self.audits:
                raise unknown("method", name, self.audits)
        return self._pair(first, second, self._correct[first], self._correct[second], alpha)

    def after_loss(self, method: str, images: ArrayLike) -> Pair:
        """Compare the first method with itself, as if every run misclassified some of its correct images.

        With one run of each method, no other outcomes with this loss of a class, or of all images, have an interval
        that ends as far below 0.

        Args:
            method: name of the method that is replaced, of which the number of runs is taken.
            images: (C,) number of images that each class (or group) loses: those that are correct in most runs.
        """
        first, ids = self.names[0], self._ids
        others = self._correct[first]
        runs = others[np.arange(len(self.audits[method])) % len(others)]
        order = np.lexsort((-runs.sum(axis=0), ids))
        rank = np.empty_like(ids)
        rank[order] = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
        return self._pair(method, first, runs & (rank >= np.asarray(images)[ids]), others, self.alpha)

    def _pair(self, first: str, second: str, runs: BoolArray, others: BoolArray, alpha: float) -> Pair:
        labels, count, seeds = self._ids, len(self.group_names), (len(runs), len(others))
        by_class: Any
        of_images: Any
        if seeds == (1, 1):
            cells = PairedCounts.from_labels(labels, runs[0], others[0], count)
            by_class, of_images = class_differences(cells, alpha), overall_difference(cells, alpha)
            minima = OverSeeds(*difference_of_minima(cells, alpha), 1.0)
        else:
            by_class, of_images = (
                difference_over_seeds(runs, others, ids, size, alpha, paired=False)
                for ids, size in ((labels, count), (np.zeros_like(labels), 1))
            )
            minima = worst_difference_over_seeds(runs, others, labels, count, alpha)
        columns = {name: getattr(by_class, name) for name in ("difference", "low", "high", "adjusted")}
        classes = pd.Index(self.group_names, name=self.group or "class")
        frame = pd.DataFrame({"n": np.bincount(labels, minlength=count), **columns}, index=classes)
        overall = Estimate(float(of_images.difference[0]), float(of_images.low[0]), float(of_images.high[0]))
        return Pair(
            first,
            second,
            classes=frame[frame["n"] > 0],
            overall=overall,
            p_value=float(of_images.p_value[0]),
            minima=Estimate(*minima[:3]),
            of_images=minima.of_images,
            seeds=seeds,
        )

    def under(self, attack: str) -> Comparison:
        """The comparison of the same audits under another attack, such as ``clean``.

        Raises:
            IncompleteError: if an audit is incomplete under it, unless that is allowed.
            ClasswiseError: if an audit has no such attack.
        """
        if attack == self.attack:
            return self
        if attack not in self._others:
            self._others[attack] = dataclasses.replace(self, attack=attack)
        return self._others[attack]

    @cached_property
    def _others(self) -> dict[str, Comparison]:
        """The comparisons under other attacks."""
        return {}

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every other method against the first one; empty for incomplete audits."""
        if not self.complete:
            return ()
        first, *others = self.names
        return tuple(self.pair(name, first) for name in others)


def check_methods(
    methods: Mapping[str, tuple[Audit, ...]], attack: str, group: str | None, *, across: str | None = None
) -> None:
    """Check that all audits of all methods are comparable.

    Raises:
        IncompleteError: if the attack is not applicable to a model.
        ClasswiseError: if there is no audit, an attack is missing, audits differ, or a model occurs twice in a method.
    """
    if not methods or not all(methods.values()):
        raise ClasswiseError("nothing to compare: give at least two audits")
    named = [
        Named(_label(name, number, len(audits)), audit)
        for name, audits in methods.items()
        for number, audit in enumerate(audits)
    ]
    for method in named:
        meta = method.audit.outcomes.meta
        if attack not in (*method.audit.names, *meta.attacks):
            raise unknown(f"attack of {method.name}:", attack, method.audit.names)
        if attack in meta.not_applicable:
            raise IncompleteError(
                f"{method.name} has no robust accuracy under {attack!r}: not applicable to its model: "
                f"{', '.join(meta.not_applicable)}"
            )
    for method in named[1:]:
        check_alike(named[0], method, attack, group, across)
    check_runs(methods, attack, across)


def _label(name: str, number: int, total: int) -> str:
    return repr(name) if total == 1 else f"{name!r} (run {number + 1} of {total})"


def _bounds(audit: Audit, attack: str, group: str | None) -> dict[str, float]:
    """The row of one audit in `Comparison.bounds`."""
    counts = audit.outcomes.bounds(attack, group)
    row = {"n": counts.total, "judged": float(counts.judged.sum())}
    for name, (low, high) in (("overall", overall_bounds(counts)), ("worst", worst_bounds(counts))):
        row |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return row
