"""The folder of an audit: its place in a run folder, ``audit.json`` and ``trace.parquet``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pydantic
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes.parquet import read_table, write_table
from classwise.core.compute.environment import Environment
from classwise.core.errors import ClasswiseError, quoted
from classwise.core.files.reading import fitting
from classwise.core.files.storage import MARKERS, Marker, ResultFolder

ABOUT = MARKERS["audit"]
"""The file that marks a folder as an audit's."""
TRACE = "trace.parquet"
SWEEP = "sweep.json"
"""The file that marks the folder of a sweep, whose folder ``runs`` has a folder for each run and each model."""

Count = Annotated[int, pydantic.Field(ge=0)]


class RecordedCode(Marker, total=False):
    """The code of the user that a marker records (`classwise.core.settings.code_identity`)."""

    code: dict[str, dict[str, str]]


class About(RecordedCode, total=False):
    """The content of ``audit.json``; the entries beside those of `Marker` are written at the end of an audit."""

    name: str
    group: str | None
    alpha: Annotated[float, pydantic.Field(gt=0, lt=1)]
    complete: bool
    missing: dict[str, Count]
    images: Count | None
    data_hash: str
    settle: Annotated[float, pydantic.Field(gt=0, lt=1)] | None
    policy: str | None
    warnings: list[AuditWarning]
    guards: GuardReport | None
    environment: Environment
    shard: ShardFacts | None


class ShardFacts(TypedDict):
    """What ``audit.json`` has of an audit that is a shard of another."""

    finished: bool
    images: Count | None
    overwrites: bool
    attacks: list[str]


def folder_for(path: Path, name: str = "audit") -> Path:
    """The folder of an audit that is written to ``path``: ``audits/<name>`` in a run folder, else the path itself."""
    return path / "audits" / name if (path / "recipe.yaml").is_file() else path


def read_about(folder: Path) -> dict[str, Any]:
    """Read ``audit.json``, as JSON values of the types of `About`.

    Raises:
        ClasswiseError: as `ResultFolder.read`.
    """
    return ResultFolder(folder, "audit").read(About)


def guards_in(about: Mapping[str, Any]) -> tuple[tuple[AuditWarning, ...], GuardReport | None]:
    """The warnings, and the report on the guards, in the content of ``audit.json``."""
    warnings = fitting(tuple[AuditWarning, ...], about.get("warnings", []), ABOUT)
    saved = about.get("guards")
    return warnings, None if saved is None else fitting(GuardReport, saved, ABOUT)


def earlier_audits(folder: Path, settings: Mapping[str, Any], policy: str) -> list[Path]:
    """The folders beside a new one that contain an audit of the same model and images without a policy.

    Args:
        folder: the new folder.
        settings: of the audit in it.
        policy: SHA-256 of the policy.
    """
    found = []
    for marker in sorted(folder.absolute().parent.glob(f"*/{ABOUT}")):
        with contextlib.suppress(ClasswiseError):  # a damaged file, or one of another version
            about = read_about(marker.parent)
            same = all(about["settings"].get(key) == settings[key] for key in ("model_hash", "data_hash"))
            found += [marker.parent] if same and about.get("policy") != policy else []
    return found


def write_trace(folder: Path, trace: pd.DataFrame | None) -> None:
    """Write the trace, if there is one."""
    if trace is not None:
        write_table(folder / TRACE, trace, "audit", {})


def read_trace(folder: Path) -> pd.DataFrame | None:
    """Read the trace; None if there is none.

    Raises:
        ClasswiseError: if the file is damaged.
    """
    file = folder / TRACE
    return read_table(file, "run the audit again in another folder").to_pandas() if file.is_file() else None


def contains_audits(path: Path) -> bool:
    """Whether a folder has its audits in ``audits/``: a run, or the folder of a model in a sweep, without a recipe."""
    return (path / MARKERS["run"]).is_file() or (path.absolute().parent.parent / SWEEP).is_file()


def audits_of(path: Path) -> list[Path]:
    """The folders of the audits in such a folder."""
    return sorted(file.parent for file in path.glob(f"audits/*/{ABOUT}"))


def audit_in(path: Path) -> Path:
    """The folder of the audit in a run folder or that of a model in a sweep; any other path itself.

    Raises:
        ClasswiseError: if the run folder contains no audit, or several.
    """
    if not contains_audits(path):
        return path
    audits = audits_of(path)
    if not audits:
        raise ClasswiseError(f"{path} is a run without an audit; create one with: classwise audit {quoted(path)}")
    if len(audits) > 1:
        names = ", ".join(str(folder) for folder in audits)
        raise ClasswiseError(f"{path} contains several audits; select one of {names}")
    return audits[0]
