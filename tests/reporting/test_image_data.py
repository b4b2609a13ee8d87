from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from classwise.reporting.facts.examples import Triple, triples
from classwise.reporting.image_data import SIDE, data_uri


def pixels(uri: str) -> NDArray[np.uint8]:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def examples(change: float) -> tuple[list[Triple], float]:
    clean = np.full((3, 3, 4, 5), 0.5, np.float32)
    example = clean.copy()
    example[:, 0, 0, 0] += change
    example[:, 1, 0, 0] -= change / 2
    return triples(clean, example, [f"image {number}" for number in range(3)])


def test_colours_and_positions_are_unchanged() -> None:
    image = np.zeros((3, 2, 3), np.float32)
    image[0, 0, 2] = 1
    image[2, 1, 0] = 100 / 255
    shown = pixels(data_uri(image))
    assert shown.shape == (2, 3, 3)
    assert shown[0, 2].tolist() == [255, 0, 0]
    assert shown[1, 0].tolist() == [0, 0, 100]


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_channel_counts_are_grey(channels: int) -> None:
    shown = pixels(data_uri(np.full((channels, 4, 4), 51 / 255, np.float32)))
    assert shown.shape == (4, 4)
    assert (shown == 51).all()


def test_only_large_images_are_downsampled() -> None:
    assert pixels(data_uri(np.zeros((3, 200, 100), np.float32))).shape == (SIDE, SIDE // 2, 3)
    assert pixels(data_uri(np.zeros((1, 8, 8), np.float32))).shape == (8, 8)


def test_the_largest_difference_reaches_white_and_half_of_it_half_way_to_black() -> None:
    found, factor = examples(change=8 / 255)
    assert factor == pytest.approx(0.5 * 255 / 8, rel=1e-5)
    assert pixels(found[0].difference)[0, 0].tolist() == [255, 64, 128]
    assert found[0].caption == "image 0"


def test_an_attack_that_changed_nothing_gives_grey() -> None:
    found, factor = examples(change=0.0)
    assert factor == 1
    assert (pixels(found[0].difference) == 128).all()
