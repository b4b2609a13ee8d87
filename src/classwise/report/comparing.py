"""The page of a comparison: several models on the same images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classwise.auditing.compare import Comparison, Pair
from classwise.auditing.outcomes import ALL
from classwise.report import wording
from classwise.report.origin import curves_around
from classwise.report.provenance import settings_of
from classwise.report.rendering import markup, render
from classwise.report.sidebyside import (
    MOST_METHODS,
    best_of,
    class_dots,
    class_table,
    difference_dots,
    measure_dots,
    measure_table,
    methods_of,
    pair_table,
)
from classwise.stats.intervals import Estimate
from classwise.storage import write_text

if TYPE_CHECKING:
    from classwise.auditing.result import Audit


def compare_page(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write a comparison as one self-contained page.

    Args:
        comparison: what to show.
        path: of the HTML file; an old one is replaced.

    Returns:
        The path of the page.

    Raises:
        UserError: if the file cannot be written.
    """
    write_text(path, render("compare.html", comparison_context(comparison)))
    return Path(path)


def comparison_context(comparison: Comparison) -> dict[str, Any]:
    """Everything that the template of a comparison shows."""
    meta = next(iter(comparison.audits.values()))[0].outcomes.meta
    images = int(comparison.table["n"].iloc[0])
    over = [" ".join(filter(None, (meta.data, meta.split))), meta.threat, f"{wording.count(images)} images"]
    under = "every attack together" if comparison.attack == ALL else comparison.attack
    headline, sentences = _verdict(comparison)
    return {
        "title": f"Comparison: {wording.listed(comparison.names)}",
        "over": ["classwise comparison", *filter(None, over), f"under {under}"],
        "headline": headline,
        "sentences": sentences,
        "measures": markup(measure_dots(comparison)),
        "table": measure_table(comparison),
        "classes": markup(class_dots(comparison)) if len(comparison.names) <= MOST_METHODS else None,
        "class_table": class_table(comparison).first(200),
        "pairs": [_pair(comparison, pair) for pair in comparison.pairs],
        "warnings": _warnings(comparison.audits),
        "curves": _curves(comparison.audits),
        "settings": {
            _run_name(name, number, len(audits)): settings_of(audit)
            for name, audits in comparison.audits.items()
            for number, audit in enumerate(audits)
        },
        "population": _population(comparison),
    }


def _verdict(comparison: Comparison) -> tuple[dict[str, str], list[str]]:
    """The headline, which claims no more than the interval of the difference allows, and what stands below it."""
    methods, best = methods_of(comparison), best_of(comparison)
    row = methods[best]
    sentences = [
        f"{name}: weakest class {one['worst_class']} with {wording.percent(one['worst'])} "
        f"({wording.level(comparison.alpha)} interval {wording.span(one['worst_low'], one['worst_high'])}\u00a0%), "
        f"overall {wording.percent(one['overall'])} ({wording.span(one['overall_low'], one['overall_high'])}\u00a0%)."
        for name, one in methods.items()
    ]
    headline = {
        "before": f"{best} has the best weakest class: ",
        "strong": f"{row['worst_class']}, {wording.percent(row['worst'])}",
        "after": "",
    }
    if len(comparison.names) == 1:
        headline["before"] = "The weakest class is "
    elif not _clearly_best(comparison, best):
        headline = {
            "before": "No clear difference in the weakest class: ",
            "strong": f"{wording.percent(row['worst'])} at best",
            "after": f", with {best}",
        }
    return headline, sentences


def _clearly_best(comparison: Comparison, best: str) -> bool:
    """Whether the weakest class of one method is above those of all others beyond chance.

    For single models by the paired interval of the difference; for several seeds by intervals that do not overlap.
    """
    others = [name for name in comparison.names if name != best]
    if all(len(audits) == 1 for audits in comparison.audits.values()):
        return all(comparison.pair(best, name).minima.low > 0 for name in others)
    methods = methods_of(comparison)
    return all(methods[name]["worst_high"] < methods[best]["worst_low"] for name in others)


def _pair(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    level = wording.level(comparison.alpha)
    images = int(pair.classes["n"].sum())
    beyond = pair.classes[pair.classes["adjusted"] < comparison.alpha]
    sure = wording.listed([str(name) for name in beyond.index]) or "none"
    seeds = any(len(audits) > 1 for audits in comparison.audits.values())
    whose = "First seed of each. " if seeds else ""
    first = (
        f"{whose}Weakest class: {_difference(pair.minima)} points ({level} interval {_span(pair.minima)}). Overall: "
        f"{_difference(pair.overall)} points ({_span(pair.overall)}, p {wording.probability(pair.p_value)}), on "
        f"{wording.count(images)} images."
    )
    return {
        "title": f"{pair.first} minus {pair.second}",
        "sentences": [first, f"Classes that differ beyond chance, after Holm's correction: {sure}."],
        "dots": markup(difference_dots(comparison, pair)),
        "table": pair_table(comparison, pair).first(200),
    }


def _difference(estimate: Estimate) -> str:
    return wording.points(estimate.value, sign=True)


def _span(estimate: Estimate) -> str:
    return wording.signed_span(estimate.low, estimate.high)


def _run_name(name: str, number: int, seeds: int) -> str:
    return name if seeds == 1 else f"{name}, run {number + 1} of {seeds}"


def _warnings(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, str]]:
    """Every caution of every audit, after the names of the methods that share it."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for name, audits in methods.items():
        for audit in audits:
            for caution in audit.warnings:
                found.setdefault((caution.name, caution.sentence), {})[name] = None
    return [
        {
            "name": guard,
            "sentence": sentence if len(names) == len(methods) else f"{wording.listed(list(names))}: {sentence}",
        }
        for (guard, sentence), names in found.items()
    ]


def _curves(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, Any]]:
    """The validation curves of each method's first run, where there is one."""
    found = []
    for name, audits in methods.items():
        curves = curves_around(audits[0])
        if curves is not None and curves.drawings:
            found.append({"name": name, "svg": markup(next(iter(curves.drawings.values())))})
    return found


def _population(comparison: Comparison) -> str:
    if all(len(audits) == 1 for audits in comparison.audits.values()):
        return "Intervals and p values are about new images and these very models; another training may give others."
    return (
        "Intervals of methods with several seeds are about new images and new training seeds. Differences and p values "
        "are about new images and the first seed of each method."
    )
