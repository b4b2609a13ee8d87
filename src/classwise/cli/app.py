"""The program: its commands, and the one place where a mistake becomes a line and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from classwise import __version__
from classwise.cli import (
    auditing,
    comparing,
    demonstrating,
    interpolating,
    listing,
    offsetting,
    papers,
    reporting,
    training,
)
from classwise.cli.exit_status import ExitStatus
from classwise.errors import IncompleteError, UserError

app = typer.Typer(
    name="classwise",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demonstrating.demo,
    training.train,
    interpolating.interpolate,
    offsetting.offset,
    auditing.audit,
    comparing.compare,
    reporting.report,
    listing.data,
    listing.attacks,
    listing.models,
    listing.recipes,
    listing.cite,
    papers.papers,
):
    app.command()(command)

# typer brings its own copy of click or uses the installed one, by its version; this is the base in either.
_Refused: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def classwise(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Class-wise adversarial robustness: find the weakest classes of a classifier, and train them robust.

    \b
    Example:
        classwise demo                                             train, audit and compare, in two minutes
        classwise train cfa-at-short --data cifar10 --out runs/cfa
        classwise audit runs/cfa --html cfa.html
    """  # noqa: D301  # \b keeps the lines of the example apart
    del version


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: the words after the program's name; by default those of the process.

    Returns:
        The exit status: 0, 1 if a ``--fail-if`` condition holds, 2 for bad input (one line on stderr).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "RANK" in os.environ:  # torch logs a C++ trace beside the one line about a process that is gone
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        status = app(words, prog_name="classwise", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        # Of several processes the first speaks; another only of what the first has not heard.
        speaks = os.environ.get("RANK", "0") == "0" or getattr(error, "unheard", False)
        status = ExitStatus.INCOMPLETE if isinstance(error, IncompleteError) else ExitStatus.BAD_INPUT
        return _refuse(str(error), status) if speaks else status
    except _Refused as error:
        return _refuse(_explained(error), ExitStatus.BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("stopped; what is written is whole, and --resume goes on from it", ExitStatus.INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _refuse("no space left on the disk; free some and run again", ExitStatus.BAD_INPUT)
        if error.errno in (errno.EACCES, errno.ENAMETOOLONG, errno.EPERM) and error.filename is not None:
            return _refuse(f"{error.filename}: {error.strerror}; give another file or folder", ExitStatus.BAD_INPUT)
        raise
    return status if isinstance(status, int) else 0


def _explained(error: Exception) -> str:
    """What is wrong with the words given, and where help is."""
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    cause: Any = error.__cause__
    if hasattr(cause, "errors"):  # pydantic's complaint, which newer typers repeat without the value
        message = message.replace("Invalid value", f"Invalid value {cause.errors()[0]['input']!r}", 1)
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "classwise")
    return f"{' '.join(message.split()).rstrip('.')}; see {path} --help"


def _refuse(line: str, status: int) -> int:
    print(f"classwise: {line}", file=sys.stderr)
    return status
