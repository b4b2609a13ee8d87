"""The schedules of PMA and MD, step by step, and the targets of PGD-T, on linear models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, Job
from classwise.attacks.gradient.ascent import PGD, PGDT
from classwise.attacks.gradient.margins import MD, PMA
from classwise.attacks.gradient.momentum import MIFGSM
from classwise.attacks.losses import margin
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Norm, Threat

from .models import Linear, images, labelled


def moves(attack: Attack, inputs: AttackInputs, model: Linear) -> Tensor:
    """What each step adds to the images, (steps, N, D)."""
    forward = EXACT.forward(model)
    state = attack.start(forward, inputs)
    found = [state["x"]]
    for _ in range(attack.length):
        state = attack.step(forward, inputs, state)
        found.append(state["x"])
    return torch.stack(found).flatten(2).diff(dim=0)


def case_of(model: Linear, restart: int = 0) -> AttackInputs:
    """A ball so wide that no step of a thousandth reaches its edge, nor that of the box."""
    x = 0.45 + 0.1 * images(8, side=3)
    with torch.no_grad():
        logits = model(x)
    rows = torch.arange(8)
    number = torch.full((8,), restart)
    return AttackInputs(x, logits.argmax(1), rows, Threat("Linf", 0.4), CounterRNG(0), reference=logits, restart=number)


def test_pma_shrinks_its_steps_along_a_quarter_of_a_cosine() -> None:
    model = Linear(3)
    steps = moves(PMA(step_size=0.001, random_init="none"), case_of(model), model).abs().amax((1, 2))
    expected = [0.001 * math.cos(math.pi * i / 200) for i in range(100)]
    assert steps.tolist() == pytest.approx(expected, abs=2e-6)


def test_pma_starts_with_2_255_at_8_255() -> None:
    model, case = Linear(3), case_of(Linear(3))
    small = AttackInputs(case.x, case.y, case.index, Threat("Linf", 8 / 255), CounterRNG(0))
    first = moves(PMA(random_init="none"), small, model)[0]
    assert float(first.abs().max()) == pytest.approx(2 / 255, abs=1e-7)


@pytest.mark.parametrize("run", [0, 1])
def test_md_takes_the_margin_apart_and_then_whole(run: int) -> None:
    """Step 0 along z_y, steps 1 to 24 along -z_y or z_max, then z_max - z_y; sizes 1 + cos, begun anew at 26."""
    model = Linear(2)
    case = case_of(model, run)
    taken = moves(MD(step_size=0.0005, random_init="none"), case, model)
    own, other = model.weight[case.y].detach(), model.weight[1 - case.y].detach()
    for i in range(50):
        way = own if i == 0 else (other if run else -own) if i < 25 else other - own
        since = i - 1 if i <= 25 else i - 26
        size = 0.0005 * (1 + math.cos(math.pi * since / 25))
        assert torch.allclose(taken[i], size * way.sign(), atol=1e-6), i


@pytest.mark.parametrize("attack", [PMA(), MD(), PGD(steps=40, objective="dlr"), PGDT(steps=40), MIFGSM()], ids=str)
@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.filterwarnings("ignore:the difference of logits ratio needs")
def test_two_class_linear_model_reaches_the_exact_optimum(attack: Attack, norm: Norm) -> None:
    model, x, y = labelled(Linear(2), 0.4 + 0.2 * images(16, side=3))
    result = cw.attack(model, x, y, attack, threat=Threat(norm, 0.05), early_stop=False)
    normal = (model.weight[0] - model.weight[1]).detach()
    dual = normal.abs().sum() if norm == "Linf" else normal.norm()
    assert torch.allclose(margin(model(result), y), margin(model(x), y) - 0.05 * dual, atol=2e-5)


def test_pgd_t_aims_at_the_nearest_classes_in_turn() -> None:
    model = Linear(6)
    for restart in range(12):
        case = case_of(model, restart)
        assert case.reference is not None
        order = case.reference.argsort(1, descending=True)  # the label is the first
        state = PGDT(targets=5).start(EXACT.forward(model), case)
        assert torch.equal(state["target"], order[:, 1 + restart % 5])


def test_pgd_t_breaks_exactly_what_some_class_can_reach() -> None:
    """Within the ball, z_t passes z_y if and only if z_y - z_t < eps ‖w_y - w_t‖₁."""
    model, x = Linear(10, seed=11), 0.3 + 0.4 * images(200, side=3)
    with torch.no_grad():
        logits = model(x)
        y = logits.argmax(1)
        reach = 0.06 * (model.weight[y][:, None] - model.weight[None]).abs().sum(2)
        slack = (reach - (logits.gather(1, y[:, None]) - logits)).scatter(1, y[:, None], -torch.inf)
    success = model(cw.attack(model, x, y, PGDT(steps=20), threat="Linf:0.06")).argmax(1) != y
    nearest = slack.gather(1, logits.scatter(1, y[:, None], -torch.inf).argmax(1, keepdim=True)).squeeze(1)
    assert int(((nearest < 0) & (slack.amax(1) > 1e-3)).sum()) > 5  # where the best clean class alone would not do
    assert bool(success[slack.amax(1) > 1e-4].all())
    assert not bool(success[slack.amax(1) < -1e-4].any())


def test_pgd_t_has_no_more_starts_than_there_are_classes() -> None:
    """Passes: one for the reference, and for each of the two other classes the steps and a verdict."""
    model, x = Linear(3), images(32, side=3)
    job = Job(torch.arange(32), x, model(x).argmax(1))
    (done,) = Engine(model, batch_size=32, early_stop=False).attack(PGDT(steps=4), Threat("Linf", 1e-4), [job])
    robust = ~done.success
    assert int(robust.sum()) > 20
    assert set(done.forwards[robust].tolist()) == {1 + 2 * (4 + 1)}
    assert set(done.backwards[robust].tolist()) == {2 * 4}
