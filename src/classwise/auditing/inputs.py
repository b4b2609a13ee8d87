"""The model, the images and the threat of an evaluation, read and checked before the first attack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine
from classwise.core import limits
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.precision import check_device
from classwise.core.threat import Threat, ThreatLike
from classwise.core.user_code import raised_within
from classwise.data.images import Batch, Column, Images
from classwise.data.loading import named_set
from classwise.data.stream import Stream
from classwise.models.base import bare
from classwise.models.functions import FunctionModel
from classwise.models.loading.loader import load_model
from classwise.models.loading.references import is_stored
from classwise.models.logits import are_probabilities, as_logits
from classwise.models.selected_logits import SelectedLogits

Model = Annotated[
    nn.Module | str | Path | Callable[[Tensor], object],
    "a torch.nn.Module, a function, or a path or text that load_model accepts",
]
Group = Annotated[
    str | Column | Sequence[Any] | Tensor, "the name of a grouping, or a list with a value for each image"
]
"""The name of a grouping of the data, or a value for each image."""

VALUES_COLUMN = "group"
"""The column of a grouping that is given as one value for each image."""
PIECE_BYTES = 256 << 20
"""Size of the pieces in which a stream is audited: every attack runs on a piece while it is in memory."""


def as_classifier(model: Model, source: Images | Stream, device: str | torch.device | None) -> nn.Module:
    """Load or wrap the model as a module that returns logits, on the device (None: where it is)."""
    if isinstance(model, str | os.PathLike):
        return load_model(model, data=source, device=device or "cpu")
    wrapped = as_logits(model)
    # The flag of the wrapper only; its submodules keep theirs.
    wrapped.training = isinstance(model, nn.Module) and model.training
    if device is None:
        return wrapped
    check_device(device)
    return wrapped.to(device)


def name_of(model: Model) -> str:
    """Name of the model in reports: its path or reference, the name of its function, or its class."""
    if isinstance(model, str | os.PathLike):
        return str(model)
    network, spec = bare(as_logits(model)), _spec(model)
    if isinstance(network, FunctionModel):
        return network.name
    return str(spec["name"]) if "name" in spec else type(network).__name__


def network_of(model: nn.Module) -> str:
    """Network of a loaded model, such as ``resnet18, width 0.25``: its reference and width, or as `name_of`."""
    width = _spec(model).get("width", 1.0)
    return name_of(model) if width == 1.0 else f"{name_of(model)}, width {width}"


def _spec(model: object) -> dict[str, Any]:
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, dict) else {}


def training_attack_of(model: Model) -> Attack | None:
    """Training attack of the run that a path belongs to; None for a module and for weights outside a run."""
    if not isinstance(model, str | os.PathLike) or not is_stored(model):
        return None
    from classwise.training.folder import Run

    folders = (Path(model), *Path(model).parents[:2])
    run = next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)
    # Including the fields that the objective sets, such as the divergence of TRADES.
    return None if run is None else run.recipe.parts.attack


def usual_radius(source: Images | Stream, norm: str) -> float:
    """The usual radius of a named data set in a norm.

    Raises:
        ClasswiseError: if the data set has no usual radius in this norm.
    """
    known = named_set(source)
    usual = None if known is None else Threat.parse(known.threat)
    if usual is None or usual.norm != norm or isinstance(usual.epsilon, Tensor):
        raise ClasswiseError(f"data set {source.name!r} has no usual {norm} radius; give the largest radius to search")
    return usual.epsilon


def threat_for(source: Images | Stream, threat: ThreatLike | None) -> Threat:
    """Parse the threat; None: the usual one of a named data set.

    Raises:
        ClasswiseError: if the data have no usual threat, or per-image radii do not match the images.
    """
    if threat is None:
        known = named_set(source)
        if known is None:
            raise ClasswiseError(f"data set {source.name!r} has no usual threat; give one, such as threat='Linf:8/255'")
        return Threat.parse(known.threat)
    ball = Threat.parse(threat)
    if isinstance(ball.epsilon, Tensor):
        if not ((ball.epsilon >= 0) & (ball.epsilon <= limits.RADIUS)).all():  # also for NaN
            raise ClasswiseError(f"threat: every radius must be a number from 0 to {limits.RADIUS:,}")
        count = len(source) if isinstance(source, Images) else None
        if ball.epsilon.shape != (count,):
            accepted = "one number for a stream" if count is None else f"one number, or shape ({count},)"
            raise ClasswiseError(f"threat: radii have shape {tuple(ball.epsilon.shape)}; expected {accepted}")
    return ball


def grouped(source: Images | Stream, group: Group | None) -> Images | Stream:
    """Add a grouping to the columns of the data.

    Raises:
        ClasswiseError: if the data have no grouping of that name, or the values do not match the images.
    """
    if group is None:
        return source
    columns = source.columns if isinstance(source, Images) else {}
    if isinstance(group, str):
        known = [*columns, "class", *(["superclass"] if source.superclasses is not None else [])]
        if group not in known:
            raise unknown("grouping of the data:", group, known)
        return source
    if not isinstance(source, Images):
        raise ClasswiseError("a stream can be grouped by superclass only; load the images for another grouping")
    return _rebuilt(source, source.class_names, {**columns, VALUES_COLUMN: _column(group)})


def group_name(group: Group | None) -> str | None:
    """Name of the grouping's column in the outcomes; None for the class."""
    if group is None or isinstance(group, str):
        return None if group == "class" else group
    return VALUES_COLUMN


def _column(group: Column | Sequence[Any] | Tensor) -> Column:
    if isinstance(group, Column):
        return group
    if isinstance(group, Tensor) and group.is_meta:
        raise ClasswiseError("grouping: a tensor on the meta device has no values; give one for each image")
    values = (
        group.detach().cpu().numpy()
        if isinstance(group, Tensor)
        else np.asarray(group, object if isinstance(group, list | tuple) else None)
    )
    if values.ndim != 1:
        raise ClasswiseError(f"grouping: values have shape {values.shape}; expected (N,), one for each image")
    if np.ma.is_masked(group) or pd.isna(values).any():
        raise ClasswiseError("grouping: some values are missing; give one for each image")
    try:
        kinds, ids = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ClasswiseError(f"grouping: values of different types cannot be ordered ({error})") from error
    return Column(torch.from_numpy(ids.astype(np.int64)), tuple(str(kind) for kind in kinds))


def logits_on(engine: Engine, batch: Batch) -> int:
    """Number of logits that the model returns for a batch.

    Raises:
        ClasswiseError: if a layer of torch or of the zoo rejects the images, or a model has weights of another type
            than the images. An error of other code, such as the forward method of a user's model, is raised unchanged,
            with the shape of the images as a note.
    """
    try:
        (logits,) = engine.predict([batch.x])
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(
            f"the device has not enough memory for {engine.batch_size} images; reduce batch_size"
        ) from error
    except ClasswiseError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        images = f"images of shape {tuple(batch.x.shape[1:])} (channels, height, width)"
        weights = [each.dtype for each in engine.model.parameters() if each.is_floating_point()]
        others = sorted({str(dtype).removeprefix("torch.") for dtype in weights if dtype != torch.float32})
        if others and isinstance(error, RuntimeError):
            raise ClasswiseError(
                f"the model has weights of type {', '.join(others)} and images are float32; convert it with "
                f"model.float() ({first_line})"
            ) from error
        if not raised_within(error, torch):
            error.add_note(f"the model was called with {images}")
            raise
        raise ClasswiseError(f"the model does not accept {images}: {first_line}") from error
    return int(logits.shape[1])


def restricted(model: nn.Module, source: Images | Stream, logits: int) -> nn.Module:
    """The model, restricted to the classes of the data if these are a part of the model's, as in ImageNet-A."""
    known = named_set(source)
    if known is None or not known.logits or logits != known.parent_logits:
        return model
    return SelectedLogits(model, known.logits).train(model.training)


def check_outputs(engine: Engine, images: Tensor) -> None:
    """Check that a model returns logits, or probabilities if it was loaded as a model of probabilities.

    Args:
        engine: an engine with the model.
        images: a few images (N, C, H, W).

    Raises:
        ClasswiseError: if it returns the other.
    """
    outputs = getattr(engine.model, "outputs", "auto")
    if outputs not in ("auto", "probabilities"):
        return
    blocks = engine.predict(torch.split(images, engine.batch_size))
    if outputs == "auto":
        if all(are_probabilities(logits) for logits in blocks):
            raise ClasswiseError(
                "the model returns probabilities (each row is nonnegative and sums to 1), whose gradients vanish where "
                "the model is confident; return logits, or load it with outputs='probabilities' (--outputs "
                "probabilities), which takes the logarithm"
            )
    elif not all(are_probabilities(logits.exp()) for logits in blocks):
        raise ClasswiseError("outputs='probabilities': the model returns rows that are negative or do not sum to 1")


def class_names_for(source: Images | Stream, first: Images, logits: int, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Class names, one for each logit of the model.

    Names that are only numbers are a lower bound on the number of classes; the model may have more, and names of its
    own for them.

    Raises:
        ClasswiseError: if the numbers of classes of the data and the model differ, or their order.
    """
    names = first.class_names
    unnamed = names == tuple(str(number) for number in range(len(names)))
    if unnamed and len(names) <= logits:
        return tuple(own) if len(own) == logits else tuple(str(number) for number in range(logits))
    if len(names) != logits:
        raise ClasswiseError(
            f"the model has {logits} classes, the data set {source.name!r} has {len(names)}; the numbers must agree"
            f"{_classes_hint(first, logits) if unnamed else ''}"
        )
    in_data, in_model = ([name.casefold() for name in each] for each in (names, own))
    if in_data != in_model and sorted(in_data) == sorted(in_model):
        place = next(number for number, name in enumerate(in_data) if name != in_model[number])
        raise ClasswiseError(
            f"the model and the data set {source.name!r} have the same classes in another order: label {place} is "
            f"{own[place]!r} in the model and {names[place]!r} in the data; renumber the labels of the data"
        )
    return names


def _classes_hint(first: Images, logits: int) -> str:
    """How to number the labels that occur, if there is one for each logit, but not 0, 1, 2, ..."""
    labels = torch.bincount(first.y).nonzero().flatten().tolist()
    if len(labels) != logits:
        return ""
    start, end = labels[0], labels[-1]
    values = f"range({start}, {end + 1})" if end - start + 1 == len(labels) else str(labels[:50])
    return f"; the labels are {start} to {end}: load the data with load_data(data, classes={values})"


def named(piece: Images, names: tuple[str, ...]) -> Images:
    """The images with these class names."""
    return piece if piece.class_names == names else _rebuilt(piece, names, dict(piece.columns))


def _rebuilt(images: Images, names: Sequence[str], columns: dict[str, Column]) -> Images:
    complete = images.superclasses is not None and len(names) == len(images.superclasses)
    return Images(
        images.x,
        images.y,
        names,
        images.name,
        images.split,
        images.superclasses if complete else None,
        images.superclass_names if complete else None,
        images.index,
        columns,
    )


def pieces_of(data: Images | Stream, batch_size: int) -> Iterator[Images]:
    """Images as one piece; a stream in pieces of about `PIECE_BYTES`."""
    if isinstance(data, Images):
        yield data
        return
    blocks: list[Batch] = []
    for block in data.blocks(batch_size):
        blocks.append(block)
        if sum(each.x.nbytes for each in blocks) >= PIECE_BYTES:
            yield _piece(data, blocks)
    if blocks:
        yield _piece(data, blocks)


def _piece(data: Stream, blocks: list[Batch]) -> Images:
    """Join the blocks, and empty the list, so that they do not stay in memory beside the piece."""
    index, x, y = (torch.cat(columns) for columns in zip(*blocks, strict=True))
    blocks.clear()
    return Images(x, y, data.class_names, data.name, data.split, index=index)
