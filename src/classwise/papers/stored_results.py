"""The results of a store, with the claims of each paper and scale corrected jointly for multiple testing.

The correction is computed here alone. It is saved with the results whenever one of them changes, so that a result's
file, the terminal, the page of its paper and the summary show the same verdicts with the same intervals.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from classwise.papers import catalogue
from classwise.papers.claims import correct_jointly
from classwise.papers.result import Result
from classwise.papers.scales import NAMES
from classwise.papers.store import Store


def stored_results(store: Store | None) -> dict[str, list[Result]]:
    """Every item of the catalogue to its results, largest scale first, corrected jointly.

    Args:
        store: store of results; None for no results.

    Raises:
        ClasswiseError: if a result is damaged.
    """
    found: dict[str, list[Result]] = {item: [] for item in catalogue.items()}
    files = [] if store is None else [store.result_file(item, scale) for item in found for scale in reversed(NAMES)]
    for result in _corrected([Result.load(file) for file in files if file.is_file()]):
        found[result.item].append(result)
    return found


def save_result(result: Result, store: Store) -> None:
    """Save a result, and the other results of its paper and scale whose verdicts it changes.

    Args:
        result: result of an item.
        store: store of results.

    Raises:
        ClasswiseError: if another result of the paper is damaged.
    """
    paper = result.item.partition("/")[0]
    with store.locked(f"results-{paper}-{result.scale}"):
        others = [item.id for item in catalogue.items().values() if item.paper == paper and item.id != result.item]
        files = [store.result_file(item, result.scale) for item in others]
        saved = [Result.load(file) for file in files if file.is_file()]
        first, *changed = _corrected([result, *saved])
        first.save(store.result_file(first.item, first.scale))
        for before, after in zip(saved, changed, strict=True):
            if repr([*after.verdicts]) != repr([*before.verdicts]):  # as text, since NaN differs from itself
                after.save(store.result_file(after.item, after.scale))


def _corrected(results: Sequence[Result]) -> list[Result]:
    """Correct the verdicts jointly over all results of the same paper and scale."""
    families = [(result.item.partition("/")[0], result.scale) for result in results]
    replaced = list(results)
    for family in dict.fromkeys(families):
        places = [place for place, other in enumerate(families) if other == family]
        verdicts = iter(correct_jointly([one for place in places for one in results[place].verdicts]))
        for place in places:
            count = len(results[place].verdicts)
            replaced[place] = dataclasses.replace(results[place], verdicts=tuple(itertools.islice(verdicts, count)))
    return replaced
