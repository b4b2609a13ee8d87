"""What an audit will cost, before it is run: passes are timed, and those of a step of each attack are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, AttackInputs, CountedForward, Engine, value_and_gradient
from classwise.auditing.guards.evidence import SAMPLE
from classwise.auditing.guards.table import PASSES, PASSES_OF_EACH
from classwise.auditing.plan import Model, prepare
from classwise.auditing.suite import Attacks, Suite, norm_of, parse_attacks
from classwise.core.precision import FAST, Precision
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data.images import Batch, Images
from classwise.models.modes import evaluating, frozen


@dataclass(frozen=True)
class Estimate:
    """The most that an audit will cost; images that break early cost less.

    Attributes:
        images: how many there are; 0 if a stream does not tell.
        forwards: forward passes of single images.
        backwards: backward passes of single images.
        minutes: at the measured speed.
        guard_minutes: about what the guards take after the attacks, on at most 128 images.
        batch_size: images on the device at once.
        note: why that is not the usual batch, or that it may not fit; else empty.
    """

    images: int
    forwards: int
    backwards: int
    minutes: float
    guard_minutes: float = 0.0
    batch_size: int = 0
    note: str = ""


@torch.inference_mode(mode=False)
def estimate(
    model: Model,
    data: Any,
    threat: Threat | str | None = None,
    attacks: Attacks | None = None,
    *,
    early_stop: bool = True,
    precision: Precision = FAST,
    batch_size: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    **_: Any,
) -> Estimate:
    """How many passes and minutes an audit with these settings takes at most.

    The passes of one step of each attack are counted on a few images, and a pass is timed on one batch; an image takes
    the steps of all starts, and a pass to verify each start.

    Args:
        model: as `classwise.auditing.audit.audit` takes it, and so on; its other settings do not change the cost.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        early_stop: as in `audit`.
        precision: how gradients are computed.
        batch_size: images on the device at once; None: as many as fit.
        seed: of the draws.
        device: where to run.

    Raises:
        ClasswiseError: as `audit` does.
    """
    suite = parse_attacks(attacks, norm_of(threat))
    settings: dict[str, Any] = {
        "early_stop": early_stop,
        "cascade": False,
        "precision": precision,
        "batch_size": batch_size,
        "seed": seed,
    }
    ready = prepare(model, data, suite, threat, device=device, **settings)
    suite, engine = ready.plan.suite, ready.plan.engine(ready.model)
    piece = next(ready.pieces)
    batch_size = engine.batch_size
    x = _batch(piece, batch_size, engine.device).x
    with evaluating(ready.model), frozen(ready.model):
        judge_seconds = _timed(lambda: engine.passes.logits(x), engine.device)
    classes = engine.passes.classes(x)
    judged = 1 + sum(each.starts_for(classes) + each.needs_reference for each in suite.attacks.values())
    forwards, backwards, seconds = judged, 0, judged * judge_seconds
    clocks: dict[tuple[bool, bool], tuple[float, float]] = {}
    for attack in suite.attacks.values():
        with engine.forward_for(attack) as passes:
            more, back = _cost(engine, passes, attack, piece, ready.plan.threat, classes)
            kind = attack.precise, back > 0
            if kind not in clocks:
                clocks[kind] = _clock(passes, x, engine.device, gradients=back > 0)
        forward_seconds, both_seconds = clocks[kind]
        forwards, backwards = forwards + more, backwards + back
        seconds += (more - back) * forward_seconds + back * both_seconds
    images = ready.meta.images or 0
    minutes = -(-images // batch_size) * seconds / 60
    guards = _guard_seconds(suite, judge_seconds, clocks) * -(-min(images, SAMPLE) // batch_size) / 60
    return Estimate(images, images * forwards, images * backwards, minutes, guards, batch_size, ready.note)


def _guard_seconds(suite: Suite, forward: float, clocks: Mapping[tuple[bool, bool], tuple[float, float]]) -> float:
    """Seconds that the guards take for one batch of their sample."""
    both = max((both for _, both in clocks.values()), default=0.0)
    types = len({type(attack) for attack in suite.attacks.values()})
    forwards, backwards = (all_ + types * each for all_, each in zip(PASSES, PASSES_OF_EACH, strict=True))
    return (forwards - backwards) * forward + backwards * both if both else forwards * forward


def _clock(model: CountedForward, x: Tensor, device: torch.device, *, gradients: bool) -> tuple[float, float]:
    """Seconds of a forward pass, and of one with its gradient; 0 for the latter where none is taken."""
    both = _timed(lambda: value_and_gradient(model, x, _first_logit), device) if gradients else 0.0
    return _timed(lambda: model(x), device), both


def _batch(piece: Images, count: int, device: torch.device) -> Batch:
    """So many images on the device; the first ones again where there are fewer."""
    return Batch(*(tensor.to(device) for tensor in piece.batch(torch.arange(count) % len(piece))))


def _cost(
    engine: Engine, model: CountedForward, attack: Attack, piece: Images, threat: Threat, classes: int
) -> tuple[int, int]:
    """Forward and backward passes of an image that stands to the end of all starts, from one step of a few images."""
    index, x, y = _batch(piece, min(SMALLEST_BATCH, engine.batch_size), engine.device)
    epsilon = threat.epsilon
    if isinstance(epsilon, Tensor):
        threat = threat.with_epsilon(epsilon[torch.arange(len(x)) % len(piece)].to(engine.device))
    reference = engine.passes.logits(x) if attack.needs_reference else None
    case = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), None, None, reference, torch.zeros_like(index)
    )
    state, before = attack.start(model, case), (model.forwards, model.backwards)
    attack.step(model, case, state)
    steps = attack.length * attack.starts_for(classes)
    forwards, backwards = model.forwards - before[0], model.backwards - before[1]
    return steps * forwards // len(x), steps * backwards // len(x)


def _first_logit(logits: Tensor) -> Tensor:
    return logits[:, 0]


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: the mean of two, after one to warm up."""
    work()
    _wait(device)
    begin = time.perf_counter()
    work()
    work()
    _wait(device)
    return (time.perf_counter() - begin) / 2


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
