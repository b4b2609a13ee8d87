"""Transfer attack: adversarial examples of a surrogate model, evaluated on the audited model."""

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
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable, describe, make
from classwise.models.loading.loader import load_model
from classwise.models.logits import as_logits
from classwise.models.modes import evaluating, frozen
from classwise.models.weights import fingerprint

_REFERENCE = "surrogate_reference"
_BATCH = 64
"""Batch size of the surrogate's clean passes; fixed, so that a row's logits do not depend on its neighbours."""

_DIGITS = 12

DEFAULT = "mifgsm"
"""The default inner attack."""


def _attack(value: object) -> object:
    if isinstance(value, dict):
        return make(ATTACKS, {"name": DEFAULT, **value})
    return make(ATTACKS, value) if isinstance(value, str) else value


@configurable
class Transfer(Attack):
    """Transfer attack: run any attack on a surrogate and evaluate the last iterate of each start on the audited model.

    As a spec: ``transfer:surrogate=runs/standard,attack=mifgsm,attack.steps=20``; options of the inner attack have the
    prefix ``attack.``. The surrogate computes in float32. Its passes are not counted as passes of the audited model.

    Args:
        surrogate: a run folder, weights file or model reference, such as ``timm:resnet18``, for `classwise.load_model`;
            or a module, which is moved to the device of the images and runs in evaluation mode, its modes restored
            afterwards. Its input shape and number of classes must match those of the audited model.
        attack: the inner attack, a spec or an `Attack`.
        surrogate_hash: first digits of the fingerprint of the surrogate's parameters; empty: any. Audits record the
            first twelve, and identify the surrogate by them, not by its path.

    Raises:
        ClasswiseError: if the surrogate is missing or unreadable, has other parameters than ``surrogate_hash`` says, or
            its channels or classes do not match the model.
    """

    source = ("papernot2016transferability", "liu2017delving")
    example = "transfer:surrogate=runs/standard,attack.steps=20"

    surrogate: str | nn.Module = ""
    attack: Annotated[Attack, pydantic.BeforeValidator(_attack)] = dataclasses.field(
        default_factory=lambda: make(ATTACKS, DEFAULT)
    )
    surrogate_hash: str = dataclasses.field(default="", compare=False)

    needs_reference = True  # for the number of classes, to compare with the surrogate's

    def __post_init__(self) -> None:
        if self.surrogate != "" and not self._fingerprint.startswith(self.surrogate_hash):  # also loads the surrogate
            raise ClasswiseError(
                f"transfer: the parameters of the surrogate {self._surrogate_name} have the fingerprint "
                f"{self._fingerprint[:_DIGITS]}, and surrogate_hash is {self.surrogate_hash}; give the surrogate with "
                "this fingerprint, or no surrogate_hash"
            )

    def check(self) -> None:
        """Check the surrogate and the inner attack.

        Raises:
            ClasswiseError: if there is no surrogate, or a setting of the inner attack is missing.
        """
        if self.surrogate == "":
            raise ClasswiseError(
                "transfer: no surrogate; set one, such as transfer:surrogate=runs/standard,attack=mifgsm"
            )
        self.attack.check()

    @cached_property
    def model(self) -> nn.Module:
        """The surrogate, wrapped so that it returns logits."""
        if isinstance(self.surrogate, str):
            return load_model(self.surrogate)
        return as_logits(self.surrogate)

    @property
    def length(self) -> int:
        """Steps per start of the inner attack."""
        return self.attack.length

    @property
    def may_end_early(self) -> bool:
        """Whether a start of the inner attack may end early."""
        return self.attack.may_end_early

    @property
    def starts(self) -> int:
        """Starts of the inner attack."""
        return self.attack.starts

    def starts_for(self, classes: int) -> int:
        """Starts of the inner attack for a model with ``classes`` classes."""
        return self.attack.starts_for(classes)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start the inner attack; compute the surrogate's clean logits if it needs them."""
        del model
        self.check()
        with true_float32(inputs.x.device), evaluating(self.model), frozen(self.model):
            self._check_surrogate(inputs)
            reference = {_REFERENCE: self._clean_logits(inputs.x)} if self.attack.needs_reference else {}
            return self.attack.start(self._forward, self._inner_inputs(inputs, reference)) | reference

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Step the inner attack; the margin is infinite, since the audited model has not been evaluated."""
        del model
        reference = {name: value for name, value in state.items() if name == _REFERENCE}
        own = {name: value for name, value in state.items() if name != _REFERENCE}
        with true_float32(inputs.x.device), evaluating(self.model), frozen(self.model):
            new = self.attack.step(self._forward, self._inner_inputs(inputs, reference), own)
        return new | reference | {"margin": torch.full_like(new["margin"], torch.inf)}

    def described(self) -> dict[str, Any]:
        """The fields as in a spec; a module is described by its class."""
        found = "" if self.surrogate == "" else self._fingerprint[:_DIGITS]
        inner = describe(ATTACKS, self.attack)
        return {"surrogate": self._surrogate_name, "attack": inner, "surrogate_hash": found}

    @property
    def _surrogate_name(self) -> str:
        return self.surrogate if isinstance(self.surrogate, str) else type(self.surrogate).__name__

    @property
    def _fingerprint(self) -> str:
        return fingerprint(self.model if isinstance(self.surrogate, str) else self.surrogate)

    @cached_property
    def _forward(self) -> Forward:
        return EXACT.forward(self.model)

    @cached_property
    def _checked(self) -> set[object]:
        """Image shapes, class counts and devices that the surrogate has been checked for."""
        return set()

    def _inner_inputs(self, inputs: AttackInputs, reference: State) -> AttackInputs:
        """The inputs with the surrogate's clean logits in place of the model's."""
        return dataclasses.replace(inputs, reference=reference.get(_REFERENCE))

    def _clean_logits(self, x: Tensor) -> Tensor:
        """The surrogate's logits on clean images, in passes of one fixed size."""
        passes = []
        with torch.no_grad():
            for block in torch.split(x, _BATCH):
                padded = block[torch.arange(_BATCH, device=x.device) % len(block)]
                passes.append(self._forward(padded)[: len(block)])
        return torch.cat(passes)

    def _check_surrogate(self, inputs: AttackInputs) -> None:
        """Check, once per shape and device, that the surrogate accepts the images and has the same classes.

        Raises:
            ClasswiseError: if it does not.
        """
        assert inputs.reference is not None
        shape, classes = tuple(inputs.x.shape[1:]), inputs.reference.shape[1]
        if (shape, classes, inputs.x.device) in self._checked:
            return
        self.model.to(inputs.x.device)
        name = self._surrogate_name
        try:
            with torch.no_grad():
                surrogate_classes = self._forward(inputs.x[:1]).shape[1]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ClasswiseError(f"surrogate {name} does not accept images of shape {shape}: {reason}") from error
        if surrogate_classes != classes:
            raise ClasswiseError(
                f"surrogate {name} has {surrogate_classes} classes and the model {classes}; they must be equal"
            )
        self._checked.add((shape, classes, inputs.x.device))
