"""Square Attack, a black-box attack: random search over square-shaped perturbations.

Andriushchenko, Croce, Flammarion and Hein, ECCV 2020, with the schedule and perturbations of AutoAttack (Croce and
Hein, ICML 2020).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import AveragedAttack
from classwise.attacks.engine import AttackInputs, State, expected
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, Share, configurable

MILESTONES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The fraction of perturbed pixels is halved after the steps with these numbers, counted from 0."""
SCHEDULED = 10_000
"""Number of steps for which the milestones are defined."""


@configurable
class Square(AveragedAttack):
    """Square Attack for Linf and L2.

    The initial image has vertical stripes (Linf: each column and channel plus or minus the radius) or a grid of small
    bumps (L2). Each step then recolours a random square of the best image (Linf), or moves the perturbation from one
    square to another (L2). The change is accepted if it lowers the margin; for rows with a target, if it lowers the
    cross-entropy of the target.

    Two differences from the published code: there the images of a batch share the position of the square, here each
    image has its own; and there no square reaches the last row and column, which lowers the success rate, most on small
    images.

    Args:
        steps: squares tried per start; the initial image is one further query.
        p_init: initial fraction of the pixels covered by a square, in [0, 1]; halved at nine steps, from 10 to 8,000
            of 10,000.
        restarts: maximum number of starts per image.
        rescale_schedule: scale these nine steps from 10,000 to ``steps``, as in the paper of the attack. This
            strengthens a short search. AutoAttack does not rescale.
        eot_iter: number of passes averaged for each query, for randomised models (expectation over transformation).

    Raises:
        ClasswiseError: under L1.
    """

    source = ("andriushchenko2020square",)
    example = "square:steps=500,rescale_schedule=true"

    steps: Count = 5000
    p_init: Share = 0.8
    restarts: Count = 1
    rescale_schedule: bool = False
    eot_iter: Count = 1

    records = ("queries",)
    norms = ("Linf", "L2")
    precise = "tf32"  # late improvements of the margin are below the resolution of bfloat16

    @property
    def length(self) -> int:
        """Points queried per start."""
        return self.steps + 1

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the image with stripes (Linf) or bumps (L2)."""
        del model
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        spent = count if inputs.restart is None else inputs.restart * self.length * self.eot_iter
        return {
            "x": _stripes(inputs) if inputs.threat.norm == "Linf" else _tiled_bumps(inputs),
            "lowest": torch.full(count.shape, torch.inf, device=count.device),
            "iteration": count,
            "queries": spent.clone(),
            "done": count > 0,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Query the initial image, or the best image with one square changed; keep the change if it lowers the loss."""
        best, iteration = state["x"], state["iteration"]
        with torch.no_grad():
            seen = choose(iteration == 0, best, self._candidate(inputs, best, iteration))
        logits, value = expected(model, seen, lambda logits: _value(logits, inputs), self.eot_iter)
        lower = value < state["lowest"]
        return {
            "x": choose(lower, seen, best),
            "lowest": torch.where(lower, value, state["lowest"]),
            "seen": seen,
            "margin": value if inputs.target is None else losses.margin(logits, inputs.y),
            "iteration": iteration + 1,
            "queries": state["queries"] + self.eot_iter,
            "done": iteration >= self.steps,
        }

    def _phase(self, step: Tensor) -> Tensor:
        """Number of halvings of the fraction before a step, int64 (N,)."""
        scheduled = step * SCHEDULED // self.steps if self.rescale_schedule else step
        return torch.bucketize(scheduled, _constant(MILESTONES, scheduled.device))

    def _candidate(self, inputs: AttackInputs, best: Tensor, iteration: Tensor) -> Tensor:
        """The best image with one random square changed."""
        channels, height, width = best.shape[1:]
        linf = inputs.threat.norm == "Linf"
        sides = _sides(self.p_init, height, width, odd=not linf)
        phase = self._phase(iteration - 1)
        side = _constant(sides, best.device)[phase]
        uniform = inputs.uniform((channels + (2 if linf else 5),), iteration)
        signs = _signs(uniform[:, :channels, None, None])
        position = uniform[:, channels:]
        if linf:
            window = _Window(position[:, :2], side, height, width)
            perturbed = (inputs.x + signs * inputs.threat.radius(inputs.x)).clamp_(0, 1)
            return torch.where(window.inside, perturbed, best)
        target, source = (_Window(part, side, height, width) for part in (position[:, :2], position[:, 2:4]))
        table = _bump_table(sides, height, width, best.device)
        bump = target.crop(table, 2 * phase + (position[:, 4] >= 0.5))[:, None] * signs
        return _moved(inputs, best, bump, target.inside, source.inside)


class _Window:
    """A square in each image: ``side`` pixels wide, (N,), positioned by two uniform numbers in [0, 1), (N, 2)."""

    def __init__(self, uniform: Tensor, side: Tensor, height: int, width: int) -> None:
        top = (uniform[:, 0] * (height - side + 1)).long()
        left = (uniform[:, 1] * (width - side + 1)).long()
        #: Row and column of each pixel relative to the square, (N, H) and (N, W).
        self.row = torch.arange(height, device=uniform.device) - top[:, None]
        self.column = torch.arange(width, device=uniform.device) - left[:, None]
        rows, columns = ((offset >= 0) & (offset < side[:, None]) for offset in (self.row, self.column))
        #: Mask of the pixels inside the square, (N, 1, H, W).
        self.inside = (rows[:, :, None] & columns[:, None, :])[:, None]

    def crop(self, table: Tensor, entry: Tensor) -> Tensor:
        """The chosen entries of a table (K, H, W), shifted to the square and zero outside of it, (N, H, W)."""
        row, column = self.row.clamp_min(0), self.column.clamp_min(0)
        return table[entry[:, None, None], row[:, :, None], column[:, None, :]] * self.inside[:, 0]


def _value(logits: Tensor, inputs: AttackInputs) -> Tensor:
    """The loss to minimise: the margin; for rows with a target, the cross-entropy of the target."""
    margin = losses.margin(logits, inputs.y)
    if inputs.target is None:
        return margin
    toward = losses.cross_entropy(logits, inputs.target.clamp_min(0))
    return torch.where(inputs.target >= 0, toward, margin)


def _stripes(inputs: AttackInputs) -> Tensor:
    """Initial image for Linf: plus or minus the radius, one random sign per channel and column."""
    channels, _, width = inputs.x.shape[1:]
    signs = _signs(inputs.uniform((channels, 1, width)))
    return (inputs.x + signs * inputs.threat.radius(inputs.x)).clamp_(0, 1)


def _tiled_bumps(inputs: AttackInputs) -> Tensor:
    """Initial image for L2: a grid of bumps, five per height, with random signs and orientations."""
    channels, height, width = inputs.x.shape[1:]
    side = max(height // 5, 1)
    device = inputs.x.device
    tiles, offsets = [], []
    for size in (height, width):
        count = size // side
        shifted = torch.arange(size, device=device) - (size - count * side) // 2
        covered = (shifted >= 0) & (shifted < count * side)
        tiles.append(torch.where(covered, shifted.div(side, rounding_mode="floor"), count))
        offsets.append(shifted.remainder(side))
    down, across = height // side + 1, width // side + 1
    uniform = inputs.uniform((channels + 1, down, across))
    signs = _signs(uniform[:, :channels])
    signs[:, :, -1], signs[:, :, :, -1] = 0, 0  # the border outside the grid
    uniform, signs = (values[:, :, tiles[0]][:, :, :, tiles[1]] for values in (uniform, signs))
    upright, rotated = _bump_pair(side, device)
    is_rotated = uniform[:, channels:] >= 0.5
    rows, columns = offsets[0][:, None], offsets[1]
    delta = torch.where(is_rotated, rotated[rows, columns], upright[rows, columns]) * signs
    return _at_length(inputs, delta)


def _moved(inputs: AttackInputs, best: Tensor, bump: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """L2: the image with the perturbation of the square ``source`` moved to the square ``target``.

    The new direction in ``target`` is its old one plus ``bump``. Its norm uses the norms of both squares and the part
    of the radius that clipping to [0, 1] left unused.
    """
    delta = best - inputs.x
    squared = delta.square()
    radius = inputs.threat.radius(delta)
    unused = (radius.square() - squared.sum((1, 2, 3), keepdim=True)).clamp_min(0) / delta.shape[1]
    used = (squared * (target | source)).sum((2, 3), keepdim=True)
    own = (squared * target).sum((2, 3), keepdim=True).sqrt()
    direction = bump + delta * target / (own + _TINY)
    size = torch.linalg.vector_norm(direction, dim=(2, 3), keepdim=True)
    new = direction * ((unused + used).sqrt() / (size + _TINY))
    return _at_length(inputs, torch.where(target, new, delta * ~source))


def _at_length(inputs: AttackInputs, delta: Tensor) -> Tensor:
    """The image moved by the radius along ``delta``, then clipped to [0, 1]."""
    size = torch.linalg.vector_norm(delta, dim=(1, 2, 3), keepdim=True)
    moved: Tensor = inputs.x + delta * (inputs.threat.radius(delta) / (size + _TINY))
    return moved.clamp_(0, 1)


_TINY = 1e-12


def _sides(p: float, height: int, width: int, *, odd: bool) -> tuple[int, ...]:
    """The side of the square in each phase; for L2 it is odd and at least 3, unless the image is smaller."""
    sides = []
    for phase in range(len(MILESTONES) + 1):
        side = round(math.sqrt(p / 2**phase * height * width))
        side = max(side, 3) // 2 * 2 + 1 if odd else max(side, 1)
        sides.append(min(side, height, width))
    return tuple(sides)


def _bump(height: int, width: int) -> Tensor:
    """A bump of unit L2 norm: at Chebyshev distance d from the centre it is proportional to the sum of 1/k², k > d.

    The centre is the pixel (height // 2, width // 2); k goes up to max(height, width) // 2 + 1.
    """
    away = [(torch.arange(size) - size // 2).abs() for size in (height, width)]
    distance = torch.maximum(away[0][:, None], away[1])
    edge = max(height, width) // 2 + 1
    heights = torch.arange(1, edge + 1).double().pow(-2).flip(0).cumsum(0).flip(0)
    bump = heights[distance]
    size: Tensor = torch.linalg.vector_norm(bump)
    return bump / size.clamp_min(_TINY)


@lru_cache(maxsize=64)
def _bump_pair(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A bump above its negative, and its transpose; each (side, side), of unit L2 norm."""
    upper = side // 2
    pair = torch.cat([_bump(upper, side), -_bump(side - upper, side)])
    pair = (pair / pair.norm()).float()
    return pair.to(device), pair.T.contiguous().to(device)


@lru_cache(maxsize=16)
def _bump_table(sides: tuple[int, ...], height: int, width: int, device: torch.device) -> Tensor:
    """Both bumps of every phase in the top left corner of an image, (2 phases, H, W)."""
    table = torch.zeros(2 * len(sides), height, width, device=device)
    for phase, side in enumerate(sides):
        for turned, pair in enumerate(_bump_pair(side, device)):
            table[2 * phase + turned, :side, :side] = pair
    return table


@lru_cache(maxsize=64)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def _signs(uniform: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) mapped to -1 or 1."""
    return torch.where(uniform < 0.5, -1.0, 1.0)
