"""Versions of file formats: each file carries ``schema_version``, and a reader refuses every version but its own."""

from __future__ import annotations

from classwise.core.errors import ClasswiseError


def check_schema_version(found: int, known: int, where: str) -> None:
    """Check that a file has the format version that this classwise reads.

    Args:
        found: the file's ``schema_version``.
        known: the version that is read here.
        where: the file or folder, which begins the error message.

    Raises:
        ClasswiseError: if the file is newer or older.
    """
    if found > known:
        raise ClasswiseError(
            f"{where}: schema_version {found} is newer than the {known} supported here; update classwise"
        )
    if found < known:
        raise ClasswiseError(
            f"{where}: schema_version {found} is older than the {known} supported here; classwise versions before "
            f"0.1.0 read it: use the one named in its environment, or repeat the command that wrote it"
        )
