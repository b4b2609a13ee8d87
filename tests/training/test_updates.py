"""Updates and optimisers: one step of each compared with its formula, and their counted cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tools import reference
from torch import Tensor, nn

from classwise.training.train import train
from classwise.training.updates import AWP, Adam, Plain

from .test_trainer import SMALL

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


@pytest.mark.parametrize("decoupled", [False, True])
def test_adams_first_two_steps_by_hand(decoupled: bool) -> None:
    lr, decay, first, second = 0.1, 0.2, 0.8, 0.9
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = Adam(lr=lr, betas=(first, second), weight_decay=decay, decoupled_weight_decay=decoupled).build(model)
    weight, mean, square = 2.0, 0.0, 0.0
    for step, gradient in enumerate((3.0, -1.0), start=1):
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        seen = gradient if decoupled else gradient + decay * weight
        weight *= 1 - lr * decay if decoupled else 1
        mean, square = first * mean + (1 - first) * seen, second * square + (1 - second) * seen**2
        weight -= lr * (mean / (1 - first**step)) / (square / (1 - second**step)) ** 0.5
        assert float(model.weight.detach()) == pytest.approx(weight, abs=1e-6)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "updates.md"
PASSES: Counter[str] = Counter()


class Counting(nn.Module):
    """A linear model that counts the rows of forward and backward passes."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64 * in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        PASSES["forward"] += len(x)
        if logits.requires_grad:
            logits.register_hook(lambda _: PASSES.update(backward=len(x)))  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        ("at", 11, 11),
        ("trades", 13, 12),
        ("at-awp", 12, 12),
        ("trades-awp", 15, 14),
        ("fast-at", 2, 2),
        ("n-fgsm", 2, 2),
        ("at-swa", 11, 11),
        ("at-ema-step", 11, 11),
        ("at-wa", 11, 11),
        ("n-fgsm-wa", 2, 2),
    ],
)
def test_passes_of_an_image_in_a_step(recipe: str, forward: int, backward: int, tmp_path: Path) -> None:
    PASSES.clear()
    own: dict[str, Any] = {"model": {"name": f"{__name__}:Counting"}, "data.validation": 0, "selection": "last"}
    small = {key: value for key, value in SMALL.items() if not key.startswith(("attack", "model", "data.validation"))}
    overrides = small | own | {"epochs": 1, "batch_size": 50, "data.subset": 100}
    if "awp" in recipe:
        overrides["update.start_fraction"] = 0.0
    train(recipe, out=tmp_path / "run", data="digits", overrides=overrides)
    assert (PASSES["forward"] / 100, PASSES["backward"] / 100) == (forward, backward)


def test_the_page_has_these_numbers() -> None:
    lines = f"{PAGE.read_text()}\n{reference.update_table()}".splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| `")}
    found = {name: re.findall(r"(\d+) \+ (\d+)", line) for name, line in rows.items()}
    assert found["`update: plain`"] == [("11", "11"), ("13", "12")]
    assert found["`update: awp`"] == [("12", "12"), ("15", "14")]
    assert found["`attack: n-fgsm`"] == [("2", "2")]
