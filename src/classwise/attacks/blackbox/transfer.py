"""Transfer attack: adversarial examples of surrogate models, evaluated on the audited model."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Annotated, Any, Literal

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
from classwise.threat.ball import Threat, ThreatLike

_REFERENCE = "surrogate_reference"
_BATCH = 64
"""Batch size of the surrogates' clean passes; fixed, so that a row's logits do not depend on its neighbours."""
_AND = "+"
"""Separates several surrogates, and their hashes, in a spec."""

_DIGITS = 12

DEFAULT = "mifgsm"
"""The default inner attack."""


def _attack(value: object) -> object:
    if isinstance(value, dict):
        return make(ATTACKS, {"name": DEFAULT, **value})
    return make(ATTACKS, value) if isinstance(value, str) else value


Surrogate = str | nn.Module


def _several(value: object) -> object:
    return tuple(value.split(_AND)) if isinstance(value, str) and _AND in value else value


@configurable
class Transfer(Attack):
    """Transfer attack: run any attack on a surrogate and evaluate the last iterate of each start on the audited model.

    As a spec: ``transfer:surrogate=runs/standard,attack=mifgsm,attack.steps=20``; options of the inner attack have the
    prefix ``attack.``. Several surrogates are separated by ``+``: ``transfer:surrogate=runs/a+runs/b,combine=mean``.
    The surrogates compute in float32. Their passes are not counted as passes of the audited model.

    Args:
        surrogate: a run folder, weights file or model reference, such as ``timm:resnet18``, for `classwise.load_model`;
            or a module, which is moved to the device of the images and runs in evaluation mode, its modes restored
            afterwards; or several of these. Their input shape and number of classes must match those of the audited
            model.
        attack: the inner attack, a spec or an `Attack`.
        surrogate_hash: first digits of the fingerprint of the surrogate's parameters, of several surrogates separated
            by ``+``; empty: any. Audits record the first twelve, and identify the surrogates by them, not by their
            paths.
        combine: how several surrogates are used. ``"union"``: the attack runs on one after the other, and succeeds if
            an image of any of them does. ``"mean"``: it runs once, on the mean of their logits (Dong et al., CVPR 2018,
            section 3.3, with equal weights).

    Raises:
        ClasswiseError: if a surrogate is missing or unreadable, has other parameters than ``surrogate_hash`` says, or
            its channels or classes do not match the model.
    """

    source = ("papernot2016transferability", "liu2017delving", "dong2018boosting")
    example = "transfer:surrogate=runs/standard,attack.steps=20"

    surrogate: Annotated[Surrogate | tuple[Surrogate, ...], pydantic.BeforeValidator(_several)] = ""
    attack: Annotated[Attack, pydantic.BeforeValidator(_attack)] = dataclasses.field(
        default_factory=lambda: make(ATTACKS, DEFAULT)
    )
    surrogate_hash: str = dataclasses.field(default="", compare=False)
    combine: Literal["union", "mean"] = "union"

    needs_reference = True  # for the number of classes, to compare with the surrogates'

    def __post_init__(self) -> None:
        if self._given:
            self._check_hashes()  # also loads the surrogates

    def check(self) -> None:
        """Check the surrogates and the inner attack.

        Raises:
            ClasswiseError: if there is no surrogate, or a setting of the inner attack is missing.
        """
        if not self._given:
            raise ClasswiseError(
                "transfer: no surrogate; set one, such as transfer:surrogate=runs/standard,attack=mifgsm"
            )
        self.attack.check()

    def supported(self, threat: ThreatLike) -> Threat:
        """Parse a threat and check that the inner attack supports it, too.

        Raises:
            ClasswiseError: if it does not.
        """
        return self.attack.supported(super().supported(threat))

    @cached_property
    def models(self) -> nn.ModuleList:
        """The surrogates, wrapped so that they return logits."""
        return nn.ModuleList(load_model(given) if isinstance(given, str) else as_logits(given) for given in self._given)

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
        """Starts of the inner attack, for the union on each surrogate."""
        return self._turns * self.attack.starts

    def starts_for(self, classes: int) -> int:
        """Starts for a model with ``classes`` classes."""
        return self._turns * self.attack.starts_for(classes)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start the inner attack; compute the surrogates' clean logits if it needs them."""
        del model
        self.check()
        with true_float32(inputs.x.device), evaluating(self.models), frozen(self.models):
            self._check_surrogates(inputs)
            turn = self._turn(inputs)
            reference = {_REFERENCE: self._clean_logits(inputs.x, turn)} if self.attack.needs_reference else {}
            return self.attack.start(self._forward(turn), self._inner_inputs(inputs, reference)) | reference

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Step the inner attack; the margin is infinite, since the audited model has not been evaluated."""
        del model
        reference = {name: value for name, value in state.items() if name == _REFERENCE}
        own = {name: value for name, value in state.items() if name != _REFERENCE}
        with true_float32(inputs.x.device), evaluating(self.models), frozen(self.models):
            forward = self._forward(self._turn(inputs))
            new = self.attack.step(forward, self._inner_inputs(inputs, reference), own)
        return new | reference | {"margin": torch.full_like(new["margin"], torch.inf)}

    def described(self) -> dict[str, Any]:
        """The fields as in a spec; a module is described by its class. One surrogate is not combined with others."""
        hashes = _AND.join(found[:_DIGITS] for found in self._fingerprints)
        inner = describe(ATTACKS, self.attack)
        fields = {"surrogate": _AND.join(map(_name, self._given)), "attack": inner, "surrogate_hash": hashes}
        return fields | ({"combine": self.combine} if len(self._given) > 1 else {})

    @property
    def _given(self) -> tuple[Surrogate, ...]:
        """The surrogates as they were given."""
        several = self.surrogate if isinstance(self.surrogate, tuple) else (self.surrogate,)
        return tuple(given for given in several if given != "")

    @property
    def _turns(self) -> int:
        """How often the inner attack runs on each image."""
        return len(self._given) if self.combine == "union" and self._given else 1

    @property
    def _fingerprints(self) -> list[str]:
        """The fingerprints of the surrogates, of modules as they were given."""
        pairs = zip(self._given, self.models, strict=True)
        return [fingerprint(model if isinstance(given, str) else given) for given, model in pairs]

    def _check_hashes(self) -> None:
        """Check the fingerprints of the surrogates.

        Raises:
            ClasswiseError: if they do not begin with ``surrogate_hash``.
        """
        hashes = self.surrogate_hash.split(_AND) if self.surrogate_hash else [""] * len(self._given)
        found = self._fingerprints
        if len(hashes) != len(found):
            raise ClasswiseError(f"transfer: {len(hashes)} hashes for {len(found)} surrogates; state one of each")
        for surrogate, digest, expected in zip(self._given, found, hashes, strict=True):
            if not digest.startswith(expected):
                raise ClasswiseError(
                    f"transfer: the parameters of the surrogate {_name(surrogate)} have the fingerprint "
                    f"{digest[:_DIGITS]}, and surrogate_hash is {expected}; give the surrogate with this fingerprint, "
                    "or no surrogate_hash"
                )

    @cached_property
    def _forwards(self) -> list[Forward]:
        return [EXACT.forward(model) for model in self.models]

    @cached_property
    def _checked(self) -> set[object]:
        """Image shapes, class counts and devices that the surrogates have been checked for."""
        return set()

    def _turn(self, inputs: AttackInputs) -> Tensor | None:
        """The position of the surrogate of each row, int64 (N,); None: there is one, or their mean is attacked."""
        if self._turns == 1:
            return None
        assert inputs.reference is not None
        restart = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart
        return restart // self.attack.starts_for(inputs.reference.shape[1])

    def _forward(self, turn: Tensor | None) -> Forward:
        """The logits that are attacked: of a row's own surrogate, or the mean of all.

        Every surrogate evaluates the whole batch, since a batch of the rows of one would need a synchronisation, and
        would have another size, on which the last bits depend. On a CPU those without a row are left out.
        """
        if turn is None:
            return self._forwards[0] if len(self._forwards) == 1 else self._mean
        in_use = [bool((turn == place).any()) if turn.device.type == "cpu" else True for place in range(self._turns)]

        def own(x: Tensor) -> Tensor:
            rows = turn.repeat(len(x) // len(turn))  # an attack may evaluate several versions of every image
            logits: Tensor | None = None
            for place, (forward, is_used) in enumerate(zip(self._forwards, in_use, strict=True)):
                if is_used:
                    found = forward(x)
                    logits = found if logits is None else torch.where((rows == place)[:, None], found, logits)
            assert logits is not None
            return logits

        return own

    def _mean(self, x: Tensor) -> Tensor:
        """The mean of the logits of all surrogates, (N, classes)."""
        return torch.stack([forward(x) for forward in self._forwards]).mean(0)

    def _inner_inputs(self, inputs: AttackInputs, reference: State) -> AttackInputs:
        """The inputs with the surrogates' clean logits in place of the model's, and the starts of one surrogate."""
        restart = inputs.restart
        if restart is not None and self._turns > 1:
            assert inputs.reference is not None
            restart = restart % self.attack.starts_for(inputs.reference.shape[1])
        return dataclasses.replace(inputs, reference=reference.get(_REFERENCE), restart=restart)

    def _clean_logits(self, x: Tensor, turn: Tensor | None) -> Tensor:
        """The logits that are attacked, on clean images, in passes of one fixed size."""
        passes = []
        with torch.no_grad():
            for places in torch.split(torch.arange(len(x), device=x.device), _BATCH):
                padded = places[torch.arange(_BATCH, device=x.device) % len(places)]
                forward = self._forward(None if turn is None else turn[padded])
                passes.append(forward(x[padded])[: len(places)])
        return torch.cat(passes)

    def _check_surrogates(self, inputs: AttackInputs) -> None:
        """Check, once per shape and device, that the surrogates accept the images and have the same classes.

        Raises:
            ClasswiseError: if one does not.
        """
        assert inputs.reference is not None
        shape, classes = tuple(inputs.x.shape[1:]), inputs.reference.shape[1]
        if (shape, classes, inputs.x.device) in self._checked:
            return
        self.models.to(inputs.x.device)
        for name, forward in zip(map(_name, self._given), self._forwards, strict=True):
            try:
                with torch.no_grad():
                    found = forward(inputs.x[:1]).shape[1]
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ClasswiseError(f"surrogate {name} does not accept images of shape {shape}: {reason}") from error
            if found != classes:
                raise ClasswiseError(
                    f"surrogate {name} has {found} classes and the model {classes}; they must be equal"
                )
        self._checked.add((shape, classes, inputs.x.device))


def _name(surrogate: Surrogate) -> str:
    return surrogate if isinstance(surrogate, str) else type(surrogate).__name__
