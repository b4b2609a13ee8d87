"""Tensors and arrays of every kind become the plain tensor of the same values, or one line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from classwise.core.compute.tensors import as_array, as_tensor
from tests.refusals import check_refused


class Named(Tensor):
    """A subclass without data of its own, as `tv_tensors.Image`."""


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def padded(x: Tensor) -> Tensor:
    """The values as a part of a larger tensor, with gaps between them."""
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


SAME: dict[str, Callable[[Tensor], Any]] = {
    "requires gradients": lambda x: x.clone().requires_grad_(),
    "in a graph": lambda x: x.clone().requires_grad_() * 1,
    "parameter": lambda x: nn.Parameter(x.clone()),
    "subclass": lambda x: x.as_subclass(Named),
    "inference": inference,
    "double": lambda x: x.double(),
    "permuted": lambda x: x.mT.contiguous().mT,
    "flipped": lambda x: x.flip(-1).numpy()[..., ::-1],
    "gaps": padded,
    "negative bit": lambda x: torch._neg_view(-x),
    "imaginary part": lambda x: torch.complex(x, -x).conj().imag,
    "array": lambda x: x.numpy(),
    "big-endian": lambda x: x.numpy().astype(">f4"),
    "long double": lambda x: x.numpy().astype(np.longdouble),
    "objects": lambda x: x.numpy().astype(object),
    "Fortran order": lambda x: np.asfortranarray(x.numpy()),
    "list": lambda x: x.tolist(),
    "list of tensors": lambda x: [row.clone().requires_grad_() for row in x],
    "unmasked": lambda x: np.ma.masked_array(x.numpy(), mask=False),
}


@given(
    st.sampled_from(sorted(SAME)),
    st.lists(st.lists(st.floats(0, 1, width=16), min_size=3, max_size=3), min_size=1, max_size=4),
)
def test_the_values_do_not_change(kind: str, rows: list[list[float]]) -> None:
    expected = torch.tensor(rows)
    given_values = SAME[kind](expected.clone())
    plain = as_tensor(given_values, "x")
    assert torch.equal(plain.float(), expected)
    assert (type(plain), plain.requires_grad, plain.grad_fn) == (Tensor, False, None)
    assert np.array_equal(np.asarray(as_array(given_values, "x"), np.float64), np.array(rows))


def test_memory_maps_are_read(tmp_path: Path) -> None:
    np.arange(6.0).tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float64, "r", shape=(2, 3))
    assert as_tensor(mapped, "x").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_tensors_and_writable_arrays_share_memory_and_are_not_changed() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    array = np.zeros(2)
    assert as_tensor(leaf, "x").data_ptr() == leaf.data_ptr()
    assert as_tensor(array, "x").numpy().ctypes.data == array.ctypes.data
    assert leaf.requires_grad


def test_types_that_numpy_lacks_become_float32() -> None:
    assert as_array(torch.tensor([0.5], dtype=torch.bfloat16), "x").dtype == np.float32
    assert as_array(torch.tensor([0.5], dtype=torch.float16), "x").dtype == np.float16
    assert as_array("text", "x") == "text"


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "meta": (lambda x: x.to("meta"), "a meta tensor"),
    "COO": (lambda x: x.to_sparse(), "layout sparse_coo"),
    "CSR": (lambda x: x.to_sparse_csr(), "layout sparse_csr"),
    "MKL-DNN": (lambda x: x.to_mkldnn(), "layout _mkldnn"),
    "quantised": (
        lambda x: torch.quantize_per_tensor(x, 1 / 255, 0, torch.quint8),
        "a quantised tensor of type quint8",
    ),
    "fake": (lambda x: FakeTensorMode().from_tensor(x), "the subclass FakeTensor"),
    "text": (lambda x: np.full(x.shape, "a"), "values of type <U1 cannot be converted"),
    "None": (lambda _: [None], "values of type list cannot be converted"),
    "dates": (lambda x: np.zeros(x.shape, "M8[s]"), "cannot be converted"),
    "ragged": (lambda _: [torch.zeros(1), torch.zeros(2)], "tensors of different sizes"),
    "masked": (lambda x: np.ma.masked_array(x.numpy(), mask=True), "masked or missing"),
}


@pytest.mark.filterwarnings("ignore")  # of torch, on its prototypes
@pytest.mark.parametrize("kind", REFUSED)
def test_the_others_are_one_line(kind: str) -> None:
    make, message = REFUSED[kind]
    for convert in (as_tensor, as_array) if kind in ("meta", "COO", "CSR", "quantised", "fake") else (as_tensor,):
        check_refused(f"photos: .*{message}", convert, make(torch.rand(2, 3)), "photos")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_one_line(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 3)], layout=layout)
    check_refused("a nested tensor, whose images may have different sizes; give a dense", as_tensor, nested, "photos")


def test_a_copy_of_a_parameter_does_not_share_its_gradient() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    assert as_tensor(copy.copy(weight), "x").grad is None
