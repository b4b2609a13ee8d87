from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from PIL import Image, features

from classwise.data import load_data
from classwise.data.image_files import Decoder
from tests.data.refusals import refused
from tests.data.writers import write_parquet
from tests.refusals import check_refused

# Pillow before 13 reads an uncompressed TIFF of this mode as if it had four channels.
OLD_PILLOW = int(str(features.version("pil")).partition(".")[0]) < 13
YCBCR = pytest.param("YCbCr", marks=pytest.mark.skipif(OLD_PILLOW, reason="needs Pillow 13"))


def write(path: Path, value: int, size: tuple[int, int] = (5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 255 - value)).save(path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "animals"
    for value, name in enumerate(["dog/b.png", "dog/a.png", "cat/one.PNG", "cat/deep/two.bmp", "ant/x.webp"]):
        write(root / name, value)
    (root / "dog" / "notes.txt").write_text("not a picture")
    (root / ".hidden").mkdir()
    return root


def test_classes_are_sorted_folders_and_files_are_sorted(pictures: Path) -> None:
    images = load_data(pictures)
    assert images.class_names == ("ant", "cat", "dog")
    assert images.y.tolist() == [0, 1, 1, 2, 2]
    assert images.shape == (3, 4, 5)
    assert images.x[1:, 0, 0, 0].tolist() == [3, 2, 1, 0], "cat/deep/two, cat/one, dog/a, dog/b"
    assert (images.name, images.split) == ("animals", "")


def test_splits_are_subfolders(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pictures.rename(tmp_path / "set" / "train")
    for path in (tmp_path / "set", tmp_path / "set" / "train"):
        images = load_data(path, split="train")
        assert (len(images), images.split) == (5, "train")
    refused("no split 'test' with a subfolder per class, only train", tmp_path / "set", split="test")


def test_classes_without_images(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pictures / "bee" / ".cache").mkdir(parents=True)
    images = load_data(pictures)
    assert (images.class_names, images.class_counts().tolist()) == (("ant", "bee", "cat", "dog"), [1, 0, 2, 2])
    assert "animals: no images of 1 of 4 classes: bee" in caplog.text
    images = load_data(pictures, classes="dog,eel,cat,ant", per_class=1)
    assert (images.class_names, images.class_counts().tolist()) == (("dog", "eel", "cat", "ant"), [1, 0, 1, 1])


def test_folders_of_other_files_are_not_classes(pictures: Path) -> None:
    (pictures / "labels").mkdir()
    (pictures / "labels" / "all.csv").write_text("a,b")
    refused(r"labels has no images, only other files; .* --data-set classes=cat,dog ", pictures)
    assert load_data(pictures, classes="ant,cat,dog").class_counts().tolist() == [1, 2, 2]
    refused(r"unknown class folder of .* 'dog'; known: ant, cat", pictures, classes="ant,cat")


def test_no_images_at_all(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    refused("has no images; expected some in a subfolder per class", tmp_path, data_format="folder")


@pytest.mark.parametrize(
    "name",
    [
        ".ipynb_checkpoints/a-checkpoint.png",
        ".git/a.png",
        "__MACOSX/cat/._a.png",
        "@eaDir/a.png/SYNOPHOTO_THUMB_M.png",
        "$RECYCLE.BIN/a.png",
        "._a.png",
    ],
)
def test_hidden_files_and_folders_are_skipped_at_any_depth(tmp_path: Path, name: str) -> None:
    for value, place in enumerate(("train/cat/deep", "train/dog", "test/cat", "test/dog/deep/deeper")):
        write(tmp_path / place / "a.png", value)
        for folder in (tmp_path / place, *(tmp_path / place).parents[: place.count("/") + 1]):
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9)).save(file, "PNG")
            (folder / "Thumbs.db").touch()
    for split, values in (("train", [0, 1]), ("test", [2, 3])):
        images = load_data(tmp_path, split=split)
        assert (images.class_names, images.x[:, 0, 0, 0].tolist()) == (("cat", "dog"), values)
    refused("no split 'valid' with a subfolder per class, only test, train", tmp_path, split="valid")
    tables = tmp_path / "tables"
    for split in ("train", "test"):
        write_parquet(tables / f"{split}.parquet", label=[0] * 6)
        (tables / f"._{split}.parquet").write_bytes(b"AppleDouble")
    assert len(load_data(tables)) == 6


@pytest.mark.parametrize(
    ("train", "test", "valid"),
    [("train", "test", "val"), ("Train", "TEST", "Validation"), ("training", "testing", "valid")],
)
def test_names_of_splits(tmp_path: Path, train: str, test: str, valid: str) -> None:
    for value, split in enumerate((train, test, valid)):
        write(tmp_path / split / "cat" / "a.png", value)
        write(tmp_path / split / "dog" / "a.png", value)
    for value, split in enumerate(("train", "test", "valid")):
        images = load_data(tmp_path, split=split)
        assert (images.x[:, 0, 0, 0].tolist(), images.split) == ([value, value], split)


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        write(tmp_path / "road" / name / "a.png", 1)
    for split in ("train", "test"):
        assert load_data(tmp_path / "road", split=split).class_names == ("bus", "car", "train")
    for name in ("train/a.png", "test/b.png"):  # neither has a folder of a class
        write(tmp_path / "flat" / name, 1)
    refused("no split 'test' with a subfolder per class, only images without", tmp_path / "flat")


SPLITS = strategies.dictionaries(
    strategies.sampled_from(["train", "test", "Val"]),
    strategies.sets(strategies.sampled_from(["0", "10", "2", "cat", "dog", "e\u0301", "\xe9", "a b"]), min_size=1),
    min_size=2,
)


@settings(max_examples=10)
@given(splits=SPLITS)
def test_a_class_has_one_number_in_all_splits(
    splits: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("set")
    for split, names in splits.items():
        for name in names:
            write(root / split / name / "a.png", 1, size=(1, 1))
    classes = sorted({unicodedata.normalize("NFC", name) for names in splits.values() for name in names})
    for split, names in splits.items():
        for source in (root, root / split):
            images = load_data(source, split=split)
            expected = [sum(unicodedata.normalize("NFC", folder) == name for folder in names) for name in classes]
            assert images.class_names == tuple(classes)
            assert images.class_counts().tolist() == expected
            assert load_data(source, split=split, classes=classes).y.tolist() == images.y.tolist()


def test_links_are_followed_once(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "more" / "b.png", 2)
    (tmp_path / "elsewhere" / "up").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "set" / "cat" / "a.png", 1)
    write(tmp_path / "set" / "dog" / "a.png", 3)
    (tmp_path / "set" / "cat" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "cat" / "again").symlink_to(tmp_path / "elsewhere" / "more")
    (tmp_path / "set" / "cat" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "eel").symlink_to(tmp_path / "set" / "dog")
    images = load_data(tmp_path / "set")
    assert (images.class_names, images.class_counts().tolist()) == (("cat", "dog", "eel"), [2, 1, 1])
    (tmp_path / "set" / "dog" / "b.png").symlink_to("gone.png")
    refused(r"dog/b\.png is a link to the missing file gone\.png", tmp_path / "set")


def test_an_unreadable_folder_is_not_a_class_without_images(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def denied(path: str) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    refused(r"cannot read the folder .*/cat/deep: Permission denied", pictures)


def test_names_of_files_and_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, suffix in enumerate(("JPG", "jfif", "Png", "webp", "TIF", "pbm")):
        file = tmp_path / "golden retriever" / "/".join("deep") / f"{value}.{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("1" if suffix == "pbm" else "RGB", (4, 4)).save(file)
    (tmp_path / "golden retriever" / "a.json").write_text("{}")
    (tmp_path / "labels.csv").touch()
    monkeypatch.chdir(tmp_path)
    images = load_data(".")
    assert (len(images), images.class_names, images.name) == (6, ("golden retriever",), tmp_path.name)
    (tmp_path / "golden retriever" / "empty.png").touch()
    refused(r"empty\.png cannot be decoded: not an image", ".")


def test_corrupt_picture(pictures: Path) -> None:
    file = pictures / "dog" / "a.png"
    file.write_bytes(file.read_bytes()[:50])
    refused(r"dog/a\.png cannot be decoded", pictures)


def test_sizes_must_agree_or_be_given(pictures: Path) -> None:
    write(pictures / "cat" / "wide.png", 9, size=(20, 10))
    refused(r"wide\.png is 20x10 and the first image 5x4 .*size=64", pictures)
    assert load_data(pictures, size=8).shape == (3, 8, 8)


def metadata(folder: Path, *rows: str) -> Path:
    file = folder / "metadata.csv"
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


ROWS = (
    "dog/b.png,10,south  gate,a b", "dog/a.png,9,south gate,b", "./cat/one.PNG,9,,c", "cat/deep/two.bmp,10,a\u030a,d",
    "ant/x.webp,9,\u00e5,e",
)  # fmt: skip


def test_columns_of_metadata_are_groupings(pictures: Path) -> None:
    metadata(pictures, "\ufefffile_name,camera,site,caption", *ROWS)
    images = load_data(pictures)
    assert {*images.columns} == {"camera", "site"}, "each image has another caption"
    named = {key: [column.names[row] for row in column.ids] for key, column in images.columns.items()}
    assert named["camera"] == ["9", "10", "9", "9", "10"], "ant, cat/deep/two, cat/one, dog/a, dog/b"
    assert named["site"] == ["\u00e5", "\u00e5", "missing", "south gate", "south gate"]
    assert images.columns["camera"].names == ("9", "10"), "in the order of numbers"
    assert load_data(pictures, per_class=1).columns["camera"].ids.tolist() == [0, 1, 0]
    (pictures / "cat" / "metadata.csv").write_text("file_name,camera", encoding="utf-8")
    assert {*load_data(pictures).columns} == {"camera", "site"}, "in a class folder it is another file"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((*ROWS, "dog/b.png,9,,f"), "file_name 'dog/b.png' occurs twice; give one row for each image"),
        ((*ROWS, "dog/c.png,9,,f"), "file_name 'dog/c.png' is not an image of a class in "),
        ((*ROWS, "../dog/b.png,9,,f"), "file_name '../dog/b.png' is not an image of a class in "),
        (ROWS[1:], "has no row for the image 'dog/b.png'; give one row for each image"),
        ((*ROWS, "dog/b.png,9"), "line 7: 2 cells, expected 4"),
    ],
)
def test_metadata_must_have_one_row_for_each_image(pictures: Path, rows: tuple[str, ...], message: str) -> None:
    metadata(pictures, "file_name,camera,site,caption", *rows)
    refused(rf"metadata\.csv.*{re.escape(message)}", pictures)


def test_another_file_of_that_name_is_ignored(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata(pictures, "file,camera", "dog/b.png,9")
    assert load_data(pictures).columns == {}
    assert "metadata.csv has no column file_name, so its columns are no groupings" in caplog.text


def test_nothing_to_read(tmp_path: Path) -> None:
    refused("unknown format; supported formats: parquet", tmp_path)
    refused("has no subfolders", tmp_path, data_format="folder")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", YCBCR])
def test_modes_of_pictures(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "picture.tif"
    Image.new("RGB", (3, 2), (255, 255, 255)).convert(mode).save(file)
    pixels = Decoder()(file, "here")
    assert pixels.shape == ((2, 3) if mode in ("1", "L", "LA") else (2, 3, 3))
    assert pixels.dtype == np.uint8
    assert (pixels > 250).all()


def test_palette_with_transparency_is_decoded_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    picture = Image.new("P", (3, 2), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    picture.save(file, transparency=b"\x00\x80")
    assert torch.from_numpy(Decoder()(file, "here").copy())[0, 0].tolist() == [10, 20, 30]


def test_deep_pictures_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.png"
    Image.fromarray(np.full((2, 3), 40000, np.uint16)).save(file)
    check_refused(r"here: pixels of mode I;16 are not supported", Decoder(), file, "here")
