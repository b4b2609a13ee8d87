"""Threats as text, such as ``Linf:8/255`` or the name of a data set; without torch, as tables of outcomes need it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Literal, get_args

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.arguments import shown
from classwise.core.settings.config import number
from classwise.data.sets import usual_threat

Norm = Literal["Linf", "L2", "L1", "recolour", "spatial"]
Grid = Literal["8bit"]
"""The grids that adversarial images can be rounded to (`classwise.threat.grid`)."""
NORM_BALLS: tuple[Norm, ...] = ("Linf", "L2", "L1")
"""The threats that are balls of a norm of the pixels."""
NORMS: Mapping[str, Norm] = {name.lower(): name for name in get_args(Norm)}
"""The threats by their names in lower case."""

PER_IMAGE = "per-image"
"""The text in place of a radius if there is one for each image."""
SPATIAL_RADIUS = 6
"""The largest radius of spatial threats: rotations by up to 180 degrees either way."""


def parse_threat(text: str) -> tuple[Norm, float]:
    """Parse ``"Linf:8/255"``, or the name of a data set such as ``"cifar10"``, into the norm and the radius.

    Raises:
        ClasswiseError: for an unknown norm or data set, or an invalid radius.
    """
    if text.lower() in NORMS:
        example = {"L2": "0.5", "L1": "12", "spatial": "1"}.get(NORMS[text.lower()], "8/255")
        raise ClasswiseError(f"threat {text!r} has no radius; give one, such as {NORMS[text.lower()]}:{example}")
    norm, _, radius = (text if ":" in text else usual_threat(text)).partition(":")
    epsilon = number(radius)
    if not isinstance(epsilon, float):
        raise ClasswiseError(f"threat {text!r}: radius must be a number such as 8/255")
    if norm.lower() not in NORMS:
        raise unknown("norm", norm, get_args(Norm))
    check_radius(NORMS[norm.lower()], epsilon)
    return NORMS[norm.lower()], epsilon


def written(threat: object) -> object:
    """Write a pair of a norm and a radius as text; return any other value unchanged."""
    return f"{threat[0]}:{threat[1]}" if isinstance(threat, tuple | list) and len(threat) == 2 else threat


def check_radius(norm: str, epsilon: object) -> None:
    """Check a radius that is the same for all images.

    Raises:
        ClasswiseError: if it is not a number from 0 to `limits.RADIUS`, or for spatial threats to `SPATIAL_RADIUS`.
    """
    if isinstance(epsilon, bool) or not (isinstance(epsilon, Real) and not epsilon < 0 and epsilon <= limits.RADIUS):
        hint = f"; for text use Threat.parse('{norm}:{epsilon}')" if isinstance(epsilon, str) else ""
        raise ClasswiseError(
            f"epsilon = {shown(epsilon)}: radius must be a number from 0 to {limits.RADIUS:,}, such as 8/255{hint}"
        )
    if norm == "spatial" and float(epsilon) > SPATIAL_RADIUS:
        raise ClasswiseError(
            f"threat {norm}:{float(epsilon):g}: the radius is a factor of 30 degrees and of 3/32 of the size, not an "
            f"angle; it must be from 0 to {SPATIAL_RADIUS}, such as spatial:1"
        )


def check_stated(text: str) -> None:
    """Check a threat that a user states, such as that of predictions made elsewhere.

    Any words may describe a threat that is not one of `NORMS`, such as ``patch of 5x5 pixels``.

    Raises:
        ClasswiseError: for blank text, or a threat of `NORMS` with an invalid radius.
    """
    if not text.strip():
        raise ClasswiseError(f"threat {text!r} is blank; give text such as 'Linf:8/255', or None if it is unknown")
    norm, _, radius = text.partition(":")
    if norm.lower() in NORMS and radius != PER_IMAGE:
        parse_threat(text)
