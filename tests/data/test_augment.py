from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import describe, make
from classwise.data import AUGMENTATIONS, crop_flip
from classwise.data.augment import Augmentation
from tests.refusals import check_refused

RNG = CounterRNG(0, "augment")


def pictures(count: int = 12, dtype: torch.dtype = torch.uint8) -> Tensor:
    x = CounterRNG(1, "pictures").integers(torch.arange(count), (3, 7, 9), 256).to(torch.uint8)
    return x if dtype == torch.uint8 else x.to(dtype) / 255


def one_by_one(x: Tensor, index: Tensor, rng: CounterRNG, padding: int, flip: bool, mode: str) -> Tensor:
    """The plain way: numpy's padding, a window, a mirror."""
    down, across = rng.child("crop").integers(index, (2,), 2 * padding + 1).T.tolist()
    mirror = rng.child("flip").integers(index, (1,), 2).flatten().tolist()
    height, width = x.shape[2:]
    result = []
    for image, top, left, mirrored in zip(x.numpy(), down, across, mirror, strict=True):
        border = ((0, 0), (padding, padding), (padding, padding))
        padded = np.pad(image, border, mode="reflect") if mode == "reflect" else np.pad(image, border)
        window = padded[:, top : top + height, left : left + width]
        result.append(window[:, :, ::-1] if flip and mirrored else window)
    return torch.from_numpy(np.stack(result))


@pytest.mark.parametrize("border", ["reflect", "zeros"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 6])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_equals_padding_and_cropping_each_image(border: str, flip: bool, padding: int, dtype: torch.dtype) -> None:
    x, index = pictures(dtype=dtype), torch.arange(12) * 5
    found = crop_flip(x, index, RNG, padding, flip, border)  # type: ignore[arg-type]
    assert found.dtype == dtype
    assert torch.equal(found, one_by_one(x, index, RNG, padding, flip, border))


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    x, index = pictures(), torch.arange(12)
    order = torch.tensor([7, 2, 11])
    assert torch.equal(crop_flip(x, index, RNG)[order], crop_flip(x[order], index[order], RNG))


def test_epochs_differ() -> None:
    x, index = pictures(), torch.arange(12)
    assert not torch.equal(crop_flip(x, index, RNG.at(1)), crop_flip(x, index, RNG.at(2)))


def test_all_shifts_and_both_mirrors_are_as_likely_as_each_other() -> None:
    count = 5 * 5 * 2 * 200
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4, 4] = 1  # a dot in the middle: its position afterwards shows the shift
    x[..., 4, 5] = 0.5  # and its neighbour the mirror
    found = crop_flip(x.expand(count, -1, -1, -1), torch.arange(count), RNG, padding=2).flatten(1)
    place = found.argmax(1)
    mirrored = found.gather(1, place[:, None] - 1).flatten() == 0.5
    row, column = place // 9 - 2, place % 9 - 2
    seen = torch.bincount((row * 5 + column) * 2 + mirrored, minlength=50)
    assert len(seen) == 50
    # Binomial(10000, 1/50) has a deviation of 14: five of them either way
    assert 130 < seen.min() <= seen.max() < 270


def test_padding_zero_without_flip_changes_nothing_and_result_is_channels_last() -> None:
    x = pictures()
    found = crop_flip(x, torch.arange(12), RNG, padding=0, flip=False)
    assert torch.equal(found, x)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("padding", [-1, 7])
def test_bad_padding(padding: int) -> None:
    check_refused(
        f"padding {padding}: must be 0 to 6 for images of 7x9", crop_flip, pictures(), torch.arange(12), RNG, padding
    )


def test_zeros_may_be_wider_than_the_image() -> None:
    found = crop_flip(pictures(), torch.arange(12), RNG, padding=20, border="zeros")
    assert torch.equal(found, one_by_one(pictures(), torch.arange(12), RNG, 20, True, "zeros"))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_registered(name: str) -> None:
    augmentation = make(AUGMENTATIONS, name)
    assert isinstance(augmentation, Augmentation)
    assert make(AUGMENTATIONS, describe(AUGMENTATIONS, augmentation)) == augmentation
    x = pictures()
    found = augmentation(x, torch.arange(12), RNG)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert torch.equal(found, x) == (name == "none")


def test_options_from_a_spec() -> None:
    x, index = pictures(), torch.arange(12)
    crop = make(AUGMENTATIONS, "crop:padding=2")
    assert isinstance(crop, Augmentation)
    assert torch.equal(crop(x, index, RNG), crop_flip(x, index, RNG, 2, flip=False))
    check_refused("padding", make, AUGMENTATIONS, "crop-flip:padding=-1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_same_on_a_device() -> None:
    x, index = pictures(), torch.arange(12)
    assert torch.equal(crop_flip(x.cuda(), index.cuda(), RNG).cpu(), crop_flip(x, index, RNG))
