"""`estimate`: the range of the passes and the minutes of an audit, from a clean pass and a few timed passes."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import (
    NARROWEST,
    SMALLEST_BATCH,
    AttackInputs,
    CountedForward,
    Engine,
    Job,
    StepsLeft,
    value_and_gradient,
)
from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.guards.budget import most_passes
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.plan import Plan, chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare
from classwise.auditing.run.requirements import asked_by
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.core.compute.rates import Clock, Kind, Rates
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.arguments import checked
from classwise.core.settings.description import PassCounts
from classwise.data.images import Batch, Images
from classwise.models.modes import evaluating, frozen
from classwise.stats.intervals import clopper_pearson
from classwise.threat.ball import Threat, ThreatLike

CLEAN_SECONDS = 20.0
"""Seconds after which `estimate` evaluates no further image without attack."""
PILOT_SECONDS = 10.0
"""Seconds after which `estimate` stops attacking a sample."""
PILOT = 64
"""Number of images in this sample, at most."""
OF_ALL = "the estimate is of a full audit; with settle (--settle) the last attacks run on a sample"
"""Note on an estimate with ``settle``."""


@dataclass(frozen=True)
class CostEstimate:
    """The range of the cost of an audit.

    With early stop, only images that are correctly classified without attack are attacked. At the lowest cost each of
    them is misclassified after one step, in a cascade of the first attack; at the highest cost all are robust to all
    attacks. Without early stop, all images are attacked by all attacks; only the number of restarts is unknown.

    Attributes:
        images: number of images; of a stream of unknown length, the number that was evaluated.
        forwards: forward passes of single images, at most.
        backwards: backward passes of single images, at most.
        minutes: duration of these passes at the measured speed.
        forwards_low: forward passes of single images, at least.
        backwards_low: backward passes of single images, at least.
        minutes_low: duration of these passes at the measured speed.
        forwards_expected: forward passes of single images that are expected after attacking a sample of `PILOT` images
            for at most `PILOT_SECONDS`; None without a sample.
        backwards_expected: expected backward passes of single images.
        minutes_expected: duration of these passes at the measured speed.
        evaluated: number of images evaluated without attack: all, or those that were evaluated in `CLEAN_SECONDS`: a
            random sample, of a stream its first images.
        correct: number of these that are correctly classified. For a sample, the range is that of the ends of the 95 %
            interval (Clopper-Pearson) of the accuracy.
        guard_passes: forward and backward passes of the guards, at most.
        guard_minutes: approximate duration of the guards, at most.
        batch_size: images on the device at once.
        note: why the batch size is not the default one, or may not fit into memory, why the radius is implausibly
            large, and that ``settle`` is not estimated; else empty.
    """

    images: int
    forwards: int
    backwards: int
    minutes: float
    forwards_low: int = 0
    backwards_low: int = 0
    minutes_low: float = 0.0
    forwards_expected: int | None = None
    backwards_expected: int | None = None
    minutes_expected: float | None = None
    evaluated: int = 0
    correct: int = 0
    guard_passes: int = 0
    guard_minutes: float = 0.0
    batch_size: int = 0
    note: str = ""


@checked
@evaluates
def estimate(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    trained: bool = True,
    rates: Rates | None = None,
    **options: Unpack[Evaluation],
) -> CostEstimate:
    """Estimate how many passes and minutes an audit takes, at least and at most.

    The images are evaluated without attack, since the cost depends on how many are correctly classified. The passes of
    one step of each attack are counted on a few images, and a pass is timed on one batch. The number of steps that is
    expected is that of a sample of the images, which is attacked for a few seconds. The passes of an external
    attack on these images are taken for those on every image. With ``repeats``, each decision takes as many passes, and
    the image that an attack returns is decided once more. The estimate does not depend on
    ``settle``, ``save``, ``trace`` and ``max_time``.

    Args:
        model: see `classwise.auditing.run.audit.audit`.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        trained: whether the images are evaluated without attack. False: all of them count as correctly classified, for
            the cost of a model before its training, and none is attacked.
        rates: measured rates of a device (`classwise.core.compute.rates.RATES`), for the minutes on it; None: passes
            are timed on this device.
        **options: see `Evaluation`.

    Raises:
        ClasswiseError: see `audit`.

    Example:
        >>> import torch
        >>> from classwise.auditing.run.cost import estimate
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        >>> for parameter in model.parameters():
        ...     _ = torch.nn.init.zeros_(parameter)  # predicts class 0
        >>> images, labels = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
        >>> cost = estimate(model, (images, labels), "Linf:8/255", "pgd:steps=10")
        >>> cost.evaluated, cost.correct
        (40, 20)
        >>> (cost.forwards_low, cost.forwards), (cost.backwards_low, cost.backwards)
        ((80, 280), (20, 200))
        >>> cost.forwards_expected, cost.backwards_expected
        (260, 200)
    """
    threat, attacks, options = asked_by(options, threat, attacks)
    asked: Evaluation = {**options, "save": (), "trace": ()}
    with chosen_arithmetic(options.get("precision")):
        ready = prepare(model, data, parse_attacks(attacks, norm_of(threat)), threat, asked)
        engine, first = ready.plan.engine(ready.model, classes=ready.meta.num_classes), next(ready.pieces)
        expected = len(first) if isinstance(ready.source, Images) else ready.source.expected
        evaluate = _evaluate if trained else _all_correct
        with evaluating(ready.model):
            clean = evaluate(engine, itertools.chain([first], ready.pieces), expected)
            return _range(ready, engine, first, clean, rates, attacked=trained)


class _Evaluated(NamedTuple):
    """How many of the evaluated images are correctly classified without attack, and how many there are in all."""

    images: int
    evaluated: int
    correct: int

    def bounds(self) -> tuple[int, int]:
        """How many of all images are correctly classified, at least and at most."""
        others = self.images - self.evaluated
        if not others:
            return self.correct, self.correct
        low, high = (float(end) for end in clopper_pearson(self.correct, self.evaluated))
        return self.correct + math.floor(low * others), self.correct + math.ceil(high * others)


@dataclass(frozen=True)
class _AttackCost:
    """The cost of one attack.

    Args:
        attack: the attack.
        starts: its number of starts for the classes of the model.
        repeats: number of passes of a decision; of several, the image that the attack returns is decided once more.
        step: passes of an image in one step.
        step_seconds: duration of a step of one image.
    """

    attack: Attack
    starts: int
    repeats: int
    step: PassCounts
    step_seconds: float

    def lowest(self, *, early_stop: bool) -> tuple[int, int]:
        """Steps of an image and float32 passes, at least: one step and its verification with early stop."""
        starts = self.starts if self.attack.minimises and not early_stop else 1
        steps = 1 if early_stop or self.attack.may_end_early else self.attack.length
        return starts * steps, self._decided(starts)

    def expected(self, steps: float) -> tuple[int, int]:
        """Steps of an image and float32 passes, for its mean number of steps in a sample."""
        return round(steps), self._decided(min(max(1, math.ceil(steps / self.attack.length)), self.starts))

    def steps(self, forwards: float, backwards: float, *, early_stop: bool) -> float:
        """The steps of an image by its passes, of which those of gradients are in steps only."""
        (_, decided), (most, _) = self.lowest(early_stop=early_stop), self.highest(early_stop=early_stop)
        step = self.step
        taken = backwards / step.to_image if step.to_image else (forwards - decided) / max(step.forward, 1)
        return min(max(taken, 1.0), float(most))

    def highest(self, *, early_stop: bool) -> tuple[int, int]:
        """Steps of an image and float32 passes, at most.

        With early stop, a start verifies its last iterate, and that of lowest margin if it is another one. An order of
        targets takes fewer passes than one more step of each start.
        """
        verified = self.starts * (2 if early_stop else 1)
        return self.starts * (self.attack.length + self.attack.orders_targets), self._decided(verified)

    def _decided(self, times: int) -> int:
        """Float32 passes of an image whose iterates are decided so many times."""
        return self.repeats * (times + (self.repeats > 1)) + self.attack.needs_reference


class _Total(NamedTuple):
    """Passes of all images, and their duration in seconds."""

    forwards: int
    backwards: int
    seconds: float

    def plus(self, cost: _AttackCost, images: int, work: tuple[int, int], speed: _Speed, last: float = 0) -> _Total:
        """The total with the work of an attack on some images: steps, and float32 passes.

        The ``last`` images of a smallest batch take all steps of the attack: its other rows are computed in vain.
        """
        steps, passes = work
        vain = max(speed.narrowest - last, 0) * cost.highest(early_stop=True)[0] if last >= 1 else 0
        rows = max(images, speed.narrowest) if images else 0  # a batch is not smaller
        return _Total(
            self.forwards + images * (steps * cost.step.forward + passes),
            self.backwards + images * steps * cost.step.to_image,
            self.seconds + (rows * steps + vain) * cost.step_seconds + passes * speed.seconds(images),
        )


class _Speed(NamedTuple):
    """Duration of a float32 pass without gradient, whose batches are padded to full size; the smallest of a step."""

    batch_size: int
    batch_seconds: float
    narrowest: int

    def seconds(self, images: int) -> float:
        """Duration of a pass of some images."""
        return -(-images // self.batch_size) * self.batch_seconds


def _range(
    ready: Inputs, engine: Engine, piece: Images, clean: _Evaluated, rates: Rates | None, *, attacked: bool
) -> CostEstimate:
    """The lowest, the highest and the expected cost.

    Args:
        ready: the model and the plan.
        engine: the engine.
        piece: the images on which passes are counted and timed.
        clean: the accuracy without attack.
        rates: see `estimate`.
        attacked: whether a sample is attacked, for the expected cost.
    """
    plan, images = ready.plan, clean.images
    fewest, most = clean.bounds() if plan.early_stop else (images, images)
    size = min(engine.batch_size, max(most, SMALLEST_BATCH))  # few images are attacked in a smaller batch
    x = _batch(piece, engine.batch_size, engine.device).x
    with evaluating(ready.model), frozen(ready.model):
        clock = _timed_on(engine.device) if rates is None else rates.clock(ready.model, x[:1])
        seconds = clock("decision", len(x), lambda: engine.passes.logits(x))
    speed = _Speed(engine.batch_size, seconds, NARROWEST if engine.device.type == "cpu" else SMALLEST_BATCH)
    clean_passes = plan.repeats.count
    lowest = highest = _Total(clean_passes * images, 0, clean_passes * speed.seconds(images))
    costs = list(_attack_costs(engine, plan, piece, size, clock, timed=rates is None))
    for position, cost in enumerate(costs):
        highest = highest.plus(cost, most, cost.highest(early_stop=plan.early_stop), speed)
        if not (position and plan.cascade):
            lowest = lowest.plus(cost, fewest, cost.lowest(early_stop=plan.early_stop), speed)
    expected = _Total(clean_passes * images, 0, clean_passes * speed.seconds(images))
    between = (fewest + most) / 2
    for cost, (share, steps, robust) in zip(
        costs, _pilot(engine, plan, piece, costs) if attacked else (), strict=attacked
    ):
        expected = expected.plus(cost, round(share * between), cost.expected(steps), speed, last=robust * between)
    passes = highest.forwards + highest.backwards
    guards = plan.repeats.count * most_passes(plan.asked["guards"], images, passes - clean_passes * images)
    return CostEstimate(
        images=images,
        forwards=highest.forwards,
        backwards=highest.backwards,
        minutes=highest.seconds / 60,
        forwards_low=lowest.forwards,
        backwards_low=lowest.backwards,
        minutes_low=lowest.seconds / 60,
        forwards_expected=expected.forwards if attacked else None,
        backwards_expected=expected.backwards if attacked else None,
        minutes_expected=expected.seconds / 60 if attacked else None,
        evaluated=clean.evaluated,
        correct=clean.correct,
        guard_passes=guards,
        guard_minutes=guards / passes * highest.seconds / 60,
        batch_size=engine.batch_size,
        note="; ".join(filter(None, (ready.note, ready.large_radius, OF_ALL if ready.meta.settle else ""))),
    )


class _PilotEndedError(Exception):
    """The time of the pilot has passed."""


def _pilot(
    engine: Engine, plan: Plan, piece: Images, costs: Sequence[_AttackCost]
) -> Iterator[tuple[float, float, float]]:
    """Of a sample, the share that each attack runs on, its mean steps of an image, and the share robust to it.

    After `PILOT_SECONDS` the mean is the geometric one of the least and the most steps; images that are robust to an
    earlier attack of a cascade count as robust to those that have not run.
    """
    rows = CounterRNG(0, "estimate").permutation(len(piece))[: max(engine.batch_size, PILOT)]
    if plan.early_stop:
        batch = piece.batch(rows, engine.device)
        rows = rows[engine.decide(batch.x, batch.y).correct.cpu()]
    rows = survivors = rows[:PILOT]
    deadline = time.monotonic() + PILOT_SECONDS

    def stop_when_late(low: float, high: float) -> None:
        del low, high
        if time.monotonic() > deadline:
            raise _PilotEndedError

    for cost in costs:
        share, late = len(survivors) / max(len(rows), 1), time.monotonic() > deadline
        robust = share
        bounds = [float(limit(early_stop=plan.early_stop)[0]) for limit in (cost.lowest, cost.highest)]
        if len(survivors) and not late:
            left, success = StepsLeft(stop_when_late), torch.zeros(len(survivors), dtype=torch.bool)
            finished = forwards = backwards = 0
            batch, epsilon = piece.batch(survivors, engine.device), plan.threat.of(survivors, engine.device).epsilon
            job = Job(batch.index, batch.x, batch.y, {"epsilon": epsilon} if isinstance(epsilon, Tensor) else {})
            blocks = engine.attack(cost.attack, plan.threat, [job], images=len(survivors), steps_left=left)
            with contextlib.closing(blocks), contextlib.suppress(_PilotEndedError):
                for done in blocks:
                    success[done.row.cpu()] = done.success.cpu()
                    finished += len(done.row)
                    forwards += int(done.forwards.sum())
                    backwards += int(done.backwards.sum())
            bounds = [*left.of_an_image()]
            if finished == len(survivors):
                bounds = [cost.steps(forwards / finished, backwards / finished, early_stop=plan.early_stop)] * 2
            robust = share * float((~success).double().mean())
            survivors = survivors[~success] if plan.cascade else survivors
        elif plan.cascade:
            bounds[0] = bounds[1]
        yield share, math.sqrt(bounds[0] * bounds[1]), robust


def _evaluate(engine: Engine, pieces: Iterator[Images], expected: int | None) -> _Evaluated:
    """Evaluate the images without attack, in random order, until `CLEAN_SECONDS` have passed."""
    deadline = time.monotonic() + CLEAN_SECONDS
    count = correct = 0
    for piece in pieces:
        order = CounterRNG(0, "estimate").permutation(len(piece))
        for rows in torch.split(order, engine.batch_size):
            if count and time.monotonic() > deadline:
                return _Evaluated(max(expected or 0, count), count, correct)
            _, x, y = piece.batch(rows, engine.device)
            with evaluating(engine.model), frozen(engine.model):
                correct += int(engine.passes.decide(x, y).correct.sum())
            count += len(rows)
    return _Evaluated(count, count, correct)


def _all_correct(_: Engine, pieces: Iterator[Images], expected: int | None) -> _Evaluated:
    """Count all images as correctly classified, without evaluating them."""
    images = expected or sum(len(piece) for piece in pieces)
    return _Evaluated(images, images, images)


def _attack_costs(
    engine: Engine, plan: Plan, piece: Images, size: int, clock: Clock, *, timed: bool
) -> Iterator[_AttackCost]:
    """The passes of a step of each attack, and its duration in batches of ``size`` images.

    A timed step includes the arithmetic of the attack, which takes longer than the passes of a small network. That of
    an external attack, which is its whole run, and with rates of another device is the duration of its passes.
    """
    x = _batch(piece, size, engine.device).x
    classes = engine.passes.classes(x)
    seconds: dict[tuple[object, bool], tuple[float, float]] = {}
    for attack in plan.suite.attacks.values():
        with engine.forward_for(attack, x) as passes:
            step = _step_passes(engine, passes, attack, piece, plan.threat)
            if timed and attack.length > 1:
                work = _started(engine, passes, attack, piece, plan.threat, size)
                duration = clock("gradient" if step.to_image else "forward", size, work) / size
            else:
                kind = attack.precise, step.to_image > 0
                if kind not in seconds:
                    seconds[kind] = _pass_seconds(passes, x, clock, gradients=step.to_image > 0)
                forward, backward = seconds[kind]
                duration = step.forward * forward + step.to_image * backward
        yield _AttackCost(attack, attack.starts_for(classes), plan.repeats.count, step, duration)


def _pass_seconds(model: CountedForward, x: Tensor, clock: Clock, *, gradients: bool) -> tuple[float, float]:
    """Seconds of a forward pass and of a backward pass of one image; 0 for the latter without gradients."""
    forward = both = clock("forward", len(x), lambda: model(x))
    if gradients:
        both = clock("gradient", len(x), lambda: value_and_gradient(model, x, lambda logits: logits[:, 0]))
    return forward / len(x), max(both - forward, 0.0) / len(x)


def _batch(piece: Images, count: int, device: torch.device) -> Batch:
    """The first ``count`` images on the device; repeated cyclically if there are fewer."""
    return Batch(*(tensor.to(device) for tensor in piece.batch(torch.arange(count) % len(piece))))


def _step_passes(engine: Engine, model: CountedForward, attack: Attack, piece: Images, threat: Threat) -> PassCounts:
    """Passes of an image in the first step of the attack, counted on a few images."""
    images = min(SMALLEST_BATCH, engine.batch_size)
    step = _started(engine, model, attack, piece, threat, images)
    before = model.forwards, model.backwards
    step()
    return PassCounts((model.forwards - before[0]) // images, (model.backwards - before[1]) // images)


def _started(
    engine: Engine, model: CountedForward, attack: Attack, piece: Images, threat: Threat, images: int
) -> Callable[[], object]:
    """Start the attack on some images, and return its next step."""
    index, x, y = _batch(piece, images, engine.device)
    threat = threat.of(torch.arange(len(x)) % len(piece), engine.device)
    reference = engine.passes.reference(x) if attack.needs_reference else None
    inputs = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), None, None, reference, torch.zeros_like(index)
    )
    state = attack.start(model, inputs)
    return lambda: attack.step(model, inputs, state)


def _timed_on(device: torch.device) -> Clock:
    """A clock that calls the work on the device: the mean of two calls after a warm-up."""

    def seconds(kind: Kind, images: int, work: Callable[[], object]) -> float:
        del kind, images
        work()
        _wait(device)
        begin = time.perf_counter()
        work()
        work()
        _wait(device)
        return (time.perf_counter() - begin) / 2

    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
