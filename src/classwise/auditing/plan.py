"""Everything that is read and checked before an audit makes its first attack."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, Engine
from classwise.auditing.applicable import split_suite
from classwise.auditing.artifacts import Kind
from classwise.auditing.batch_sizes import SMALL_PIXELS, USUAL_BATCH, fitting_batch
from classwise.auditing.meta import Meta
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.suite import Suite
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.precision import Precision, check_device
from classwise.core.threat import Threat
from classwise.core.user_code import raised_within
from classwise.data.images import Batch, Column, Images
from classwise.data.loading import named_set
from classwise.data.stream import Stream, as_data
from classwise.models.base import Classifier, Wrapper, bare
from classwise.models.loading.loader import load_model
from classwise.models.logits import LogitsModel
from classwise.models.weights import fingerprint

Model = nn.Module | str | Path
Group = str | Column | Sequence[Any] | Tensor
"""The name of a grouping of the data, or a value for each image."""

OWN_GROUP = "group"
"""The column of a grouping that the caller gave as values."""
PIECE_BYTES = 256 << 20
"""A stream is audited in pieces of about this size, so that each piece meets every attack while it is in memory."""


@dataclass(frozen=True)
class Plan:
    """What an audit does to each image.

    Args:
        suite: the attacks.
        threat: the ball; its radius one number, or one for each image of the data.
        early_stop: whether an attack stops at its first success.
        cascade: an attack sees only what those before it left standing.
        precision: how gradients are computed.
        batch_size: images on the device at once.
        seed: the seed of the attacks' draws.
        save: tensors to keep.
        trace: the numbers of the images whose confidences are followed step by step.

    Raises:
        ClasswiseError: for settings that do not go together.
    """

    suite: Suite
    threat: Threat
    early_stop: bool
    cascade: bool
    precision: Precision
    batch_size: int
    seed: int
    save: tuple[Kind, ...] = ()
    trace: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for label, attack in self.suite.attacks.items():
            if self.threat.norm not in attack.norms:
                known = " and ".join(attack.norms)
                raise ClasswiseError(f"attack {label!r} has no {self.threat.norm} form; it knows {known}")
        if self.cascade and not self.early_stop:
            raise ClasswiseError(
                "a cascade runs each attack on the survivors of those before it, so it needs early_stop=True"
            )

    def engine(self, model: nn.Module, batch_size: int | None = None) -> Engine:
        """An engine with these settings."""
        return Engine(
            model,
            precision=self.precision,
            batch_size=batch_size or self.batch_size,
            early_stop=self.early_stop,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Prepared:
    """An audit that can begin.

    Attributes:
        model: returns logits, one for each class of the data.
        plan: what to do, with the attacks that can be applied to the model.
        meta: what the outcomes will say of themselves.
        pieces: the images, to be read once.
        source: where they come from.
        was_training: whether a part of the model was in training mode.
        untrained: whether its weights are those of a network of the zoo as it is built.
        no_gradient: why the model has no gradient with respect to its input; empty if it has one.
        note: what a user should know of the batch; else empty.
    """

    model: nn.Module
    plan: Plan
    meta: Meta
    pieces: Iterator[Images]
    source: Images | Stream
    was_training: bool
    untrained: bool
    no_gradient: str = ""
    note: str = ""


def prepare(
    model: Model,
    data: Any,
    suite: Suite,
    threat: Threat | str | None,
    *,
    group: Group | None = None,
    device: str | torch.device | None = None,
    batch_size: int | None = None,
    **settings: Any,
) -> Prepared:
    """Read the data and the model, and see that they fit each other; ``settings`` are those of `Plan`.

    Args:
        model: as `classwise.auditing.audit.audit` takes it, and so on.
        data: the images.
        suite: the attacks.
        threat: the ball; None: the usual one of the data.
        group: a grouping to add.
        device: where to run.
        batch_size: images on the device at once; None: as many as fit (`classwise.auditing.batch_sizes`).
        **settings: the rest of the plan.

    Raises:
        ClasswiseError: if they do not fit, or one of them cannot be read.
    """
    if batch_size is not None and batch_size < SMALLEST_BATCH:
        raise ClasswiseError(f"batch_size = {batch_size}: below {SMALLEST_BATCH} results do not repeat; give more")
    source = grouped(as_data(data), group)
    plan = Plan(suite=suite, threat=threat_for(source, threat), batch_size=batch_size or USUAL_BATCH, **settings)
    classifier = as_classifier(model, source, device)
    was_training = any(module.training for module in classifier.modules())
    pieces = pieces_of(source, plan.batch_size)
    first = next(pieces)
    if "features" in plan.save and not hasattr(classifier, "features"):
        raise ClasswiseError(f"{name_of(model)} has no method features(x), so its features cannot be kept")
    numbers, times = torch.unique(first.index, return_counts=True)
    if bool((times > 1).any()):
        raise ClasswiseError(
            f"image {int(numbers[times.argmax()])} is there {int(times.max())} times; numbers name images"
        )
    one = first.batch(slice(0, 1))
    few = SMALLEST_BATCH if one.x.shape[-2] * one.x.shape[-1] <= SMALL_PIXELS else 1
    small = plan.engine(classifier, few)
    names = class_names_for(source, first, logits_on(small, one))
    try:
        applicable, no_gradient = split_suite(suite, small, first.batch(slice(0, few)), plan.threat)
        fit = fitting_batch(classifier, one.x.to(small.device), batch_size)
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(f"the device has no memory for {few} images of shape {tuple(one.x.shape[1:])}") from error
    meta = Meta(
        class_names=names,
        attacks={CLEAN: None, **suite.specs()},
        not_applicable=tuple(label for label in suite.attacks if label not in applicable.attacks),
        families=suite.families,
        groups={key: column.names for key, column in first.columns.items()},
        superclasses=source.superclasses if source.superclasses and len(source.superclasses) == len(names) else None,
        superclass_names=source.superclass_names,
        data=source.name,
        split=source.split,
        data_hash=source.fingerprint(),
        images=len(source) if isinstance(source, Images) else source.expected,
        sizes=_sizes(first, len(names)) if isinstance(source, Images) else {},
        model=name_of(model),
        # Its own parameters: the wrapper that picks the logits would put a prefix before their names.
        model_hash=fingerprint(classifier.model if isinstance(classifier, LogitsModel) else classifier),
        threat=str(plan.threat),
        norm=plan.threat.norm,
        early_stop=plan.early_stop,
        cascade=plan.cascade,
        seed=plan.seed,
        precision=dataclasses.asdict(plan.precision),
        batch_size=fit.batch_size,
        notes=()
        if fit.batch_size >= SMALLEST_BATCH
        else (f"batch {fit.batch_size} for memory, below {SMALLEST_BATCH}",),
    )
    renamed = (named(piece, names) for piece in itertools.chain([first], pieces))
    untrained = getattr(classifier, "fresh", None) == meta.model_hash
    plan = dataclasses.replace(plan, suite=applicable, batch_size=fit.batch_size)
    return Prepared(classifier, plan, meta, renamed, source, was_training, untrained, no_gradient, fit.note)


def _sizes(images: Images, classes: int) -> dict[str, tuple[int, ...]]:
    """How many of the images each class has, and each group of their columns."""
    ids = {"class": (images.y, classes)}
    ids |= {name: (column.ids, len(column.names)) for name, column in images.columns.items()}
    return {name: tuple(torch.bincount(each.cpu(), minlength=size).tolist()) for name, (each, size) in ids.items()}


def as_classifier(model: Model, source: Images | Stream, device: str | torch.device | None) -> nn.Module:
    """The model as a module that returns logits, on the device."""
    if not isinstance(model, nn.Module):
        return load_model(model, data=source, device=device or "cpu")
    wrapped = model if isinstance(model, Classifier | Wrapper) else LogitsModel(model)
    wrapped.training = model.training  # the wrapper's own flag; those inside stay as they are
    if device is None:
        return wrapped
    check_device(device)
    return wrapped.to(device)


def name_of(model: Model) -> str:
    """What a report calls the model: the path it was read from, its name in the zoo, or its class."""
    if not isinstance(model, nn.Module):
        return str(model)
    spec = getattr(model, "spec", None)
    return str(spec["name"]) if isinstance(spec, dict) and "name" in spec else type(bare(model)).__name__


def training_attack_of(model: Model) -> Attack | None:
    """The attack of the run that a path belongs to; None for modules and for weights that belong to no run."""
    if isinstance(model, nn.Module):
        return None
    from classwise.training.folder import Run

    folders = (Path(model), *Path(model).parents[:2])
    run = next((Run(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)
    # With what its objective sets of the attack, such as the divergence of TRADES.
    return None if run is None else run.recipe.parts.attack


def usual_radius(source: Images | Stream, norm: str) -> float:
    """The radius that the field uses for data that are known by name.

    Raises:
        ClasswiseError: if none is usual in this norm.
    """
    known = named_set(source) if isinstance(source, Images) else None
    usual = None if known is None else Threat.parse(known.threat)
    if usual is None or usual.norm != norm or isinstance(usual.epsilon, Tensor):
        raise ClasswiseError(f"no {norm} radius is usual for {source.name!r}; give the largest radius to search")
    return usual.epsilon


def threat_for(source: Images | Stream, threat: Threat | str | None) -> Threat:
    """The ball that was asked for, or the usual one of the data.

    Raises:
        ClasswiseError: if none is usual, or there is not one radius for each image.
    """
    if threat is None:
        known = named_set(source) if isinstance(source, Images) else None
        if known is None:
            raise ClasswiseError(f"no radius is usual for {source.name!r}; give one, such as threat='Linf:8/255'")
        return Threat.parse(known.threat)
    ball = Threat.parse(threat)
    if isinstance(ball.epsilon, Tensor):
        count = len(source) if isinstance(source, Images) else None
        if ball.epsilon.shape != (count,):
            raise ClasswiseError(
                f"radii of shape {tuple(ball.epsilon.shape)} for {count} images; give one number, or (N,)"
            )
    return ball


def grouped(source: Images | Stream, group: Group | None) -> Images | Stream:
    """The data with the grouping among its columns.

    Raises:
        ClasswiseError: if the data have no grouping of that name, or there is not one value for each image.
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
        raise ClasswiseError("a stream can be grouped by superclass only; load the images to group them otherwise")
    return _rebuilt(source, source.class_names, {**columns, OWN_GROUP: _column(group)})


def group_name(group: Group | None) -> str | None:
    """The grouping's name in the outcomes; None for the class."""
    if group is None or isinstance(group, str):
        return None if group == "class" else group
    return OWN_GROUP


def _column(group: Column | Sequence[Any] | Tensor) -> Column:
    if isinstance(group, Column):
        return group
    values = group.cpu().numpy() if isinstance(group, Tensor) else np.asarray(group)
    if values.ndim != 1:
        raise ClasswiseError(f"grouping: values of shape {values.shape} should be (N,), one for each image")
    kinds, ids = np.unique(values, return_inverse=True)
    return Column(torch.from_numpy(ids.astype(np.int64)), tuple(str(kind) for kind in kinds))


def logits_on(engine: Engine, batch: Batch) -> int:
    """How many logits the model returns, tried on a batch.

    Raises:
        ClasswiseError: if a layer of torch or of the zoo refuses the images. An error of other code, such as the
            forward function of a model of the user, is raised unchanged, with the shape of the images as a note.
    """
    try:
        (logits,) = engine.predict([batch.x])
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(f"the device has no memory for {engine.batch_size} images; use a smaller batch") from error
    except ClasswiseError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        images = f"images of shape {tuple(batch.x.shape[1:])} (channels, height, width)"
        if not raised_within(error, torch):
            error.add_note(f"the model was given {images}")
            raise
        reason = str(error).strip().partition("\n")[0]
        raise ClasswiseError(f"the model cannot read {images}: {reason}") from error
    return int(logits.shape[1])


def class_names_for(source: Images | Stream, first: Images, logits: int) -> tuple[str, ...]:
    """The names of the classes, as many as the model has logits.

    Names that are only numbers say how many classes there are at least; the model may have more.

    Raises:
        ClasswiseError: if the data have other classes than the model.
    """
    names = first.class_names
    unnamed = names == tuple(str(number) for number in range(len(names)))
    if unnamed and len(names) < logits:
        return tuple(str(number) for number in range(logits))
    if len(names) != logits:
        raise ClasswiseError(f"the model has {logits} classes and {source.name} {len(names)}; they should be the same")
    return names


def named(piece: Images, names: tuple[str, ...]) -> Images:
    """The images under these class names."""
    return piece if piece.class_names == names else _rebuilt(piece, names, dict(piece.columns))


def _rebuilt(images: Images, names: Sequence[str], columns: dict[str, Column]) -> Images:
    whole = images.superclasses is not None and len(names) == len(images.superclasses)
    return Images(
        images.x,
        images.y,
        names,
        images.name,
        images.split,
        images.superclasses if whole else None,
        images.superclass_names if whole else None,
        images.index,
        columns,
    )


def pieces_of(data: Images | Stream, batch_size: int) -> Iterator[Images]:
    """Images as they are; a stream in pieces that fit into memory."""
    if isinstance(data, Images):
        yield data
        return
    held: list[Batch] = []
    for block in data.batches(batch_size):
        held.append(block)
        if sum(part.x.nbytes for part in held) >= PIECE_BYTES:
            yield _piece(data, held)
            held = []
    if held:
        yield _piece(data, held)


def _piece(data: Stream, held: Sequence[Batch]) -> Images:
    index, x, y = (torch.cat(columns) for columns in zip(*held, strict=True))
    return Images(x, y, data.class_names, data.name, data.split, index=index)
