"""The attacks of a suite that are applicable to a model: without gradients, only those that need none."""

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
from classwise.models.modes import wrong_gradients_refused

AUTOGRAD_WORDS = ("grad", "differentiated")
"""Words in the errors of autograd for a missing gradient, raised inside an external attack or a model."""


def split_suite(suite: Suite, engine: Engine, batch: Batch, threat: Threat) -> tuple[Suite, str]:
    """Select the attacks that are applicable to the engine's model.

    Args:
        suite: the requested attacks.
        engine: an engine of the model, with a small batch size, since a few passes suffice.
        batch: at least one image, on which attacks are tried if the model has no gradient.
        threat: the ball; of per-image radii, the largest is used.

    Returns:
        The suite without the attacks that need a missing gradient, and the reason why it is missing, as a sentence
        without its full stop. For a model with gradients: the same suite and an empty reason.
    """
    reason = engine.passes.missing_gradient(batch.x.to(engine.device))
    if not reason:
        return suite, ""
    if isinstance(threat.epsilon, Tensor):
        threat = threat.with_epsilon(float(threat.epsilon.max()))
    steppable = {label: attack for label, attack in suite.attacks.items() if _can_step(attack, engine, batch, threat)}
    return restricted(suite, steppable), reason


def restricted(suite: Suite, attacks: Mapping[str, Attack]) -> Suite:
    """The suite with these attacks only."""
    families = {name: tuple(label for label in members if label in attacks) for name, members in suite.families.items()}
    nonempty = {name: members for name, members in families.items() if members}
    return dataclasses.replace(suite, attacks=attacks, families=nonempty)


def require_applicable(suite: Suite, requested: Suite, reason: str) -> None:
    """Check that at least one attack is applicable.

    Raises:
        ClasswiseError: naming the requested attacks and the reason, if none is applicable.
    """
    if not suite.attacks:
        names = ", ".join(requested.attacks)
        raise ClasswiseError(
            f"none of {names} is applicable: {reason}; add an attack without gradients, such as square"
        )


def _can_step(attack: Attack, engine: Engine, batch: Batch, threat: Threat) -> bool:
    """Whether the first step of an attack succeeds without a gradient."""
    rows = torch.arange(engine.batch_size) % len(batch.x)
    index, x, y = (part[rows].to(engine.device) for part in batch)
    reference = engine.passes.reference(x) if attack.needs_reference else None
    inputs = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), reference=reference, restart=torch.zeros_like(index)
    )
    try:
        with engine.forward_for(attack, x) as model, wrong_gradients_refused():
            attack.step(model, inputs, attack.start(model, inputs))
    except NoGradientError:
        return False
    except (RuntimeError, torch.jit.Error) as error:
        if not any(word in str(error) for word in AUTOGRAD_WORDS):
            raise
        return False
    return True
