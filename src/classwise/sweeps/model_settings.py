"""The models of a plan that are audited without a training: options of ``classwise audit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Positive, build, configurable
from classwise.models.loading.references import is_stored, parse_reference
from classwise.models.logits import Outputs
from classwise.sweeps.cells import slug


@configurable
class ModelSettings:
    """A model of a plan; a text in its place is the field ``model``.

    Args:
        model: the model, as `classwise.load_model` accepts it in text.
        name: its name in those of the cells; empty: from the model and the weights.
        weights: a file of weights, or a run folder.
        width: factor of the number of channels of a model of the zoo.
        mean: mean of each channel in training, for images in [0, 1]; with ``std``.
        std: standard deviation of each channel.
        set: further settings of the model, such as ``{"depth": 34}``.
        outputs: what the model returns.

    Raises:
        ClasswiseError: for a model or weights that do not exist, or only one of mean and std.

    Example:
        >>> ModelSettings(model="resnet18", set={"stem": "3x3"}).options()
        {'model': 'resnet18', 'set': {'stem': '3x3'}}
    """

    model: str
    name: str = ""
    weights: str | None = None
    width: Positive | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: Outputs = "auto"

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ClasswiseError(f"model {self.model!r}: mean and std must be given together")
        if self.weights is not None and not Path(self.weights).exists():
            raise ClasswiseError(f"model {self.model!r}: weights = {self.weights!r} must be a file or a run folder")

    @property
    def key(self) -> str:
        """What ``exclude`` names: the name, or the model."""
        return self.name or self.model

    @property
    def source(self) -> str:
        """The reference, or the absolute path of the folder or file.

        Raises:
            ClasswiseError: if it is neither.
        """
        if is_stored(self.model) or Path(self.model).exists():
            return str(Path(self.model).absolute())
        parse_reference(self.model)
        return self.model

    @property
    def label(self) -> str:
        """The name in those of the cells."""
        return slug(self.name) if self.name else "-".join(map(_label, filter(None, (self.model, self.weights))))

    def options(self) -> dict[str, Any]:
        """The settings that differ from their defaults, as JSON values with absolute paths."""
        given = {name: value for name, value in vars(self).items() if value not in (None, "", "auto", {})}
        given |= {"model": self.source} | {key: [*given[key]] for key in ("mean", "std") if key in given}
        return given if self.weights is None else given | {"weights": str(Path(self.weights).absolute())}


def build_models(value: object) -> object:
    """Build the models of a plan from texts and mappings."""
    if not isinstance(value, list | tuple):
        raise ClasswiseError(f"plan: models = {value!r} must be a list of models, such as [resnet18]")
    return tuple(map(_built, value))


def _built(model: object) -> object:
    settings = {"model": model} if isinstance(model, str) else model
    return build(ModelSettings, settings, "model of the plan") if isinstance(settings, Mapping) else model


Models = Annotated[tuple[ModelSettings, ...], pydantic.BeforeValidator(build_models)]


def _label(model: str) -> str:
    """The name in its source; of a path, the last part without a suffix, after the run of a file in ``checkpoints``."""
    path = Path(model)
    if not path.exists():
        return slug(parse_reference(model)[1])
    run = [path.absolute().parents[1].name] if path.absolute().parent.name == "checkpoints" else []
    return "-".join(map(slug, (*run, path.stem if path.is_file() else path.name)))
