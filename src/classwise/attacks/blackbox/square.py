"""Square: a random search that paints one square at a time and keeps what lowers the margin. It asks for no gradient.

Andriushchenko, Croce, Flammarion and Hein, ECCV 2020, with the schedule and the colours that AutoAttack (Croce and
Hein, ICML 2020) runs it with.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.core.config import Count, Share, configurable
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward

MILESTONES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""After the proposals of these numbers (the first is number 0) the share of painted pixels is halved."""
SCHEDULED = 10_000
"""Proposals of the search that the milestones are made for."""


@configurable
class Square(Attack):
    """Random search over squares, for Linf and L2.

    The first query is the image with vertical stripes (Linf: each column and channel plus or minus the radius) or with
    a grid of small bumps (L2). Each proposal then recolours a random square of the best image so far (Linf), or moves
    the perturbation out of one square into another (L2), and stays if it lowers the margin. All draws are each
    image's own; in the published code the images of a batch share the place of the square. A square may lie anywhere
    inside the image; in the published code it never reaches the last row and column, which costs it broken images,
    the more the smaller the images are.

    Rows with a target lower the cross-entropy of the target instead of the margin.

    Args:
        proposals: squares tried for each image; with the start, an image costs at most one query more.
        p: the share of the pixels that a square covers at first, halved along `MILESTONES`.
        restarts: how many starts an image gets.
        rescale: whether the milestones shrink or grow with ``proposals``, from the `SCHEDULED` that they are made for,
            as in the attack's own paper. A short search is stronger so. AutoAttack does not.

    Raises:
        ClasswiseError: under L1.
    """

    source = ("andriushchenko2020square",)
    example = "square:proposals=500,rescale=true"

    proposals: Count = 5000
    p: Share = 0.8
    restarts: Count = 1
    rescale: bool = False

    records = ("queries",)
    norms = ("Linf", "L2")
    precise = True  # it keeps what lowers the margin, late by less than bfloat16 can tell

    @property
    def length(self) -> int:
        """Steps of one start, a query each."""
        return self.proposals + 1

    @property
    def starts(self) -> int:
        """Starts of an image."""
        return self.restarts

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image under stripes or bumps; nothing is known of it yet."""
        del model
        if inputs.threat.norm not in self.norms:
            raise ClasswiseError(f"attack 'square' has no {inputs.threat.norm} form; it knows Linf and L2")
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        spent = count if inputs.restart is None else inputs.restart * self.length
        return {
            "x": _stripes(inputs) if inputs.threat.norm == "Linf" else _bumps(inputs),
            "lowest": torch.full(count.shape, torch.inf, device=count.device),
            "iteration": count,
            "queries": spent.clone(),
            "done": count > 0,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """One query: the start, or the best image so far with one change; the lower of the two stays."""
        best, iteration = state["x"], state["iteration"]
        with torch.no_grad():
            seen = _where(iteration == 0, best, self._propose(inputs, best, iteration))
            logits = model(seen)
        margin = losses.margin(logits, inputs.y)
        value = _value(logits, margin, inputs)
        lower = value < state["lowest"]
        return {
            "x": _where(lower, seen, best),
            "lowest": torch.where(lower, value, state["lowest"]),
            "seen": seen,
            "margin": margin,
            "iteration": iteration + 1,
            "queries": state["queries"] + 1,
            "done": iteration >= self.proposals,
        }

    def _phase(self, proposal: Tensor) -> Tensor:
        """How often the share has been halved, of each row."""
        place = proposal * SCHEDULED // self.proposals if self.rescale else proposal
        return torch.bucketize(place, _constant(MILESTONES, place.device))

    def _propose(self, inputs: AttackInputs, best: Tensor, iteration: Tensor) -> Tensor:
        channels, height, width = best.shape[1:]
        linf = inputs.threat.norm == "Linf"
        sides = _sides(self.p, height, width, odd=not linf)
        phase = self._phase(iteration - 1)
        side = _constant(sides, best.device)[phase]
        uniform = inputs.uniform((channels + (2 if linf else 5),), iteration)
        signs = _signs(uniform[:, :channels, None, None])
        place = uniform[:, channels:]
        if linf:
            window = _Window(place[:, :2], side, height, width)
            painted = (inputs.x + signs * inputs.threat.radius(inputs.x)).clamp_(0, 1)
            return torch.where(window.inside, painted, best)
        to, away = (_Window(part, side, height, width) for part in (place[:, :2], place[:, 2:4]))
        table = _bump_table(sides, height, width, best.device)
        bump = to.crop(table, 2 * phase + (place[:, 4] >= 0.5))[:, None] * signs
        return _moved(inputs, best, bump, to.inside, away.inside)


class _Window:
    """A square in each row: ``side`` pixels wide, (N,), placed by two draws in [0, 1), (N, 2)."""

    def __init__(self, uniform: Tensor, side: Tensor, height: int, width: int) -> None:
        top = (uniform[:, 0] * (height - side + 1)).long()
        left = (uniform[:, 1] * (width - side + 1)).long()
        #: Each pixel's row and column within the square, (N, H) and (N, W).
        self.row = torch.arange(height, device=uniform.device) - top[:, None]
        self.column = torch.arange(width, device=uniform.device) - left[:, None]
        rows, columns = ((place >= 0) & (place < side[:, None]) for place in (self.row, self.column))
        #: Which pixels are inside, (N, 1, H, W).
        self.inside = (rows[:, :, None] & columns[:, None, :])[:, None]

    def crop(self, table: Tensor, entry: Tensor) -> Tensor:
        """Each row's entry of a table of pictures (K, H, W), moved to the square, zero outside of it, (N, H, W)."""
        row, column = self.row.clamp_min(0), self.column.clamp_min(0)
        return table[entry[:, None, None], row[:, :, None], column[:, None, :]] * self.inside[:, 0]


def _value(logits: Tensor, margin: Tensor, inputs: AttackInputs) -> Tensor:
    """What a proposal must lower: the margin; for rows with a target, the target's cross-entropy."""
    if inputs.target is None:
        return margin
    toward = losses.cross_entropy(logits, inputs.target.clamp_min(0))
    return torch.where(inputs.target >= 0, toward, margin)


def _stripes(inputs: AttackInputs) -> Tensor:
    """Linf: plus or minus the radius, one sign for each channel and column."""
    channels, _, width = inputs.x.shape[1:]
    signs = _signs(inputs.uniform((channels, 1, width)))
    return (inputs.x + signs * inputs.threat.radius(inputs.x)).clamp_(0, 1)


def _bumps(inputs: AttackInputs) -> Tensor:
    """L2: a grid of bumps, five to the height, each with its own signs and way up, of the radius' length together."""
    channels, height, width = inputs.x.shape[1:]
    side = max(height // 5, 1)
    device = inputs.x.device
    tiles, places = [], []
    for size in (height, width):
        count = size // side
        shifted = torch.arange(size, device=device) - (size - count * side) // 2
        covered = (shifted >= 0) & (shifted < count * side)
        tiles.append(torch.where(covered, shifted.div(side, rounding_mode="floor"), count))
        places.append(shifted.remainder(side))
    down, across = height // side + 1, width // side + 1
    uniform = inputs.uniform((channels + 1, down, across))
    signs = _signs(uniform[:, :channels])
    signs[:, :, -1], signs[:, :, :, -1] = 0, 0  # the margin that no tile covers
    uniform, signs = (each[:, :, tiles[0]][:, :, :, tiles[1]] for each in (uniform, signs))
    one, other = _bump_pair(side, device)
    turned = uniform[:, channels:] >= 0.5
    rows, columns = places[0][:, None], places[1]
    delta = torch.where(turned, other[rows, columns], one[rows, columns]) * signs
    return _at_length(inputs, delta)


def _moved(inputs: AttackInputs, best: Tensor, bump: Tensor, to: Tensor, away: Tensor) -> Tensor:
    """L2: the perturbation of square ``away`` given to square ``to``, with what the box has left of the radius.

    ``bump`` is added to the direction that ``to`` has; what the two squares hold is then spent on ``to`` alone.
    """
    delta = best - inputs.x
    squared = delta.square()
    radius = inputs.threat.radius(delta)
    left = (radius.square() - squared.sum((1, 2, 3), keepdim=True)).clamp_min(0) / delta.shape[1]
    held = (squared * (to | away)).sum((2, 3), keepdim=True)
    own = (squared * to).sum((2, 3), keepdim=True).sqrt()
    direction = bump + delta * to / (own + _TINY)
    size = torch.linalg.vector_norm(direction, dim=(2, 3), keepdim=True)
    fresh = direction * ((left + held).sqrt() / (size + _TINY))
    return _at_length(inputs, torch.where(to, fresh, delta * ~away))


def _at_length(inputs: AttackInputs, delta: Tensor) -> Tensor:
    """The image moved by the radius along ``delta``, then into the box."""
    size = torch.linalg.vector_norm(delta, dim=(1, 2, 3), keepdim=True)
    moved: Tensor = inputs.x + delta * (inputs.threat.radius(delta) / (size + _TINY))
    return moved.clamp_(0, 1)


_TINY = 1e-12


def _sides(p: float, height: int, width: int, *, odd: bool) -> tuple[int, ...]:
    """The side of the square in each phase; for L2 it is odd and at least 3, as far as the image allows."""
    sides = []
    for phase in range(len(MILESTONES) + 1):
        side = round(math.sqrt(p / 2**phase * height * width))
        side = max(side, 3) // 2 * 2 + 1 if odd else max(side, 1)
        sides.append(min(side, height, width))
    return tuple(sides)


def _bump(height: int, width: int) -> Tensor:
    """A bump of unit length: the sum of 1/k² from one above the distance to the centre up to the edge.

    The distance is the larger of the vertical and the horizontal one, from the pixel (height // 2, width // 2).
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
    """A bump over its negative, and the same on its side; each (side, side), of unit length."""
    upper = side // 2
    pair = torch.cat([_bump(upper, side), -_bump(side - upper, side)])
    pair = (pair / pair.norm()).float()
    return pair.to(device), pair.T.contiguous().to(device)


@lru_cache(maxsize=16)
def _bump_table(sides: tuple[int, ...], height: int, width: int, device: torch.device) -> Tensor:
    """Both pairs of every phase in the corner of a picture, (2 phases, H, W)."""
    table = torch.zeros(2 * len(sides), height, width, device=device)
    for phase, side in enumerate(sides):
        for turned, pair in enumerate(_bump_pair(side, device)):
            table[2 * phase + turned, :side, :side] = pair
    return table


@lru_cache(maxsize=64)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def _signs(uniform: Tensor) -> Tensor:
    """Draws in [0, 1) as -1 or 1."""
    return torch.where(uniform < 0.5, -1.0, 1.0)


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask[:, None, None, None], yes, no)
