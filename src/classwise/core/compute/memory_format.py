"""The memory format of a model's images and weights: that of its settings, or contiguous where the model requires it.

Networks that flatten a feature map with ``x.view(N, -1)`` raise an error in the channels-last format.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from classwise.core.compute.rng import saved_generators
from classwise.core.errors import first_line, one_line

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

logger = logging.getLogger(__name__)


class MemoryFormat:
    """The memory format of a network, its wrappers and its copies.

    The first pass of each kind (`accepts`) decides: if it raises an error, it is repeated in the contiguous format. If
    that succeeds, all further passes of the network use it.

    Args:
        name: the name of the network in the log.

    Attributes:
        contiguous: whether images and weights are contiguous, since the network raised an error in another format.
    """

    def __init__(self, name: str) -> None:
        self.contiguous = False
        self._name = name
        self._accepted: set[Hashable] = set()
        self._channels_last: WeakSet[nn.Module] = WeakSet()

    def prepare(self, model: nn.Module) -> None:
        """Convert the model's weights to channels-last, in place, unless the contiguous format is required."""
        if not self.contiguous:
            self._channels_last.add(model)
            _convert(model, torch.channels_last)

    def including(self, model: nn.Module, network: nn.Module) -> MemoryFormat:
        """This format, with a model whose weights have the same format as those of a network."""
        if network in self._channels_last:
            self._channels_last.add(model)
        return self

    def run(self, call: Callable[[], T], model: nn.Module, device: torch.device, kind: Hashable = None) -> T:
        """Call a function that runs passes of the model; again in the contiguous format if it raises an error.

        Before the second call, the random number generators and the buffers of the model are restored, so that results
        do not depend on the first one.

        Args:
            call: reads `contiguous` in each call.
            model: the network, a wrapper or a copy of it.
            device: where it runs.
            kind: what the acceptance of a memory format may depend on; a later call of the same kind is not repeated.
                None: the call is repeated if it fails.

        Raises:
            Exception: the error in the contiguous format, if both raise one.
        """
        kind = None if kind is None else (kind, model in self._channels_last)
        if self.contiguous or kind in self._accepted:
            return call()
        restore_generators, buffers = saved_generators(device), saved_buffers(model)
        try:
            result = call()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # user code may raise any error
            if self.contiguous:  # decided by a pass within the call
                raise
            reason = one_line(first_line(error)) or type(error).__name__
        else:
            if kind is not None:
                self._accepted.add(kind)
            return result
        restore_generators()
        restore_buffers(buffers)
        self._convert(contiguous=True)
        try:
            result = call()
        except BaseException:
            self._convert(contiguous=False)
            raise
        logger.warning("%s runs in the contiguous memory format, since it fails in others (%s)", self._name, reason)
        return result

    def _convert(self, *, contiguous: bool) -> None:
        self.contiguous = contiguous
        for model in self._channels_last:
            _convert(model, torch.contiguous_format if contiguous else torch.channels_last)


_formats: WeakKeyDictionary[nn.Module, MemoryFormat] = WeakKeyDictionary()


def format_of(model: nn.Module) -> MemoryFormat:
    """The memory format of a model."""
    return _formats.setdefault(model, MemoryFormat(type(model).__name__))


def share_format(model: nn.Module, network: nn.Module) -> None:
    """Let a wrapper or a copy of a network have its memory format."""
    _formats[model] = format_of(network).including(model, network)


def copy_of(model: M, shared: dict[int, Any] | None = None) -> M:
    """A deep copy of a model that has its memory format; ``shared`` is the memo of `copy.deepcopy`."""
    copied = copy.deepcopy(model, shared)
    share_format(copied, model)
    return copied


def channels_last(x: Tensor) -> Tensor:
    """Convert images to the channels-last format, including those of one channel.

    For one channel both formats have the same bytes, and torch treats such a tensor as not channels-last, so that all
    layers run in the slower format. The strides are therefore set explicitly.
    """
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    count, _, height, width = x.shape
    return x.reshape(count, height, width, 1).permute(0, 3, 1, 2)


def contiguous(x: Tensor) -> Tensor:
    """Convert images to the contiguous format; those of one channel have its strides, too."""
    return x.contiguous().flatten(1).view(x.shape)


def is_contiguous(x: Tensor) -> bool:
    """Whether a tensor has the strides of the contiguous format, also in dimensions of size 1."""
    return x.stride() == tuple(math.prod(x.shape[axis:]) for axis in range(1, x.ndim + 1))


def overflows_in_channels_last(model: nn.Module) -> bool:
    """Whether gradients of the weights are wrong in the channels-last format on this processor.

    On processors with AVX2 and without AVX-512, oneDNN writes past its workspace when it computes the gradient of the
    weights of a strided 1x1 convolution of channels-last images with fewer than eight channels (uxlfoundation/oneDNN,
    issue 6035): wrong gradients, or a crash. In the contiguous format another kernel is used.
    """
    return torch.backends.cpu.get_cpu_capability() == "AVX2" and any(
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < 8
        for layer in model.modules()
    )


def _convert(model: nn.Module, memory_format: torch.memory_format) -> None:
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if not is_lazy(tensor) and tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=memory_format)


def saved_buffers(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The buffers of a model that a pass may modify, and copies."""
    buffers = [buffer for buffer in model.buffers() if not is_lazy(buffer) and not buffer.is_inference()]
    return [(buffer, buffer.detach().clone()) for buffer in buffers]


@torch.no_grad()
def restore_buffers(buffers: list[tuple[Tensor, Tensor]]) -> None:
    """Restore the buffers of `saved_buffers`."""
    for buffer, value in buffers:
        if not torch.equal(buffer, value):  # batch normalisation does not count its modifications
            buffer.copy_(value)
