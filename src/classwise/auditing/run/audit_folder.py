"""The files of an audit's folder beside its outcomes: ``audit.json`` and ``trace.parquet``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from classwise.core.errors import ClasswiseError
from classwise.core.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.storage import read_json, replacing, verify

ABOUT = "audit.json"
"""The file that marks a folder as an audit's."""
TRACE = "trace.parquet"


def folder_for(path: Path, name: str = "audit") -> Path:
    """The folder of an audit that is written to ``path``: ``audits/<name>`` in a run folder, else the path itself."""
    return path / "audits" / name if (path / "recipe.yaml").is_file() else path


def read_about(folder: Path) -> dict[str, Any]:
    """Read ``audit.json``.

    Raises:
        ClasswiseError: if it is damaged, or was written with another schema version.
    """
    about = read_json(folder / ABOUT, "run the audit again in another folder", {"schema_version": int})
    check_schema_version(about["schema_version"], SCHEMA_VERSIONS["audit"], str(folder))
    return about


def write_trace(folder: Path, trace: pd.DataFrame | None) -> None:
    """Write the trace, if there is one."""
    if trace is not None:
        with replacing(folder / TRACE, checksum=True) as temporary:
            trace.to_parquet(temporary, index=False)


def read_trace(folder: Path) -> pd.DataFrame | None:
    """Read the trace; None if there is none.

    Raises:
        ClasswiseError: if the file is damaged.
    """
    file = folder / TRACE
    if not file.is_file():
        return None
    verify(file)
    try:
        return pd.read_parquet(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ClasswiseError(f"{file} is not a valid Parquet file; run the audit again in another folder") from error


def audit_in(path: Path) -> Path:
    """The folder of the audit in a run folder; any other path itself.

    Raises:
        ClasswiseError: if the run folder contains no audit, or several.
    """
    if not (path / "recipe.yaml").is_file():
        return path
    audits = sorted(folder.parent for folder in path.glob(f"audits/*/{ABOUT}"))
    if not audits:
        raise ClasswiseError(f"{path} is a run without an audit; create one with: classwise audit {path}")
    if len(audits) > 1:
        names = ", ".join(str(folder) for folder in audits)
        raise ClasswiseError(f"{path} contains several audits; select one of {names}")
    return audits[0]
