"""Passes of one model: gradients as `Precision` sets them, logits in float32, and counts of both."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward, Precision
from classwise.models.fusion import fuse
from classwise.models.modes import evaluating, frozen

Loss = Callable[[Tensor], Tensor]
"""Logits (N, C) to a loss for each row, (N,)."""


class NoGradientError(ClasswiseError):
    """The model's logits have no gradient with respect to its input."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits do not depend on its input in autograd (it detaches them, runs under torch.no_grad, or "
            "leaves torch); use an attack without gradients, such as square"
        )


class CountedForward:
    """A forward pass that counts the images it evaluates, forward and backward; ``module`` is the model behind it."""

    def __init__(self, forward: Forward, module: nn.Module) -> None:
        self._forward = forward
        self.module = module
        self.forwards = 0
        self.backwards = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 logits (N, classes)."""
        self.forwards += len(x)
        logits = self._forward(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


class Passes:
    """The passes of one model at one batch size.

    Args:
        model: a classifier that maps (N, C, H, W) in [0, 1] to logits (N, classes).
        precision: how an attack's gradients are computed; `logits` and `predict` are always in float32.
        batch_size: images of every pass of `logits`, fixed.
    """

    def __init__(self, model: nn.Module, precision: Precision, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.device = _device_of(model)
        self._precision = precision
        self._forward = precision.forward(model)
        self._float32 = Precision(channels_last=precision.channels_last).forward(model)
        self._classes: int | None = None

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits in passes of exactly the batch size, the tail padded with copies."""
        with torch.no_grad():
            passes = []
            for block in torch.split(x, self.batch_size):
                padded = block[torch.arange(self.batch_size, device=x.device) % len(block)]
                passes.append(self._float32(padded)[: len(block)])
        self._classes = passes[0].shape[1]
        return torch.cat(passes)

    def predict(self, images: Iterable[Tensor]) -> Iterator[Tensor]:
        """Float32 logits for each block of images, the model in evaluation mode meanwhile."""
        with evaluating(self.model), frozen(self.model):
            for block in images:
                yield self.logits(block.to(self.device))

    def classes(self, x: Tensor) -> int:
        """The number of logits; evaluates the first of some images where no pass has been made yet."""
        return self._classes or self.logits(x[:1]).shape[1]

    @contextmanager
    def for_gradients(self, *, precise: bool) -> Iterator[CountedForward]:
        """The model in evaluation mode, frozen, with its batch normalisation fused where that saves time.

        Args:
            precise: compute in float32 whatever the settings say.
        """
        precision = self._precision
        with evaluating(self.model), frozen(self.model):
            if precision.dtype == "float32" or precision.compile:
                yield CountedForward(self._float32 if precise else self._forward, self.model)
                return
            if precise:
                precision = dataclasses.replace(precision, dtype="float32")
            with fuse(self.model, precision) as forward:
                yield CountedForward(forward, self.model)

    @property
    def overwrites(self) -> bool:
        """Whether the model was seen to write into its input; it gets copies then."""
        return bool(self._float32.overwrites)

    def missing_gradient(self, x: Tensor) -> str:
        """Why the model's logits have no gradient at some images; empty if they have one.

        It costs a pass forward and backward over one batch.
        """
        x = recordable(x)[torch.arange(self.batch_size, device=x.device) % len(x)]
        try:
            with evaluating(self.model), frozen(self.model):
                value_and_gradient(self._float32, x, lambda logits: logits.sum(1))
        except torch.OutOfMemoryError:
            raise
        except NoGradientError:
            return "its logits do not depend on the images in autograd"
        except RuntimeError as error:  # it runs without gradients, as the pass before has shown
            return f"it fails where gradients are recorded ({str(error).strip().partition(chr(10))[0]})"
        return ""


def value_and_gradient(model: Forward, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` (N, C) and the gradient of the summed loss there (shaped like ``x``).

    The loss is summed, not averaged, so that a row's gradient does not depend on the size of its batch. A gradient
    that is not finite is replaced by zero, so that a faulty model cannot push an image out of the ball.

    Raises:
        NoGradientError: if the logits do not depend on ``x`` in autograd. (A gradient that is zero is no error.)
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        logits = model(leaf)
        gradient = image_gradient(loss(logits), leaf) if logits.requires_grad else None
    if gradient is None:
        raise NoGradientError
    return logits.detach(), gradient.nan_to_num(0.0, 0.0, 0.0).contiguous()


def image_gradient(values: Tensor, leaf: Tensor, *, retain: bool = False) -> Tensor | None:
    """The gradient of the sum of ``values`` at ``leaf``, shaped like it; None if they do not depend on it."""
    (gradient,) = torch.autograd.grad(values.sum(), leaf, retain_graph=retain, allow_unused=True)
    return gradient


def recordable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one that was made in `torch.inference_mode`, which autograd refuses."""
    return tensor.clone() if tensor.is_inference() else tensor


def _device_of(model: nn.Module) -> torch.device:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
