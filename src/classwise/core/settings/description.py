"""Metadata of a part beside its docstring: its source, its cost, what it changes, and an example spec."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from classwise.core.settings.docstrings import docstring
from classwise.core.settings.signatures import check_methods


@dataclass(frozen=True)
class PassCounts:
    """Number of passes of an image through the model.

    Args:
        forward: forward passes.
        to_image: backward passes that compute the gradient of the image only.
        to_weights: backward passes that compute the gradients of the weights.
    """

    forward: int = 0
    to_image: int = 0
    to_weights: int = 0

    def __add__(self, other: PassCounts) -> PassCounts:
        return PassCounts(
            self.forward + other.forward, self.to_image + other.to_image, self.to_weights + other.to_weights
        )

    def __mul__(self, count: int) -> PassCounts:
        return PassCounts(self.forward * count, self.to_image * count, self.to_weights * count)

    @property
    def total(self) -> int:
        """The number of passes of either kind."""
        return self.forward + self.to_image + self.to_weights

    @property
    def equivalents(self) -> int:
        """The cost in forward passes: a gradient of the activations counts as one, that of the weights as one more."""
        return self.forward + self.to_image + 2 * self.to_weights


class Described:
    """Base of parts with metadata, from which lists, citations and tables of the documents are generated."""

    #: The sources: for each the key of a paper in `classwise.core.settings.bibliography`, then the place in it, such as
    #: ``"madry2018towards, eq. 2.1"``; or any other text, which is cited unchanged. Empty for common knowledge and for
    #: methods of this library.
    source: ClassVar[tuple[str, ...]] = ()
    #: Why the part has no source; empty for one that has.
    no_source: ClassVar[str] = ""
    #: Passes that the part adds to a step, per image.
    cost: ClassVar[PassCounts] = PassCounts()
    #: What the part changes of plain training; words of `CHANGES`.
    changes: ClassVar[tuple[str, ...]] = ()
    #: A spec of the part, with an option if it has one.
    example: ClassVar[str] = ""

    def __init_subclass__(cls, **more: object) -> None:
        """Check the methods of parts of users.

        Raises:
            ClasswiseError: if a method cannot be called as the one that it overrides.
        """
        super().__init_subclass__(**more)
        if cls.__module__.partition(".")[0] != "classwise":
            check_methods(cls)

    def sources(self) -> tuple[str, ...]:
        """The sources that apply with these settings; by default all of ``source``."""
        return self.source


def summary(part: object) -> str:
    """The first paragraph of a part's docstring; for a partial, with its bound arguments."""
    if isinstance(part, functools.partial):
        filled = ", ".join(f"{key}={value}" for key, value in part.keywords.items())
        return f"{summary(part.func)} Here {filled}."
    return " ".join(docstring(part).partition("\n\n")[0].split())


CHANGES = (
    "loss",
    "radius",
    "weight",
    "beta",
    "sampling",
    "target",
    "scale",
    "margin",
    "temperature",
    "update",
    "average",
    "network",
    "data",
    "teacher",
)
"""Aspects of training that a part may change: per-class or per-image settings, and others; in table order."""
