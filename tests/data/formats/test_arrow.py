"""Folders of `save_to_disk`, written here in that layout; tests/integrations reads some of the real package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from classwise.data import load_data
from tests.data.refusals import refused
from tests.data.writers import PICTURES, png

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(
    folder: Path,
    rows: int = 6,
    shards: int = 1,
    split: str | None = None,
    contents: list[bytes] | None = None,
    **labels: Any,
) -> Path:
    folder.mkdir(parents=True)
    contents = [png(picture) for picture in PICTURES[:rows]] if contents is None else contents
    cells = [{"bytes": content, "path": None} for content in contents]
    features: dict[str, Any] = {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    columns = labels or {"label": [0, 1, 0, 1, 1, 1][:rows]}
    table = pa.table({"img": pa.array(cells, IMAGE), **columns})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    step = len(contents) // shards
    for shard, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.slice(shard * step, step), max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_pixels_labels_and_names(tmp_path: Path, shards: int) -> None:
    folder = write(tmp_path / "pets", shards=shards, split="validation")
    (folder / "cache-0123.arrow").write_bytes(b"of another operation")
    images = load_data(folder, split="train")
    assert torch.equal(images.x, torch.from_numpy(PICTURES).permute(0, 3, 1, 2))
    assert (images.y.tolist(), images.class_names) == ([0, 1, 0, 1, 1, 1], ("cat", "dog"))
    assert (images.name, images.split) == ("pets", "validation")


def test_splits(tmp_path: Path) -> None:
    for split, rows in (("train", 6), ("test", 2)):
        write(tmp_path / split, rows)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert (len(load_data(tmp_path, split="train")), len(load_data(tmp_path))) == (6, 2)
    assert load_data(tmp_path, size=3).shape == (3, 3, 3)
    refused(r"unknown split of .* 'valid'; known: test, train", tmp_path, split="valid")


def test_labels_of_text_have_one_number_in_all_splits(tmp_path: Path) -> None:
    for split, label in (("train", "abcabc"), ("test", "cacaca")):
        write(tmp_path / split, label=list(label))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for source in (tmp_path, tmp_path / "test"):
        images = load_data(source)
        assert (images.class_names, images.y.tolist()) == (("a", "b", "c"), [2, 0, 2, 0, 2, 0])


def test_labels_of_text_and_integers(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", label=list("babbca"), coarse=[5, 7, 5, 7, 7, 7], text=list("xyxyxy"))
    images = load_data(folder)
    assert (images.class_names, images.y.tolist()) == (("a", "b", "c"), [1, 0, 1, 1, 2, 0])
    assert load_data(folder, classes="c,b,a").y.tolist() == [1, 2, 1, 1, 0, 2]
    assert load_data(folder, label="text", image="img").class_names == ("x", "y")
    by_coarse = load_data(folder, label="coarse", classes="5,7")
    assert (by_coarse.class_names, by_coarse.y.tolist()) == (("5", "7"), [0, 1, 0, 1, 1, 1])
    refused(r"unknown label in .*'c'; known: a, b", folder, classes="a,b")
    refused("has no column 'photo' of images", folder, image="photo")


def test_several_labels_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", label=[[0, 1]] * 6)
    refused("column 'label' has several labels per image; each image must have one", folder)


@pytest.mark.parametrize("keep", [0, 50, 900, -1, -8])  # -8: without the marker of its end
def test_truncated_files(tmp_path: Path, keep: int) -> None:
    file = write(tmp_path / "a") / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"\.arrow (is truncated|cannot be read as an Arrow stream)", tmp_path / "a")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_data_files": [{"filename": "../other.arrow"}]}, "names no files of the folder"),
        ({}, "names no files of the folder"),
        ([], "is not a JSON object"),
        (
            {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_data_files": [{}]},
            "a selection",
        ),
        ({"_data_files": [{"filename": "absent.arrow"}]}, "absent.arrow cannot be read"),
    ],
)
def test_other_states(tmp_path: Path, state: Any, message: str) -> None:
    folder = write(tmp_path / "a")
    (folder / "state.json").write_text(json.dumps(state))
    refused(message, folder)


def test_labels_of_archives_and_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = np.zeros((3, 4, 4), np.uint8)
    np.savez(tmp_path / "text.npz", x=x, y=np.array(["b", "a", "b"]))
    images = load_data(tmp_path / "text.npz")
    assert (images.class_names, images.y.tolist()) == (("a", "b"), [1, 0, 1])
    np.savez(tmp_path / "named.npz", x=x, y=np.array(["b", "a", "b"]), class_names=np.array(["b", "a"]))
    assert load_data(tmp_path / "named.npz").y.tolist() == [0, 1, 0]
    np.savez(tmp_path / "one.npz", x=x, y=np.array([1, 2, 3]))
    assert load_data(tmp_path / "one.npz", classes="1..3").y.tolist() == [0, 1, 2]
    for number in (0, 2, 10):
        (tmp_path / "numbered" / str(number)).mkdir(parents=True)
        (tmp_path / "numbered" / str(number) / "a.png").write_bytes(png(PICTURES[number // 2]))
    text = load_data(tmp_path / "numbered")
    assert text.class_names == ("0", "10", "2")
    assert "order of text (0, 10, 2, ...), as in torchvision's ImageFolder; --data-set classes=0,2,10 (" in caplog.text
    caplog.clear()
    ordered = load_data(tmp_path / "numbered", classes="0,2,10")
    assert ordered.class_names == ("0", "2", "10")
    assert ordered.x[2, 0, 0, 0] == text.x[1, 0, 0, 0]
    assert not caplog.text
    for classes, message in (
        ("0,2", "unknown class folder of .* '10'"),
        ("0,2,11", "unknown class folder of .* '10'; did you"),
    ):
        refused(message, tmp_path / "numbered", classes=classes)
