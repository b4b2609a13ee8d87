"""Base classes of attacks."""

from __future__ import annotations

import dataclasses
from typing import Any

from classwise.attacks.engine.attack import Attack, AttackInputs, State

__all__ = ["Attack", "AttackInputs", "AveragedAttack", "State", "TargetedAttack"]


class TargetedAttack(Attack):
    """Base class of attacks whose starts each have a target class, in the order of the clean logits, highest first."""

    targets: int

    @property
    def needs_reference(self) -> bool:
        """The clean logits rank the targets."""
        return True

    @property
    def starts(self) -> int:
        """Maximum number of starts per image, over all targets."""
        return self.targets * self.restarts

    def starts_for(self, classes: int) -> int:
        """Starts per image: one for each target and restart."""
        return min(self.targets, classes - 1) * self.restarts


class AveragedAttack(Attack):
    """Base class of attacks without gradients that average their loss over ``eot_iter`` passes at each point."""

    eot_iter: int

    def described(self) -> dict[str, Any]:
        """The fields as in a spec; ``eot_iter = 1`` is left out, as in audits written before the option existed."""
        fields: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]  # every attack is a dataclass
        return {name: value for name, value in fields.items() if name != "eot_iter" or value != 1}
