"""`load_model`: a model by reference (zoo, source, import path), checkpoint or run folder, or from a module."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from classwise.core.compute.precision import check_device
from classwise.core.compute.rng import generators_restored
from classwise.core.errors import ClasswiseError, quoted, unknown
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.settings.ambient_state import restores_state
from classwise.core.settings.arguments import checked
from classwise.core.settings.code_identity import changes, identity
from classwise.core.settings.config import Count
from classwise.core.settings.registry import kind_text
from classwise.data.images import Images
from classwise.data.sets.loading import named_set
from classwise.data.stream import Stream, as_data
from classwise.models.base import Classifier, bare, device_of
from classwise.models.functions import MaiteModel, is_model, model_of
from classwise.models.loading.builder import build, options_for_size
from classwise.models.loading.checkpoints import Checkpoint, read_state
from classwise.models.loading.references import is_stored, parse_reference
from classwise.models.loading.sources.base import Shape, SourceModel
from classwise.models.loading.sources.onnx_files import Onnx
from classwise.models.loading.state_dict import COUNTERS, MatchedStateDict, infer_shape, load_matched, match_keys
from classwise.models.logits import (
    BINARY_HINT,
    AdjustedLogits,
    LogitsModel,
    Outputs,
    are_probabilities,
    as_logits,
    logits_model_of,
)
from classwise.models.modes import evaluating, set_evaluation_mode
from classwise.models.normalization import Normalized, usual_scales
from classwise.models.provenance import note_weights_file
from classwise.models.registry import MODELS
from classwise.models.resizing import Resized
from classwise.models.unwrapping import unwrapped
from classwise.models.weights import fingerprint

logger = logging.getLogger(__name__)

CHECKPOINTS = ("best-average", "best", "last")
"""Checkpoints of a run folder; the one with the best validation score is loaded, the first in this order among ties."""

UNWRAPPED, UNWRAPPED_IMAGES = 0.01, 32
"""Largest difference between the probabilities of a MAITE model and of its module, on so many images."""

_NORMALISES = (
    "if the model normalises images, give mean and std (--mean, --std); otherwise write a module that computes the same"
)

_AROUND = (AdjustedLogits, Resized)
"""Wrappers that are outside a normalisation layer."""

_SHAPE_AND_NORMALISATION = ("num_classes", "in_channels", "width", "mean", "std")

Model = str | os.PathLike[str] | nn.Module | Callable[..., object]


@checked
@restores_state
def load_model(
    model: Model,
    weights: str | os.PathLike[str] | None = None,
    *,
    num_classes: Count | None = None,
    width: Annotated[float, Field(gt=0)] | None = None,
    in_channels: Count | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    data: Any = None,
    device: str | torch.device = "cpu",
    state_dict_key: str | None = None,
    outputs: Outputs = "auto",
    unwrap: str | None = None,
    **options: Any,
) -> nn.Module:
    """Load a model that maps images in [0, 1] to logits, in evaluation mode.

    Width, channels, classes and the stem of a ResNet that are not given are inferred from the weights, else from the
    data. A normalisation layer in the file is placed before the network, unless mean and std are given; a logit
    adjustment (`classwise.adjust_logits`) in the file, after it.

    Args:
        model: A name in `MODELS`; ``hf:FOLDER_OR_ID``, ``timm:NAME``, ``torchvision:NAME`` or
            ``robustbench:NAME/DATA/THREAT``; ``package.module:callable``; an ONNX file; a run folder; a weights file
            with a model spec (as written by `save_weights`); a module, which is modified in place; a function from
            images to logits; a model in the protocol of MAITE; or a function without arguments that returns a module or
            such a model, and is called. The page Models of the documentation has all forms.
        weights: A .safetensors, .pt or .pth file, or a run folder; None: the weights of the source or the module, else
            random weights.
        num_classes: Number of logits.
        width: Factor of the number of channels.
        in_channels: Number of image channels.
        mean: With ``std``, the normalisation used in training, for images in [0, 1]; one number is for all channels. Of
            a model of pixels up to 255: mean 0 and std 1/255.
        std: Standard deviation of each channel.
        data: Images to classify; their classes and channels must match the model.
        device: Device of the model.
        state_dict_key: The key of the state dict, if a file has several.
        outputs: What the model returns: ``"logits"``, or ``"probabilities"``, whose logarithms are then the logits.
            ``"binary-logits"`` or ``"binary-probabilities"``: one number per image, (N,) or (N, 1), the logit or the
            probability of class 1 (`LogitsModel`); ``"binary"``: an audit decides which, on its first images.
            ``"auto"``: logits, and an audit rejects a model that returns probabilities or one number per image.
        unwrap: Of a model in the protocol of MAITE, the attribute with its module, such as ``"net"`` or
            ``"wrapped.net"``; the module is then evaluated, with gradients. Its probabilities must be those of the
            model on the first images of ``data``, which are required.
        **options: Further options of the model, such as ``depth=34``; ``pretrained=False`` for random weights of a
            network of timm or torchvision.

    Returns:
        The model. Its attribute ``loaded`` is a note on what was read. A network of the zoo with random weights also
        has ``fresh``, their fingerprint, which an audit uses for a warning.

    Raises:
        ClasswiseError: for an unknown model or device, an unreadable file, weights that do not match the model, or only
            one of mean and std.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("resnet18", num_classes=10, in_channels=3, width=0.25)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if (mean is None) != (std is None):
        raise ClasswiseError("mean and std must be given together")
    mean, std = ([values] if isinstance(values, float | int) else values for values in (mean, std))
    if unwrap is not None and isinstance(model, str | os.PathLike):
        named: Any = model_of(MODELS.load(str(model))) if ":" in str(model) else None
        if not is_model(named):
            raise ClasswiseError(f"unwrap={unwrap!r}: applies to a model in the protocol of MAITE, not to {model!s}")
        model = named
    if not isinstance(model, str | os.PathLike):
        if num_classes is not None or width is not None or in_channels is not None or options:
            raise ClasswiseError("num_classes, width, in_channels and options do not apply to a module")
        model = model_of(model)
        of_maite = None if unwrap is None else _Unwrapped.of(model, unwrap, data)
        loaded, note = as_logits(model if of_maite is None else of_maite.module), "unmodified"
        if mean is not None and std is not None:
            loaded = _outer(loaded, torch.tensor(mean), torch.tensor(std))
        if weights is not None:
            loaded, note = _with_checkpoint(loaded, read_state(_weights_file(weights), state_dict_key=state_dict_key))
        elif state_dict_key is not None:
            raise _no_weights(state_dict_key)
        loaded = _finished(loaded, note, data, device, outputs)
        if of_maite is not None:
            of_maite.check(loaded)
        return loaded
    given = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "mean": mean, "std": std}
    given = {key: value for key, value in given.items() if value is not None} | options
    known = _data_spec(data) | ({"num_classes": 1} if outputs.startswith("binary") else {})
    loaded, note = _with_reference(model, weights, given, known, _image_shape(data), state_dict_key)
    return _finished(loaded, note, data, device, outputs)


def _with_reference(
    model: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None,
    given: Mapping[str, Any],
    of_data: Mapping[str, Any],
    image_shape: Sequence[int] | None,
    state_dict_key: str | None,
) -> tuple[nn.Module, str]:
    """The model of a reference or of a file of weights, and the note on what was read.

    Args:
        model: the reference or file.
        weights: the weights; None: those of the source or of the file.
        given: the shape, normalisation and options that the caller gave.
        of_data: the numbers of outputs and channels that fit the data, used where they are known from nothing else.
        image_shape: the shape of the data, if known, for options that neither the weights nor the caller decide.
        state_dict_key: see `load_model`.
    """
    if is_stored(model):
        if weights is not None:
            raise ClasswiseError(f"{os.fspath(model)} is a file of weights; give the name of the model of {weights}")
        model, weights = "", model
    checkpoint = None if weights is None else read_state(_weights_file(weights), state_dict_key=state_dict_key)
    inferred = {} if checkpoint is None else _stored_spec(checkpoint)
    name = os.fspath(model) or inferred.get("name")
    if name is None:
        raise ClasswiseError(
            f"{weights} does not name its model; give the model and this file as its weights, such as "
            f"resnet18 --weights {quoted(weights)}, or load_model('resnet18', weights={str(weights)!r})"
        )
    source, _ = parse_reference(name)
    if checkpoint is not None and isinstance(source, Onnx):
        raise ClasswiseError(f"{name} contains its weights; omit the weights {weights}")
    stored = inferred.get("name") == name
    if not stored:
        inferred = {} if checkpoint is None else _inferred_spec(name, checkpoint, given)
    # Trained weights have their own classes and channels.
    trained = source.has_weights and checkpoint is None and bool(given.get("pretrained", True))
    of_size = {} if inferred else options_for_size(name, image_shape)
    spec = ({} if trained else {**of_data, **of_size}) | inferred | {**given, "name": name}
    if name in MODELS and "num_classes" not in spec:
        raise ClasswiseError(f"model {name!r}: num_classes is unknown; give it, or weights, or data with class names")
    built, published = _built(**spec, trained=trained)
    if checkpoint is None and published.weights is not None:
        checkpoint = read_state(published.weights, state_dict_key=state_dict_key)
    if checkpoint is None and state_dict_key is not None:
        raise _no_weights(state_dict_key)
    note = published.note or f"built by {name!r}"
    if checkpoint is not None:
        built, note = _with_checkpoint(built, checkpoint)
        if stored:
            _compare_code(built, checkpoint)
    elif name in MODELS:
        built.fresh = fingerprint(built)  # type: ignore[assignment]
        note = f"built {name!r} with random weights"
    return (built, note) if stored else _with_published(built, published, note)


def _no_weights(key: str) -> ClasswiseError:
    return ClasswiseError(f"state_dict_key = {key!r} needs a file of weights (--weights); give one, or omit the key")


def _built(
    name: str,
    num_classes: int | None = None,
    in_channels: int | None = None,
    width: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    trained: bool = False,
    **options: Any,
) -> tuple[nn.Module, SourceModel]:
    shape = Shape(num_classes, in_channels, width)
    return build(name, shape, mean=mean, std=std, options=options, pretrained=trained)


def _with_published(model: nn.Module, published: SourceModel, note: str) -> tuple[nn.Module, str]:
    """The model with the normalisation that its source publishes, unless it has one, and the note on it."""
    notes = [note]
    if published.mean is not None and published.std is not None and normalization_layer(model) is None:
        notes = [part for part in note.split("; ") if part != "no normalisation"]
        mean, std = torch.tensor(published.mean), torch.tensor(published.std)
        model = _outer(model, mean, std)
        notes.append(f"normalisation {_constants(mean, std)} of the source")
    if published.steps:
        notes.append(f"images are {', '.join(map(str, published.steps))}")
        logger.info("%s: %s", published.note, notes[-1])
    return model, "; ".join(notes)


def _with_checkpoint(model: nn.Module, checkpoint: Checkpoint) -> tuple[nn.Module, str]:
    """The model with the weights and normalisation of a checkpoint, and the note on them."""
    network = unwrapped(bare(model))
    matched = match_keys(checkpoint, network)
    load_matched(matched, network, str(checkpoint.path), _spec(model).get("width", 1.0))
    if not {name.rpartition(".")[2] for name in matched.ignored} <= set(COUNTERS):
        logger.warning("%s: %s", checkpoint.path, matched.ignored_note)
    note_weights_file(network, checkpoint.path, checkpoint.epoch)
    model, normalisation = _normalised(model, matched)
    model, adjustment = _adjusted(model, matched)
    return model, "; ".join(filter(None, [checkpoint.describe(), matched.describe(), normalisation, adjustment]))


def _adjusted(model: nn.Module, matched: MatchedStateDict) -> tuple[nn.Module, str]:
    """The model with the logit adjustment of the file, else its own, and the note on it."""
    if matched.adjustment is None:
        return model, ""
    adjusted = AdjustedLogits(model.model if isinstance(model, AdjustedLogits) else model, *matched.adjustment)
    return adjusted, f"logit adjustment of {len(adjusted.logit_adjustment)} classes found in the file"


def _normalised(model: nn.Module, matched: MatchedStateDict) -> tuple[nn.Module, str]:
    """The model with its own normalisation, else that of the file, and the note on it."""
    stored = matched.normalisation
    if (own := normalization_layer(model)) is not None:
        note = f"normalisation {_constants(own.mean, own.std)}"
        if stored is None or _constants(*stored) == _constants(own.mean, own.std):
            return model, note
        return model, f"{note} as given, in place of the file's {_constants(*stored)}"
    if stored is None:
        return model, "no normalisation" if isinstance(bare(model), Classifier) else ""
    mean, std = stored
    if not mean.numel() or mean.shape != std.shape:
        raise ClasswiseError(
            f"the file's normalisation has {mean.numel()} means and {std.numel()} standard deviations; "
            "give mean and std (--mean, --std)"
        )
    if float(mean.max()) > 1:
        raise ClasswiseError(
            f"the file's normalisation ({_constants(mean, std)}) is for pixels up to 255; "
            "give mean and std (--mean, --std) for images in [0, 1]"
        )
    return _outer(model, mean, std), f"normalisation {_constants(mean, std)} found in the file"


def normalization_layer(model: nn.Module) -> Normalized | None:
    """The normalisation layer of a model, if it is the first one, or the first after resizing."""
    layer = model
    while isinstance(layer, _AROUND):
        layer = layer.model
    return layer if isinstance(layer, Normalized) else None


def before_normalisation(model: nn.Module, pixels: Tensor) -> Tensor:
    """The images of which a model's normalisation layer makes ``pixels``; without a layer these themselves."""
    layer = normalization_layer(model)
    return pixels if layer is None else pixels * layer.std.to(pixels) + layer.mean.to(pixels)


def states_its_model(weights: str | os.PathLike[str] | None) -> bool:
    """Whether weights are a run folder or a file of `save_weights`, which state the model and its normalisation."""
    return weights is not None and bool(_stored_spec(read_state(_weights_file(weights))))


def _outer(model: nn.Module, mean: Tensor, std: Tensor) -> nn.Module:
    """The model with normalisation as its first layer after resizing, and in its spec."""
    spec = _spec(model)
    if isinstance(model, _AROUND):
        outer = model
        while isinstance(outer.model, _AROUND):
            outer = outer.model
        outer.model = Normalized(outer.model, mean, std)
    else:
        model = Normalized(model, mean, std)
    if spec:
        model.spec = {**spec, "mean": mean.tolist(), "std": std.tolist()}  # type: ignore[assignment]
    return model


def _with_outputs(model: nn.Module, outputs: Outputs) -> nn.Module:
    """The model with logits computed from its outputs."""
    if outputs == "auto":
        return model
    if isinstance(model, AdjustedLogits):
        model.model = _with_outputs(model.model, outputs)
        return model
    inner = logits_model_of(model)
    if inner is None:
        return LogitsModel(model, outputs)
    inner.outputs = inner.kind = outputs
    return model


def _finished(model: nn.Module, note: str, data: Any, device: str | torch.device, outputs: Outputs) -> nn.Module:
    """The model on its device, in evaluation mode, with the note, after checks against the data."""
    check_device(device)
    model = _with_outputs(model, outputs)
    network = bare(model)
    in_model = infer_shape(network.state_dict(), network, width=1.0)
    for key, what in (("num_classes", "classes"), ("in_channels", "image channels")):
        in_data = _data_spec(data).get(key)
        if key == "num_classes" and outputs.startswith("binary"):
            continue  # one output for two classes
        if key == "num_classes" and in_model and in_model[key] == _parent_classes(data):
            continue  # an audit restricts its predictions to the classes of the data
        if in_model and in_data is not None and in_data != in_model[key]:
            hint = f"; {BINARY_HINT}" if key == "num_classes" and in_model[key] == 1 else ""
            raise ClasswiseError(
                f"the model has {in_model[key]} {what} and the data {in_data}; they must be equal{hint}"
            )
    model = model.to(device)
    set_evaluation_mode(model)
    model.loaded = note  # type: ignore[assignment]
    return model


class _Unwrapped(NamedTuple):
    """The module of a model in the protocol of MAITE, and the model's probabilities for the first images."""

    module: nn.Module
    name: str
    class_names: tuple[str, ...]
    images: Tensor
    probabilities: Tensor

    @classmethod
    def of(cls, model: Any, unwrap: str, data: Any) -> Self:
        """Find the module by the name of its attribute, and call the model, before the module is moved.

        Raises:
            ClasswiseError: for another model, an attribute that is no module, or without images.
        """
        where = f"unwrap={unwrap!r}"
        if not is_model(model):
            raise ClasswiseError(f"{where}: applies to a model in the protocol of MAITE, not to {kind_text(model)}")
        module = functools.reduce(lambda value, name: getattr(value, name, None), unwrap.split("."), model)
        if not isinstance(module, nn.Module):
            modules = [name for name, value in vars(model).items() if isinstance(value, nn.Module)]
            raise unknown(f"module of the MAITE model {model.metadata['id']!r}:", unwrap, modules)
        if data is None:
            raise ClasswiseError(f"{where}: needs data=, images on which the module must agree with the model")
        images, whole = next(as_data(data).batches(UNWRAPPED_IMAGES)).x, MaiteModel(model)
        with evaluating(whole), torch.no_grad():
            scores = whole(images).double()
        probabilities = scores if are_probabilities(scores) else scores.softmax(1)
        return cls(module, f"{where}, model {whole.name!r}", whole.class_names, images, probabilities)

    def check(self, loaded: nn.Module) -> None:
        """Compare the probabilities of the loaded module, and name its classes.

        Raises:
            ClasswiseError: if they differ by more than `UNWRAPPED`.
        """
        difference = self._difference(loaded, self.images)
        if not difference <= UNWRAPPED:
            inputs = {"without mean and std": self.images}
            for scale in usual_scales(self.images.shape[1]).values():
                inputs[f"with {scale.option}"] = scale.standardise(self.images)
            agreeing = [
                f"{name} they agree"
                for name, pixels in inputs.items()
                if self._difference(loaded, before_normalisation(loaded, pixels)) <= UNWRAPPED
            ]
            advice = agreeing[0] if agreeing else _NORMALISES
            raise ClasswiseError(
                f"{self.name}: on the first {len(self.images)} images the probabilities of the module and of the model "
                f"differ by up to {difference:.2g}; {advice}"
            )
        if self.class_names:
            loaded.class_names = self.class_names  # type: ignore[assignment]

    def _difference(self, loaded: nn.Module, images: Tensor) -> float:
        """The largest difference between the model's probabilities and those of the loaded module for some images."""
        with torch.no_grad():
            own = loaded(images.to(device_of(loaded))).double().softmax(1).to(images.device)
        return float((own - self.probabilities).abs().max()) if own.shape == self.probabilities.shape else 1.0


def _score(file: Path) -> float:
    """The validation score in the metadata of a checkpoint; minus infinity if there is none."""
    try:
        return float(read_state(file).metadata.get("score", "-inf"))
    except ClasswiseError:
        raise
    except ValueError as error:
        raise ClasswiseError(f"{file} is damaged: its score is not a number; use another file") from error


def _weights_file(path: str | os.PathLike[str]) -> Path:
    """The path itself if it is a file, else the best checkpoint of the run folder."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    for place in (folder / "checkpoints", folder):
        files = [file for name in CHECKPOINTS if (file := place / f"{name}.safetensors").is_file()]
        if files:
            return max(files, key=_score)  # the first among ties
    if any(folder.glob("*/recipe.yaml")):
        raise ClasswiseError(f"{folder} contains one run per seed; give one of them")
    raise ClasswiseError(f"{folder} is not a run folder with weights: it has no checkpoints/best.safetensors")


def _stored_spec(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model spec in the metadata of a file written by `save_weights`; empty for other files."""
    version = checkpoint.metadata.get("schema_version", "0")[:20]
    if version.isdecimal() and int(version) > SCHEMA_VERSIONS["weights"]:
        check_schema_version(int(version), SCHEMA_VERSIONS["weights"], str(checkpoint.path))
    try:
        spec = json.loads(checkpoint.metadata.get("model", "{}"))
    except (ValueError, RecursionError):
        return {}
    return spec if isinstance(spec, dict) and isinstance(spec.get("name"), str) else {}


def _compare_code(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Log a warning if the user's code of a model is not that with which its weights were saved."""
    try:
        before = json.loads(checkpoint.metadata.get("code", "null"))
    except (ValueError, RecursionError):
        return
    if isinstance(before, dict) and (found := changes({"model": before}, identity({"model": model}))):
        logger.warning(
            "%s was saved with other code: %s; its weights are evaluated with the present code",
            checkpoint.path,
            "; ".join(found),
        )


def _inferred_spec(name: str, checkpoint: Checkpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """The width, channels, classes and options of weights, inferred by comparison with a network of the zoo."""
    if name not in MODELS:
        return {}
    options = {key: value for key, value in given.items() if key not in _SHAPE_AND_NORMALISATION}
    with generators_restored(torch.get_default_device()):
        network = bare(_built(name, num_classes=1, in_channels=1, **options)[0])
    return infer_shape(match_keys(checkpoint, network).tensors, network, width=1.0)


def _data_spec(data: Any) -> dict[str, Any]:
    """The numbers of classes and channels of the data, where known."""
    shape = _image_shape(data)
    known = {"num_classes": getattr(data, "num_classes", None), "in_channels": None if shape is None else shape[0]}
    return {key: value for key, value in known.items() if value is not None}


def _parent_classes(data: Any) -> int | None:
    """Number of classes of the data set of whose classes the data have a part, as ImageNet-A; else None."""
    known = named_set(data) if isinstance(data, (Images, Stream)) else None
    return (known.parent_logits or None) if known else None


def _image_shape(data: Any) -> Sequence[int] | None:
    """Channels, height and width of the data, where known."""
    shape = getattr(data, "shape", None)
    return shape if shape is not None and len(shape) == 3 else None


def _spec(model: nn.Module) -> Mapping[str, Any]:
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, Mapping) else {}


def _constants(mean: Tensor, std: Tensor) -> str:
    return " and ".join(
        f"{what} ({', '.join(f'{value:.4g}' for value in values.flatten().tolist())})"
        for what, values in (("mean", mean), ("std", std))
    )
