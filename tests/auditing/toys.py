"""Images and models for which the outcomes of an audit are known in closed form, and a listener to its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classwise.attacks import suites
from classwise.data.images import Images

SIDE = 6
SUITE = ("fgsm:step_size=0.9eps", "pgd:steps=2,step_size=0.3eps", "apgd-ce:steps=6", "square:steps=5")
"""On a linear model the first two attacks leave some images that APGD misclassifies."""


@contextlib.contextmanager
def small_autoattack() -> Iterator[None]:
    """An AutoAttack of `SUITE`, whose first two attacks ``fast`` has."""
    table: Any = suites.SUITES
    before = {name: table[name] for name in ("autoattack", "fast")}
    table |= {"autoattack": {"standard": SUITE}, "fast": {"standard": (SUITE[0], "pma", SUITE[1])}}
    try:
        yield
    finally:
        table |= before


class Listener:
    """Records the tasks and lines of an evaluation, and interrupts it after a number of units."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.left = limit
        self.lines: list[str] = []
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def start(self, task: str, total: int) -> None:
        self.task = task
        self.totals[task] = total
        self.done[task] = 0

    def advance(self, amount: int) -> None:
        self.done[self.task] += amount
        self.left -= amount
        if self.left < 0:
            raise KeyboardInterrupt

    def log(self, line: str) -> None:
        self.lines.append(line)


class Linear(nn.Module):
    """Logits that are linear in the pixels; the images pass through a layer whose mode can be inspected."""

    def __init__(self, weight: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.head = nn.Linear(weight.shape[1], len(weight))
        self.drop = nn.Dropout(0.5)
        with torch.no_grad():
            self.head.weight.copy_(weight * scale)
            self.head.bias.copy_(-0.5 * scale * weight.sum(1))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(x.flatten(1)))
        return out


class Wrapped(nn.Module):
    """The linear model between a front end on its images and a back end on its logits, which also gets the images."""

    def __init__(
        self,
        front: Callable[[Tensor], Tensor] = torch.clone,
        back: Callable[[Tensor, Tensor], Any] = lambda logits, _: logits,
    ) -> None:
        super().__init__()
        self.inner = model(scale=2.0)
        self.front, self.back = front, back
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.back(self.inner(self.front(x)), x)


def patterns(classes: int, seed: int = 0) -> Tensor:
    """A direction of -1 and 1 for each class, (C, D)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (classes, SIDE * SIDE), generator=generator).float() * 2 - 1


def images(
    count: int = 90,
    classes: int = 3,
    seed: int = 0,
    strength: Sequence[float] | float = 0.06,
    names: Sequence[str] | None = None,
    noise: float = 0.05,
) -> Images:
    """Grey images around 0.5, moved along their class's pattern by its strength, with noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    force = torch.as_tensor(strength).expand(classes)[y]
    flat = 0.5 + patterns(classes)[y] * force[:, None]
    flat = flat + noise * torch.randn(count, SIDE * SIDE, generator=generator)
    x = flat.clamp(0.25, 0.75).view(count, 1, SIDE, SIDE)
    return Images(x, y, names or [f"class {label}" for label in range(classes)], name="toy")


def model(classes: int = 3, scale: float = 0.2) -> Linear:
    """The linear model whose rows are the patterns, in evaluation mode."""
    return Linear(patterns(classes), scale).eval()


def margins(data: Images, net: Linear, epsilon: float) -> Tensor:
    """(N,): the least logit margin in the Linf ball, exact for a linear model where the box does not clip.

    Against each other class the margin falls by epsilon times the L1 norm of the difference of the two rows.
    """
    weight, logits = net.head.weight.detach(), net(data.pixels()).detach()
    rows = torch.arange(len(data))
    against = logits[rows, data.y][:, None] - logits - epsilon * (weight[data.y][:, None] - weight).abs().sum(2)
    against[rows, data.y] = torch.inf
    return torch.min(against, dim=1).values
