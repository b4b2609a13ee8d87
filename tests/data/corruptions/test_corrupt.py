"""Corruptions against scipy, colorsys and Pillow, and what every one of them must keep."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from classwise.core.compute.rng import CounterRNG
from classwise.data import CORRUPTIONS, Images, corrupt
from classwise.data.corruptions.noise import ShotNoise
from classwise.data.corruptions.weather import plasma
from tests.refusals import check_refused


def some(count: int = 6, channels: int = 3, size: int = 32) -> Images:
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear").mul(255).byte()
    return Images(x, torch.arange(count) % 3, name="some")


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [8, 28, 32])
def test_every_corruption(name: str, size: int) -> None:
    channels = 3 if name == "saturate" or size == 32 else 1
    images = some(channels=channels, size=size)
    found = [corrupt(images, name, severity) for severity in (1, 5)]
    for corrupted, severity in zip(found, (1, 5), strict=True):
        assert corrupted.x.dtype == torch.uint8
        assert corrupted.x.shape == images.x.shape
        assert torch.equal(corrupted.y, images.y)
        assert corrupted.name == f"some, {name} {severity} (cifar-10-c)"
    moved = [float((corrupted.pixels() - images.pixels()).abs().mean()) for corrupted in found]
    # The authors' severities of these two are of different kinds: less colour and more, a map and small waves.
    assert moved[1] > moved[0] or (name in ("saturate", "elastic_transform") and min(moved) > 0)
    assert torch.equal(corrupt(images, name, 5).x, found[1].x)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_s_corruption_is_its_own(name: str) -> None:
    """Whatever the other images of the set."""
    images = some(9)
    rows = torch.tensor([7, 2])
    assert torch.equal(corrupt(images, name, 3).x[rows], corrupt(images.take(rows), name, 3).x)


@pytest.mark.parametrize(
    "name", ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "fog", "snow", "frost"]
)
def test_random_ones_follow_the_seed(name: str) -> None:
    images = some()
    first, second = corrupt(images, name, 3, seed=0), corrupt(images, name, 3, seed=1)
    assert not torch.equal(first.x, second.x)
    same = Images(images.x[:1].repeat(2, 1, 1, 1), torch.zeros(2, dtype=torch.int64))
    one, other = corrupt(same, name, 3).x
    assert not torch.equal(one, other)


def flat(value: int, count: int = 4) -> Images:
    return Images(torch.full((count, 3, 64, 64), value, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))


@pytest.mark.parametrize(("name", "spread"), [("gaussian_noise", 0.08), ("speckle_noise", 0.12 * 128 / 255)])
def test_normal_noise(name: str, spread: float) -> None:
    x = corrupt(flat(128), name, 3).pixels()
    assert float(x.std()) == pytest.approx(spread, rel=0.02)
    assert float(x.mean()) == pytest.approx(127.5 / 255, abs=0.002), "whole levels lie half a level lower"


def test_shot_noise_is_poisson() -> None:
    x = torch.full((2, 3, 64, 64), 51 / 255)
    counts = ShotNoise().apply(x, 75, CounterRNG(0, "test"), torch.arange(2)).mul(75).round().long()
    share = torch.bincount(counts.flatten(), minlength=40).double() / counts.numel()
    expected = stats.poisson.pmf(np.arange(len(share)), 15)
    assert np.abs(share.numpy() - expected).max() < 0.006
    dark = torch.zeros(1, 1, 8, 8)
    assert not ShotNoise().apply(dark, 75, CounterRNG(0, "test"), torch.arange(1)).any()


def test_salt_is_as_frequent_as_pepper() -> None:
    x = corrupt(flat(100), "impulse_noise", 5).x
    assert float((x == 255).float().mean()) == pytest.approx(0.035, abs=0.003)
    assert float((x == 0).float().mean()) == pytest.approx(0.035, abs=0.003)
    assert set(x.flatten().tolist()) == {0, 100, 255}


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.4), (5, 1.0)])
def test_gaussian_blur_is_scipy_s(severity: int, deviation: float) -> None:
    images = some()
    expected = ndimage.gaussian_filter(
        images.pixels().double().numpy(), (0, 0, deviation, deviation), mode="nearest", truncate=4
    )
    assert np.abs(corrupt(images, "gaussian_blur", severity).pixels().numpy() - expected).max() < 1.1 / 255


def test_defocus_blur_is_a_smoothed_disk() -> None:
    images = some()
    disk = np.pad(np.ones((3, 3)), 2)  # all points within 1.5 of the middle
    line = np.exp(-0.5 * (np.arange(-1, 2) / 0.1) ** 2)
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(line, line) / line.sum() ** 2, mode="constant")
    expected = ndimage.convolve(images.pixels().double().numpy(), kernel[None, None], mode="mirror")
    assert np.abs(corrupt(images, "defocus_blur", 5).pixels().numpy() - expected).max() < 1.1 / 255


def test_zoom_blur_is_scipy_s_zoom() -> None:
    images = some(2)
    x = images.pixels().double().numpy()
    total = x.copy()
    factors = np.arange(1, 1.06, 0.01)
    for factor in factors:
        side = int(np.ceil(32 / factor))
        start = (32 - side) // 2
        large = ndimage.zoom(x[..., start : start + side, start : start + side], (1, 1, factor, factor), order=1)
        trim = (large.shape[-1] - 32) // 2
        total += large[..., trim : trim + 32, trim : trim + 32]
    found = corrupt(images, "zoom_blur", 1).pixels().numpy()
    assert np.abs(found - total / (len(factors) + 1)).max() < 1.5 / 255


def hsv(images: Images) -> np.ndarray[tuple[int, ...]]:
    values = images.pixels().double().permute(0, 2, 3, 1).reshape(-1, 3).tolist()
    return np.array([colorsys.rgb_to_hsv(*value) for value in values])


def back(values: np.ndarray[tuple[int, ...]], images: Images) -> np.ndarray[tuple[int, ...]]:
    count, channels, height, width = images.x.shape
    rgb = np.array([colorsys.hsv_to_rgb(*value) for value in np.clip(values, 0, 1)])
    return rgb.reshape(count, height, width, channels).transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "factor", "constant"),
    [("brightness", (1, 1, 1), (0, 0, 0.3)), ("saturate", (1, 2.5, 1), (0, 0.2, 0))],
)
def test_colours_change_as_colorsys_says(name: str, factor: tuple[float, ...], constant: tuple[float, ...]) -> None:
    images = some(2, size=16)
    x = images.x.clone()
    x[0, :, 0] = 90  # a row of grey
    x[0, :, 1] = 0  # and one of black
    images = images.with_pixels(x, "some")
    expected = back(np.clip(hsv(images) * factor + constant, 0, 1), images)
    assert np.abs(corrupt(images, name, 5).pixels().numpy() - expected).max() < 1.1 / 255


def test_contrast() -> None:
    images = some()
    x = images.pixels()
    mean = x.mean((2, 3), keepdim=True)
    assert float((corrupt(images, "contrast", 5).pixels() - (mean + 0.15 * (x - mean))).abs().max()) < 1.1 / 255


def test_jpeg_is_pillow_s() -> None:
    images = some(1)
    buffer = io.BytesIO()
    Image.fromarray(images.x[0].permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=40)
    expected = torch.from_numpy(np.asarray(Image.open(buffer)).copy()).permute(2, 0, 1)
    assert torch.equal(corrupt(images, "jpeg_compression", 5).x[0], expected)


def test_plasma_fills_the_unit_interval_and_joins_at_its_edges() -> None:
    sheet = plasma(CounterRNG(0, "fog"), torch.arange(20), 32, 2.0)
    assert torch.equal(sheet.amin((1, 2)), torch.zeros(20))
    assert torch.equal(sheet.amax((1, 2)), torch.ones(20))
    inside = (sheet[:, 1:] - sheet[:, :-1]).abs().mean()
    assert float((sheet[:, 0] - sheet[:, -1]).abs().mean()) < 2 * float(inside)
    smooth = plasma(CounterRNG(0, "fog"), torch.arange(20), 32, 3.0)
    assert float((smooth[:, 1:] - smooth[:, :-1]).abs().mean()) < float(inside)


def test_fog_keeps_the_largest_value() -> None:
    images = some()
    found = corrupt(images, "fog", 1)
    assert (found.x.flatten(1).amax(1) <= images.x.flatten(1).amax(1)).all()
    assert float(found.pixels().std()) < float(images.pixels().std())


def test_large_images_get_imagenet_s_constants() -> None:
    assert corrupt(some(1, size=128), "contrast", 1).name.endswith("(imagenet-c)")
    small = corrupt(some(1), "contrast", 1, constants="imagenet-c")
    assert small.name.endswith("(imagenet-c)")
    assert float(small.pixels().std()) < float(corrupt(some(1), "contrast", 1).pixels().std())


def test_bad_input() -> None:
    check_refused("severity = 6: must be an integer from 1 to 5", corrupt, some(), "fog", 6)
    check_refused(r"unknown corruption 'foog'.*fog", corrupt, some(), "foog", 1)
    check_refused("'saturate': the images have 1 channels, expected 3", corrupt, some(channels=1), "saturate", 1)
