"""The sources of a comparison: audits, their folders, run folders, and folders of the seeds of one method."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit_folder import ABOUT, contains_audits
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.settings.names import fresh_name

if TYPE_CHECKING:
    from classwise.training.folder import Run

Source = Audit | str | os.PathLike[str]
"""An audit, its folder, a run with one audit or its folder, or a folder of a method's seeds."""


def as_list(sources: Source | Sequence[Source]) -> list[Source]:
    """Several sources, or one, as a list."""
    return [sources] if isinstance(sources, Audit | str | os.PathLike) else [*sources]


def audits_in(path: Path) -> list[Path]:
    """The audits or runs in a folder of a method's seeds; any other path itself.

    Raises:
        ClasswiseError: if the folder contains audits whose names differ in more than a number.
    """
    from classwise.training.folder import runs_in

    if runs := runs_in(path):
        return runs
    single = (path / ABOUT).is_file() or contains_audits(path) or not path.is_dir()
    if single or outcome_files.listed(path) or outcome_files.listed(path / "outcomes"):
        return [path]
    audits = [folder for folder in sorted(path.iterdir()) if (folder / ABOUT).is_file()]
    stems = {re.sub(r"\d+$", "", folder.name) for folder in audits}
    if len(stems) > 1 or (len(audits) > 1 and any(not folder.name[-1].isdigit() for folder in audits)):
        names = ", ".join(folder.name for folder in audits[:4])
        raise ClasswiseError(
            f"{path} contains audits whose names differ in more than a seed's number ({names}); give each separately, "
            f"such as NAME={audits[0]}"
        )
    return sorted(audits, key=lambda folder: (len(folder.name), folder.name)) or [path]


def training_seed(audit: Audit) -> int | None:
    """Seed of the audited training run: from its recipe, else from a folder named ``seed-K``; None if unknown."""
    if audit.path is None:
        return None
    run = _run_of(audit)
    if run is not None:
        return int(run.recipe.seed)
    names = [folder.name for folder in (audit.path.absolute(), *audit.path.absolute().parents[:3])]
    match = next((match for name in names if (match := re.fullmatch(r"seed[-_]?(\d+)", name))), None)
    return None if match is None else int(match[1])


def teacher_of(audit: Audit) -> str:
    """The teacher that the audited training run distilled, as its recipe names it; empty without one."""
    run = None if audit.path is None else _run_of(audit)
    objective = None if run is None else run.recipe.objective
    return str(objective.get("teacher") or "") if isinstance(objective, Mapping) else ""


def distillation_notes(teachers: Mapping[str, str]) -> list[str]:
    """A sentence on the methods that distil a teacher, if the others do not; ``teachers`` are by method."""
    names = [name for name, teacher in teachers.items() if teacher]
    if not 0 < len(names) < len(teachers):
        return []
    verb = "distils" if len(names) == 1 else "distil"
    return [f"{', '.join(names)} {verb} a teacher, which is usually larger; the others do not."]


def read_all(sources: Source | Sequence[Source]) -> tuple[Audit, ...]:
    """Read the audits of one method from its sources.

    Raises:
        ClasswiseError: if an audit cannot be read.
    """
    return tuple(audit for source in as_list(sources) for audit in _expanded(source))


def _expanded(source: Source) -> list[Audit]:
    """The audit itself, or the audits of all seeds in a folder."""
    return [source] if isinstance(source, Audit) else [Audit.load(path) for path in audits_in(Path(source))]


def by_method(sources: Sequence[Source], across: str | None) -> dict[str, tuple[Audit, ...]]:
    """Audits by method: runs that differ only in the seed are one method; across a field, so are audits of one model.

    Raises:
        ClasswiseError: if the runs in a folder differ in more than the seed.
    """
    methods: dict[str, list[Audit]] = {}
    labels: dict[str, str] = {}
    for source in sources:
        audits = _expanded(source)
        identified = [_method_of(audit, across) for audit in audits]
        name, digest = identified[0]
        if not isinstance(source, Audit) and audits_in(Path(source)) != [Path(source)]:
            if len({digest for _, digest in identified} - {None}) > 1 and across is None:
                raise ClasswiseError(f"the runs in {source} differ in more than the seed; give each separately")
            name = name if _run_of(audits[0]) is not None else Path(source).resolve().name
        known = digest is not None and digest in labels
        label = labels[digest] if known and digest is not None else fresh_name(name, methods)
        if digest is not None:
            labels[digest] = label
        methods.setdefault(label, []).extend(audits)
    return {name: tuple(audits) for name, audits in methods.items()}


def _method_of(audit: Audit, across: str | None) -> tuple[str, str | None]:
    """The method's name, and a key that is equal for audits of one method; None if it is unknown."""
    run = _run_of(audit)
    name = audit.path.name if audit.path is not None else audit.name
    home = None if audit.path is None else audit.path.absolute().parent.parent
    if run is None:
        name = home.name if home is not None and contains_audits(home) else name  # of a model in a sweep
        model = audit.outcomes.meta.model_hash
        return (audit.outcomes.meta.model or name, model) if across is not None and model else (name, None)
    recipe = dataclasses.asdict(dataclasses.replace(run.recipe, seed=0))
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()
    # Audits of one run with different names (other attacks, other weights) are different methods.
    return run.recipe.name, digest if across is not None else f"{digest}/{name}"


def _run_of(audit: Audit) -> Run | None:
    """The run whose folder contains the audit, or None."""
    from classwise.training.folder import Run

    folders = [] if audit.path is None else list(audit.path.resolve().parents[:2])
    return next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)
