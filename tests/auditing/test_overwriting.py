"""Models that write into their input receive copies: outcomes equal those of the same model without writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the field's own name for it

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.core.settings.config import make
from tests.attacks.test_contract import SHORT
from tests.auditing import toys

Change = Callable[[Tensor], Tensor]
MEAN = 0.125
CHANGES: dict[str, tuple[Change, Change]] = {
    "sub_": (lambda x: x.sub_(MEAN), lambda x: x - MEAN),
    "clamp_": (lambda x: x.clamp_(0.4, 0.6), lambda x: x.clamp(0.4, 0.6)),
    "relu": (lambda x: F.relu(x, inplace=True), F.relu),
}
"""A front end that writes into its input, and the same without."""


class Changing(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.change = change
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.change(x))
        return out


ATTACKED = ["pgd:steps=3", "fab:steps=2", "square:steps=10", "cw:steps=3"]


def run(model: nn.Module, precision: Precision = EXACT) -> Audit:
    data = toys.images(36, strength=(0.03, 0.08, 0.08))
    return audit(model, data, "Linf:0.05", ATTACKED, precision=precision, batch_size=32, save="images")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, EXACT) for name in CHANGES), ("sub_", FAST)], ids=[*CHANGES, "sub_ in bfloat16"]
)
def test_the_outcomes_are_those_of_the_other_model(name: str, precision: Precision) -> None:
    writing, plain = (run(Changing(change), precision) for change in CHANGES[name])
    assert writing.outcomes.frame.equals(plain.outcomes.frame)
    names = {warning.name for warning in writing.warnings}
    assert names - {warning.name for warning in plain.warnings} == {"overwrites-input"}
    assert {warning.name for warning in plain.warnings} <= names


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("external", "transfer")])
@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
def test_every_attack_leaves_the_images_of_its_caller(name: str) -> None:
    attack: Any = make(ATTACKS, SHORT.get(name, name))
    batch = toys.images(32).batch(slice(0, 32))
    threat = f"{attack.norms[0]}:0.05"
    before = batch.x.clone()
    writing, plain = (
        cw.attack(Changing(change), batch.x, batch.y, attack, threat=threat) for change in CHANGES["sub_"]
    )
    assert torch.equal(batch.x, before)
    assert torch.equal(writing, plain)


def test_autoattack_leaves_the_images_of_its_caller() -> None:
    batch = toys.images(32).batch(slice(0, 32))
    before = batch.x.clone()
    found = []
    for change in CHANGES["sub_"]:
        suite = AutoAttack(Changing(change), eps=0.05)
        suite.attacks = {"pgd": PGD(steps=3)}
        found.append(suite.run_standard_evaluation(batch.x, batch.y, bs=32))
    assert torch.equal(batch.x, before)
    assert torch.equal(*found)


def test_a_model_that_does_not_write_gets_one_copy() -> None:
    """The first pass detects whether the model writes into its input; later passes make no copy."""
    model, x = Changing(CHANGES["sub_"][1]), torch.rand(4, 1, toys.SIDE, toys.SIDE)
    seen: list[int] = []

    def look(image: Tensor) -> Tensor:
        seen.append(image.data_ptr())
        return image

    model.change = look
    forward = EXACT.forward(model)
    for _ in range(3):
        forward(x)
    assert [pointer == x.data_ptr() for pointer in seen] == [False, True, True]
