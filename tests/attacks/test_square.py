"""Square against its own definition, one image at a time, and against what is known of linear models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import classwise as cw
from classwise.attacks.blackbox.square import SCHEDULED, Square, _bump, _bump_pair, _moved
from classwise.attacks.engine import AttackInputs, Engine, Job, State
from classwise.attacks.losses import margin
from classwise.core.compute.precision import EXACT, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat

from .models import Linear, Small, images, labelled

SIDE = 32
AT = (1, 10, 11, 12, 50, 51, 52, 201, 202, 501, 502, 1001, 1002, 2001, 2002, 4001, 4002, 5000)
"""Iterations: proposal number k is made at iteration k + 1, so that 11 is the last one before the first halving."""
SIDES = (29, 29, 29, 20, 20, 20, 14, 14, 10, 10, 7, 7, 5, 5, 4, 4, 3, 3)
"""round(sqrt(0.8 / 2^k * 32 * 32)) for k = 0 ... 7, by hand: 28.6, 20.2, 14.3, 10.1, 7.2, 5.06, 3.58, 2.53."""


def mean_of_pixels(x: Tensor) -> Tensor:
    """Two logits, the second constant: the margin of class 0 is the sum of the pixels."""
    total = x.flatten(1).sum(1)
    return torch.stack([total, torch.zeros_like(total)], 1)


def case_of(x: Tensor, threat: str, seed: int = 0, **more: Any) -> AttackInputs:
    label = torch.zeros(len(x), dtype=torch.int64)
    return AttackInputs(x, label, torch.arange(len(x)), Threat.parse(threat), CounterRNG(seed, "attack"), **more)


def proposals(inputs: AttackInputs) -> tuple[Tensor, State]:
    """What every row proposes at its own iteration, and the state before."""
    attack, forward = Square(), mean_of_pixels
    state = attack.start(forward, inputs)
    state = attack.step(forward, inputs, state) | {"iteration": torch.tensor(AT)}
    return attack.step(forward, inputs, state)["seen"], state


def box(changed: Tensor) -> tuple[int, int, int, int]:
    """Top, left, height and width of what is changed in a picture (H, W)."""
    rows, columns = changed.any(1).nonzero().squeeze(1), changed.any(0).nonzero().squeeze(1)
    top, left = int(rows[0]), int(columns[0])
    return top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1


def test_linf_starts_with_stripes() -> None:
    x = 0.3 + 0.4 * images(8, channels=3, side=5)
    case = case_of(x, "Linf:0.1")
    delta = Square().start(mean_of_pixels, case)["x"] - x
    assert torch.allclose(delta.abs(), torch.full_like(delta, 0.1))
    assert torch.allclose(delta, delta[:, :, :1].expand_as(delta), atol=1e-6)  # one sign down a column
    signs = delta[:, :, 0].sign()
    assert len({tuple(row.tolist()) for row in signs.flatten(1)}) == 8  # and each image its own
    assert 0.3 < float((signs > 0).float().mean()) < 0.7


def test_linf_paints_one_square_of_the_scheduled_side_in_one_colour_per_channel() -> None:
    """Every row at another iteration, all in one step."""
    x = 0.3 + 0.4 * images(len(AT), channels=3, side=SIDE)
    seen, state = proposals(case_of(x, "Linf:0.1"))
    for row, side in enumerate(SIDES):
        changed = (seen[row] - state["x"][row]).abs().amax(0) > 1e-6
        top, left, height, width = box(changed)
        # A column whose stripe has the new colour in every channel hides the edge; the square is never larger.
        assert height == side
        assert side - 3 <= width <= side
        window = (seen[row] - x[row])[:, top : top + height, left : left + width]
        colour = window[:, :1, :1]
        assert torch.allclose(window, colour.expand_as(window), atol=1e-6)
        assert torch.allclose(colour.abs(), torch.full_like(colour, 0.1))
        outside = torch.ones(SIDE, SIDE, dtype=torch.bool)
        outside[top : top + height, left : left + width] = False
        assert torch.equal(seen[row][:, outside], state["x"][row][:, outside])


def test_a_square_lies_anywhere_in_the_image_to_its_last_row_and_column() -> None:
    x = torch.full((4000, 1, 6, 6), 0.5)
    case = case_of(x, "Linf:0.1")
    attack = Square()
    state = attack.start(mean_of_pixels, case)
    state |= {"x": x, "lowest": torch.zeros(4000), "iteration": torch.full((4000,), 150)}  # side round(sqrt(7.2)) = 3
    painted = attack.step(mean_of_pixels, case, state)["seen"] != x
    corners = (painted[:, 0, :4, :4] & painted[:, 0, 2:, 2:]).flatten(1)
    assert bool((corners.sum(1) == 1).all())  # the top left pixel of the 3 x 3 square, one of 16
    share = corners.float().mean(0)
    assert float((share - 1 / 16).abs().max()) < 5 * math.sqrt(1 / 16 * 15 / 16 / 4000)


def test_a_short_search_goes_through_the_whole_schedule_if_rescaled() -> None:
    """Of 100 proposals number k has the side that number 100 k has of 10,000."""
    x = torch.full((4, 1, SIDE, SIDE), 0.5)
    case = case_of(x, "Linf:0.1")
    attack = Square(steps=100, rescale_schedule=True)
    state = attack.start(mean_of_pixels, case)
    state |= {"x": x, "lowest": torch.zeros(4), "iteration": 1 + torch.tensor([0, 1, 10, 81])}
    seen = attack.step(mean_of_pixels, case, state)["seen"]
    assert [box(painted[0])[2] for painted in seen != x] == [29, 14, 7, 1]  # halved 0, 2, 4 and 9 times
    same = Square(steps=SCHEDULED, rescale_schedule=True)
    assert torch.equal(
        same.step(mean_of_pixels, case, state)["seen"], Square().step(mean_of_pixels, case, state)["seen"]
    )


@pytest.mark.parametrize("threat", ["Linf:0.1", "L2:0.5"])
def test_what_does_not_lower_the_margin_is_not_kept(threat: str) -> None:
    model, x, y = labelled(Small().eval(), images(32))
    forward = EXACT.forward(model)
    case = AttackInputs(x, y, torch.arange(32), Threat.parse(threat), CounterRNG(0))
    attack = Square(steps=40)
    state = attack.start(forward, case)
    for _ in range(attack.length):
        before = state
        state = attack.step(forward, case, before)
        value = margin(model(state["seen"]), y)
        assert torch.allclose(value, state["margin"])
        lower = value < before["lowest"]
        assert torch.equal(state["lowest"], torch.minimum(value, before["lowest"]))
        assert torch.equal(state["x"][lower], state["seen"][lower])
        assert torch.equal(state["x"][~lower], before["x"][~lower])
    assert bool(state["done"].all())


def balanced(count: int) -> tuple[Linear, Tensor, Tensor]:
    """A linear model with two classes of about equal frequency."""
    model, x = Linear(2), 0.3 + 0.4 * images(count, side=3)
    with torch.no_grad():
        model.bias.sub_(model(x).mean(0))
        return model, x, model(x).argmax(1)


@pytest.mark.parametrize("precision", [EXACT, Precision(dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_queries_are_counted_and_bounded(precision: Precision) -> None:
    assert Square().length == 5001
    model, x, y = balanced(64)
    engine = Engine(model, precision=precision, batch_size=32)
    jobs = [Job(torch.arange(64), x, y)]
    finished = list(engine.attack(Square(steps=30, restarts=2), Threat("Linf", 0.03), jobs))
    queries = torch.cat([block.records["queries"] for block in finished])
    success = torch.cat([block.success for block in finished])
    forwards = torch.cat([block.forwards for block in finished])
    assert 5 < int(success.sum()) < 59
    assert set(queries[~success].tolist()) == {62}  # two starts, each with its stripes
    assert 1 <= int(queries[success].min()) < int(queries[success].max()) <= 62
    assert bool((forwards > queries).all())  # verification comes on top
    assert not any(int(block.backwards.sum()) for block in finished)


def test_linf_finds_the_optimum_of_a_linear_model() -> None:
    """Squares of one pixel reach it exactly: margin - eps ‖w_y - w_k‖₁."""
    model, x, y = labelled(Linear(2), 0.4 + 0.2 * images(16, side=3))
    with torch.no_grad():
        model.bias[1] -= 100 * (2 * y[0] - 1)  # no attack can succeed, so the search runs to its end
        y = model(x).argmax(1)
    result = cw.attack(model, x, y, Square(steps=500), threat="Linf:0.05")
    normal = (model.weight[0] - model.weight[1]).detach()
    assert torch.allclose(margin(model(result), y), margin(model(x), y) - 0.05 * normal.abs().sum(), atol=2e-5)


def test_l2_comes_near_the_optimum_of_a_linear_model_and_never_past_it() -> None:
    model, x = Linear(2, side=8, channels=1), 0.4 + 0.2 * images(32, channels=1, side=8)
    smooth = torch.linspace(-1, 1, 8)[None, :] * torch.linspace(0.5, 1, 8)[:, None]
    with torch.no_grad():
        model.weight[0] = smooth.flatten()
        model.weight[1] = 0
        model.bias[0] = 100
    y = torch.zeros(32, dtype=torch.int64)
    result = cw.attack(model, x, y, Square(steps=300), threat="L2:0.5")
    with torch.no_grad():
        gain = (margin(model(x), y) - margin(model(result), y)) / (0.5 * smooth.norm())
    assert float(gain.max()) <= 1 + 1e-4
    assert float(gain.mean()) > 0.6


def test_the_bump_by_hand() -> None:
    """On 3 x 3 the centre has 1/1 + 1/4 and the ring 1/4."""
    expected = torch.full((3, 3), 0.25)
    expected[1, 1] = 1.25
    assert torch.allclose(_bump(3, 3), (expected / expected.norm()).double())
    upright, turned = _bump_pair(6, torch.device("cpu"))
    assert torch.allclose(upright[:3], -upright[3:])  # the square is a bump over its negative
    assert torch.equal(turned, upright.T)
    assert float(upright.norm()) == pytest.approx(1)


def test_l2_starts_with_bumps_of_the_radius_length() -> None:
    x = 0.5 + 0.01 * images(8, channels=3, side=11)
    delta = Square().start(mean_of_pixels, case_of(x, "L2:0.5"))["x"] - x
    assert torch.allclose(delta.flatten(1).norm(dim=1), torch.full((8,), 0.5), atol=1e-5)
    # 11 = 5 tiles of 2 and a rest. Each tile is a bump on one pixel of two, 1/1 + 1/4 beside 1/4, over its negative.
    tiles = delta[:, :, :10, :10].unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
    size = 0.5 / math.sqrt(3 * 25 * (2 * 1 + 2 * 25))
    assert torch.allclose(tiles.abs().sort().values, size * torch.tensor([1.0, 1.0, 5.0, 5.0]), atol=1e-6)
    assert torch.allclose(tiles.sum(-1), torch.zeros(()), atol=1e-6)
    assert float(delta[:, :, 10].abs().max()) < 1e-6
    assert float(delta[:, :, :, 10].abs().max()) < 1e-6


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.1, 3), to=st.integers(0, 3), away=st.integers(0, 3))
def test_l2_moves_mass_between_squares_as_the_paper_says(seed: int, epsilon: float, to: int, away: int) -> None:
    """Algorithm 3 of the paper and its normalisation, image by image and channel by channel in float64."""
    side, count, channels, size = 3, 3, 2, 6
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, channels, size, size, generator=generator)
    best = Threat("L2", epsilon).project(x + torch.randn(x.shape, generator=generator), x)
    masks = torch.zeros(2, size, size, dtype=torch.bool)
    masks[0, to : to + side, 1 : 1 + side] = True
    masks[1, away : away + side, 2 : 2 + side] = True
    bump = torch.zeros(count, channels, size, size)
    bump[:, :, to : to + side, 1 : 1 + side] = _bump_pair(side, torch.device("cpu"))[0]
    ours = _moved(case_of(x, f"L2:{epsilon}"), best, bump, masks[0], masks[1])
    for row in range(count):
        delta = (best[row] - x[row]).double()
        left = max(epsilon**2 - float(delta.square().sum()), 0.0)
        new = delta.clone()
        new[:, masks[1]] = 0
        for channel in range(channels):
            own = delta[channel][masks[0]]
            direction = bump[row, channel][masks[0]].double() + own / (own.norm() + 1e-12)
            held = float(delta[channel][masks[0] | masks[1]].square().sum())
            new[channel][masks[0]] = direction / direction.norm() * math.sqrt(left / channels + held)
        expected = (x[row] + epsilon * new / new.norm()).clamp(0, 1)
        assert torch.allclose(ours[row].double(), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 7), (3, 9, 4), (1, 28, 28)])
@pytest.mark.parametrize("threat", ["Linf:0.1", "L2:0.5"])
def test_any_size_of_image(shape: tuple[int, int, int], threat: str) -> None:
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    case = case_of(x, threat)
    attack = Square(steps=3)
    state = attack.start(mean_of_pixels, case)
    for iteration in (0, 1, 60, 4500):
        state = attack.step(mean_of_pixels, case, state | {"iteration": torch.full((4,), iteration)})
        assert bool(state["seen"].isfinite().all())
        assert bool((case.threat.distance(state["seen"], x) <= float(case.threat.epsilon) + 1e-6).all())


@pytest.mark.parametrize("threat", ["Linf:0.05", "L2:0.2"])
def test_rows_at_different_proposals_do_not_feel_each_other(threat: str) -> None:
    """A queue of 96 images through 32 slots gives the bits of three full batches."""
    model, x, y = labelled(Small(5).eval(), images(96))
    attack, index = Square(steps=25), torch.arange(96)
    queued = torch.zeros_like(x)
    for block in Engine(model, batch_size=32).attack(attack, Threat.parse(threat), [Job(index, x, y)]):
        queued[block.row] = block.x
    parts = [cw.attack(model, x[part], y[part], attack, threat=threat, index=part) for part in index.view(3, 32)]
    assert torch.equal(queued, torch.cat(parts))
