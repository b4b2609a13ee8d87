"""The interface of an attack to the engine."""

from __future__ import annotations

from typing import Protocol

from classwise.attacks.engine.rows import AttackInputs, State
from classwise.core.precision import Forward


class AttackSteps(Protocol):
    """The interface of an attack to the engine; see `classwise.attacks.base.Attack`."""

    @property
    def records(self) -> tuple[str, ...]:
        """State columns that are written to the outcomes."""

    @property
    def carries(self) -> tuple[str, ...]:
        """State columns that are carried over to the next start of an image."""

    @property
    def minimises(self) -> bool:
        """Whether a run with ``early_stop=False`` minimises the distance over all restarts."""

    @property
    def precise(self) -> bool:
        """Whether to compute in float32 in every engine."""

    @property
    def needs_reference(self) -> bool:
        """Whether the attack reads the logits on the clean images."""

    @property
    def length(self) -> int:
        """Maximum number of steps per start."""

    def starts_for(self, classes: int) -> int:
        """Number of starts per image for a model with ``classes`` classes."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Return the initial state."""

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Return the state after one more step."""
