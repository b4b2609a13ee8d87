"""Which attacks of a suite can be applied to a model: where it has no gradient, those that need none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, NoGradientError
from classwise.auditing.suite import Suite
from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data.images import Batch

AUTOGRAD_WORDS = ("grad", "differentiated")
"""Words of the errors of autograd, which an external attack or a model meets where no gradient is."""


def split_suite(suite: Suite, engine: Engine, batch: Batch, threat: Threat) -> tuple[Suite, str]:
    """The attacks that can be applied to the engine's model, and why it has no gradient.

    Args:
        suite: the attacks that were asked for.
        engine: with the model; of a small batch size, since a few passes are enough.
        batch: images to try the attacks on, at least one. They are only looked at where the model has no gradient.
        threat: the ball; of a radius for each image, one of them.

    Returns:
        The suite without the attacks that asked for a gradient which the model does not have, and the reason in one
        sentence without its full stop; the suite itself and an empty reason for a model with gradients.
    """
    reason = engine.passes.missing_gradient(batch.x.to(engine.device))
    if not reason:
        return suite, ""
    if isinstance(threat.epsilon, Tensor):
        threat = threat.with_epsilon(float(threat.epsilon.max()))
    known = {label: attack for label, attack in suite.attacks.items() if _can_step(attack, engine, batch, threat)}
    return restricted(suite, known), reason


def restricted(suite: Suite, attacks: Mapping[str, Attack]) -> Suite:
    """The suite with these attacks only."""
    families = {name: tuple(label for label in members if label in attacks) for name, members in suite.families.items()}
    return dataclasses.replace(suite, attacks=attacks, families={name: left for name, left in families.items() if left})


def require_applicable(suite: Suite, asked: Suite, reason: str) -> None:
    """See that an attack is left.

    Raises:
        ClasswiseError: if none is.
    """
    if not suite.attacks:
        names = ", ".join(asked.attacks)
        raise ClasswiseError(
            f"none of {names} can be applied: {reason}; add an attack without gradients, such as square"
        )


def _can_step(attack: Attack, engine: Engine, batch: Batch, threat: Threat) -> bool:
    """Whether an attack makes its first step without asking for a gradient."""
    rows = torch.arange(engine.batch_size) % len(batch.x)
    index, x, y = (part[rows].to(engine.device) for part in batch)
    reference = engine.passes.logits(x) if attack.needs_reference else None
    case = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), reference=reference, restart=torch.zeros_like(index)
    )
    try:
        with engine.forward_for(attack) as model:
            attack.step(model, case, attack.start(model, case))
    except NoGradientError:
        return False
    except RuntimeError as error:
        if not any(word in str(error) for word in AUTOGRAD_WORDS):
            raise
        return False
    return True
