from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from classwise.core.errors import ClasswiseError
from classwise.data import load_data
from classwise.data.formats.image_files import Decoder

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
    with pytest.raises(ClasswiseError, match="no split 'test', only train"):
        load_data(tmp_path / "set", split="test")


def test_empty_class(pictures: Path) -> None:
    (pictures / "bee").mkdir()
    with pytest.raises(ClasswiseError, match=r"bee has no images"):
        load_data(pictures)


def test_corrupt_picture(pictures: Path) -> None:
    file = pictures / "dog" / "a.png"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ClasswiseError, match=r"dog/a\.png cannot be decoded") as caught:
        load_data(pictures)
    assert "\n" not in str(caught.value)


def test_sizes_must_agree_or_be_given(pictures: Path) -> None:
    write(pictures / "cat" / "wide.png", 9, size=(20, 10))
    with pytest.raises(ClasswiseError, match=r"wide\.png is 20x10 and the first image 5x4 .*size=64"):
        load_data(pictures)
    assert load_data(pictures, size=8).shape == (3, 8, 8)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match="unknown format; supported formats: parquet"):
        load_data(tmp_path)
    with pytest.raises(ClasswiseError, match="has no subfolders"):
        load_data(tmp_path, data_format="folder")


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
    with pytest.raises(ClasswiseError, match=r"here: pixels of mode I;16 are not supported"):
        Decoder()(file, "here")
