"""What a part says of itself, beside its docstring: where it comes from, what it costs, what it changes, an example."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Passes:
    """Passes of an image through the model.

    Args:
        forward: forward passes.
        to_image: backward passes to the image alone.
        to_weights: backward passes to the weights.
    """

    forward: int = 0
    to_image: int = 0
    to_weights: int = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.to_image + other.to_image, self.to_weights + other.to_weights)

    def __mul__(self, count: int) -> Passes:
        return Passes(self.forward * count, self.to_image * count, self.to_weights * count)

    @property
    def equivalents(self) -> int:
        """In forward passes: a gradient of the activations costs one, and that of the weights one more."""
        return self.forward + self.to_image + 2 * self.to_weights


class Described:
    """A part that describes itself; lists, citations and the tables of the documents are generated from these."""

    #: The papers behind it: each the key of a paper in `classwise.core.bibliography`, then the place in it, such as
    #: ``"madry2018towards, eq. 2.1"``. Empty for what is common property, or this library's own.
    source: ClassVar[tuple[str, ...]] = ()
    #: The passes of an image in a step that the part adds.
    cost: ClassVar[Passes] = Passes()
    #: What it changes of plain training, in words of `CHANGES`.
    changes: ClassVar[tuple[str, ...]] = ()
    #: A spec that asks for it, with a setting where it has one.
    example: ClassVar[str] = ""

    def sources(self) -> tuple[str, ...]:
        """The papers behind the part with these settings; by default all of ``source``."""
        return self.source


def summary(part: object) -> str:
    """The first paragraph of a part's docstring; of a partial, with what it fills in."""
    if isinstance(part, functools.partial):
        filled = ", ".join(f"{key}={value}" for key, value in part.keywords.items())
        return f"{summary(part.func)} Here {filled}."
    return " ".join(inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0].split())


CHANGES = (
    "loss",
    "radius",
    "weight",
    "beta",
    "sampling",
    "target",
    "scale",
    "margin",
    "update",
    "average",
    "network",
    "data",
)
"""What a part may change: settings of a class or an image, or another part of the training; in the order of tables."""
