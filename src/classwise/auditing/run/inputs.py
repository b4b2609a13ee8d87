"""The model, the images and the threat of an evaluation, read and checked before the first attack."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from classwise.attacks.engine import Engine
from classwise.auditing.guards.evidence import Training
from classwise.auditing.outcomes.meta import CLASSES_NOTE, FREQUENCY, OUTPUTS_NOTE
from classwise.core.compute.precision import check_device
from classwise.core.compute.tensors import as_array
from classwise.core.errors import ClasswiseError, first_line, is_out_of_memory, unknown
from classwise.core.settings.user_code import raised_within
from classwise.data.images import Batch, Column, Group, Images
from classwise.data.labels import classes_option, order_advice
from classwise.data.layout import CHANNELS_FIRST
from classwise.data.sets.loading import named_set
from classwise.data.stream import Stream
from classwise.models.base import bare
from classwise.models.functions import FunctionModel
from classwise.models.loading.references import is_stored
from classwise.models.logits import (
    BINARY_HINT,
    SelectedLogits,
    as_logits,
    in_unit_interval,
    logits_model_of,
)
from classwise.threat.ball import Threat, ThreatLike
from classwise.threat.grid import snapped

if TYPE_CHECKING:
    from classwise.training.folder import Run

Model = Annotated[
    nn.Module | str | os.PathLike[str] | Callable[..., object],
    "a torch.nn.Module, a run, a function, a model of MAITE, or a path or text that load_model accepts",
]
VALUES_COLUMN = "group"
"""The column of a grouping that is given as one value for each image."""
CHOOSE = "(documentation: Choose a threat and a radius)"
GRID_BLOCK = 1024
"""Number of images whose distance from the 8-bit grid is computed at once."""
PIECE_BYTES = 256 << 20
"""Size of the pieces in which a stream is audited: every attack runs on a piece while it is in memory."""


def as_classifier(model: nn.Module | Callable[..., object], device: str | torch.device | None) -> nn.Module:
    """Wrap a module or function as a module that returns logits, on the device (None: where it is)."""
    wrapped = as_logits(model)
    if lazy := next((name for name, tensor in wrapped.named_parameters() if is_lazy(tensor)), ""):
        raise ClasswiseError(f"parameter {lazy!r} of the model is not initialised; call the model on a batch of images")
    if device is None:
        return wrapped
    check_device(device)
    return wrapped.to(device)


def name_of(model: Model) -> str:
    """Name of the model in reports: its path or reference, the name of its function, or its class."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    network, spec = bare(as_logits(model)), _spec(model)
    if isinstance(network, FunctionModel):
        return network.name
    return str(spec["name"]) if "name" in spec else type(network).__name__


def network_of(model: nn.Module) -> str:
    """Network of a loaded model, such as ``resnet18, width 0.25``: its reference and width, or as `name_of`."""
    width = _spec(model).get("width", 1.0)
    return name_of(model) if width == 1.0 else f"{name_of(model)}, width {width:g}"


def _spec(model: object) -> dict[str, Any]:
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, dict) else {}


def training_of(model: Model) -> Training | None:
    """How the run was trained that a path belongs to; None for a module and for weights outside a run."""
    run = _run_of(model)
    if run is None:
        return None
    attack = run.recipe.parts.attack  # including the fields that the objective sets, such as the divergence of TRADES
    if not run.environment_file.is_file():
        return Training(attack)
    return Training(attack, run.data["fingerprint"], run.data.get("validation", ""))


def training_counts_of(model: Model, class_names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Training images of each class, of the run that a path belongs to; None if it has none, or other classes."""
    run = _run_of(model)
    return None if run is None else run.training_counts(class_names)


def classes_of(model: Model, loaded: nn.Module) -> tuple[str, ...]:
    """The model's own names of its classes: those of its source, or of the data of its run; empty if unknown."""
    run, published = _run_of(model), getattr(loaded, "class_names", None)
    if isinstance(published, tuple):
        return published
    return tuple(run.data["classes"]) if run is not None and run.environment_file.is_file() else ()


def unfinished_training(model: Model) -> str:
    """That the run which a path belongs to has not finished its training, with its epochs; empty if it has."""
    run = _run_of(model)
    if run is None or run.complete:
        return ""
    return (
        f"warning: the training of {run.path} has finished {run.epochs_done} of {run.recipe.epochs} epochs; continue "
        "it with classwise train --resume"
    )


def _run_of(model: Model) -> Run | None:
    """The run that a path belongs to; None for a module and for weights outside a run."""
    if not isinstance(model, str | os.PathLike) or not is_stored(model):
        return None
    from classwise.training.folder import Run

    folders = (Path(model), *Path(model).parents[:2])
    return next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)


def usual_radius(source: Images | Stream, norm: str) -> float:
    """The usual radius of a named data set in a norm.

    Raises:
        ClasswiseError: if the data set has no usual radius in this norm.
    """
    known = named_set(source)
    usual = None if known is None else Threat.parse(known.threat)
    if usual is None or usual.norm != norm or isinstance(usual.epsilon, Tensor):
        raise ClasswiseError(
            f"data set {source.name!r} has no usual {norm} radius; give the largest to search {CHOOSE}"
        )
    return usual.epsilon


def threat_for(source: Images | Stream, threat: ThreatLike | None) -> Threat:
    """Parse the threat; None: the usual one of a named data set.

    Raises:
        ClasswiseError: if the data have no usual threat, or per-image radii do not match the images.
    """
    if threat is None:
        known = named_set(source)
        if known is None:
            raise ClasswiseError(f"data set {source.name!r} has no usual threat; give one, such as Linf:8/255 {CHOOSE}")
        return Threat.parse(known.threat)
    return Threat.parse(threat).validated().of_images(len(source) if isinstance(source, Images) else None)


def grouped(source: Images | Stream, group: Group | None) -> Images | Stream:
    """Add a grouping to the columns of the data.

    Raises:
        ClasswiseError: if the data have no grouping of that name, or the values do not match the images.
    """
    if group is None:
        return source
    columns = source.columns if isinstance(source, Images) else {}
    known = [*columns, "class", *(["superclass"] if source.superclasses is not None else [])]
    if isinstance(group, str) and group in (*known, FREQUENCY):  # of the model, for the frequency
        return source
    if not isinstance(source, Images):
        raise ClasswiseError(
            "a stream can be grouped by superclass or frequency only; load the images for another grouping"
        )
    if isinstance(group, str):
        raise unknown("grouping of the data:", group, known)
    return dataclasses.replace(source, columns={**columns, VALUES_COLUMN: _column(group)})


def group_name(group: Group | None) -> str | None:
    """Name of the grouping's column in the outcomes; None for the class."""
    if group is None or isinstance(group, str):
        return None if group == "class" else group
    return VALUES_COLUMN


def _column(group: Column | Sequence[Any] | Tensor) -> Column:
    if isinstance(group, Column):
        return group
    given = as_array(group, "grouping")
    values = np.asarray(given, object if isinstance(given, list | tuple) else None)
    if values.ndim != 1:
        raise ClasswiseError(f"grouping: values have shape {values.shape}; expected (N,), one for each image")
    if np.ma.is_masked(group) or pd.isna(values).any():
        raise ClasswiseError("grouping: some values are missing; give one for each image")
    try:
        kinds, ids = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ClasswiseError(f"grouping: values of different types cannot be ordered ({error})") from error
    return Column(torch.from_numpy(ids.astype(np.int64)), tuple(str(kind) for kind in kinds))


def logits_on(engine: Engine, images: Tensor) -> Tensor:
    """The logits (N, classes) that the model returns for images (N, C, H, W).

    Raises:
        ClasswiseError: if a layer of torch or of the zoo rejects the images, or a model has weights of another type
            than the images. An error of other code, such as the forward method of a user's model, is raised unchanged,
            with the shape of the images as a note.
    """
    try:
        (logits,) = engine.predict([images])
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(
            f"the device has not enough memory for {engine.batch_size} images; reduce batch_size"
        ) from error
    except ClasswiseError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, torch.jit.Error) as error:
        if is_out_of_memory(error):
            raise
        shape = tuple(images.shape[1:])
        may_be_last = shape[2] in (1, 3, 4) and shape[2] != shape[0]
        hint = f"; if they are (N, H, W, C), give {CHANNELS_FIRST}" if may_be_last else ""
        described = f"images of shape {shape} (channels, height, width)"
        weights = [parameter.dtype for parameter in engine.model.parameters() if parameter.is_floating_point()]
        others = sorted({str(dtype).removeprefix("torch.") for dtype in weights if dtype != torch.float32})
        if others and isinstance(error, RuntimeError):
            raise ClasswiseError(
                f"the model has weights of type {', '.join(others)} and images are float32; convert it with "
                f"model.float() ({first_line(error)})"
            ) from error
        if not raised_within(error, torch):
            error.add_note(f"the model was called with {described}{hint}")
            raise
        raise ClasswiseError(f"the model does not accept {described}: {first_line(error)}{hint}") from error
    return logits


def restricted(model: nn.Module, source: Images | Stream, logits: int) -> nn.Module:
    """The model, restricted to the classes of the data if these are a part of the model's, as in ImageNet-A."""
    known = named_set(source)
    if known is None or not known.logits or logits != known.parent_logits:
        return model
    return SelectedLogits(model, known.logits)


def read_outputs(engine: Engine, one: Batch, images: Tensor) -> tuple[int, str]:
    """The number of logits, and of a binary model with one output whether it returns logits or probabilities.

    Args:
        engine: an engine with the model.
        one: one image.
        images: the first images of the data (N, C, H, W), which decide for ``outputs="binary"``.

    Returns:
        The number of logits, and a note on the decision, empty if there was none.

    Raises:
        ClasswiseError: as `logits_on`, or if outputs that are stated to be probabilities are not in [0, 1].
    """
    model = logits_model_of(engine.model)
    if model is None or not model.outputs.startswith("binary"):
        return logits_on(engine, one.x).shape[1], ""
    model.kind = "binary-logits"  # the second logit is the output
    count = logits_on(engine, one.x).shape[1]
    (logits,) = engine.predict([images])
    if model.outputs == "binary":
        model.decide(logits[:, 1])
        return count, f"{OUTPUTS_NOTE}{model.kind}, decided on the first {len(images)} images"
    if model.outputs == "binary-probabilities" and not in_unit_interval(logits[:, 1]):
        low, high = (float(value) for value in torch.aminmax(logits[:, 1]))
        raise ClasswiseError(
            f"outputs='binary-probabilities': the model returns numbers from {low:.4g} to {high:.4g}, expected [0, 1]; "
            "give outputs='binary-logits' (--outputs binary-logits) for logits"
        )
    model.kind = model.outputs
    return count, ""


def check_one_output(model: nn.Module, logits: int, first: Images) -> None:
    """Refuse a model with one output per image, unless the data have one class.

    Of a model of a user's own, that class must be named, or the outputs stated to be logits.

    Raises:
        ClasswiseError: naming the option for binary models.
    """
    inner = logits_model_of(model)
    is_unstated = inner is not None and inner.kind == "auto"
    if logits == 1 and (first.num_classes > 1 or (is_unnamed(first) and is_unstated)):
        raise ClasswiseError(f"the model returns one output per image; {BINARY_HINT}")


def classes_note(source: Images | Stream, first: Images, logits: int) -> str:
    """A note on the classes of the model without images, if the data have fewer classes than the model and no names.

    Of a stream, the first piece must be all images.
    """
    images = len(source) if isinstance(source, Images) else source.expected
    if not is_unnamed(first) or len(first.class_names) >= logits or images != len(first):
        return ""
    counts = torch.bincount(first.y, minlength=logits).tolist()
    empty = [label for label in range(logits) if not counts[label]]
    about = f"the model has {logits} classes and the labels are {int(first.y.min())} to {int(first.y.max())}"
    return f"{CLASSES_NOTE}{_ranges(empty)}; {about}"


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, such as ``2, 5-9``."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def is_unnamed(images: Images) -> bool:
    """Whether the names of the classes are only their numbers."""
    return images.class_names == tuple(str(number) for number in range(images.num_classes))


def class_names_for(source: Images | Stream, first: Images, logits: int, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Class names, one for each logit of the model.

    Names that are only numbers are a lower bound on the number of classes; the model may have more, and names of its
    own for them.

    Raises:
        ClasswiseError: if the numbers of classes of the data and the model differ, or their order.
    """
    names = first.class_names
    unnamed = is_unnamed(first)
    if unnamed and len(names) <= logits:
        return tuple(own) if len(own) == logits else tuple(str(number) for number in range(logits))
    if len(names) != logits:
        raise ClasswiseError(
            f"the model has {logits} classes, the data set {source.name!r} has {len(names)}; the numbers must agree"
            f"{_classes_hint(first, logits) if unnamed else ''}"
        )
    in_data, in_model = ([name.casefold() for name in classes] for classes in (names, own))
    if in_data != in_model and sorted(in_data) == sorted(in_model):
        place = next(number for number, name in enumerate(in_data) if name != in_model[number])
        raise ClasswiseError(
            f"the model and the data set {source.name!r} have the same classes in another order: label {place} is "
            f"{own[place]!r} in the model and {names[place]!r} in the data; "
            f"{order_advice(None if named_set(source) else names, [in_model.index(name) for name in in_data])}"
        )
    return names


def _classes_hint(first: Images, logits: int) -> str:
    """How to number the labels that occur, if there is one for each logit, but not 0, 1, 2, ..."""
    labels = torch.bincount(first.y).nonzero().flatten().tolist()
    if len(labels) != logits:
        return ""
    start, end = labels[0], labels[-1]
    values = f"{start}..{end}" if end - start + 1 == len(labels) else ",".join(map(str, labels[:50]))
    return f"; the labels are {start} to {end}: load the data with {classes_option(values)}"


def named(piece: Images, names: tuple[str, ...]) -> Images:
    """The images with these class names."""
    if piece.class_names == names:
        return piece
    complete = piece.superclasses is not None and len(names) == len(piece.superclasses)
    without: dict[str, Any] = {} if complete else {"superclasses": None, "superclass_names": None}
    return dataclasses.replace(piece, class_names=names, **without)


def stored(piece: Images) -> Images:
    """The images on the 8-bit grid, without the rounding errors of images that were computed from it.

    Raises:
        ClasswiseError: if they are not stored with 8 bits.
    """
    if piece.x.dtype == torch.uint8:
        return piece
    exact = torch.cat([snapped(block, piece.name) for block in torch.split(piece.x, GRID_BLOCK)])
    return piece if torch.equal(exact, piece.x) else dataclasses.replace(piece, x=exact)


def pieces_of(data: Images | Stream, batch_size: int) -> Iterator[Images]:
    """Images as one piece; a stream in pieces of about `PIECE_BYTES`."""
    if isinstance(data, Images):
        yield data
        return
    blocks: list[Batch] = []
    for block in data.blocks(batch_size):
        blocks.append(block)
        if sum(block.x.nbytes for block in blocks) >= PIECE_BYTES:
            yield _piece(data, blocks)
    if blocks:
        yield _piece(data, blocks)


def _piece(data: Stream, blocks: list[Batch]) -> Images:
    """Join the blocks, and empty the list, so that they do not stay in memory beside the piece."""
    index, x, y = (torch.cat(columns) for columns in zip(*blocks, strict=True))
    blocks.clear()
    names = data.names_of(index)
    return Images(x, y, data.class_names, data.name, data.split, index=index, image_names=names)
