"""`board`: a leaderboard from audits."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from classwise.auditing.compare.comparability import Named, check_alike
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.names import fresh_name
from classwise.reporting.board.published import Published
from classwise.reporting.board.result import Board
from classwise.reporting.board.sources import Candidate, Source, read
from classwise.reporting.board.tables import BoardTable
from classwise.stats.intervals import alpha_of

__all__ = ["Board", "board"]


@checked
def board(
    sources: Annotated[
        Sequence[Source | Mapping[str, Source]] | Source | Mapping[str, Source],
        "an Audit, a path, or a list or mapping of these",
    ],
    *,
    confidence: Level = 0.95,
    extra_data: Mapping[str, bool] | None = None,
) -> Board:
    """Rank audited models by their worst-class accuracy, in one table for each set of conditions.

    Models are in one table only if their audits agree in data (hash, split, classes, images of each class), threat,
    attacks with all settings, early stop, cascade, repeats and grid. Accuracies are those under all attacks of the
    audit together.

    The rank of a model is 1 + the number of models in its table that are significantly better
    (`classwise.stats.model_ranks.worst_class_ranks`); models may share a rank. Rows are in the order of the ranks, then
    of the lower ends of the worst-class intervals.

    Args:
        sources: audits, folders of audits, run folders (all their audits), folders of runs or audits, ``board.json``
            files, and ``model_info`` files: with the results of classwise, which are rows, or of RobustBench, which
            are listed apart. Or a mapping from names to sources of one row each, also among the others of a list.
        confidence: the confidence level of the intervals, and of the ranks of a table jointly.
        extra_data: for names of rows, whether images beside the data set's own were used for training.

    Returns:
        A `Board`; ``cw.report(board, path)`` writes its page.

    Raises:
        IncompleteError: if an audit lacks verdicts.
        ClasswiseError: if a source cannot be read, two audits of one model disagree, or a name is unknown.

    Example:
        >>> import classwise as cw
        >>> labels = [0] * 200 + [1] * 200
        >>> outcomes = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0] * 150 + [1] * 250})
        >>> board = cw.board({"mine": cw.Audit(outcomes)})
        >>> board.tables[0].frame["worst_class"].tolist()
        ['0']
    """
    alpha = alpha_of(confidence)
    found = _all(sources)
    if not found:
        raise ClasswiseError("nothing to rank: give at least one audit")
    published = tuple(entry for entry in found if isinstance(entry, Published))
    groups: dict[str, list[Candidate]] = {}
    for candidate in (entry for entry in found if isinstance(entry, Candidate)):
        groups.setdefault(candidate.conditions.key, []).append(candidate)
    rows = _with_extra_data([_distinct(group) for group in groups.values()], extra_data or {})
    tables = [_table(group, alpha) for group in rows]
    order = sorted(tables, key=lambda table: -len(table.entries))
    by_threat = sorted(dict.fromkeys(published), key=lambda entry: (entry.data, entry.threat, -entry.overall))
    return Board(tuple(order), tuple(by_threat), alpha)


def _all(
    sources: Sequence[Source | Mapping[str, Source]] | Source | Mapping[str, Source],
) -> list[Candidate | Published]:
    each = [sources] if isinstance(sources, Mapping | Audit | str | os.PathLike) else [*sources]
    given = Counter(name for one in each if isinstance(one, Mapping) for name in one)
    if repeated := [name for name, count in given.items() if count > 1]:
        raise ClasswiseError(f"{repeated[0]!r} names {given[repeated[0]]} sources; give each a name of its own")
    return [entry for one in each for entry in (_named(one) if isinstance(one, Mapping) else read(one))]


def _named(sources: Mapping[str, Source]) -> list[Candidate | Published]:
    """The rows of named sources.

    Raises:
        ClasswiseError: if a source has another number of rows than one.
    """
    found: list[Candidate | Published] = []
    for name, source in sources.items():
        rows = read(source)
        if len(rows) != 1:
            raise ClasswiseError(
                f"{name}={source} contains {len(rows)} rows; a name applies to one row: give one audit"
            )
        [row] = rows
        if isinstance(row, Published):
            found.append(dataclasses.replace(row, name=name))
        else:
            found.append(row._replace(entry=dataclasses.replace(row.entry, name=name), named=True))
    return found


def _with_extra_data(groups: list[list[Candidate]], extra_data: Mapping[str, bool]) -> list[list[Candidate]]:
    """The rows of each table with what the caller states about their training data.

    Raises:
        ClasswiseError: for the name of no row.
    """
    names = [candidate.entry.name for group in groups for candidate in group]
    for name in extra_data:
        if name not in names:
            raise unknown("row", name, names)
    return [
        [
            candidate._replace(
                entry=dataclasses.replace(
                    candidate.entry, extra_data=extra_data.get(candidate.entry.name, candidate.entry.extra_data)
                )
            )
            for candidate in group
        ]
        for group in groups
    ]


def _distinct(group: list[Candidate]) -> list[Candidate]:
    """The candidates without repetitions of a model, and with distinct names.

    A model that was read from a file and as an audit is the audit, which has outcomes.

    Raises:
        ClasswiseError: if results of one model differ, as under another seed of the attacks.
    """
    models: list[Candidate] = []
    for candidate in group:
        place = next((place for place, known in enumerate(models) if _one_model(known, candidate)), None)
        if place is None:
            models.append(candidate)
            continue
        known = models[place]
        clean = {entry.clean_correct for entry in (known.entry, candidate.entry)} - {None}
        if known.entry.correct != candidate.entry.correct or len(clean) > 1:
            raise ClasswiseError(
                f"{known.entry.name!r} and {candidate.entry.name!r} are audits of the same model "
                f"(SHA-256 {candidate.entry.model_sha256[:12]}) under the same conditions with different results; "
                "give one of them"
            )
        models[place] = _merged(known, candidate) if known.audit is not None else _merged(candidate, known)
    named: dict[str, Candidate] = {}
    for candidate in models:
        name = fresh_name(candidate.entry.name, named)
        named[name] = candidate._replace(entry=dataclasses.replace(candidate.entry, name=name))
    return list(named.values())


def _one_model(first: Candidate, second: Candidate) -> bool:
    """Whether two candidates are of one model: equal weights and, where both are audits, equal code of the model.

    Audits without the hash of their model are known by their folder, or by their outcomes.
    """
    digests, audits = {first.entry.model_sha256, second.entry.model_sha256}, (first.audit, second.audit)
    if digests == {""}:
        return None not in audits and len({_identity(audit) for audit in audits if audit is not None}) == 1
    codes = [(audit.outcomes.meta.code or {}).get("model", {}) for audit in audits if audit is not None]
    return len(digests) == 1 and all(code == codes[0] for code in codes)


def _identity(audit: Audit) -> str:
    return f"outcomes {id(audit.outcomes)}" if audit.path is None else f"folder {audit.path.resolve()}"


def _merged(candidate: Candidate, other: Candidate) -> Candidate:
    """A candidate with the name and the training data of another one of its model, where its own are not stated."""
    changes: dict[str, Any] = {}
    if other.named and not candidate.named:
        changes["name"] = other.entry.name
    if candidate.entry.extra_data is None:
        changes["extra_data"] = other.entry.extra_data
    named = candidate.named or other.named
    return candidate._replace(entry=dataclasses.replace(candidate.entry, **changes), named=named)


def _table(group: list[Candidate], alpha: float) -> BoardTable:
    """The table of candidates with equal conditions.

    Raises:
        ClasswiseError: if two audits have other images, labels or settings, although their conditions are equal.
    """
    audits = [Named(candidate.entry.name, candidate.audit) for candidate in group if candidate.audit is not None]
    for other in audits[1:]:
        check_alike(audits[0], other, ALL if group[0].conditions.attacked else CLEAN, None)
    return BoardTable(
        conditions=group[0].conditions,
        entries=tuple(candidate.entry for candidate in group),
        audits=tuple(candidate.audit for candidate in group),
        labels=audits[0].audit.outcomes.labels if audits else None,
        alpha=alpha,
    )
