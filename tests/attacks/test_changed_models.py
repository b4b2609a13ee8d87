"""Attacks of users that change the model: it is restored before success is decided, and they are named."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.external import ExternalAttack
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import configurable
from classwise.data.images import Images
from tests.auditing import toys

Change = Callable[[nn.Module], None]


def weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.neg_()


def data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.neg_()


def modes(model: nn.Module) -> None:
    model.train()


def learns(model: nn.Module) -> None:
    model.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), 10.0)
    model(torch.rand(8, 1, toys.SIDE, toys.SIDE)).square().sum().backward()
    optimizer.step()


CHANGES: tuple[Change, ...] = (weights, data, modes, learns)


def called(change: Change) -> Attack:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        del y
        change(model)
        return x

    return ExternalAttack(attack=attack)


def built(change: Change) -> Attack:
    def build(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        change(model)
        return lambda x, _: x

    return ExternalAttack(build=build)


def failing(change: Change) -> Attack:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        change(model)
        raise LookupError(f"{len(x)} {len(y)}")

    return ExternalAttack(attack=attack)


@configurable
class Changing(Attack):
    """An attack of several steps that changes the model in each, and returns the clean image."""

    source = ()
    example = "none"
    change: str = "weights"

    @property
    def length(self) -> int:
        return 3

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        del model
        zero = torch.zeros_like(inputs.y)
        return {"x": inputs.x.clone(), "iteration": zero, "done": zero.bool()}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        globals()[self.change](model.module)  # type: ignore[attr-defined]  # what a forward pass of the engine has
        taken = state["iteration"] + 1
        margin = torch.full(taken.shape, torch.inf)
        return {"x": inputs.x, "seen": inputs.x, "margin": margin, "iteration": taken, "done": taken == self.length}


def stepping(change: Change) -> Attack:
    return Changing(change=change.__name__)


def images() -> Images:
    return toys.images(48, strength=(0.03, 0.08, 0.08))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("attack_of", [called, built, stepping])
def test_the_model_is_restored_before_success_is_decided(
    attack_of: Callable[[Change], Attack], change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    model, sound = toys.model(scale=2.0), toys.model(scale=2.0)
    before = copy.deepcopy(model.state_dict())
    attacks = {"mine": attack_of(change), "fgsm": "fgsm"}
    result = cw.audit(model, images(), "Linf:0.05", attacks, batch_size=32)
    expected = cw.audit(sound, images(), "Linf:0.05", "fgsm", batch_size=32)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())
    assert result.by_class["mine"].tolist() == result.by_class["clean"].tolist()  # it returns the clean images
    assert result.by_class["fgsm"].tolist() == expected.by_class["fgsm"].tolist()
    (warning,) = (warning for warning in result.warnings if warning.name == "changed-model")
    assert "by attack 'mine' (" in warning.sentence
    assert ("the mode" if change is modes else "parameter 'head.weight'") in warning.sentence
    assert "changed the model" in caplog.text
    assert "changed-model" not in {warning.name for warning in expected.warnings}


@pytest.mark.parametrize("change", CHANGES)
def test_the_model_is_restored_after_an_error(change: Change) -> None:
    model = toys.model(scale=2.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(LookupError):
        cw.audit(model, images(), "Linf:0.05", failing(change), batch_size=32)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())


def test_attack_restores_the_model_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    model, data = toys.model(scale=2.0), images()
    before = copy.deepcopy(model.state_dict())
    found = cw.attack(model, data.pixels(), data.y, called(weights), threat="Linf:0.05")
    assert torch.equal(found, data.pixels())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "changed the model (parameter 'head.weight', parameter 'head.bias')" in caplog.text


class Counting(nn.Module):
    """A model that counts its passes in a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        out: Tensor = self.inner(x)
        return out


def test_a_model_that_changes_itself_is_named_and_no_attack_is_blamed() -> None:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        del y
        model(x)
        return x

    result = cw.audit(Counting(), images(), "Linf:0.05", {"mine": ExternalAttack(attack=attack)}, batch_size=32)
    (warning,) = (warning for warning in result.warnings if warning.name == "changed-model")
    assert warning.sentence == (
        "The model was changed by its own passes (buffer 'count'), on whose order results depend."
    )


def test_our_own_attacks_save_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a copy of the model was made")

    monkeypatch.setattr("classwise.attacks.engine.engine.ModelState", fail)
    cw.audit(toys.model(scale=2.0), images(), "Linf:0.05", ["pgd:steps=2", "square:steps=2"], batch_size=32)
