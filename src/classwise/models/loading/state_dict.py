"""Other people's key names fitted to a network: true prefixes off, extras set aside, the first mismatch named."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core import limits
from classwise.core.errors import ClasswiseError
from classwise.models.base import Classifier
from classwise.models.loading.checkpoints import Checkpoint

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "0.", "1.", "attacker.model.")
"""What wrappers put before every key: DataParallel, compilation, normalising layers, averages, attackers."""
NORMALISERS = ("", "normalize.", "normalise.", "normalizer.", "normalization.", "0.", "attacker.normalize.")
"""Where the constants of a normalising layer lie."""
PAIRS = (("mean", "std"), ("mu", "sigma"), ("new_mean", "new_std"))
"""What those constants are called."""
COUNTERS = ("n_averaged", "n_classes")
"""Numbers that wrappers keep beside the weights."""
SHAPE = ("num_classes", "in_channels", "width")
"""What every model of the zoo is told."""

_COMPARED = 1000
"""Keys that a missing one is compared with for an error."""

CONSTANTS = {place + name for place in NORMALISERS for pair in PAIRS for name in pair}


@dataclass(frozen=True)
class Fit:
    """A checkpoint in the names of one network.

    Attributes:
        tensors: Key of the network to tensor.
        prefix: What was taken off every key.
        ignored: The keys of the file that the network has no use for.
        normalisation: The mean and deviation, one number a channel, of a normalising layer found beside the weights.
    """

    tensors: Mapping[str, Tensor]
    prefix: str
    ignored: tuple[str, ...]
    normalisation: tuple[Tensor, Tensor] | None = None

    def describe(self) -> str:
        """What was done to the keys, in words; empty where nothing was."""
        said = [f"prefix {self.prefix!r} taken off"] if self.prefix else []
        if self.ignored:
            more = f", ... ({len(self.ignored)} in all)" if len(self.ignored) > 4 else ""
            said.append(f"not used: {', '.join(self.ignored[:4])}{more}")
        return "; ".join(said)


def fit(checkpoint: Checkpoint, network: nn.Module) -> Fit:
    """Take true prefixes off the keys of a checkpoint, as many as bring them nearest to the network's own keys.

    A prefix goes only if every key carries it, extras aside (the constants of a normalising layer, counters, an
    attacker's second copy of the network); a key that merely contains it is left alone.
    """
    if len(checkpoint.tensors) > limits.TENSORS:
        raise ClasswiseError(
            f"{checkpoint.path} holds {len(checkpoint.tensors)} tensors; at most {limits.TENSORS} are read"
        )
    wanted = set(network.state_dict())
    levels = list(_levels(checkpoint.tensors, network, wanted))
    scores = [len(wanted & level.tensors.keys()) for level in levels]
    # Where nothing fits at all, the shortest names make the clearest message.
    return levels[scores.index(max(scores))] if max(scores) else levels[-1]


def _levels(tensors: Mapping[str, Tensor], network: nn.Module, wanted: Collection[str]) -> Iterator[Fit]:
    """The keys with no prefix off, with one, with two, ... until they share none."""
    prefix, ignored, constants = "", list[str](), dict[str, Tensor]()
    left = {_renamed(key, network): tensor for key, tensor in tensors.items()}
    while True:
        shared = _shared_prefix(left)
        if shared is None:
            aside = {key: tensor for key, tensor in left.items() if key not in wanted and _is_extra(key, left, network)}
            left = {key: tensor for key, tensor in left.items() if key not in aside}
            ignored += [prefix + key for key in aside if key not in CONSTANTS]
            constants |= aside
            shared = _shared_prefix(left)
        yield Fit(left, prefix, tuple(ignored), _normalisation(constants))
        if shared is None:
            return
        prefix += shared
        left = {_renamed(key.removeprefix(shared), network): tensor for key, tensor in left.items()}


def _shared_prefix(keys: Collection[str]) -> str | None:
    return next((p for p in PREFIXES if keys and all(key.startswith(p) and key != p for key in keys)), None)


def _is_extra(key: str, keys: Collection[str], network: nn.Module) -> bool:
    if key in CONSTANTS or key in COUNTERS:
        return True
    if key.startswith("attacker.") and any(other.startswith("model.") for other in keys):
        return True
    return isinstance(network, Classifier) and key.startswith(network.unused)


def _normalisation(constants: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    for place in NORMALISERS:
        for mean, std in PAIRS:
            if {place + mean, place + std} <= constants.keys():
                return constants[place + mean].flatten().float(), constants[place + std].flatten().float()
    return None


def _renamed(key: str, network: nn.Module) -> str:
    if isinstance(network, Classifier):
        for pattern, replacement in network.renamed.items():
            key = re.sub(pattern, replacement, key)
    return key


def insert(fitted: Fit, network: nn.Module, source: str, width: float = 1.0) -> None:
    """Put the weights into the network, each in the network's own precision.

    Batch counters (``num_batches_tracked``) may be missing: old files have none, and nothing reads them.

    Args:
        fitted: The weights in the network's names.
        network: What to fill.
        source: What the weights are called in an error.
        width: The network's width factor, for the remedy in an error.

    Raises:
        ClasswiseError: naming the first key that does not fit, with both shapes and the remedy, or that is not finite.
    """
    own = network.state_dict()
    _check_kinds(fitted, source)
    for key, tensor in own.items():
        found = fitted.tensors.get(key)
        if found is None and key.endswith("num_batches_tracked"):
            continue
        if found is None:
            near = difflib.get_close_matches(key, sorted(fitted.tensors.keys() - own.keys())[:_COMPARED], n=1)
            instead = f" but has {near[0]} {tuple(fitted.tensors[near[0]].shape)}" if near else ""
            raise ClasswiseError(f"{source} has no {key} {tuple(tensor.shape)}{instead}; {_other(network)}")
        if found.shape != tensor.shape:
            raise ClasswiseError(
                f"{source}: {key} is {tuple(found.shape)} in the file and {tuple(tensor.shape)} in the model; "
                f"{_remedy(fitted.tensors, network, width)}"
            )
        if tensor.is_floating_point() and not found.is_floating_point():
            raise ClasswiseError(
                f"{source}: {key} is of type {found.dtype} in the file and {tensor.dtype} in the model"
            )
        if found.is_floating_point() and not bool(torch.isfinite(found.to(tensor.dtype)).all()):
            raise ClasswiseError(
                f"{source}: {key} holds NaN or infinity; training diverged, take an earlier checkpoint"
            )
    for key, tensor in fitted.tensors.items():
        if key not in own:
            raise ClasswiseError(
                f"{source} holds {key} {tuple(tensor.shape)}, which the model does not; {_other(network)}"
            )
    network.load_state_dict({**own, **fitted.tensors})


def _check_kinds(fitted: Fit, source: str) -> None:
    """Refuse tensors whose numbers a network cannot take as they are: copying would fail, or change them."""
    for key, tensor in fitted.tensors.items():
        kinds = {
            "sparse": tensor.layout is not torch.strided,
            "quantised": tensor.is_quantized,
            "on the meta device, without values": tensor.is_meta,
            "complex": tensor.is_complex(),
            "nested": tensor.is_nested,
        }
        kind = next((name for name, has in kinds.items() if has), None)
        if kind is not None:
            raise ClasswiseError(f"{source}: {key} is {kind}; save plain tensors of floating-point numbers")


def shape_shown(tensors: Mapping[str, Tensor], network: nn.Module, width: float) -> dict[str, Any]:
    """The width factor, channels and classes that weights have, told from their first and last layer.

    Args:
        tensors: Weights in the network's names, of whatever shapes.
        network: A network of the zoo; nothing can be told of others.
        width: The network's own width factor.

    Returns:
        ``width``, ``in_channels`` and ``num_classes``, or nothing where those layers are not there.
    """
    if not isinstance(network, Classifier):
        return {}
    own = network.state_dict()
    first, last = next(key for key in own if own[key].ndim == 4), f"{network.last_layer}.weight"
    if any(key not in tensors or tensors[key].ndim != own[key].ndim for key in (first, last)):
        return {}
    classes, features = tensors[last].shape
    # The last layer reads the most channels, so that the factor suffers least from their rounding.
    return {
        "width": width * features / own[last].shape[1],
        "in_channels": tensors[first].shape[1],
        "num_classes": classes,
    }


def _remedy(tensors: Mapping[str, Tensor], network: nn.Module, width: float) -> str:
    """What to give instead."""
    theirs, ours = (shape_shown(weights, network, width) for weights in (tensors, network.state_dict()))
    different = next((key for key in theirs if theirs[key] != ours[key]), None)
    return f"give {different}={theirs[different]:.4g}" if different is not None else _other(network)


def _other(network: nn.Module) -> str:
    names = [name for name in inspect.signature(type(network)).parameters if name not in SHAPE]
    options = f", or its options ({', '.join(names)})" if isinstance(network, Classifier) and names else ""
    return f"choose the architecture that it was trained with{options}"
