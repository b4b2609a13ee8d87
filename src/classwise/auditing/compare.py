"""`compare`: put audits of the same images side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from classwise.auditing.across import Crossing, crossing
from classwise.auditing.comparison import Comparison
from classwise.auditing.outcomes import ALL
from classwise.auditing.pairs import Pair, population
from classwise.auditing.sources import Source, by_method, read_all
from classwise.core.errors import ClasswiseError

__all__ = ["Comparison", "Crossing", "Pair", "compare", "population"]


@overload
def compare(
    audits: Sequence[Source] | Source | Mapping[str, Source | Sequence[Source]],
    *,
    attack: str = ...,
    group: str | None = ...,
    alpha: float = ...,
    across: None = ...,
    allow_incomplete: bool = ...,
) -> Comparison: ...
@overload
def compare(
    audits: Sequence[Source] | Source | Mapping[str, Source | Sequence[Source]],
    *,
    attack: str = ...,
    group: str | None = ...,
    alpha: float = ...,
    across: str,
    allow_incomplete: bool = ...,
) -> Crossing: ...
def compare(
    audits: Sequence[Source] | Source | Mapping[str, Source | Sequence[Source]],
    *,
    attack: str = ALL,
    group: str | None = None,
    alpha: float = 0.05,
    across: str | None = None,
    allow_incomplete: bool = False,
) -> Comparison | Crossing:
    """Put audits of the same images side by side.

    Audits are compared if they agree in images, labels, class names, threat, attacks, early stop, cascade and grouping.

    Args:
        audits: audits, folders of audits, run folders that hold one audit each, or folders of a method's seeds (the
            runs that ``train --seeds`` made, or audits whose folder names differ in a number, such as ``seed-0`` and
            ``seed-1``); or a mapping from a method's name to one of them or to several, one for each training seed.
            Without names, runs of one recipe that differ only in the seed are one method under the recipe's name.
        attack: what to compare under: an attack, ``clean``, ``<family>-best``, ``<family>-union`` or ``all``.
        group: compare by groups in place of classes.
        alpha: 1 minus the coverage of the intervals.
        across: ``"threat"`` or ``"attacks"``: audits that differ in it are shown at each of its values, without tests.
        allow_incomplete: accept audits that lack verdicts; then only bounds are known, and nothing is tested.

    Returns:
        A `Comparison`; a `Crossing` with ``across``.

    Raises:
        IncompleteError: if an audit lacks verdicts under the attack, unless that is allowed.
        ClasswiseError: if an audit cannot be read, the audits differ in what they should agree in, or the attack is
            missing.

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
    if isinstance(audits, Mapping):
        methods = {name: read_all(sources) for name, sources in audits.items()}
    else:
        given = [audits] if isinstance(audits, Source) else list(audits)
        methods = by_method(given, across)
    if across is None:
        return Comparison(methods, attack, group, alpha, allow_incomplete)
    if allow_incomplete:
        raise ClasswiseError("a comparison across a field needs complete audits; leave out one of the two")
    return crossing(methods, across, attack, group, alpha)
