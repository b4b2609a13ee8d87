from __future__ import annotations

import dataclasses
import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from classwise.data import Column, Images
from tests.refusals import check_refused

X = torch.zeros(2, 1, 3, 3)
Y = torch.tensor([0, 1])


def some(count: int = 6, classes: int = 3, **options: Any) -> Images:
    x = torch.arange(count * 2 * 4 * 5, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(count, 2, 4, 5)
    return Images(x, torch.arange(count) % classes, **options)


def test_facts() -> None:
    images = some(7, 3, name="toy", split="test")
    assert (len(images), images.shape, images.num_classes) == (7, (2, 4, 5), 3)
    assert images.class_names == ("0", "1", "2")
    assert images.class_counts().tolist() == [3, 2, 2]
    assert images.index.tolist() == list(range(7))
    assert repr(images) == "Images(toy test: 7 of 2x4x5, 3 classes, torch.uint8, cpu)"


def test_pixels_are_the_bytes_over_255_exactly() -> None:
    pixels = Images(torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16), torch.tensor([0])).pixels()
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels.flatten(), torch.arange(256) / 255)


def test_pixels_belong_to_the_caller() -> None:
    images = Images(torch.full((2, 1, 1, 1), 0.5), torch.tensor([0, 1]))
    images.pixels().zero_()
    images.pixels(slice(None)).zero_()
    assert images.x.eq(0.5).all()


def test_take_keeps_the_index_and_the_classes() -> None:
    columns = {"source": Column(torch.tensor([0, 1, 1, 0, 1, 0]), ("a", "b"))}
    part = some(columns=columns).take(torch.tensor([4, 0]))
    again = part.take(slice(1, 2))
    assert part.index.tolist() == [4, 0]
    assert part.columns["source"].ids.tolist() == [1, 0]
    assert again.index.tolist() == [0]
    assert again.num_classes == 3, "a class without an image is still a class"
    assert some().take(torch.tensor([True, False, False, True, False, False])).index.tolist() == [0, 3]
    check_refused("the selection of rows is empty", part.take, slice(0, 0))


def test_batches_cover_everything_once_in_order() -> None:
    images = some(7, 3, index=torch.arange(7) * 10)
    batches = list(images.batches(3))
    assert [len(batch.y) for batch in batches] == [3, 3, 1]
    assert torch.cat([batch.index for batch in batches]).tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert torch.equal(torch.cat([batch.x for batch in batches]), images.pixels())
    check_refused("batch size 0", next, images.batches(0))


def test_fingerprint_is_of_pixels_and_labels_alone() -> None:
    images = some()
    expected = hashlib.sha256(b"torch.uint8 (6, 2, 4, 5)" + images.x.numpy().tobytes() + images.y.numpy().tobytes())
    assert images.fingerprint() == expected.hexdigest()
    assert some(name="other", class_names=["a", "b", "c"]).fingerprint() == images.fingerprint()
    assert Images(images.x, (images.y + 1) % 3).fingerprint() != images.fingerprint()
    assert images.take(torch.tensor([1, 0, 2, 3, 4, 5])).fingerprint() != images.fingerprint()


def test_copies_and_replacements() -> None:
    images = some(superclasses=[0, 0, 1], superclass_names=["left", "right"])
    assert dataclasses.replace(images, name="renamed").superclasses == (0, 0, 1)
    assert pickle.loads(pickle.dumps(images)).fingerprint() == images.fingerprint()
    assert images.to("cpu").fingerprint() == images.fingerprint()
    with pytest.raises(dataclasses.FrozenInstanceError):
        images.name = "changed"  # type: ignore[misc]


def test_arrays_that_torch_cannot_share() -> None:
    x = np.linspace(0, 1, 18).reshape(2, 1, 3, 3)
    x.setflags(write=False)
    assert torch.equal(Images(x[..., ::-1], Y).x, torch.tensor(x).flip(-1).float())
    assert torch.equal(Images(x, Y).x, torch.tensor(x).float())


def test_numpy_and_narrow_types_are_taken() -> None:
    images = Images(np.full((2, 1, 3, 3), 0.25), np.array([1, 0], np.uint8))
    assert (images.x.dtype, images.y.dtype) == (torch.float32, torch.int64)
    assert Images(torch.ones(1, 1, 2, 2, dtype=torch.float16), torch.tensor([0])).x.dtype == torch.float32


@pytest.mark.parametrize("value", [1.0000001192092896, -1e-9, 1 + 1e-6])
def test_pixels_that_exceed_the_bounds_by_rounding_are_clipped(value: float) -> None:
    assert Images(torch.full((1, 1, 2, 2), value), torch.tensor([0])).x.tolist() == [[[[float(value > 0.5)] * 2] * 2]]


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (X[:, 0], Y, {}, r"\(2, 3, 3\), expected \(N, channels, height, width\); add the channel"),
        (X[:0], Y[:0], {}, "at least one image"),
        (X.to(torch.int64), Y, {}, "int64, expected uint8"),
        (X + 255, Y, {}, "divide by 255"),
        (X + 1.02, Y, {}, r"to 1\.02, expected \[0, 1\]; interpolation can leave .* clip with x.clamp\(0, 1\)$"),
        (X - 2, Y, {}, "move the normalisation into the model"),
        (X - 0.5, Y, {}, "-0.5 to -0.5.*move the normalisation into the model"),
        (X + 300, Y, {}, "move the normalisation into the model"),
        (torch.where(torch.arange(2)[:, None, None, None] == 1, torch.nan, X), Y, {}, "NaN"),
        (X + torch.inf, Y, {}, "inf"),
        (X, Y[:1], {}, r"labels of shape \(1,\), expected \(2,\)"),
        (X, Y.float(), {}, "float32, expected integers"),
        (X, Y.bool(), {}, "bool, expected integers"),
        (X, Y - 1, {}, "label -1 of image 0"),
        (np.array([["a"]]), Y, {}, "values of type <U1 cannot be converted to a tensor"),
        (X, np.array([None, None]), {}, "values of type object cannot be converted to a tensor"),
        (X, Y, {"class_names": ["only"]}, r"label 1 of image 1 is not a class in 0\.\.0"),
        (X, Y, {"superclasses": [0]}, "1 superclasses for 2 classes"),
        (X, Y, {"superclasses": [0, 2], "superclass_names": ["a", "b"]}, "0 to 2, but 2 superclass names"),
        (X, Y, {"columns": {"side": Column(torch.tensor([0, 2]), ("l", "r"))}}, "column 'side': label 2 of image 1"),
        (X, Y, {"index": torch.tensor([3])}, r"index: labels of shape \(1,\)"),
    ],
)
def test_bad_input_is_one_line(x: Any, y: Any, options: dict[str, Any], message: str) -> None:
    check_refused(message, Images, x, y, **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_device_moves_pixels_labels_and_index() -> None:
    images = some().to("cuda")
    batch = next(images.batches(4))
    assert {tensor.device.type for tensor in batch} == {"cuda"}
    assert images.fingerprint() == some().fingerprint()
    assert images.take(torch.tensor([1])).index.tolist() == [1]


def test_other_pixels_labels_and_names() -> None:
    images = Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0]), ("a", "b"), "some")
    before = images.fingerprint()
    other = images.renamed("new").with_labels(torch.tensor([1, 1, 0])).with_pixels(torch.ones(3, 3, 4, 4), "more")
    other = other.with_column("side", torch.tensor([1, 0, 1]), ("left", "right"))
    assert (other.name, other.shape, other.y.tolist()) == ("more", (3, 4, 4), [1, 1, 0])
    assert other.columns["side"].ids.tolist() == [1, 0, 1]
    assert other.fingerprint() != before == images.fingerprint()
    assert (images.name, images.y.tolist(), dict(images.columns)) == ("some", [0, 1, 0], {})
    check_refused("bad: 2 images, expected 3", images.with_pixels, torch.zeros(2, 1, 2, 2), "bad")
    check_refused("bad: some pixels are NaN", images.with_pixels, torch.full((3, 1, 2, 2), torch.nan), "bad")
    check_refused("label 2 of image 1", images.with_labels, torch.tensor([0, 2, 0]))
    check_refused(
        r"some, column 'side': label 1 of image 2", images.with_column, "side", torch.tensor([0, 0, 1]), ("left",)
    )
