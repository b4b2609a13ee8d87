"""Settings of the process that several threads need at once: set by the first of them, restored by the last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack


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
        self._stack = ExitStack()

    @property
    def entered(self) -> bool:
        """Whether a thread is within the context: from before it changes anything until all is restored."""
        return self._threads > 0

    def __enter__(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                try:
                    self._stack.enter_context(self._make())
                except BaseException:
                    self._threads -= 1
                    raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            try:
                if self._threads == 1:
                    self._stack.close()
            finally:
                self._threads -= 1
