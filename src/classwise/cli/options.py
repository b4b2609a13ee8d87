"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from classwise.errors import UserError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs in place of tables.")]
Root = Annotated[
    str | None, typer.Option("--root", metavar="DIR", help="The data directory, looked at before the usual places.")
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--data-set", metavar="KEY=VALUE", help="A setting of the format, such as size=64."),
]
Device = Annotated[str, typer.Option("--device", help="Where to compute, such as cpu, cuda or cuda:1.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the output folder holds.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Time two steps, print passes and minutes, and do no more.")]
Budget = Annotated[
    str | None,
    typer.Option("--budget", help="One of the recipe's budgets, such as short, in place of the whole training."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, such as optimizer.lr=0.05. May be repeated."),
]


_PAIRS = {
    "--set": "FIELD=VALUE, as in --set epochs=30",
    "--data-set": "KEY=VALUE, as in --data-set size=64",
    "--model-set": "KEY=VALUE, as in --model-set depth=34",
    "--robustbench-info": "KEY=VALUE, as in --robustbench-info venue='CVPR 2023'",
}
"""The options that take pairs, and what each should look like."""


def pairs(items: Iterable[str] | None, option: str = "--set") -> dict[str, str]:
    """``["a.b=c"]`` as ``{"a.b": "c"}``.

    Raises:
        UserError: if an item has no key or no equals sign.
    """
    found: dict[str, str] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{option} {item!r} should be {_PAIRS[option]}")
        found[key.strip()] = value.strip()
    return found


def integers(text: str, option: str) -> list[int]:
    """``"0,1,2"`` as numbers, each once.

    Raises:
        UserError: if an item is no whole number of at least 0, or comes twice.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() for item in items) or len(set(items)) < len(items):
        raise UserError(f"{option} {text!r} should be different whole numbers with commas, as in {option} 0,1,2")
    return [int(item) for item in items]


def numbers(text: str | None, option: str) -> list[float] | None:
    """``"0.49,0.48,0.45"`` as numbers; None stays None.

    Raises:
        UserError: if an item is no number.
    """
    if text is None:
        return None
    try:
        return [float(item) for item in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text!r} should be numbers with commas, one per channel") from error


def check_device(device: str) -> str:
    """The device, if this machine has it.

    Raises:
        UserError: if it has not.
    """
    from classwise import compute

    compute.check_device(device)
    return device


def new_file(path: Path | None, option: str) -> Path | None:
    """The path of a file to write, checked before long work; nothing is left there. ``-`` is ``/dev/stdout``.

    Raises:
        UserError: if there is a folder in its place, or it cannot be written.
    """
    from classwise.storage import check_writable

    if path is None:
        return None
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give the name of a file in it")
    target = Path("/dev/stdout") if str(path) == "-" else path
    check_writable(target)
    return target


def new_folder(path: Path) -> Path:
    """The path of a folder to write into, checked before long work; nothing is left there.

    Raises:
        UserError: if there is a file in its place, or nothing can be written in it.
    """
    from classwise.storage import check_writable

    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give a folder")
    check_writable(path / "file")
    return path


def refuse_json(json: bool, file: Path | None) -> None:
    """Refuse two outputs on stdout.

    Raises:
        UserError: if JSON and a file should both go there.
    """
    from classwise.destinations import is_stdout

    if json and file is not None and is_stdout(file):
        raise UserError("--json and a file named - both go to stdout; give the file another name")


@contextlib.contextmanager
def printing_beside(*files: Path | None) -> Iterator[None]:
    """Print to stderr where one of these files is stdout, so that stdout holds nothing but the file."""
    from classwise.destinations import is_stdout

    if not any(file is not None and is_stdout(file) for file in files):
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield
