"""Single-step adversarial training with a regulariser: NuAT, FGSM-PGI and LIET. All are for the Linf norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import value_and_gradient
from classwise.attacks.gradient.ascent import Ascent
from classwise.attacks.losses import cross_entropy
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Count, NonNegative, Share, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Objective, Step, TrainingBatch, clean_logits, remembered, with_fields

_TINY = 1e-30


@configurable
class _SingleStep(Objective):
    """Base class: a gradient attack from a point of the objective, and a regulariser at two points of each image."""

    cost = PassCounts(forward=2, to_weights=2)
    changes: ClassVar[tuple[str, ...]] = ("loss",)

    beta: NonNegative = 1.0

    uses = Objective.uses | {"beta"}
    norms = ("Linf",)

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack without its own initial point."""
        return from_given_point(attack)


def from_given_point(attack: Attack, **fields: str | int) -> Ascent:
    """Return a gradient attack without a random initialisation, and with some fields replaced.

    Raises:
        ClasswiseError: for an attack without gradients.
    """
    if not isinstance(attack, Ascent):
        raise ClasswiseError(f"{type(attack).__name__} does not step along a gradient from a given point; use fgsm")
    changed = with_fields(attack, random_init="none", **fields)
    assert isinstance(changed, Ascent)
    return changed


@configurable
class _Growing(_SingleStep):
    """A single-step objective whose regulariser grows linearly during training, from 0 to beta."""

    def memory(
        self, images: int, shape: Sequence[int], classes: int, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Return the fraction of training completed, ()."""
        del images, shape, classes
        return {"progress": torch.zeros((), device=device)}

    def before_step(
        self, model: Forward, batch: TrainingBatch, settings: ClassSettings, step: int, rng: CounterRNG
    ) -> None:
        """Set the fraction of training completed."""
        del model, settings, step, rng
        remembered(batch, "progress").fill_(batch.progress)

    def weight(self, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """The weight of the regulariser for each image, (N,) or ()."""
        return remembered(batch, "progress") * self.betas(batch, settings)


@configurable
class NuclearNorm(_Growing):
    """NuAT: CE(f(x), y) + nu ‖f(x) - f(x')‖_* / N, with the nuclear norm ‖.‖_* of the (N, C) logits of a batch.

    x' is one step from x + eps/2 r, r uniform in {-1, 1} for each value, along the gradient of CE(f(x'), y), in every
    second batch plus nu times the norm. nu grows linearly from 0 to beta during training.

    The norm is the sum over the images of <p_i, d_i>, where d_i is the i-th row of D = f(x) - f(x') and p_i that of its
    polar factor P = U V^T, D = U S V^T. These terms are not negative, and for constant P their gradients are those of
    the norm. So the term ``robust`` of an image is nu <p_i, d_i>; class weights multiply it, for the P of the
    unweighted batch.

    Args:
        beta: nu at the end of training; a class schedule may set it per class.
    """

    source = ("sriramanan2021towards",)
    example = "nuat:beta=4"

    beta: NonNegative = 4.0

    @property
    def attack_overhead(self) -> PassCounts:
        """The clean logits."""
        return PassCounts(forward=1)

    def memory(
        self, images: int, shape: Sequence[int], classes: int, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Return the fraction of training completed, and whether the attack of the step has the norm, () each."""
        return super().memory(images, shape, classes, device) | {"attack_norm": torch.zeros((), device=device)}

    def before_step(
        self, model: Forward, batch: TrainingBatch, settings: ClassSettings, step: int, rng: CounterRNG
    ) -> None:
        """Set the fraction of training completed, and the norm in the attack to 0 or 1 by turns."""
        super().before_step(model, batch, settings, step, rng)
        remembered(batch, "attack_norm").fill_(step % 2)

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute ``x'`` by the inner attack."""
        assert isinstance(attack, Ascent)
        model = self.criterion.scaled(model, settings)
        inputs, clean = (
            self.attack_inputs(batch, rng),
            clean_logits(model, batch),
        )
        weight = self.weight(batch, settings) * remembered(batch, "attack_norm")
        state = attack.start(model, inputs)
        state["x"] = batch.threat.project(batch.x + batch.threat.radius(batch.x) / 2 * signs(batch, rng), batch.x)

        def loss(logits: Tensor) -> Tensor:
            return attack.signed_loss(logits, inputs, state) + weight * nuclear_norm_terms(clean - logits, batch)

        for _ in range(attack.length):
            state = attack.ascend(model, inputs, state, loss)
        return {"robust": state["x"]}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the clean cross-entropy, and nu times the image's term of the nuclear norm."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        terms = {
            "clean": self.criterion(clean, batch.y, settings),
            "robust": self.weight(batch, settings) * nuclear_norm_terms(clean - robust, batch),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust)


def signs(batch: TrainingBatch, rng: CounterRNG) -> Tensor:
    """Random signs, -1 or 1, shaped like the images."""
    uniform = rng.child("signs").uniform(batch.index, tuple(batch.x.shape[1:]))
    return torch.where(uniform < 0.5, -1.0, 1.0)


def nuclear_norm_terms(difference: Tensor, batch: TrainingBatch) -> Tensor:
    """Compute the terms of the images in the nuclear norm of the full batch, (N,), see `NuclearNorm`.

    Args:
        difference: differences of logits of the rows of this process, (N, C).
        batch: these rows.
    """
    polar = polar_factor(batch.gather(difference.detach()))[batch.rows]
    return (polar * difference).sum(1)


_ROUNDS = 40
"""A round multiplies a small singular value by 1.5, and 1.5^34 is 1e6."""


def polar_factor(matrix: Tensor) -> Tensor:
    """Compute U V^T for a matrix U S V^T, by the iteration of Newton and Schulz in float64.

    Products of matrices need no synchronisation with the device. Singular values below 1e-6 of the Frobenius norm,
    where float32 logits are noise, have a factor below 1 in the result; that of a zero matrix is zero.

    Args:
        matrix: (N, C).

    Example:
        >>> import torch
        >>> polar_factor(torch.tensor([[3.0, 0.0], [0.0, -0.1], [0.0, 0.0]])).tolist()
        [[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]
    """
    wide = matrix.shape[0] < matrix.shape[1]
    factor = (matrix.T if wide else matrix).double()
    factor = factor / torch.linalg.vector_norm(factor).clamp_min(_TINY)
    for _ in range(_ROUNDS):
        factor = torch.addmm(factor, factor, factor.T @ factor, beta=1.5, alpha=-0.5)
    return (factor.T if wide else factor).to(matrix.dtype)


@configurable
class PriorGuided(_SingleStep):
    """FGSM-PGI: CE(f(x + d'), y) + beta mean_c (f(x + d')_c - f(x + d)_c)², d a perturbation from the former epochs.

    With the gradient g of CE(f(x + d), y), d' = clip(d + eps sign g), and the next epoch has d = clip(d + eps sign m),
    where m = g / ‖g‖_1 + decay m and ‖.‖_1 is over the batch; clip is to [-eps, eps]. Every ``reset_epochs`` epochs m
    is 0 and d uniform in {-eps, eps}. x + d is clipped to [0, 1].

    d belongs to the image before its augmentation, which moves under it. d / eps is always -1, 0 or 1. It is saved
    instead of d, so d has the present radius if a class schedule changes the radius. One step is taken for any attack
    of the recipe, which only defines the loss; the class setting ``step_size`` has no effect. Of an image that is
    several times in a batch, one of the results is saved. The memory has 5 bytes for each value of a training image,
    0.75 GB for 49,000 images of CIFAR-10, and so have the saved states of a run.

    Args:
        beta: the paper's lambda; a class schedule may set it per class.
        decay: the factor of the former momentum.
        reset_epochs: number of epochs between two resets.
    """

    source = ("jia2022prior",)
    example = "fgsm-pgi:beta=10"

    beta: NonNegative = 10.0
    decay: NonNegative = 0.3
    reset_epochs: Count = 40

    weighted_terms = frozenset({"robust"})

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack with one step of one radius."""
        return from_given_point(attack, steps=1, step_size="1eps")

    def memory(
        self, images: int, shape: Sequence[int], classes: int, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Return d / eps and m, (images, C, H, W), and the number of resets, (images,)."""
        del classes
        return {
            "perturbation": torch.zeros(images, *shape, dtype=torch.int8, device=device),
            "momentum": torch.zeros(images, *shape, device=device),
            "resets": torch.zeros(images, dtype=torch.int32, device=device),
        }

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute x + d (``"start"``) and x + d' (``"robust"``), and update the memory."""
        assert isinstance(attack, Ascent)
        model = self.criterion.scaled(model, settings)
        saved, momenta, resets = (remembered(batch, name) for name in ("perturbation", "momentum", "resets"))
        assert batch.memory_rows is not None
        rows, x, inputs = (
            batch.memory_rows,
            batch.x,
            self.attack_inputs(batch, rng),
        )
        reset = rng.epoch // self.reset_epochs + 1
        due = (resets[rows] < reset).view(-1, *[1] * (x.ndim - 1))
        unit = torch.where(due, signs(batch, rng.at(reset)), saved[rows].to(x.dtype))
        start = self._perturbed(batch, unit)
        state = attack.start(model, inputs)
        _, gradient = value_and_gradient(model, start, lambda logits: attack.signed_loss(logits, inputs, state))
        size = batch.gather(gradient.abs().flatten(1).sum(1)).sum().clamp_min(_TINY)
        momentum = gradient / size + self.decay * torch.where(due, 0.0, momenta[rows])
        robust = self._perturbed(batch, (unit + gradient.sign()).clamp(-1, 1))
        rows = batch.gather(rows)
        saved.index_copy_(0, rows, batch.gather((unit + momentum.sign()).clamp(-1, 1)).to(saved.dtype))
        momenta.index_copy_(0, rows, batch.gather(momentum))
        resets.index_fill_(0, rows, reset)
        return {"start": start, "robust": robust}

    def _perturbed(self, batch: TrainingBatch, unit: Tensor) -> Tensor:
        """The images with a perturbation in units of their radius."""
        return batch.threat.project(batch.x + batch.threat.radius(batch.x) * unit, batch.x)

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute both parts as one term, ``robust``, since both depend on d'."""
        model = self.criterion.scaled(model, settings)
        robust, start = model(points["robust"]), model(points["start"])
        regulariser = (robust - start).square().mean(1) * self.betas(batch, settings)
        return Step({"robust": self.criterion(robust, batch.y, settings) + regulariser}, robust_logits=robust)


@configurable
class LabelInformation(_Growing):
    """LIET: CE(f(x'), y) + l JS(S f(s), S f(x')), x' one step from s, a point that contains information on the label.

    JS is the Jensen-Shannon divergence (KL(p ‖ m) + KL(q ‖ m)) / 2 with m = (p + q) / 2, and l grows linearly from 0 to
    beta during training. s = x ± eps v_y, with one random sign for the batch, where v_c is the sign of the gradient of
    CE(f(.), c) at an image whose pixels are all 0.5, in evaluation mode. It is computed every ``every`` steps, by
    one more pass of one image of each class, which the cost of a step leaves out. A share of the values of s - x, for
    each image uniform in ``noise``, is replaced by uniform noise in [-eps, eps]. The paper has non-uniform label
    smoothing; the criterion of the recipe is that of the benchmark.

    Args:
        beta: l at the end of training; a class schedule may set it per class.
        every: number of steps between two computations of v.
        noise: the smallest and the largest share of noise.
    """

    source = ("pan2025mitigating", "pan2026fastat")
    example = "liet:beta=100"

    beta: NonNegative = 100.0
    every: Count = 20
    noise: tuple[Share, Share] = (0.1, 0.5)

    weighted_terms = frozenset({"robust"})

    def memory(
        self, images: int, shape: Sequence[int], classes: int, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Return the fraction of training completed, the sign of the batch, () each, and v, (classes, C, H, W)."""
        own = {
            "sign": torch.ones((), device=device),
            "label_information": torch.zeros(classes, *shape, dtype=torch.int8, device=device),
        }
        return super().memory(images, shape, classes, device) | own

    def before_step(
        self, model: Forward, batch: TrainingBatch, settings: ClassSettings, step: int, rng: CounterRNG
    ) -> None:
        """Set the fraction of training completed and the sign, and every ``every`` steps v."""
        super().before_step(model, batch, settings, step, rng)
        number = torch.full((1,), step, device=batch.x.device)
        remembered(batch, "sign").copy_(2 * rng.child("sign").integers(number, (), 2)[0] - 1)
        if step % self.every:
            return
        information, model = remembered(batch, "label_information"), self.criterion.scaled(model, settings)
        for labels in torch.split(torch.arange(len(information), device=batch.x.device), len(batch.x)):
            grey = batch.x.new_full((len(labels), *batch.x.shape[1:]), 0.5)
            _, gradient = value_and_gradient(model, grey, functools.partial(cross_entropy, y=labels))
            information.index_copy_(0, labels, gradient.sign().to(information.dtype))

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute s (``"start"``) and x' (``"robust"``)."""
        model = self.criterion.scaled(model, settings)
        inputs, x, shape = (
            self.attack_inputs(batch, rng),
            batch.x,
            tuple(batch.x.shape[1:]),
        )
        low, high = self.noise
        share = low + (high - low) * rng.child("share").uniform(batch.index, (1,) * len(shape))
        replaced = rng.child("replaced").uniform(batch.index, shape) < share
        noise = 2 * rng.child("noise").uniform(batch.index, shape) - 1
        information = remembered(batch, "sign") * remembered(batch, "label_information")[batch.y]
        start = batch.threat.project(x + batch.threat.radius(x) * torch.where(replaced, noise, information), x)
        state = attack.start(model, inputs) | {"x": start}
        for _ in range(attack.length):
            state = attack.step(model, inputs, state)
        return {"start": start, "robust": state["x"]}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute both parts as one term, ``robust``, since both depend on x'."""
        model = self.criterion.scaled(model, settings)
        robust, start = model(points["robust"]), model(points["start"])
        regulariser = jensen_shannon(start, robust) * self.weight(batch, settings)
        return Step({"robust": self.criterion(robust, batch.y, settings) + regulariser}, robust_logits=robust)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute (KL(p ‖ m) + KL(q ‖ m)) / 2 of two softmax p and q of logits, (N,); m is their mean."""
    p, q = first.log_softmax(1), second.log_softmax(1)
    m = torch.logaddexp(p, q) - math.log(2)
    return (p.exp() * (p - m) + q.exp() * (q - m)).sum(1) / 2
