"""Requests to stop (SIGINT and SIGTERM): raised at once, or where long work has saved what it did.

Only the command line installs the handlers, with `signals`. Without them every function here does nothing, and Python's
own handling of Ctrl-C applies.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 8.0
"""How long a request waits for the next stop point; Docker kills after 10 s, Kubernetes and Slurm after 30 s."""
REPEAT_SECONDS = 1.0
"""A second signal within this time is the same request: ``torchrun`` repeats to its processes what they received."""


class Terminated(BaseException):
    """The process received SIGTERM."""


STOPS = (KeyboardInterrupt, Terminated)
"""What is raised where work stops on request. Its notes (`BaseException.add_note`) say what is saved."""


class _Requests:
    """What was requested in this process."""

    received: signal.Signals | None = None
    since = 0.0
    deferring = 0


_requests = _Requests()


def received() -> signal.Signals | None:
    """The signal that requested a stop, or None."""
    return _requests.received


@contextmanager
def signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM as requests to stop; handlers that the caller has set or ignores are left alone.

    Outside `deferred` a request raises ``KeyboardInterrupt`` or `Terminated` at once. Inside, it waits for the next
    `stop_point`, but at most `GRACE_SECONDS`, and a second signal raises at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _requests.received, _requests.deferring = None, 0
    standard = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    changed = {number: handler for number, handler in before.items() if handler in standard}
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
        for number, handler in changed.items():
            # After a request nothing is left to protect: a further signal ends the process without a traceback.
            signal.signal(number, handler if _requests.received is None else signal.SIG_DFL)


@contextmanager
def deferred() -> Iterator[None]:
    """Let requests wait for the next `stop_point` in this block, or for its end."""
    _requests.deferring += 1
    try:
        yield
    finally:
        _requests.deferring -= 1
    if not _requests.deferring:
        stop_point()


def stop_point(save: Callable[[], None] | None = None) -> None:
    """Stop here if that was requested.

    Args:
        save: writes what has to be written before.

    Raises:
        KeyboardInterrupt: if SIGINT was received.
        Terminated: if SIGTERM was received.
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
    """Send SIGALRM to this process after so many seconds; 0 sends none. Windows has no such timer, and waits."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _raise() -> None:
    raise Terminated if _requests.received is signal.SIGTERM else KeyboardInterrupt
