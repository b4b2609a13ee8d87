"""Float32 logits: in smaller batches where they have the bits of a full one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from classwise.attacks.engine.passes import NARROWEST, Passes
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import seeded

BATCH = 64
CPU = torch.device("cpu")


class Counting(nn.Module):
    """A network that notes the sizes of its batches; below one, its last bits are others. It computes in float64."""

    def __init__(self, least: int = 0, drop: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.least, self.drop = least, drop
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        logits: Tensor = self.layers.double()(x.double()).float() * (1 if len(x) >= self.least else 1 + 1e-6)
        return nn.functional.dropout(logits, self.drop, training=True) if self.drop else logits


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def full(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of a batch of full size."""
    with torch.no_grad():
        logits: Tensor = model(x[torch.arange(BATCH) % len(x)])[: len(x)]
    return logits


@pytest.mark.parametrize("count", [1, 4, 5, 20, 50])
def test_few_images_are_a_small_batch_with_the_bits_of_a_full_one(count: int) -> None:
    model, x = Counting(), images(count, seed=1)
    passes = Passes(model, EXACT, BATCH)
    passes.logits(images(BATCH))
    found = passes.logits(x)
    assert count + 4 <= model.sizes[-1] < count + 4 + NARROWEST
    assert torch.equal(found, full(model, x))


@pytest.mark.parametrize(("least", "sizes"), [(9, [8, 64, 16]), (33, [8, 64, 16, 64]), (64, [8, 64, 16, 64])])
def test_sizes_with_other_bits_are_not_used(least: int, sizes: list[int]) -> None:
    model, x = Counting(least), images(2, seed=1)
    passes = Passes(model, EXACT, BATCH)
    passes.logits(images(BATCH))
    model.sizes.clear()
    for _ in range(2):
        assert torch.equal(passes.logits(x), full(Counting(least), x))
    assert model.sizes == sizes
    for _ in range(3):
        passes.logits(x)
    assert model.sizes[-1] == (16 if least == 9 else BATCH)  # it does not try for ever


def test_random_numbers_are_those_of_full_batches() -> None:
    model, x = Counting(drop=0.5), images(2, seed=1)
    passes = Passes(model, EXACT, BATCH)
    with seeded(0, CPU):
        found = [passes.logits(images(BATCH)), passes.logits(x), passes.logits(x)]
    with seeded(0, CPU):
        expected = [full(model, images(BATCH)), full(model, x), full(model, x)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_images_of_another_size_are_full_batches() -> None:
    model, large = Counting(), torch.rand(3, 3, 12, 12)
    passes = Passes(model, EXACT, BATCH)
    passes.logits(images(BATCH))
    assert torch.equal(passes.logits(large), full(model, large))
    assert model.sizes[1] == BATCH
