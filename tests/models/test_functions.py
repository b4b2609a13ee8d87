"""Functions as models: the modules that they refer to, and their identity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models import fingerprint, load_model
from classwise.models.functions import FunctionModel, as_module

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
    with pytest.raises(ClasswiseError, match=message):
        as_module(value)
