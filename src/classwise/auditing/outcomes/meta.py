"""Metadata of a table of outcomes: everything that decided its rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import pydantic

from classwise.auditing.evaluation.evaluation import STORED
from classwise.auditing.evaluation.option import Decides
from classwise.auditing.evaluation.types import type_of
from classwise.core.compute.repeats import RepeatRule, Repeats
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.json_values import json_text
from classwise.core.files.reading import parse_json
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.settings.config import build, configurable, explain
from classwise.core.settings.names import checked_name, checked_names, checked_text
from classwise.stats.counts import FloatArray, IntArray, class_labels, frequency_thirds, whole_numbers
from classwise.threat.text import PER_IMAGE, Grid, check_stated, parse_threat

"""Version of the columns of the table and of this metadata."""
CLEAN, ALL = "clean", "all"
"""The pass without an attack; and all attacks together, the clean pass included."""
BEST, UNION = "best", "union"
"""Suffixes of a family of attacks: its strongest member, and all of its members together."""
TABLE_COLUMNS = ("n", "low", "high", "class", "superclass", "possibly_worst")
"""The columns of tables of classes beside those of the attacks."""
FREQUENCY = "frequency"
"""The grouping of the images by the number of training images of their class (`frequency_thirds`)."""
FREQUENCIES = ("head", "middle", "tail")
"""Its groups."""
FREQUENCY_UNKNOWN = (
    f"grouping {FREQUENCY!r}: the training images of each class are not known; audit a run by its folder, or give "
    "training_counts with predictions made elsewhere"
)
CLASSES_NOTE, OUTPUTS_NOTE = "classes without images: ", "outputs are read as "
"""Beginnings of notes on how the data and the model were read."""
CHANGED_NOTE = "the model was changed "
"""Beginning of notes on what changed the model during an audit."""
_ENDINGS = (
    *("low", "high", "judged", "lower_bound", "upper_bound", "cumulative", "cumulative_low", "cumulative_high"),
    "predicted",
)
"""What tables of classes and of images append to the name of an attack in their columns."""


def check_attack_labels(labels: Iterable[str], families: Iterable[str] = ()) -> None:
    """Check the labels of attacks, without the clean pass.

    Args:
        labels: the labels.
        families: names of families of attacks.

    Raises:
        ClasswiseError: for labels that are not distinct names, or that tables use for something else: ``clean``,
            ``all``, the best and the union of a family, and the columns of tables of classes and images.
    """
    checked = checked_names([*labels], "attack labels")
    derived = {f"{checked_name(family, 'family of attacks')}-{kind}" for family in families for kind in (BEST, UNION)}
    columns = {f"{name}_{ending}" for name in (CLEAN, ALL, *derived, *checked) for ending in _ENDINGS}
    reserved = {CLEAN, ALL, "index", "name", *TABLE_COLUMNS} | derived | columns
    for label in checked:
        if label.strip() in reserved:
            use = " for the pass without an attack (`clean=` of `from_predictions`)" if label.strip() == CLEAN else ""
            raise ClasswiseError(f"attack label {label!r} is reserved{use}; choose another label")


def _distinct(what: str) -> pydantic.BeforeValidator:
    return pydantic.BeforeValidator(lambda names: checked_names(names, what))


def _text(what: str) -> pydantic.BeforeValidator:
    return pydantic.BeforeValidator(lambda text: checked_text(text, what))


def _superclasses(values: Any) -> object:
    return None if values is None else whole_numbers(values, "superclasses").tolist()


def _training_counts(values: Any) -> object:
    return None if values is None else whole_numbers(values, "training counts").tolist()


@functools.cache
def _stored(name: str) -> pydantic.TypeAdapter[Any]:
    """The values that a setting may have in the metadata."""
    option = STORED[name]
    config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    return pydantic.TypeAdapter(type_of(option.stored or option.type), config=config)


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have a value, of the types that the options state.

    Raises:
        ClasswiseError: for an unknown setting, or a value of another type.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name, option in STORED.items():
        if option.decides is Decides.VERDICTS:  # an audit from before the option existed has its default
            given.setdefault(name, option.default)
    for name, value in given.items():
        if name not in STORED:
            raise unknown("setting", name, STORED)
        try:
            given[name] = _stored(name).validate_python(value)
        except pydantic.ValidationError as error:
            raise ClasswiseError(f"metadata: {name} = {value!r}: {explain(error)}") from error
    return given


class ClassGroups(NamedTuple):
    """A partition of the classes.

    Attributes:
        names: one for each group.
        ids: (C,) the group of each class.
    """

    names: tuple[str, ...]
    ids: IntArray


@configurable
class Meta:
    """Facts about the model, the data and the attacks of an audit, and the settings that decided its rows.

    Attributes:
        class_names: one for each class.
        attacks: the attacks in the order of the audit, each with its complete spec; None if it is unknown (``clean``,
            or predictions made elsewhere).
        not_applicable: attacks that need gradients which the model does not have; they have no rows and no verdicts.
        families: labels of the attacks of a family, by the family's name.
        groups: names of the groups, by the column of the grouping.
        superclasses: the superclass of each class, or None.
        superclass_names: one for each superclass.
        training_counts: training images of each class, if the model is that of a run; None: not known.
        data: name of the data set.
        split: its split.
        data_hash: SHA-256 of pixels and labels.
        images: number of images of the data; 0: that of the table; None: unknown, for a stream that was not read to
            its end.
        sizes: number of images of each class (key ``"class"``) and of each group (key: the grouping); a missing key
            means unknown.
        model: name of the model.
        model_hash: SHA-256 of its parameters and buffers.
        code: SHA-256 of the user's code by object (``model``, ``attack NAME``) and module, and of the printed structure
            of the model (`classwise.core.settings.code_identity`); None: not recorded.
        threat: such as ``"Linf:8/255"``.
        norm: norm of the column ``distance``.
        settings: the options of the evaluation that are recorded (`classwise.auditing.evaluation`), as JSON values; an
            option without a value is not known, or had several.
        notes: how the model and the data were read (`CLASSES_NOTE`, `OUTPUTS_NOTE`), what changed the model
            (`CHANGED_NOTE`), and events that prevent
            bit-identical repetition (`Meta.irreproducible`), such as a batch size halved for lack of memory.

    Raises:
        ClasswiseError: for an unknown field, a value of another type, names that are not distinct, an attack label that
            tables use for something else, a threat with an invalid radius, or superclasses that do not fit the classes.
    """

    class_names: Annotated[tuple[str, ...], _distinct("class names")]
    attacks: Mapping[str, Mapping[str, Any] | None]
    not_applicable: tuple[str, ...] = ()
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, Annotated[tuple[str, ...], _distinct("group names")]] = field(default_factory=dict)
    superclasses: Annotated[tuple[int, ...] | None, pydantic.BeforeValidator(_superclasses)] = None
    superclass_names: Annotated[tuple[str, ...], _distinct("superclass names")] = ()
    training_counts: Annotated[tuple[int, ...] | None, pydantic.BeforeValidator(_training_counts)] = None
    data: Annotated[str, _text("name of the data")] = ""
    split: Annotated[str, _text("name of the split")] = ""
    data_hash: str = ""
    images: int | None = 0
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    model: Annotated[str, _text("name of the model")] = ""
    model_hash: str = ""
    code: Mapping[str, Mapping[str, str]] | None = None
    threat: Annotated[str, _text("threat")] | None = None
    norm: str | None = None
    settings: Annotated[Mapping[str, Any], pydantic.BeforeValidator(_settings)] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_attack_labels([label for label in self.attacks if label != CLEAN], self.families)
        checked_names([*self.groups], "groupings")
        for label in (*self.not_applicable, *(label for members in self.families.values() for label in members)):
            if label not in self.attacks:
                raise unknown("attack in the metadata:", label, self.attacks)
        if self.threat is not None:
            check_stated(self.threat)
        if self.superclasses is not None:
            if len(self.superclasses) != len(self.class_names):
                counts = f"{len(self.superclasses)} superclasses for {len(self.class_names)} classes"
                raise ClasswiseError(f"{counts}; give one for each class")
            class_labels(self.superclasses, len(self.superclass_names), "superclasses")
        if self.training_counts is not None and len(self.training_counts) != len(self.class_names):
            counts = f"{len(self.training_counts)} training counts for {len(self.class_names)} classes"
            raise ClasswiseError(f"{counts}; give one for each class")

    @classmethod
    def of(cls, **values: Any) -> Meta:
        """Metadata whose settings are given by their names, beside the other fields.

        Example:
            >>> Meta.of(class_names=("a", "b"), attacks={"pgd": None}, seed=3).seed
            3
        """
        settings = {**values.pop("settings", {}), **{name: values.pop(name) for name in STORED if name in values}}
        return build(cls, {**values, "settings": settings}, "metadata")

    def stating(self, **settings: Any) -> Meta:
        """The metadata with other values of settings; None: not known, or several."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    @property
    def early_stop(self) -> bool | None:
        """True: a row describes the first verified adversarial example, or else the iterate of lowest margin.

        False: it describes the last iterate. None: unknown, or mixed.
        """
        return self.settings.get("early_stop")

    @property
    def cascade(self) -> bool:
        """Whether each attack ran on the survivors of the previous attacks only."""
        return bool(self.settings.get("cascade"))

    @property
    def settle(self) -> float | None:
        """The requested distance of the ends of the intervals from the estimates, if there are samples."""
        return self.settings.get("settle")

    @property
    def seed(self) -> int | None:
        """Seed of the attacks' random numbers; None: unknown, or several."""
        return self.settings.get("seed")

    @property
    def precision(self) -> Mapping[str, Any]:
        """Precision of the gradients (`classwise.core.compute.precision.Precision`); empty: unknown, or several."""
        precision: Mapping[str, Any] = self.settings.get("precision", {})
        return precision

    @property
    def batch_size(self) -> int | None:
        """Images on the device at once; None: unknown, or several."""
        return self.settings.get("batch_size")

    @property
    def repeats(self) -> int:
        """Number of passes that decided whether an image is correct."""
        return self.decided_by.count

    @property
    def repeat_rule(self) -> RepeatRule:
        """How many of these passes had to be correct, ``"majority"`` or ``"all"``."""
        return self.decided_by.rule

    @property
    def grid(self) -> Grid | None:
        """``"8bit"`` if adversarial images were rounded to multiples of 1/255 before success was decided."""
        return self.settings.get("grid")

    @property
    def policy(self) -> str | None:
        """SHA-256 of the policy that was recorded before the first attack (`classwise.auditing.criteria.policy`)."""
        return self.settings.get("policy")

    @property
    def decided_by(self) -> Repeats:
        """The passes that decided whether an image is correct."""
        return Repeats(self.settings.get("repeats", 1), self.settings.get("repeat_rule", "majority"))

    @property
    def irreproducible(self) -> tuple[str, ...]:
        """The notes on events that prevent bit-identical repetition."""
        return tuple(note for note in self.notes if not note.startswith((CLASSES_NOTE, OUTPUTS_NOTE, CHANGED_NOTE)))

    @property
    def of_last_run(self) -> dict[str, Any]:
        """The fields that are known at the end of a run only, which ``audit.json`` repeats; see `as_of`.

        The files of a stream are written while it is read, before its length and hash are known. A run with another
        ``settle`` may find all its rows in the folder.
        """
        return {name: getattr(self, name) for name in ("images", "data_hash", "settle")}

    def as_of(self, about: Mapping[str, Any]) -> Meta:
        """The metadata with the fields `of_last_run` that are in ``audit.json``, and the policy only if it is there."""
        settings = {name: about[name] for name in ("settle",) if name in about}
        settings |= {"policy": None} if about and about.get("policy") != self.policy else {}
        images, data_hash = about.get("images"), about.get("data_hash")
        is_known = isinstance(images, int) and isinstance(data_hash, str) and data_hash
        known: dict[str, Any] = {"images": images, "data_hash": data_hash} if is_known else {}
        return dataclasses.replace(self.stating(**settings), **known)

    @property
    def sampled(self) -> bool:
        """Whether the last attacks were to run on a sample of the images only."""
        return self.settle is not None

    @property
    def kind_if_incomplete(self) -> str:
        """What an audit with missing rows is: ``incomplete``, or ``an estimate from a sample``."""
        return f"an estimate from a sample (settle {self.settle:g})" if self.sampled else "incomplete"

    @property
    def completion(self) -> str:
        """The options that complete an audit, in words."""
        return f"--resume{' and without --settle' if self.sampled else ''}"

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def robustness_evaluated(self) -> bool:
        """Whether an attack besides ``clean`` is applicable to the model."""
        return any(label != CLEAN for label in self.applicable)

    @property
    def applicable(self) -> tuple[str, ...]:
        """The attacks that are applicable to the model, ``clean`` included, in the order of the audit."""
        return tuple(label for label in self.attacks if label not in self.not_applicable)

    @property
    def applicable_families(self) -> dict[str, tuple[str, ...]]:
        """The families with at least two applicable attacks, and the labels of these."""
        applicable = {
            name: tuple(label for label in members if label in self.applicable)
            for name, members in self.families.items()
        }
        return {name: members for name, members in applicable.items() if len(members) > 1}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all verdicts, see `Outcomes.names`."""
        listed: list[str] = []
        for label in self.applicable:
            listed.append(label)
            for family, members in self.applicable_families.items():
                if label == members[-1]:
                    kinds = (UNION,) if self.cascade else (BEST, UNION)
                    listed += [f"{family}-{kind}" for kind in kinds]
        return (*listed, ALL)

    def of_classes(self, group: str | None) -> ClassGroups | None:
        """A grouping of the classes: ``superclass`` or ``frequency``; None for any other, or if it is not known.

        A grouping of the data may be named ``frequency``, too; it then replaces that of the classes.

        Raises:
            ClasswiseError: for the frequency, if the classes have no head and tail (`frequency_thirds`).
        """
        if group == "superclass" and self.superclasses is not None:
            return ClassGroups(self.superclass_names, np.asarray(self.superclasses, dtype=np.int64))
        if group == FREQUENCY and FREQUENCY not in self.groups and self.training_counts is not None:
            return ClassGroups(FREQUENCIES, frequency_thirds(self.training_counts))
        return None

    def names_of(self, group: str | None) -> tuple[str, ...]:
        """Names of the classes (None), or of the groups of a grouping; empty if there are none."""
        if group is None:
            return self.class_names
        found = self.of_classes(group)
        return self.groups.get(group, ()) if found is None else found.names

    def group_sizes(self, group: str | None = None) -> IntArray | None:
        """Number of images of each class (None), or group of a grouping; None if it is unknown."""
        found = self.of_classes(group)
        if found is None:
            sizes = self.sizes.get(group or "class")
            return None if sizes is None else np.asarray(sizes, dtype=np.int64)
        classes = self.group_sizes("class")
        if classes is None or len(classes) != len(found.ids):
            return None
        return np.rint(np.bincount(found.ids, weights=classes, minlength=len(found.names))).astype(np.int64)

    @property
    def flat(self) -> dict[str, Any]:
        """All fields and settings by name, as files have them; a setting without a value is None."""
        values = dataclasses.asdict(self)
        if self.code is None:
            del values["code"]
        if self.training_counts is None:
            del values["training_counts"]
        settings = dict.fromkeys(STORED) | values.pop("settings")
        values |= settings
        return values

    def to_json(self) -> str:
        """The metadata and the schema version as one line of JSON."""
        return json_text({"schema_version": SCHEMA_VERSIONS["outcomes"], **self.flat})

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Meta:
        """Parse the output of `to_json`; error messages begin with ``where``.

        Raises:
            ClasswiseError: if the text is invalid, or has another schema version.
        """
        try:
            values: dict[str, Any] = parse_json(text)
            version = int(values.pop("schema_version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(f"{where}: not a file of outcomes written by classwise") from error
        check_schema_version(version, SCHEMA_VERSIONS["outcomes"], str(where))
        try:
            return Meta.of(**values)
        except ClasswiseError as error:
            raise ClasswiseError(f"{where}: {error}") from error


UNSTATED = "not stated"
"""The text of a field that an audit does not record, such as the threat of predictions made elsewhere."""


def identity_of(spec: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The settings of an attack that decide its results: a surrogate whose hash is recorded may be in any place.

    Args:
        spec: a spec of `Meta.attacks`.

    Example:
        >>> identity_of({"name": "transfer", "surrogate": "runs/a", "surrogate_hash": "6856ebac8111"})
        {'name': 'transfer', 'surrogate_hash': '6856ebac8111'}
    """
    if not (spec and spec.get("surrogate_hash")):
        return spec
    return {key: value for key, value in spec.items() if key != "surrogate"}


class FieldValue(NamedTuple):
    """The value of a field in one audit.

    Attributes:
        key: equal for audits that agree.
        text: the value for error messages.
        stated: whether the audit records the field.
    """

    key: Any
    text: str
    stated: bool = True


def setting_of(meta: Meta, name: str) -> FieldValue:
    """The value of a setting; if it is not recorded, its default, as of audits before the option existed."""
    option, value = STORED[name], meta.settings.get(name)
    if name == "early_stop":
        return FieldValue(value, UNSTATED if value is None else option.shown(value), stated=value is not None)
    if name in ("repeats", "repeat_rule"):
        return FieldValue(meta.decided_by, str(meta.decided_by))
    value = meta.cascade if name == "cascade" else option.default if value is None else value
    return FieldValue(value, option.shown(value))


def threat_of(frame: pd.DataFrame, meta: Meta, labels: Collection[str]) -> FieldValue:
    """The threat of the rows of some attacks; that of the metadata if the rows have no radii."""
    attacked = frame["attack"].isin([label for label in labels if label != CLEAN]).to_numpy()
    index, first = np.unique(frame["index"].to_numpy()[attacked], return_index=True)
    radii: FloatArray = frame["epsilon"].to_numpy(dtype=np.float64)[attacked][first]
    if not len(radii) or np.isnan(radii).any():
        return stated_threat(meta.threat)
    norm = meta.norm or str(meta.threat).partition(":")[0]
    rounded = np.array([float(f"{radius:.6g}") for radius in np.unique(radii)])  # float32 and float64 radii agree
    if len(np.unique(rounded)) == 1:
        radius = float(rounded[0])
        return FieldValue((norm, radius), _radius_text(norm, radius))
    key = (norm, tuple(zip(index.tolist(), (f"{radius:.6g}" for radius in radii), strict=True)))
    mean = f"{radii.mean():.6g}"
    return FieldValue(key, f"{norm}:{PER_IMAGE}, {rounded[0]:.6g} to {rounded[-1]:.6g}, mean {mean}")


def stated_threat(text: str | None) -> FieldValue:
    """The norm with the radius from the text of a threat, or the text itself if it is not a norm ball."""
    if text is None:
        return FieldValue(None, UNSTATED, stated=False)
    try:
        norm, epsilon = parse_threat(text)
    except ClasswiseError:
        return FieldValue(text, text)
    radius = float(f"{epsilon:.6g}")
    return FieldValue((norm, radius), _radius_text(norm, radius))


def _radius_text(norm: str, radius: float) -> str:
    levels = radius * 255
    in_levels = norm == "Linf" and levels >= 1 and abs(levels - round(levels)) < 1e-3
    return f"{norm}:{round(levels)}/255" if in_levels else f"{norm}:{radius:.6g}"
