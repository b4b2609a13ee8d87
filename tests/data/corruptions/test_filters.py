"""The filters behind the corruptions, and weather, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from classwise.core.compute.rng import CounterRNG
from classwise.data.corruptions.blur import shuffled
from classwise.data.corruptions.digital import affine, smoothing
from classwise.data.corruptions.filters import moved, streaked
from classwise.data.corruptions.weather import MIN_COVER, MUD, Frost, Snow, Spatter


def some(count: int = 3, side: int = 16) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_moved_is_scipy_s_map_coordinates() -> None:
    x = some(2)
    field = 6 * torch.rand(2, 2, 16, 16, generator=torch.Generator().manual_seed(1)) - 3
    found = moved(x, field[:, 0], field[:, 1])
    rows, columns = np.mgrid[:16, :16]
    for image in range(2):
        places = [rows + field[image, 1].numpy(), columns + field[image, 0].numpy()]
        for channel in range(3):
            expected = ndimage.map_coordinates(x[image, channel].numpy(), places, order=1, mode="mirror")
            assert found[image, channel].numpy() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("degrees", [0.0, 90.0])
def test_streaks_are_half_a_gaussian(degrees: float) -> None:
    x = some(1)
    weights = np.exp(-0.5 * (np.arange(13) / 1.5) ** 2)
    kernel = np.concatenate([np.zeros(12), weights / weights.sum()])
    axis = 3 if degrees == 0 else 2
    expected = ndimage.correlate1d(x.numpy().astype(float), kernel, axis=axis, mode="nearest")
    assert streaked(x, 6, 1.5, torch.tensor([degrees])).numpy() == pytest.approx(expected, abs=1e-4)


def test_the_affine_map_takes_the_points_where_they_go() -> None:
    """The pixel at a point's new place comes from its old one; unmoved points change nothing."""
    still = affine(torch.zeros(1, 3, 2), 32, 32)
    assert max(float(part.abs().max()) for part in still) < 1e-4
    by = torch.tensor([[[2.0, -1.0], [1.0, 3.0], [-2.0, 2.0]]])
    across, down = affine(by, 32, 32)
    for (column, row), (right, below) in zip([(26, 26), (26, 6), (6, 6)], by[0].int().tolist(), strict=True):
        place = (0, row + below, column + right)
        assert (float(across[place]), float(down[place])) == pytest.approx((-right, -below), abs=1e-3)


@pytest.mark.parametrize("deviation", [0.5, 1.28, 6.4])
def test_smoothing_is_scipy_s(deviation: float) -> None:
    field = some(1, 32)[0, 0].double().numpy()
    matrix = smoothing(32, deviation, 3.0).double().numpy()
    expected = ndimage.gaussian_filter(field, deviation, mode="reflect", truncate=3)
    assert matrix @ field @ matrix.T == pytest.approx(expected, abs=1e-6)


def test_glass_takes_pixels_near() -> None:
    """In one round of reach 1 every pixel of the inside comes from its own place or one up, left or both."""
    x = torch.arange(2 * 12 * 12, dtype=torch.float32).view(2, 1, 12, 12).repeat(1, 3, 1, 1)
    rng, index = CounterRNG(0, "test"), torch.arange(2)
    found = shuffled(x, 1, 1, rng, index)
    shift = rng.integers(index, (2, 12, 12), 2) - 1
    expected = x.clone()
    for image in range(2):
        for row in range(2, 12):
            for column in range(2, 12):
                down, across = shift[image, :, row, column].tolist()
                expected[image, :, row, column] = x[image, :, row + down, column + across]
    assert not torch.equal(found, x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_lies_on_the_image(channels: int) -> None:
    rng, index = CounterRNG(0, "test"), torch.arange(4)
    x = torch.full((4, channels, 32, 32), 0.4)
    assert bool((Snow().apply(x, Snow.cifar[0], rng, index) >= x - 1e-6).all())
    keep, amount = Frost.cifar[2]
    frost = Frost().apply(x, (keep, amount), rng, index) - keep * x
    assert 0.4 * amount * 0.9 < float(frost.min()) <= float(frost.max()) <= amount
    water = Spatter().apply(x, Spatter.cifar[2], rng, index) - x
    assert 0 <= float(water.min()) < float(water.max()) <= 0.5
    mud = Spatter().apply(torch.ones_like(x), Spatter.cifar[4], rng, index)
    covered = mud < 1
    assert 0.02 < float(covered.float().mean()) < 0.6
    assert float(mud[covered].max()) <= 1 - MIN_COVER * (1 - max(MUD)) + 1e-6
