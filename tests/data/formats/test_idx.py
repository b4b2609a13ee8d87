from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from classwise.data import load_data
from classwise.data.formats.idx import read_idx
from tests.data.refusals import refused
from tests.data.writers import IDX_LABELS, IDX_PIXELS, packed_idx, write_idx
from tests.refusals import check_refused


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
def test_folder_and_file(tmp_path: Path, dot: str, zipped: bool) -> None:
    file = write_idx(tmp_path, "train", dot, zipped)
    for path in (tmp_path, file):
        images = load_data(path, split="train")
        assert torch.equal(images.x, torch.from_numpy(IDX_PIXELS)[:, None])
        assert images.y.tolist() == [2, 0, 1]
        assert images.split == "train"


def test_missing_split(tmp_path: Path) -> None:
    write_idx(tmp_path, "train")
    refused("no idx files of the split 'test'; expected t10k-images", tmp_path, split="test")


def test_missing_labels(tmp_path: Path) -> None:
    file = write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    refused("missing label file t10k-labels-idx1-ubyte", file)


WHOLE = packed_idx(IDX_PIXELS)
ZIPPED = gzip.compress(WHOLE, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"PNG!" + WHOLE, "not an idx file"),
        (WHOLE[:10], "truncated in its header"),
        (WHOLE[:-1], r"truncated: 59 values, expected 60 for the shape \(3, 4, 5\)"),
        (WHOLE + b"!", "too long: 61 values"),
        (packed_idx(IDX_PIXELS, kind=0x0D), "type 0x0d is not supported"),
        (ZIPPED[:-9], "truncated or damaged: Compressed"),
        (ZIPPED[:30] + b"\0\0" + ZIPPED[32:], "damaged: CRC"),
    ],
)
def test_bad_files_are_one_line_with_their_name(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "some-file"
    file.write_bytes(content)
    check_refused(f"some-file.*{message}", read_idx, file)


def test_missing_file(tmp_path: Path) -> None:
    check_refused(r"cannot read .*nothing", read_idx, tmp_path / "nothing")


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    file = write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(packed_idx(IDX_LABELS[:2]))
    refused(r"shapes \(3, 4, 5\) and \(2,\)", file)
