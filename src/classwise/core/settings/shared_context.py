"""Settings of the process that several threads need at once: set by the first of them, restored by the last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class SharedContext:
    """A context of the process, entered by the first thread that needs it and left by the last.

    Args:
        make: makes the context.

    Example:
        >>> from contextlib import contextmanager
        >>> from classwise.core.settings.shared_context import SharedContext
        >>> @contextmanager
        ... def loud():
        ...     print("on")
        ...     yield
        ...     print("off")
        >>> shared = SharedContext(loud)
        >>> with shared, shared:  # as in two threads
        ...     print(shared.entered)
        on
        True
        off
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._threads = 0
        self._context: AbstractContextManager[object] | None = None

    @property
    def entered(self) -> bool:
        """Whether a thread is within the context."""
        return self._context is not None

    def __enter__(self) -> None:
        with self._lock:
            if self._context is None:
                context = self._make()
                context.__enter__()
                self._context = context
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads and self._context is not None:
                context, self._context = self._context, None
                context.__exit__(None, None, None)
