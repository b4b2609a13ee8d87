"""The ``classwise`` program: its commands, and the conversion of errors to one line and an exit status."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from classwise.cli import (
    adjust_logits,
    audit,
    board,
    compare,
    console,
    corruptions,
    curve,
    demo,
    evidence,
    failures,
    interpolate_weights,
    listing,
    papers,
    plan,
    report,
    sweep,
    train,
    view,
    worst_class,
)
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import PanelCommand, PanelGroup
from classwise.core.errors import ClasswiseError, one_line
from classwise.core.progress import interruption
from classwise.core.settings import command_line
from classwise.core.settings.docstrings import docstring
from classwise.core.settings.user_code import user_code
from classwise.core.version import __version__

STATUSES = [
    textwrap.fill(status.meaning, 78, initial_indent=f"{status.value:>5}  ", subsequent_indent=" " * 7)
    for status in ExitStatus
]
"""The exit statuses in the help."""
app = typer.Typer(
    name="classwise",
    cls=PanelGroup,
    epilog="\n".join(["\b", "Exit statuses:", *STATUSES]),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Get started": (demo.demo,),
    "Evaluate a classifier": (
        plan.plan,
        audit.audit,
        worst_class.worst_class,
        curve.curve,
        corruptions.corruptions,
        compare.compare,
        board.board,
        report.report,
        view.view,
        evidence.evidence,
    ),
    "Train a classifier": (
        train.train,
        sweep.sweep,
        interpolate_weights.interpolate_weights,
        adjust_logits.adjust_logits,
    ),
    "List what is available": (listing.data, listing.models, listing.attacks, listing.recipes, listing.cite),
    "Reproduce papers": (papers.papers,),
}
"""The commands by panel of the help."""
for panel, commands in COMMANDS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=PanelCommand, rich_help_panel=panel)(command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def classwise(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(
        False,
        "--debug",
        envvar="CLASSWISE_DEBUG",
        help="Print the trace of an error before its line ($CLASSWISE_DEBUG=1).",
    ),
) -> None:
    """Evaluate and train image classifiers for class-wise adversarial robustness.

    \b
    Examples:
        classwise demo                          # three minutes on digits
        classwise train cfa-at --budget short --data cifar10 --out runs/cfa
        classwise audit runs/cfa --html cfa.html
        classwise audit timm:resnet18 --data photos/ --threat Linf:4/255
    """  # noqa: D301  # \b keeps the lines of the example apart
    del version, debug  # `run` reads ``debug`` before the command starts


def _state_help(group: typer.Typer) -> None:
    """Give each command its docstring as its help, since Typer does not find one that the interpreter has removed."""
    if group.registered_callback is not None and group.registered_callback.callback is not None:
        callback = group.registered_callback.callback
        callback.__doc__ = callback.__doc__ or docstring(callback)
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback.__doc__ = command.callback.__doc__ or docstring(command.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _state_help(inner.typer_instance)


@functools.cache
def _program() -> Any:
    """The program as Typer builds it, once for all calls in a process."""
    _state_help(app)
    return typer.main.get_command(app)


def run(words: Sequence[str]) -> int:
    """Run a command and convert every exception to an exit status.

    Args:
        words: the arguments after the program's name.

    Returns:
        The exit status.
    """
    debug = False

    def invoke() -> int:
        nonlocal debug
        # Typer's own entry point is not used: it converts errors, also those of user code, to exit statuses.
        command = _program()
        with command.make_context("classwise", list(words) or ["--help"]) as context:
            debug = context.params["debug"]
            with command_line.recorded(words):
                command.invoke(context)
        return ExitStatus.SUCCESS

    status = concluded(invoke, lambda: debug)
    return status or (ExitStatus.SUCCESS if words else ExitStatus.BAD_INPUT)


def concluded(work: Callable[[], int], debug: Callable[[], bool] | None = None) -> int:
    """Do something and convert every exception to an exit status.

    Args:
        work: what is done; its value is the exit status.
        debug: whether the trace of an error is printed; None: if ``$CLASSWISE_DEBUG`` asks for it.

    Returns:
        The exit status.
    """
    console.open_streams()
    if "RANK" in os.environ:  # torch logs a C++ trace beside the one line about a process that has exited
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        try:
            status = work()
        except typer.Exit as ended:
            if user_code(ended) is not None:
                raise
            status = ended.exit_code
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  # also SystemExit of user code
        status, line = failures.failure(error)
        console.flush_or_discard(sys.stdout)
        if debug() if debug is not None else os.environ.get("CLASSWISE_DEBUG", "0") not in ("", "0", "false"):
            console.print_error("".join(traceback.format_exception(error)).rstrip())
        if line and _prints_error(error):
            console.print_error(f"classwise: {one_line(line)}")
    console.flush_or_discard(sys.stderr)
    return int(status)


def _prints_error(error: BaseException) -> bool:
    """Whether this process prints the error: rank 0 does; another rank only if rank 0 has not received it."""
    first = os.environ.get("RANK", "0") == "0"
    common = isinstance(error, (ClasswiseError, *interruption.STOPS))
    return first or bool(getattr(error, "reported_by_every_rank", not common))
