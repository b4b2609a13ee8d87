"""Where compared audits come from: folders of audits, of runs, and of the seeds of one method."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classwise.auditing import outcome_files
from classwise.auditing.audit_folder import ABOUT
from classwise.auditing.result import Audit
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from classwise.training.folder import Run

Source = Audit | str | Path
"""An audit, its folder, a run folder that holds one audit, or a folder of a method's seeds."""


def audits_in(path: Path) -> list[Path]:
    """The audits or runs that a folder of one method's seeds holds; the path itself if it is no such folder.

    Raises:
        ClasswiseError: if the folder holds audits whose names differ in more than a number.
    """
    from classwise.training.folder import runs_in

    if runs := runs_in(path):
        return runs
    single = (path / ABOUT).is_file() or (path / "recipe.yaml").is_file() or not path.is_dir()
    if single or outcome_files.listed(path) or outcome_files.listed(path / "outcomes"):
        return [path]
    found = [folder for folder in sorted(path.iterdir()) if (folder / ABOUT).is_file()]
    stems = {re.sub(r"\d+$", "", folder.name) for folder in found}
    if len(stems) > 1 or (len(found) > 1 and any(not folder.name[-1].isdigit() for folder in found)):
        names = ", ".join(folder.name for folder in found[:4])
        raise ClasswiseError(
            f"{path} holds audits whose names differ in more than a seed's number ({names}); give each by itself, "
            f"as in NAME={found[0]}"
        )
    return sorted(found, key=lambda folder: (len(folder.name), folder.name)) or [path]


def training_seed(audit: Audit) -> int | None:
    """The seed of the training run that was audited: of the recipe around the audit, else of a folder ``seed-K``."""
    if audit.path is None:
        return None
    run = _run_of(audit)
    if run is not None:
        return int(run.recipe.seed)
    names = [folder.name for folder in (audit.path.absolute(), *audit.path.absolute().parents[:3])]
    found = next((match for name in names if (match := re.fullmatch(r"seed[-_]?(\d+)", name))), None)
    return None if found is None else int(found[1])


def read_all(sources: Source | Sequence[Source]) -> tuple[Audit, ...]:
    """The audits of one method, from all of its sources.

    Raises:
        ClasswiseError: if one cannot be read.
    """
    return tuple(
        audit for source in ([sources] if isinstance(sources, Source) else sources) for audit in _expanded(source)
    )


def _expanded(source: Source) -> list[Audit]:
    """The audit, or those of all seeds in a folder."""
    return [source] if isinstance(source, Audit) else [Audit.load(path) for path in audits_in(Path(source))]


def by_method(sources: Sequence[Source], across: str | None) -> dict[str, tuple[Audit, ...]]:
    """Audits by method: those of runs that differ only in the seed together; across a field also those of one model."""
    methods: dict[str, list[Audit]] = {}
    labels: dict[str, str] = {}
    for source in sources:
        audits = _expanded(source)
        found = [_method_of(audit, across) for audit in audits]
        name, digest = found[0]
        if not isinstance(source, Audit) and audits_in(Path(source)) != [Path(source)]:
            if len({each for _, each in found} - {None}) > 1 and across is None:
                raise ClasswiseError(f"the runs in {source} differ in more than the seed; give each by itself")
            name = name if _run_of(audits[0]) is not None else Path(source).resolve().name
        known = digest is not None and digest in labels
        label = labels[digest] if known and digest is not None else fresh_name(name, methods)
        if digest is not None:
            labels[digest] = label
        methods.setdefault(label, []).extend(audits)
    return {name: tuple(audits) for name, audits in methods.items()}


def _method_of(audit: Audit, across: str | None) -> tuple[str, str | None]:
    """The method's name, and what is equal for audits of one method; None if that cannot be known."""
    run = _run_of(audit)
    name = audit.path.name if audit.path is not None else audit.name
    if run is None:
        model = audit.outcomes.meta.model_hash
        return (audit.outcomes.meta.model or name, model) if across is not None and model else (name, None)
    recipe = dataclasses.asdict(dataclasses.replace(run.recipe, seed=0))
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()
    # Audits of one run that differ in name (other attacks, other weights) are not seeds of each other.
    return run.recipe.name, digest if across is not None else f"{digest}/{name}"


def _run_of(audit: Audit) -> Run | None:
    """The run in whose folder the audit lies, or None."""
    from classwise.training.folder import Run

    folders = [] if audit.path is None else list(audit.path.resolve().parents[:2])
    return next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)


def fresh_name(name: str, taken: Mapping[str, object]) -> str:
    """The name, or the first free of ``name-2``, ``name-3``, ..."""
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)
