"""The models and the audits of a plan: options of ``classwise audit``, checked before anything starts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import pydantic

from classwise.auditing.evaluation.evaluation import FLAGS, Evaluation, complete
from classwise.auditing.run import plan as audit_plan
from classwise.auditing.run.audit import audit
from classwise.auditing.run.inputs import grouped
from classwise.auditing.run.suite import norm_of, parse_attacks
from classwise.core.errors import ArgumentError, ClasswiseError, unknown
from classwise.core.settings.arguments import check
from classwise.core.settings.config import Count, Positive, build, configurable
from classwise.data import CORRUPTIONS, DATA, Images
from classwise.data.sets.loading import open_data
from classwise.data.stream import Stream
from classwise.models.loading.references import is_stored, parse_reference
from classwise.models.logits import Outputs
from classwise.sweeps.cells import slug
from classwise.threat.ball import Threat
from classwise.training.recipe_settings import DataSettings

_OPTIONS = {key: name for name, option in FLAGS.items() for key in (name, option.key)}
"""The options that an audit of a plan may have, by their names there: those in Python, and on the command line."""


@configurable
class AuditSettings:
    """An audit of each cell.

    Args:
        which: the weights of the run, such as ``"last"``; None for those selected by validation.
        data: a data set's name or a path; None for the data of the run.
        split: the split to attack.
        subset: number of images, stratified by class; None for all.
        corruption: the corruption of the images, with ``severity``.
        severity: from 1 to 5.
        asked: the given options of an evaluation by name, in the units of Python
            (`classwise.auditing.evaluation.evaluation.FLAGS`); without ``threat`` it is that of the run.

    Raises:
        ClasswiseError: for an unknown attack, data set or corruption, or an invalid value.
    """

    which: str | None = None
    data: str | None = None
    split: str = "test"
    subset: Count | None = None
    corruption: str | None = None
    severity: Annotated[int, pydantic.Field(ge=1, le=5)] | None = None
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.corruption is None) != (self.severity is None):
            raise ClasswiseError("corruption and severity must be given together")
        if self.corruption is not None and self.corruption not in CORRUPTIONS:
            raise unknown("corruption", self.corruption, CORRUPTIONS)
        if self.data is not None:
            data_source(self.data)
        check(audit, self.asked)
        if self.threat is None:
            parse_attacks(self.attacks)  # their names; the norm is that of each recipe
        else:
            self.check(self.threat)

    @property
    def attacks(self) -> Any:
        """The attacks; None for the default suite."""
        return self.asked.get("attacks")

    @property
    def threat(self) -> str | None:
        """The threat; None for that of the run."""
        return self.asked.get("threat")

    @property
    def options(self) -> Evaluation:
        """All options of `classwise.audit`."""
        return complete(
            cast("Evaluation", {name: value for name, value in self.asked.items() if name not in ("threat", "attacks")})
        )

    def check(self, threat: str) -> None:
        """Check the attacks and their options under a threat.

        Raises:
            ClasswiseError: for an unknown attack, or one that does not support the norm.
        """
        audit_plan.Plan.of(parse_attacks(self.attacks, norm_of(threat)), Threat.parse(threat), self.options)

    def images(self, data: str, training: DataSettings | None, *, download: bool = True) -> Images | Stream:
        """Open the images to attack.

        Args:
            data: the data of the cell.
            training: the training data of its recipe, whose options apply to the same data; None for a model.
            download: whether a named data set that is not found is downloaded.

        Raises:
            ClasswiseError: if they cannot be read, or have no such split or grouping.
        """
        name = data if self.data is None else self.data
        own = {} if training is None or self.data is not None else {**training.options, "root": training.root}
        options = self.options
        images = open_data(name, split=self.split, subset=self.subset, seed=options["seed"], download=download, **own)
        return grouped(images, options["group"])

    def given(self) -> dict[str, Any]:
        """The settings that differ from their defaults, as JSON values with the names of the command line."""
        own = [field for field in dataclasses.fields(self) if field.name != "asked"]
        values = {field.name: getattr(self, field.name) for field in own if getattr(self, field.name) != field.default}
        if self.data is not None:
            values["data"] = data_source(self.data)
        for name, value in self.asked.items():
            option = FLAGS[name]
            if value != option.default:
                is_path = option.flag is not None and option.flag.kind is Path
                values[option.key] = str(Path(value).absolute()) if is_path else value
        return values


def read_audit(values: Mapping[str, Any], where: str) -> AuditSettings:
    """Read the settings of an audit, whose unknown keys are refused with the nearest known one.

    Raises:
        ClasswiseError: beginning with ``where``.
    """
    own = {field.name for field in dataclasses.fields(AuditSettings)} - {"asked"}
    asked: dict[str, Any] = {}
    for key, value in values.items():
        if key in _OPTIONS:
            asked[_OPTIONS[key]] = "off" if key == "guards" and value is False else value  # YAML reads off as false
        elif key not in own:
            raise unknown("field", str(key), [*own, *_OPTIONS], "", where)
    if isinstance(asked.get("attacks"), str):
        asked["attacks"] = [asked["attacks"]]
    try:
        return build(AuditSettings, {key: values[key] for key in own & values.keys()} | {"asked": asked}, where)
    except ArgumentError as error:
        raise ClasswiseError(f"{where}: {error.without_function}") from None
    except ClasswiseError as error:
        raise error if str(error).startswith(where) else ClasswiseError(f"{where}: {error}") from None


def build_audits(value: object) -> object:
    """Build the audits of a plan.

    Raises:
        ClasswiseError: for a malformed name or setting.
    """
    if not isinstance(value, Mapping):
        raise ClasswiseError(f"plan: audits = {value!r} must map names to options of an audit, such as full: {{}}")
    for name, options in value.items():
        if not re.fullmatch(r"\w[\w.-]{0,60}", str(name)):
            raise ClasswiseError(f"plan: the audit name {name!r} must consist of letters, digits, '.', '_' and '-'")
        if not isinstance(options, Mapping | AuditSettings | None):
            raise ClasswiseError(f"plan: audits.{name} = {options!r} must be a mapping of options")
    return {
        str(name): given if isinstance(given, AuditSettings) else read_audit(given or {}, f"audit {name!r}")
        for name, given in value.items()
    }


def data_source(data: str) -> str:
    """A data set's name or import path, or the absolute path of a file or folder.

    Raises:
        ClasswiseError: if there is neither.
    """
    if data in DATA:
        return data
    if Path(data).exists():
        return str(Path(data).absolute())
    DATA.load(data)
    return data


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
