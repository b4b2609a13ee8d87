"""Rotation and translation: attacks by grid, by random choice and by gradient (Engstrom et al., ICML 2019).

A transformation has three coordinates, each from -1 to 1 in units of the limits at radius 1: the angle, and the shifts
along the width and the height. Pixels from outside of the image are black, and values are interpolated bilinearly.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import AveragedAttack
from classwise.attacks.engine import AttackInputs, State, expected, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, configurable

ANGLE = math.radians(30)
"""The largest angle at radius 1."""
SHIFT = 3 / 32
"""The largest shift at radius 1, as a fraction of the width and of the height."""


def transformed(x: Tensor, coordinates: Tensor) -> Tensor:
    """Rotate images counter-clockwise around their centres, then translate them.

    Images whose coordinates are all 0 are returned unchanged, bit for bit.

    Args:
        x: images in [0, 1], (N, C, H, W).
        coordinates: (N, 3), in units of `ANGLE` and `SHIFT`.

    Returns:
        Images in [0, 1], shaped like ``x``.
    """
    return choose((coordinates == 0).all(1), x, _sampled(x, coordinates))


def _sampled(x: Tensor, coordinates: Tensor) -> Tensor:
    """The transformed images, with a gradient also at the identity, where they differ from ``x`` by rounding."""
    height, width = x.shape[-2:]
    angle, right, down = (
        (limit * column).view(-1, 1, 1)
        for limit, column in zip((ANGLE, 2 * SHIFT, 2 * SHIFT), coordinates.unbind(1), strict=True)
    )
    cos, sin, aspect = angle.cos(), angle.sin(), height / width
    # Where a pixel of the result comes from, in units of half the width and half the height.
    across, along = ((2 * torch.arange(size, device=x.device) + 1) / size - 1 for size in (width, height))
    u, v = across - right, along[:, None] - down
    grid = torch.stack([cos * u - sin * aspect * v, sin / aspect * u + cos * v], 3)
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return _interpolated(x, grid).clamp(0, 1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False).clamp(0, 1)


def _interpolated(x: Tensor, grid: Tensor) -> Tensor:
    """`grid_sample` with a deterministic gradient with respect to the grid on a GPU, where torch has none."""
    height, width = x.shape[-2:]
    across, along = ((size * (1 + place) - 1) / 2 for size, place in zip((width, height), grid.unbind(3), strict=True))
    left, top = across.detach().floor(), along.detach().floor()
    right, down = across - left, along - top
    result = torch.zeros_like(x)
    for row, vertical in ((top, 1 - down), (top + 1, down)):
        for column, horizontal in ((left, 1 - right), (left + 1, right)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
            pixels = x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
            result = result + pixels * (vertical * horizontal * inside)[:, None]
    return result


@configurable
class SpatialGrid(AveragedAttack):
    """The worst of a grid of rotations and translations, or of some random ones (worst-of-k).

    It needs no gradient. The grid includes its ends, which come first. Without early stop, it returns the image of
    lowest margin.

    Args:
        rotations: number of angles; 31 in the paper.
        translations: number of shifts along each axis; 5 in the paper.
        samples: number of random transformations in place of the grid, 10 in the paper; None: the grid.
        eot_iter: number of passes averaged at each point, for randomised models (expectation over transformation).
    """

    source = ("engstrom2019exploring",)
    example = "spatial-grid:rotations=31,translations=5"

    norms = ("spatial",)

    rotations: Count = 31
    translations: Count = 5
    samples: Count | None = None
    eot_iter: Count = 1

    @property
    def length(self) -> int:
        """Number of transformations."""
        return self.samples or self.rotations * self.translations**2

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean image, which is not evaluated."""
        del model
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        lowest = torch.full((len(inputs.x),), torch.inf, device=inputs.x.device)
        return {"x": inputs.x.clone(), "lowest": lowest, "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the next transformation of each image."""
        iteration = state["iteration"]
        with torch.no_grad():
            seen = transformed(
                inputs.x, self._coordinates(inputs, iteration) * inputs.threat.radius(inputs.x).view(-1, 1)
            )
        logits, value = expected(model, seen, partial(_value, inputs=inputs), self.eot_iter)
        lower = value < state["lowest"]
        return {
            "x": choose(lower, seen, state["x"]),
            "lowest": torch.where(lower, value, state["lowest"]),
            "seen": seen,
            "margin": value if inputs.target is None else losses.margin(logits, inputs.y),
            "iteration": iteration + 1,
            "done": iteration + 1 >= self.length,
        }

    def _coordinates(self, inputs: AttackInputs, iteration: Tensor) -> Tensor:
        """The transformation of each row at its iteration, (N, 3), from -1 to 1."""
        if self.samples is not None:
            return 2 * inputs.uniform((3,), iteration) - 1
        angle = iteration // self.translations**2
        right, down = iteration // self.translations % self.translations, iteration % self.translations
        axes = ((angle, self.rotations), (right, self.translations), (down, self.translations))
        return torch.stack([_level(number, count) for number, count in axes], 1)


def _value(logits: Tensor, inputs: AttackInputs) -> Tensor:
    """The loss to minimise: the margin; for rows with a target, the negative loss towards it."""
    margin = losses.margin(logits, inputs.y)
    if inputs.target is None:
        return margin
    toward = losses.towards(logits, inputs.y, inputs.target.clamp_min(0))
    return torch.where(inputs.target >= 0, -toward, margin)


def _level(number: Tensor, count: int) -> Tensor:
    """The level of a number among ``count`` levels from -1 to 1, (N,), the ends first; 0 for a single level."""
    if count == 1:
        return torch.zeros_like(number, dtype=torch.float32)
    place = torch.where(number % 2 == 0, number // 2, count - 1 - number // 2)
    return 2 * place / (count - 1) - 1


@configurable
class SpatialPGD(PGD):
    """Projected gradient ascent on the angle and the two shifts, along the sign of the gradient.

    It finds fewer adversarial examples than the grid (Engstrom et al., ICML 2019, section 4).

    Args:
        steps: number of steps per start.
        step_size: absolute or relative to each image's radius; the unit is the limit of each coordinate.
        random_init: ``"uniform"`` in the limits, ``"normal"`` (0.001 N(0, 1) for each coordinate) or ``"none"``.
        restarts: maximum number of starts per image.
        objective: the loss, as of PGD.
    """

    source = ("engstrom2019exploring",)
    example = "spatial-pgd:steps=50,restarts=5"

    norms = ("spatial",)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean image or a random transformation."""
        del model
        radius = inputs.threat.radius(inputs.x).view(-1, 1)
        if self.random_init == "none":
            coordinates = radius.new_zeros(len(inputs.x), 3)
        elif self.random_init == "normal":
            coordinates = (0.001 * inputs.normal((3,))).minimum(radius).maximum(-radius)
        else:
            coordinates = radius * (2 * inputs.uniform((3,)) - 1)
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        return {
            "x": transformed(inputs.x, coordinates),
            "coordinates": coordinates,
            "iteration": count,
            "zero_gradients": count.clone(),
            "done": count > 0,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Compute the gradient with respect to the coordinates, take a step, and limit them to the radius."""

        def forward(coordinates: Tensor) -> Tensor:
            return model(_sampled(inputs.x, coordinates))

        here = state["coordinates"]
        logits, gradient = value_and_gradient(forward, here, lambda logits: self.signed_loss(logits, inputs, state))
        radius, size = inputs.threat.radius(inputs.x).view(-1, 1), self._step_of(inputs, state)
        size = size.view(-1, 1) if isinstance(size, Tensor) else size
        coordinates = (here + size * gradient.sign()).minimum(radius).maximum(-radius)
        iteration = state["iteration"] + 1
        return {
            **state,
            "x": transformed(inputs.x, coordinates),
            "coordinates": coordinates,
            "seen": state["x"],
            "margin": losses.margin(logits, inputs.y),
            "iteration": iteration,
            "zero_gradients": state["zero_gradients"] + (gradient.abs().amax(1) == 0),
            "done": iteration >= self.steps,
        }
