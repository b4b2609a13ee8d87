"""What a result records of a model: its file of weights, and its normalisation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classwise.models.normalization import Normalized

WEIGHTS_FILE = "weights_file"
"""The attribute of a module whose weights were read from a file: its path as given, its SHA-256, and the epoch."""


def note_weights_file(network: nn.Module, path: Path, epoch: int | None = None) -> None:
    """Note the file that the weights of a network were read from, its present SHA-256, and the epoch of training."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    vars(network)[WEIGHTS_FILE] = (str(path), digest, epoch)


def model_facts(model: nn.Module) -> dict[str, Any]:
    """The file of weights with its SHA-256, if known, and the normalisation layer of a model.

    Returns:
        ``weights_file`` and ``weights_sha256``, for weights that were read from a file; ``weights_epoch``, from 1, for
        those that a training of classwise has saved after an epoch; ``normalisation``: mean and std of each channel,
        or ``"no normalisation layer"``, as for a network that normalises in its own code.

    Example:
        >>> from torch import nn
        >>> from classwise.models.normalization import Normalized
        >>> model_facts(Normalized(nn.Identity(), [0.5], [0.25]))
        {'normalisation': {'mean': [0.5], 'std': [0.25]}}
    """
    facts = dict[str, Any]()
    modules = list(model.modules())
    for module in modules:
        if (noted := vars(module).get(WEIGHTS_FILE)) is not None:
            facts["weights_file"], facts["weights_sha256"], epoch = noted
            facts |= {} if epoch is None else {"weights_epoch": epoch}
            break
    layers = (_layer(module) for module in modules)
    return facts | {"normalisation": next((layer for layer in layers if layer), "no normalisation layer")}


def _layer(module: nn.Module) -> dict[str, list[float]]:
    """Mean and std of a normalisation layer, such as `Normalized` or ``torchvision.transforms.Normalize``; else empty.

    Its own attributes are read, not those that a wrapper finds in its network. A network may have a mean and a std that
    it uses otherwise, so another module is a layer only if it has no submodule and normalises by them.
    """
    own = {**vars(module), **dict(module.named_buffers(recurse=False)), **dict(module.named_parameters(recurse=False))}
    found = {name: _numbers(own.get(name)) for name in ("mean", "std")}
    return found if all(found.values()) and (isinstance(module, Normalized) or _normalises(module, found)) else {}


def _normalises(module: nn.Module, constants: Mapping[str, Sequence[float]]) -> bool:
    """Whether a module without submodules subtracts a mean and divides by a standard deviation."""
    if next(module.children(), None) is not None:
        return False
    channels = max(map(len, constants.values()))
    tensors = [*module.buffers(), *module.parameters()]
    x = torch.linspace(0, 1, 4 * channels, device=tensors[0].device if tensors else None).reshape(1, channels, 2, 2)
    mean, std = (torch.tensor(constants[name]).reshape(1, -1, 1, 1).to(x) for name in ("mean", "std"))
    try:
        with torch.no_grad():
            found = module(x)
    except Exception:  # noqa: BLE001  # a module of the user that takes no images
        return False
    return isinstance(found, Tensor) and found.shape == x.shape and torch.allclose(found.to(x), (x - mean) / std)


def _numbers(value: Any) -> list[float]:
    """A value for each channel; empty if these are none."""
    if isinstance(value, Tensor):
        value = value.detach().flatten().tolist()
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not 1 <= len(values) <= 64 or not all(type(number) in (int, float) for number in values):
        return []
    return [float(f"{number:.7g}") for number in values]  # without the digits that float32 adds
