"""The engine: the queue changes nothing but the time it takes, and only float32 decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.nattack import NAttack
from classwise.attacks.blackbox.square import Square
from classwise.attacks.engine import AttackInputs, Engine, Finished, Job, Passes, State
from classwise.attacks.gradient.ascent import FGSM, PGD, PGDT, TemperaturePGD
from classwise.attacks.gradient.momentum import MIFGSM
from classwise.attacks.losses import margin
from classwise.attacks.minimal.cw import CarliniWagnerLinf
from classwise.attacks.minimal.fab import FAB
from classwise.core.compute.precision import EXACT, Forward, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import configurable, make
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .blocks import COLUMNS, joined
from .models import Linear, Small, images, labelled

THREAT = Threat("Linf", 0.05)


@pytest.fixture(scope="module")
def case() -> tuple[Small, Tensor, Tensor]:
    model, x, y = labelled(Small(10).eval(), images(150))
    y[:12] = (y[:12] + 1) % 10  # some are wrong before any attack
    return model, x, y


def evaluated(
    case: tuple[nn.Module, Tensor, Tensor],
    attack: Attack,
    *,
    order: Tensor | None = None,
    batch_size: int = 32,
    early_stop: bool = True,
    poll: int = 1,
    precision: Precision | None = None,
    pieces: int = 50,
) -> Finished:
    """All rows of the run, put back in the order of their index."""
    model, x, y = case
    order = torch.arange(len(x)) if order is None else order
    engine = Engine(model, batch_size=batch_size, early_stop=early_stop, poll=poll, precision=precision or Precision())
    jobs = [Job(rows, x[rows], y[rows]) for rows in torch.split(order, pieces)]
    found = joined(engine.attack(attack, THREAT, jobs))
    assert torch.equal(found.index, torch.arange(len(x)))  # every image once
    return found


def assert_same(first: Finished, second: Finished) -> None:
    for name in COLUMNS[1:]:  # rows are numbered by the order of arrival
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    for name, value in first.records.items():
        assert torch.equal(value, second.records[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize(
    "attack", [PGD(steps=6), PGD(steps=3, objective="margin", restarts=3), FGSM()], ids=["pgd", "restarts", "fgsm"]
)
def test_order_blocks_and_poll_change_no_bit(
    case: tuple[Small, Tensor, Tensor], attack: Attack, early_stop: bool
) -> None:
    plain = evaluated(case, attack, early_stop=early_stop)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    assert_same(plain, evaluated(case, attack, early_stop=early_stop, order=order))
    assert_same(plain, evaluated(case, attack, early_stop=early_stop, pieces=7))
    for poll in (2, 5):
        assert_same(plain, evaluated(case, attack, early_stop=early_stop, poll=poll))


def test_an_images_row_does_not_depend_on_which_others_are_evaluated(case: tuple[Small, Tensor, Tensor]) -> None:
    model, x, y = case
    whole = evaluated(case, PGD(steps=6))
    engine = Engine(model, batch_size=32)
    some = torch.tensor([3, 77, 149])
    (single,) = list(engine.attack(PGD(steps=6), THREAT, [Job(some, x[some], y[some])]))
    back = single.index.argsort()
    assert torch.equal(single.x[back], whole.x[some])
    assert torch.equal(single.logits[back], whole.logits[some])


def test_what_is_reported_is_what_float32_says_of_the_kept_image(case: tuple[Small, Tensor, Tensor]) -> None:
    model, _, y = case
    for early_stop in (True, False):
        result = evaluated(case, PGD(steps=6), early_stop=early_stop)
        with torch.no_grad():
            logits = model.eval()(result.x)
        assert torch.allclose(result.logits, logits, atol=1e-5)
        assert torch.equal(result.success, logits.argmax(1) != y)
        assert float(THREAT.distance(result.x, result.x0).max()) <= 0.05 + 1e-6


def test_images_misclassified_when_clean_count_as_successes_with_no_step(case: tuple[Small, Tensor, Tensor]) -> None:
    result = evaluated(case, PGD(steps=6, random_init="none"))
    assert bool(result.success[:12].all())
    assert result.iterations[:12].tolist() == [0] * 12
    assert torch.equal(result.x[:12], result.x0[:12])


def test_stopping_at_the_first_hit_breaks_all_that_the_last_iterate_does(case: tuple[Small, Tensor, Tensor]) -> None:
    any_iterate, last = evaluated(case, PGD(steps=6)), evaluated(case, PGD(steps=6), early_stop=False)
    assert not bool((last.success & ~any_iterate.success).any())
    assert int(any_iterate.forwards.sum()) < int(last.forwards.sum())
    assert bool((last.iterations == 6).all())
    assert 0 < int(last.success.sum()) < 150


def test_unbroken_images_keep_the_iterate_of_lowest_margin() -> None:
    """With an absurd step the loss goes up and down, so the last iterate is not the best."""
    model, x, y = labelled(Small(3).eval(), images(64))
    attack = PGD(steps=7, step_size=0.09, random_init="none")
    kept = evaluated((model, x, y), attack)
    last = evaluated((model, x, y), attack, early_stop=False)
    is_robust = ~kept.success
    assert int(is_robust.sum()) > 0
    kept_margin, last_margin = margin(kept.logits, y)[is_robust], margin(last.logits, y)[is_robust]
    assert bool((kept_margin <= last_margin + 1e-6).all())
    assert bool((kept_margin < last_margin - 1e-4).any())
    assert bool((kept.iterations[is_robust] < 7).any())


def test_of_unsuccessful_starts_the_one_of_lowest_margin_is_kept() -> None:
    """Each start is also run alone, without the engine."""
    model, x, y = labelled(Small(3).eval(), images(64))
    attack = PGD(steps=1, step_size=0.01, restarts=4)
    kept = evaluated((model, x, y), attack, early_stop=False)
    margins = []
    for start in range(4):
        restart = torch.full_like(y, start)
        inputs = AttackInputs(x, y, torch.arange(64), THREAT, CounterRNG(0, "attack"), restart=restart)
        with torch.no_grad():
            margins.append(margin(model(attack.run(EXACT.forward(model), inputs)), y))
    every = torch.stack(margins)
    is_robust = (every > 1e-4).all(0)
    assert not bool((every[-1] <= every.amin(0) + 1e-4)[is_robust].all())  # the last start is not always the best
    assert torch.allclose(margin(kept.logits, y)[is_robust], every.amin(0)[is_robust], atol=1e-5)
    assert not bool(kept.success[is_robust].any())


class Liar(nn.Module):
    """A linear model that, whenever gradients are asked for, claims to be wrong about everything."""

    def __init__(self) -> None:
        super().__init__()
        self.honest = Linear(3, side=4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.honest(x)
        return logits.flip(1) * 1e-3 - logits if x.requires_grad else logits


def test_a_false_suspicion_is_not_believed_and_the_attack_goes_on() -> None:
    model, x, y = labelled(Liar(), images(40))
    result = evaluated((model, x, y), PGD(steps=4, step_size="0.01eps", random_init="none"))
    assert not bool(result.success.any())
    assert bool((result.forwards >= 8).all())  # every one of the four steps was suspicious and was verified
    assert torch.equal(result.logits.argmax(1), y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [Square(steps=40), NAttack(steps=2, samples=8), FAB(steps=3), CarliniWagnerLinf(steps=5, binary_search_steps=1)],
    ids=lambda attack: type(attack).__name__,
)
def test_what_compares_logits_computes_in_float32_whatever_is_asked(
    case: tuple[Small, Tensor, Tensor], attack: Attack
) -> None:
    """Square misses a third of what it can break on a robust network of MNIST where it sees coarse logits."""
    coarse = Precision(dtype="bfloat16")

    def change(attack: Attack) -> float:
        """The largest change of a pixel; a fused copy in float32 rounds otherwise."""
        exact = evaluated(case, attack, early_stop=False)
        return float((evaluated(case, attack, early_stop=False, precision=coarse).x - exact.x).abs().max())

    assert change(attack) < 1e-4
    assert change(PGD(steps=2)) > 1e-3  # it would be seen


def test_bfloat16_gradients_are_verified_in_float32(case: tuple[Small, Tensor, Tensor]) -> None:
    model, _, y = case
    exact = evaluated(case, PGD(steps=6))
    fast = evaluated(case, PGD(steps=6), precision=Precision(dtype="bfloat16", channels_last=True))
    assert torch.equal(fast.success, model.eval()(fast.x).argmax(1) != y)
    assert float((fast.success == exact.success).float().mean()) > 0.95


class Successful(nn.Module):
    """Not a number for bright images."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(3, side=4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        return torch.where((x.mean((1, 2, 3)) > 0.5)[:, None], torch.nan, logits)


def test_a_model_that_returns_nan_cannot_push_an_image_out_of_its_ball() -> None:
    model, x = Successful(), images(40)
    result = evaluated((model, x, torch.zeros(40, dtype=torch.int64)), PGD(steps=4))
    assert bool(result.x.isfinite().all())
    assert float(THREAT.distance(result.x, result.x0).max()) <= 0.05 + 1e-6
    assert bool(result.success[~result.logits.isfinite().all(1)].all())


@pytest.mark.parametrize("spec", ["pgd:steps=10", "apgd-ce:steps=10", "square:steps=60"])
def test_a_point_without_a_prediction_is_a_success(spec: str) -> None:
    """NaN is no lower margin, but the image counts as misclassified."""
    x = 0.49 + 0.005 * images(40)  # the ball of each contains points whose mean is above 0.5
    found = evaluated((Successful(), x, Successful()(x).argmax(1)), make(ATTACKS, spec))
    lost = ~found.logits.isfinite().all(1)
    assert bool(lost.any())
    assert bool(found.success[lost].all())


class Flat(torch.nn.Module):
    """A model whose gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(5, device=x.device)[torch.zeros(len(x), dtype=torch.int64)] + 0 * x.sum((1, 2, 3))[:, None]


@pytest.mark.parametrize(
    "spec",
    ["pgd:steps=4,restarts=3", "pgd-t:steps=3,targets=2", "apgd-ce:steps=4,eot_iter=3", "apgd-t:steps=3,targets=2"],
)
def test_every_zero_gradient_is_counted(spec: str) -> None:
    """Of all starts and of all passes that are averaged."""
    found = evaluated((Flat(), images(8), torch.zeros(8, dtype=torch.int64)), make(ATTACKS, spec))
    assert bool((found.backwards > 0).all())
    assert torch.equal(found.records["zero_gradients"], found.backwards)


@configurable
class Astray(Attack):
    """Claims success on every image by a point far outside the ball and the box."""

    length = 1

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        count = torch.zeros(len(inputs.x), dtype=torch.int64)
        return {"x": inputs.x, "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        margin = torch.full((len(inputs.x),), -1.0)
        done = state["iteration"] >= 0
        return {
            "x": inputs.x + 5,
            "seen": inputs.x - 5,
            "margin": margin,
            "iteration": state["iteration"] + 1,
            "done": done,
        }


@pytest.mark.parametrize("early_stop", [True, False])
def test_an_attack_that_leaves_its_ball_is_brought_back(case: tuple[Small, Tensor, Tensor], early_stop: bool) -> None:
    result = evaluated(case, Astray(), early_stop=early_stop)
    assert float(THREAT.distance(result.x, result.x0).max()) <= 0.05 + 1e-6
    assert 0 <= float(result.x.min()) <= float(result.x.max()) <= 1
    assert torch.equal(result.success, case[0].eval()(result.x).argmax(1) != case[2])


def test_passes_are_counted_image_by_image(case: tuple[Small, Tensor, Tensor]) -> None:
    """Six steps, one float32 pass over the last iterate: 7 forwards and 6 backwards for each image."""
    result = evaluated(case, PGD(steps=6), early_stop=False)
    assert set(result.forwards.tolist()) == {7}
    assert set(result.backwards.tolist()) == {6}


def test_a_stream_is_read_as_the_queue_needs_it(case: tuple[Small, Tensor, Tensor]) -> None:
    model, x, y = case
    read = []

    def jobs() -> Iterator[Job]:
        for rows in torch.split(torch.arange(150), 10):
            read.append(int(rows[0]))
            yield Job(rows, x[rows], y[rows])

    next(Engine(model, batch_size=32).attack(PGD(steps=6), THREAT, jobs()))
    assert len(read) < 15


def test_no_images_give_no_rows(case: tuple[Small, Tensor, Tensor]) -> None:
    assert list(Engine(case[0]).attack(PGD(), THREAT, [])) == []


def test_a_batch_of_nothing_and_an_unsupported_norm_are_refused(case: tuple[Small, Tensor, Tensor]) -> None:
    check_refused("batch_size = 0", Engine, case[0], batch_size=0)
    check_refused(
        "FAB does not support L1; it supports Linf and L2", list, Engine(case[0]).attack(FAB(), Threat("L1", 1.0), [])
    )


class Sized(nn.Module):
    """A linear model whose last bits depend on the size of the batch, as with other kernels; it counts its sizes.

    It computes in float64, whose rounding by kernel is lost.
    """

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.linear, self.noise = Linear(3, side=4), noise
        self.sizes: dict[int, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.sizes[len(x)] = self.sizes.get(len(x), 0) + 1
        logits: Tensor = self.linear.double()(x.double()).float()
        return logits * (1 + self.noise * len(x))


def sized(noise: float, order: Tensor) -> tuple[Finished, dict[int, int]]:
    model, x, y = labelled(Sized(noise), images(150))
    attack = PGD(steps=12, objective="margin", step_size="0.02eps")
    return evaluated((model, x, y), attack, order=order, batch_size=128), model.sizes


def test_the_end_of_the_data_is_run_in_smaller_batches_where_these_give_the_same_bits() -> None:
    plain, sizes = sized(0.0, torch.arange(150))
    assert {128, 8} <= set(sizes)
    assert all(size % 8 == 0 for size in sizes)
    assert sizes[16] > 5
    shuffled, _ = sized(0.0, torch.randperm(150, generator=torch.Generator().manual_seed(0)))
    assert_same(plain, shuffled)


@pytest.mark.parametrize("noise", [1e-6, -1e-6])  # with either, some margins are not lower than before
def test_a_model_whose_bits_depend_on_the_batch_keeps_its_batch(noise: float) -> None:
    plain, sizes = sized(noise, torch.arange(150))
    assert all(times == 1 for size, times in sizes.items() if size < 128)  # the trials: each twice as large
    assert len(sizes) <= 1 + 4
    shuffled, _ = sized(noise, torch.randperm(150, generator=torch.Generator().manual_seed(0)))
    assert_same(plain, shuffled)


def test_rows_that_come_back_find_the_whole_room_again(case: tuple[Small, Tensor, Tensor]) -> None:
    """Forty images stand against the first start, in half the room, and then begin another all at once."""
    model, x, y = case
    some = torch.arange(12, 52)
    attack = PGD(steps=10, step_size="0.01eps", random_init="none", restarts=3)
    engine = Engine(model, batch_size=128)
    (few,) = list(engine.attack(attack, Threat("Linf", 1e-4), [Job(some, x[some], y[some])]))
    assert not bool(few.success.any())
    assert few.backwards.tolist() == [30] * 40


CYCLIC = (
    PGD(steps=40),
    PGD(steps=97, step_size="0.5eps"),
    PGD(steps=100, objective="margin", restarts=2, step_size=0.1),
    PGDT(steps=50, targets=2),
    TemperaturePGD(steps=60, inverse_temperature=1e4, arithmetic="paper"),  # zero gradients
)
NOT_PASSES = [name for name in COLUMNS if name not in ("forwards", "backwards")]


class Randomised(Small):
    """Small, with numbers of a global generator that do not change its logits."""

    draw: Callable[[], object] = staticmethod(float)

    @staticmethod
    def by(draw: Callable[[], object]) -> Randomised:
        model = Randomised(10)
        model.draw = draw
        return model

    def forward(self, x: Tensor) -> Tensor:
        self.draw()
        return super().forward(x)


class BatchDependent(Small):
    """Small, on images from which a part of the batch's mean image is subtracted."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - 0.01 * x.mean(0))


@configurable
class Variant(PGD):
    """A subclass, whose step may have a memory for all that the base class knows."""


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("attack", CYCLIC, ids=lambda attack: f"{type(attack).__name__}-{attack.steps}")
def test_skipped_laps_of_a_cycle_change_nothing_but_the_passes(
    case: tuple[Small, Tensor, Tensor], attack: Attack, early_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = case
    case = model, x[:40], y[:40]
    skipping = evaluated(case, attack, early_stop=early_stop)
    monkeypatch.setattr(Passes, "repeatable", lambda *_: False)
    every = evaluated(case, attack, early_stop=early_stop)
    for name in NOT_PASSES[1:]:
        assert torch.equal(getattr(skipping, name), getattr(every, name)), name
    assert torch.equal(skipping.records["zero_gradients"], every.records["zero_gradients"])
    assert bool((skipping.backwards <= every.backwards).all())
    assert int(skipping.backwards.sum()) < 0.9 * int(every.backwards.sum())


class Plateau(nn.Module):
    """The mean brightness against a constant; below 0.46 the gradient is zero."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.flatten(1).mean(1).clamp_min(0.46)
        return torch.stack([bright, torch.full_like(bright, 0.1)], 1)


def test_zero_gradients_of_skipped_laps_are_counted() -> None:
    x, y = torch.full((32, 2, 4, 4), 0.5), torch.zeros(32, dtype=torch.int64)
    attack = PGD(steps=60, objective="margin", random_init="none", step_size=0.003)
    result = evaluated((Plateau(), x, y), attack, early_stop=False)
    assert result.records["zero_gradients"].tolist() == [60 - 14] * 32
    assert result.iterations.tolist() == [60] * 32
    assert result.backwards.tolist() == [21] * 32  # the anchor of step 20 is repeated at step 21


@pytest.mark.parametrize(
    "model",
    [
        Randomised.by(lambda: torch.rand(1)),
        Randomised.by(np.random.rand),  # the generator that a model of a user may use
        Randomised.by(random.random),
        BatchDependent(10),
    ],
    ids=["torch", "numpy", "python", "batch"],
)
def test_no_steps_are_skipped_of_models_that_may_not_repeat(model: Small) -> None:
    x, attack = images(40), PGD(steps=40, step_size="1eps")
    y = model.eval()(x).argmax(1)
    passes = Engine(model, batch_size=32).passes
    with passes.for_gradients(x, precise=False) as forward:
        before = torch.get_rng_state()
        assert not passes.repeatable(forward, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert bool((evaluated((model, x, y), attack, early_stop=False).backwards == 40).all())


def test_short_attacks_and_subclasses_skip_no_steps(case: tuple[Small, Tensor, Tensor]) -> None:
    model, x, y = case
    case = model, x[:32], y[:32]
    for attack in (PGD(steps=39, step_size="1eps"), Variant(steps=40, step_size="1eps"), MIFGSM(steps=40)):
        assert not attack.detects_cycles
        assert bool((evaluated(case, attack, early_stop=False).backwards == attack.steps).all())
    assert PGD(steps=40).detects_cycles
