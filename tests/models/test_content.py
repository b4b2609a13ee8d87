"""Fingerprints of models whose state dict has more than dense tensors, and what such models can be used for."""

from __future__ import annotations

import collections
import copy
import datetime as dt
import enum
import io
import pathlib
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import classwise as cw
from classwise.models import fingerprint, save_weights
from classwise.models.content import digest_of
from classwise.training.averaging import blend, update
from tests.models.networks import PUBLIC
from tests.refusals import check_refused, refused


class Extra(nn.Module):
    """A linear network with extra state."""

    def __init__(self, extra: object = None, classes: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.fc = nn.Linear(12, classes)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Thing:
    """An object with attributes, whose repr has its address."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


def quantised(scale: float, values: tuple[float, ...] = (1.0, 2.0)) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # int8 tensors are deprecated
        return torch.quantize_per_tensor(torch.tensor(values), scale, 0, torch.qint8)


def per_channel(scales: tuple[float, float]) -> Tensor:
    values, points = torch.ones(2, 2), torch.zeros(2, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_channel(values, torch.tensor(scales), points, 0, torch.qint8)


def cyclic(value: int) -> list[Any]:
    items: list[Any] = [value]
    items.append(items)
    return items


VALUES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "none": (lambda: None, lambda: False),
    "number": (lambda: 1, lambda: 1.0),
    "bool": (lambda: True, lambda: 1),
    "text": (lambda: "1", lambda: b"1"),
    "tuple": (lambda: (1, 2), lambda: (2, 1)),
    "tuple or list": (lambda: (1, 2), lambda: [1, 2]),
    "nesting": (lambda: [[1], [2]], lambda: [[1, 2], []]),
    "dict": (lambda: {"step": 3}, lambda: {"step": 4}),
    "set": (lambda: {"a", "b", "c"}, lambda: {"a", "b", "d"}),
    "tensors": (lambda: {"a": [torch.zeros(2)]}, lambda: {"a": [torch.zeros(3)]}),
    "dtype of tensors": (lambda: [torch.zeros(2)], lambda: [torch.zeros(2, dtype=torch.int32)]),
    "int8": (lambda: (quantised(0.1), None), lambda: (quantised(0.2), None)),
    "int8 values": (lambda: (quantised(0.1),), lambda: (quantised(0.1, (1.0, 3.0)),)),
    "int8 per channel": (lambda: (per_channel((0.1, 0.2)),), lambda: (per_channel((0.1, 0.3)),)),
    "array": (lambda: np.arange(3), lambda: np.arange(3.0)),
    "array of objects": (lambda: np.array([{1}, "a"], object), lambda: np.array([{2}, "a"], object)),
    "number of numpy": (lambda: np.float32(1), lambda: np.float64(1)),
    "torch constants": (lambda: torch.qint8, lambda: torch.quint8),
    "ordered": (lambda: collections.OrderedDict(a=1), lambda: collections.OrderedDict(a=2)),
    "counter": (lambda: collections.Counter("ab"), lambda: collections.Counter("abb")),
    "enum": (lambda: Colour.RED, lambda: Colour.BLUE),
    "object": (lambda: Thing(a={"x"}, b=Thing(c=1)), lambda: Thing(a={"x"}, b=Thing(c=2))),
    "namespace": (lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2)),
    "function": (lambda: quantised, lambda: per_channel),
    "class": (lambda: Thing, lambda: Colour),
    "path": (lambda: pathlib.PurePosixPath("a"), lambda: pathlib.PurePosixPath("b")),
    "date": (lambda: dt.date(2020, 1, 1), lambda: dt.date(2020, 1, 2)),
    "buffer": (lambda: io.BytesIO(b"a"), lambda: io.BytesIO(b"b")),
    "cycle": (lambda: cyclic(1), lambda: cyclic(2)),
    "module": (lambda: [Extra(1)], lambda: [Extra(2)]),
    "sparse": (lambda: [torch.eye(3).to_sparse()], lambda: [torch.ones(3, 3).to_sparse()]),
    "csr": (lambda: [torch.eye(3).to_sparse_csr()], lambda: [torch.eye(3).to_sparse_csc()]),
    "conjugate": (lambda: [torch.tensor([1j])], lambda: [torch.tensor([1j]).conj()]),
}
"""Two values of different content, by what distinguishes them."""


@pytest.mark.filterwarnings("ignore:Sparse")  # CSR tensors are in a beta state
@pytest.mark.parametrize("name", VALUES)
def test_fingerprints_depend_on_the_content_only(name: str) -> None:
    one, other = VALUES[name]
    assert digest_of(one()) == digest_of(one())
    assert digest_of(one()) != digest_of(other())
    assert fingerprint(Extra(one())) == fingerprint(Extra(one())) != fingerprint(Extra(other()))


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(NESTED, NESTED)
def test_equal_values_have_equal_digests(one: Any, other: Any) -> None:
    assert digest_of(one) == digest_of(copy.deepcopy(one))
    if repr(one) != repr(other) and one != other:
        assert digest_of(one) != digest_of(other)
    both = {"one": one, "other": other}
    assert digest_of(both) == digest_of(dict(reversed(both.items())))


def quantised_network(name: str) -> nn.Module:
    network = PUBLIC[name].network()
    assert isinstance(network, nn.Module)
    return network


def test_fingerprints_of_dense_tensors_are_those_of_earlier_versions() -> None:
    model = Extra(torch.arange(3))
    model.register_buffer("low", torch.ones(2, dtype=torch.bfloat16))
    model.register_buffer("pair", torch.tensor([1 + 2j]))
    model.register_buffer("flag", torch.tensor(True))
    with torch.no_grad():
        model.fc.weight.fill_(0.5)
        model.fc.bias.fill_(0.25)
    assert fingerprint(model) == "aba33d2b79eb5638a6cfcd9c965ae471f71f3b9c002401bffc980368aa934806"


@pytest.mark.parametrize(
    "extra", [threading.Lock(), (number for number in range(1)), torch.zeros(2, device="meta"), [sys.stderr]]
)
def test_an_entry_without_content_is_named(extra: object) -> None:
    check_refused(r"^state dict entry '_extra_state': a .* return numbers, text", fingerprint, Extra(extra))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.bool])
def test_other_types_of_tensors_are_audited(dtype: torch.dtype) -> None:
    model, data = Extra(torch.zeros(2)), cw.Images(torch.rand(8, 3, 2, 2), torch.arange(8) % 3)
    model.register_buffer("other", torch.ones(4).to(dtype))
    model.register_parameter("unused", nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False))
    result = cw.audit(model.eval(), data, "Linf:0.1", "fgsm", batch_size=32)
    assert len(result.outcomes.frame) == 16


def test_a_network_that_is_not_initialised() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)).eval()
    assert fingerprint(model) == fingerprint(copy.deepcopy(model))
    data = cw.Images(torch.rand(8, 3, 2, 2), torch.arange(8) % 3)
    check_refused(
        r"^parameter 'model.1.weight' of the model is not initialised; call",
        cw.audit,
        model,
        data,
        "Linf:0.1",
        "fgsm",
        batch_size=32,
    )


@pytest.mark.parametrize("name", ["static int8", "dynamic int8"])
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_scripted_networks_in_int8_have_fingerprints_of_their_own(name: str) -> None:
    network = quantised_network(name)
    jit: Any = torch.jit
    programs: list[nn.Module] = [torch.jit.script(network), torch.jit.freeze(torch.jit.script(network))]
    buffer = io.BytesIO()
    jit.save(programs[0], buffer)
    buffer.seek(0)
    loaded: nn.Module = jit.load(buffer)
    assert fingerprint(loaded) == fingerprint(programs[0])
    with warnings.catch_warnings(), torch.random.fork_rng():
        torch.manual_seed(1)
        other = torch.jit.script(PUBLIC[name].make())
    assert len({fingerprint(program) for program in [*programs, other, torch.jit.freeze(other)]}) == 4


def test_extra_state_is_not_saved_as_tensors(tmp_path: Path) -> None:
    check_refused(
        r"^state dict entry '_extra_state' is a tuple; weights are saved as",
        save_weights,
        tmp_path / "x.safetensors",
        Extra((1, 2)),
    )
    assert "'fc' is a tensor of torch.qint8; weights are saved as dense" in refused(
        save_weights, tmp_path / "x.safetensors", Extra(torch.ones(1)), tensors={"fc": quantised(0.1)}
    )
    torch.save(Extra({"step": 3}).state_dict(), tmp_path / "x.pt")
    assert "x.pt: entry '_extra_state' is a dict, not a tensor; load this state" in refused(
        cw.load_model, Extra(), tmp_path / "x.pt"
    )


def test_weights_are_loaded_into_a_network_with_extra_state(tmp_path: Path) -> None:
    source, target = Extra(torch.ones(1)), Extra({"step": 3})
    with torch.no_grad():
        source.fc.weight.fill_(0.5)
    tensors = {name: value for name, value in source.state_dict().items() if name != "_extra_state"}
    save_weights(tmp_path / "x.safetensors", source, tensors=tensors)
    loaded: Any = cw.load_model(target, tmp_path / "x.safetensors")
    assert torch.equal(loaded.fc.weight, source.fc.weight)
    assert loaded.extra == {"step": 3}


def test_extra_state_is_copied_by_weight_averaging() -> None:
    one, two = ({**Extra(state).state_dict()} for state in ({"step": 1}, {"step": 2}))
    average = blend({}, one, 0.5)
    assert blend(average, two, 0.5)["_extra_state"] == {"step": 2}
    update(average, two, 0.5)
    assert average["_extra_state"] == {"step": 2}
    assert list(average) == list(one)
    Extra().load_state_dict(average)


def test_training_refuses_extra_state_before_the_first_step(tmp_path: Path) -> None:
    overrides = {"model.name": "tests.models.test_content:Extra", "data.augment": "none", "threat": "Linf:0.1"}
    data = cw.Images(torch.rand(8, 3, 2, 2), torch.arange(8) % 3)
    check_refused(
        r"^state dict entry '.*_extra_state' is a NoneType",
        cw.train,
        "standard",
        data=data,
        out=tmp_path / "run",
        overrides=overrides,
    )
