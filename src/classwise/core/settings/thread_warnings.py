"""Filters of warnings for one thread: `warnings.catch_warnings` changes, and may restore wrongly, those of all."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

_active = threading.local()


@contextmanager
def warnings_filtered(
    action: Literal["error", "ignore"], message: str = "", category: type[Warning] = Warning
) -> Iterator[None]:
    """Context in which warnings of this thread raise an error or are ignored; other threads are not affected.

    Args:
        action: ``"error"`` raises the warning, ``"ignore"`` drops it.
        message: a regular expression for the start of its text.
        category: its class, or a base class.

    Example:
        >>> import warnings
        >>> from classwise.core.settings.thread_warnings import warnings_filtered
        >>> with warnings_filtered("ignore"):
        ...     warnings.warn("old format", stacklevel=1)
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list, and catch_warnings replaces it by a copy
    entry = (action, _OfThread(message), category, None, 0)
    filters.insert(0, entry)
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as warnings.filterwarnings does
    entries = getattr(_active, "entries", ())
    _active.entries = (*entries, entry[1])
    try:
        yield
    finally:
        _active.entries = entries
        present: list[Any] = warnings.filters  # type: ignore[assignment]
        for known in (filters, present):
            with suppress(ValueError):  # removed by code that has reset the filters
                known.remove(entry)
        warnings._filters_mutated()  # type: ignore[attr-defined]


class _OfThread:
    """The pattern of a filter, which matches in the threads that are within its context only."""

    def __init__(self, message: str) -> None:
        self._pattern = re.compile(message, re.IGNORECASE)

    def match(self, text: str) -> bool:
        """Whether a warning is meant."""
        return self in getattr(_active, "entries", ()) and self._pattern.match(text) is not None
