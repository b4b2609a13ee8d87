"""Adversarial robustness distillation: the student learns the soft labels of a robust teacher.

The teacher is evaluated on the clean images only, in evaluation mode, and is never attacked.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Positive, Share, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes.signals import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch, with_fields


@configurable
class Distillation(Objective):
    """Base class of distillation from a teacher.

    Its inner attack measures the signal ``train.steps``. With ``variant="code"``, as in the public codes, divergences
    are divided by the number of classes (the mean over classes in place of the sum).

    Args:
        teacher: any model reference that `classwise.load_model` accepts, such as a run folder; its classes are those of
            the data. Required for training.
        teacher_weights: a file of weights, if the reference is the name of a model.
        variant: the scale of the divergences in the paper or in the public code.
    """

    cost = PassCounts(forward=2, to_weights=2)
    changes: ClassVar[tuple[str, ...]] = ("loss", "teacher")

    teacher: Annotated[str, pydantic.Field(max_length=4096)] = ""
    teacher_weights: str | None = None
    variant: Literal["paper", "code"] = "paper"

    distils = True
    measures = frozenset({"train.steps"})

    @property
    def weighted_terms(self) -> frozenset[Term]:  # type: ignore[override]
        """The terms whose weight, 1 - alpha or alpha, is not 0."""
        alpha: float = self.alpha  # type: ignore[attr-defined]
        weights: dict[Term, float] = {"clean": 1 - alpha, "robust": alpha}
        return frozenset(term for term, weight in weights.items() if weight)

    def attacked(self, model: Forward, inputs: AttackInputs, attack: Attack, progress: float) -> dict[str, Tensor]:
        """Run the inner attack, and count the steps at whose start each image is classified correctly."""
        state, steps = attack.start(model, inputs), torch.zeros_like(inputs.y)
        for _ in range(attack.length):
            state = attack.step(model, inputs, state)
            steps = steps + ~(state["margin"] < 0)
        return {"robust": state["x"], "steps": steps}

    def _divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(softmax(teacher) ‖ softmax(student)), (N,), in the scale of the variant."""
        value = divergence(teacher, student)
        return value / student.shape[1] if self.variant == "code" else value


def teacher_logits(batch: TrainingBatch) -> Tensor:
    """The teacher's logits on the clean images, (N, classes).

    Raises:
        ClasswiseError: if the batch has none.
    """
    if batch.teacher_logits is None:
        raise ClasswiseError("this objective needs a teacher; set objective.teacher, such as runs/teacher")
    return batch.teacher_logits


@configurable
class ARD(Distillation):
    """ARD: (1 - alpha) CE(f(x), y) + alpha T² KL(S(t(x)/T) ‖ S(f(x')/T)), x' maximising the cross-entropy.

    t is the teacher. The student's clean pass is taken for every alpha, as in the public code.

    Args:
        alpha: the weight of the distillation, in [0, 1].
        temperature: T.
    """

    source = ("goldblum2020adversarially",)
    example = "ard:alpha=1,temperature=30"

    alpha: Share = 1.0
    temperature: Positive = 30.0

    @property
    def uses(self) -> frozenset[str]:  # type: ignore[override]
        """Those of the criterion, if the loss of the labels has a weight."""
        return Objective.uses if "clean" in self.weighted_terms else frozenset()

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the clean cross-entropy and the divergence from the teacher, at the temperature."""
        model, t = self.criterion.scaled(model, settings), self.temperature
        clean, robust = model(batch.x), model(points["robust"])
        terms = {
            "clean": (1 - self.alpha) * self.criterion(clean, batch.y, settings),
            "robust": self.alpha * t**2 * self._divergence(teacher_logits(batch) / t, robust / t),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust, steps=points["steps"])


@configurable
class RSLAD(Distillation):
    """RSLAD: (1 - alpha) KL(S t(x) ‖ S f(x)) + alpha KL(S t(x) ‖ S f(x')), x' maximising the second divergence.

    t is the teacher. The attack starts at x + 0.001 N(0, 1). A schedule may divide the teacher's logits by a
    temperature of the class of the image, one for each term; the attack uses that of attacked images. With
    ``variant="code"`` both terms and the attack use the product of the two temperatures, as the public code of ABSLD
    does (it divides one tensor twice).

    Args:
        alpha: the weight of the term on attacked images, in [0, 1].
    """

    source = ("zi2021revisiting",)
    example = "rslad:alpha=5/6"

    alpha: Share = 5 / 6

    uses = frozenset({"clean_temperature", "robust_temperature"})

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack on the divergence from the teacher, with the initialisation of TRADES."""
        return with_fields(attack, objective="kl", random_init="normal")

    def reference(self, model: Forward, batch: TrainingBatch, settings: ClassSettings) -> Tensor | None:
        """Return the teacher's logits at the temperature of attacked images."""
        return self._soft_labels(batch, settings)[1]

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the divergences on clean and on attacked images."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        for_clean, for_robust = self._soft_labels(batch, settings)
        terms = {
            "clean": (1 - self.alpha) * self._divergence(for_clean, clean),
            "robust": self.alpha * self._divergence(for_robust, robust),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust, steps=points["steps"])

    def _soft_labels(self, batch: TrainingBatch, settings: ClassSettings) -> tuple[Tensor, Tensor]:
        """The teacher's logits at the temperatures for clean and for attacked images, (N, classes) each."""
        logits = teacher_logits(batch)
        divisors = [settings.of(f"{term}_temperature", batch.y) for term in ("clean", "robust")]
        clean, robust = (torch.ones_like(logits[:, 0]) if divisor is None else divisor for divisor in divisors)
        if self.variant == "code":
            clean = robust = clean * robust
        return logits / clean[:, None], logits / robust[:, None]
