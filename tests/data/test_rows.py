"""Items of data sets of other libraries: dicts, batches of dicts, labels that are not 0, 1, 2, ..."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from classwise.data import Images, Stream, as_data, load_data, stream_data
from tests.data.refusals import refused
from tests.data.writers import png
from tests.refusals import check_refused

X = torch.arange(6 * 3 * 4 * 4).remainder(256).to(torch.uint8).reshape(6, 3, 4, 4)
Y = [0, 1, 1, 0, 1, 1]
LAST = X.permute(0, 2, 3, 1).numpy()


def pillow(row: int) -> Image.Image:
    return Image.fromarray(LAST[row])


class ClassLabel:
    """As the feature of Hugging Face."""

    names = ("cat", "dog")


class Listed(Dataset[Any]):
    """Rows that can be indexed, with attributes of data sets of other libraries."""

    def __init__(self, rows: list[Any], **attributes: Any) -> None:
        self.rows = rows
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]


SOURCES: dict[str, Any] = {
    "pillow": [{"image": pillow(row), "label": Y[row]} for row in range(6)],
    "other usual names": [{"pixel_values": X[row], "labels": Y[row], "id": row} for row in range(6)],
    "only one Pillow image": [{"photo": pillow(row), "caption": "a", "target": Y[row]} for row in range(6)],
    "not decoded by datasets": [{"img": {"bytes": png(LAST[row]), "path": None}, "label": Y[row]} for row in range(6)],
    "webdataset": [{"__key__": str(row), "png": png(LAST[row]), "cls": str(Y[row]).encode()} for row in range(6)],
    "nested lists": [{"image": LAST[row].tolist(), "label": Y[row]} for row in range(6)],
    "batches": [{"image": X[:4], "label": torch.tensor(Y[:4])}, {"image": X[4:], "label": torch.tensor(Y[4:])}],
    "batches of Pillow images": [{"image": [pillow(row) for row in range(6)], "label": Y}],
    "batches of lists": [{"image": list(X), "label": Y}],
    "pairs with labels in an array": [(pillow(row), np.array([Y[row]])) for row in range(6)],
    "a loader": DataLoader(Listed([{"image": X[row], "label": Y[row]} for row in range(6)]), batch_size=4),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_dicts_are_read_as_pairs(kind: str) -> None:
    stream = as_data(SOURCES[kind])
    assert isinstance(stream, Stream)
    batches = list(stream.batches(4))
    assert torch.equal(torch.cat([batch.x for batch in batches]), X.float() / 255)
    assert torch.cat([batch.y for batch in batches]).tolist() == Y
    loaded = load_data(SOURCES[kind])
    assert torch.equal(loaded.x, X)
    assert loaded.y.tolist() == Y


def test_columns_are_named() -> None:
    rows = [{"image": X[0], "photo": X[row], "label": 0, "fine": Y[row]} for row in range(6)]
    images = load_data(rows, image="photo", label="fine")
    assert torch.equal(images.x, X)
    assert images.y.tolist() == Y
    refused("item 0 has no label 'coarse'; give label=, one of its keys: image", rows, label="coarse")
    refused("data has no field 'lable'; did you mean 'label'", rows, lable="fine")


def test_class_names_are_those_of_the_data_set() -> None:
    rows = [{"image": X[row], "fine_label": Y[row]} for row in range(6)]
    features = {"image": object(), "fine_label": ClassLabel()}
    hugging = Listed(rows, features=features, split="validation")
    other = Listed([{"image": X[0], "species": 1, "id": 7}], features={"species": ClassLabel(), "id": object()})
    assert load_data(other).y.tolist() == [1]
    images = load_data(hugging, split="train")
    assert (images.class_names, images.split) == (("cat", "dog"), "validation")
    assert as_data(hugging).class_names == ("cat", "dog")
    named = Listed([(X[row], Y[row]) for row in range(6)], classes=["cat", "dog"])
    for source in (named, Subset(named, [3, 1]), DataLoader(Subset(named, [3, 1]))):
        assert as_data(source).class_names == ("cat", "dog")
    assert as_data(named, class_names=["a", "b"]).class_names == ("a", "b")
    synonyms = Listed([], classes=[("crane", "bird"), ("drake",), ("drake",)])
    assert as_data(synonyms).class_names == ("crane, bird", "drake (1)", "drake (2)")
    for unusable in (10, [0, 1], "ab", None, []):
        assert as_data(Listed([], classes=unusable)).class_names is None


class Text:
    """As the feature of a column of text of Hugging Face."""

    dtype = "string"


class Table(Listed):
    """As a data set of Hugging Face with a column of text."""

    def unique(self, column: str) -> list[str | None]:
        return [*dict.fromkeys(row[column] for row in self.rows), None]


def test_labels_of_text_have_one_number_in_all_splits() -> None:
    labels = {"train": list("abc"), "test": list("ca")}
    splits = {
        split: Table(
            [{"image": X[row], "label": text} for row, text in enumerate(texts)],
            features={"image": object(), "label": Text()},
        )
        for split, texts in labels.items()
    }
    for data in (load_data(splits), stream_data(splits).load()):
        assert (data.class_names, data.y.tolist()) == (("a", "b", "c"), [2, 0])
    assert load_data(splits, classes="c,a").y.tolist() == [0, 1]


def test_splits_of_a_dict() -> None:
    parts = {"train": Listed(SOURCES["pillow"][:4]), "test": Listed(SOURCES["pillow"][4:])}
    images = load_data(parts)
    assert (images.split, len(images)) == ("test", 2)
    assert stream_data(parts, split="train").expected == 4
    refused("unknown split 'valid'; known: test, train", parts, split="valid")
    check_refused(r"data is a dict of splits; .*: data\['train'\] or data\['test'\]", as_data, parts)


def test_pairs_of_arrays() -> None:
    for source in ((X, Y), {"image": LAST, "label": Y}, {"x": X, "y": pd.Series(Y)}):
        images = load_data(source)
        assert torch.equal(images.x, X)
        assert images.y.tolist() == Y
    check_refused("data is in memory already; use load_data", stream_data, (X, Y))
    refused("Images has no option 'label'", Images(X, torch.tensor(Y)), label="y")


@pytest.mark.parametrize(
    ("labels", "classes", "names", "numbers"),
    [
        (["dog", "cat", "cat"], None, ("cat", "dog"), [1, 0, 0]),
        (["dog", "cat", "cat"], ["dog", "cat", "ship"], ("dog", "cat", "ship"), [0, 1, 1]),
        ([3, 1, 2], range(1, 4), ("1", "2", "3"), [2, 0, 1]),
        ([3, 42, 17], [3, 17, 42], ("3", "17", "42"), [0, 2, 1]),
        ([3, 1, 2], "1..3", ("1", "2", "3"), [2, 0, 1]),
        ([3, 1, 1], "1,3", ("1", "3"), [1, 0, 0]),
    ],
)
def test_unusual_labels(labels: list[Any], classes: Any, names: tuple[str, ...], numbers: list[int]) -> None:
    options = {} if classes is None else {"classes": classes}
    rows = [{"image": pillow(row), "label": labels[row]} for row in range(3)]
    for source in (rows, (X[:3], np.array(labels))):
        images = load_data(source, **options)
        assert (images.class_names, images.y.tolist()) == (names, numbers)
    if classes is not None:
        stream = stream_data(rows, **options)
        assert stream.class_names == names
        assert torch.cat([batch.y for batch in stream.batches(2)]).tolist() == numbers


X4, NAN = torch.zeros(4, 1, 2, 2), float("nan")
MASKED_TEXT = np.ma.masked_array(np.array(["a", "b", "a", "b"]), mask=np.array([True, False, False, False]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", NAN, "b", "b"], "the label nan is not text like the others"),
        (["a", None, "b", "b"], "the label None is not text like the others"),
        (["a", 1, "b", "b"], "the label 1 is not text like the others"),
        (pd.array(["a", None, "b", "b"], dtype="string"), "the label <NA> is not text like the others"),
        (MASKED_TEXT, "some labels are masked"),
        (["a", "", "b", "b"], "the name '' is blank"),
        (["a", "a ", "b", "b"], "'a ' .* equals 'a' but for blanks"),
        (["a", "\ud800", "b", "b"], "lone surrogate"),
        (pd.array([0, None, 1, 1], dtype="Int64"), "masked or missing"),
        ([0, None, 1, 1], "None is not an integer"),
    ],
)
def test_missing_labels_are_not_a_class(labels: Any, message: str) -> None:
    """numpy converts None and NaN among text to the texts None and nan, and drops masks."""
    check_refused(f"^data, .*{message}", as_data, (X4, labels))


@pytest.mark.parametrize("names", ["ab", ["a", "a"], ["a", None], ["a", ""], [0, 1]])
def test_names_of_a_stream_are_checked(names: Any) -> None:
    items = [(X4, torch.tensor([0, 0, 1, 1]))]
    for make in (partial(Stream, items), partial(as_data, items), Stream(items).named):
        check_refused("class names: ", make, names)


def test_text_needs_classes_in_a_stream() -> None:
    rows = [{"image": X[row], "label": "cat"} for row in range(6)]
    check_refused("item 0: the label 'cat' is text; .* --data-set classes=cat,dog", next, stream_data(rows).batches(4))
    assert next(as_data(rows, class_names=["dog", "cat"]).batches(4)).y.tolist() == [1] * 4


def test_wrong_classes() -> None:
    pair = (X, np.array(Y) + 1)
    refused("unknown label in data, labels: '2'; known: 1, 3", pair, classes=[1, 3])
    refused("give at least one label, and each label once", pair, classes=[1, "1"])
    refused("more than 32768 classes", pair, classes="0..99999")


def test_a_batch_has_a_label_for_each_image() -> None:
    batches = [{"image": X[:2], "label": [0, 1, 1]}, {"image": X[2:], "label": [0, 1, 1]}]  # six labels in all
    refused(r"item 0: labels of shape \(3,\), expected \(2,\), one per image", batches)


def test_sizes() -> None:
    rows = [{"image": Image.new("RGB", (8 + row, 6)), "label": row} for row in range(2)]
    refused(r"item 1: image of shape \(3, 6, 9\), expected \(3, 6, 8\)", rows)
    assert load_data(rows, size=4, resize=5).shape == (3, 4, 4)
    refused("size applies to encoded and Pillow images, not to Tensor", [(X[0], 0)], size=4)
    refused("resize = 3 with size = 4", rows, size=4, resize=3)
    refused(
        r"the image is not in the data set, only the path 'a\.png'",
        [{"image": {"bytes": None, "path": "a.png"}, "label": 0}],
    )


def test_class_counts_are_known_at_the_end() -> None:
    stream = stream_data([(X[row], Y[row]) for row in range(6)])
    check_refused("known after the images have been read once", stream.class_counts)
    for _ in range(2):
        assert sum(len(batch.y) for batch in stream.batches(4)) == 6
        assert stream.class_counts().tolist() == [2, 4]
    named = stream.named(["a", "b", "c"])
    list(named.batches(4))
    assert named.class_counts().tolist() == [2, 4, 0]


def test_a_stream_is_read_once_and_lazily() -> None:
    read: list[int] = []

    def rows() -> Any:
        for row in range(6):
            read.append(row)
            yield {"image": X[row], "label": Y[row]}

    batches = stream_data(rows()).batches(2)
    next(batches)
    assert read == [0, 1]
    assert len(list(batches)) == 2
    assert read == list(range(6))


def test_rows_are_taken_by_number() -> None:
    images = Images(X, torch.tensor(Y))
    masks: list[Any] = [[0, 2], (0, 2), range(0, 4, 2), np.array([0, 2]), [True, False, True, False, False, False]]
    for rows in (*masks, torch.tensor([0, 2]), slice(0, 4, 2)):
        assert images.take(rows).index.tolist() == [0, 2]
    assert images.take([-1]).index.tolist() == [5]
    check_refused("images: rows 0 to 6, but there are 6 images", images.take, [0, 6])
    check_refused(r"rows of type bool \(2,\), expected row numbers or 6 bools", images.take, [True, False])
    check_refused("rows of type float64", images.take, np.array([0.5]))
    check_refused("the selection of rows is empty", images.take, [])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (r"C:\data\photos", r"there is no file or folder C:\\data\\photos; .* separated by /"),
        ("C:/data/photos", "there is no file or folder C:/data/photos; classwise data lists the named data sets$"),
        ("{here}/photo", "there is no file or folder .*/photo; did you mean [^ ]*/photos[?]$"),
        ("{here}/other/pets", "there is no file or folder .*/other/pets; classwise data lists"),
        ("{here}/fotos/cat", "there is no file or folder .*/fotos/cat; did you mean [^ ]*/photos/cat[?]$"),
        ("{here}/photos/CAT", "there is no file or folder .*/CAT; did you mean [^ ]*/photos/cat[?]$"),
        ("{here}/photos/cats", "there is no file or folder .*/cats; did you mean [^ ]*/photos/cat[?]$"),
        ("{here}/photo.npz", "there is no file or folder .*; did you mean [^ ]*/photos.npz[?]$"),
        ("photoss", "there is no data set or folder photoss; did you mean photos[?]$"),
        ("minst", "unknown data set 'minst'; did you mean 'mnist'[?] Known: "),
        (r"data\photos", "there is no file or folder .* separated by /"),
        ("no_module:Photos", "data set 'no_module:Photos': there is no module 'no_module'"),
    ],
)
def test_paths_that_do_not_exist(tmp_path: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for name in ("photos.npz", "photo.csv", ".photo"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    refused(message, path.format(here=tmp_path))


def test_fingerprint_of_labels_is_that_of_numbers() -> None:
    texts: list[Tensor | str] = ["cat", "dog"]
    streams = [stream_data([(X[row], kind[row]) for row in range(2)], classes=kind) for kind in (texts, [0, 1])]
    for stream in streams:
        list(stream.batches(2))
    assert streams[0].fingerprint() == streams[1].fingerprint()
