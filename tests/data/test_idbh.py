"""IDBH-weak against the plain way, image by image, and against its own odds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.data import idbh
from classwise.data.idbh import IDBHWeak, coloured, crop_shifted, shaped

RNG = CounterRNG(0, "augment")


def pictures(count: int, channels: int = 3, side: int = 32) -> Tensor:
    return CounterRNG(1, "pictures").integers(torch.arange(count), (channels, side, side), 256).to(torch.uint8)


def colour(x: Tensor, operation: int, draw: float) -> Tensor:
    return coloured(x, torch.full((len(x),), operation), torch.full((len(x),), draw))


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 32), (3, 9), (1, 8)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_image_does_not_depend_on_its_neighbours_and_stays_an_image(
    channels: int, side: int, dtype: torch.dtype
) -> None:
    x = pictures(64, channels, side)
    x = x if dtype == torch.uint8 else x / 255
    index, order = torch.arange(64), torch.randperm(64, generator=torch.Generator().manual_seed(0))[:40]
    found = IDBHWeak()(x, index, RNG)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert torch.equal(found[order], IDBHWeak()(x[order], index[order], RNG))
    assert not torch.equal(found, IDBHWeak()(x, index, RNG.at(1)))
    assert float(found.min()) >= 0
    assert float(found.max()) <= (255 if dtype == torch.uint8 else 1)


def test_uint8_and_float_are_the_same_up_to_rounding() -> None:
    x, index = pictures(64), torch.arange(64)
    levels, shares = IDBHWeak()(x, index, RNG), IDBHWeak()(x / 255, index, RNG)
    assert float((levels / 255 - shares).abs().max()) <= 0.5 / 255 + 1e-6


def test_crop_shift_by_hand_and_within_its_bounds() -> None:
    count, side, shift = 3000, 32, 10
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    index = torch.arange(count)
    rows, columns, kept = crop_shifted(
        row.expand(count, -1, -1), column.expand(count, -1, -1), side, side, shift, RNG, index
    )
    tall, wide = kept.any(2).sum(1), kept.any(1).sum(1)
    cut = 2 * side - tall - wide  # rows and columns together
    assert cut.bincount().gt(0).tolist() == [True] * (shift + 1)
    shares = torch.bincount(cut).float() / count
    assert float((shares - 1 / (shift + 1)).abs().max()) < 0.03  # even
    assert torch.equal(kept.sum((1, 2)), tall * wide)  # a rectangle
    whole = cut == 0
    assert torch.equal(rows[whole], row.expand(int(whole.sum()), -1, -1))
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    assert bool(inside[kept].all())  # what is shown comes from the image
    apart = (rows[kept] - row.expand(count, -1, -1)[kept]).abs()
    assert shift / 2 < int(apart.max()) <= shift


def test_shapes_by_the_nearest_pixel() -> None:
    side = 9
    operation = torch.tensor([idbh.SHEAR, idbh.SHEAR, idbh.ROTATE, idbh.COLOUR])
    uniform = torch.tensor([[1.0, 0.9, 0.1], [0.0, 0.1, 0.9], [0.5, 0.9, 0.0], [0.3, 0.3, 0.3]])
    row, column = shaped(side, side, operation, uniform)
    turn = math.radians(5.5)
    for i, j in ((0, 0), (0, 8), (4, 4), (7, 2)):
        y, x = i - 4.0, j - 4.0
        expected = [
            (y + 0.15 * x, x),
            (y, x - 0.05 * y),
            (math.cos(turn) * y - math.sin(turn) * x, math.cos(turn) * x + math.sin(turn) * y),
            (y, x),
        ]
        for image, (down, across) in enumerate(expected):
            assert (int(row[image, i, j]), int(column[image, i, j])) == (round(down + 4), round(across + 4))


def test_blends_at_their_bases_and_at_the_image() -> None:
    x = pictures(5) / 255
    grey = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    half = (1 - 0.5) / 1.4  # where brightness and contrast do not change the image
    for operation in (idbh.COLOUR, idbh.SHARPNESS):
        assert torch.allclose(colour(x, operation, 0.5), x, atol=1e-6)
    for operation in (idbh.BRIGHTNESS, idbh.CONTRAST):
        assert torch.allclose(colour(x, operation, half), x, atol=1e-6)
    assert torch.allclose(colour(x, idbh.BRIGHTNESS, 0.0), 0.5 * x, atol=1e-6)
    assert torch.allclose(colour(x, idbh.COLOUR, 0.0), 0.9 * grey[:, None] + 0.1 * x, atol=1e-6)
    mean = grey.mean((1, 2))[:, None, None, None]
    assert torch.allclose(colour(x, idbh.CONTRAST, 0.0), 0.5 * mean + 0.5 * x, atol=1e-6)
    soft = colour(x, idbh.SHARPNESS, 0.0)
    assert torch.allclose(soft[:, :, 0], x[:, :, 0], atol=1e-6)
    window = x[0, 0, 3:6, 7:10]
    smooth = (window.sum() + 4 * window[1, 1]) / 13
    assert float(soft[0, 0, 4, 8]) == pytest.approx(float(0.9 * smooth + 0.1 * x[0, 0, 4, 8]), abs=1e-6)
    for operation in (idbh.SHEAR, idbh.ROTATE):
        assert torch.equal(colour(x, operation, 0.9), x)
    assert torch.allclose(colour(x[:, :1], idbh.COLOUR, 0.0), x[:, :1], atol=1e-6)  # grey already


def test_levels_are_stretched_and_evened_out() -> None:
    x = (pictures(4) // 4 + 40) / 255  # levels 40 to 103
    x[0, 0] = 0.3  # constant
    for operation in (idbh.AUTOCONTRAST, idbh.EQUALISE):
        found = colour(x, operation, 0.5)
        assert torch.equal(found[0, 0], x[0, 0])
        assert float(found[1:].amin()) == 0
        assert float(found[1:].amax()) == 1
    assert torch.allclose(colour(x, idbh.AUTOCONTRAST, 0.5)[1, 2], (x[1, 2] - x[1, 2].min()) / np.ptp(x[1, 2].numpy()))
    levels = (x[2, 1] * 255).round()
    lowest = int((levels == levels.min()).sum())
    expected = [(int((levels <= value).sum()) - lowest) / (32 * 32 - lowest) for value in levels[0].tolist()]
    assert torch.allclose(colour(x, idbh.EQUALISE, 0.5)[2, 1, 0], torch.tensor(expected), atol=1e-6)


def test_erasing_happens_as_often_and_as_large_as_it_says() -> None:
    count = 4000
    erased = IDBHWeak()._erased(32, 32, torch.arange(count), RNG)
    area = erased.float().mean((1, 2))
    happened = area > 0
    assert float(happened.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(area[happened].min()) >= 0.015  # 0.02, and rounding
    assert float(area.max()) <= 0.36
    assert float(area[happened].mean()) == pytest.approx(0.175, abs=0.02)  # even over 0.02 to 0.33
    assert torch.equal(erased.sum((1, 2)), erased.any(1).sum(1) * erased.any(2).sum(1))  # a rectangle
    assert not bool(IDBHWeak(erase=0)._erased(32, 32, torch.arange(count), RNG).any())
    assert bool((IDBHWeak(erase=1)._erased(32, 32, torch.arange(count), RNG).any((1, 2))).all())


def test_every_operation_is_as_likely() -> None:
    chosen = RNG.child("operation").integers(torch.arange(8000), (), idbh.OPERATIONS)
    assert float((torch.bincount(chosen).float() / 1000 - 1).abs().max()) < 0.1
