"""The options of an evaluation (`classwise.auditing.evaluation`) on the command line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

import classwise as cw
from classwise.auditing.evaluation.evaluation import FLAGS, Evaluation
from classwise.auditing.evaluation.option import Flag, Option

COMPUTED = ("attacks", "seed", "unique", "batch_size", "precision", "device")
"""The options of every command that attacks a model."""


def scaled(flag: Flag) -> Callable[[str], float]:
    """A parser of numbers in the unit of the command line, which gives them in the unit of Python."""

    def parse(text: str) -> float:
        from classwise.core.settings.config import number

        value = number(text)
        if not isinstance(value, float):
            unit = f" of {flag.metavar.lower()}" if flag.metavar and flag.per != 1 else ""
            raise typer.BadParameter(f"{text!r} is not a number{unit}.")
        if not (flag.least or 0) <= value <= (math.inf if flag.most is None else flag.most):
            upper = "" if flag.most is None else f"<={flag.most:g}"
            raise typer.BadParameter(f"{value:g} is not in the range {flag.least or 0:g}<=x{upper}.")
        return value / flag.per

    return parse


@dataclasses.dataclass(frozen=True)
class Flags:
    """Options of an evaluation as they were given; `flags` makes the class of those that a command has.

    Raises:
        ClasswiseError: for a value that an audit does not accept.
    """

    def __post_init__(self) -> None:
        from classwise.core.settings.arguments import check

        check(cw.audit, self.options)

    @property
    def options(self) -> Evaluation:
        """The options by their names in Python, without the threat and the attacks."""
        given = {option.name: getattr(self, option.key, ...) for name, option in FLAGS.items() if name != "threat"}
        values = {name: _python(FLAGS[name], value) for name, value in given.items() if value is not ...}
        values.pop("attacks", None)
        return cast("Evaluation", values)

    @property
    def suite(self) -> list[str] | None:
        """The specs of the attacks; None for the default suite."""
        return getattr(self, "attack", None) or None

    def threat_of(self, run: cw.Run | None) -> cw.Threat | None:
        """The threat of the option or of the run, or None.

        Raises:
            ClasswiseError: for a threat that cannot be read.
        """
        return threat_of(getattr(self, "threat", None), run)


def threat_of(text: str | None, run: cw.Run | None) -> cw.Threat | None:
    """The threat of a text, else of the run, or None.

    Raises:
        ClasswiseError: for a threat that cannot be read.
    """
    if text is None and run is not None:
        text = run.recipe.threat
    return None if text is None else cw.Threat.parse(text)


def flags(*names: str, **shown: str) -> type[Flags]:
    """The class of the options that a command has, for `classwise.cli.options.grouped`.

    Args:
        *names: names of options.
        **shown: their defaults in the help, where the command has other ones.
    """
    fields = []
    for name in names:
        option = FLAGS[name]
        kind, default = parameter(option, shown.get(name, ""))
        fields.append((option.key, kind, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("GivenFlags", fields, bases=(Flags,), frozen=True)


def parameter(option: Option, shown: str = "") -> tuple[Any, Any]:
    """The annotation and the default of an option in the signature of a command."""
    flag = option.flag
    assert flag is not None, option.name
    default = option.default if flag.default is None else flag.default
    if default in (None, ()):
        return Annotated[flag.kind | None, declared(option, shown)], None
    return Annotated[flag.kind, declared(option, shown)], default


def declared(option: Option, shown: str = "") -> Any:
    """The declaration of an option for typer, with its default in the help if that is not the default value."""
    flag = option.flag
    assert flag is not None, option.name
    name, text = f"--{option.key.replace('_', '-')}", flag.help or sentence(option)
    settings: dict[str, Any] = {"min": flag.least} if flag.per == 1 else {"parser": scaled(flag)}
    return typer.Option(
        f"{name}/--no-{name[2:]}" if flag.kind is bool else name,
        metavar=flag.metavar,
        help=f"{text} May be repeated." if str(flag.kind).startswith("list") else text,
        show_default=shown or flag.shown or True,
        rich_help_panel=flag.panel or None,
        **settings,
    )


def written(key: str, value: Any) -> Any:
    """A value of a command's parameter in the form of the command line."""
    flag = next((option.flag for option in FLAGS.values() if option.key == key), None)
    return value if flag is None or flag.per == 1 else f"{value * flag.per:g}"


def sentence(option: Option) -> str:
    """The first sentence of the description, for the help."""
    first = option.help.partition(". ")[0].rstrip(".")
    return f"{first[0].upper()}{first[1:]}."


def _python(option: Option, value: Any) -> Any:
    """The value in Python of a value on the command line."""
    if value is None and option.default == ():
        return ()
    return None if option.flag and value == option.flag.absent else value
