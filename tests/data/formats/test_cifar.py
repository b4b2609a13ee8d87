from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classwise.data import load_data
from classwise.data.formats.cifar import read_pickle
from tests.data.refusals import refused
from tests.data.writers import CIFAR_PIXELS, write_cifar10, write_cifar100, write_pickle
from tests.refusals import check_refused


def test_cifar10_folder_and_file(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "cifar")
    test, train = load_data(folder), load_data(folder, split="train")
    assert (len(test), len(train)) == (4, 20)
    assert torch.equal(test.x, torch.from_numpy(CIFAR_PIXELS).reshape(4, 3, 32, 32)), (
        "red, green, blue planes, row by row"
    )
    assert torch.equal(train.x[4:8], torch.from_numpy(CIFAR_PIXELS + np.uint8(2)).reshape(4, 3, 32, 32)), (
        "files in order"
    )
    assert test.y.tolist() == [3, 1, 2, 0]
    assert test.class_names[3] == "cat"
    assert load_data(folder / "data_batch_3").y.tolist() == [3, 0, 1, 2]


def test_cifar100_has_both_labels(tmp_path: Path) -> None:
    images = load_data(write_cifar100(tmp_path / "cifar"))
    assert images.y.tolist() == [0, 1, 2, 0]
    assert images.class_names == ("x", "y", "z")
    assert images.columns["coarse_label"].ids.tolist() == [1, 0, 0, 1]
    assert images.columns["coarse_label"].names == ("up", "down")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    file = tmp_path / "batch"
    write_pickle(file, {"data": CIFAR_PIXELS, b"labels": [0, 1, 2, 3], "note": b"\xff"}, protocol)
    content = read_pickle(file)
    assert np.array_equal(content["data"], CIFAR_PIXELS)
    assert content["note"] == b"\xff"


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    for function, arguments in (
        (os.system, (f"touch {witness}",)),
        (eval, (f"open({str(witness)!r}, 'w')",)),
        (Path.touch, (witness,)),
        (np.fromfile, (str(witness),)),
    ):
        file = tmp_path / "data_batch_1"
        write_pickle(file, {b"data": Evil(function, *arguments)}, protocol)
        refused(r"would execute .*do not trust", file)
        assert not witness.exists()


def test_other_codecs_are_refused(tmp_path: Path) -> None:
    import codecs

    write_pickle(tmp_path / "batch", {b"data": Evil(codecs.encode, "text", "rot13")})
    check_refused("rot13", read_pickle, tmp_path / "batch")


@pytest.mark.parametrize("keep", [0, 1, 2, 50, 3000, -1])
def test_truncated_anywhere(tmp_path: Path, keep: int) -> None:
    folder = write_cifar10(tmp_path / "cifar")
    file = folder / "test_batch"
    file.write_bytes(file.read_bytes()[:keep])
    refused("test_batch is truncated", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "contains list, expected a dictionary"),
        ({b"labels": [0]}, "'data' must be a uint8 array"),
        ({b"data": CIFAR_PIXELS.astype(np.float32), b"labels": [0] * 4}, "'data' must be a uint8 array"),
        ({b"data": CIFAR_PIXELS[:, :100], b"labels": [0] * 4}, "'data' must be a uint8 array"),
        ({b"data": CIFAR_PIXELS}, "neither 'labels' nor 'fine_labels'"),
        ({b"data": CIFAR_PIXELS, b"labels": [0]}, "1 values in 'labels' for 4 images"),
        ({b"data": CIFAR_PIXELS, b"labels": [None] * 4}, "'labels' must be a list of integers"),
        ({b"data": CIFAR_PIXELS, b"labels": [0, 1, -1, 2]}, "label -1 of image 2"),
    ],
)
def test_bad_content_is_one_line(tmp_path: Path, content: Any, message: str) -> None:
    write_pickle(tmp_path / "batch", content)
    refused(message, tmp_path / "batch")


def test_missing_pieces(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "cifar")
    refused("no split 'valid'", folder, split="valid")
    (folder / "data_batch_4").unlink()
    refused(r"cannot read .*data_batch_4: No such file", folder, split="train")
