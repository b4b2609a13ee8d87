"""Versions of file formats: each file has a ``schema_version``, and readers accept only the current one."""

from __future__ import annotations

from collections.abc import Mapping

from classwise.core.errors import ClasswiseError

SCHEMA_VERSIONS: Mapping[str, int] = {
    "audit": 2,  # audit.json
    "outcomes": 2,  # outcomes/part-*.parquet
    "curve": 2,  # search.json, rounds/part-*.parquet, radii.parquet
    "worst-class search": 2,  # search.json, rounds.parquet
    "run": 2,  # environment.json
    "training state": 3,  # checkpoints/state.pt
    "weights": 1,  # *.safetensors
    "split": 1,
    "notes": 1,  # notes.json
    "board": 1,  # board.json
    "robustbench": 1,
    "evidence": 2,  # evidence.json, manifest.json
    "store": 2,  # store.json
    "experiment": 3,  # results/ITEM/SCALE.json
}
"""The current version of each format."""


def check_schema_version(found: int, known: int, where: str) -> None:
    """Check that a file has the format version that this version of classwise reads.

    Args:
        found: the ``schema_version`` of the file.
        known: the version that is supported.
        where: the file or folder, the prefix of the error message.

    Raises:
        ClasswiseError: if the file is newer or older.
    """
    if found > known:
        raise ClasswiseError(
            f"{where}: schema_version {found} is newer than the {known} supported here; update classwise"
        )
    if found < known:
        raise ClasswiseError(
            f"{where}: schema_version {found} is older than the {known} supported here; read it with the version of "
            f"classwise that wrote it (before 0.1.0), or repeat the command that wrote it"
        )
