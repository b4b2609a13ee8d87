"""Pixels and labels of unusual kinds at every entry: the audit of the plain ones, or one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from classwise.data import Images
from classwise.data.layout import looks_channels_last
from classwise.data.stream import Stream, as_data
from classwise.threat.ball import Threat
from tests.core.test_tensors import REFUSED, SAME
from tests.refusals import check_refused

X = torch.arange(96).remainder(17).reshape(4, 3, 4, 2) / 16
Y = torch.tensor([0, 1, 1, 0])

ENTRIES: dict[str, Callable[[Any, Any], Images]] = {
    "Images": Images,
    "pair": lambda x, y: as_images((x, y)),
    "dict": lambda x, y: as_images({"image": x, "label": y}),
    "batches": lambda x, y: Stream([(x, y)]).load(),
    "single images": lambda x, y: Stream([(image, y[number]) for number, image in enumerate(x)]).load(),
    "rows": lambda x, y: Stream([{"image": image, "label": y[number]} for number, image in enumerate(x)]).load(),
    "with_pixels": lambda x, y: Images(torch.zeros(4, 1, 1, 1), y).with_pixels(x, "new"),
    "with_labels": lambda x, y: Images(x, torch.zeros(4, dtype=torch.int64), ["a", "b"]).with_labels(y),
}


def as_images(source: Any) -> Images:
    data = as_data(source)
    return data if isinstance(data, Images) else data.load()


@pytest.mark.parametrize("kind", sorted(set(SAME) - {"list", "list of tensors"}))
@pytest.mark.parametrize("entry", ENTRIES)
def test_pixels_at_every_entry(entry: str, kind: str) -> None:
    given_pixels = SAME[kind](X.clone())
    images = ENTRIES[entry](given_pixels, Y)
    assert torch.equal(images.x, X)
    assert not images.x.requires_grad
    if isinstance(given_pixels, Tensor):
        assert given_pixels.requires_grad == (kind in ("requires gradients", "in a graph", "parameter"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.uint8])
def test_pixels_of_every_type(dtype: torch.dtype) -> None:
    x = (torch.ones(2, 1, 2, 2) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    assert Images(x, Y[:2]).pixels().eq(1).all()


@pytest.mark.parametrize("kind", ["meta", "COO", "quantised", "fake"])
@pytest.mark.parametrize("entry", ["Images", "pair", "dict", "batches", "with_pixels"])
@pytest.mark.filterwarnings("ignore")
def test_refused_pixels_at_every_entry(entry: str, kind: str) -> None:
    make, message = REFUSED[kind]
    check_refused(f"{message}.*; give a dense tensor", ENTRIES[entry], make(X), Y)


@pytest.mark.parametrize("entry", ["Images", "pair", "dict", "batches", "with_labels"])
@pytest.mark.parametrize("kind", ["meta", "COO"])
def test_refused_labels_at_every_entry(entry: str, kind: str) -> None:
    make, message = REFUSED[kind]
    check_refused(message, ENTRIES[entry], X, make(Y))


LABELS: dict[str, Callable[[Tensor], Any]] = {
    "big-endian": lambda y: y.numpy().astype(">i4"),
    "uint16": lambda y: y.to(torch.uint16),
    "objects": lambda y: y.numpy().astype(object),
    "reversed": lambda y: y.flip(0).numpy()[::-1],
    "inference": SAME["inference"],
    "subclass": SAME["subclass"],
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_labels_at_every_entry(entry: str, kind: str) -> None:
    assert ENTRIES[entry](X, LABELS[kind](Y)).y.tolist() == Y.tolist()


@pytest.mark.parametrize("values", [Y.bool(), Y.float(), Y.float().requires_grad_(), Y.numpy() > 0])
def test_labels_that_are_no_integers_are_one_line(values: Any) -> None:
    check_refused(r"expected integers; give y.long\(\)", Images, X, values)


def test_columns_and_radii() -> None:
    ids = Y.as_subclass(type(torch.nn.Parameter(X)))
    assert Images(X, Y).with_column("side", ids, ["l", "r"]).columns["side"].ids.tolist() == Y.tolist()
    check_refused("column 'side': a meta tensor", Images(X, Y).with_column, "side", Y.to("meta"), ["l", "r"])
    radii = Threat("Linf", torch.full((4,), 0.1, requires_grad=True)).validated().epsilon
    assert isinstance(radii, Tensor)
    assert not radii.requires_grad
    for bad, message in ((torch.tensor([-0.1]), "one of the radii is -0.1"), (torch.tensor([torch.nan]), "is nan"),
                         (X.to("meta"), "a meta tensor"), (Y.bool(), "radii of type torch.bool")):  # fmt: skip
        check_refused(message, Threat("Linf", bad).validated)


CHANNELS_LAST = [(8, 32, 32, 3), (8, 28, 28, 1), (2, 224, 160, 3), (1, 32, 32, 4), (3, 30, 200, 3), (2, 8, 8, 1)]
VALID = [
    (8, 3, 32, 3),
    (8, 1, 28, 1),
    (2, 12, 4, 4),
    (4, 64, 1, 1),
    (2, 8, 3, 3),
    (2, 3, 1, 4),
    (2, 2, 32, 1),
    (2, 6, 4, 3),
]


@pytest.mark.parametrize("shape", CHANNELS_LAST)
def test_channels_last_is_named(shape: tuple[int, ...]) -> None:
    x, y = torch.rand(shape), torch.zeros(shape[0], dtype=torch.int64)
    for read in (
        lambda: Images(x, y),
        lambda: as_data((x, y)),
        lambda: Images(x.numpy(), y),
        lambda: as_data(DataLoader(TensorDataset(x, y), 2)).load(),  # type: ignore[union-attr]
        lambda: as_data(TensorDataset(x, y)).load(),  # type: ignore[union-attr]
        lambda: Images(torch.zeros(shape[0], 1, 1, 1), y).with_pixels(x, "new"),
    ):
        check_refused(r"look like \(N, H, W, C\).* give x.permute\(0, 3, 1, 2\)", read)
    assert Images(x.permute(0, 3, 1, 2), y).shape == (shape[3], *shape[1:3])
    assert as_images((x.numpy(), y)).shape == (shape[3], *shape[1:3])


@pytest.mark.parametrize("shape", VALID)
def test_valid_images_are_not_refused(shape: tuple[int, ...]) -> None:
    assert Images(torch.rand(shape), torch.zeros(shape[0], dtype=torch.int64)).shape == shape[1:]


@given(st.sampled_from([1, 3, 4]), st.integers(1, 64), st.integers(1, 64))
def test_images_of_usual_channels_and_square_images_are_valid(channels: int, height: int, width: int) -> None:
    assert not looks_channels_last((2, channels, height, width))
    assert not looks_channels_last((2, height, width, width))
    if min(height, width) > 4:
        assert looks_channels_last((2, height, height, channels))


def test_arrays_keep_their_masks() -> None:
    check_refused("masked", as_data, (np.ma.masked_array(np.full((4, 6, 6, 3), 0.5), mask=True), Y))
