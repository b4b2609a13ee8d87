"""Options shared by several commands, and the parsing of their values."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from classwise.cli.help import ATTACK, COMPUTE, DATA, MODEL, OUTPUT, TRAINING
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from classwise.core.compute.rates import Rates

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=OUTPUT)]
Root = Annotated[
    str | None,
    typer.Option("--root", metavar="DIR", help="Data directory, searched first.", rich_help_panel=DATA),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--data-set",
        metavar="KEY=VALUE",
        help="A setting of the format, such as size=64. May be repeated.",
        rich_help_panel=DATA,
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="Such as cpu, cuda or cuda:1.", rich_help_panel=COMPUTE),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue in the output folder, or load a finished result.", rich_help_panel=COMPUTE),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Time a few passes, print the predicted passes and time, then exit.",
        rich_help_panel=COMPUTE,
    ),
]
RatesName = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="NAME",
        help="With --estimate: rates measured on a device, such as h100, instead of timed passes.",
        rich_help_panel=COMPUTE,
    ),
]


def measured_rates(name: str | None, *, estimate: bool) -> Rates | None:
    """The rates of ``--rates``, None without the option.

    Raises:
        ClasswiseError: for an unknown name, or without ``--estimate``.
    """
    if name is None:
        return None
    if not estimate:
        raise ClasswiseError(f"--rates {name} requires --estimate")
    from classwise.core.compute.rates import named_rates

    return named_rates(name)


Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="NAME",
        help="Training budget of the recipe, such as short.",
        show_default="full",
        rich_help_panel=TRAINING,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="The page; - is stdout, with tables on stderr.",
        show_default="page.html in the folder",
        rich_help_panel=OUTPUT,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field, such as optimizer.lr=0.05. May be repeated.",
        rich_help_panel=TRAINING,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="COLUMN",
        help="Group by a column, superclass or frequency.",
        show_default="the class",
        rich_help_panel=DATA,
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(
        "--which",
        metavar="NAME",
        help="Weights, such as last, best-average, epoch-12 or interpolated.",
        show_default="selected by validation",
        rich_help_panel=MODEL,
    ),
]
ValidationAttack = Annotated[
    str,
    typer.Option(
        "--attack",
        metavar="SPEC",
        help="Attack on the images.",
        rich_help_panel=ATTACK,
    ),
]


def out_option(what: str, default: str | None = None, *, metavar: str = "DIR") -> Any:
    """The option ``--out``.

    Args:
        what: what is written there.
        default: where it is written without the option, if that is not the default value of the parameter.
        metavar: DIR or FILE.
    """
    shown = True if default is None else default
    return typer.Option("--out", metavar=metavar, help=what, show_default=shown, rich_help_panel=OUTPUT)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Expand each parameter of a dataclass type into one option per field.

    A group of options is thus declared once, with types, help and defaults, for all commands that use it. Its options
    are in the help's panel ``panel`` of the class, except those that name another one.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    for name, hint in hints.items():
        declared = getattr(hint, "__metadata__", (hint,))[0]  # `Annotated[Flags, flags(...)]`
        if is_dataclass(declared) and isinstance(declared, type):
            groups[name] = declared
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            declared = types[field.name].__metadata__[0]
            declared.rich_help_panel = declared.rich_help_panel or getattr(groups[name], "panel", None)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=types[field.name],
            )
            for field in fields(groups[name])
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group) if field.name in values})
            for name, group in groups.items()
        }
        command(**built, **values)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


_PAIRS = {
    "--set": "FIELD=VALUE, as in --set epochs=30",
    "--data-set": "KEY=VALUE, as in --data-set size=64",
    "--model-set": "KEY=VALUE, as in --model-set depth=34",
    "--extra-data": "NAME=yes or NAME=no, as in --extra-data at=no",
    "--slurm": "KEY=VALUE, as in --slurm partition=gpu,timeout_min=600",
    "--robustbench-info": "KEY=VALUE, as in --robustbench-info venue='CVPR 2023'",
}
"""The options that take pairs, and what each should look like."""


_SELECTING = frozenset({"source", "split", "subset", "seed", "root", "download"})
"""Arguments of `classwise.data.load_data` that are no options of a data set."""


def pairs(items: Iterable[str] | None, option: str = "--set") -> dict[str, str]:
    """``["a.b=c"]`` as ``{"a.b": "c"}``.

    Raises:
        ClasswiseError: if an item has no key or no equals sign.
    """
    found: dict[str, str] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ClasswiseError(f"{option} {item!r} should be {_PAIRS[option]}")
        found[key.strip()] = value.strip()
    return found


def data_options(items: Iterable[str] | None) -> dict[str, str]:
    """The options of ``--data-set``, as of `pairs`.

    Raises:
        ClasswiseError: also for one that has an option of its own.
    """
    found = pairs(items, "--data-set")
    for key in found:
        if key in _SELECTING:
            raise ClasswiseError(
                f"--data-set {key}: not an option of the data set; use --split, --subset, --seed or --root"
            )
    return found


def is_named(source: str) -> bool:
    """Whether a source is given as ``NAME=SOURCE``."""
    return "=" in source and not Path(source).exists()


def named_sources(sources: list[str]) -> list[str | Path] | dict[str, list[str | Path]]:
    """The sources of a command: a list, or by name if they are given as ``NAME=SOURCE``.

    Raises:
        ClasswiseError: if some have a name and some have none.
    """
    named = [is_named(source) for source in sources]
    if not any(named):
        return [*sources]
    if not all(named):
        raise ClasswiseError(f"{sources[named.index(False)]!r} has no name; name all or none, as in at=runs/at")
    methods: dict[str, list[str | Path]] = {}
    for source in sources:
        name, _, folder = source.partition("=")
        methods.setdefault(name, []).append(folder)
    return methods


def single_sources(sources: list[str], what: str) -> list[str | Path] | dict[str, str | Path]:
    """The sources of a command as of `named_sources`, with one source for each name.

    Raises:
        ClasswiseError: as `named_sources`, or if a name is given twice; the message says of ``what``, such as audits.
    """
    named = named_sources(sources)
    if isinstance(named, list):
        return named
    for name, given in named.items():
        if len(given) > 1:
            raise ClasswiseError(f"{name!r} names {len(given)} {what}; give each a name of its own")
    return {name: source for name, [source] in named.items()}


def integers(text: str, option: str) -> list[int]:
    """``"0,1,2"`` as numbers, each once.

    Raises:
        ClasswiseError: if an item is no whole number of at least 0, or comes twice.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() for item in items) or len(set(items)) < len(items):
        raise ClasswiseError(f"{option} {text!r} should be different whole numbers with commas, as in {option} 0,1,2")
    return [int(item) for item in items]


def numbers(text: str | None, option: str) -> list[float] | None:
    """``"0.49,0.48,0.45"`` or ``"1/255"`` as numbers; None stays None.

    Raises:
        ClasswiseError: if an item is no number.
    """
    if text is None:
        return None
    from classwise.core.settings.config import number

    found = [number(item) for item in text.split(",")]
    if not all(isinstance(item, float) for item in found):
        raise ClasswiseError(f"{option} {text!r} should be numbers with commas, such as 0.5 or 1/255")
    return cast("list[float]", found)


def check_device(device: str) -> str:
    """The device, if this machine has it.

    Raises:
        ClasswiseError: if it has not.
    """
    from classwise.core.compute import precision

    precision.check_device(device)
    return device


def new_file(path: Path | None, option: str, *, json: bool = False) -> Path | None:
    """The path of a file to write, checked before long work; nothing is left there. ``-`` is ``/dev/stdout``.

    Raises:
        ClasswiseError: if there is a folder in its place, it cannot be written, or JSON goes to stdout, too.
    """
    from classwise.core.files.destinations import is_stdout
    from classwise.core.files.storage import check_writable

    if path is None:
        return None
    if path.is_dir():
        raise ClasswiseError(f"{option} {path} is a folder; give the name of a file in it")
    target = Path("/dev/stdout") if str(path) == "-" else path
    check_writable(target)
    if json and is_stdout(target):
        raise ClasswiseError("--json and a file named - both go to stdout; give the file another name")
    return target


def new_folder(path: Path) -> Path:
    """The path of a folder to write into, checked before long work; nothing is left there.

    Raises:
        ClasswiseError: if there is a file in its place, or nothing can be written in it.
    """
    from classwise.core.files.storage import check_writable

    if path.exists() and not path.is_dir():
        raise ClasswiseError(f"{path} is a file; give a folder")
    check_writable(path / "file")
    return path


def page_in(folder: Path, group: str | None) -> Path:
    """The page of an audit; a name of its own if there is a page of the same audit by another grouping.

    Args:
        folder: of the audit.
        group: the grouping that the page is to use in place of the class.

    Raises:
        ClasswiseError: if the record of the audit is damaged.
    """
    from classwise.auditing.run.audit_folder import ABOUT, read_about
    from classwise.reporting.exports.export import file_name

    page = folder / "page.html"
    with contextlib.suppress(OSError):  # the audit reports a path that cannot exist
        if page.is_file() and (folder / ABOUT).is_file() and read_about(folder).get("group") != group:
            return folder / f"page-{file_name(group or 'class')}.html"
    return page


@contextlib.contextmanager
def printing_beside(*files: Path | None) -> Iterator[None]:
    """Print to stderr where one of these files is stdout, so that stdout holds nothing but the file."""
    from classwise.core.files.destinations import is_stdout

    beside = any(file is not None and is_stdout(file) for file in files)
    with contextlib.redirect_stdout(sys.stderr if beside else sys.stdout):
        yield


def share(text: str, option: str, example: str) -> float:
    """``"0.02"`` or ``"2%"`` as a fraction.

    Raises:
        ClasswiseError: if it is no number.
    """
    from classwise.core.settings.config import number

    percent = text.rstrip().endswith("%")
    value = number(text.rstrip().rstrip("%").rstrip())
    if not isinstance(value, float):
        raise ClasswiseError(f"{option} {text!r} is not a number; write {example}")
    return value / 100 if percent else value
