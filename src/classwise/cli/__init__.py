"""The command line: it parses, calls the library and prints. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from classwise.core import interruption

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: the words after the program's name; by default those of the process.

    Returns:
        The exit status; see `classwise.cli.exit_status.ExitStatus`.
    """
    with interruption.signals():
        try:
            from classwise.cli.app import run
        except BaseException:
            # Whatever an import makes of a signal that arrives in it.
            if (number := interruption.received()) is None:
                raise
            print(f"classwise: stopped by {number.name}", file=sys.stderr)
            return 128 + number
        return run(sys.argv[1:] if arguments is None else arguments)
