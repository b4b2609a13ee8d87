"""Updates: one step of each compared with its formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from classwise.training.updates import AWP, Plain

X = torch.linspace(-1, 1, 24).view(8, 3)


def network(seed: int = 0, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4) if norm else nn.Tanh(), nn.Linear(4, 2)]
    return nn.Sequential(*layers)


def squares(model: nn.Module, calls: list[float] | None = None) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        value: Tensor = model(X).square().mean()
        if calls is not None:
            calls.append(float(value.detach()))
        return value

    return loss


def test_awp_equals_its_equation_in_each_layer() -> None:
    """The perturbation has length gamma ‖w‖ in each matrix, none in biases; the step is w - lr (grad(w + v) + wd w)."""
    gamma, lr, decay = 0.05, 0.1, 0.01
    model = network()
    before = [weight.detach().clone() for weight in model.parameters()]
    first = torch.autograd.grad(squares(model)(), list(model.parameters()))
    there = network()
    lengths = []
    with torch.no_grad():
        for weight, gradient in zip(there.parameters(), first, strict=True):
            if weight.ndim > 1:
                shift = gamma * weight.norm() * gradient / gradient.norm()
                lengths.append(float(shift.norm() / weight.norm()))
                weight.add_(shift)
    assert lengths == pytest.approx([gamma, gamma])
    second = torch.autograd.grad(squares(there)(), list(there.parameters()))
    calls: list[float] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
    AWP(gamma=gamma)(model, optimizer, squares(model, calls), 0.5)
    for weight, start, gradient in zip(model.parameters(), before, second, strict=True):
        assert torch.allclose(weight, start - lr * (gradient + decay * start), atol=1e-7)
    assert len(calls) == 2
    assert calls[1] > calls[0]  # the weights climbed


@pytest.mark.parametrize(
    "update", [AWP(gamma=0.0), AWP(gamma=0.05, start_fraction=0.5)], ids=["gamma 0", "not yet begun"]
)
def test_awp_without_a_perturbation_equals_the_plain_update(update: AWP) -> None:
    ours, plain = network(norm=True), network(norm=True)
    for model, way in ((ours, update), (plain, Plain())):
        way(model, torch.optim.SGD(model.parameters(), lr=0.1), squares(model), 0.4)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_awp_updates_the_batch_statistics_once() -> None:
    model = network(norm=True)
    AWP(gamma=0.05)(model, torch.optim.SGD(model.parameters(), lr=0.1), squares(model), 0.4)
    assert int(model.state_dict()["1.num_batches_tracked"]) == 1


def test_awp_restores_the_weights_exactly_and_accepts_zero_gradients() -> None:
    model = network()
    model.extra = nn.Linear(3, 3)  # no part of the loss: no gradient
    with torch.no_grad():
        next(iter(model[2].parameters())).zero_()  # then the first layer's gradient is zero
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def loss() -> Tensor:
        value: Tensor = model[2](model[1](model[0](X))).square().mean()
        return value

    AWP(gamma=0.5)(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, 0.4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
