"""The command line: it parses, calls the library and prints. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from classwise.core.progress import interruption

__all__ = ["concluded", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: the words after the program's name; by default those of the process.

    Returns:
        The exit status; see `classwise.cli.exit_status.ExitStatus`.
    """
    return _guarded(lambda app: app.run(sys.argv[1:] if arguments is None else arguments))


def concluded(work: Callable[[], int]) -> int:
    """Do something, and convert every exception to the exit status and the line of a command.

    Args:
        work: what is done; its value is the exit status.

    Returns:
        The exit status.
    """
    return _guarded(lambda app: app.concluded(work))


def _guarded(run: Callable[[Any], int]) -> int:
    """Import `classwise.cli.app` and run something with it, while signals raise exceptions."""
    with interruption.signals():
        try:
            from classwise.cli import app
        except BaseException:
            # Whatever an import makes of a signal that arrives in it.
            if (number := interruption.received()) is None:
                raise
            print(f"classwise: stopped by {number.name}", file=sys.stderr)
            return 128 + number
        try:
            return run(app)
        except interruption.STOPS:  # a signal while the end of the command was reported
            return 128 + (interruption.received() or signal.SIGTERM)
