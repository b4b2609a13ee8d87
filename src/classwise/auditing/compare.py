"""Several models side by side on the same images: what differs, and whether it could be chance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.auditing.result import Audit
from classwise.errors import UserError, unknown
from classwise.stats import metrics
from classwise.stats.bounds import WORST_SHARE
from classwise.stats.counts import BoolArray, ClassCounts, IntArray, PairedCounts
from classwise.stats.intervals import Estimate, class_intervals, wilson
from classwise.stats.paired import ClassDifferences, class_differences, difference_of_minima, overall_difference
from classwise.stats.seeds import SeedMeans, mean_over_seeds, worst_over_seeds
from classwise.stats.worst import minimum

Source = Audit | str | Path


@dataclass(frozen=True)
class Pair:
    """Two methods, first minus second, each by its first seed.

    Attributes:
        first: its name.
        second: its name.
        classes: a row for each class: ``difference``, ``low``, ``high`` (Tango), ``p`` (exact McNemar), ``adjusted``
            (Holm over the classes).
        overall: the difference of the overall accuracies with its interval.
        p_value: exact McNemar over all images.
        minima: the difference of the worst-class accuracies with a simultaneous interval.
    """

    first: str
    second: str
    classes: pd.DataFrame
    overall: Estimate
    p_value: float
    minima: Estimate


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same images, each with one audit or one for each training seed.

    Attributes:
        audits: by the method's name.
        attack: what they are compared under.
        group: the grouping that stands in place of the class.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        UserError: if the audits are of other images, or lack the attack.
    """

    audits: Mapping[str, tuple[Audit, ...]]
    attack: str = ALL
    group: str | None = None
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not self.audits or not all(self.audits.values()):
            raise UserError("nothing to compare: give two audits or more")
        reference = next(iter(self.audits.values()))[0]
        for name, audits in self.audits.items():
            for audit in audits:
                if self.attack not in audit.names:
                    raise unknown(f"attack of {name!r}:", self.attack, audit.names)
                _same_images(reference, audit, name, self.attack)

    @property
    def names(self) -> tuple[str, ...]:
        """The methods."""
        return tuple(self.audits)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the groups in their place."""
        return self._reference.outcomes.grouping(self.group).names

    @property
    def _reference(self) -> Audit:
        return next(iter(self.audits.values()))[0]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each method.

        Columns: ``seeds`` and ``n`` (images); ``clean`` (overall accuracy); ``overall``, ``worst``, ``worst20``, each
        a mean over the seeds with ``_low`` and ``_high`` where an interval is known (population P for one seed: new
        images; T for several: new seeds too) and ``_sd``, the deviation over seeds (NaN for one); ``worst_class`` (the
        name; of the class means over the seeds); ``cv``, ``mcd``, ``nrr``, ``hmw``, ``macro``: means over the seeds.
        """
        rows = [self._row(audits) for audits in self.audits.values()]
        return pd.DataFrame(rows, index=pd.Index(self.names, name="method"))

    def _row(self, audits: Sequence[Audit]) -> dict[str, Any]:
        each = [audit.outcomes.counts(self.attack, self.group) for audit in audits]
        values = pd.DataFrame([_measures(counts, audit) for counts, audit in zip(each, audits, strict=True)])
        mean, deviation = values.mean(), values.std(ddof=1)
        classes = np.nanmean([counts.accuracy for counts in each], axis=0)
        overall, worst = self._intervals(each, audits)
        row: dict[str, Any] = {"seeds": len(audits), "n": int(each[0].count.sum()), "clean": mean["clean"]}
        for name, interval in (("overall", overall), ("worst", worst)):
            row |= {name: mean[name], f"{name}_low": interval.low, f"{name}_high": interval.high}
            row[f"{name}_sd"] = deviation[name]
        row["worst_class"] = self.group_names[metrics.worst_class(classes).label]
        return row | {"worst20_sd": deviation["worst20"]} | {key: mean[key] for key in ("worst20", *_PLAIN)}

    def _intervals(self, each: Sequence[ClassCounts], audits: Sequence[Audit]) -> tuple[Estimate, Estimate]:
        """Of the overall and the worst-class accuracy: new images, and new seeds too where there are several."""
        if len(audits) == 1:
            (counts,) = each
            low, high = wilson(counts.correct.sum(), counts.count.sum(), self.alpha)
            least = minimum(counts, self.alpha)
            overall = metrics.overall_micro(counts)
            return Estimate(overall, float(low), float(high)), Estimate(least.plug_in, least.low, least.high)
        correct, labels = self._answers(audits)
        means = mean_over_seeds(correct, np.zeros_like(labels), 1, self.alpha)
        whole = Estimate(float(means.mean[0]), float(means.low[0]), float(means.high[0]))
        return whole, worst_over_seeds(correct, labels, len(self.group_names), self.alpha)

    def _answers(self, audits: Sequence[Audit]) -> tuple[BoolArray, IntArray]:
        """(seeds, N) right answers and (N,) labels (or groups)."""
        judged = [audit.outcomes.judged(self.attack) for audit in audits]
        outcomes = self._reference.outcomes
        ids = outcomes.grouping(self.group).ids[np.searchsorted(outcomes.index, judged[0].image)]
        return np.stack([each.correct for each in judged]), ids

    @cached_property
    def classes(self) -> pd.DataFrame:
        """A row for each class with images: ``n``, and under each method's name ``mean``, ``low``, ``high``, ``sd``.

        The columns are pairs (method, value); with several seeds the interval is for new seeds and new images.
        """
        columns: dict[tuple[str, str], Any] = {}
        count = self._reference.outcomes.counts(self.attack, self.group).count
        for name, audits in self.audits.items():
            each = [audit.outcomes.counts(self.attack, self.group) for audit in audits]
            accuracies = np.stack([counts.accuracy for counts in each])
            low, high = self._class_intervals(each, audits)
            spread = accuracies.std(axis=0, ddof=1) if len(audits) > 1 else np.full(len(count), np.nan)
            values = {"mean": accuracies.mean(axis=0), "low": low, "high": high, "sd": spread}
            columns |= {(name, key): value for key, value in values.items()}
        columns = {("", "n"): count, **columns}
        frame = pd.DataFrame(columns, index=pd.Index(self.group_names, name=self.group or "class"))
        frame.columns = pd.MultiIndex.from_tuples(list(columns))
        return frame[frame["", "n"] > 0]

    def _class_intervals(self, each: Sequence[ClassCounts], audits: Sequence[Audit]) -> tuple[Any, Any]:
        if len(audits) == 1:
            return class_intervals(each[0], self.alpha)
        means: SeedMeans = mean_over_seeds(*self._answers(audits), len(self.group_names), self.alpha)
        return means.low, means.high

    def pair(self, first: str, second: str) -> Pair:
        """Two methods on the same images, by the first seed of each: first minus second.

        It is about new images and these two models; what another training would give, the deviations over seeds show.

        Raises:
            UserError: for a method that is not compared.
        """
        for name in (first, second):
            if name not in self.audits:
                raise unknown("method", name, self.audits)
        correct, labels = self._answers([self.audits[first][0], self.audits[second][0]])
        cells = PairedCounts.from_labels(labels, correct[0], correct[1], len(self.group_names))
        found: ClassDifferences = class_differences(cells, self.alpha)
        frame = pd.DataFrame(
            {
                "n": cells.count,
                "difference": found.difference,
                "low": found.low,
                "high": found.high,
                "p": found.p_value,
                "adjusted": found.adjusted,
            },
            index=pd.Index(self.group_names, name=self.group or "class"),
        )
        whole = overall_difference(cells, self.alpha)
        overall = Estimate(float(whole.difference[0]), float(whole.low[0]), float(whole.high[0]))
        minima = difference_of_minima(cells, self.alpha)
        return Pair(first, second, frame[frame["n"] > 0], overall, float(whole.p_value[0]), minima)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every other method against the first one."""
        first, *others = self.names
        return tuple(self.pair(name, first) for name in others)


_PLAIN = ("macro", "cv", "mcd", "nrr", "hmw")


def _measures(counts: ClassCounts, audit: Audit) -> dict[str, float]:
    overall, worst = metrics.overall_micro(counts), metrics.worst_class(counts.accuracy).accuracy
    known = CLEAN in audit.names
    clean = metrics.overall_micro(audit.outcomes.counts(CLEAN)) if known else float("nan")
    return {
        "clean": clean,
        "overall": overall,
        "macro": metrics.overall_macro(counts.accuracy),
        "worst": worst,
        "worst20": metrics.worst_share(counts.accuracy, WORST_SHARE),
        "cv": metrics.class_variance(counts.accuracy),
        "mcd": metrics.max_class_discrepancy(counts.accuracy),
        "nrr": metrics.nrr(clean, overall) if known else float("nan"),
        "hmw": metrics.hmw(overall, worst),
    }


def compare(
    audits: Sequence[Source] | Mapping[str, Source | Sequence[Source]],
    *,
    attack: str = ALL,
    group: str | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Put audits of the same images side by side.

    Args:
        audits: audits, folders of audits, or run folders that hold one audit each; or a mapping from a method's name to
            one of them or to one for each training seed. Without names, runs of one recipe that differ only in the seed
            are taken together under the recipe's name.
        attack: what to compare under: an attack, ``clean``, ``<family>-best``, ``<family>-union`` or ``all``.
        group: compare by groups in place of classes.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        UserError: if an audit cannot be read, the images differ, or the attack is missing.
    """
    if isinstance(audits, Mapping):
        methods = {name: _read_all(sources) for name, sources in audits.items()}
    else:
        methods = _by_recipe(audits)
    return Comparison(methods, attack, group, alpha)


def _read_all(sources: Source | Sequence[Source]) -> tuple[Audit, ...]:
    return tuple(map(_read, [sources] if isinstance(sources, Source) else sources))


def _read(source: Source) -> Audit:
    return source if isinstance(source, Audit) else Audit.load(source)


def _by_recipe(sources: Sequence[Source]) -> dict[str, tuple[Audit, ...]]:
    """Audits by method: those of runs that differ only in the seed together."""
    methods: dict[str, list[Audit]] = {}
    recipes: dict[str, str] = {}
    for source in sources:
        audit = _read(source)
        name, digest = _recipe_of(audit)
        known = digest is not None and digest in recipes
        label = recipes[digest] if known and digest is not None else _fresh(name, methods)
        if digest is not None:
            recipes[digest] = label
        methods.setdefault(label, []).append(audit)
    return {name: tuple(audits) for name, audits in methods.items()}


def _recipe_of(audit: Audit) -> tuple[str, str | None]:
    """The method's name, and a digest of the recipe without its seed if the audit lies in a run folder."""
    from classwise.training.folder import Run

    folders = [] if audit.path is None else list(audit.path.resolve().parents[:2])
    run = next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)
    if run is None:
        return (audit.path.name if audit.path is not None else audit.name), None
    recipe = dataclasses.asdict(dataclasses.replace(run.recipe, seed=0))
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()
    # Audits of one run that differ in name (other attacks, other weights) are not seeds of each other.
    return run.recipe.name, f"{digest}/{audit.path.name if audit.path else audit.name}"


def _fresh(name: str, taken: Mapping[str, Any]) -> str:
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)


def _same_images(one: Audit, other: Audit, name: str, attack: str) -> None:
    mine, theirs = one.outcomes.judged(attack), other.outcomes.judged(attack)
    if one.outcomes.class_names != other.outcomes.class_names:
        raise UserError(f"{name!r} has other classes than the first audit; only audits of the same data compare")
    if not (np.array_equal(mine.image, theirs.image) and np.array_equal(mine.label, theirs.label)):
        raise UserError(f"{name!r} judged other images than the first audit; audit both on the same ones")
    hashes = {audit.outcomes.meta.data_hash for audit in (one, other)} - {""}
    if len(hashes) > 1:
        raise UserError(f"{name!r} is of other pixels or labels than the first audit; audit both on the same data")
