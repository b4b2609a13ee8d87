"""What every registered attack promises, for every norm: tested the moment it is registered."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import AttackInputs
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import PGD, Ascent
from classwise.attacks.losses import towards
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import configurable, make
from classwise.threat.ball import Norm, Threat
from tests.refusals import check_refused

from .models import Small, images

pytestmark = pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")

NORMS: tuple[Norm, ...] = ("Linf", "L2")
VARIANTS = (
    "apgd-ce:steps=7,eot_iter=2",
    "apgd-t:steps=3,targets=2,restarts=2",
    "pgd:objective=margin,restarts=2",
    "pgd:objective=dlr",
    "pgd:objective=kl,random_init=normal",
    "difgsm:decay=1",
    "tpgd:arithmetic=paper",
    "fgsm:random_init=uniform",
    "square:steps=20,restarts=2",
    "fab:restarts=2,steps=10",
    "fab-t:restarts=2,steps=10,targets=2",
    "cw:fast=true,steps=20,learning_rate=0.05,decrease_factor=0.5",
    "transfer:combine=union",
    "transfer:combine=mean",
)
SHORT = {
    "apgd-ce": "apgd-ce:steps=12",
    "apgd-dlr": "apgd-dlr:steps=12",
    "apgd-t": "apgd-t:steps=12",
    "cr": "cr:steps=40,restarts=2",
    "md": "md:steps=12",
    "nattack": "nattack:steps=12,samples=20",
    "pma": "pma:steps=12",
    "spatial-grid": "spatial-grid:rotations=5,translations=3",
    "square": "square:steps=30",
    "cw": "cw:steps=20,learning_rate=0.05,decrease_factor=0.5",
    "cw-l2": "cw-l2:steps=20,learning_rate=0.05,binary_search_steps=4",
    "fab": "fab:steps=10",
    "fab-t": "fab-t:steps=10,targets=3",
}
"""Shorter specs of attacks whose defaults take too long here."""


def darken(x: Tensor, y: Tensor) -> Tensor:
    """A plain function for an attack: it leaves any ball, and does not look at the labels."""
    assert x.shape[0] == y.shape[0]
    return x - 2


def named(name: str, classes: int = 3) -> Attack:
    """The attack of a spec; those that need something of the user's get a simple one."""
    if name == "external":
        return ExternalAttack(attack=darken)
    if name == "transfer":
        return Transfer(surrogate=Small(classes), attack=PGD(steps=5, restarts=2))
    if name.startswith("transfer:"):
        other = Small(classes).requires_grad_(False)
        other.convolution.weight.mul_(0.9)
        inner = PGD(steps=5, objective="kl", random_init="normal")
        mean = name.endswith("mean")
        return Transfer(surrogate=(Small(classes), other), attack=inner, combine="mean" if mean else "union")
    return make(ATTACKS, SHORT.get(name, name))


@pytest.fixture(params=[*ATTACKS, *VARIANTS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def attack(name: str) -> Attack:
    return named(name)


@pytest.fixture(params=NORMS)
def threat(request: pytest.FixtureRequest, attack: Attack) -> Threat:
    if request.param not in attack.norms:
        pytest.skip("the attack lacks the norm, and says so")
    return Threat(request.param, {"Linf": 0.1, "L2": 0.3}[str(request.param)])


def correct(model: Small, x: Tensor) -> Tensor:
    """Labels that the model gives, so that the attack has something to break."""
    labels: Tensor = model.eval()(x).argmax(1)
    return labels


@pytest.mark.slow
def test_the_result_is_in_the_ball_and_the_model_and_the_inputs_are_left_as_they_were(
    attack: Attack, threat: Threat
) -> None:
    model, x = Small(), images()
    y = correct(model, x)
    model.train()
    model.norm.eval()  # a frozen layer must stay frozen
    model.linear.bias.requires_grad_(False)
    model.linear.weight.grad = torch.ones_like(model.linear.weight)
    before = copy.deepcopy(model.state_dict())
    x_before, y_before, random = x.clone(), y.clone(), torch.get_rng_state()
    result = cw.attack(model, x, y, attack, threat=threat)
    assert result.shape == x.shape
    assert bool(result.isfinite().all())
    assert 0 <= float(result.min()) <= float(result.max()) <= 1
    assert float(threat.distance(result, x).max()) <= float(threat.epsilon) + 1e-6
    assert not torch.equal(result, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in (model, model.convolution, model.norm, model.dropout)] == [1, 1, 0, 1]
    assert not model.linear.bias.requires_grad
    assert model.linear.weight.requires_grad
    assert torch.equal(model.linear.weight.grad, torch.ones_like(model.linear.weight))
    assert model.convolution.weight.grad is None
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_mode_comes_back_after_an_exception(attack: Attack) -> None:
    model = Small()
    model.train()
    with pytest.raises(RuntimeError):
        cw.attack(
            model, torch.rand(4, 5, 4, 4), torch.zeros(4, dtype=torch.int64), attack, threat=f"{attack.norms[0]}:0.1"
        )
    assert model.training
    assert model.norm.training


@pytest.mark.slow
def test_radius_zero_returns_the_images(attack: Attack, threat: Threat) -> None:
    model, x = Small(), images()
    assert torch.equal(cw.attack(model, x, correct(model, x), attack, threat=threat.with_epsilon(0.0)), x)


@pytest.mark.slow
def test_a_permutation_of_the_batch_and_the_radii_of_other_rows_change_no_row(attack: Attack, threat: Threat) -> None:
    """Bit for bit at 32 images, the smallest batch for which that is promised; a second call has the same bits."""
    model, x = Small(), images(32)
    y, index = correct(model, x), torch.arange(100, 132)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    plain = cw.attack(model, x, y, attack, threat=threat, index=index)
    permuted = cw.attack(model, x[order], y[order], attack, threat=threat, index=index[order])
    assert torch.equal(permuted, plain[order])
    radii = torch.linspace(0, float(threat.epsilon), 32)
    mixed = cw.attack(model, x, y, attack, threat=threat.with_epsilon(radii), index=index)
    assert bool((threat.distance(mixed, x) <= radii + 1e-6).all())
    assert torch.equal(mixed[-1], plain[-1])
    assert torch.equal(mixed[0], x[0])


def test_a_norm_that_an_attack_lacks_is_refused(attack: Attack) -> None:
    for norm in set(get_args(Norm)) - set(attack.norms):
        check_refused(
            f"does not support {norm}; it supports {attack.norms[0]}",
            cw.attack,
            Small(),
            images(),
            torch.zeros(12, dtype=torch.int64),
            attack,
            threat=Threat(norm, 0.1),
        )


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 100])
def test_any_number_of_classes(name: str, classes: int) -> None:
    model, x = Small(classes), images()
    y = correct(model, x)
    attack = named(name, classes)
    result = cw.attack(model, x, y, attack, threat=f"{attack.norms[0]}:0.3")
    assert float((model.eval()(result).argmax(1) == y).float().mean()) < 1


@pytest.mark.slow
def test_a_target_is_approached(name: str, threat: Threat) -> None:
    if "kl" in name or name == "external":
        pytest.skip("the divergence has no target, and external attacks take none")
    model, x, attack = Small(4), images(), named(name, 4)
    y = correct(model, x)
    target = (y + 1) % 4
    result = cw.attack(model, x, y, attack, threat=threat, targets=target, early_stop=False)
    before, after = (towards(model(images), y, target) for images in (x, result))
    assert float((after > before).float().mean()) > 0.9


@pytest.mark.slow
@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6), epsilon=st.floats(0, 1), norm=st.sampled_from(NORMS), name=st.sampled_from([*ATTACKS])
)
def test_any_radius_any_seed(seed: int, epsilon: float, norm: Norm, name: str) -> None:
    model, x, threat, attack = Small(), images(seed=seed), Threat(norm, epsilon), named(name)
    assume(norm in attack.norms)
    result = cw.attack(model, x, correct(model, x), attack, threat=threat, seed=seed)
    assert float(threat.distance(result, x).max()) <= epsilon + 1e-6
    assert 0 <= float(result.min()) <= float(result.max()) <= 1


@pytest.mark.parametrize("name", ["apgd-t", "external", "nattack", "pgd-t", "transfer"])
def test_training_runs_attacks_that_read_clean_logits_or_leave_the_ball(name: str) -> None:
    """Training calls `run` with a forward pass that counts nothing, and without clean logits."""
    model, x, threat = Small().eval(), images(), Threat("Linf", 0.1)
    inputs = AttackInputs(x, correct(model, x), torch.arange(len(x)), threat, CounterRNG(0))
    found = named(name).run(EXACT.forward(model), inputs)
    assert not torch.equal(found, x)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert float(threat.distance(found, x).max()) <= 0.1 + 1e-6


def test_a_loss_without_gradient_is_named() -> None:
    @configurable
    class Counting(Ascent):
        def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
            del inputs
            return (logits.argmax(1) == y).float()

    model, x = Small().eval(), images()
    check_refused(
        "loss of the attack does not depend on", cw.attack, model, x, correct(model, x), Counting(), threat="Linf:0.1"
    )
