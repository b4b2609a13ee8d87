"""The data of a viewer: counts of all images by class, and the outcome of each shown image in columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classwise.auditing.compare.comparability import members_of
from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.outcomes.table import ALL, NO_PREDICTION, UNION, Grouping, Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import weakness
from classwise.core.compute.rng import CounterRNG
from classwise.reporting import formatting
from classwise.reporting.escape import visible
from classwise.reporting.facts import sentences
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.weakness_sentences import (
    NOTE,
    clearest_heading,
    failure_text,
    weakness_sentences,
    weakness_title,
)
from classwise.stats.counts import IntArray
from classwise.stats.intervals import proportion_interval

MAX_IMAGES = 20_000
"""Maximum number of images in a viewer; of more images a sample is shown (`shown_images`)."""
MAX_MATRIX = 30
"""Maximum number of classes whose confusions are listed in full, and of the rows of the matrix."""
MAX_GROUPS = 200
"""Maximum number of groups of a grouping that is a filter."""
MAX_CELLS = 10_000
"""Maximum number of groups, and of crossings of groups, whose accuracies are in a viewer."""
TOP = 6
"""Number of predicted classes that are listed for each class if there are more."""
FINDINGS: Mapping[str, str] = {
    "zero-gradients": "gradients that are zero everywhere",
    "no-prediction": "logits without a prediction (NaN or infinite)",
}
"""What a guard looks for that is recorded for each image, by the name of the finding."""


def viewer_data(audits: Mapping[str, Audit], shown: IntArray) -> dict[str, Any]:
    """Everything that the script of a viewer reads, apart from the pixels.

    Args:
        audits: one or two complete audits of the same images, by name.
        shown: positions of the shown images in the outcomes, in the order of the viewer.
    """
    first = next(iter(audits.values()))
    outcomes, groups = first.outcomes, first.outcomes.grouping(first.group)
    data = {
        "kind": first.group or "class",
        "groups": groups.names,
        "classes": outcomes.class_names,
        "total": len(outcomes),
        "sizes": np.bincount(groups.ids, minlength=len(groups.names)).tolist(),
        "group": groups.ids[shown].tolist(),
        "label": outcomes.labels[shown].tolist(),
        "index": outcomes.index[shown].tolist(),
        "files": outcomes.image_names[shown].tolist() if any(outcomes.image_names) else None,
        "groupings": [
            {"name": name, "groups": grouping.names, "ids": grouping.ids[shown].tolist()}
            for name, grouping in other_groupings(first).items()
        ],
        "crossings": crossings(audits),
        "audits": [_audit(name, audit, shown) for name, audit in audits.items()],
        "changes": _changes(audits) if len(audits) > 1 else None,
    }
    cleaned: dict[str, Any] = _visible(data)
    return cleaned


def other_groupings(audit: Audit) -> dict[str, Grouping]:
    """The groupings of the images beside that of the audit, by name: those that a viewer has filters for."""
    outcomes, meta = audit.outcomes, audit.outcomes.meta
    names = ["class", *meta.groups, *(["superclass"] if meta.superclasses is not None else [])]
    found = {name: outcomes.grouping(name) for name in names if name != (audit.group or "class")}
    return {name: grouping for name, grouping in found.items() if 1 < len(grouping.names) <= MAX_GROUPS}


def crossings(audits: Mapping[str, Audit]) -> dict[str, Any]:
    """The accuracies of the groups of every grouping, and of the crossings of two or more groupings.

    They are of all images, also if a viewer shows a sample. Crossings of few groupings come first; those of groupings
    with more than `MAX_CELLS` crossings in all are left out.

    Returns:
        ``keys``: for each cell the number of its group in the grouping of the audits and in each of `other_groupings`,
        separated by commas, and empty for any group. ``n``: its images. ``accuracy``: for each audit and name the
        numbers of ``correct`` images, and the ends ``low`` and ``high`` of the intervals. Empty without groupings.
    """
    first = next(iter(audits.values()))
    others = other_groupings(first)
    if not others:
        return {}
    ids = np.stack([first.outcomes.grouping(first.group).ids, *(grouping.ids for grouping in others.values())])
    keys, members, left = list[str](), list[IntArray](), MAX_CELLS
    for size in range(1, len(ids) + 1):
        for chosen in itertools.combinations(range(len(ids)), size):
            cells, inverse = np.unique(ids[[*chosen]], axis=1, return_inverse=True)
            if cells.shape[1] > left:
                continue
            left -= cells.shape[1]
            members.append(inverse.reshape(-1) + len(keys))
            for cell in cells.T.tolist():
                held = dict(zip(chosen, map(str, cell), strict=True))
                keys.append(",".join(held.get(place, "") for place in range(len(ids))))

    def counted(images: NDArray[np.bool_] | None) -> IntArray:
        weights = None if images is None else images.astype(np.int64)
        return sum((np.bincount(cells, weights, len(keys)) for cells in members), np.zeros(len(keys))).astype(np.int64)

    number = counted(None)

    def accuracy(audit: Audit, name: str) -> dict[str, Any]:
        correct = counted(audit.outcomes.correct(name))
        low, high = proportion_interval(correct, number, audit.alpha)
        return {"correct": correct.tolist(), "low": _rounded(low, 4), "high": _rounded(high, 4)}

    found = [{name: accuracy(audit, name) for name in audit.outcomes.names} for audit in audits.values()]
    return {"keys": keys, "n": number.tolist(), "accuracy": found}


def shown_images(audits: Sequence[Audit], most: int = MAX_IMAGES) -> tuple[IntArray, str]:
    """The images that a viewer shows, sorted by class and index.

    Of more than ``most`` images, those of the weakest classes (in any of the audits) are all shown while they are at
    most half of ``most``; of the other classes a random sample is shown, of equal size for each, as far as possible.

    Returns:
        Positions in the outcomes, and a sentence on the sample; empty if all images are shown.
    """
    outcomes, group = audits[0].outcomes, audits[0].group
    names, ids = outcomes.grouping(group)
    order = np.lexsort((outcomes.index, ids))
    if len(order) <= most:
        return order, ""
    accuracy = np.min([audit.counts().accuracy for audit in audits], axis=0)
    sizes = np.bincount(ids, minlength=len(names))
    ascending = [int(number) for number in np.argsort(accuracy, kind="stable") if sizes[number]]
    fits = np.cumsum(sizes[ascending]) <= most // 2
    whole = list(itertools.compress(ascending, fits))
    left, quota = most - int(sizes[whole].sum()), sizes.copy()
    others = sorted(set(ascending) - set(whole), key=lambda number: int(sizes[number]))
    for place, number in enumerate(others):
        quota[number] = min(int(sizes[number]), left // (len(others) - place))
        left -= quota[number]
    shuffled = CounterRNG(0, "viewer").permutation(len(ids)).numpy()
    by_group = shuffled[np.argsort(ids[shuffled], kind="stable")]
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = by_group[rank < quota[ids[by_group]]]
    kept = order[np.isin(order, chosen)]
    kind = formatting.plural(group)
    sentence = (
        f"{formatting.count(len(kept))} of {formatting.count(len(ids))} images are shown: all images of the weakest "
        f"{formatting.count(len(whole))} {kind}, and a random sample of each other one. Counts, accuracies and "
        "intervals are of all images."
    )
    return kept, sentence


def _audit(name: str, audit: Audit, shown: IntArray) -> dict[str, Any]:
    summary, outcomes, meta = AuditSummary.of(audit), audit.outcomes, audit.outcomes.meta
    facts = sentences.AuditFacts.of(summary)
    before, worst, after = sentences.headline(facts)
    where = formatting.data_name(meta.data, meta.split)
    over = [meta.model, where, meta.threat or "", formatting.counted(len(outcomes), "image")]
    frame = outcomes.frame.set_index("index")
    return {
        "name": name,
        "over": [*filter(None, over)],
        "headline": f"{before}{worst}{after}",
        "lead": sentences.lead(facts),
        "weakness": _weakness(audit),
        "warnings": [[warning.name, warning.sentence] for warning in audit.warnings],
        "guards": "" if audit.guards is None else audit.guards.sentence,
        "strongest": summary.strongest,
        "cascade": meta.cascade,
        "attacks": outcomes.attacks,
        "candidates": summary.worst_candidates,
        "names": {verdict: _verdict(audit, verdict, shown) for verdict in outcomes.names},
        "rows": {attack: _rows(frame[frame["attack"] == attack], outcomes.index[shown]) for attack in outcomes.attacks},
    }


def _weakness(audit: Audit) -> dict[str, Any]:
    """The section on the class of lowest accuracy, and the indices of its clearest failures."""
    facts = weakness(audit)
    return {
        "title": weakness_title(facts),
        "sentences": weakness_sentences(facts),
        "heading": clearest_heading(facts),
        "clearest": [[failure.image, failure_text(failure)] for failure in facts.clearest],
        "note": NOTE,
    }


def _verdict(audit: Audit, name: str, shown: IntArray) -> dict[str, Any]:
    """What is known of the images under one of the names of an audit."""
    table, names = audit.outcomes.predicted(name, audit.group), audit.group_names
    counts = audit.counts(name)
    low, high = audit.intervals(name)
    return {
        "members": _members(audit.outcomes, name),
        "correct": counts.correct.tolist(),
        "low": _rounded(low, 4),
        "high": _rounded(high, 4),
        "confusions": _confusions(
            table["group"].to_numpy(), table["prediction"].to_numpy(), ~table["correct"].to_numpy(), len(names)
        ),
        "prediction": table["prediction"].to_numpy()[shown].tolist(),
    }


def _members(outcomes: Outcomes, name: str) -> list[str]:
    """The single attacks whose margins are those under a name."""
    decide = members_of(outcomes.meta, name)
    return [*decide] if name == ALL or len(decide) < 2 or name.endswith(f"-{UNION}") else [outcomes.member(name)]


def _confusions(
    groups: IntArray, predictions: IntArray, wrong: NDArray[np.bool_], number: int
) -> list[list[list[int]]]:
    """For each group the predicted classes of its misclassified images with their counts, most frequent first."""
    known = wrong & (predictions != NO_PREDICTION)
    pairs, counts = np.unique(np.stack([groups[known], predictions[known]]), axis=1, return_counts=True)
    found: list[list[list[int]]] = [[] for _ in range(number)]
    for (group, predicted), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        found[group].append([predicted, count])
    most = None if number <= MAX_MATRIX else TOP
    return [sorted(listed, key=lambda pair: (-pair[1], pair[0]))[:most] for listed in found]


def _rows(frame: Any, index: IntArray) -> dict[str, Any]:
    """The columns of one attack, in the order of the shown images; None for a column without a value."""
    rows = frame.reindex(index)
    passes = rows["forwards"] + rows["backwards"]
    skipped = (rows["status"] != "ok").to_numpy()
    columns = {
        "margin": _rounded(rows["margin"], 2),
        "confidence": _rounded(rows["p_predicted"], 3),
        "steps": _rounded(rows["iterations"], 0),
        "passes": _rounded(passes, 0),
        "prediction": _rounded(rows["prediction"], 0),
    }
    found = {
        key: [None if skip else value for skip, value in zip(skipped, values, strict=True)]
        for key, values in columns.items()
    }
    flags = {
        "zero-gradients": (rows["zero_gradients"].fillna(0) > 0).to_numpy(),
        "no-prediction": (rows["status"] == "nan").to_numpy(),
    }
    places = {key: np.flatnonzero(flag).tolist() for key, flag in flags.items()}
    return {
        **{key: values for key, values in found.items() if any(value is not None for value in values)},
        "findings": {key: positions for key, positions in places.items() if positions},
    }


def _rounded(values: Any, digits: int) -> list[float | int | None]:
    """Numbers with few digits; None for those that are not finite."""
    numbers = np.asarray(values.to_numpy(np.float64, na_value=np.nan) if hasattr(values, "to_numpy") else values)
    rounded = np.round(numbers.astype(np.float64), digits)
    if digits == 0:
        return [int(number) if np.isfinite(number) else None for number in rounded]
    return [number if np.isfinite(number) else None for number in rounded.tolist()]


def _changes(audits: Mapping[str, Audit]) -> dict[str, Any]:
    """The second audit minus the first, under each name: sentences, and a row for each class."""
    (first, before), (second, after) = audits.items()
    groups = before.outcomes.grouping(before.group)
    found = {}
    for name in before.names:
        if name not in after.names:
            continue
        comparison = compare({first: before, second: after}, attack=name, group=before.group)
        assert isinstance(comparison, Comparison)
        pair = comparison.pair(second, first)
        was, now = before.outcomes.correct(name), after.outcomes.correct(name)
        rows = pair.classes.reindex(groups.names)
        found[name] = {
            "sentences": _change_sentences(comparison),
            "lost": np.bincount(groups.ids[was & ~now], minlength=len(groups.names)).tolist(),
            "gained": np.bincount(groups.ids[now & ~was], minlength=len(groups.names)).tolist(),
            "difference": _rounded(rows["difference"], 4),
            "low": _rounded(rows["low"], 4),
            "high": _rounded(rows["high"], 4),
            "adjusted": _rounded(rows["adjusted"], 4),
        }
    return found


def _change_sentences(comparison: Comparison) -> list[str]:
    """The paired test over all images, the change of the worst class, and the classes that differ."""
    (pair,) = comparison.pairs
    level = formatting.level(comparison.alpha)
    overall, minima = pair.overall, pair.minima
    differing = [str(row) for row in pair.classes.index[pair.classes["adjusted"] < comparison.alpha]]
    lowest = comparison.lowest_classes
    p_value = formatting.probability(pair.p_value)
    test = f"{pair.test}, p {p_value if p_value.startswith('<') else f'= {p_value}'}"
    kinds = formatting.plural(comparison.group).capitalize()
    return [
        (
            f"{pair.first} minus {pair.second}, {comparison.conditions}, on the same images: "
            f"{formatting.points(overall.value, sign=True)} points overall ({level} interval "
            f"{formatting.signed_span(overall.low, overall.high)}; {test})."
        ),
        (
            f"Worst {formatting.singular(comparison.group)}: {formatting.points(minima.value, sign=True)} points "
            f"({formatting.signed_span(minima.low, minima.high)}); it was {formatting.listed(lowest[pair.second])}, "
            f"and is {formatting.listed(lowest[pair.first])}."
        ),
        (
            f"{kinds} that differ (p below {comparison.alpha:g}, adjusted for all of them): "
            f"{formatting.listed(differing) or 'none'}."
        ),
        formatting.sentence(pair.population),
    ]


def _visible(value: Any) -> Any:
    """The same value with control characters and bidirectional marks of all texts replaced."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): _visible(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return (
            value
            if isinstance(value, list) and value and isinstance(value[0], int | float)
            else [*map(_visible, value)]
        )
    return value
