"""`estimate`: upper bounds on the passes and the minutes of an audit, measured on a few passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, AttackInputs, CountedForward, Engine, value_and_gradient
from classwise.auditing.guards.budget import most_passes
from classwise.auditing.inputs import Model
from classwise.auditing.plan import AuditOptions, chosen_arithmetic
from classwise.auditing.preparation import prepare
from classwise.auditing.suite import Attacks, norm_of, parse_attacks
from classwise.core.arguments import checked
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat, ThreatLike
from classwise.data.images import Batch, Images
from classwise.models.modes import evaluating, frozen


@dataclass(frozen=True)
class CostEstimate:
    """Upper bounds on the cost of an audit; images that are misclassified early cost less.

    Attributes:
        images: number of images; 0 for a stream of unknown length.
        forwards: forward passes of single images.
        backwards: backward passes of single images.
        minutes: duration of these passes at the measured speed.
        guard_passes: forward and backward passes of the guards.
        guard_minutes: approximate duration of the guards.
        batch_size: images on the device at once.
        note: why the batch size is not the default one, or may not fit into memory; else empty.
    """

    images: int
    forwards: int
    backwards: int
    minutes: float
    guard_passes: int = 0
    guard_minutes: float = 0.0
    batch_size: int = 0
    note: str = ""


@checked
@torch.inference_mode(mode=False)
def estimate(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    device: str | torch.device | None = None,
    **options: Unpack[AuditOptions],
) -> CostEstimate:
    """Estimate how many passes and minutes an audit takes at most.

    The passes of one step of each attack are counted on a few images, and a pass is timed on one batch. An image takes
    the steps of all restarts, and a pass to verify each restart.

    Args:
        model: see `classwise.auditing.audit.audit`.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        device: where to run.
        **options: as of `audit`. ``cascade``, ``settle``, ``save`` and ``trace`` do not change the estimate.

    Raises:
        ClasswiseError: see `audit`.
    """
    suite = parse_attacks(attacks, norm_of(threat))
    measured: AuditOptions = {**options, "cascade": False, "settle": None, "save": (), "trace": ()}
    with chosen_arithmetic(options):
        ready = prepare(model, data, suite, threat, device=device, **measured)
        suite, engine = ready.plan.suite, ready.plan.engine(ready.model)
        piece = next(ready.pieces)
        batch_size = engine.batch_size
        x = _batch(piece, batch_size, engine.device).x
        with evaluating(ready.model), frozen(ready.model):
            logits_seconds = _timed(lambda: engine.passes.logits(x), engine.device)
        classes = engine.passes.classes(x)
        plain = 1 + sum(each.starts_for(classes) + each.needs_reference for each in suite.attacks.values())
        forwards, backwards, seconds = plain, 0, plain * logits_seconds
        clocks: dict[tuple[bool, bool], tuple[float, float]] = {}
        for attack in suite.attacks.values():
            with engine.forward_for(attack, x) as passes:
                added, gradients = _cost(engine, passes, attack, piece, ready.plan.threat, classes)
                kind = attack.precise, gradients > 0
                if kind not in clocks:
                    clocks[kind] = _clock(passes, x, engine.device, gradients=gradients > 0)
            forward_seconds, both_seconds = clocks[kind]
            forwards, backwards = forwards + added, backwards + gradients
            seconds += (added - gradients) * forward_seconds + gradients * both_seconds
        images = ready.meta.images or 0
        minutes = -(-images // batch_size) * seconds / 60
        attack_passes = images * (forwards + backwards)
        guards = most_passes(ready.plan.guards, images, attack_passes)
        share = guards / attack_passes if images else 0.0
        return CostEstimate(
            images, images * forwards, images * backwards, minutes, guards, share * minutes, batch_size, ready.note
        )


def _clock(model: CountedForward, x: Tensor, device: torch.device, *, gradients: bool) -> tuple[float, float]:
    """Seconds of a forward pass, and of a forward and backward pass; 0 for the latter without gradients."""
    both = _timed(lambda: value_and_gradient(model, x, _first_logit), device) if gradients else 0.0
    return _timed(lambda: model(x), device), both


def _batch(piece: Images, count: int, device: torch.device) -> Batch:
    """The first ``count`` images on the device; repeated cyclically if there are fewer."""
    return Batch(*(tensor.to(device) for tensor in piece.batch(torch.arange(count) % len(piece))))


def _cost(
    engine: Engine, model: CountedForward, attack: Attack, piece: Images, threat: Threat, classes: int
) -> tuple[int, int]:
    """Forward and backward passes of an image that is robust in all restarts, from one step on a few images."""
    index, x, y = _batch(piece, min(SMALLEST_BATCH, engine.batch_size), engine.device)
    epsilon = threat.epsilon
    if isinstance(epsilon, Tensor):
        threat = threat.with_epsilon(epsilon[torch.arange(len(x)) % len(piece)].to(engine.device))
    reference = engine.passes.logits(x) if attack.needs_reference else None
    inputs = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), None, None, reference, torch.zeros_like(index)
    )
    state, before = attack.start(model, inputs), (model.forwards, model.backwards)
    attack.step(model, inputs, state)
    steps = attack.length * attack.starts_for(classes)
    forwards, backwards = model.forwards - before[0], model.backwards - before[1]
    return steps * forwards // len(x), steps * backwards // len(x)


def _first_logit(logits: Tensor) -> Tensor:
    return logits[:, 0]


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: the mean of two calls after a warm-up."""
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
