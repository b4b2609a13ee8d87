"""The page of a comparison of methods on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison, Pair, narrowing_notes, population
from classwise.reporting import formatting
from classwise.reporting.facts.comparison_sentences import (
    PairFacts,
    comparison_warnings,
    decision,
    headline,
    method_sentences,
    pair_sentences,
    run_name,
)
from classwise.reporting.facts.comparison_tables import (
    MAX_METHODS,
    accuracy_points,
    class_dots,
    class_table,
    difference_dots,
    measure_dots,
    measure_table,
    pair_table,
    worst_of,
)
from classwise.reporting.facts.provenance import settings_of
from classwise.reporting.facts.training_curves import curves_of_audit
from classwise.reporting.facts.untested import bounds_context, crossing_context
from classwise.reporting.templating import both_widths, markup, render

if TYPE_CHECKING:
    from classwise.auditing.run.result import Audit


def comparison_page(comparison: Comparison | Crossing) -> str:
    """Render the page of a comparison; without tests across a field or with incomplete audits."""
    if isinstance(comparison, Crossing) or not comparison.complete:
        return render("untested.html", _untested(comparison))
    return render("compare.html", comparison_context(comparison))


def _untested(comparison: Comparison | Crossing) -> dict[str, Any]:
    shown = crossing_context(comparison) if isinstance(comparison, Crossing) else bounds_context(comparison)
    return shown | {
        "over": _over(comparison),
        "population": formatting.sentence(comparison.population) if isinstance(comparison, Crossing) else "",
        "warnings": comparison_warnings(comparison.audits, comparison.group),
        "notes": comparison.notes,
        "settings": _settings(comparison.audits),
    }


def _over(comparison: Comparison | Crossing) -> list[str]:
    """Line above the headline: data, threat, number of images, and attack conditions."""
    audit = next(iter(comparison.audits.values()))[0]
    meta = audit.outcomes.meta
    images = max(meta.images or 0, len(audit.outcomes))
    threat = meta.threat if isinstance(comparison, Comparison) and comparison.attacked else None
    over = [formatting.data_name(meta.data, meta.split), threat, formatting.counted(images, "image")]
    return ["classwise comparison", *filter(None, over), comparison.conditions]


def _settings(methods: Mapping[str, tuple[Audit, ...]]) -> dict[str, Any]:
    return {
        run_name(name, number, len(audits)): settings_of(audit)
        for name, audits in methods.items()
        for number, audit in enumerate(audits)
    }


def comparison_context(comparison: Comparison) -> dict[str, Any]:
    """Template context of the page of a comparison."""
    return {
        "title": f"Comparison: {formatting.listed(comparison.names)}",
        "over": _over(comparison),
        "headline": headline(comparison),
        "sentences": method_sentences(comparison),
        "lowest_interval": (
            f"{worst_of(comparison.group).capitalize()}: "
            f"{formatting.lowest_interval_name(comparison.alpha, comparison.group)}; of several seeds, of the mean "
            "over the seeds."
        ),
        "measures": both_widths(measure_dots, comparison),
        "points": None if accuracy_points(comparison) is None else both_widths(accuracy_points, comparison),
        "table": measure_table(comparison),
        "classes": both_widths(class_dots, comparison) if len(comparison.names) <= MAX_METHODS else None,
        "class_table": class_table(comparison).first(),
        "pairs": [_pair(comparison, pair) for pair in comparison.pairs],
        "warnings": comparison_warnings(comparison.audits, comparison.group),
        "curves": _curves(comparison.audits),
        "settings": _settings(comparison.audits),
        "population": formatting.sentence(population(comparison.seeds)),
        "notes": [*comparison.notes, *narrowing_notes(comparison.table)],
    }


def _pair(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    return {
        "title": f"{pair.first} minus {pair.second}",
        "sentences": [f"{decision(comparison, pair.first)}.", *pair_sentences(PairFacts.of(comparison, pair))],
        "dots": both_widths(difference_dots, comparison, pair),
        "table": pair_table(comparison, pair).first(),
    }


def _curves(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, Any]]:
    """Validation curves of the first training run of each method."""
    entries = []
    for name, audits in methods.items():
        curves = curves_of_audit(audits[0])
        if curves is not None and curves.drawings:
            drawing = next(iter(curves.drawings.values()))
            entries.append({"name": run_name(name, 0, len(audits)), "svg": markup(drawing)})
    return entries
