"""`compare`: compare audits of the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, overload

from classwise.auditing.compare.across import Crossing, crossing
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.compare.sources import Source, by_method, read_all
from classwise.auditing.outcomes.table import ALL
from classwise.core.arguments import Level, checked
from classwise.core.errors import ClasswiseError
from classwise.stats.intervals import alpha_of

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

    The audits must agree in images, labels, class names, threat, attacks, early stop, cascade and grouping.

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
        methods = {name: read_all(each) for name, each in audits.items()}
    else:
        methods = by_method([*([audits] if isinstance(audits, Source) else audits), *others], across)
    if across is None:
        return Comparison(methods, attack, group, alpha, allow_incomplete)
    if allow_incomplete:
        raise ClasswiseError("across requires complete audits; omit across or allow_incomplete")
    return crossing(methods, across, attack, group, alpha)
