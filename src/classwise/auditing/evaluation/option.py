"""The declaration of one option of an evaluation: its type, default, unit and words, and what it decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_args


class Decides(StrEnum):
    """What an option decides, and so which evaluations must agree in it."""

    VERDICTS = "verdicts"
    """Every verdict. Audits that are resumed, joined or compared must agree."""
    ATTACKED = "verdicts under attack"
    """The same, but for the clean pass."""
    ROWS = "rows"
    """The exact numbers of the rows. A resumed audit must agree; compared audits need not."""
    ESTIMATE = "number of rows"
    """How many of the rows there are, and so how wide intervals are."""
    RECORD = "record"
    """What is recorded beside the rows."""
    SPEED = "speed"
    """How fast and where rows are computed."""
    OUTPUT = "output"
    """What is computed from the rows, and where it is written."""


COMPARED = (Decides.VERDICTS, Decides.ATTACKED)
"""What compared audits must agree in."""


@dataclass(frozen=True)
class Flag:
    """An option on the command line.

    Args:
        kind: the type of its value, as typer takes it, such as ``float`` or ``list[str]``.
        help: what it does; empty: the first sentence of the description.
        metavar: its value in the help, such as ``POINTS``.
        panel: the panel of the help; empty: that of the command's other options.
        shown: its default in the help, if that is not the default value.
        name: such as ``--attack``; empty: that of the option.
        per: a value on the command line is this multiple of the value in Python, such as 100 points of a fraction.
        least: the smallest value on the command line; None: any.
        most: the largest value on the command line; None: any.
        default: its default on the command line, if that is another one.
        absent: the value on the command line for None, such as ``auto``.
    """

    kind: Any
    help: str = ""
    metavar: str | None = None
    panel: str = ""
    shown: str = ""
    name: str = ""
    per: float = 1
    least: float | None = None
    most: float | None = None
    default: Any = None
    absent: str | None = None


@dataclass(frozen=True)
class Option:
    """An option of an evaluation: everything that is declared of it but its type.

    Args:
        default: its value if it is not given.
        decides: what it decides.
        help: what it does, beginning with a small letter; its first sentence is the help of the command line.
        unit: the unit of its value in Python, YAML and JSON; empty for values without one.
        flag: the option of the command line; None if it has none.
        stored: the type of its value in the metadata of the outcomes, as text; empty: its type; None: it is not stored.
        texts: words for its values in messages, where they are not clear.
        name: its name.
        type: its type, as text.
    """

    default: Any
    decides: Decides
    help: str
    unit: str = ""
    flag: Flag | None = None
    stored: str | None = ""
    texts: Mapping[Any, str] = field(default_factory=dict)
    name: str = ""
    type: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether the metadata of the outcomes contain it."""
        return self.stored is not None and self.decides not in (Decides.SPEED, Decides.OUTPUT)

    @property
    def key(self) -> str:
        """Its key in plans of sweeps and in jobs: the name of its flag, as the command has it."""
        return self.flag.name.removeprefix("--").replace("-", "_") if self.flag and self.flag.name else self.name

    @property
    def words(self) -> str:
        """Its name in words, such as ``early stop``."""
        return self.name.replace("_", " ")

    def shown(self, value: object) -> str:
        """A value in words."""
        known: dict[Any, str] = {None: "none", True: "yes", False: "no", **self.texts}
        return known[value] if value is None or isinstance(value, bool) else str(value)


def options_of(record: type) -> dict[str, Option]:
    """The options of a record, a TypedDict whose annotations are ``Annotated["type", Option(...)]``.

    Example:
        >>> from typing import Annotated, TypedDict
        >>> Asked = TypedDict("Asked", {"rate": Annotated["float", Option(0.5, Decides.SPEED, "how fast")]})
        >>> options_of(Asked)["rate"].default
        0.5
    """
    found: dict[str, Option] = {}
    for name, hint in record.__annotations__.items():
        kind, option = get_args(hint)
        found[name] = dataclasses.replace(option, name=name, type=kind.__forward_arg__)
    return found
