"""The page of a comparison of methods on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison, Pair, narrowing, narrowing_notes, population
from classwise.reporting import formatting
from classwise.reporting.comparison_tables import (
    MAX_METHODS,
    accuracy_points,
    best_of,
    class_dots,
    class_table,
    difference_dots,
    measure_dots,
    measure_table,
    methods_of,
    pair_table,
    unexceeded_methods,
)
from classwise.reporting.figures.layout import NARROW
from classwise.reporting.provenance import settings_of
from classwise.reporting.templating import markup, render
from classwise.reporting.training_run import curves_of_audit
from classwise.reporting.untested import bounds_context, crossing_context
from classwise.stats.intervals import Estimate

if TYPE_CHECKING:
    from markupsafe import Markup

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
        "population": _sentence(comparison.population) if isinstance(comparison, Crossing) else "",
        "warnings": _warnings(comparison.audits),
        "notes": comparison.notes,
        "settings": _settings(comparison.audits),
    }


def _over(comparison: Comparison | Crossing) -> list[str]:
    """Line above the headline: data, threat, number of images, and attack conditions."""
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
    """Template context of the page of a comparison."""
    headline, sentences = _headline(comparison)
    return {
        "title": f"Comparison: {formatting.listed(comparison.names)}",
        "over": _over(comparison),
        "headline": headline,
        "sentences": sentences,
        "lowest_interval": (
            f"Worst class: {formatting.lowest_interval_name(comparison.alpha, comparison.group)}; of several seeds, of "
            "the mean over the seeds."
        ),
        "measures": markup(measure_dots(comparison), measure_dots(comparison, width=NARROW)),
        "points": _points(comparison),
        "table": measure_table(comparison),
        "classes": markup(class_dots(comparison), class_dots(comparison, width=NARROW))
        if len(comparison.names) <= MAX_METHODS
        else None,
        "class_table": class_table(comparison).first(200),
        "pairs": [_pair(comparison, pair) for pair in comparison.pairs],
        "warnings": _warnings(comparison.audits),
        "curves": _curves(comparison.audits),
        "settings": _settings(comparison.audits),
        "population": _sentence(population(comparison.seeds)),
        "notes": [*comparison.notes, *narrowing_notes(comparison.table)],
    }


def _headline(comparison: Comparison) -> tuple[dict[str, str], list[str]]:
    """The headline, which names a best method only if it is significantly better, and a sentence per method.

    More than `MAX_METHODS` methods have one sentence, with those that no other one exceeds.
    """
    methods, best = methods_of(comparison), best_of(comparison)
    lowest = comparison.lowest_classes
    sentences = [_method_sentence(name, row, lowest[name], comparison.alpha) for name, row in methods.items()]
    if len(methods) > MAX_METHODS:
        ahead = unexceeded_methods(comparison)
        named = formatting.listed(ahead, limit=len(ahead))
        measures = "both overall and worst-class accuracy on these images"
        sentences = [f"Of {len(methods)} methods, no other is higher in {measures} than {named}."]
    single = methods[best[0]]["seeds"] == 1
    worst = formatting.percent(methods[best[0]]["worst"])
    over = {name: f"mean over {row['seeds']} seeds" if row["seeds"] > 1 else "" for name, row in methods.items()}
    strong = f"{worst} ({formatting.listed(lowest[best[0]]) if single else over[best[0]]})"
    headline = {"before": f"{best[0]} has the highest worst-class accuracy: ", "strong": strong, "after": ""}
    if len(comparison.names) == 1:
        headline["before"] = "Worst-class accuracy: "
    elif not _clearly_best(comparison, best[0]):
        named = formatting.listed([f"{name} ({over[name]})" if over[name] else name for name in best])
        before = "No worst-class accuracy is significantly above all others; the highest is "
        if len(best) == len(methods):
            before = "Equal worst-class accuracies on these images: "
        elif len(methods) == 2:
            before = "No significant difference in worst-class accuracy; the highest is "
        headline = {"before": before, "strong": worst, "after": f" with {named}"}
    return headline, sentences


def _points(comparison: Comparison) -> Markup | None:
    drawings = accuracy_points(comparison), accuracy_points(comparison, width=NARROW)
    return None if drawings[0] is None else markup(drawings[0], drawings[1])


def _method_sentence(name: str, row: Mapping[str, Any], lowest: Sequence[str], alpha: float) -> str:
    """Worst-class and overall accuracy of a method with intervals, and its number of training runs."""
    seeds, classes = int(row["seeds"]), formatting.listed(lowest)
    worst = f"worst-class accuracy {formatting.percent(row['worst'])}"
    worst_interval = formatting.interval(row["worst_low"], row["worst_high"], alpha)
    ends = formatting.interval(row["overall_low"], row["overall_high"], alpha).removeprefix(
        f"{formatting.level(alpha)} interval "
    )
    overall = f"overall accuracy {formatting.percent(row['overall'])} ({ends})"
    if seeds == 1:
        return f"{name} (one training run): {worst} ({classes}; {worst_interval}), {overall}."
    verb = "have" if len(lowest) > 1 else "has"
    return f"{name} (mean over {seeds} seeds): {worst} ({worst_interval}), {overall}; {classes} {verb} the lowest mean."


def _clearly_best(comparison: Comparison, best: str) -> bool:
    """Whether the worst-class accuracy of one method is significantly above that of every other method.

    The intervals of the differences are Bonferroni-corrected for the other methods, because the best one was selected.
    """
    others = [name for name in comparison.names if name != best]
    alpha = comparison.alpha / max(len(others), 1)
    return all(comparison.pair(best, name, alpha).minima.low > 0 for name in others)


def _pair(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    level, alpha = formatting.level(comparison.alpha), f"{comparison.alpha:g}"
    images, classes = int(pair.classes["n"].sum()), int(pair.classes["adjusted"].notna().sum())
    beyond = pair.classes[pair.classes["adjusted"] < comparison.alpha]
    significant = formatting.listed([str(name) for name in beyond.index], limit=len(beyond)) or "none"
    advice = f"; {narrowing(pair.seeds, pair.narrower)}" if max(pair.seeds) > 1 else ""
    first = (
        f"Difference in worst-class accuracy: {_difference(pair.minima)} percentage points ({level} interval "
        f"{_span(pair.minima)}{advice}). Difference in overall accuracy: {_difference(pair.overall)} percentage points "
        f"({_span(pair.overall)}; p {formatting.probability(pair.p_value)}, {pair.test}, not adjusted for other "
        f"comparisons), on {formatting.counted(images, 'image')}."
    )
    second = (
        f"{'Groups' if comparison.group else 'Classes'} with a significant difference (p\u00a0<\u00a0{alpha}, adjusted "
        f"for {classes} tests): {significant}."
    )
    return {
        "title": f"{pair.first} minus {pair.second}",
        "sentences": [first, second, _sentence(pair.population)],
        "dots": markup(difference_dots(comparison, pair), difference_dots(comparison, pair, width=NARROW)),
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
    """Warnings of all audits, prefixed with the methods or single runs that raised them."""
    runs_by_warning: dict[tuple[str, str], dict[str, list[int]]] = {}
    for name, audits in methods.items():
        for number, audit in enumerate(audits):
            for warning in audit.warnings:
                runs_by_warning.setdefault((warning.name, warning.sentence), {}).setdefault(name, []).append(number)
    all_runs = {name: list(range(len(audits))) for name, audits in methods.items()}
    shown = []
    for (guard, sentence), runs in runs_by_warning.items():
        names = []
        for name, numbers in runs.items():
            total = len(methods[name])
            names += [name] if numbers == all_runs[name] else [_run_name(name, number, total) for number in numbers]
        shown.append(
            {
                "name": guard,
                "sentence": sentence if runs == all_runs else f"{formatting.listed(names, len(names))}: {sentence}",
            }
        )
    return shown


def _curves(methods: Mapping[str, tuple[Audit, ...]]) -> list[dict[str, Any]]:
    """Validation curves of the first training run of each method."""
    entries = []
    for name, audits in methods.items():
        curves = curves_of_audit(audits[0])
        if curves is not None and curves.drawings:
            drawing = next(iter(curves.drawings.values()))
            entries.append({"name": _run_name(name, 0, len(audits)), "svg": markup(drawing)})
    return entries
