"""The saved state of a model: every change is named and undone, and sound models have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from classwise.models.logits import as_logits
from classwise.models.state import Buffers, ModelState, changes_text


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)).eval()


def in_place(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.add_(1)


def through_data(model: Any) -> None:
    model[0].weight.data.add_(1)


def statistics(model: Any) -> None:
    model.train()
    with torch.no_grad():
        model(torch.rand(4, 1, 6, 6))
    model.eval()


def replaced(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach() * 2)


def halved(model: Any) -> None:
    model.half()


def shrunk(model: Any) -> None:
    model[3].bias.data = torch.zeros(2)


def new_layer(model: Any) -> None:
    model[3] = nn.Linear(32, 3)


def added_layer(model: Any) -> None:
    model.append(nn.Softmax(1))


def training(model: Any) -> None:
    model[1].train()


def unfrozen(model: Any) -> None:
    model[0].weight.requires_grad_(False)


CHANGES: dict[Callable[[Any], None], str] = {
    in_place: "parameter '0.weight'",
    through_data: "parameter '0.weight'",
    statistics: "buffer '1.running_mean'",
    replaced: "the parameters of '0'",
    halved: "the buffers of '1'",
    shrunk: "parameter '3.bias'",
    new_layer: "the submodules",
    added_layer: "the submodules",
    training: "the mode of '1'",
    unfrozen: "requires_grad of parameter '0.weight'",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_is_named_and_undone(change: Callable[[Any], None], wrapped: bool) -> None:
    model, x = network(), torch.rand(2, 1, 6, 6)
    whole = as_logits(model).eval() if wrapped else model
    expected, before = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    state = ModelState(whole)
    assert state.restore() == ()
    change(model)
    assert CHANGES[change] in state.restore()
    assert state.restore() == ()
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {*model.state_dict()} == {*before}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(x), expected)


def test_without_values_only_counted_operations_are_noticed() -> None:
    model = network()
    state = ModelState(model)
    in_place(model)
    assert state.restore(values=False) == ("parameter '0.weight'",)
    through_data(model)
    assert state.restore(values=False) == ()
    assert state.restore() == ("parameter '0.weight'",)


def test_gradients_that_were_added_are_removed_without_a_word() -> None:
    model = network()
    state = ModelState(model)
    model(torch.rand(2, 1, 6, 6)).sum().backward()
    assert state.restore() == ()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tied_weights_remain_tied_and_nan_equals_nan() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    nn.init.constant_(model[0].bias, torch.nan)
    state = ModelState(model)
    assert state.restore() == ()
    through_data(model)
    assert state.restore() == ("parameter '0.weight'",)
    assert model[1].weight is model[0].weight


class Counting(nn.Module):
    """A layer that counts its passes in a buffer, and clamps another one, which changes nothing."""

    count: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.scale.clamp_(0, 2)


def test_tensors_that_passes_change_are_ignored_on_request() -> None:
    model: Any = nn.Sequential(Counting(), nn.Linear(2, 2))
    state = ModelState(model)
    state.ignore_changes_of(lambda: model(torch.ones(1, 2)))
    assert model[0].count == 0
    model(torch.ones(1, 2))
    model[1].bias.data.add_(1)
    assert state.restore() == ("parameter '1.bias'",)


def test_buffers_that_passes_change_are_found() -> None:
    model = nn.Sequential(Counting(), nn.BatchNorm1d(2)).eval()
    buffers = Buffers(as_logits(model))
    assert buffers.changed() == []
    model(torch.ones(1, 2))
    assert buffers.changed() == ["buffer '0.count'"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_compared_by_values() -> None:
    model = torch.jit.freeze(torch.jit.script(network()))
    assert ModelState(model).restore() == ()
    script = torch.jit.script(network())
    state = ModelState(script)
    next(script.parameters()).data.add_(1)
    assert state.restore() == ("parameter '0.weight'",)


def test_many_changes_are_counted() -> None:
    assert changes_text(["a", "b", "a", "c", "d", "e"]) == "a, b, c and 2 more"
