"""The sources of a leaderboard: audits, folders of runs and audits, and JSON files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from classwise.auditing.compare.sources import teacher_of
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit_folder import ABOUT, SWEEP, audits_of, contains_audits
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, did_you_mean
from classwise.core.files.json_values import json_text
from classwise.core.files.reading import parse_json, read_bytes
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.settings.config import build
from classwise.reporting.board.entries import AttackSettings, Conditions, Entry, GuardWarning
from classwise.reporting.board.published import Published, published_in
from classwise.training.folder import Run

T = TypeVar("T")
ACCEPTED = "an audit, a run, a folder of these, a sweep, board.json, or a JSON file for or from RobustBench"
Source = Audit | str | os.PathLike[str]
"""What `classwise.board` reads; a text is a path."""


class Candidate(NamedTuple):
    """A model for a table: its conditions, its entry, the audit if its outcomes are known, whether NAME= names it."""

    conditions: Conditions
    entry: Entry
    audit: Audit | None = None
    named: bool = False


def read(source: Source) -> list[Candidate | Published]:
    """Read everything that a source contains.

    Raises:
        IncompleteError: if an audit lacks verdicts.
        ClasswiseError: if the source contains nothing for a leaderboard, or a file is invalid.
    """
    if isinstance(source, Audit):
        return [_candidate(source, source.name)]
    path = Path(source)
    if not path.exists():
        raise ClasswiseError(f"{path} does not exist{did_you_mean(path) or f'; expected {ACCEPTED}'}")
    if path.suffix == ".json" and path.is_file():
        return _in_json(path)
    audits = _audits_in(path)
    if not audits:
        raise ClasswiseError(f"{path} contains no audit; expected {ACCEPTED}")
    return [_candidate(Audit.load(folder), _name(folder, path)) for folder in audits]


def _audits_in(path: Path) -> list[Path]:
    """The folders of all audits in a run, a sweep, or a folder of runs or audits; a path to one itself."""
    if not path.is_dir() or (path / ABOUT).is_file() or outcome_files.listed(path):
        return [path]
    if contains_audits(path):
        return audits_of(path)
    place = path / "runs" if (path / SWEEP).is_file() else path
    folders = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
    runs = [folder for folder in folders if contains_audits(folder)]
    return [
        *(audit for run in runs for audit in _audits_in(run)),
        *(folder for folder in folders if (folder / ABOUT).is_file()),
    ]


def _name(folder: Path, source: Path) -> str:
    """The name of an audit: that of its run, with its own if the run has several, or of its folder."""
    audit = folder.resolve()
    run = audit.parent.parent if audit.parent.name == "audits" and contains_audits(audit.parent.parent) else None
    place = run or audit
    above = source.resolve()
    name = f"{above.name}/{place.name}" if above == place.parent and place.name.startswith("seed-") else place.name
    return name if run is None or len(_audits_in(run)) == 1 else f"{name}/{audit.name}"


def _candidate(audit: Audit, name: str) -> Candidate:
    entry = Entry.of(audit, name)
    run = _run_of(audit)
    if run is not None:
        settings = run.recipe.model
        network = settings.name if settings.width == 1.0 else f"{settings.name}, width {settings.width}"
        # Weights that a run starts from may have been trained on any data.
        extra = None if settings.weights is not None else run.recipe.data.unlabelled is not None
        teacher = teacher_of(audit)
        entry = dataclasses.replace(entry, network=entry.network or network, extra_data=extra, teacher=teacher)
    return Candidate(Conditions.of(audit), entry, audit)


def _run_of(audit: Audit) -> Run | None:
    """The run whose folder contains the audit; None for an audit elsewhere, whatever its model."""
    folder = None if audit.path is None else audit.path.resolve()
    if folder is None or folder.parent.name != "audits" or not (folder.parent.parent / "recipe.yaml").is_file():
        return None
    return Run(folder.parent.parent)


def _in_json(path: Path) -> list[Candidate | Published]:
    text = read_bytes(path)
    try:
        content = parse_json(text)
        json_text(content, allow_nan=False)
    except ValueError as error:
        raise ClasswiseError(f"{path} is not JSON; give an audit, a run, board.json or a RobustBench file") from error
    if isinstance(content, dict) and "tables" in content:
        return _in_board(content, path)
    if isinstance(content, dict) and isinstance(content.get("classwise"), dict):
        return [_in_robustbench(content, path)]
    if isinstance(content, dict) and "autoattack_acc" in content:
        return [published_in(content, path)]
    raise ClasswiseError(f"{path} is not a leaderboard and has no autoattack_acc; expected {ACCEPTED}")


def _in_board(content: Mapping[str, Any], path: Path) -> list[Candidate | Published]:
    """The entries of a ``board.json``; its ranks and intervals are computed again, from the counts."""
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise ClasswiseError(f"{path}: schema_version is {version!r}, expected a number")
    check_schema_version(version, SCHEMA_VERSIONS["board"], str(path))
    found: list[Candidate | Published] = []
    for number, table in enumerate(_list(content, "tables", str(path)), 1):
        where = f"{path}: table {number}"
        conditions = _built(Conditions, _mapping(table, "conditions", where), f"{where}: conditions")
        for place, row in enumerate(_list(table, "rows", where), 1):
            entry = _built(Entry, _mapping(row, "entry", f"{where}, row {place}"), f"{where}, row {place}")
            _check(entry, conditions, where)
            found.append(Candidate(conditions, entry))
    where = f"{path}: published"
    rows = _list(content, "published", str(path))
    return found + [_built(Published, _mapping({"row": row}, "row", where), where) for row in rows]


def _built(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a dataclass; every error begins with ``where``."""
    try:
        return build(kind, values, where)
    except ClasswiseError as error:
        message = str(error)
        raise ClasswiseError(message if where in message else f"{where}: {message}") from None


def _in_robustbench(content: Mapping[str, Any], path: Path) -> Candidate:
    """The entry of a file that `classwise.reporting.exports.robustbench` wrote."""
    block, where = content["classwise"], f"{path}: classwise"
    classes, settings, hashes = (_mapping(block, key, where) for key in ("classes", "settings", "hashes"))
    if "threat" not in settings:
        raise ClasswiseError(f"{where}: settings have no threat; write the file again with classwise report")
    rows = [_mapping(classes, str(name), f"{where}: classes") for name in classes]
    images = [row.get("n") for row in rows]
    attacks = _mapping(settings, "attacks", f"{where}: settings")
    conditions = _built(
        Conditions,
        {
            "data": content.get("dataset"),
            "split": block.get("split"),
            "data_sha256": hashes.get("data_sha256"),
            "classes": list(classes),
            "class_images": images,
            "threat": settings["threat"],
            "radii_sha256": "",
            "attacks": [AttackSettings("clean"), *(AttackSettings(label, spec) for label, spec in attacks.items())],
            "early_stop": settings.get("early_stop"),
            "cascade": settings.get("cascade"),
        },
        where,
    )
    extra = content.get("additional_data")
    entry = _built(
        Entry,
        {
            "name": path.stem,
            "correct": _counts(rows, conditions, "autoattack", where),
            "clean_correct": _counts(rows, conditions, "clean", where),
            "network": content.get("architecture") or "",
            "model_sha256": hashes.get("model_sha256"),
            "extra_data": extra if isinstance(extra, bool) else None,
            "warnings": [
                GuardWarning(str(guard.get("name")), str(guard.get("sentence")))
                for guard in _list(block, "guards", where)
            ],
            "guards": settings.get("guards"),
            "guards_not_run": block.get("guards_not_run", ()),
            "version": str(block.get("version") or ""),
        },
        where,
    )
    _check(entry, conditions, where)
    return Candidate(conditions, entry)


def _counts(rows: list[Mapping[str, Any]], conditions: Conditions, key: str, where: str) -> list[int]:
    """Counts from accuracies, which are fractions of the numbers of images."""
    counts = []
    for row, images in zip(rows, conditions.class_images, strict=True):
        share = row.get(key)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ClasswiseError(f"{where}: {key} of a class is {share!r}, expected a fraction from 0 to 1")
        counts.append(round(share * images))
    return counts


def _check(entry: Entry, conditions: Conditions, where: str) -> None:
    try:
        entry.check(conditions)
    except ClasswiseError as error:
        raise ClasswiseError(f"{where}: {error}") from None


def _part(content: Any, key: str, where: str, kind: type[T], name: str) -> T:
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, kind):
        raise ClasswiseError(f"{where}: {key} is missing or is not {name}")
    return value


def _mapping(content: Any, key: str, where: str) -> Mapping[str, Any]:
    return _part(content, key, where, dict, "a JSON object")


def _list(content: Any, key: str, where: str) -> list[Any]:
    return _part(content, key, where, list, "a list")
