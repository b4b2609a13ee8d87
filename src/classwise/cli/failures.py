"""Conversion of an exception to an exit status and one line."""

from __future__ import annotations

import errno
import signal
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import typer

from classwise.cli.exit_status import ExitStatus
from classwise.cli.installation import Change, changed_package
from classwise.core.errors import ArgumentError, ClasswiseError, IncompleteError, is_out_of_memory
from classwise.core.progress import interruption
from classwise.core.progress.display import is_closed
from classwise.core.settings.user_code import original, raised_by_user_code, user_code

# typer brings its own copy of click or uses the installed one, by its version; this is the base in either.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]
_OF_SIGNALS = {status - 128: status for status in ExitStatus}


class Failure(NamedTuple):
    """The failure of a command.

    Args:
        status: the exit status.
        line: the line for stderr; empty for none.
    """

    status: ExitStatus
    line: str


def failure(error: BaseException) -> Failure:
    """The exit status and the error line of an exception that ended a command."""
    if (number := interruption.received()) is not None:
        return _stopped(error, number)
    change = changed_package(error)
    place = user_code(error)
    if change is not None and change.removed and (place is None or isinstance(error, ImportError)):
        return _changed(error, change)
    if isinstance(error, FileNotFoundError) and (line := _lost_folder()):
        return Failure(ExitStatus.BAD_INPUT, line)
    if isinstance(error, ClasswiseError) and not (place is not None and raised_by_user_code(error)):
        status = ExitStatus.INCOMPLETE if isinstance(error, IncompleteError) else ExitStatus.BAD_INPUT
        line = str(error)
        return Failure(status, error.without_function if isinstance(error, ArgumentError) else line)
    if place is not None and not is_out_of_memory(original(error)):
        return Failure(ExitStatus.USER_CODE, f"{_named(*place)} {_raised(error)}")
    if isinstance(error, _UsageError):
        return Failure(ExitStatus.BAD_INPUT, _usage(error))
    if isinstance(error, KeyboardInterrupt):
        return _stopped(error, signal.SIGINT)
    if isinstance(error, OSError) and is_closed(error):
        return Failure(ExitStatus.CLOSED_PIPE, "")
    if isinstance(error, OSError) and (line := _os_error(error)):
        return Failure(ExitStatus.BAD_INPUT, line)
    if isinstance(error, ValueError) and str(error) == "embedded null byte":  # which typer before 0.29 passes on
        return Failure(ExitStatus.BAD_INPUT, "a path contains a null byte; give another file or folder")
    if change is not None:
        return _changed(error, change)
    if is_out_of_memory(error):
        advice = "free some, raise the limit (ulimit -v), or use smaller batches (--batch-size) or images"
        where = "" if place is None else f" in {_named(*place)}"
        return Failure(ExitStatus.BAD_INPUT, f"not enough memory{where} ({_type_and_message(error)}); {advice}")
    line = f"internal error: {_type_and_message(error)}; please report it with the trace of: classwise --debug COMMAND"
    return Failure(ExitStatus.INTERNAL_ERROR, line)


def _changed(error: BaseException, change: Change) -> Failure:
    """The failure of a command whose packages are no longer those that it has loaded."""
    advice = "install it again and repeat the command; --resume continues what is saved"
    return Failure(ExitStatus.BAD_INPUT, f"{change} while the command ran ({_type_and_message(error)}); {advice}")


def _os_error(error: OSError) -> str:
    """One line on the disk or a path; empty for any other error of the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = "" if error.filename is None else f" for {error.filename}"
        return f"no space left{where}; free some and run the command again"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; was it removed while the command ran?"
    if error.errno in (errno.EACCES, errno.ENAMETOOLONG, errno.EPERM) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give another file or folder"
    return ""


def _lost_folder() -> str:
    """One line on the current folder, or that of temporary files, if it does not exist; else empty."""
    if not _is_folder(Path.cwd):
        return "the current folder was removed; change to another folder and run the command again"
    if not _is_folder(tempfile.gettempdir):
        return "no folder for temporary files can be written; free some space, or name such a folder in TMPDIR"
    return ""


def _is_folder(find: Callable[[], Path | str]) -> bool:
    """Whether a folder of the environment is found."""
    try:
        return Path(find()).is_dir()
    except OSError:
        return False


def _named(frame: FrameType, line: int) -> str:
    code = frame.f_code
    if code.co_filename.startswith("<frozen importlib"):
        return "an import"
    module = frame.f_globals.get("__name__", "")
    name = "" if code.co_qualname == "<module>" else f".{code.co_qualname}"
    return f"{module}{name} ({Path(code.co_filename).name}:{line})"


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exited with SystemExit({error.code!r})"
    return "; ".join([f"raised {_type_and_message(original(error))}", *getattr(error, "__notes__", [])])


def _type_and_message(error: BaseException) -> str:
    message = textwrap.shorten(str(error), 300, placeholder=" ...")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _stopped(error: BaseException, number: signal.Signals) -> Failure:
    cause = "Ctrl-C" if number is signal.SIGINT else number.name
    notes = getattr(error, "__notes__", []) if isinstance(error, interruption.STOPS) else []
    return Failure(_OF_SIGNALS[number], "; ".join([f"stopped by {cause}", *notes]))


def _usage(error: Any) -> str:
    """The usage error, with a pointer to the help."""
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    cause: Any = error.__cause__
    if hasattr(cause, "errors"):  # pydantic's complaint, which newer typers repeat without the value
        message = message.replace("Invalid value", f"Invalid value {cause.errors()[0]['input']!r}", 1)
    path = getattr(getattr(error, "ctx", None), "command_path", "classwise")
    return f"{' '.join(message.split()).rstrip('.')}; see {path} --help"
