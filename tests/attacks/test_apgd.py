"""Auto-PGD against closed forms, and the paper's arithmetic by hand."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks import ATTACKS, losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, Job, State
from classwise.attacks.gradient.apgd import APGD, APGDDLR, APGDT, AutoPGD
from classwise.attacks.gradient.ascent import PGD
from classwise.attacks.losses import margin
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import warn_once
from classwise.core.settings.config import configurable, describe
from classwise.threat.ball import Norm, Threat

from .blocks import joined
from .models import Linear, Small, images, labelled

pytestmark = pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")

NORMS: list[tuple[Norm, float, float]] = [("Linf", 0.05, 1e-6), ("L2", 0.1, 1e-4), ("L1", 0.15, 0.02)]
"""Norm, a radius that keeps inside the box, and how near to the optimum an attack must come (a share of the way)."""

FAMILY: list[Attack] = [APGD(), APGDDLR(), APGDT()]
DUAL = {"Linf": 1.0, "L2": 2.0, "L1": float("inf")}
"""The order of the norm that says how much a ball of radius 1 lowers a linear margin."""


def case_of(x: Tensor, y: Tensor, threat: Threat, reference: Tensor | None = None) -> AttackInputs:
    return AttackInputs(x, y, torch.arange(len(x)), threat, CounterRNG(0), reference=reference)


@pytest.mark.slow
@pytest.mark.parametrize("attack", FAMILY, ids=["ce", "dlr", "t"])
@pytest.mark.parametrize(
    ("norm", "epsilon", "tolerance"), [("Linf", 0.05, 1e-6), ("L2", 0.1, 1e-4), ("L1", 0.15, 0.02)]
)
def test_two_class_linear_model_reaches_the_exact_optimum(
    attack: Attack, norm: Norm, epsilon: float, tolerance: float
) -> None:
    """The margin can fall by eps ‖w_y - w_k‖ in the dual norm, where the box does not bind; compared in that unit."""
    model = Linear(2, side=8)
    with torch.no_grad():
        model.weight.div_(8)
    x = 0.4 + 0.2 * images(16, side=8)
    y = model(x).argmax(1)
    result = cw.attack(model, x, y, attack, threat=Threat(norm, epsilon), early_stop=False)
    normal = (model.weight[0] - model.weight[1]).detach().double()
    slope = torch.where(y[:, None] == 0, normal, -normal)
    fall = ((x - result).flatten(1).double() * slope).sum(1)
    assert torch.allclose(fall / (epsilon * normal.norm(p=DUAL[norm])), torch.ones(16).double(), rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "epsilon"), [("Linf", 0.05), ("L2", 0.1), ("L1", 0.15)])
@pytest.mark.parametrize("attack", [APGD(), APGDDLR(), APGDT(targets=1)], ids=["ce", "dlr", "t"])
def test_a_rows_own_target_is_reached(attack: Attack, norm: Norm, epsilon: float) -> None:
    """With two of five classes far above the others, the target's lead can rise by eps times the dual norm."""
    model, x = Linear(5), 0.4 + 0.2 * images(8, side=3)
    y, target = torch.full((8,), 1), torch.full((8,), 3)
    with torch.no_grad():
        model.bias.fill_(-100.0)
        model.bias[[1, 3]] = torch.tensor([3.0, 0.0])
    result = cw.attack(model, x, y, attack, threat=Threat(norm, epsilon), targets=target, early_stop=False)
    reach = epsilon * (model.weight[1] - model.weight[3]).detach().norm(p=DUAL[norm])
    fall = margin(model(x), y) - margin(model(result), y)
    assert torch.allclose(fall / reach, torch.ones(8), rtol=0, atol=0.02 if norm == "L1" else 1e-4)


@pytest.mark.parametrize(("norm", "epsilon"), [("Linf", 0.1), ("L2", 0.3), ("L1", 1.0)])
@pytest.mark.parametrize("restart", [0, 1])
def test_the_first_point_is_on_the_surface_of_the_ball(norm: Norm, epsilon: float, restart: int) -> None:
    """L1 begins at three times the radius."""
    x = torch.full((8, 2, 4, 4), 0.5)
    y = torch.zeros(8, dtype=torch.int64)
    case = AttackInputs(x, y, torch.arange(8), Threat(norm, epsilon), CounterRNG(0), restart=torch.full((8,), restart))
    distance = case.threat.distance(APGD().start(EXACT.forward(Small()), case)["x"], x)
    assert torch.allclose(distance, torch.full((8,), epsilon * (3 if norm == "L1" else 1)), atol=1e-5)


@configurable
class Scripted(AutoPGD):
    """Its loss at evaluation i is ``script[i]``; the gradient is the model's, which is linear."""

    script: tuple[float, ...] = ()

    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        values = torch.tensor(self.script)[state["iteration"]]
        return logits[:, 0] - logits[:, 0].detach() + values


def scripted(steps: int, norm: Norm, script: list[float]) -> list[State]:
    """The states before each evaluation, and the last one."""
    model, x = Linear(2), torch.full((1, 2, 3, 3), 0.5)
    case = case_of(x, torch.zeros(1, dtype=torch.int64), Threat(norm, 0.1))
    attack, forward = Scripted(steps=steps, script=tuple(script)), EXACT.forward(model)
    states = [attack.start(forward, case)]
    for _ in range(attack.length):
        states.append(attack.step(forward, case, states[-1]))
    return states


def halvings(states: list[State]) -> list[int]:
    """After how many moves' results the step was halved."""
    sizes = [float(state["step_size"]) for state in states]
    return [i - 1 for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1]]


CHECKPOINTS = [22, 41, 57, 70, 80, 87, 93, 99]
"""Of 100 moves, by the paper: p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06), from 0 and 0.22, times the moves."""


def test_a_loss_that_falls_halves_the_step_at_every_checkpoint() -> None:
    states = scripted(100, "Linf", [-float(i) for i in range(101)])
    assert halvings(states) == CHECKPOINTS
    assert float(states[0]["step_size"]) == pytest.approx(0.2)
    assert float(states[-1]["step_size"]) == pytest.approx(0.2 / 2**8)
    assert torch.equal(states[-1]["x"], states[0]["x"])  # the best point was the first


def test_a_loss_that_rises_never_halves_the_step() -> None:
    assert halvings(scripted(100, "Linf", [float(i) for i in range(101)])) == []


@pytest.mark.parametrize(("rises", "halved"), [(16, True), (17, False)])
def test_three_quarters_of_the_moves_must_raise_the_loss(rises: int, halved: bool) -> None:
    """Of the 22 moves before the first checkpoint, 0.75 * 22 = 16.5."""
    script = [0.0]
    for move in range(1, 101):
        script.append(script[-1] + (-1.0 if 22 - rises >= move else 1.0))
    assert (22 in halvings(scripted(100, "Linf", script))) is halved


def test_a_best_loss_that_stalls_halves_the_step_but_not_twice_in_a_row() -> None:
    """Rises of more than three quarters under an old best loss: only the second condition can act."""
    script = [100.0] + [float(i % 10) for i in range(100)]  # nine rises, then one fall, never above 100
    assert halvings(scripted(100, "Linf", script)) == [41, 70, 87, 99]


def test_after_a_halving_the_image_is_back_at_its_best_point() -> None:
    """The best is at evaluation 5; after the check of evaluation 22, a step of eps from there and momentum."""
    states = scripted(100, "L2", [5.0 - abs(i - 5) for i in range(101)])
    assert torch.equal(states[23]["previous"], states[5]["x"])
    assert torch.equal(states[-1]["x"], states[5]["x"])


def test_the_second_move_has_momentum() -> None:
    """By hand: x2 = P(x1 + 0.75 (P(x1 + 2 eps s) - x1) + 0.25 (x1 - x0)); in the first move alpha is 1."""
    states = scripted(100, "Linf", [float(i) for i in range(101)])
    x0, x1, x2 = (states[i]["x"] for i in range(3))
    sign = Linear(2).weight[0].detach().sign().view(1, 2, 3, 3)
    assert torch.allclose(x1, 0.5 + 0.1 * sign)  # a step of 2 eps reaches the corner from anywhere
    assert torch.allclose(x2, (x1 + 0.25 * (x1 - x0)).clamp(0.4, 0.6))


def test_l1_radii_are_three_two_and_one_over_the_steps() -> None:
    """30 evaluations at 3 eps, 30 at 2 eps, the rest inside the ball; each radius is used to the full."""
    model, x = Linear(2, side=8), torch.full((4, 2, 8, 8), 0.5)
    case = case_of(x, model(x).argmax(1), Threat("L1", torch.tensor([0.1, 0.2, 0.4, 0.8])))
    attack, forward = APGD(), EXACT.forward(model)
    state, multiples, counts = attack.start(forward, case), [], []
    for _ in range(attack.length):
        multiples.append(case.threat.distance(state["x"], x) / case.threat.radius(x).flatten())
        state = attack.step(forward, case, state)
        counts.append(state["margin"].isfinite())
    expected = torch.tensor([3.0] * 30 + [2.0] * 30 + [1.0] * 41)[:, None].expand(101, 4)
    assert torch.allclose(torch.stack(multiples), expected, atol=1e-4)
    assert torch.equal(torch.stack(counts), expected == 1)
    assert bool(state["done"].all())


def test_the_l1_step_takes_the_signs_of_a_share_of_the_largest_gradients() -> None:
    from classwise.attacks.gradient.apgd import _largest_signs

    gradient = torch.tensor([[0.5, -4.0, 3.0, -2.0, 1.0, 0.0], [0.5, -4.0, 3.0, -2.0, 1.0, 0.0]])
    signs = _largest_signs(gradient, torch.tensor([0.5, 0.01]))
    assert signs.tolist() == [[0, -1, 1, -1, 0, 0], [0, -1, 0, 0, 0, 0]]


def test_the_l1_perturbation_gets_sparse() -> None:
    """On a linear model the optimum spends all on one entry; a start in 512 dimensions has many."""
    model, x = Linear(2, side=16), 0.4 + 0.2 * images(4, side=16)
    with torch.no_grad():
        model.weight.div_(16)
    result = cw.attack(model, x, model(x).argmax(1), APGD(), threat="L1:0.2", early_stop=False)
    assert int(((result - x).abs() > 1e-4).flatten(1).sum(1).max()) == 1


@pytest.mark.parametrize(
    "attack", [APGD(steps=20), APGDDLR(steps=4), APGDT(steps=7), APGD(steps=1), APGD(steps=2)], ids=str
)
def test_l1_keeps_the_contract(attack: Attack) -> None:
    model, x = Small(4), images(32)
    y, index = model.eval()(x).argmax(1), torch.arange(50, 82)
    radii = torch.linspace(0, 1, 32)
    threat = Threat("L1", radii)
    result = cw.attack(model, x, y, attack, threat=threat, index=index)
    assert bool((threat.distance(result, x) <= radii + 1e-6).all())
    assert 0 <= float(result.min()) <= float(result.max()) <= 1
    assert torch.equal(result[0], x[0])
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    permuted = cw.attack(
        model, x[order], y[order], attack, threat=threat.with_epsilon(radii[order]), index=index[order]
    )
    assert torch.equal(permuted, result[order])


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
@pytest.mark.parametrize(
    "attack", [APGD(steps=10, restarts=2), APGDT(steps=10, targets=2)], ids=["restarts", "targets"]
)
def test_refilled_slots_change_no_bit(attack: Attack, norm: Norm) -> None:
    """48 images through 32 slots, in two orders: each starts, checks and turns at a time of its own."""
    model, x, y = labelled(Small(6).eval(), images(48))
    threat = Threat(norm, {"Linf": 0.03, "L2": 0.1, "L1": 0.5}[norm])
    first, second = (
        joined(Engine(model, batch_size=32).attack(attack, threat, [Job(order, x[order], y[order])]))
        for order in (torch.arange(48), torch.randperm(48, generator=torch.Generator().manual_seed(2)))
    )
    for name in ("x", "iterations", "forwards"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_passes_and_iterations_of_a_robust_image() -> None:
    """101 points forward and back for each start, and its best point once more in float32."""
    model, x, y = labelled(Linear(3), 0.4 + 0.2 * images(4, side=3))
    done = joined(
        Engine(model, batch_size=32).attack(APGD(restarts=2), Threat("Linf", 1e-4), [Job(torch.arange(4), x, y)])
    )
    assert not bool(done.success.any())
    assert done.backwards.tolist() == [202] * 4
    assert bool((done.iterations <= 100).all())
    sampled = cw.attack(model, x, y, APGD(steps=5, eot_iter=4), threat="Linf:1e-4", early_stop=False)
    assert torch.allclose(sampled, cw.attack(model, x, y, APGD(steps=5), threat="Linf:1e-4", early_stop=False))


@pytest.mark.parametrize(
    ("classes", "targets", "restarts", "starts"),
    [(2, 9, 1, 1), (3, 9, 2, 4), (10, 9, 1, 9), (100, 9, 1, 9), (10, 3, 1, 3)],
)
def test_targets_follow_the_number_of_classes(classes: int, targets: int, restarts: int, starts: int) -> None:
    model, x, y = labelled(Linear(classes), images(4, side=3))
    attack = APGDT(steps=1, targets=targets, restarts=restarts)
    done = joined(Engine(model, batch_size=32).attack(attack, Threat("Linf", 0.0), [Job(torch.arange(4), x, y)]))
    assert done.backwards.tolist() == [2 * starts] * 4


def test_the_targets_are_the_wrong_classes_by_clean_logit() -> None:
    reference = torch.tensor([[5.0, 1.0, 4.0, 2.0], [5.0, 1.0, 4.0, 2.0]])
    x, y = images(2), torch.tensor([0, 2])
    aims = []
    for restart in range(6):
        case = AttackInputs(
            x, y, y, Threat("Linf", 0.1), CounterRNG(0), reference=reference, restart=torch.full((2,), restart)
        )
        aims.append(APGDT(restarts=2).start(EXACT.forward(Small()), case)["target"].tolist())
    assert aims == [[2, 0], [2, 0], [3, 3], [3, 3], [1, 1], [1, 1]]


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_the_linearised_order_begins_with_the_nearest_boundary_of_a_linear_model(norm: Norm) -> None:
    model, x = Linear(12), images(70, side=3)
    model.weight.data *= torch.linspace(0.2, 3, 12)[:, None]
    with torch.no_grad():
        logits = model(x)
    y = logits.argmax(1)
    ranked = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)[:, :5]
    margins = logits.gather(1, y[:, None]) - logits.gather(1, ranked)
    distances = margins / (model.weight[y][:, None] - model.weight[ranked]).norm(p=DUAL[norm], dim=2)
    nearest = ranked.gather(1, distances.argsort(1))
    attack = APGDT(steps=1, targets=5, restarts=2, order="linearised")
    inputs = case_of(x, y, Threat(norm, 0.1), logits)
    assert torch.equal(attack.target_order(model, inputs), nearest)
    assert int((nearest[:, 0] != ranked[:, 0]).sum()) > 10
    starts = [attack.start(model, dataclasses.replace(inputs, restart=torch.full((70,), i)))["target"] for i in (0, 9)]
    assert torch.equal(torch.stack(starts, 1), nearest[:, [0, 4]])


def test_the_linearised_order_is_computed_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = labelled(Linear(12), images(40, side=3))
    aims: list[Tensor] = []
    start = AutoPGD.start

    def noted(attack: AutoPGD, forward: Forward, inputs: AttackInputs) -> State:
        assert inputs.target_order is not None
        aims.append(inputs.target_order[inputs.index == 37])
        return start(attack, forward, inputs)

    monkeypatch.setattr(AutoPGD, "start", noted)
    attack = APGDT(steps=1, targets=3, restarts=2, order="linearised")
    blocks = list(Engine(model, batch_size=32).attack(attack, Threat("Linf", 0.0), [Job(torch.arange(40), x, y)]))
    assert {int(number) for block in blocks for number in block.backwards} == {3 + 2 * 6}
    one = case_of(x, y, Threat("Linf", 0.1), model(x).detach())
    assert {tuple(row) for aim in aims for row in aim.tolist()} == {tuple(attack.target_order(model, one)[37].tolist())}


def test_the_order_of_targets_is_described_only_where_it_is_not_the_default() -> None:
    assert "order" not in describe(ATTACKS, APGDT())
    assert describe(ATTACKS, APGDT(order="linearised"))["order"] == "linearised"


@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
def test_ratios_by_hand() -> None:
    """z sorted is 7, 4, 3, 1: the untargeted ratio divides by 7 - 3, the targeted one by 7 - (3 + 1) / 2."""
    logits, y = torch.tensor([[7.0, 1.0, 4.0, 3.0, -9.0]]).repeat(2, 1), torch.tensor([0, 2])
    assert losses.dlr(logits, y).tolist() == pytest.approx([-(7 - 4) / 4, -(4 - 7) / 4])
    aimed = losses.targeted_dlr(logits, y, torch.tensor([3, 4]))
    assert aimed.tolist() == pytest.approx([-(7 - 3) / 5, -(4 + 9) / 5])
    three = logits[:, [0, 2, 3]]
    assert losses.dlr(three, torch.tensor([0, 1])).tolist() == pytest.approx([-3 / 4, 3 / 4])
    aimed = losses.targeted_dlr(three, torch.tensor([0, 1]), torch.tensor([2, 2]))
    assert aimed.tolist() == pytest.approx([-(7 - 3), -(4 - 3)])
    two = logits[:, :2]
    assert losses.dlr(two, torch.tensor([0, 1])).tolist() == [-6, 6]
    assert losses.targeted_dlr(two, torch.tensor([0, 1]), torch.tensor([1, 0])).tolist() == [-6, 6]


@pytest.mark.parametrize(
    ("attack", "classes", "warning"),
    [
        (APGDDLR(steps=3), 2, "margin"),
        (APGDDLR(steps=3), 3, ""),
        (PGD(steps=3, objective="dlr"), 2, "margin"),
        (APGDT(steps=3), 2, "margin"),
        (APGDT(steps=3), 3, "margin"),
        (APGDT(steps=3), 4, ""),
    ],
)
def test_a_fallback_warns_once(attack: Attack, classes: int, warning: str) -> None:
    warn_once.cache_clear()
    model, x = Linear(classes), images(4, side=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            cw.attack(model, x, model(x).argmax(1), attack, threat="Linf:0.01")
    assert len(caught) == (1 if warning else 0)
    assert all(warning in str(record.message) for record in caught)
