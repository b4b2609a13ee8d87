"""Names of images: of every format, through every selection and derived data set, into the outcomes of an audit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

import classwise as cw
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.run.inputs import pieces_of
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.partition import pieces_of_shard
from classwise.core.settings import limits
from classwise.data import stream_data
from classwise.data.derived import by_superclass, long_tailed, only_classes, white_background, without_class
from classwise.data.image_names import image_names
from classwise.data.splits import stratified_split, stratified_subset
from classwise.data.stream import as_data
from classwise.training.batches import concatenated
from tests.refusals import check_refused

from .formats.test_arrow import write as write_arrow
from .test_encoded import write_tar
from .writers import PICTURES, png, write_cifar10, write_parquet

PIXELS = torch.arange(6 * 3 * 8 * 8, dtype=torch.uint8).reshape(6, 3, 8, 8)
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])
NAMES = [f"{'cat' if row % 2 == 0 else 'dog'}/{row}.png" for row in range(6)]


def named(names: Any = NAMES, **options: Any) -> cw.Images:
    return cw.Images(PIXELS, LABELS, class_names=["cat", "dog"], image_names=names, **options)


def names_of(images: Any) -> list[str] | None:
    return None if images.image_names is None else images.image_names.tolist()


def write_photos(folder: Path, *files: str) -> Path:
    for number, file in enumerate(files):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(folder / file)
    return folder


def write_npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "set.npz", x=PIXELS.numpy(), y=LABELS.numpy(), **arrays)
    return folder / "set.npz"


def write_tiny_imagenet(folder: Path) -> Path:
    write_photos(folder, "val/images/a.JPEG", "val/images/b.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("a.JPEG\tn1\nb.JPEG\tn2\n")
    return folder


PHOTOS = ("test/cat/deep/b.png", "test/cat/a.png", "test/dog/c.png")
FORMATS: dict[str, tuple[Callable[[Path], Path], list[str] | None]] = {
    "folder with splits": (
        lambda path: write_photos(path, *PHOTOS),
        ["test/cat/a.png", "test/cat/deep/b.png", PHOTOS[2]],
    ),
    "folder of a split": (
        lambda path: write_photos(path, *PHOTOS) / "test",
        ["cat/a.png", "cat/deep/b.png", "dog/c.png"],
    ),
    "tiny-imagenet": (write_tiny_imagenet, ["val/images/a.JPEG", "val/images/b.JPEG"]),
    "tar file": (
        lambda path: write_tar(path / "a.tar", {"x/1.png": png(PICTURES[0]), "x/1.cls": b"0"}),
        ["x/1.png"],
    ),
    "folder of tar files": (
        lambda path: write_tar(path / "a.tar", {"x/1.png": png(PICTURES[0]), "x/1.cls": b"0"}).parent,
        ["a.tar/x/1.png"],
    ),
    "parquet, the path beside an image": (
        lambda path: write_parquet(path / "a.parquet", label=[0] * 6),
        [f"{row}.png" for row in range(6)],
    ),
    "parquet, a column of text": (
        lambda path: write_parquet(path / "a.parquet", label=[0] * 6, id=["9"] * 6, file_name=[*"abcde", None]),
        [*"abcde", ""],
    ),
    "parquet, a column of integers": (
        lambda path: write_parquet(path / "a.parquet", label=[0] * 6, image_id=[10**12 + row for row in range(6)]),
        [str(10**12 + row) for row in range(6)],
    ),
    "arrow without names": (lambda path: write_arrow(path / "a"), None),
    "arrow with ids": (lambda path: write_arrow(path / "a", label=[0] * 6, id=[*range(6)]), [*"012345"]),
    "npz without names": (write_npz, None),
    "npz with file names": (lambda path: write_npz(path, file_names=np.array(NAMES)), NAMES),
    "npz with ids": (lambda path: write_npz(path, ids=np.arange(7, 13)), [str(number) for number in range(7, 13)]),
    "npz with names of something else": (lambda path: write_npz(path, names=np.array(["cat", "dog"])), None),
    "npz with objects": (lambda path: write_npz(path, ids=np.array([{}] * 6)), None),
    "cifar": (write_cifar10, ["a.png"] * 4),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, tmp_path: Path) -> None:
    write, expected = FORMATS[name]
    assert names_of(cw.load_data(write(tmp_path))) == expected


def test_distinct_ids_are_no_grouping(tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": [0] * 6, "site": [0, 1] * 3}
    assert [*cw.load_data(write_parquet(tmp_path / "a.parquet", id=[5, 4, 3, 2, 1, 0], **options)).columns] == ["site"]
    images = cw.load_data(write_parquet(tmp_path / "b.parquet", id=[0, 0, 1, 1, 2, 2], **options))
    assert [*images.columns] == ["id", "site"]  # several images of a patient: names that are a grouping too
    assert names_of(images) == [*"001122"]


@pytest.mark.parametrize("name", ["folder with splits", "folder of tar files"])
def test_streamed_files(name: str, tmp_path: Path) -> None:
    write, expected = FORMATS[name]
    pieces = [*pieces_of(stream_data(write(tmp_path)), 2)]
    assert [text for piece in pieces for text in names_of(piece) or ()] == expected


class Pairs(Dataset[Any]):
    """A data set in the layout of torchvision's `ImageFolder`."""

    def __init__(self, root: str = "/data/photos") -> None:
        self.root = root
        self.samples = [(f"/data/photos/{name}", int(label)) for name, label in zip(NAMES, LABELS, strict=True)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return PIXELS[row], int(LABELS[row])


class Repeated(Pairs):
    """A data set of six items, whatever the number of its files."""

    def __len__(self) -> int:
        return 6


ROWS = [{"image": PIXELS[row], "label": int(LABELS[row])} for row in range(6)]
SOURCES: dict[str, tuple[Any, list[str] | None]] = {
    "an image folder of torchvision": (Pairs(), NAMES),
    "its root with a slash": (Pairs("/data/photos/"), NAMES),
    "a subset of it": (Subset(Pairs(), [4, 1]), [NAMES[4], NAMES[1]]),
    "a loader of it": (DataLoader(Pairs(), batch_size=4), NAMES),
    "rows": ([row | {"file_name": name} for row, name in zip(ROWS, NAMES, strict=True)], NAMES),
    "rows with ids": ([row | {"id": 7 * place} for place, row in enumerate(ROWS)], [str(7 * row) for row in range(6)]),
    "rows of which some have names": ([ROWS[0] | {"path": Path("a")}, *ROWS[1:]], ["a", "", "", "", "", ""]),
    "rows without names": (ROWS, None),
    "batches": ([{"x": PIXELS, "y": LABELS, "id": torch.arange(6)}], [*"012345"]),
    "encoded images": ([{"image": {"bytes": png(PICTURES[0]), "path": "p.png"}, "label": 0}], ["p.png"]),
    "a dict of arrays": ({"x": PIXELS, "y": LABELS, "file_name": NAMES}, NAMES),
    "a pair of arrays": ((PIXELS, LABELS), None),
    "images": (named(), NAMES),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source(name: str) -> None:
    source, expected = SOURCES[name]
    assert names_of(cw.load_data(source)) == expected
    data = as_data(source)
    assert [text for piece in pieces_of(data, 2) for text in names_of(piece) or [""] * len(piece)] == (
        expected or [""] * 6
    )


def test_a_shuffled_loader_has_no_names() -> None:
    assert names_of(cw.load_data(DataLoader(Pairs(), shuffle=True))) is None


def test_data_of_maite() -> None:
    for ids, key, expected in (
        (["a", "b"], "id", ["a", "b"]),
        ([5, 7], "id", None),  # the index
        ([5, 7], "file_name", ["f5", "f7"]),
    ):
        data = [
            (PIXELS[row], np.eye(2)[row], {"id": ids[row], key: ids[row] if key == "id" else f"f{ids[row]}"})
            for row in range(2)
        ]
        found = cw.load_data(_Maite(data))
        assert names_of(found) == expected
        assert found.index.tolist() == (ids if ids == [5, 7] else [0, 1])


class _Maite(list[Any]):
    metadata = {"id": "set", "index2label": {0: "cat", 1: "dog"}}  # noqa: RUF012  # the protocol


def test_selections_and_derived_data_keep_names() -> None:
    images = named(superclasses=[0, 0], superclass_names=["pet"])
    fingerprint = named(None).fingerprint()
    assert images.fingerprint() == fingerprint  # audits of data without names stay comparable
    mask = torch.zeros(6, dtype=torch.bool)
    mask[[1, 4]] = True
    for rows in ([4, 1], mask, slice(1, 5, 3), np.array([4, 1])):
        part = images.take(rows)
        assert names_of(part) == [NAMES[number] for number in part.index]
    derived = [
        images.renamed("other"),
        images.unique(),
        images.with_pixels(images.x, "other"),
        images.with_labels(1 - images.y),
        images.with_column("side", images.y, ["left", "right"]),
        images.to("cpu"),
        without_class(images, "cat"),
        only_classes(images, ["dog"]),
        long_tailed(images, 3),
        by_superclass(images),
        white_background(images, torch.ones(6, 8, 8, dtype=torch.bool)),
        *map(images.take, stratified_split(LABELS, 1 / 3)),
        images.take(stratified_subset(LABELS, 4)),
        *pieces_of_shard(Shard(1, 2), [images.take(slice(0, 3)), images.take(slice(3, 6))]),
    ]
    for part in derived:
        assert names_of(part) == [NAMES[number] for number in part.index], part
    without = cw.Images(PIXELS[:2], LABELS[:2], class_names=["cat", "dog"])
    assert names_of(concatenated(images, without)) == [*NAMES, "", ""]


def test_names_of_another_encoding(tmp_path: Path) -> None:
    folder = write_photos(tmp_path, "cat/a.png")
    os.rename(folder / "cat" / "a.png", os.fsencode(folder / "cat") + b"/\xff.png")  # noqa: PTH104  # bytes
    assert names_of(cw.load_data(folder)) == ["cat/⟨U+DCFF⟩.png"]


def test_refused_names() -> None:
    check_refused("5 image names for 6 images", named, NAMES[:5])
    check_refused("'x' is not a list of image names", named, "x")
    check_refused("the name 3 of image 0 is not text", named, [3] * 6)
    check_refused("the name of image 0 has 4,097 characters", named, ["x" * (limits.IMAGE_NAME + 1), *NAMES[1:]])
    assert image_names(["x" * limits.IMAGE_NAME], 1, "") is not None


NET = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
OPTIONS: dict[str, Any] = {"threat": "Linf:1/255", "attacks": "pgd:steps=1", "guards": "off", "progress": False}


def stored(outcomes: cw.Outcomes) -> dict[int, str]:
    """The names in the table, which all rows of an image share."""
    pairs = {*zip(outcomes.frame["index"], outcomes.frame["name"], strict=True)}
    assert len(pairs) == len(outcomes)
    return dict(pairs)


@pytest.mark.parametrize("attacks", ["pgd:steps=1", ["fgsm", "pgd:steps=1"]])
@pytest.mark.parametrize("early_stop", [True, False])
def test_outcomes_have_names(tmp_path: Path, attacks: Any, early_stop: bool) -> None:
    found = cw.audit(NET, named(), **OPTIONS | {"attacks": attacks}, early_stop=early_stop, out=tmp_path / "audit")
    for audit in (found, cw.Audit.load(tmp_path / "audit")):
        assert stored(audit.outcomes) == dict(enumerate(NAMES))
        assert audit.outcomes.image_names.tolist() == NAMES
        assert audit.to_pandas()["name"].tolist() == audit.outcomes.frame["name"].tolist()


def test_a_shard_and_a_stream_have_names(tmp_path: Path) -> None:
    rows, _ = SOURCES["rows"]
    for number, source in enumerate((named(), rows)):
        folder = tmp_path / str(number)
        for shard in Shard.all(2):
            cw.audit(NET, source, **OPTIONS, shard=str(shard), out=shard_folder(folder, shard))
        assert stored(cw.audit(NET, source, **OPTIONS, shards=2, out=folder).outcomes) == dict(enumerate(NAMES))


def test_radii_have_names(tmp_path: Path) -> None:
    options: dict[str, Any] = {"highest": 0.1, "rounds": 2, "attacks": "pgd:steps=1", "progress": False}
    found = cw.robustness_curve(NET, named(), **options, out=tmp_path / "a")
    for curve in (found, cw.Curve.load(tmp_path / "a")):
        assert dict(zip(curve.frame["index"], curve.frame["name"], strict=True)) == dict(enumerate(NAMES))
    before = cw.Curve(found.frame.drop(columns="name"), found.meta, found.highest, found.rounds)
    assert before.frame["name"].isna().all()


def without_column(folder: Path) -> None:
    """Make the outcomes in a folder those of a version without names."""
    for file in folder.rglob("part-*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.drop_columns(["name"]).replace_schema_metadata(table.schema.metadata), file)
    for sums in folder.rglob("checksums.txt"):
        sums.unlink()


def test_folders_of_earlier_versions(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    cw.audit(NET, named(), **OPTIONS, out=folder)
    without_column(folder)
    before = cw.Audit.load(folder)
    assert before.outcomes.image_names.tolist() == [None] * 6
    assert cw.audit(NET, named(), **OPTIONS, out=folder, resume=True).by_class.equals(before.by_class)
    shards = tmp_path / "shards"
    for shard in Shard.all(2):
        cw.audit(NET, named(), **OPTIONS, shard=str(shard), out=shard_folder(shards, shard))
    without_column(shard_folder(shards, Shard(1, 2)))
    merged = cw.audit(NET, named(), **OPTIONS, shards=2, out=shards).outcomes
    assert sorted(name for name in merged.image_names if name) == sorted(NAMES[row] for row in (1, 2, 5))


def test_a_grouping_called_name_of_an_earlier_version(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    images = named().with_column("site", LABELS, ["here", "there"])
    cw.audit(NET, images, **OPTIONS, out=folder)
    without_column(folder)
    for file in folder.rglob("part-*.parquet"):
        table = pq.read_table(file)
        facts = json.loads(table.schema.metadata[b"classwise"])
        facts["groups"] = {"name": facts["groups"]["site"]}
        renamed = pa.table({"name" if key == "site" else key: table[key] for key in table.column_names})
        pq.write_table(renamed.replace_schema_metadata({b"classwise": json.dumps(facts).encode()}), file)
    outcomes = cw.Outcomes.load(folder)
    assert outcomes.counts("all", "name").count.tolist() == [3, 3]
    assert outcomes.image_names.tolist() == [None] * 6


def test_predictions_with_names() -> None:
    outcomes = cw.Outcomes.from_predictions([0, 1], [0, 0], {"pgd": [1, 0]}, image_names=["a.png", None])
    assert outcomes.image_names.tolist() == ["a.png", None]
    check_refused("1 image names for 2 images", cw.Outcomes.from_predictions, [0, 1], [0, 0], image_names=["a"])
    frame = outcomes.frame.assign(name="x" * 5000)
    check_refused("5,000 characters", cw.Outcomes, frame, outcomes.meta)
    surrogates = pd.Series(["\udcff"] * len(frame), dtype=object)
    check_refused("surrogate", cw.Outcomes, outcomes.frame.assign(name=surrogates), outcomes.meta)


def test_a_source_whose_files_are_not_its_items_has_no_names() -> None:
    repeated = Repeated()
    repeated.samples = repeated.samples[:3]
    assert names_of(cw.load_data(repeated)) is None
