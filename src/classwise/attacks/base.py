"""Base class of attacks: `Attack.start` and `Attack.step` on columns, which the engine calls."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from classwise.attacks.engine import AttackInputs, BoundAttack, State, perturb
from classwise.core.arguments import checked
from classwise.core.description import Described
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward
from classwise.core.threat import NORM_BALLS, Norm, Threat, ThreatLike


class Attack(Described, ABC):
    """Base class of attacks.

    Subclasses are frozen dataclasses (`classwise.core.config.configurable`). A step computes each row from that row
    only, so the result for an image does not depend on its neighbours. A step must not synchronise with the device.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("small-cnn", num_classes=10, in_channels=3, width=0.25)
        >>> images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
        >>> attack = cw.ATTACKS.load("pgd")(steps=10)
        >>> adversarial = attack.perturb(model, images, labels, "Linf:8/255")
        >>> adversarial.shape
        torch.Size([4, 3, 32, 32])
        >>> bool((adversarial - images).abs().max() < 8.001 / 255)
        True
    """

    #: State columns that are written to the outcomes, in addition to iterations and passes.
    records: ClassVar[tuple[str, ...]] = ()
    #: Supported threats: norms, ``"recolour"`` and ``"spatial"``.
    norms: ClassVar[tuple[Norm, ...]] = NORM_BALLS
    #: Whether a run with ``early_stop=False`` minimises the distance over all restarts.
    minimises: ClassVar[bool] = False
    #: Whether to compute in float32 in every engine, because lower precision would weaken the attack.
    precise: ClassVar[bool] = False
    #: State columns that are carried over from one restart of an image to the next.
    carries: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_reference(self) -> bool:
        """Whether the attack reads `AttackInputs.reference`, the logits on the clean images."""
        return False

    @property
    def may_end_early(self) -> bool:
        """Whether a start may end before `length` steps although no adversarial example was found."""
        return False

    def check(self) -> None:
        """Check that every required setting is present; most attacks have none.

        Raises:
            ClasswiseError: if a required setting is missing.
        """

    @property
    @abstractmethod
    def length(self) -> int:
        """Maximum number of steps per start."""

    @property
    def starts(self) -> int:
        """Number of starts per image, all of which must fail before the image counts as robust."""
        return 1

    def starts_for(self, classes: int) -> int:
        """Number of starts per image for a model with ``classes`` classes; fewer if each start has its own target."""
        del classes
        return self.starts

    @abstractmethod
    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Return the initial state, without a model pass."""

    @abstractmethod
    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the iterate (one or more passes) and update it. Row i depends on row i only."""

    def run(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """Run all steps of one start on a fixed batch, as training does; return the last iterate, shaped like ``x``."""
        state = self.start(model, inputs)
        for _ in range(self.length):
            state = self.step(model, inputs, state)
        return state["x"]

    @checked
    def perturb(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: ThreatLike,
        *,
        seed: int = 0,
        index: Tensor | None = None,
        target: Tensor | None = None,
        early_stop: bool = True,
    ) -> Tensor:
        """Attack a batch and return adversarial images, shaped like ``x``.

        Args:
            model: any classifier; it runs in evaluation mode, and its modes are restored afterwards.
            x: images in [0, 1], (N, C, H, W).
            y: labels, int64 (N,).
            threat: the threat, such as ``"Linf:8/255"``; its radius is a number or a tensor (N,).
            seed: seed of the attack's random numbers.
            index: index of each image in the random numbers, int64 (N,); by default its position in the batch.
            target: target class of each image, int64 (N,); -1 for an untargeted attack.
            early_stop: return the first misclassified iterate, else the iterate of lowest margin. False: return the
                last iterate.

        Returns:
            Images in [0, 1] and within the ball, (N, C, H, W).

        Raises:
            ClasswiseError: if the attack does not support the threat.
        """
        threat = self.supported(threat)
        return perturb(self, model, x, y, threat, seed=seed, index=index, target=target, early_stop=early_stop)

    @checked
    def bind(self, model: nn.Module, threat: ThreatLike, *, seed: int = 0, early_stop: bool = True) -> BoundAttack:
        """Bind a model and a threat; the result is called as ``attack(images, labels)``.

        Raises:
            ClasswiseError: if the attack does not support the threat.
        """
        return BoundAttack(self, model, self.supported(threat), seed, early_stop)

    def supported(self, threat: ThreatLike) -> Threat:
        """Parse a threat and check that the attack supports it.

        Raises:
            ClasswiseError: if it does not.
        """
        parsed = Threat.parse(threat)
        if parsed.norm not in self.norms:
            supported = " and ".join(self.norms)
            raise ClasswiseError(f"{type(self).__name__} does not support {parsed.norm}; it supports {supported}")
        return parsed

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002  # the usual signature
        """Raise an error: an unbound attack has no model and no radius."""
        raise ClasswiseError(
            f"{type(self).__name__} is not bound to a model and a threat; call attack.bind(model, 'Linf:8/255')"
        )


class AveragedAttack(Attack):
    """Base class of attacks without gradients that average their loss over ``eot_iter`` passes at each point."""

    eot_iter: int

    def described(self) -> dict[str, Any]:
        """The fields as in a spec; ``eot_iter = 1`` is left out, as in audits written before the option existed."""
        fields: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]  # every attack is a dataclass
        return {name: value for name, value in fields.items() if name != "eot_iter" or value != 1}
