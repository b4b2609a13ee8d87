"""Robust and non-robust data sets: Ilyas et al., Adversarial Examples Are Not Bugs, They Are Features (2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.config import Count, NonNegative, Positive, configurable
from classwise.data.images import Images
from classwise.models.modes import evaluating, frozen
from classwise.threat.ball import Threat

_TINY = 1e-12


@configurable
class RobustFeatures:
    """The robust data set: other images with the features that a robust network assigns to the originals (section 3.1).

    Each image starts at a random image of the set, sampled by the seed and its own ``index``. Normalised gradient steps
    minimise the distance to the features of the original image, whose label it has. Properties that the network ignores
    remain those of the random image.

    Attributes:
        steps: number of gradient steps.
        step: L2 norm of a step.
        batch_size: images per batch.
    """

    steps: Count = 1000
    step: Positive = 0.1
    batch_size: Count = 128

    def __call__(self, model: nn.Module, images: Images, *, seed: int = 0, progress: Progress | None = None) -> Images:
        """Generate the robust data set: float32, with the same labels.

        Args:
            model: a trained network of the zoo; in the paper trained adversarially (L2, radius 0.25 to 0.5).
            images: the training images.
            seed: seed of the random start images.
            progress: receives the progress after every batch.

        Raises:
            ClasswiseError: if the model has no method ``features``.
        """
        features = _features_of(model)
        rng = CounterRNG(seed, "robust features")

        def make(batch_x: Tensor, y: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
            start = images.pixels(rng.integers(index, (), len(images)))
            with torch.no_grad():
                target = features(batch_x)

            def distance(x: Tensor) -> Tensor:
                return (features(x) - target).square().sum(1).clamp(min=_TINY).sqrt().sum()

            x = start
            for _ in range(self.steps):
                x = (x - self.step * _unit_gradient(distance, x)).clamp_(0, 1)
            return x

        pixels = _in_batches(model, images, self.batch_size, make, progress or NullProgress())
        return images.with_pixels(pixels, f"{images.name}, robust features")


@configurable
class NonRobustFeatures:
    """The non-robust data set: adversarial examples of a standard network, labelled with their targets (section 3.2).

    Each image is attacked towards a target class by targeted L2 PGD and labelled with the target. The labels look wrong
    to humans; only features that small perturbations change are predictive of them.

    Attributes:
        targets: ``"random"``, uniform over the classes, or ``"next"``, the label plus one.
        epsilon: L2 radius.
        steps: number of gradient steps.
        step: L2 norm of a step.
        batch_size: images per batch.
    """

    targets: Literal["random", "next"] = "random"
    epsilon: Positive = 0.5
    steps: Count = 100
    step: NonNegative = 0.1
    batch_size: Count = 128

    def __call__(self, model: nn.Module, images: Images, *, seed: int = 0, progress: Progress | None = None) -> Images:
        """Generate the non-robust data set: float32, with the targets as labels and the true ones in ``original``.

        Args:
            model: a trained network from images to logits.
            images: the training images.
            seed: seed of the random targets.
            progress: receives the progress after every batch.
        """
        classes = images.num_classes
        if self.targets == "next":
            target = (images.y + 1) % classes
        else:
            target = CounterRNG(seed, "targets").integers(images.index, (), classes)
        threat, forward = Threat("L2", self.epsilon), EXACT.forward(model)

        def make(batch_x: Tensor, y: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
            def loss(x: Tensor) -> Tensor:
                return F.cross_entropy(forward(x), y, reduction="sum")

            x = batch_x
            for _ in range(self.steps):
                x = threat.project(x - self.step * _unit_gradient(loss, x), batch_x)
            return x

        relabelled = images.with_labels(target)
        pixels = _in_batches(model, relabelled, self.batch_size, make, progress or NullProgress())
        attacked = relabelled.with_pixels(pixels, f"{images.name}, non-robust features ({self.targets} targets)")
        return attacked.with_column("original", images.y, images.class_names)


def _features_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    features = getattr(model, "features", None)
    if not callable(features):
        raise ClasswiseError(f"{type(model).__name__} has no method features(x); use a network of the zoo")
    method: Callable[[Tensor], Tensor] = features
    return method


def _in_batches(
    model: nn.Module,
    images: Images,
    size: int,
    make: Callable[[Tensor, Tensor, Tensor], Tensor],
    progress: Progress,
) -> Tensor:
    parts = []
    progress.start("features", len(images))
    with evaluating(model), frozen(model), true_float32(images.device):
        for batch in images.batches(size):
            parts.append(make(batch.x, batch.y, batch.index).detach())
            progress.advance(len(batch.x))
    return torch.cat(parts)


def _unit_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a sum over images, normalised per image to L2 norm 1 (0 where it vanishes)."""
    leaf = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    length: Tensor = gradient.flatten(1).norm(dim=1).clamp(min=_TINY)
    unit: Tensor = gradient / length.view(-1, 1, 1, 1)
    return unit
