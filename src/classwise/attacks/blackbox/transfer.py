"""Transfer: an attack that sees another model, judged by the one under audit."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Annotated, Any

import pydantic
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.core.config import configurable, describe, make
from classwise.core.errors import ClasswiseError
from classwise.core.precision import EXACT, Forward
from classwise.models.base import Classifier, Wrapper
from classwise.models.loading.loader import load_model
from classwise.models.logits import LogitsModel
from classwise.models.modes import evaluating, frozen
from classwise.models.weights import fingerprint

_REFERENCE = "surrogate_reference"
_BATCH = 64
"""Clean images that the surrogate sees at once; fixed, so that a row's logits do not depend on its neighbours."""

DEFAULT = "mifgsm"


def _attack(value: object) -> object:
    if isinstance(value, dict):
        return make(ATTACKS, {"name": DEFAULT, **value})
    return make(ATTACKS, value) if isinstance(value, str) else value


@configurable
class Transfer(Attack):
    """Any attack run on a surrogate; the last image of each start is then shown to the model under audit.

    As a spec: ``transfer:surrogate=runs/standard,attack=mifgsm,attack.steps=20``; an option of the inner attack has
    ``attack.`` before it. The surrogate computes in float32, and its passes are recorded as none of the model's.

    Args:
        surrogate: what `classwise.load_model` reads (a run folder, a file of weights, ``package.module:callable``), or
            a module, which is used in evaluation mode and left as it was. It must take the same images and give as
            many classes.
        attack: the attack, as a spec or built.

    Raises:
        ClasswiseError: if there is no surrogate, it cannot be read, or its channels or classes are not those of the
            model.
    """

    source = ()
    example = "transfer:surrogate=runs/standard,attack.steps=20"

    surrogate: str | nn.Module = ""
    attack: Annotated[Attack, pydantic.BeforeValidator(_attack)] = dataclasses.field(
        default_factory=lambda: make(ATTACKS, DEFAULT)
    )

    needs_reference = True  # for the number of classes, which the surrogate must share

    def __post_init__(self) -> None:
        if self.surrogate != "":
            _ = self.model  # so that a wrong path is told now

    def check(self) -> None:
        """See that there is a surrogate, and that the inner attack can run."""
        if self.surrogate == "":
            raise ClasswiseError("transfer needs a surrogate, such as transfer:surrogate=runs/standard,attack=mifgsm")
        self.attack.check()

    @cached_property
    def model(self) -> nn.Module:
        """The surrogate, returning logits."""
        if isinstance(self.surrogate, str):
            return load_model(self.surrogate)
        return self.surrogate if isinstance(self.surrogate, Classifier | Wrapper) else LogitsModel(self.surrogate)

    @property
    def length(self) -> int:
        """Steps of one start of the inner attack."""
        return self.attack.length

    @property
    def starts(self) -> int:
        """Starts of the inner attack; the last image of each is shown to the model under audit."""
        return self.attack.starts

    def starts_for(self, classes: int) -> int:
        """As the inner attack has it."""
        return self.attack.starts_for(classes)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The inner attack's start, and the surrogate's clean logits if that attack needs them."""
        del model
        self.check()
        with evaluating(self.model), frozen(self.model):
            self._check_fit(inputs)
            kept = {_REFERENCE: self._clean(inputs.x)} if self.attack.needs_reference else {}
            return self.attack.start(self._forward, self._inner(inputs, kept)) | kept

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """A step of the inner attack; never a hit, since the model under audit has seen nothing yet."""
        del model
        kept = {name: value for name, value in state.items() if name == _REFERENCE}
        own = {name: value for name, value in state.items() if name != _REFERENCE}
        with evaluating(self.model), frozen(self.model):
            new = self.attack.step(self._forward, self._inner(inputs, kept), own)
        return new | kept | {"margin": torch.full_like(new["margin"], torch.inf)}

    def described(self) -> dict[str, Any]:
        """The fields as a spec has them; a module by its class and the start of its fingerprint."""
        named = self.surrogate
        if isinstance(named, nn.Module):
            named = f"{type(named).__name__}@{fingerprint(named)[:12]}"
        return {"surrogate": named, "attack": describe(ATTACKS, self.attack)}

    @cached_property
    def _forward(self) -> Forward:
        return EXACT.forward(self.model)

    @cached_property
    def _checked(self) -> set[object]:
        """Which shapes, numbers of classes and devices were found to fit."""
        return set()

    def _inner(self, inputs: AttackInputs, kept: State) -> AttackInputs:
        """The case with the surrogate's clean logits in place of the model's."""
        return dataclasses.replace(inputs, reference=kept.get(_REFERENCE))

    def _clean(self, x: Tensor) -> Tensor:
        """The surrogate's logits, in passes of one fixed size."""
        passes = []
        with torch.no_grad():
            for block in torch.split(x, _BATCH):
                padded = block[torch.arange(_BATCH, device=x.device) % len(block)]
                passes.append(self._forward(padded)[: len(block)])
        return torch.cat(passes)

    def _check_fit(self, inputs: AttackInputs) -> None:
        """See once that the surrogate fits the images and classes.

        Raises:
            ClasswiseError: if not.
        """
        assert inputs.reference is not None
        shape, classes = tuple(inputs.x.shape[1:]), inputs.reference.shape[1]
        if (shape, classes, inputs.x.device) in self._checked:
            return
        if isinstance(self.surrogate, str):
            self.model.to(inputs.x.device)
        name = self.surrogate if isinstance(self.surrogate, str) else type(self.surrogate).__name__
        try:
            with torch.no_grad():
                has = self._forward(inputs.x[:1]).shape[1]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ClasswiseError(f"the surrogate {name} does not take images of shape {shape}: {reason}") from error
        if has != classes:
            raise ClasswiseError(
                f"the surrogate {name} has {has} classes and the model {classes}; they should be the same"
            )
        self._checked.add((shape, classes, inputs.x.device))
