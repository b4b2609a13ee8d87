"""``python -m classwise.run job.json``: run a job (`classwise.sweeps.jobs`), and exit with its status.

The attempt is recorded beside the file, as by an executor. With the number of a call, as in ``job.json 2``, only that
call is made, in this process; this is how the processes of the calls are started.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.settings.registry import Registry
from classwise.core.settings.user_code import call_user_code

if TYPE_CHECKING:
    from classwise.sweeps.jobs import Call

FUNCTIONS: Registry[Callable[..., Any]] = Registry(
    "function of a job",
    {
        "audit": "classwise.cli.audit:audit",
        "curve": "classwise.cli.curve:curve",
        "train": "classwise.cli.train:train",
    },
)
"""Functions by the names that a job may use: commands, whose options are the arguments."""


def main(words: Sequence[str]) -> int:
    """Run a job, or make one of its calls, with the output and the exit statuses of a command.

    Args:
        words: the path of the job's file, and perhaps the number of a call, from 1.

    Returns:
        The exit status of the first call that failed, or 0.
    """
    from classwise.cli import concluded

    return concluded(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    from classwise.sweeps.jobs import JOB, Job
    from classwise.sweeps.tasks import run_task

    if len(words) not in (1, 2) or Path(words[0]).name != JOB:
        given, example = " ".join(words), f"python -m classwise.run sweeps/x/tasks/CELL/{JOB}"
        raise ClasswiseError(f"{given!r} is not the path of a {JOB}; give one, as in {example}")
    file = Path(words[0])
    calls = Job.read(file).calls
    if len(words) == 1:
        for call in calls:
            if call.function in FUNCTIONS:
                call.bound(FUNCTIONS.load(call.function))
        status = run_task(file.parent)
        return status if status >= 0 else 128 - status
    if words[1] not in map(str, range(1, len(calls) + 1)):
        raise ClasswiseError(f"{file}: the number of a call must be from 1 to {len(calls)}, not {words[1]!r}")
    make(calls[int(words[1]) - 1])
    return 0


def make(call: Call) -> None:
    """Make a call in this process. The results record the equivalent command line.

    The verdict of a policy on a complete audit is printed, and is no failure of the call.

    Raises:
        ClasswiseError: if the function is unknown or does not have these arguments; or as the function.
    """
    from classwise.core.settings.command_line import recorded

    function: Callable[..., Any] = FUNCTIONS.load(call.function)
    arguments = call.bound(function)
    if call.function not in FUNCTIONS:
        call_user_code(function, **arguments)
        return
    with recorded([call.function, *_words(function, arguments)]):
        try:
            function(**arguments)
        except (typer.Exit, IncompleteError):
            if not _has_complete_audit(call):
                raise


def _has_complete_audit(call: Call) -> bool:
    """Whether a call has completed an audit; an exception is then the verdict of a policy."""
    from classwise.auditing.run.audit_folder import ABOUT, read_about

    folder = Path(call.out or "")
    return call.function == "audit" and (folder / ABOUT).is_file() and bool(read_about(folder).get("complete"))


def _words(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """The options of a command as words; parameters without a default are positional."""
    from classwise.cli.evaluation import written

    parameters, words = inspect.signature(function).parameters, list[str]()
    for name, value in arguments.items():
        default, option = parameters[name].default, name.replace("_", "-")
        if value is None or value == default:
            continue
        if default is inspect.Parameter.empty:
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}={written(name, item)}" for item in (value if isinstance(value, list) else [value])]
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
