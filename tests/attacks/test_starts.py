"""No start of a registered attack is dead, for any number of classes from two on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import AttackInputs
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .test_contract import named

pytestmark = pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")

CLASSES = (2, 3, 4, 5, 10)
VARIANTS = ("apgd-t:restarts=2", "fab-t:restarts=2", "pgd-t:restarts=2", "pgd:objective=margin", "pgd:objective=dlr")
EXTERNAL = ("external",)
"""Attacks that bring their own losses, about which nothing can be promised."""
QUERIES = 12
"""Steps within which an attack without gradients must have seen another loss."""


class Smooth(nn.Module):
    """A random network with two tanh layers; no logit is far from the others and none saturates."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(classes)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, classes))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 2 * self.layers(2 * x - 1)
        return logits


@dataclass
class Watched:
    """A forward pass that remembers the logits that it gave and the gradients that were asked for."""

    model: nn.Module
    logits: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(self.gradients.append)  # type: ignore[no-untyped-call]  # torch does not annotate it
        logits = EXACT.forward(self.model)(x)
        self.logits.append(logits.detach())
        return logits


def case_of(model: nn.Module, restart: int, count: int = 8) -> AttackInputs:
    """Images with the labels that the model gives them; each in the given start."""
    x = torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.6 + 0.2
    with torch.no_grad():
        reference = model(x)
    index = torch.arange(count)
    start = torch.full_like(index, restart)
    threat = Threat("Linf", 0.02)
    return AttackInputs(
        x, reference.argmax(1), index, threat, CounterRNG(0, "attack"), reference=reference, restart=start
    )


def attack_of(name: str, classes: int) -> Attack:
    if name == "transfer":
        return Transfer(surrogate=Smooth(classes), attack=PGD(steps=2))
    return named(name, classes)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", [*(name for name in ATTACKS if name not in EXTERNAL), *VARIANTS])
def test_every_start_has_a_gradient_or_sees_another_loss(name: str, classes: int) -> None:
    model, attack = Smooth(classes), attack_of(name, classes)
    if "Linf" not in attack.norms:
        pytest.skip("its norms have a test of their own below")
    for restart in range(attack.starts_for(classes)):
        live_start(attack, model, case_of(model, restart))


@pytest.mark.slow
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in EXTERNAL])
def test_every_start_is_alive_in_the_other_norms(name: str, classes: int) -> None:
    model, attack = Smooth(classes), attack_of(name, classes)
    for norm in set(attack.norms) - {"Linf"}:
        for restart in range(attack.starts_for(classes)):
            radius = 0.02 if norm == "recolour" else 0.1  # of all pixels, as for Linf; at 0.1, some are misclassified
            live_start(attack, model, dataclasses.replace(case_of(model, restart), threat=Threat(norm, radius)))


def live_start(attack: Attack, model: nn.Module, inputs: AttackInputs) -> None:
    """See that every row has a gradient at its first point, or that its logits change from query to query."""
    watched = Watched(attack.models[0] if isinstance(attack, Transfer) else model)
    if isinstance(attack, Transfer):
        object.__setattr__(attack, "_forwards", [watched])  # the surrogate's passes are those that matter
    state = attack.start(watched, inputs)
    assert not state["done"].any()
    state = attack.step(watched, inputs, state)
    if watched.gradients:
        alive = torch.stack([gradient.flatten(1).abs().amax(1) for gradient in watched.gradients]).amax(0)
        assert bool((alive > 0).all()), (inputs.restart, alive)
        return
    for _ in range(QUERIES):
        state = attack.step(watched, inputs, state)
    first, *others = (logits[: len(inputs.x)] for logits in watched.logits)
    moved = torch.stack([(logits - first).abs().amax(1) for logits in others]).amax(0)
    assert bool((moved > 0).all()), inputs.restart


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize(("name", "column"), [("apgd-t", "target"), ("fab-t", "target"), ("pgd-t", "target")])
def test_the_targets_are_distinct_and_all_other_classes(name: str, column: str, classes: int) -> None:
    model, attack = Smooth(classes), attack_of(name.replace("fab-t", "fab-t:steps=20"), classes)
    assert attack.starts_for(classes) == min(9, classes - 1)
    cases = [case_of(model, restart) for restart in range(attack.starts_for(classes))]
    aims = torch.stack([attack.start(EXACT.forward(model), case)[column] for case in cases])
    for row, label in zip(aims.T, cases[0].y, strict=True):
        assert sorted([*row.tolist(), int(label)]) == list(range(classes))


def test_a_start_without_a_gradient_is_refused() -> None:
    check_refused("has no gradient at the clean image", named("pgd:objective=kl,random_init=none").check)
    named("pgd:objective=kl").check()
