"""Graceful shutdown on SIGINT, SIGTERM and SIGHUP: raise at once, or defer until the work is saved.

Only the command line installs the signal handlers, with `signals`. Without them `deferred` and `stop_point` do nothing,
and Python's own handling of Ctrl-C applies.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else []))
"""The signals that request a stop: Ctrl-C, a request of another process, and a terminal that was closed."""
GRACE_SECONDS = 8.0
"""How long a signal is deferred to the next stop point; Docker kills after 10 s, Kubernetes and Slurm after 30 s."""
REPEAT_SECONDS = 1.0
"""A second signal within this time is ignored: ``torchrun`` forwards signals that its processes have received too."""

_PR_SET_PDEATHSIG = 1


class Terminated(BaseException):
    """The process received SIGTERM or SIGHUP."""


STOPS = (KeyboardInterrupt, Terminated)
"""Exceptions raised when the work stops on a signal. Their notes (`BaseException.add_note`) name the saved files."""


class _Requests:
    """The state of signal handling in this process: the first signal, its time, the depth of `deferred` blocks.

    ``replaced`` has the handlers that `signals` has replaced, by signal.
    """

    received: signal.Signals | None = None
    since = 0.0
    deferring = 0

    def __init__(self) -> None:
        self.replaced: dict[signal.Signals, Any] = {}


_requests = _Requests()


def received() -> signal.Signals | None:
    """The signal that requested a stop, or None."""
    return _requests.received


@contextmanager
def signals() -> Iterator[None]:
    """Install handlers for `STOP_SIGNALS`, unless the caller has set handlers or ignores the signals (``nohup``).

    Outside of `deferred` a signal raises ``KeyboardInterrupt`` or `Terminated` at once. Inside, it is deferred to the
    next `stop_point`, but by at most `GRACE_SECONDS`, and a second signal raises at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _requests.received, _requests.deferring = None, 0
    standard = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    changed = {number: handler for number, handler in before.items() if handler in standard}
    _requests.replaced = changed
    if sys.platform != "win32":
        alarm = signal.signal(signal.SIGALRM, _on_alarm)
    for number in changed:
        signal.signal(number, _on_signal)
    try:
        yield
    finally:
        _set_alarm(0.0)
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, alarm)
        _requests.replaced = {}
        for number, handler in changed.items():
            # The work has stopped: a further signal ends the process without a traceback.
            signal.signal(number, handler if _requests.received is None else signal.SIG_DFL)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let signals end the process in this block, which waits in code of C, where no handler of Python runs."""
    numbers = tuple(_requests.replaced)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _on_signal)


@contextmanager
def deferred() -> Iterator[None]:
    """Defer signals in this block to the next `stop_point`, or to the end of the block."""
    _requests.deferring += 1
    try:
        yield
    finally:
        _requests.deferring -= 1
    if not _requests.deferring:
        stop_point()


def stop_point(save: Callable[[], None] | None = None) -> None:
    """Stop here if a signal was received.

    Args:
        save: called before, to save the work.

    Raises:
        KeyboardInterrupt: if SIGINT was received.
        Terminated: if SIGTERM or SIGHUP was received.
    """
    if _requests.received is None:
        return
    _set_alarm(0.0)
    if save is not None:
        save()
    _raise()


def _on_signal(number: int, frame: FrameType | None) -> None:
    del frame
    now = time.monotonic()
    if _requests.received is not None and now - _requests.since < REPEAT_SECONDS:
        return
    first = _requests.received is None
    _requests.received, _requests.since = _requests.received or signal.Signals(number), now
    if first and _requests.deferring:
        _set_alarm(GRACE_SECONDS)
        return
    _raise()


def _on_alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    if _requests.received is not None:
        _raise()


def _set_alarm(seconds: float) -> None:
    """Send SIGALRM to this process after some seconds; 0 cancels it. Windows has no such timer."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _raise() -> None:
    raise KeyboardInterrupt if _requests.received is signal.SIGINT else Terminated


def stop_with_parent() -> None:
    """Send SIGTERM to this process when the thread that has started it ends (Linux only).

    For processes that are of no use without their parent, such as those of ``torchrun``.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
