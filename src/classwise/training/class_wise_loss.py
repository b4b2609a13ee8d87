"""The loss of a recipe for your own training loop, such as a plain PyTorch loop or Lightning's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pydantic
import torch
from torch import Tensor, nn

from classwise.core.compute.compilation import CompiledNetwork, Compiling, compiled
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.ambient_state import known_state
from classwise.core.settings.arguments import checked
from classwise.core.settings.names import checked_names
from classwise.data import Images
from classwise.data.images import float_pixels
from classwise.models.modes import frozen
from classwise.models.unwrapping import unwrapped
from classwise.threat.ball import Threat, ThreatLike
from classwise.training.averaging import Average, copied
from classwise.training.batches import with_settings
from classwise.training.classes.signals import ClassSettings, ClassSums
from classwise.training.evaluation import Evaluation, class_means
from classwise.training.objectives.base import TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import per_image
from classwise.training.schedules.base import Classes, ClassSchedule
from classwise.training.updates import Plain


class ClassWiseLoss(nn.Module):
    """The objective, class schedules, reduction and weight averaging of a recipe, for your own training loop.

    A call attacks a batch and returns its loss. After each epoch, `end_epoch` measures the classes, updates the
    schedules and averages the weights. The optimiser, its learning rate, the data, the augmentation and the selection
    of an epoch are those of your loop, not of the recipe. With the same batches, the weights are bit for bit those of
    `classwise.train`, on a CPU and for models without random layers.

    The state of the schedules and the average is in ``state_dict()``, so a module that has this loss as an attribute
    saves it in its checkpoints. There are no parameters.

    Args:
        recipe: a recipe's name, a mapping, or a `Recipe`; ``epochs`` and ``seed`` are used, too.
        class_counts: number of training images of each class.
        steps_per_epoch: number of batches of an epoch.
        threat: the threat, such as ``"Linf:8/255"``; None for that of the recipe.
        class_names: names of the classes; None for their labels.
        teacher: the teacher of a distillation, in evaluation mode, on the device of the images.
        device: the device of the images.

    Raises:
        ClasswiseError: if the recipe has no threat and none is given, lacks its teacher, or has a part that needs
            `classwise.train`: an update other than ``plain``, averaging after each step, class sampling, an objective
            with a memory, or the schedule ``cmp`` or ``dafa-average``.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("small-cnn", num_classes=3, in_channels=1, width=0.25)
        >>> loss = cw.ClassWiseLoss("at", [2, 2, 2], steps_per_epoch=1, threat="Linf:0.1")
        >>> value = loss(model, torch.rand(6, 1, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> value.backward()
        >>> sorted(loss.end_epoch(model))
        ['train.clean', 'train.count', 'train.robust']
    """

    @checked
    def __init__(
        self,
        recipe: str | Mapping[str, Any] | Recipe,
        class_counts: Sequence[int] | Tensor,
        *,
        steps_per_epoch: Annotated[int, pydantic.Field(ge=1)],
        threat: ThreatLike | None = None,
        class_names: Sequence[str] | None = None,
        teacher: nn.Module | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        read = Recipe.read(recipe)
        ball = read.parts.threat if threat is None else Threat.parse(threat)
        if ball is None:
            raise ClasswiseError(f"recipe {read.name!r} has no threat; give one, such as Linf:8/255")
        counts = torch.as_tensor(class_counts, device=device)
        self.recipe = read.completed(ball, classes=int((counts > 0).sum())).on(device)
        self.parts = parts = self.recipe.parts
        self.threat = ball
        names = checked_names(map(str, range(len(counts))) if class_names is None else class_names, "class names")
        if len(names) != len(counts):
            raise ClasswiseError(f"{len(names)} class names for {len(counts)} classes; give one for each class")
        self.classes = Classes(names, counts)
        self.reads = parts.reads
        _check(self.recipe, self.reads, teacher)
        self.steps_per_epoch = steps_per_epoch
        self.epoch = self.batches = 0
        self._compiled: tuple[CompiledNetwork, ...] = ()  # a reference, so that the model is not compiled again
        self._teacher = (teacher,)  # in a tuple, so that it is not a submodule
        self._rng = CounterRNG(self.recipe.seed, "training")
        self._schedules = [schedule.start(self.classes) for schedule in parts.schedules]
        self._average = Average()
        self._sums = ClassSums(len(self.classes), self.reads, counts.device)
        self.settings()  # refuses class sampling

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, index: Tensor | None = None) -> Tensor:
        """Attack a batch, and return its loss, ().

        Args:
            model: the model; it returns logits, and is in training mode afterwards.
            x: images in [0, 1], (N, C, H, W).
            y: labels, int64 (N,).
            index: the index of each image in the random numbers, int64 (N,); None: its position in the epoch.

        Raises:
            ClasswiseError: if pixels of the first batch of an epoch are outside [0, 1]; later ones are not read, which
                would wait for the device.
        """
        if self.batches == 0:
            float_pixels(x, "images of the loss")
        recorded = torch.is_grad_enabled()
        with known_state(), torch.set_grad_enabled(recorded):
            return self._loss(model, x, y, index)

    def _loss(self, model: nn.Module, x: Tensor, y: Tensor, index: Tensor | None) -> Tensor:
        """The loss of `forward`."""
        parts, settings = self.parts, self.settings()
        batch = self._batch(x, y, index, settings)
        forward = self.recipe.precision.forward(model)
        network = unwrapped(model, compiled=False)  # to attack images takes no exchange between processes
        attacked = forward if network is model else self.recipe.precision.forward(network)
        if self.recipe.precision.compile == "on":
            self._compiled = (compiled(model),)
            forward.compile(Compiling(1, math.inf))
        model.train(self.recipe.attack_mode == "train")
        with frozen(model), torch.enable_grad():
            points = parts.objective.points(
                attacked, batch, parts.attack, settings, self._rng.child("craft").at(self.epoch)
            )
        model.train()
        step = parts.objective.step(forward, batch, points, settings)
        loss = parts.reduction(step, batch, settings)
        each = per_image(step, batch, settings) if "train.loss" in self.reads else None
        self._sums.add(y, step.clean_logits, step.robust_logits, each, step.steps)
        detached = step.detached()
        self._schedules = [
            schedule.after_batch(state, detached, batch)
            for schedule, state in zip(parts.schedules, self._schedules, strict=True)
        ]
        self.batches += 1
        return loss

    def settings(self) -> ClassSettings:
        """Return the current class settings, such as the radius of each class.

        Raises:
            ClasswiseError: if a schedule samples images by class, which a loss cannot do.
        """
        settings = self.parts.class_settings(self.classes, self._schedules, self.epoch)
        if settings.sampling is not None:
            raise ClasswiseError(f"recipe {self.recipe.name!r} samples images by class; use classwise.train")
        return settings

    @checked
    def end_epoch(self, model: nn.Module, valid: Images | None = None) -> dict[str, Tensor]:
        """End an epoch: evaluate the model, and update the schedules and the average.

        Gradients of the validation attack are computed also under `torch.no_grad` and `torch.inference_mode`, in one of
        which Lightning validates.

        Args:
            model: the model; its modes do not change.
            valid: the validation images, on the device of the model; needed by FAWA and schedules that read them.

        Returns:
            The measurements of the epoch by name, such as ``train.robust`` and ``valid.robust``, (C,) or
            (C, C) each.

        Raises:
            ClasswiseError: if the recipe reads measurements on validation images and none are given.
        """
        needed = sorted(name for name in self.reads if name.startswith("valid."))
        if needed and valid is None:
            raise ClasswiseError(f"recipe {self.recipe.name!r} reads {needed[0]}; give validation images, valid=")
        signals = self._sums.signals()
        if valid is not None:
            attack = self.parts.validation_attack
            outputs = Evaluation(unwrapped(model), valid, attack, self.threat, self.recipe)()
            means = class_means(outputs, valid.y, len(self.classes), self.reads)
            signals |= {f"valid.{name}": value for name, value in means.items()}
        progress = self.epoch / self.recipe.epochs
        weights = {name: copied(value) for name, value in model.state_dict().items()}
        self._average = self.parts.averaging.after_epoch(self._average, weights, signals, progress)
        self._schedules = [
            schedule.after_epoch(state, signals, self.epoch)
            for schedule, state in zip(self.parts.schedules, self._schedules, strict=True)
        ]
        self._sums = ClassSums(len(self.classes), self.reads, self.classes.device)
        self.epoch, self.batches = self.epoch + 1, 0
        return signals

    @property
    def average(self) -> dict[str, Tensor]:
        """The averaged weights, a state dict of the model; empty before the first average."""
        return self._average.weights

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state, for ``state_dict()``."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "schedules": self._schedules,
            "average": dataclasses.asdict(self._average),
            "sums": self._sums.sums,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state, for ``load_state_dict()``."""
        self.epoch, self.batches = state["epoch"], state["batches"]
        self._schedules = state["schedules"]
        self._average = Average(**state["average"])
        self._sums.sums = state["sums"]

    def _batch(self, x: Tensor, y: Tensor, index: Tensor | None, settings: ClassSettings) -> TrainingBatch:
        """The batch with the threat and the target of each image."""
        if index is None:
            index = self.batches * (1 << 20) + torch.arange(len(x), device=x.device)
        progress = (self.epoch + (self.batches + 0.5) / self.steps_per_epoch) / self.recipe.epochs
        rng = self._rng.child("target").at(self.epoch)
        batch = with_settings(x, y, index, self.threat, settings, rng, progress)
        (teacher,) = self._teacher
        if teacher is None:
            return batch
        with torch.no_grad():
            return dataclasses.replace(batch, teacher_logits=self.recipe.precision.forward(teacher)(x))


def _check(recipe: Recipe, reads: frozenset[str], teacher: nn.Module | None) -> None:
    """Check that a recipe can be used without the trainer.

    Raises:
        ClasswiseError: if not.
    """
    parts, reason = recipe.parts, ""
    if not isinstance(parts.update, Plain):
        reason = "its update is not plain"
    elif "valid.average_confidence" in reads:
        reason = "it reads valid.average_confidence"
    elif any(type(part).before_training is not ClassSchedule.before_training for part in parts.schedules):
        reason = "a schedule evaluates the untrained network"
    elif parts.objective.remembers:
        reason = "its objective has a memory of earlier steps"
    elif parts.averaging.averages_steps:
        reason = "it averages weights after each step; set averaging.every = epoch"
    elif recipe.distils and teacher is None:
        reason = "it distils a teacher; give teacher="
    if reason:
        raise ClasswiseError(f"recipe {recipe.name!r} cannot be used outside of classwise.train: {reason}")
