from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from classwise.data import load_data
from tests.data.refusals import refused
from tests.data.writers import PICTURES, png, write_parquet


def test_pixels_labels_and_names(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "set.parquet", names={"label": ["cat", "dog"]}, label=[0, 1, 0, 1, 1, 1])
    images = load_data(file)
    assert torch.equal(images.x, torch.from_numpy(PICTURES).permute(0, 3, 1, 2))
    assert images.y.tolist() == [0, 1, 0, 1, 1, 1]
    assert images.class_names == ("cat", "dog")
    assert (images.name, images.split) == ("set", "")


@pytest.mark.parametrize("classes", ["dog,cat", "1,0"])
def test_names_follow_the_order_of_classes(tmp_path: Path, classes: str) -> None:
    file = write_parquet(tmp_path / "set.parquet", names={"label": ["cat", "dog"]}, label=[0, 1, 0, 1, 1, 1])
    images = load_data(file, classes=classes)
    assert (images.class_names, images.y.tolist()) == (("dog", "cat"), [1, 0, 1, 0, 0, 0])


def test_without_metadata_and_with_other_names_of_columns(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "set.parquet", column="img", digit=[0, 2, 0, 2, 1, 1])
    assert load_data(file).class_names == ("0", "1", "2")


def test_a_parquet_file_is_known_by_its_content(tmp_path: Path) -> None:
    assert len(load_data(write_parquet(tmp_path / "no-suffix", label=[0] * 6))) == 6


@pytest.mark.parametrize(
    ("name", "split"),
    [("x-train.parquet", "train"), ("test.parquet", "test"), ("a_val.b.parquet", "valid"), ("latest", "")],
)
def test_a_file_has_the_split_of_its_name(tmp_path: Path, name: str, split: str) -> None:
    assert load_data(write_parquet(tmp_path / name, label=[0] * 6), split="train").split == split


def test_labels_of_text_have_one_number_in_all_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = {"train": list("abcabc"), "test": list("cacaca")}
    for split, label in text.items():
        write_parquet(tmp_path / "data" / f"pets-{split}-00000-of-00001.parquet", label=label)
        write_parquet(tmp_path / "data" / f"others-{split}.parquet", label=list("xyzxyz"))
    (tmp_path / "data" / "others-test.parquet").unlink()
    for source in (tmp_path, tmp_path / "data" / "pets-test-00000-of-00001.parquet"):
        caplog.clear()
        images = load_data(source)
        assert (images.class_names, images.y.tolist()) == (("a", "b", "c"), [2, 0, 2, 0, 2, 0])
        assert "no images of 1 of 3 classes: b" in caplog.text
    write_parquet(tmp_path / "data" / "pets-val.parquet", label=[0] * 6)
    assert load_data(tmp_path).class_names == ("a", "b", "c")


def test_coarse_labels_are_superclasses(tmp_path: Path) -> None:
    fine, coarse = [0, 1, 2, 0, 1, 2], [1, 0, 1, 1, 0, 1]
    names = {"fine_label": ["a", "b", "c"], "coarse_label": ["left", "right"]}
    file = write_parquet(tmp_path / "set.parquet", names=names, fine_label=fine, coarse_label=coarse)
    images = load_data(file)
    assert (images.superclasses, images.superclass_names) == ((1, 0, 1), ("left", "right"))
    assert images.columns["coarse_label"].ids.tolist() == coarse
    by_coarse = load_data(file, label="coarse_label")
    assert by_coarse.y.tolist() == coarse
    assert by_coarse.superclasses is None
    assert by_coarse.columns["fine_label"].names == ("a", "b", "c")


def test_a_class_in_two_superclasses_has_none(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "set.parquet", fine_label=[0, 1, 0, 1, 0, 1], coarse_label=[0, 1, 1, 0, 0, 1])
    images = load_data(file)
    assert images.superclasses is None
    assert "coarse_label" in images.columns


def test_grey_pictures(tmp_path: Path) -> None:
    grey = [png(picture[..., 0]) for picture in PICTURES]
    images = load_data(write_parquet(tmp_path / "grey.parquet", grey, label=[0] * 6))
    assert torch.equal(images.x, torch.from_numpy(PICTURES[..., 0])[:, None])
    mixed = load_data(write_parquet(tmp_path / "mixed.parquet", [*grey[:5], png(PICTURES[5])], label=[0] * 6))
    assert torch.equal(mixed.x[0], torch.from_numpy(PICTURES[0, ..., 0]).expand(3, -1, -1))
    assert torch.equal(mixed.x[5], torch.from_numpy(PICTURES[5]).permute(2, 0, 1))


def test_folder_of_shards(tmp_path: Path) -> None:
    data = tmp_path / "data"
    contents = [png(picture) for picture in PICTURES]
    write_parquet(data / "train-00000-of-00002-0a1b.parquet", contents[:4], label=[0, 1, 2, 3])
    write_parquet(data / "train-00001-of-00002-2c3d.parquet", contents[4:], label=[0, 1])
    write_parquet(data / "test-00000-of-00001.parquet", contents[:1], label=[3])
    train = load_data(tmp_path, split="train")
    assert torch.equal(train.x, torch.from_numpy(PICTURES).permute(0, 3, 1, 2))
    assert train.y.tolist() == [0, 1, 2, 3, 0, 1]
    assert len(load_data(tmp_path)) == 1
    refused("no file for the split 'valid'", tmp_path, split="valid")
    write_parquet(data / "validation-0.parquet", contents[:2], label=[0, 1])
    assert [len(load_data(tmp_path, split=split)) for split in ("val", "valid", "validation")] == [2, 2, 2]


def test_a_folder_of_several_sets_is_not_mixed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one-test.parquet", label=[0] * 6)
    write_parquet(tmp_path / "one-test-small.parquet", label=[0] * 6)
    assert load_data(tmp_path).name == tmp_path.name
    write_parquet(tmp_path / "two-test.parquet", label=[0] * 6)
    refused(r"several data sets for the split 'test' \(one-test.parquet, two-test.parquet\)", tmp_path)


def test_shards_must_agree(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test-00000-of-00002.parquet", names={"label": ["a", "b"]}, label=[0] * 6)
    write_parquet(tmp_path / "test-00001-of-00002.parquet", names={"label": ["b", "a"]}, label=[0] * 6)
    refused(r"00001-of-00002.parquet: columns or class names differ", tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    file = write_parquet(tmp_path / "set.parquet", label=[0] * 6)
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"set\.parquet (is truncated or not a|cannot be read as) Parquet", file)


def test_bad_pictures_are_named_by_row(tmp_path: Path) -> None:
    whole = [png(picture) for picture in PICTURES]
    for bad, message in (
        (whole[3][:60], "row 3 cannot be decoded"),
        (b"no picture", "row 3 cannot be decoded: not an image"),
        (b"", "row 3: the image is not in the file"),
        (None, "row 3: the image is not in the file"),
        (png(PICTURES[3, :4]), "row 3 is 7x4 and the first image 7x5 .*use size=64 "),
    ):
        file = write_parquet(tmp_path / "set.parquet", [*whole[:3], bad, *whole[4:]], label=[0] * 6)
        refused(rf"set\.parquet.*{message}", file)


def test_size_scales_the_shorter_side_and_cuts_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    file = write_parquet(tmp_path / "set.parquet", [png(wide), png(wide[:, 4:8])], label=[0, 1])
    images = load_data(file, size=4)
    assert images.shape == (3, 4, 4)
    assert images.x.eq(200).all()
    assert load_data(file, size=2).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ({"a": [0] * 6, "b": [0] * 6}, {}, "the label column is ambiguous; .*one of: a, b"),
        ({}, {}, "the label column is ambiguous; .*no integer column"),
        ({"label": [0] * 6}, {"label": "lable"}, "no integer column 'lable'; its integer columns: label"),
        ({"label": [0, 0, -1, 0, 0, 0]}, {}, "label -1 of image 2"),
        ({"label": [0, None, 0, 0, 0, 0]}, {}, "'label' has empty cells"),
        ({"label": [0] * 6}, {"sise": 3}, "data format 'parquet' has no field 'sise'; did you mean 'size'"),
        ({"label": [0] * 6}, {"size": 0}, "size = 0"),
    ],
)
def test_bad_columns_and_options(tmp_path: Path, labels: Any, options: Any, message: str) -> None:
    refused(message, write_parquet(tmp_path / "set.parquet", **labels), **options)


def test_no_pictures_and_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0]}), tmp_path / "set.parquet")
    refused(r"no image column.*its columns: label", tmp_path / "set.parquet")
    refused("no rows", write_parquet(tmp_path / "set.parquet", contents=[], label=[]))


def test_shared_cifar100(shared: Path) -> None:
    images = load_data(shared / "cifar100-test-subset.parquet")
    assert images.shape == (3, 32, 32)
    assert images.class_counts().tolist() == [10] * 100
    assert images.superclass_names[0] == "aquatic_mammals"


def test_shared_tiny_imagenet_has_grey_pictures_among_coloured(shared: Path) -> None:
    images = load_data(shared / "tiny-imagenet-40-val.parquet", subset=80)
    assert images.shape == (3, 64, 64)
    assert images.class_counts().tolist() == [2] * 40
