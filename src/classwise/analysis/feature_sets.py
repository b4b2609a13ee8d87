"""Sets that keep only what a model uses: Ilyas et al., Adversarial Examples Are Not Bugs, They Are Features (2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.config import Count, NonNegative, Positive, configurable
from classwise.core.errors import ClasswiseError
from classwise.core.progress import NullProgress, Progress
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data.images import Images
from classwise.models.modes import evaluating, frozen

_TINY = 1e-12


@configurable
class RobustFeatures:
    """Images that a robust network cannot tell from the originals, begun from other images (section 3.1).

    Each image starts at a random image of the set, drawn by the seed and its own ``index``, and goes by normalised
    gradient steps towards the features of the original, whose label it keeps. What the network does not look at stays
    that of the other image.

    Attributes:
        steps: gradient steps.
        step: the length of each, in the L2 norm.
        batch_size: images at a time.
    """

    steps: Count = 1000
    step: Positive = 0.1
    batch_size: Count = 128

    def __call__(self, model: nn.Module, images: Images, *, seed: int = 0, progress: Progress | None = None) -> Images:
        """The robust set of the images: float32, with the same labels.

        Args:
            model: a trained network of the zoo, by the paper one trained adversarially (L2, radius 0.25 to 0.5).
            images: the training images.
            seed: names the draws.
            progress: hears of every batch.

        Raises:
            ClasswiseError: if the model offers no features.
        """
        features = _features_of(model)
        rng = CounterRNG(seed, "robust features")

        def make(batch_x: Tensor, y: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
            start = images.pixels(rng.integers(index, (), len(images)))
            with torch.no_grad():
                wanted = features(batch_x)

            def apart(x: Tensor) -> Tensor:
                return (features(x) - wanted).square().sum(1).clamp(min=_TINY).sqrt().sum()

            x = start
            for _ in range(self.steps):
                x = (x - self.step * _unit_gradient(apart, x)).clamp_(0, 1)
            return x

        made = _in_batches(model, images, self.batch_size, make, progress or NullProgress())
        return images.with_pixels(made, f"{images.name}, robust features")


@configurable
class NonRobustFeatures:
    """Images that look as they did and are labelled as a standard network sees them after an attack (section 3.2).

    Each image is pushed to a target class by targeted L2 PGD and labelled with the target: to people the labels are
    wrong, and what a network can learn of them are features that small perturbations change.

    Attributes:
        targets: ``"random"``, any class with equal probability, or ``"next"``, the label plus one.
        epsilon: the L2 radius.
        steps: gradient steps.
        step: the length of each, in the L2 norm.
        batch_size: images at a time.
    """

    targets: Literal["random", "next"] = "random"
    epsilon: Positive = 0.5
    steps: Count = 100
    step: NonNegative = 0.1
    batch_size: Count = 128

    def __call__(self, model: nn.Module, images: Images, *, seed: int = 0, progress: Progress | None = None) -> Images:
        """The non-robust set: float32, labelled with the targets; the column ``original`` has the true labels.

        Args:
            model: a trained network from images to logits.
            images: the training images.
            seed: names the targets.
            progress: hears of every batch.
        """
        classes = images.num_classes
        if self.targets == "next":
            target = (images.y + 1) % classes
        else:
            target = CounterRNG(seed, "targets").integers(images.index, (), classes)
        threat = Threat("L2", self.epsilon)

        def make(batch_x: Tensor, y: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
            def loss(x: Tensor) -> Tensor:
                logits: Tensor = model(x)
                return F.cross_entropy(logits, y, reduction="sum")

            x = batch_x
            for _ in range(self.steps):
                x = threat.project(x - self.step * _unit_gradient(loss, x), batch_x)
            return x

        aimed = images.with_labels(target)
        made = _in_batches(model, aimed, self.batch_size, make, progress or NullProgress())
        named = aimed.with_pixels(made, f"{images.name}, non-robust features ({self.targets} targets)")
        return named.with_column("original", images.y, images.class_names)


def _features_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    features = getattr(model, "features", None)
    if not callable(features):
        raise ClasswiseError(f"a {type(model).__name__} offers no features(x); take a network of the zoo")
    found: Callable[[Tensor], Tensor] = features
    return found


def _in_batches(
    model: nn.Module,
    images: Images,
    size: int,
    make: Callable[[Tensor, Tensor, Tensor], Tensor],
    progress: Progress,
) -> Tensor:
    parts = []
    progress.start("features", len(images))
    with evaluating(model), frozen(model):
        for batch in images.batches(size):
            parts.append(make(batch.x, batch.y, batch.index).detach())
            progress.advance(len(batch.x))
    return torch.cat(parts)


def _unit_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a sum over images, each image's of length 1 (0 where it vanishes)."""
    leaf = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    length: Tensor = gradient.flatten(1).norm(dim=1).clamp(min=_TINY)
    unit: Tensor = gradient / length.view(-1, 1, 1, 1)
    return unit
