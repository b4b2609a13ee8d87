from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classwise.data import load_data
from classwise.data.layout import channels_first
from tests.data.refusals import refused
from tests.refusals import check_refused

X = np.random.default_rng(0).integers(0, 256, (5, 3, 6, 8), dtype=np.uint8)
Y = np.array([0, 1, 2, 1, 0])


@pytest.mark.parametrize("keys", [("x", "y"), ("images", "labels"), ("data", "targets"), ("x_test", "y_test")])
@pytest.mark.parametrize("last", [False, True])
def test_keys_and_layouts(tmp_path: Path, keys: tuple[str, str], last: bool) -> None:
    file = tmp_path / "set.npz"
    arrays: dict[str, Any] = {keys[0]: X.transpose(0, 2, 3, 1) if last else X, keys[1]: Y}
    np.savez(file, **arrays)
    images = load_data(file)
    assert torch.equal(images.x, torch.from_numpy(X))
    assert images.y.tolist() == Y.tolist()
    assert images.split == ("test" if keys[0] == "x_test" else "")


def test_splits_grey_floats_and_names(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    np.savez_compressed(
        file,
        x_train=X[:, 0] / 255,
        y_train=Y,
        x_test=X[:2, 0] / 255,
        y_test=Y[:2],
        class_names=np.array(["a", "b", "c"]),
    )
    train = load_data(file, split="train")
    assert (len(train), train.shape, train.class_names) == (5, (1, 6, 8), ("a", "b", "c"))
    assert train.x.dtype == torch.float32
    assert len(load_data(file)) == 2
    assert (train.split, load_data(file).split) == ("train", "test")


def test_layout_rules() -> None:
    def found(*shape: int) -> tuple[int, ...]:
        return tuple(channels_first(np.zeros(shape, np.uint8), "here").shape)

    assert found(2, 8, 8) == (2, 1, 8, 8)
    assert found(2, 4, 4, 3) == (2, 3, 4, 4), "three channels are likelier than four"
    assert found(2, 3, 8, 3) == (2, 3, 8, 3), "as likely: channels first"
    assert found(2, 4, 9, 9) == (2, 4, 9, 9)
    assert found(2, 9, 9, 2) == (2, 2, 9, 9)
    for shape in ((2, 9, 9, 9), (2, 9), (1, 2, 3, 4, 5)):
        check_refused(r"here: images of shape", found, *shape)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "none of the keys y, labels, targets .*it has: x"),
        ({"y": Y}, "none of the keys x, images, data"),
        ({"x": X, "y": Y[:4]}, r"labels of shape \(4,\), expected \(5,\)"),
        ({"x": X.astype(np.float32), "y": Y}, "divide by 255"),
        ({"x": X, "y": np.array([{}] * 5)}, "not a .npz file of plain arrays"),
    ],
)
def test_bad_content(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "set.npz", **arrays)
    refused(message, tmp_path / "set.npz")


@pytest.mark.parametrize("keep", [0, 10, 500, -30])
def test_truncated(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "set.npz"
    np.savez(file, x=X, y=Y)
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"set\.npz is truncated or not a \.npz file", file)


def test_corrupt_values(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    np.savez(file, x=X, y=Y)
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.write_bytes(content)
    refused(r"truncated or not a \.npz file of plain arrays: Bad CRC", file)


def test_an_npy_under_the_wrong_name(tmp_path: Path) -> None:
    np.save(tmp_path / "set.npy", X)
    (tmp_path / "set.npy").rename(tmp_path / "set.npz")
    refused(r"truncated or not a .npz file", tmp_path / "set.npz")


def test_labels_of_text_have_one_number_in_all_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = np.zeros((2, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.array(["a", "b"]), x_test=x, y_test=np.array([b"c", b"a"]))
    images = load_data(tmp_path / "a.npz")
    assert (images.class_names, images.y.tolist()) == (("a", "b", "c"), [2, 0])
    assert "no images of 1 of 3 classes: b" in caplog.text


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([1, 2, 3], "elk,cat,dog"),
        ([1, 2, 3], "3,1,2"),
        ([0, 1, 2], "elk,cat,dog"),
        ([0, 1, 2], "2,0,1"),
        (["cat", "dog", "elk"], "elk,cat,dog"),
    ],
)
def test_names_follow_the_order_of_classes(tmp_path: Path, labels: list[Any], classes: str) -> None:
    """Each image keeps the name of its label, whether the order is given by labels or by names."""
    np.savez(tmp_path / "a.npz", x=X[:3], y=np.array(labels), class_names=np.array(["cat", "dog", "elk"]))
    images = load_data(tmp_path / "a.npz", classes=classes)
    assert images.class_names == ("elk", "cat", "dog")
    assert [images.class_names[label] for label in images.y] == ["cat", "dog", "elk"]


def test_more_than_ten_labels_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    names = [f"class-{number:02}" for number in range(1, 13)]
    np.savez(tmp_path / "a.npz", x=np.repeat(X[:1], 12, axis=0), y=np.arange(1, 13), class_names=np.array(names))
    assert load_data(tmp_path / "a.npz", classes="1..12").class_names == tuple(names)


def test_the_first_label_is_that_of_all_splits(tmp_path: Path) -> None:
    """The test split has the labels 1 and 2, which alone could be those of the second and the third name."""
    names = np.array(["cat", "dog", "elk"])
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y + 1, x_test=X[:2], y_test=np.array([1, 2]), class_names=names)
    images = load_data(tmp_path / "a.npz", split="test", classes="elk,cat,dog")
    assert [images.class_names[label] for label in images.y] == ["cat", "dog"]
    refused(r"labels 1 to 3, and 3 class names; give classes=1\.\.3", tmp_path / "a.npz", split="test")


def test_labels_from_one_on_are_advised_to_be_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y + 1, class_names=np.array(["a", "b", "c"]))
    refused(r"labels 1 to 3, and 3 class names; give classes=1\.\.3", tmp_path / "a.npz")


def test_classes_that_the_file_does_not_have(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, class_names=np.array(["a", "b", "c"]))
    refused("3 class names, but classes= has 2 classes; give as many", tmp_path / "a.npz", classes="a,b")
    refused(r"unknown label in .*: '0'; known: x, y, z", tmp_path / "a.npz", classes="x,y,z")
