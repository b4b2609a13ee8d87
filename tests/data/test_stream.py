from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from classwise.data import Images, Stream, as_data
from tests.refusals import check_refused

X = torch.arange(10 * 3 * 4 * 4).remainder(256).to(torch.uint8).reshape(10, 3, 4, 4)
Y = torch.arange(10) % 4
UNIT = X.float() / 255


class Pairs(Dataset[tuple[Any, Any]]):
    """A map-style dataset that can only be indexed."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.x[row], self.y[row]


class Flow(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return zip(UNIT, Y.tolist(), strict=True)


def channels_last(x: Tensor) -> np.ndarray[Any, Any]:
    return x.permute(0, 2, 3, 1).numpy()


SOURCES = {
    "tensor dataset": TensorDataset(UNIT, Y),
    "uint8 map dataset": Pairs(X, Y),
    "int labels": Pairs(UNIT, Y.tolist()),
    "numpy, channels last": Pairs(channels_last(X), Y.numpy()),
    "numpy, channels first, float64": Pairs(UNIT.double().numpy(), Y.numpy()),
    "pillow": Pairs([Image.fromarray(image) for image in channels_last(X)], Y.tolist()),
    "iterable dataset": Flow(),
    "loader": DataLoader(TensorDataset(UNIT, Y), batch_size=4),
    "loader over an iterable dataset": DataLoader(Flow(), batch_size=3),
    "batches of unequal size": [(X[:1], Y[:1]), (X[1:9], Y[1:9]), (X[9:], Y[9:])],
    "batches of numpy": [(channels_last(X[:6]), Y[:6].numpy()), (channels_last(X[6:]), Y[6:].numpy())],
    "triples": [(x, y, "meta") for x, y in zip(X, Y, strict=True)],
}


@pytest.mark.parametrize("size", [1, 3, 4, 10, 64])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_batches_twice(kind: str, size: int) -> None:
    stream = Stream(SOURCES[kind], class_names=["a", "b", "c", "d"])
    for _ in range(2):
        batches = list(stream.batches(size))
        assert [len(batch.y) for batch in batches] == [min(size, 10 - start) for start in range(0, 10, size)]
        assert torch.equal(torch.cat([batch.x for batch in batches]), UNIT)
        assert torch.equal(torch.cat([batch.y for batch in batches]), Y)
        assert torch.cat([batch.index for batch in batches]).tolist() == list(range(10))


def test_fingerprint_does_not_depend_on_batches() -> None:
    prints = set()
    for kind, source in SOURCES.items():
        stream = Stream(source)
        assert stream.fingerprint() == ""
        list(stream.batches(3 if kind == "loader" else 5))
        prints.add(stream.fingerprint())
    assert len(prints) == 1
    other = Stream([(X, Y + 1)])
    list(other.batches(5))
    assert other.fingerprint() not in prints


def test_an_iterator_is_read_once() -> None:
    stream = Stream(zip(X, Y, strict=True))
    assert sum(len(batch.y) for batch in stream.batches(4)) == 10
    check_refused("read already", next, stream.batches(4))


def test_grey_images() -> None:
    grey = X[:, 0].numpy()
    for source in (Pairs(grey, Y), Pairs([Image.fromarray(image) for image in grey], Y)):
        assert torch.equal(next(Stream(source).batches(10)).x, UNIT[:, :1])


def test_facts() -> None:
    stream = Stream(SOURCES["loader"], name="mine")
    assert (stream.num_classes, stream.expected) == (None, 10)
    assert stream.named(["a", "b", "c", "d"]).num_classes == 4
    assert stream.num_classes is None
    assert Stream(iter([])).expected is None
    assert Stream(Flow()).expected is None
    assert next(stream.to("cpu").batches(2)).x.device.type == "cpu"


def test_shuffled_loader_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Stream(DataLoader(TensorDataset(UNIT, Y), shuffle=True))
    assert "shuffle=False" in caplog.text


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([X[0]], r"item 0: Tensor, expected a pair"),
        ([{"x": 1}], "item 0 has no label; give label=, one of its keys: x"),
        ([{"a": X[0], "label": 0}], "item 0 has no image; give image=, one of its keys: a, label"),
        ([(X[0], [0, 2])], "item 0: labels of shape .2,.: each image must have one class; multi-label"),
        ([(X[:2], [[0, 2], [1, 2]])], "item 0: labels of shape .2, 2.: each image must have one class; multi-label"),
        ([(X[:2], [[0, 1], [1, 0]])], r"one-hot labels give y\.argmax\(1\)"),
        ([(X[:2], [[0], [1, 2]])], "item 0: labels are lists of different lengths; each image must have one class"),
        ([], "stream has no images"),
        ([(UNIT[0], 0), (UNIT[1] * 255, 1)], "item 1: .*divide by 255"),
        ([(UNIT[0], 0), (UNIT[1] * torch.nan, 1)], "item 1: some pixels are NaN"),
        ([(UNIT[0], 0), (UNIT[0], 4)], r"item 1: label 4 of image 0 is not a class in 0\.\.3"),
        ([(UNIT[0], 0), (UNIT[1][:, :2], 1)], r"item 1: image of shape \(3, 2, 4\), expected \(3, 4, 4\)"),
        ([(UNIT, Y[:5])], r"item 0: labels of shape \(5,\), expected \(10,\)"),
        ([(UNIT[0], "cat")], "unknown label in stream, item 0: 'cat'; did you mean 'c'"),
        ([("picture.png", 0)], "item 0: images of type str"),
        ([(np.zeros((9, 9, 9), np.uint8), 0)], "item 0: images of shape"),
    ],
)
def test_bad_items_are_one_line(items: list[Any], message: str) -> None:
    check_refused(message, list, Stream(items, class_names=list("abcd")).batches(4))


def test_bad_sources_labels_and_sizes() -> None:
    check_refused("label -1: must not be negative", list, Stream([(UNIT[0], -1)]).batches(4))
    for source in (3, {"train": [(X, Y)]}):
        check_refused("is not a Dataset", Stream, source)
    check_refused("batch size 0", next, Stream([(X, Y)]).batches(0))


def test_as_data() -> None:
    images = Images(X, Y)
    stream = Stream([(X, Y)])
    assert as_data(images) is images
    assert as_data(stream) is stream
    whole = as_data((X, Y), class_names=list("abcd"), name="whole")
    assert isinstance(whole, Images)
    assert (whole.name, whole.num_classes) == ("whole", 4)
    arrays = as_data((channels_last(X), Y.numpy()))
    assert isinstance(arrays, Images)
    assert torch.equal(arrays.x, X)
    assert isinstance(as_data(TensorDataset(X, Y)), Stream)
    assert isinstance(as_data([(X, Y)]), Stream)
    check_refused(r"load_data\('cifar10'\)", as_data, "cifar10")
