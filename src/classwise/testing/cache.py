"""The folder of the audits of `assert_robust` in a pytest session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_folder: list[Callable[[], Path]] = []


def cache_folder() -> Path | None:
    """The folder, created on first use; None outside pytest, or without pytest's cache."""
    return _folder[-1]() if _folder else None


def push_cache(folder: Callable[[], Path]) -> None:
    """Use the folder that a function returns, until `pop_cache`."""
    _folder.append(folder)


def pop_cache() -> None:
    """Return to the folder before the last `push_cache`."""
    if _folder:
        _folder.pop()
