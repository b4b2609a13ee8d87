"""Matching of a checkpoint's keys to a network: prefixes removed, extra keys ignored, mismatches reported."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.models.base import Classifier
from classwise.models.loading.checkpoints import Checkpoint

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "0.", "1.", "attacker.model.")
"""Key prefixes added by wrappers: DataParallel, torch.compile, normalisation, weight averaging, attacks."""
NORMALISERS = ("", "normalize.", "normalise.", "normalizer.", "normalization.", "0.", "attacker.normalize.")
"""Key prefixes of the constants of a normalisation layer."""
PAIRS = (("mean", "std"), ("mu", "sigma"), ("new_mean", "new_std"))
"""Names of those constants."""
COUNTERS = ("n_averaged", "n_classes")
"""Buffers that wrappers store beside the weights."""
ADJUSTMENT = ("logit_adjustment", "fitted_images")
"""Buffers of `classwise.models.logits.AdjustedLogits`."""
SHAPE = ("num_classes", "in_channels", "width")
"""Arguments that every model of the zoo accepts."""

_COMPARED = 1000
"""Maximum number of keys with which a missing key is compared, to suggest a similar one."""

CONSTANTS = {place + name for place in NORMALISERS for pair in PAIRS for name in pair}


@dataclass(frozen=True)
class MatchedStateDict:
    """A checkpoint with the keys of a network.

    Attributes:
        tensors: Key of the network to tensor.
        prefix: The prefix that was removed from every key.
        ignored: The keys of the file that are not loaded.
        normalisation: Mean and standard deviation per channel of a normalisation layer in the file, if any.
        adjustment: The constants of a logit adjustment in the file, and the hashes of the images of its fit, if any.
    """

    tensors: Mapping[str, Tensor]
    prefix: str
    ignored: tuple[str, ...]
    normalisation: tuple[Tensor, Tensor] | None = None
    adjustment: tuple[Tensor, Tensor | None] | None = None

    def describe(self) -> str:
        """A note on removed prefixes and ignored keys; empty if there are none."""
        return "; ".join(filter(None, [f"prefix {self.prefix!r} removed" if self.prefix else "", self.ignored_note]))

    @property
    def ignored_note(self) -> str:
        """A note on ignored keys; empty if there are none."""
        more = f", ... ({len(self.ignored)} in total)" if len(self.ignored) > 4 else ""
        return f"ignored keys: {', '.join(self.ignored[:4])}{more}" if self.ignored else ""


def match_keys(checkpoint: Checkpoint, network: nn.Module) -> MatchedStateDict:
    """Remove wrapper prefixes from the keys of a checkpoint, so that most of them match the network's keys.

    A prefix is removed only if every key has it, except for extra keys: the constants of a normalisation layer or of a
    logit adjustment, counters, and the second copy of the network in an attack wrapper.
    """
    if len(checkpoint.tensors) > limits.TENSORS:
        raise ClasswiseError(
            f"{checkpoint.path} has {len(checkpoint.tensors)} tensors; at most {limits.TENSORS} are supported"
        )
    expected = set(_tensors(network))
    candidates = list(_without_prefixes(checkpoint.tensors, network, expected))
    scores = [len(expected & candidate.tensors.keys()) for candidate in candidates]
    if not any(_is_complete(candidate.tensors, expected) for candidate in candidates):
        part = _part(checkpoint, network, expected)
        if part is not None:
            return part
    # If no key matches, the shortest names give the clearest message.
    return candidates[scores.index(max(scores))] if max(scores) else candidates[-1]


def _without_prefixes(
    tensors: Mapping[str, Tensor], network: nn.Module, expected: Collection[str]
) -> Iterator[MatchedStateDict]:
    """The keys with zero, one, two, ... prefixes removed, until they have none in common."""
    prefix, ignored, constants = "", list[str](), dict[str, Tensor]()
    rest = {_renamed(key, network): tensor for key, tensor in tensors.items()}
    while True:
        shared = _shared_prefix(rest)
        if shared is None:
            extra = {key: rest[key] for key in rest if key not in expected and _is_extra(key, rest, network)}
            rest = {key: tensor for key, tensor in rest.items() if key not in extra}
            ignored += [prefix + key for key in extra if key not in CONSTANTS and key not in ADJUSTMENT]
            constants |= extra
            shared = _shared_prefix(rest)
        yield MatchedStateDict(rest, prefix, tuple(ignored), _normalisation(constants), _adjustment(constants))
        if shared is None:
            return
        prefix += shared
        rest = {_renamed(key.removeprefix(shared), network): tensor for key, tensor in rest.items()}


def _is_complete(keys: Collection[str], expected: Collection[str]) -> bool:
    """Whether all expected keys are there, except those that `load_matched` does not need."""
    return all(key in keys or _is_optional(key) for key in expected)


def _is_optional(key: str) -> bool:
    """Whether a file may lack this key of a network: old files have no counters and no normalisation constants."""
    return key.endswith("num_batches_tracked") or key in CONSTANTS


def _part(checkpoint: Checkpoint, network: nn.Module, expected: Collection[str]) -> MatchedStateDict | None:
    """The network as one attribute of a larger module, such as a LightningModule with losses and metrics.

    Raises:
        ClasswiseError: if several attributes contain all keys of the network.
    """
    keys = {_renamed(key, network): tensor for key, tensor in checkpoint.tensors.items()}
    needed = sorted(key for key in expected if not _is_optional(key))
    if not needed:
        return None
    prefixes = {key.removesuffix(needed[0]) for key in keys if key.endswith(f".{needed[0]}")}
    complete = sorted(prefix for prefix in prefixes if all(prefix + key in keys for key in needed))
    if len(complete) > 1:
        raise ClasswiseError(
            f"{checkpoint.path} contains the network several times, with the prefixes {', '.join(complete)}; save the "
            "state dict of one of them"
        )
    for prefix in complete:
        inner = {key.removeprefix(prefix): tensor for key, tensor in keys.items() if key.startswith(prefix)}
        ignored = tuple(key for key in keys if not key.startswith(prefix))
        return MatchedStateDict(inner, prefix, ignored)
    return None


def _shared_prefix(keys: Collection[str]) -> str | None:
    return next((p for p in PREFIXES if keys and all(key.startswith(p) and key != p for key in keys)), None)


def _is_extra(key: str, keys: Collection[str], network: nn.Module) -> bool:
    if key in CONSTANTS or key in COUNTERS or key in ADJUSTMENT:
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


def _adjustment(constants: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None] | None:
    values, images = (constants.get(name) for name in ADJUSTMENT)
    return None if values is None else (values, images)


def _renamed(key: str, network: nn.Module) -> str:
    if isinstance(network, Classifier):
        for pattern, replacement in network.renamed.items():
            key = re.sub(pattern, replacement, key)
    return key


def load_matched(matched: MatchedStateDict, network: nn.Module, source: str, width: float = 1.0) -> None:
    """Load a matched state dict into the network, in the network's precision.

    The buffers ``num_batches_tracked`` may be missing: old files do not have them, and they are not used. So may the
    constants of a normalisation in the network: then those of its code are used.

    Args:
        matched: The state dict with the network's keys.
        network: The network, which is modified in place.
        source: The name of the file, for error messages.
        width: The network's width factor, for the suggestion in an error message.

    Raises:
        ClasswiseError: for the first missing or unexpected key, size mismatch, or value that is not finite.
    """
    own = _tensors(network)
    _check_layouts(matched, source)
    for key, tensor in own.items():
        stored = matched.tensors.get(key)
        if stored is None and _is_optional(key):
            continue
        if stored is None:
            similar = difflib.get_close_matches(key, sorted(matched.tensors.keys() - own.keys())[:_COMPARED], n=1)
            hint = f" (the file has {similar[0]} {tuple(matched.tensors[similar[0]].shape)})" if similar else ""
            raise ClasswiseError(f"{source}: missing key {key} {tuple(tensor.shape)}{hint}; {_use_other(network)}")
        if stored.shape != tensor.shape:
            raise ClasswiseError(
                f"{source}: size mismatch for {key}: {tuple(stored.shape)} in the file and {tuple(tensor.shape)} in "
                f"the model; {_suggestion(matched.tensors, network, width)}"
            )
        if tensor.is_floating_point() and not stored.is_floating_point():
            raise ClasswiseError(f"{source}: {key} has type {stored.dtype} in the file and {tensor.dtype} in the model")
        if stored.is_floating_point() and not bool(torch.isfinite(stored.to(tensor.dtype)).all()):
            raise ClasswiseError(f"{source}: {key} contains NaN or infinity; use an earlier checkpoint of the training")
    for key, tensor in matched.tensors.items():
        if key not in own:
            raise ClasswiseError(f"{source}: unexpected key {key} {tuple(tensor.shape)}; {_use_other(network)}")
    network.load_state_dict({**network.state_dict(), **matched.tensors})


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network without extra state of other types."""
    return {key: value for key, value in network.state_dict().items() if isinstance(value, Tensor)}


def _check_layouts(matched: MatchedStateDict, source: str) -> None:
    """Check that every tensor is dense and real, since copying others would fail or change their values."""
    for key, tensor in matched.tensors.items():
        layouts = {
            "sparse": tensor.layout is not torch.strided,
            "quantised": tensor.is_quantized,
            "on the meta device, without values": tensor.is_meta,
            "complex": tensor.is_complex(),
            "nested": tensor.is_nested,
        }
        layout = next((name for name, applies in layouts.items() if applies), None)
        if layout is not None:
            raise ClasswiseError(f"{source}: {key} is {layout}; save dense tensors of floating-point numbers")


def infer_shape(tensors: Mapping[str, Tensor], network: nn.Module, width: float) -> dict[str, Any]:
    """Infer the width factor, channels, classes and options of weights from their first and last layer.

    Args:
        tensors: Weights with the network's keys, of any shape.
        network: A network of the zoo; for others nothing is inferred.
        width: The network's own width factor.

    Returns:
        ``width``, ``in_channels``, ``num_classes``, and options that are not the default, such as ``stem`` of a ResNet;
        empty if the layers are missing.
    """
    if not isinstance(network, Classifier):
        return {}
    own = network.state_dict()
    first, last = next(key for key in own if own[key].ndim == 4), f"{network.last_layer}.weight"
    if any(key not in tensors or tensors[key].ndim != own[key].ndim for key in (first, last)):
        return {}
    classes, features = tensors[last].shape
    # The last layer has the most channels, so their rounding affects the factor least.
    return {
        "width": width * features / own[last].shape[1],
        "in_channels": tensors[first].shape[1],
        "num_classes": classes,
        **network.options_of(tensors),
    }


def _suggestion(tensors: Mapping[str, Tensor], network: nn.Module, width: float) -> str:
    """The argument that would fix a size mismatch."""
    in_file, in_model = (infer_shape(weights, network, width) for weights in (tensors, network.state_dict()))
    different = next((key for key in in_file if in_file[key] != in_model.get(key)), None)
    if not in_file and (classes := _other_classes(tensors, network)):
        return f"use num_classes={classes}, or data with {classes} classes"
    if different is None:
        return _use_other(network)
    value = in_file[different]
    return f"use {different}={value if isinstance(value, str) else f'{value:.4g}'}"


def _other_classes(tensors: Mapping[str, Tensor], network: nn.Module) -> int | None:
    """The number of rows of one layer in a file whose other tensors have the shapes of the network; else None."""
    own = _tensors(network)
    different = [key for key in own if key in tensors and tensors[key].shape != own[key].shape]
    if not different or any(tensors[key].shape[1:] != own[key].shape[1:] for key in different):
        return None
    rows = {len(tensors[key]) for key in different}
    layers = {key.rpartition(".")[0] for key in different}
    return rows.pop() if len(rows) == len(layers) == 1 else None


def _use_other(network: nn.Module) -> str:
    names = [name for name in inspect.signature(type(network)).parameters if name not in SHAPE]
    options = f" and options ({', '.join(names)})" if isinstance(network, Classifier) and names else ""
    return f"use the architecture{options} of the checkpoint"
