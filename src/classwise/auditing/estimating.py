"""What an audit will cost, before it is run: two steps are timed, the rest is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from classwise.attacks.base import Case
from classwise.attacks.engine import Stop
from classwise.auditing.preparing import Model, prepare
from classwise.auditing.suite import Attacks, attack_length, norm_of, parse_attacks
from classwise.compute import FAST, Compute
from classwise.draws import Draws
from classwise.models.modes import evaluating, frozen
from classwise.threat import Threat


@dataclass(frozen=True)
class Estimate:
    """The most that an audit will cost; images that break early cost less.

    Attributes:
        images: how many there are; 0 if a stream does not tell.
        forwards: forward passes of single images.
        backwards: backward passes of single images.
        minutes: at the measured speed.
    """

    images: int
    forwards: int
    backwards: int
    minutes: float


def estimate(
    model: Model,
    data: Any,
    threat: Threat | str | None = None,
    attacks: Attacks | None = None,
    *,
    stop: Stop = "broken",
    compute: Compute = FAST,
    batch: int = 128,
    seed: int = 0,
    device: str | torch.device | None = None,
    **_: Any,
) -> Estimate:
    """How many passes and minutes an audit with these settings takes at most.

    An attack of k steps takes k passes forward and back and one to verify; two steps of the first attack are timed on
    one batch, after one that is not.

    Args:
        model: as `classwise.auditing.audit.audit` takes it, and so on; its other settings do not change the cost.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        stop: the rule.
        compute: how gradients are computed.
        batch: images on the device at once.
        seed: of the draws.
        device: where to run.

    Raises:
        UserError: as `audit` does.
    """
    suite = parse_attacks(attacks, norm_of(threat))
    settings: dict[str, Any] = {"stop": stop, "cascade": False, "compute": compute, "batch": batch, "seed": seed}
    ready = prepare(model, data, suite, threat, device=device, **settings)
    engine = ready.plan.engine(ready.model)
    piece = next(ready.pieces)
    rows = torch.arange(batch) % len(piece)
    index, x, y = (tensor.to(engine.device) for tensor in piece.batch(rows))
    attack = next(iter(suite.attacks.values()))
    epsilon = ready.plan.threat.epsilon
    ball = (
        ready.plan.threat.with_epsilon(epsilon[rows].to(engine.device))
        if isinstance(epsilon, torch.Tensor)
        else ready.plan.threat
    )
    with evaluating(ready.model), frozen(ready.model):
        reference = engine.logits(x) if attack.needs_reference else None
        case = Case(x, y, index, ball, Draws(seed, "attack"), None, None, reference, torch.zeros_like(index))
        state = attack.start(engine.fast, case)

        def step() -> None:
            attack.step(engine.fast, case, state)

        step_seconds = _timed(step, engine.device)
        pass_seconds = _timed(lambda: engine.logits(x), engine.device)
    images = ready.meta.images
    steps = sum(attack_length(each) for each in suite.attacks.values())
    judged = 1 + sum(each.starts + each.needs_reference for each in suite.attacks.values())
    batches = -(-images // batch)
    return Estimate(
        images, images * (steps + judged), images * steps, batches * (steps * step_seconds + judged * pass_seconds) / 60
    )


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
