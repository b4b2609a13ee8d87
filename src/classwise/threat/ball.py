"""Threat models: norm balls around images, intersected with the box [0, 1]; recolouring; rotation and translation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.arguments import checked
from classwise.threat import recolouring
from classwise.threat.text import (
    NORM_BALLS,
    NORMS,
    PER_IMAGE,
    SPATIAL_RADIUS,
    Norm,
    check_radius,
    parse_threat,
)

__all__ = [
    "NORM_BALLS",
    "SPATIAL_RADIUS",
    "Norm",
    "Threat",
    "ThreatLike",
    "grey_radius",
    "large_radius_text",
]


@dataclass(frozen=True)
class Threat:
    """The set of allowed images around each image, within the box [0, 1].

    - ``"Linf"``, ``"L2"`` and ``"L1"`` are balls of these norms.
    - ``"recolour"`` maps the values of each channel by a function, the same for all pixels of the image, that changes
      no value by more than the radius (`classwise.threat.recolouring`): a subset of the Linf ball.
    - ``"spatial"`` rotates and translates (`classwise.attacks.gradient.spatial`): radius 1 allows 30 degrees either
      way, and 3/32 of the width and of the height, as in Engstrom et al. (ICML 2019); the limits are proportional to
      the radius.
      The images have no projection and no distance, so only the attacks ``spatial-grid`` and ``spatial-pgd`` apply.

    Args:
        norm: one of these names.
        epsilon: the radius, from 0 to `limits.RADIUS`, for spatial threats to `SPATIAL_RADIUS`: a number, or an (N,)
            tensor with one radius per image.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> threat = cw.Threat.parse("Linf:8/255")
        >>> threat == cw.Threat("Linf", 8 / 255)
        True
        >>> clean = torch.full((2, 3, 32, 32), 0.5)
        >>> projected = threat.project(torch.ones_like(clean), clean)
        >>> [round(distance, 4) for distance in threat.distance(projected, clean).tolist()]  # 8/255
        [0.0314, 0.0314]
    """

    norm: Norm
    epsilon: float | Tensor

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise unknown("norm", str(self.norm), get_args(Norm))
        if not isinstance(self.epsilon, Tensor):
            check_radius(self.norm, self.epsilon)

    @staticmethod
    @checked
    def parse(threat: ThreatLike) -> Threat:
        """Parse ``"Linf:8/255"``, a pair ``("Linf", 8/255)``, or the name of a data set such as ``"cifar10"``.

        Raises:
            ClasswiseError: for an unknown norm or data set, an invalid radius, or a value of another type.
        """
        if isinstance(threat, Threat):
            return threat
        if isinstance(threat, str):
            return Threat(*parse_threat(threat))
        norm, epsilon = threat
        return Threat(NORMS.get(norm.lower(), norm), epsilon)  # type: ignore[arg-type]  # the constructor checks it

    def __str__(self) -> str:
        """The text that `parse` reads; for Linf and recolouring, a multiple of 1/255 up to 1 is such a fraction."""
        if isinstance(self.epsilon, Tensor):
            return f"{self.norm}:{PER_IMAGE}"
        levels = self.epsilon * 255
        whole = self.norm in ("Linf", "recolour") and 1 <= levels <= 255 and abs(levels - round(levels)) < 1e-9
        return f"{self.norm}:{round(levels)}/255" if whole else f"{self.norm}:{self.epsilon:g}"

    def validated(self) -> Threat:
        """This threat with validated radii per image, as a plain tensor; unchanged if it has one radius for all.

        Raises:
            ClasswiseError: for radii that are not numbers from 0 to `limits.RADIUS`, or, for spatial threats, to
                `SPATIAL_RADIUS`.
        """
        if not isinstance(self.epsilon, Tensor):
            return self
        radii = as_tensor(self.epsilon, "threat: radii")
        most = SPATIAL_RADIUS if self.norm == "spatial" else limits.RADIUS
        if radii.is_complex() or radii.dtype == torch.bool:
            raise ClasswiseError(f"threat: radii of type {radii.dtype}, expected numbers from 0 to {most:,}")
        valid = (radii >= 0) & (radii <= most)
        if not bool(valid.all()):
            raise ClasswiseError(
                f"threat: one of the radii is {radii[~valid].flatten()[0]:g}, expected numbers from 0 to {most:,}"
            )
        return self.with_epsilon(radii)

    def of_images(self, count: int | None) -> Threat:
        """This threat, after a check that radii per image have the shape (count,); None: a stream, with one radius.

        Raises:
            ClasswiseError: if they have another shape.
        """
        if isinstance(self.epsilon, Tensor) and self.epsilon.shape != (count,):
            accepted = "one number for a stream" if count is None else f"one number, or shape ({count},)"
            raise ClasswiseError(f"threat: radii have shape {tuple(self.epsilon.shape)}; expected {accepted}")
        return self

    @checked
    def with_epsilon(self, epsilon: float | Tensor) -> Threat:
        """The same norm with another radius."""
        return dataclasses.replace(self, epsilon=epsilon)

    def of(self, rows: Tensor | slice, device: torch.device | None = None) -> Threat:
        """The threat of some of the images; unchanged if it has one radius for all.

        Args:
            rows: indices (M,), a mask (N,), or a slice of the N images.
            device: where the radii are stored; None: where they are.
        """
        if not isinstance(self.epsilon, Tensor):
            return self
        chosen = self.epsilon[rows.to(self.epsilon.device) if isinstance(rows, Tensor) else rows]
        return self.with_epsilon(chosen.to(device or chosen.device))

    def radius(self, like: Tensor) -> Tensor:
        """The radius shaped to broadcast over images: (N or 1, 1, ...)."""
        epsilon = self.epsilon
        epsilon = epsilon.to(like) if isinstance(epsilon, Tensor) else like.new_full((1,), epsilon)
        return epsilon.reshape(-1, *[1] * (like.ndim - 1))

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        """The norm of ``x - x0`` for each image, (N,); Linf for recolouring, NaN for spatial threats."""
        if self.norm == "spatial":
            return x0.new_full((len(x0),), torch.nan)
        return _norm((x - x0).flatten(1), self.norm)

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        """Project onto the intersection of the ball around ``x0`` and [0, 1], in Euclidean distance.

        The projection is exact for Linf; for L2 and L1 it is exact up to rounding and never outside. Both constraints
        are solved jointly. Rescaling and then clipping, as most libraries do, gives a feasible point that is not the
        nearest one. For recolouring, the shift of the pixels of one value is their mean shift, limited to the radius.
        Spatial threats have no projection: only their own attacks, which return allowed images, may be used.

        Args:
            x: points, (N, ...).
            x0: images in [0, 1], (N, ...).
        """
        if self.norm == "spatial":
            return x.clamp(0, 1)
        radius = self.radius(x0)
        if self.norm == "recolour":
            return recolouring.project(x, x0, radius)
        if self.norm == "Linf":
            return torch.minimum(torch.maximum(x, x0 - radius), x0 + radius).clamp_(0, 1)
        shift = (x - x0).flatten(1)
        low, high = (0 - x0).flatten(1), (1 - x0).flatten(1)
        bound = radius.flatten(1)
        solve = _project_l2 if self.norm == "L2" else _project_l1
        return (x0 + solve(shift, low, high, bound).view_as(x0)).clamp_(0, 1)

    def steepest(self, gradient: Tensor, x0: Tensor) -> Tensor:
        """Normalise a gradient to a direction of unit norm: its sign (Linf), or divided by its own norm (L2, L1).

        For recolouring, it is the sign of the sum over the pixels of one value of the images ``x0``.
        """
        if self.norm == "recolour":
            return recolouring.summed(gradient, x0).sign()
        if self.norm == "Linf":
            return gradient.sign()
        size = _norm(gradient.flatten(1), self.norm).clamp_min(1e-12)
        return gradient / size.view(-1, *[1] * (gradient.ndim - 1))

    def uniform(self, x0: Tensor, index: Tensor, rng: CounterRNG, counter: int | Tensor = 0) -> Tensor:
        """Sample a point uniformly from the ball around each image, then project it as `project` does.

        Args:
            x0: images in [0, 1], (N, ...).
            index: the image numbers, (N,).
            rng: the random numbers.
            counter: the counter of ``rng``, an int or (N,).
        """
        shape = tuple(x0.shape[1:])
        if self.norm == "recolour":
            curves = rng.uniform(index, (shape[0], recolouring.LEVELS), counter).mul_(2).sub_(1)
            return self.project(x0 + recolouring.applied(curves, x0) * self.radius(x0), x0)
        if self.norm == "Linf":
            shift = rng.uniform(index, shape, counter).mul_(2).sub_(1)
        else:
            size = math.prod(shape)
            ray = rng.normal(index, shape, counter).flatten(1)
            if self.norm == "L1":  # a Laplace vector over its L1 norm is uniform on the L1 sphere
                unit = rng.uniform(index, shape, counter).flatten(1).sub(0.5)
                ray = -unit.sign() * torch.log1p(-2 * unit.abs())
            length = rng.child("length").uniform(index, (1,), counter).pow(1 / size)
            shift = (ray / _norm(ray, self.norm)[:, None].clamp_min(1e-12) * length).view_as(x0)
        return self.project(x0 + shift * self.radius(x0), x0)


ThreatLike = Annotated[
    Threat | str | tuple[str, float | Tensor],
    "text such as 'Linf:8/255', a pair such as ('Linf', 8/255), or a Threat",
]
"""A threat as users write it; `Threat.parse` reads it."""


def grey_radius(norm: Norm, shape: Sequence[int]) -> float:
    """The smallest radius at which the ball of every image contains the grey image (all pixels 0.5).

    Args:
        norm: the norm; infinite for spatial threats.
        shape: channels, height and width of the images.
    """
    size = math.prod(shape)
    return {"Linf": 0.5, "recolour": 0.5, "L2": 0.5 * math.sqrt(size), "L1": 0.5 * size}.get(norm, math.inf)


def large_radius_text(threat: Threat, shape: Sequence[int]) -> str:
    """Why the largest radius of a threat is implausible, and its value over 255; empty if it is not.

    Args:
        threat: the threat.
        shape: channels, height and width of the images.

    Example:
        >>> large_radius_text(Threat("Linf", 8), (3, 32, 32)).partition("; ")[2]
        'pixels are in [0, 1], so write 8/255 (0.03137) for 8 of 255'
        >>> large_radius_text(Threat("L2", 8), (3, 32, 32))
        ''
    """
    radius = float(torch.as_tensor(threat.epsilon).max())
    if radius < grey_radius(threat.norm, shape):
        return ""
    hint = f", so write {radius:g}/255 ({radius / 255:.4g}) for {radius:g} of 255" if radius >= 1 else ""
    what = f"at {threat.norm} {radius:g} the ball of every image contains the grey image, so no model can be robust"
    return f"{what}; pixels are in [0, 1]{hint}"


def _norm(flat: Tensor, norm: Norm) -> Tensor:
    if norm in ("Linf", "recolour"):
        return flat.abs().amax(1)
    size: Tensor = torch.linalg.vector_norm(flat, ord=2 if norm == "L2" else 1, dim=1)
    return size


def _project_l2(shift: Tensor, low: Tensor, high: Tensor, radius: Tensor, rounds: int = 12) -> Tensor:
    """Nearest shift with ‖shift‖₂ ≤ radius and low ≤ shift ≤ high, rows (N, D).

    The solution is clip(s shift) for one factor s in [0, 1] (the KKT conditions). Given the set of clipped pixels, s
    has a closed form. The set only grows with s, so the iterates increase, stay feasible, and converge in finitely many
    rounds.
    """
    squared, length = radius.square(), shift.abs()
    factor = (radius / torch.linalg.vector_norm(shift, dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1)
    limit = torch.where(shift > 0, high, -low)
    clips_at = limit / length.clamp_min(1e-30)  # the smallest factor at which the box clips a pixel
    energy, limit = length.square(), limit.square()
    for _ in range(rounds):
        free = (clips_at >= factor).to(shift.dtype)
        spent = torch.linalg.vecdot(1 - free, limit)[:, None]
        rest = torch.linalg.vecdot(free, energy)[:, None].clamp_min(1e-30)
        before, factor = factor, torch.maximum(factor, ((squared - spent).clamp_min(0) / rest).sqrt().clamp_max(1))
        if shift.device.type == "cpu" and torch.equal(before, factor):  # on a GPU this would synchronise
            break
    clipped: Tensor = (shift * factor).clamp(low, high)
    shrink: Tensor = radius / torch.linalg.vector_norm(clipped, dim=1, keepdim=True).clamp_min(1e-30)
    return clipped * shrink.clamp_max(1)


def _project_l1(shift: Tensor, low: Tensor, high: Tensor, radius: Tensor, rounds: int = 40) -> Tensor:
    """Nearest shift with ‖shift‖₁ ≤ radius and low ≤ shift ≤ high, rows (N, D).

    The solution is clip(soft(shift, t)) for one threshold t ≥ 0 (the KKT conditions). Its norm decreases in t, so t is
    found by bisection; the result is the end of the bracket inside the ball.
    """

    def point(threshold: Tensor) -> Tensor:
        return (shift.sign() * (shift.abs() - threshold).clamp_min(0)).clamp(low, high)

    inside = point(torch.zeros_like(radius)).abs().sum(1, keepdim=True) <= radius
    lower, upper = torch.zeros_like(radius).expand(len(shift), 1), shift.abs().amax(1, keepdim=True)
    for _ in range(rounds):
        middle = (lower + upper) / 2
        fits = point(middle).abs().sum(1, keepdim=True) <= radius
        lower, upper = torch.where(fits, lower, middle), torch.where(fits, middle, upper)
    return point(torch.where(inside, 0, upper))
