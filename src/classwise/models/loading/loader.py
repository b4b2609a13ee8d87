"""Any model, ready to be attacked: by name, by path, by run folder, or a module that is there already."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.precision import check_device
from classwise.models.base import Classifier, Wrapper, bare
from classwise.models.loading.builder import build
from classwise.models.loading.checkpoints import Checkpoint, read_state
from classwise.models.loading.state_dict import Fit, fit, insert, shape_shown
from classwise.models.logits import LogitsModel
from classwise.models.normalization import Normalized
from classwise.models.registry import MODELS
from classwise.models.weights import SCHEMA_VERSION, fingerprint

KEPT = ("best-average", "best", "last")
"""The weights that may speak for a run folder; the best score on validation does, and of equals the first here."""

Model = str | os.PathLike[str] | nn.Module


def load_model(
    model: Model,
    weights: str | os.PathLike[str] | None = None,
    *,
    num_classes: int | None = None,
    width: float | None = None,
    in_channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    data: Any = None,
    device: str | torch.device = "cpu",
    container: str | None = None,
    **options: Any,
) -> nn.Module:
    """A model in evaluation mode, with weights in it, that maps images in [0, 1] to logits.

    Width, channels and classes that are not given are those that the weights show, else those of the data. A
    normalisation found beside the weights is put in front of the network, unless one is given.

    Args:
        model: A name of `MODELS`, a ``package.module:callable``, a run folder, a file of weights that names its model
            (`save_weights` writes such), or a module, which is then filled in place.
        weights: A .safetensors, .pt or .pth file of anybody's, or a run folder; None leaves the model as it is built.
        num_classes: The number of logits.
        width: The factor on the number of channels.
        in_channels: The number of colour channels.
        mean: With ``std``, the normalisation that the weights were trained with, for images in [0, 1].
        std: The deviation of each channel.
        data: The images to be classified: their numbers of classes and channels must fit the model.
        device: Where the model goes.
        container: The key of the state dict to take, where a file holds several.
        **options: Settings of that model alone, such as ``depth=34``.

    Returns:
        The model. Its attribute ``loaded`` says in words what was read and what was done to it; a network of the zoo
        without weights also has ``fresh``, the hash of its random ones, by which an audit warns of them.

    Raises:
        ClasswiseError: if the model is not known, the file cannot be read as data, the two do not fit, only one of mean
            and std is given, or there is no such device.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("resnet18", num_classes=10, in_channels=3, width=0.25)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if (mean is None) != (std is None):
        raise ClasswiseError("mean and std go together; give both or neither")
    if isinstance(model, nn.Module):
        if num_classes is not None or width is not None or in_channels is not None or options:
            raise ClasswiseError("a module is built already; num_classes, width, in_channels and options are for names")
        return _finished(*_filled(model, weights, mean, std, container), data, device)
    if is_stored(model):
        if weights is not None:
            raise ClasswiseError(
                f"{os.fspath(model)} holds weights already; give the model's name with weights={weights}"
            )
        model, weights = "", model
    checkpoint = None if weights is None else read_state(_weights_file(weights), container=container)
    said = {} if checkpoint is None else _own_words(checkpoint)
    name = os.fspath(model) or said.get("name")
    if name is None:
        raise ClasswiseError(
            f"{weights} does not name its model; give one, such as load_model('resnet18', weights=...)"
        )
    given = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "mean": mean, "std": std}
    given = {key: value for key, value in given.items() if value is not None} | options
    if said.get("name") != name:
        said = {} if checkpoint is None else _shown(name, checkpoint, options)
    spec = _wanted(data) | said | given | {"name": name}
    if name in MODELS and "num_classes" not in spec:
        raise ClasswiseError(f"model {name!r}: give num_classes, or weights or data that show it")
    built = _built(**spec)
    if checkpoint is None and name in MODELS:
        built.fresh = fingerprint(built)  # type: ignore[assignment]
        return _finished(built, f"built {name!r} with random weights", data, device)
    if checkpoint is None:
        return _finished(built, f"built by {name!r}", data, device)
    return _finished(*_with(built, checkpoint), data, device)


def _built(
    name: str,
    num_classes: int | None = None,
    in_channels: int | None = None,
    width: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    return build(
        name, num_classes=num_classes, in_channels=in_channels, width=width, mean=mean, std=std, options=options
    )


def _filled(
    model: nn.Module,
    weights: str | os.PathLike[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    container: str | None,
) -> tuple[nn.Module, str]:
    """A module that the user built."""
    if not isinstance(model, Classifier | Wrapper):
        model = LogitsModel(model)
    if mean is not None and std is not None:
        model = Normalized(model, mean, std)
    if weights is None:
        return model, "taken as it is"
    return _with(model, read_state(_weights_file(weights), container=container))


def _with(model: nn.Module, checkpoint: Checkpoint) -> tuple[nn.Module, str]:
    """The model with the weights in it, normalised as they were, and what was done in words."""
    network = bare(model)
    fitted = fit(checkpoint, network)
    insert(fitted, network, str(checkpoint.path), _spec(model).get("width", 1.0))
    model, normalisation = _normalised(model, fitted)
    return model, "; ".join(filter(None, [checkpoint.describe(), fitted.describe(), normalisation]))


def _normalised(model: nn.Module, fitted: Fit) -> tuple[nn.Module, str]:
    """The model with the file's normalisation before it, unless it has one; and which it is, in words."""
    found = fitted.normalisation
    if isinstance(model, Normalized):
        said = f"normalisation {_constants(model.mean, model.std)}"
        if found is None or _constants(*found) == _constants(model.mean, model.std):
            return model, said
        return model, f"{said} as given, in place of the file's {_constants(*found)}"
    if found is None:
        return model, "no normalisation" if isinstance(bare(model), Classifier) else ""
    mean, std = found
    if not mean.numel() or mean.shape != std.shape:
        raise ClasswiseError(
            f"the file's normalisation has {mean.numel()} means and {std.numel()} deviations; give mean= and std="
        )
    if float(mean.max()) > 1:
        raise ClasswiseError(
            f"the file's normalisation ({_constants(mean, std)}) is for pixels up to 255; "
            "give mean= and std= for images in [0, 1]"
        )
    outer = Normalized(model, mean, std)
    if spec := _spec(model):
        outer.spec = {**spec, "mean": mean.tolist(), "std": std.tolist()}  # type: ignore[assignment]
    return outer, f"normalisation {_constants(mean, std)} found in the file"


def _finished(model: nn.Module, note: str, data: Any, device: str | torch.device) -> nn.Module:
    """The last checks, the device, evaluation mode, and the note."""
    check_device(device)
    network = bare(model)
    has = shape_shown(network.state_dict(), network, width=1.0)
    for key, what in (("num_classes", "classes"), ("in_channels", "colour channels")):
        wanted = _wanted(data).get(key)
        if has and wanted is not None and wanted != has[key]:
            raise ClasswiseError(f"the model has {has[key]} {what} and the data {wanted}; they should be the same")
    model = model.to(device).eval()
    model.loaded = note  # type: ignore[assignment]
    return model


def is_stored(model: str | os.PathLike[str]) -> bool:
    """Whether a folder or file of weights is meant, not a name or a path of code.

    Raises:
        ClasswiseError: if it is none of them.
    """
    if isinstance(model, str):
        if model in MODELS:
            return False
        if not Path(model).exists() and ":" in model:
            return False
    if not Path(model).exists():
        if os.sep in os.fspath(model) or Path(model).suffix:
            raise ClasswiseError(f"there is no file or folder {os.fspath(model)}")
        raise unknown(MODELS.kind, os.fspath(model), MODELS)
    return True


def _score(file: Path) -> float:
    """What a run noted of these weights on its validation split; the least where it noted nothing."""
    try:
        return float(read_state(file).metadata.get("score", "-inf"))
    except ClasswiseError:
        raise
    except ValueError as error:
        raise ClasswiseError(f"{file}: its score is no number; it is damaged, name another file") from error


def _weights_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, or the one that speaks for a run folder."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    for place in (folder / "checkpoints", folder):
        kept = [file for name in KEPT if (file := place / f"{name}.safetensors").is_file()]
        if kept:
            return max(kept, key=_score)  # the first of those that tie
    raise ClasswiseError(f"{folder} is no run folder with weights: it has no checkpoints/best.safetensors")


def _own_words(checkpoint: Checkpoint) -> dict[str, Any]:
    """The spec that a file of ours carries, or nothing."""
    version = checkpoint.metadata.get("schema_version", "0")[:20]
    if version.isdecimal() and int(version) > SCHEMA_VERSION:
        known = f"newer than the {SCHEMA_VERSION} that is known here"
        raise ClasswiseError(f"{checkpoint.path} has schema_version {version}, {known}; update classwise")
    try:
        spec = json.loads(checkpoint.metadata.get("model", "{}"))
    except (ValueError, RecursionError):
        return {}
    return spec if isinstance(spec, dict) and isinstance(spec.get("name"), str) else {}


def _shown(name: str, checkpoint: Checkpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """The width, channels and classes of weights, told by laying them beside a network of the zoo."""
    if name not in MODELS:
        return {}
    with torch.random.fork_rng(devices=[]):
        network = bare(_built(name, num_classes=1, in_channels=1, **options))
    return shape_shown(fit(checkpoint, network).tensors, network, width=1.0)


def _wanted(data: Any) -> dict[str, Any]:
    """The classes and channels of the data, as far as they are known."""
    known = {"num_classes": getattr(data, "num_classes", None), "in_channels": _channels(data)}
    return {key: value for key, value in known.items() if value is not None}


def _channels(data: Any) -> int | None:
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) == 3 else None


def _spec(model: nn.Module) -> Mapping[str, Any]:
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, Mapping) else {}


def _constants(mean: Tensor, std: Tensor) -> str:
    return " and ".join(
        f"{what} ({', '.join(f'{value:.4g}' for value in values.flatten().tolist())})"
        for what, values in (("mean", mean), ("std", std))
    )
