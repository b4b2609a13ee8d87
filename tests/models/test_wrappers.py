"""Normalisation inside the model, logits out of any output, and functions as models."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from classwise.models import LogitsModel, Normalized, fingerprint, load_model, pick_logits
from classwise.models.base import bare
from classwise.models.functions import FunctionModel, as_module
from tests.models.samples import Own, tiny
from tests.refusals import check_refused, refused

LOGITS = torch.tensor([[1.0, 2.0]])


def test_normalisation_by_hand() -> None:
    model = Normalized(nn.Identity(), mean=[0.5, 0.25], std=[0.5, 0.125])
    assert torch.equal(model(torch.tensor([1.0, 0.5]).reshape(1, 2, 1, 1)).flatten(), torch.tensor([1.0, 2.0]))
    assert model.mean.shape == model.std.shape == (1, 2, 1, 1)
    assert set(model.state_dict()) == {"mean", "std"}


def test_the_inner_model_s_parts_can_be_asked_for() -> None:
    inner = tiny()
    model = Normalized(LogitsModel(inner), [0.5] * 3, [0.25] * 3)
    x = torch.rand(2, 3, 8, 8)
    assert bare(model) is inner
    assert isinstance(model.classifier, nn.Linear)
    assert model.classifier is inner.classifier
    torch.testing.assert_close(model.classifier(model.features(x)), model(x))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = model.nothing_like_this


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_wrapped_model_can_be_copied(again: Callable[[nn.Module], nn.Module]) -> None:
    model = Normalized(tiny(), [0.5] * 3, [0.25] * 3)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(again(model)(x), model(x))


def test_a_model_with_a_mean_of_its_own_can_be_normalised_and_a_normalised_one_not_again() -> None:
    inner = nn.Flatten()
    inner.register_buffer("mean", torch.zeros(()))
    model = Normalized(inner, [0.5], [0.5])
    assert model(torch.ones(1, 1, 1, 1)).tolist() == [[1.0]]
    assert set(model.state_dict()) == {"mean", "std", "model.mean"}
    assert "normalised already; pass the inner model, model.model" in refused(Normalized, model, [0.5], [0.5])


def test_mean_and_std_of_different_lengths() -> None:
    assert "mean has 1 channels and std 3" in refused(Normalized, nn.Identity(), [0.5], [0.25] * 3)


@pytest.mark.parametrize(
    "output",
    [LOGITS, (LOGITS, None), [LOGITS], {"logits": LOGITS, "loss": 3}, SimpleNamespace(logits=LOGITS)],
    ids=["tensor", "tuple", "list", "dict", "object"],
)
def test_logits_are_found(output: object) -> None:
    assert pick_logits(output) is LOGITS


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "returns a NoneType"),
        ({"scores": LOGITS}, "returns a dict without logits"),
        ((), "returns a tuple"),
        (LOGITS[0], r"shape \(2,\)"),
        (LOGITS.long(), "returns int64"),
    ],
)
def test_logits_that_are_not_there(output: object, message: str) -> None:
    check_refused(message, pick_logits, output)


def test_a_model_of_two_outputs_becomes_one_of_logits() -> None:
    own = Own(3)
    x = torch.rand(4, 3, 2, 2)
    assert torch.equal(LogitsModel(own)(x), own(x)[0])


@pytest.mark.parametrize("channels", [2, 10_000])
def test_a_normalisation_of_other_channels_is_refused_before_it_is_broadcast(channels: int) -> None:
    model = Normalized(nn.Flatten(), torch.zeros(channels), torch.ones(channels))
    assert f"the normalisation has {channels} channels and the images have 1" in refused(model, torch.rand(2, 1, 8, 8))
    assert Normalized(nn.Flatten(), [0.0], [1.0])(torch.rand(2, 3, 8, 8)).shape == (2, 192)


X = torch.rand(2, 3, 2, 2)
GLOBAL = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()


def by_global(x: Tensor) -> Tensor:
    return helper(x)


def helper(x: Tensor) -> Tensor:
    return GLOBAL(x)  # type: ignore[no-any-return]


class Predictor:
    """An object with a network, which is not a module."""

    def __init__(self, network: nn.Module) -> None:
        self.parts = {"network": [network]}

    def __call__(self, x: Tensor) -> Tensor:
        return self.parts["network"][0](x)  # type: ignore[no-any-return]

    def predict(self, x: Tensor) -> Tensor:
        return self(x)


def partly(network: nn.Module, x: Tensor) -> Tensor:
    return network(x)  # type: ignore[no-any-return]


def closure(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: network(x).clone()


def default(network: nn.Module) -> Callable[[Tensor], object]:
    def run(x: Tensor, model: nn.Module = network) -> object:
        return model(x)

    return run


KINDS: dict[str, Callable[[nn.Module], Callable[[Tensor], object]]] = {
    "closure": closure,
    "default": default,
    "partial": lambda network: functools.partial(partly, network),
    "object": Predictor,
    "method": lambda network: Predictor(network).predict,
    "method of a module": lambda network: network.forward,
    "nested": lambda network: lambda x: [closure(network)(part) for part in (x,)][0],  # noqa: RUF015
    "global": lambda _: by_global,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_modules_of_a_function_are_found(kind: str) -> None:
    model = FunctionModel(KINDS[kind](GLOBAL))
    assert [module for module in model.children()] == [GLOBAL]  # noqa: C416
    assert torch.equal(model(X), GLOBAL(X))
    assert not model.training


def test_a_function_of_no_module_is_known_by_its_code() -> None:
    def one(x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3]

    def other(x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4]

    assert fingerprint(FunctionModel(one)) == fingerprint(FunctionModel(one))
    assert fingerprint(FunctionModel(one)) != fingerprint(FunctionModel(other))
    assert FunctionModel(one).name.endswith("one")


def test_a_function_is_loaded_like_a_module() -> None:
    model = load_model(lambda x: {"logits": GLOBAL(x)}, mean=[0.5], std=[0.25])
    assert torch.equal(model(X), GLOBAL((X - 0.5) / 0.25))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nn.Linear, r"the model is the class Linear; give an instance, Linear\(\.\.\.\)"),
        (5, "the model is a int; give a module, a function or the name of a model"),
    ],
)
def test_what_is_no_model(value: Any, message: str) -> None:
    check_refused(message, as_module, value)
