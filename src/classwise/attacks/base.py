"""The contract of an attack: a start and a step on columns, so that one engine can run and refill any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, get_args

from torch import Tensor, nn

from classwise.attacks.engine import AttackInputs, BoundAttack, State, perturb
from classwise.core.description import Described
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward
from classwise.core.threat import Norm, Threat


class Attack(Described, ABC):
    """An attack: hyper-parameters, a start, a step.

    Subclasses are frozen dataclasses (`classwise.core.config.settings`). A step may look at its own row only, so the
    result for an image does not depend on its neighbours; it must not wait for the device.

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

    #: The columns of the state, beside iterations and passes, that belong in the outcomes.
    records: ClassVar[tuple[str, ...]] = ()
    #: The norms that it knows.
    norms: ClassVar[tuple[Norm, ...]] = get_args(Norm)
    #: Whether a run that does not stop at broken images looks for the nearest point over all its starts.
    minimises: ClassVar[bool] = False
    #: Whether it computes in float32 whatever the engine is set to, because coarser logits would weaken it.
    precise: ClassVar[bool] = False
    #: The columns of the state that a further start of the same image takes over from the one before.
    carries: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_reference(self) -> bool:
        """Whether the case must hold the logits on the clean images."""
        return False

    def check(self) -> None:  # most attacks have all they need
        """See that it was given all that it cannot run without.

        Raises:
            ClasswiseError: if not.
        """

    @property
    @abstractmethod
    def length(self) -> int:
        """The largest number of steps that a start takes."""

    @property
    def starts(self) -> int:
        """How many starts an image gets before it counts as standing."""
        return 1

    def starts_for(self, classes: int) -> int:
        """How many starts an image gets where the model has that many classes: fewer, if each aims at its own class."""
        del classes
        return self.starts

    @abstractmethod
    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The first columns. It makes no model pass."""

    @abstractmethod
    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the iterate (one pass or more) and move it. Row i depends on row i only."""

    def run(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """All steps of one start on a fixed batch; the last iterate, shaped like ``inputs.x``. What training uses."""
        state = self.start(model, inputs)
        for _ in range(self.length):
            state = self.step(model, inputs, state)
        return state["x"]

    def perturb(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat | str,
        *,
        seed: int = 0,
        index: Tensor | None = None,
        target: Tensor | None = None,
        early_stop: bool = True,
    ) -> Tensor:
        """Attack a batch and return adversarial images, shaped like ``x``.

        Args:
            model: any classifier; it is evaluated in evaluation mode and left as it was.
            x: images in [0, 1], (N, C, H, W).
            y: labels, int64 (N,).
            threat: the ball, such as ``"Linf:8/255"``; its radius one number or (N,).
            seed: the seed of the attack's draws.
            index: what each image is called in draws; by default its place in the batch.
            target: the class to reach for each image, -1 for none.
            early_stop: return the first misclassified iterate, else the one of lowest margin; False: the last iterate.
        """
        return perturb(self, model, x, y, threat, seed=seed, index=index, target=target, early_stop=early_stop)

    def bind(self, model: nn.Module, threat: Threat | str, *, seed: int = 0, early_stop: bool = True) -> BoundAttack:
        """The attack on one model under one threat, to be called as ``attack(images, labels)``."""
        return BoundAttack(self, model, Threat.parse(threat), seed, early_stop)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002  # the usual signature
        """Refuse politely: an attack alone has no model and no radius."""
        raise ClasswiseError(
            f"{type(self).__name__} needs a model and a radius first: attack.bind(model, 'Linf:8/255')"
        )
