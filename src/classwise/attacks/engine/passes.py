"""Model passes: gradients in the precision of `Precision`, logits in float32, and counts of both."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from classwise.attacks.engine.decisions import Decision, decide
from classwise.core.compute.compilation import Compiling
from classwise.core.compute.determinism import is_refusal
from classwise.core.compute.float32 import tf32, true_float32
from classwise.core.compute.memory_format import format_of
from classwise.core.compute.precision import Forward, Pass, Precision
from classwise.core.compute.repeats import ONCE, Repeats
from classwise.core.compute.rng import generator_states, generators_restored, seeded
from classwise.core.errors import ClasswiseError, first_line
from classwise.models.base import bare, device_of
from classwise.models.fusion import VERIFIED_IMAGES, Fusion
from classwise.models.logits import raised
from classwise.models.modes import evaluating, frozen, wrong_gradients_refused

Loss = Callable[[Tensor], Tensor]
"""Maps logits (N, C) to one loss per row, (N,)."""
NARROWEST = 8
"""Batches on a CPU that are smaller than a full one have a multiple of so many images."""
KNOWN = 4
"""Minimum number of images with known logits in such a batch of `Passes.logits`."""


_excluded: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()
"""Whether some logits of a model were -inf in any pass; on its device, so that a pass does not wait for it."""


class NoGradientError(ClasswiseError):
    """The model's logits have no gradient with respect to its input."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits do not depend on its input in autograd (it detaches them, runs under torch.no_grad, or "
            "leaves torch); use an attack without gradients, such as square"
        )


class CountedForward:
    """A forward pass that counts images evaluated, forward and backward.

    Args:
        forward: the forward pass.
        module: the underlying model.
        arithmetic: makes the context for the passes and their gradients, such as `true_float32` for exact ones.
        excludes: whether some logits are -inf, which are then `raised`.
        in_tf32: whether these passes are in TF32.
        compiling: which of them are compiled.

    Attributes:
        repeatable: whether an image is known to have the same results in every pass (`Passes.repeatable`).
        restore: restores the model after a step of an attack that runs code of a user.
    """

    repeatable = False

    def __init__(
        self,
        forward: Forward,
        module: nn.Module,
        arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        excludes: bool = False,
        in_tf32: bool = False,
        compiling: Compiling | None = None,
    ) -> None:
        self._forward = forward
        self._compiling = compiling
        self._excludes = excludes
        self.module = module
        self.arithmetic = arithmetic
        self.in_tf32 = in_tf32
        self.restore: Callable[[], None] = lambda: None
        self.forwards = 0
        self.backwards = 0
        self._observed: list[Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 logits (N, classes), finite for classes that are excluded by -inf (`raised`)."""
        self.forwards += len(x)
        if self._observed is not None and x.requires_grad:
            x.register_hook(self._observed.append)  # type: ignore[no-untyped-call]  # torch does not annotate it
        logits = self._forward(x)
        if self._observed is not None:
            self._observed.append(logits.detach())
        if self._excludes:
            logits = raised(logits)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    @contextmanager
    def observed(self) -> Iterator[list[Tensor]]:
        """Context with the list of the logits of its passes, and of the gradients of the images."""
        self._observed = found = list[Tensor]()
        try:
            yield found
        finally:
            self._observed = None

    def compile_batches_of(self, count: int) -> None:
        """Set the number of images of a compiled pass."""
        if self._compiling is not None:
            self._compiling.batch_size = count

    @contextmanager
    def not_compiled(self) -> Iterator[None]:
        """Context in which no pass is compiled."""
        if self._compiling is not None:
            self._compiling.paused = True
        try:
            yield
        finally:
            if self._compiling is not None:
                self._compiling.paused = False

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


class Passes:
    """The passes of one model at one batch size.

    Args:
        model: a classifier that maps (N, C, H, W) in [0, 1] to logits (N, classes).
        precision: how an attack's gradients are computed; `logits` and `predict` are always in float32.
        batch_size: images of every pass of `logits`, fixed.
        repeats: the passes that decide whether an image is classified correctly.
        classes: the number of logits of each image; None: that of the first pass.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        batch_size: int,
        repeats: Repeats = ONCE,
        classes: int | None = None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.repeats = repeats
        self.device = device_of(model)
        self._precision = precision
        self._forward = precision.forward(model)
        self._float32 = Precision(channels_last=precision.channels_last).forward(model)
        self._exact = dataclasses.replace(precision, dtype="float32").forward(model)
        self._fusion = Fusion(model)
        for forward in (self._forward, self._float32, self._exact):
            forward.classes = classes
        self._classes = classes
        self._repeatable: bool | None = None
        self._known: tuple[Tensor, Tensor] | None = None
        self._narrowest = NARROWEST

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits, in passes of the batch size, the last padded or smaller (`_narrow_logits`), never in TF32."""
        with torch.no_grad(), true_float32(self.device):
            logits = torch.cat([self._batch_logits(block) for block in torch.split(x, self.batch_size)])
        self._forward.classes = self._exact.classes = logits.shape[1]
        self._classes, excluded = logits.shape[1], logits.isneginf().any()
        known = _excluded.get(self.model)
        _excluded[self.model] = excluded if known is None or known.device != excluded.device else known | excluded
        return logits

    def _batch_logits(self, block: Tensor) -> Tensor:
        """Logits of at most a batch of images."""
        logits = self._narrow_logits(block)
        if logits is not None:
            return logits
        padded = block[torch.arange(self.batch_size, device=block.device) % len(block)]
        known = padded[:KNOWN].clone()
        logits = self._float32(padded)
        if self._known is None and self.device.type == "cpu":
            self._known = known, logits[:KNOWN].clone()
        return logits[: len(block)]

    def _narrow_logits(self, block: Tensor) -> Tensor | None:
        """Logits of few images in a smaller batch, on a CPU; None if they may have other bits than in a full one.

        The batch is filled with images whose logits in a full batch are known. If they get other bits, or random
        numbers are drawn, twice the size is the smallest that is used from then on.
        """
        size = max(-(-(len(block) + KNOWN) // NARROWEST) * NARROWEST, self._narrowest)
        if self._known is None or size >= self.batch_size:
            return None
        images, expected = self._known
        if (images.shape[1:], images.dtype) != (block.shape[1:], block.dtype):
            return None
        places = torch.arange(size - len(block)) % len(images)
        with generators_restored(self.device):
            before = generator_states(self.device)
            logits = self._float32(torch.cat([images[:1], block, images[places[1:]]]))
            known = torch.cat([logits[:1], logits[1 + len(block) :]])
            if bitwise_equal(known, expected[places]) and generator_states(self.device) == before:
                return logits[1 : 1 + len(block)]
        self._narrowest = 2 * size
        return None

    def once(self, x: Tensor) -> None:
        """Evaluate images as `logits` does, in one pass without padding."""
        with torch.no_grad(), true_float32(self.device):
            self._float32(x.to(self.device))

    def decide(self, x: Tensor, y: Tensor) -> Decision:
        """Decide in float32 whether images are classified correctly, over `repeats` passes."""
        return decide((self.logits(x) for _ in range(self.repeats.count)), y, self.repeats.needed)

    def reference(self, x: Tensor) -> Tensor:
        """The logits of `logits` for an attack, finite for classes that are excluded by -inf (`raised`)."""
        return raised(self.logits(x))

    def predict(self, images: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield float32 logits for each block of images, with the model in evaluation mode."""
        with evaluating(self.model), frozen(self.model):
            for block in images:
                yield self.logits(block.to(self.device))

    def classes(self, x: Tensor) -> int:
        """The number of logits; evaluates the first image of ``x`` if no pass has been made yet."""
        return self._classes or self.logits(x[:1]).shape[1]

    def _excludes(self, x: Tensor) -> bool:
        """Whether logits of the model's passes were -inf; evaluates the first image of ``x`` if none has been made."""
        if self.model not in _excluded:
            self.logits(recordable(x[:1]).to(self.device))
        return bool(_excluded[self.model])

    @contextmanager
    def for_gradients(
        self, images: Tensor, *, precise: bool | Literal["tf32"], compiling: Compiling | None = None
    ) -> Iterator[CountedForward]:
        """Context of a forward pass for gradients, in evaluation mode and frozen, on a fused copy (`Fusion`).

        With float32 in the default memory format (`EXACT`), passes use the model itself.

        Args:
            images: (N, C, H, W) with N >= 1, on which the copy is verified.
            precise: compute in float32, overriding the dtype of the engine's precision; ``"tf32"``: on a GPU in TF32,
                unless its ``search`` is in float32.
            compiling: which passes are compiled; those of the model itself only with ``compile = on``.
        """
        precision = self._precision
        exact = precise or precision.dtype == "float32"
        on_gpu = self.device.type == "cuda"
        in_tf32 = on_gpu and exact and precise is not True and precision.search_on(self.device) == "tf32"
        arithmetic = functools.partial(tf32 if in_tf32 else true_float32, self.device) if exact else nullcontext
        counted = functools.partial(
            CountedForward, module=self.model, arithmetic=arithmetic, in_tf32=in_tf32, compiling=compiling
        )
        with evaluating(self.model), frozen(self.model):
            if precision.dtype == "float32" and not precision.channels_last:
                forward = self._exact if precise else self._forward
                forward.compile(compiling if precision.compile == "on" else None)
                yield counted(forward, excludes=self._excludes(images))
                return
            if precise:
                precision = dataclasses.replace(precision, dtype="float32")
            verified = recordable(images[:VERIFIED_IMAGES]).to(self.device)
            excludes = self._excludes(images)
            # What backward() computes again is computed without the data type of the copy's passes.
            objection = "its gradients need backward()" if bare(self.model) in _by_backward else ""
            with self._fusion.forward(precision, verified, compiling, objection=objection) as fused:
                if isinstance(fused, Pass):
                    fused.classes = self._classes or fused.classes
                yield counted(fused, excludes=excludes)

    @property
    def unfused(self) -> str:
        """Why the last passes for gradients did not use a fused copy; empty if they did, or none was wanted."""
        return self._fusion.unfused

    @property
    def overwrites(self) -> bool:
        """Whether the model has been observed to modify its input; it then receives copies."""
        return bool(self._float32.overwrites)

    def repeatable(self, forward: CountedForward, images: Tensor) -> bool:
        """Whether an image's logits and gradient have the same bits in every pass, and no random numbers are drawn.

        Takes two passes of one batch, at the first call only: the images, then every other one of them in the reverse
        order beside other images. The generators of torch, numpy and Python are restored.

        Args:
            forward: the passes for gradients.
            images: (N, C, H, W) with N >= 1.
        """
        if self._repeatable is None:
            images = recordable(images[: self.batch_size]).to(self.device)
            x = images[torch.arange(self.batch_size, device=self.device) % len(images)]
            kept = torch.arange(self.batch_size - 1, -1, -2, device=self.device)
            others = (1 - x).index_copy(0, kept, x[kept]).flip(0)
            with seeded(0, self.device), forward.arithmetic():
                before = generator_states(self.device)
                first, second = (value_and_gradient(forward, batch, _total) for batch in (x, others))
                pairs = [(one[kept], other.flip(0)[kept]) for one, other in zip(first, second, strict=True)]
                same = all(bitwise_equal(one, other) for one, other in pairs)
                self._repeatable = same and generator_states(self.device) == before
        return self._repeatable

    def missing_gradient(self, x: Tensor) -> str:
        """Why the model's logits have no gradient with respect to images; empty if they have one.

        Takes one forward and two backward passes over one batch, to find out how gradients are computed
        (`ImageGradients`), unless the network states that it has none in its
        attribute ``no_gradient``.
        """
        stated = getattr(bare(self.model), "no_gradient", "")
        if isinstance(stated, str) and stated:
            return stated
        x = recordable(x)[torch.arange(self.batch_size, device=x.device) % len(x)]
        try:
            with evaluating(self.model), frozen(self.model), wrong_gradients_refused():
                found = format_of(self.model).run(lambda: self._has_gradient(x), self.model, x.device)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, torch.jit.Error) as error:  # the earlier pass without gradients succeeded
            if is_refusal(error):
                raise
            return f"it fails when gradients are recorded ({first_line(error)})"
        return "" if found else "its logits do not depend on the images in autograd"

    def _has_gradient(self, x: Tensor) -> bool:
        try:
            ImageGradients(self._float32, x).probe(_total)
        except NoGradientError:
            return False
        return True


def bitwise_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of float32 numbers are bitwise equal."""
    return torch.equal(first.view(torch.int32), second.view(torch.int32))


def _total(logits: Tensor) -> Tensor:
    """The sum of the logits of each row, (N,)."""
    return logits.sum(1)


def value_and_gradient(model: Forward, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Logits (N, C) at ``x``, and the gradient of the summed loss with respect to ``x``.

    The loss is summed, not averaged, so a row's gradient does not depend on the batch size. Entries that are not finite
    are replaced by zero, so a faulty model cannot move an image out of the ball.

    Raises:
        NoGradientError: if the logits do not depend on ``x`` in autograd; a zero gradient is not an error.
    """
    gradients = ImageGradients(model, x)
    gradient = gradients.of(loss)
    return gradients.logits.detach(), gradient.contiguous()


def expected(model: Forward, x: Tensor, loss: Loss, passes: int) -> tuple[Tensor, Tensor]:
    """Logits (N, C) at ``x`` and losses (N,), each averaged over some passes, without gradients.

    For randomised models: the expectation over their randomness (EOT), as `value_and_gradient` is averaged for others.
    """
    with torch.no_grad():
        logits = model(x)
        value = loss(logits)
        if passes == 1:
            return logits, value
        for _ in range(passes - 1):
            more = model(x)
            logits, value = logits + more, value + loss(more)
    return logits / passes, value / passes


_by_backward: WeakSet[nn.Module] = WeakSet()
"""Networks whose gradients only ``backward()`` computes."""


class ImageGradients:
    """The logits at images, and gradients of losses with respect to the images, from one forward pass.

    Gradients are those of `torch.autograd.grad`. Some operations compute them in ``backward()`` only, such as
    `torch.utils.checkpoint.checkpoint` with ``use_reentrant=True``, which raises an error otherwise. Then the forward
    pass is repeated and ``backward()`` called, in later passes of the network at once. Since ``backward()`` adds to the
    ``grad`` of every leaf, the weights of the model must be frozen. `probe` also finds operations that compute only a
    part of the gradient otherwise.

    Args:
        model: the model.
        x: images (N, C, H, W).

    Attributes:
        logits: (N, classes), with their graph.
    """

    def __init__(self, model: Forward, x: Tensor) -> None:
        self._model, self._x = model, x
        self._evaluate()

    def _evaluate(self) -> None:
        with torch.enable_grad():
            self._leaf = self._x.detach().requires_grad_(True)
            self.logits = self._model(self._leaf)

    def of(self, loss: Loss, *, retain: bool = False) -> Tensor:
        """The gradient of the summed loss, shaped like the images; entries that are not finite are zero.

        Args:
            loss: a function of the logits.
            retain: whether gradients of other losses follow.

        Raises:
            NoGradientError: if the logits do not depend on the images in autograd.
        """
        found = self._gradient(loss, retain=retain) if self.logits.requires_grad else None
        if found is None:
            raise NoGradientError
        return found.nan_to_num(0.0, 0.0, 0.0)

    def probe(self, loss: Loss) -> None:
        """Compute a gradient in both ways; if ``backward()`` finds another one, use it in later passes of the network.

        Raises:
            NoGradientError: if the logits do not depend on the images in either way.
        """
        found, network = self.of(loss, retain=True), _network_of(self._model)
        if network is None or network in _by_backward:
            return
        with suppress(RuntimeError):  # a graph that can be used only once
            other = self._backward(loss, retain=False)
            if other is not None and not torch.allclose(other.nan_to_num(0.0, 0.0, 0.0), found, rtol=0.01):
                _by_backward.add(network)

    def _gradient(self, loss: Loss, *, retain: bool) -> Tensor | None:
        network = _network_of(self._model)
        if network is not None and network in _by_backward:
            return self._backward(loss, retain=retain)
        found: Tensor | None = None
        error: Exception | None = None
        total = self._total(loss)
        try:
            (found,) = torch.autograd.grad(total, self._leaf, retain_graph=retain, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except Exception as raised_error:  # noqa: BLE001  # functions of the user
            error = raised_error
        if found is not None and self._leaf.grad is None:
            return found
        try:
            self._evaluate()  # the graph is freed, at least in part
            found = self._backward(loss, retain=retain)
        except Exception:
            if error is None:
                raise
            raise error from None
        if found is None and error is not None:
            raise error
        if found is not None and network is not None:
            _by_backward.add(network)
        return found

    def _backward(self, loss: Loss, *, retain: bool) -> Tensor | None:
        self._leaf.grad = None
        self._total(loss).backward(retain_graph=retain)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return self._leaf.grad

    def _total(self, loss: Loss) -> Tensor:
        with torch.enable_grad():
            total = loss(self.logits).sum()
        if not total.requires_grad:
            raise ClasswiseError(
                "the loss of the attack does not depend on the logits in autograd: it detaches them, or counts "
                "predictions; use a differentiable loss"
            )
        return total


def _network_of(model: Forward) -> nn.Module | None:
    """The network of a forward pass; None if it is unknown, as of a function around a pass."""
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    return bare(module) if isinstance(module, nn.Module) else None


def recordable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it was created in `torch.inference_mode`, which autograd does not accept."""
    return tensor.clone() if tensor.is_inference() else tensor
