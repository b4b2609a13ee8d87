"""The page of a comparison: several models on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from classwise.auditing.compare import Comparison, Crossing, Pair, population
from classwise.reporting import formatting
from classwise.reporting.provenance import settings_of
from classwise.reporting.side_by_side import (
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
from classwise.reporting.templating import markup, render
from classwise.reporting.training_run import curves_around
from classwise.reporting.untested import bounds_context, crossing_context
from classwise.stats.intervals import Estimate

if TYPE_CHECKING:
    from classwise.auditing.result import Audit


def comparison_page(comparison: Comparison | Crossing) -> str:
    """The page of a comparison; across a field, or with incomplete audits, without differences and tests."""
    if isinstance(comparison, Crossing) or not comparison.complete:
        return render("untested.html", _untested(comparison))
    return render("compare.html", comparison_context(comparison))


def _untested(comparison: Comparison | Crossing) -> dict[str, Any]:
    shown = crossing_context(comparison) if isinstance(comparison, Crossing) else bounds_context(comparison)
    return shown | {
        "over": _over(comparison),
        "population": _sentence(comparison.population) if isinstance(comparison, Crossing) else "",
        "warnings": _warnings(comparison.audits),
        "notes": comparison.notes,
        "settings": _settings(comparison.audits),
    }


def _over(comparison: Comparison | Crossing) -> list[str]:
    """What every number of the page is about."""
    audit = next(iter(comparison.audits.values()))[0]
    meta = audit.outcomes.meta
    images = max(meta.images or 0, len(audit.outcomes))
    threat = meta.threat if isinstance(comparison, Comparison) and comparison.attacked else None
    over = [" ".join(filter(None, (meta.data, meta.split))), threat, formatting.counted(images, "image")]
    return ["classwise comparison", *filter(None, over), comparison.conditions]


def _settings(methods: Mapping[str, tuple[Audit, ...]]) -> dict[str, Any]:
    return {
        _run_name(name, number, len(audits)): settings_of(audit)
        for name, audits in methods.items()
        for number, audit in enumerate(audits)
    }


def comparison_context(comparison: Comparison) -> dict[str, Any]:
    """Everything that the template of a comparison shows."""
    headline, sentences = _verdict(comparison)
    return {
        "title": f"Comparison: {formatting.listed(comparison.names)}",
        "over": _over(comparison),
        "headline": headline,
        "sentences": sentences,
        "measures": markup(measure_dots(comparison)),
        "table": measure_table(comparison),
        "classes": markup(class_dots(comparison)) if len(comparison.names) <= MOST_METHODS else None,
        "class_table": class_table(comparison).first(200),
        "pairs": [_pair(comparison, pair) for pair in comparison.pairs],
        "warnings": _warnings(comparison.audits),
        "curves": _curves(comparison.audits),
        "settings": _settings(comparison.audits),
        "population": _sentence(population(comparison.seeds)),
        "notes": comparison.notes,
    }


def _verdict(comparison: Comparison) -> tuple[dict[str, str], list[str]]:
    """The headline, which claims no more than the interval of the difference allows, and the sentences below it."""
    methods, best = methods_of(comparison), best_of(comparison)
    lowest = comparison.lowest_classes
    sentences = [_method_sentence(name, row, lowest[name], comparison.alpha) for name, row in methods.items()]
    single = methods[best[0]]["seeds"] == 1
    worst = formatting.percent(methods[best[0]]["worst"])
    over = {name: f" on average over {row['seeds']} seeds" * (row["seeds"] > 1) for name, row in methods.items()}
    named = f"{formatting.listed(lowest[best[0]])}, {worst}" if single else f"{worst}{over[best[0]]}"
    headline = {"before": f"{best[0]} has the best worst-class accuracy: ", "strong": named, "after": ""}
    if len(comparison.names) == 1:
        several = len(lowest[best[0]]) > 1
        which = "The worst classes are " if several else "The worst class is "
        headline["before"] = which if single else "Worst-class accuracy: "
    elif not _clearly_best(comparison, best[0]):
        headline = {
            "before": "No clear difference in worst-class accuracy: ",
            "strong": f"{worst} at best",
            "after": f", with {formatting.listed([name + over[name] for name in best])}",
        }
    return headline, sentences


def _method_sentence(name: str, row: Mapping[str, Any], lowest: Sequence[str], alpha: float) -> str:
    """The worst-class and the overall accuracy of a method, and how many trainings they are about."""
    seeds, several, classes = int(row["seeds"]), len(lowest) > 1, formatting.listed(lowest)
    worst = f"{formatting.percent(row['worst'])} ({formatting.interval(row['worst_low'], row['worst_high'], alpha)})"
    ends = formatting.interval(row["overall_low"], row["overall_high"], alpha).removeprefix(
        f"{formatting.level(alpha)} interval "
    )
    overall = f"overall {formatting.percent(row['overall'])} ({ends})"
    if seeds == 1:
        return f"{name} (one training): worst {'classes' if several else 'class'} {classes} with {worst}, {overall}."
    least = f"{classes} {'have' if several else 'has'} the lowest mean"
    return f"{name} (mean over {seeds} seeds): worst-class accuracy {worst}, {overall}; {least}."


def _clearly_best(comparison: Comparison, best: str) -> bool:
    """Whether the worst-class accuracy of one method is significantly above that of each other.

    The intervals of the differences are Bonferroni's over the other methods, since the best one was chosen for it.
    """
    others = [name for name in comparison.names if name != best]
    alpha = comparison.alpha / max(len(others), 1)
    return all(comparison.pair(best, name, alpha).minima.low > 0 for name in others)


def _pair(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    level, alpha = formatting.level(comparison.alpha), f"{comparison.alpha:g}"
    images, classes = int(pair.classes["n"].sum()), int(pair.classes["adjusted"].notna().sum())
    beyond = pair.classes[pair.classes["adjusted"] < comparison.alpha]
    significant = formatting.listed([str(name) for name in beyond.index], limit=len(beyond)) or "none"
    first = (
        f"Worst-class accuracy: {_difference(pair.minima)} points ({level} interval {_span(pair.minima)}). Overall: "
        f"{_difference(pair.overall)} points ({_span(pair.overall)}; p {formatting.probability(pair.p_value)}, "
        f"{pair.test}, not adjusted for other comparisons), on {formatting.counted(images, 'image')}."
    )
    second = (
        f"{'Groups' if comparison.group else 'Classes'} that differ significantly (p below {alpha} after Holm's "
        f"correction over {classes}): {significant}."
    )
    return {
        "title": f"{pair.first} minus {pair.second}",
        "sentences": [first, second, _sentence(pair.population)],
        "dots": markup(difference_dots(comparison, pair)),
        "table": pair_table(comparison, pair).first(200),
    }


def _sentence(phrase: str) -> str:
    return f"{phrase[:1].upper()}{phrase[1:]}."


def _difference(estimate: Estimate) -> str:
    return formatting.points(estimate.value, sign=True)


def _span(estimate: Estimate) -> str:
    return formatting.signed_span(estimate.low, estimate.high)


def _run_name(name: str, number: int, seeds: int) -> str:
    return name if seeds == 1 else f"{name}, run {number + 1} of {seeds}"


def _warnings(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, str]]:
    """Every caution of every audit, after the names of the methods, or of single runs, that share it."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for name, audits in methods.items():
        for number, audit in enumerate(audits):
            for caution in audit.warnings:
                found.setdefault((caution.name, caution.sentence), {}).setdefault(name, []).append(number)
    whole = {name: list(range(len(audits))) for name, audits in methods.items()}
    shown = []
    for (guard, sentence), runs in found.items():
        names = []
        for name, numbers in runs.items():
            total = len(methods[name])
            names += [name] if numbers == whole[name] else [_run_name(name, number, total) for number in numbers]
        shown.append(
            {
                "name": guard,
                "sentence": sentence if runs == whole else f"{formatting.listed(names, len(names))}: {sentence}",
            }
        )
    return shown


def _curves(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, Any]]:
    """The validation curves of each method's first run, where there is one."""
    found = []
    for name, audits in methods.items():
        curves = curves_around(audits[0])
        if curves is not None and curves.drawings:
            drawing = next(iter(curves.drawings.values()))
            found.append({"name": _run_name(name, 0, len(audits)), "svg": markup(drawing)})
    return found
