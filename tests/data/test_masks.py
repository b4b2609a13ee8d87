from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.data import Images
from classwise.data.masks import GrabCut, OpenCVGrabCut, background_brightness, has_opencv, mask_quality
from tests.refusals import check_refused

needs_opencv = pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed (the extra 'masks')"
)


def scenes(channels: int = 3, count: int = 8) -> tuple[Images, Tensor]:
    """Ellipses of two tones on a background of two others, all with noise; and the true masks."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    pictures, masks = [], []
    for _ in range(count):
        middle = 14 + 4 * torch.rand(2, generator=generator)
        size = 6 + 4 * torch.rand(2, generator=generator)
        mask = ((rows - middle[0]) / size[0]) ** 2 + ((columns - middle[1]) / size[1]) ** 2 < 1
        tones = torch.tensor([[0.8, 0.3, 0.2], [0.6, 0.5, 0.1], [0.1, 0.5, 0.3], [0.2, 0.2, 0.6]])[:, :channels]
        upper = rows < 16
        which = torch.where(mask, upper.long(), 2 + upper.long())
        picture = tones[which].permute(2, 0, 1) + 0.05 * torch.randn(channels, 32, 32, generator=generator)
        pictures.append(picture.clamp(0, 1))
        masks.append(mask)
    return Images(torch.stack(pictures), torch.zeros(count, dtype=torch.int64)), torch.stack(masks)


@pytest.mark.parametrize("channels", [1, 3])
def test_objects_of_other_colours_are_found(channels: int) -> None:
    images, true = scenes(channels)
    masks = GrabCut()(images)
    quality = mask_quality(masks, true)
    assert quality.overlap is not None
    assert quality.overlap > 0.9
    assert quality.area == pytest.approx(float(true.float().mean()), rel=0.1)
    assert (quality.empty, quality.full) == (0, 0)
    assert not masks[:, :2].any(), "outside the rectangle"
    assert not masks[:, :, -2:].any()


def test_a_mask_is_its_image_s_own() -> None:
    images, _ = scenes()
    rows = torch.tensor([5, 1])
    assert torch.equal(GrabCut()(images)[rows], GrabCut()(images.take(rows)))


def test_neighbours_smooth() -> None:
    images, true = scenes()
    noise = 0.25 * torch.randn(images.x.shape, generator=torch.Generator().manual_seed(1))
    noisy = Images((images.pixels() + noise).clamp(0, 1), images.y)
    rough, smooth = (mask_quality(GrabCut(smoothness=value)(noisy), true).overlap for value in (0.0, 2.0))
    assert rough is not None
    assert smooth is not None
    assert smooth > rough


def test_flat_images_are_no_trouble() -> None:
    flat = Images(torch.full((2, 3, 16, 16), 7, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    masks = GrabCut()(flat)
    assert masks.shape == (2, 16, 16)
    quality = mask_quality(masks)
    assert quality.empty + quality.full == 1, "nothing to tell apart, and the numbers say so"
    assert quality.overlap is None


@needs_opencv
@pytest.mark.parametrize("channels", [1, 3])
def test_opencv_finds_objects_of_other_colours(channels: int) -> None:
    images, true = scenes(channels)
    masks = OpenCVGrabCut(size=64)(images)
    quality = mask_quality(masks, true)
    assert quality.overlap is not None
    assert quality.overlap > 0.9
    assert not masks[:, :2].any(), "outside the rectangle"
    assert not masks[:, :, -2:].any()
    other = mask_quality(masks, GrabCut()(images))
    assert other.overlap is not None
    assert other.overlap > 0.9


@needs_opencv
def test_an_opencv_mask_is_its_image_s_own() -> None:
    images, _ = scenes()
    rows = torch.tensor([5, 1])
    cut = OpenCVGrabCut(size=32)
    assert torch.equal(cut(images)[rows], cut(images.take(rows)))


@needs_opencv
def test_bad_input_of_opencv() -> None:
    images, _ = scenes()
    check_refused("inset = 16: must be at most 15 for images of 32x32", OpenCVGrabCut(inset=16), images)
    check_refused("images have 2 channels; GrabCut needs 1 or 3", OpenCVGrabCut(), Images(images.x[:, :2], images.y))


def test_missing_opencv_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ClasswiseError, match="OpenCV is not installed") as caught:
        OpenCVGrabCut()(scenes()[0])
    assert not has_opencv()
    _, _, command = str(caught.value).partition("in the clone of classwise: ")
    assert command in (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text(encoding="utf-8")
    assert "[masks]" in command


def test_agreement_of_masks() -> None:
    """By hand: 1 of 3 pixels in common and 14 of 16 equal; two empty masks agree."""
    one, other = torch.zeros(2, 4, 4, dtype=torch.bool), torch.zeros(2, 4, 4, dtype=torch.bool)
    one[0, 1, 1:3] = True
    other[0, 1:3, 1] = True
    quality = mask_quality(one, other)
    assert quality.overlap == pytest.approx((1 / 3 + 1) / 2)
    assert quality.agreement == pytest.approx((14 / 16 + 1) / 2)


def test_bad_input() -> None:
    images, true = scenes()
    check_refused("inset = 16: must be at most 15 for images of 32x32", GrabCut(inset=16), images)
    check_refused(r"and \(2, 32, 32\): must be equal", mask_quality, true, true[:2])


@pytest.mark.parametrize("channels", [1, 3])
def test_brightness_of_the_background_alone(channels: int) -> None:
    images, true = scenes(channels)
    found = background_brightness(images, true)
    for row in range(len(images)):
        pixels = [images.x[row, :, i, j].mean() for i in range(32) for j in range(32) if not true[row, i, j]]
        assert float(found[row]) == pytest.approx(float(torch.stack(pixels).mean()), abs=1e-6)
    assert background_brightness(images, torch.ones_like(true)).isnan().all()
    white = Images(torch.where(true[:, None], images.x, torch.ones_like(images.x)), images.y)
    assert background_brightness(white, true) == pytest.approx(torch.ones(len(images)))
    check_refused("one per image", background_brightness, images, true[:2])
