"""`compare`: compare audits of the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, overload

import pandas as pd

from classwise.auditing.compare.comparability import CROSSED, radius_of, seed_notes, value_of
from classwise.auditing.compare.comparison import Comparison, check_methods, population
from classwise.auditing.compare.sources import Source, as_list, by_method, read_all
from classwise.auditing.outcomes.display import TextDisplay
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError, printable, unknown
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.names import fresh_name
from classwise.stats.intervals import alpha_of


@checked
@dataclass(frozen=True, eq=False)
class Crossing(TextDisplay):
    """Audits that differ in one field, such as the threat: accuracies at each of its values, without tests.

    The other fields agree as in a `Comparison`. A difference between two values may be due to the field, to the
    models, or to both, so there are no p-values and no differences of methods across values.

    Attributes:
        field: the field that differs, a key of `CROSSED`.
        levels: the comparison of the audits at each value of the field, by the value's text; radii ascend.
    """

    field: str
    levels: Mapping[str, Comparison]

    def __repr__(self) -> str:
        return printable(f"<Crossing of {self.field}: {', '.join(self.levels)}; {', '.join(self.names)}>")

    @property
    def _first(self) -> Comparison:
        return next(iter(self.levels.values()))

    @property
    def attack(self) -> str:
        """The attack under which accuracies are compared."""
        return self._first.attack

    @property
    def conditions(self) -> str:
        """The conditions of the accuracies, in words."""
        return " or ".join(dict.fromkeys(level.conditions for level in self.levels.values()))

    @property
    def group(self) -> str | None:
        """The grouping that is used instead of the class."""
        return self._first.group

    @property
    def alpha(self) -> float:
        """1 minus the coverage of the intervals."""
        return self._first.alpha

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(dict.fromkeys(name for level in self.levels.values() for name in level.names))

    @property
    def seeds(self) -> dict[str, int]:
        """Smallest number of runs of each method at one value."""
        return {
            name: min(level.seeds[name] for level in self.levels.values() if name in level.seeds) for name in self.names
        }

    @property
    def population(self) -> str:
        """The population of the intervals, in words."""
        seeds = {number for level in self.levels.values() for number in level.seeds.values()}
        if len({number > 1 for number in seeds}) == 1:
            return population(self.seeds)
        return "intervals cover new images; in rows of several seeds also new training seeds"

    @property
    def notes(self) -> tuple[str, ...]:
        """Distinct notes of the comparisons."""
        notes = [note for level in self.levels.values() for note in level.notes]
        audits = [audit for runs in self.audits.values() for audit in runs]
        return tuple(dict.fromkeys([*notes, *seed_notes(audits, self.attack)]))

    @property
    def audits(self) -> dict[str, tuple[Audit, ...]]:
        """Audits of each method at all values of the field."""
        return {
            name: tuple(audit for level in self.levels.values() for audit in level.audits.get(name, ()))
            for name in self.names
        }

    @cached_property
    def radii(self) -> tuple[str, tuple[float, ...]] | None:
        """The norm and the radius of each level; None unless all threats have the same norm and one radius each."""
        threats = [radius_of(next(iter(level.audits.values()))[0]) for level in self.levels.values()]
        known = [threat for threat in threats if threat is not None]
        if self.field != "threat" or len(known) < len(threats) or len({norm for norm, _ in known}) > 1:
            return None
        return known[0][0], tuple(radius for _, radius in known)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each method and value of the field, with the columns of `Comparison.table`."""
        frames = {level: comparison.table for level, comparison in self.levels.items()}
        frame = pd.concat(frames, names=[self.field]).swaplevel()
        return frame.loc[[(name, level) for name in self.names for level in frames if (name, level) in frame.index]]


def crossing(
    methods: Mapping[str, tuple[Audit, ...]], field: str, attack: str, group: str | None, alpha: float
) -> Crossing:
    """Check that audits differ in one field only, and group them by its values.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: for an unsupported field, audits that differ in another field, or a single value.
    """
    if field not in CROSSED:
        raise unknown("field to compare across:", field, CROSSED)
    if attack == CLEAN:
        raise ClasswiseError(f"clean accuracy does not depend on the {field}; omit across={field!r} (--across {field})")
    check_methods(methods, attack, group, across=field)
    levels: dict[Any, tuple[str, dict[str, list[Audit]]]] = {}
    for name, audits in methods.items():
        for audit in audits:
            value = value_of(field, audit, attack)
            if not value.stated:
                raise ClasswiseError(f"{name!r} has no recorded {field}, so it cannot be compared across {field}")
            levels.setdefault(value.key, (value.text, {}))[1].setdefault(name, []).append(audit)
    if len(levels) < 2:
        ((text, _),) = levels.values()
        raise ClasswiseError(f"all audits have the same {field}, {text}; omit across={field!r} (--across {field})")
    order = list(levels.values())
    if field == "threat":
        place = {text: radius_of(next(iter(audits_of.values()))[0]) or ("~", 0.0) for text, audits_of in order}
        order.sort(key=lambda level: place[level[0]])
    comparisons: dict[str, Comparison] = {}
    for text, audits_of in order:
        methods = {method: tuple(audits) for method, audits in audits_of.items()}
        found = Comparison(methods, attack, group, alpha, allow_incomplete=True)
        if not found.complete:
            raise IncompleteError(found.advice)
        comparisons[fresh_name(text, comparisons)] = found
    return Crossing(field, comparisons)


Compared = Annotated[
    Sequence[Source] | Source | Mapping[str, Source | Sequence[Source]],
    "an Audit, a folder, or a list or mapping of these",
]


@overload
def compare(
    audits: Compared,
    *others: Source,
    attack: str = ...,
    group: str | None = ...,
    confidence: Level = ...,
    across: None = ...,
    allow_incomplete: bool = ...,
) -> Comparison: ...
@overload
def compare(
    audits: Compared,
    *others: Source,
    attack: str = ...,
    group: str | None = ...,
    confidence: Level = ...,
    across: str,
    allow_incomplete: bool = ...,
) -> Crossing: ...
@checked
def compare(
    audits: Compared,
    *others: Source,
    attack: str = ALL,
    group: str | None = None,
    confidence: Level = 0.95,
    across: str | None = None,
    allow_incomplete: bool = False,
) -> Comparison | Crossing:
    """Compare audits of the same images.

    The audits must agree in images, labels, class names, threat, attacks, early stop, cascade, repeats, grid
    and grouping.

    Args:
        audits: audits, folders of audits, run folders with one audit each, or folders of a method's seeds (runs of
            ``train --seeds``, or audits whose folder names differ in a number, such as ``seed-0`` and ``seed-1``); or
            a mapping from a method's name to one of them or to several, one for each training seed. Without names,
            runs of one recipe that differ only in the seed are one method, named after the recipe.
        *others: further audits, as in ``compare(first, second)``.
        attack: the attack to compare under: an attack, ``clean``, ``<family>-best``, ``<family>-union`` or ``all``.
        group: compare by group instead of class.
        confidence: the confidence level of the intervals, between 0 and 1.
        across: ``"threat"`` or ``"attacks"``: report audits that differ in it at each of its values, without tests.
        allow_incomplete: accept incomplete audits; the result then has bounds only, without tests.

    Returns:
        A `Comparison`; with ``across`` a `Crossing`.

    Raises:
        IncompleteError: if an audit is incomplete under the attack, unless that is allowed.
        ClasswiseError: if an audit cannot be read, the audits differ in one of these fields, or the attack is missing.

    Example:
        >>> import classwise as cw
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> def outcomes(predictions):
        ...     return cw.Outcomes.from_predictions(labels, attacks={"pgd": predictions}, class_names=["cat", "dog"])
        >>> at, trades = cw.Audit(outcomes([0, 0, 1, 1, 0, 0])), cw.Audit(outcomes([0, 0, 0, 1, 1, 0]))
        >>> comparison = cw.compare({"at": at, "trades": trades}, attack="pgd")
        >>> comparison.table["worst"].round(2).to_dict()  # the table has a row per method
        {'at': 0.33, 'trades': 0.67}
        >>> comparison.pairs[0].classes["difference"].round(2).to_dict()  # trades minus at, in each class
        {'cat': 0.33, 'dog': 0.33}
    """
    alpha = alpha_of(confidence)
    if isinstance(audits, Mapping):
        if others:
            raise ClasswiseError("compare(): give a mapping of all audits, or audits without names; not both")
        methods = {name: read_all(audit) for name, audit in audits.items()}
    else:
        methods = by_method([*as_list(audits), *others], across)
    if across is None:
        return Comparison(methods, attack, group, alpha, allow_incomplete)
    if allow_incomplete:
        raise ClasswiseError(
            "across (--across) requires complete audits; omit it or allow_incomplete (--allow-incomplete)"
        )
    return crossing(methods, across, attack, group, alpha)
