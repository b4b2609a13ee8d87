"""States of a user's attack that the engine cannot use are refused, in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from tests.auditing import toys

STARTS: dict[str, tuple[Any, str]] = {
    "nothing": (lambda state: None, "start returned a NoneType; expected a dict of columns"),
    "no x": (lambda state: {}, "start returned no column 'x'; its columns are none"),
    "numbers": (lambda state: state | {"done": 0}, "start returned a int in column 'done'"),
    "a flag as numbers": (lambda state: state | {"done": state["done"].long()}, "torch.int64 of shape"),
}
STEPS: dict[str, tuple[Any, str]] = {
    "no margin": (lambda state: {k: v for k, v in state.items() if k != "margin"}, "step returned no column 'margin'"),
    "a lost column": (lambda state: {k: v for k, v in state.items() if k != "own"}, "step returned no column 'own'"),
    "fewer rows": (lambda state: state | {"own": state["own"][:1]}, r"of shape \(1,\) in column 'own'; expected"),
    "smaller images": (lambda state: state | {"x": state["x"][..., :2]}, "in column 'x'; expected numbers of shape"),
    "a sparse iterate": (lambda state: state | {"x": state["x"].to_sparse()}, "torch.sparse_coo"),
    "a meta column": (lambda state: state | {"own": state["own"].to("meta")}, "a meta tensor in column 'own'"),
    "never done": (lambda state: state | {"done": torch.zeros_like(state["done"])}, "done after 2 steps, its length"),
    "no count": (lambda state: state | {"iteration": 0 * state["own"].long(), "done": state["own"] > 9}, "same number"),
}  # fmt: skip


@configurable
class Mine(Attack):
    """An attack of two steps that returns a changed state."""

    source = ()
    example = "none"
    length = 2
    start_name: str = ""
    step_name: str = ""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        del model
        zero = torch.zeros_like(inputs.y)
        state = {"x": inputs.x.clone(), "iteration": zero, "done": zero.bool(), "own": zero.float()}
        changed: State = STARTS[self.start_name][0](state) if self.start_name else state
        return changed

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        del model
        taken = state["iteration"] + 1
        margin = torch.ones_like(state["own"])
        new = state | {"seen": inputs.x, "margin": margin, "iteration": taken, "done": taken >= self.length}
        changed: State = STEPS[self.step_name][0](new) if self.step_name else new
        return changed


def attacked(attack: Attack) -> torch.Tensor:
    data = toys.images(12)
    return cw.attack(toys.model(), data.pixels(), data.y, attack, threat="Linf:0.01")


@pytest.mark.parametrize("name", STARTS)
def test_what_start_returns_is_checked(name: str) -> None:
    with pytest.raises(ClasswiseError, match=STARTS[name][1]):
        attacked(Mine(start_name=name))


@pytest.mark.parametrize("name", STEPS)
def test_what_step_returns_is_checked(name: str) -> None:
    with pytest.raises(ClasswiseError, match=STEPS[name][1]):
        attacked(Mine(step_name=name))


def test_a_sound_state_is_accepted() -> None:
    assert torch.isfinite(attacked(Mine())).all()
