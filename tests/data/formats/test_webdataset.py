from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from classwise.data import load_data, stream_data
from tests.data.refusals import refused
from tests.refusals import check_refused

from ..test_encoded import picture, shards, write_tar
from ..writers import png

PNG = png(np.asarray(picture(0)))


def test_labels_and_order(tmp_path: Path) -> None:
    files = {
        "a/1.PNG": PNG,
        "a/1.cls": b"2\n",
        "a/1.txt": b"a caption",
        "b/1.json": json.dumps({"label": 0, "width": 9}).encode(),
        "b/1.png": PNG,
        "b/2.json": json.dumps({"label": 5}).encode(),
        "b/2.cls": b"1",
        "b/2.seg.png": PNG,
        "b/.hidden": b"",
        "readme": b"not an image",
    }
    images = load_data(write_tar(tmp_path / "some.tar", files))
    assert images.y.tolist() == [2, 0, 1]
    assert images.class_names == ("0", "1", "2")
    assert (images.name, images.split) == ("some", "")
    assert load_data(tmp_path / "some.tar", size=4).shape == (3, 4, 4)


def test_the_label_may_have_another_name(tmp_path: Path) -> None:
    files = {"1.png": PNG, "1.json": b'{"fine": 3, "label": 1}', "2.png": PNG, "2.fine": b"2", "2.cls": b"1"}
    assert load_data(write_tar(tmp_path / "some.tar", files), label="fine").y.tolist() == [3, 2]


def test_labels_that_are_not_class_numbers(tmp_path: Path) -> None:
    words = {
        "1.png": PNG,
        "1.cls": b"cat\n",
        "2.png": PNG,
        "2.json": b'{"label": "dog"}',
        "3.png": PNG,
        "3.cls": b"cat",
    }
    source = write_tar(tmp_path / "words.tar", words)
    images = load_data(source, classes="dog,cat,ape")
    assert images.y.tolist() == [1, 0, 1]
    assert images.class_names == ("dog", "cat", "ape")
    refused(r"unknown label in .*words\.tar, 2: 'dog'; known: ape, cat$", source, classes="cat,ape")
    refused(r"'cat' is not a class number; for other labels .* --data-set classes=cat,dog ", source)
    numbers = {"1.png": PNG, "1.cls": b"17", "2.png": PNG, "2.json": b'{"label": 3}'}
    source = write_tar(tmp_path / "numbers.tar", numbers)
    assert load_data(source, classes=[3, 17]).class_names == ("3", "17")
    (tmp_path / "classnames.txt").write_text("ape\ndog\n")
    images = load_data(source, classes="3,17")
    assert (images.y.tolist(), images.class_names) == ([1, 0], ("ape", "dog"))
    images = load_data(source, classes="17,3")
    assert (images.y.tolist(), images.class_names) == ([0, 1], ("dog", "ape"))
    refused("2 class names, but classes= has 15 classes", source, classes="3..17")


@pytest.mark.parametrize("labels", ["01", ("cat", "dog")])
@pytest.mark.parametrize("classes", ["cat,dog", "dog,cat"])
def test_classes_that_are_the_names_of_the_file(labels: Sequence[str], classes: str, tmp_path: Path) -> None:
    files = {
        f"{row}.{end}": content for row in (0, 1) for end, content in (("png", PNG), ("cls", labels[row].encode()))
    }
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    images = load_data(write_tar(tmp_path / "some.tar", files), classes=classes)
    assert [images.class_names[label] for label in images.y] == ["cat", "dog"]
    assert ",".join(images.class_names) == classes


def test_splits_are_in_the_names_or_in_subfolders(tmp_path: Path) -> None:
    flat = shards(tmp_path / "flat")
    assert len(load_data(flat, split="test")) == 20
    refused("has no shards of the split 'train', only of test", flat, split="train")
    nested = tmp_path / "nested"
    nested.mkdir()
    (flat / "classnames.txt").rename(nested / "classnames.txt")
    flat.rename(nested / "test")
    assert load_data(nested, split="test").class_names == ("cat", "dog")
    refused("has no shards of the split 'train', only of test", nested, split="train")
    (nested / "test").rename(nested / "val")
    assert len(load_data(nested, split="validation")) == 20
    held_out = shards(tmp_path / "held-out")
    for shard in held_out.glob("*.tar"):
        shard.rename(shard.with_name(shard.name.replace("test", "val")))
    assert len(load_data(held_out, split="val")) == 20


WRONG = {
    "no label": ({"1.png": PNG}, r"some\.tar, 1 has no label: expected a file \.cls or \.label"),
    "a word": ({"1.png": PNG, "1.cls": b"cat"}, "the label 'cat' is not a class number"),
    "negative": ({"1.png": PNG, "1.cls": b"-1"}, "the label '-1' is not a class number"),
    "huge": ({"1.png": PNG, "1.cls": b"9" * 100}, "is not a class number"),
    "a fraction": ({"1.png": PNG, "1.json": b'{"label": 1.5}'}, "the label '1.5' is not a class number"),
    "no object": ({"1.png": PNG, "1.json": b"[1]"}, "has no label"),
    "not JSON": ({"1.png": PNG, "1.json": b"{"}, r"1\.json is not JSON"),
    "long": ({"1.png": PNG, "1.cls": b" " * (1 << 17)}, "has 131072 bytes, at most 65536"),
    "no images": ({"1.cls": b"0"}, "has no images with labels"),
    "damaged image": ({"1.png": PNG[:40], "1.cls": b"0"}, r"some\.tar, 1\.png cannot be decoded"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_damaged_archives(kind: str, tmp_path: Path) -> None:
    files, message = WRONG[kind]
    refused(message, write_tar(tmp_path / "some.tar", files))


def test_files_that_are_not_archives(tmp_path: Path) -> None:
    files = {f"{number}.{kind}": content for number in range(9) for kind, content in (("png", PNG), ("cls", b"0"))}
    whole = write_tar(tmp_path / "some.tar", files)
    whole.write_bytes(whole.read_bytes()[:3000])
    check_refused(r"some\.tar is damaged: ", stream_data, whole)
    refused(
        r"packed\.tar is not an uncompressed tar file .*; decompress it",
        write_tar(tmp_path / "packed.tar", files, "w:gz"),
    )


def test_a_label_outside_the_class_names(tmp_path: Path) -> None:
    source = shards(tmp_path / "flat")
    (source / "classnames.txt").write_text("cat\n")
    check_refused(r"label 1 of image 10 is not a class in 0\.\.0", stream_data, source)
