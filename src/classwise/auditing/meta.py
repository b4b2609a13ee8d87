"""Metadata of a table of outcomes: everything that decided its rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.schema import check_schema_version
from classwise.stats.counts import IntArray

SCHEMA_VERSION = 2
"""Version of the columns of the table and of this metadata."""
CLEAN, ALL = "clean", "all"
"""The pass without an attack; and all attacks together, the clean pass included."""
BEST, UNION = "best", "union"
"""Suffixes of a family of attacks: its strongest member, and all of its members together."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Settings of the audit, and facts about its model and data.

    Attributes:
        class_names: one for each class.
        attacks: the attacks in the order of the audit, each with its complete spec; None if it is unknown (``clean``,
            or predictions made elsewhere).
        not_applicable: attacks that need gradients which the model does not have; they have no rows and no verdicts.
        families: labels of the attacks of a family, by the family's name.
        groups: names of the groups, by the column of the grouping.
        superclasses: the superclass of each class, or None.
        superclass_names: one for each superclass.
        data: name of the data set.
        split: its split.
        data_hash: SHA-256 of pixels and labels.
        images: number of images of the data; 0: that of the table; None: unknown, for a stream that was not read to
            its end.
        sizes: number of images of each class (key ``"class"``) and of each group (key: the grouping); a missing key
            means unknown.
        model: name of the model.
        model_hash: SHA-256 of its parameters and buffers.
        threat: such as ``"Linf:8/255"``.
        norm: norm of the column ``distance``.
        early_stop: True: a row describes the first verified adversarial example, or else the iterate of lowest margin.
            False: it describes the last iterate. None: unknown, or mixed.
        cascade: whether each attack ran on the survivors of the previous attacks only.
        settle: requested distance of the ends of the intervals from the estimates, if AutoAttack's last attacks ran on
            a sample only; None: every attack was to run on every image.
        seed: seed of the attacks' random numbers.
        precision: precision of the gradients (`classwise.core.precision.Precision`); success is decided in float32.
        batch_size: images on the device at once.
        notes: events that void bit-identical repetition, such as a batch size halved for lack of memory.
    """

    class_names: tuple[str, ...]
    attacks: Mapping[str, Mapping[str, Any] | None]
    not_applicable: tuple[str, ...] = ()
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    superclasses: tuple[int, ...] | None = None
    superclass_names: tuple[str, ...] = ()
    data: str = ""
    split: str = ""
    data_hash: str = ""
    images: int | None = 0
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    model: str = ""
    model_hash: str = ""
    threat: str | None = None
    norm: str | None = None
    early_stop: bool | None = None
    cascade: bool = False
    settle: float | None = None
    seed: int | None = None
    precision: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.superclasses is not None and len(self.superclasses) != len(self.class_names):
            raise ClasswiseError(
                f"{len(self.superclasses)} superclasses for {len(self.class_names)} classes; give one for each class"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def robustness_evaluated(self) -> bool:
        """Whether an attack besides ``clean`` is applicable to the model."""
        return len(self.applicable) > 1

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

    def group_sizes(self, group: str | None = None) -> IntArray | None:
        """Number of images of each class (None), superclass or group of the data; None if it is unknown."""
        if group != "superclass":
            sizes = self.sizes.get(group or "class")
            return None if sizes is None else np.asarray(sizes, dtype=np.int64)
        classes = self.group_sizes("class")
        if classes is None or self.superclasses is None or len(classes) != len(self.superclasses):
            return None
        sums = np.bincount(self.superclasses, weights=classes, minlength=len(self.superclass_names))
        return np.rint(sums).astype(np.int64)

    def to_json(self) -> str:
        """The metadata and the schema version as one line of JSON."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Meta:
        """Parse the output of `to_json`; error messages begin with ``where``.

        Raises:
            ClasswiseError: if the text is invalid, or has another schema version.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            version = int(values.pop("schema_version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(f"{where}: not a file of outcomes written by classwise") from error
        check_schema_version(version, SCHEMA_VERSION, str(where))
        known = {each.name for each in dataclasses.fields(Meta)}
        for key in values.keys() - known:
            raise unknown(f"{where}: metadata field", key, known)
        for key in ("class_names", "not_applicable", "superclasses", "superclass_names", "notes"):
            if values.get(key) is not None:
                values[key] = tuple(values[key])
        for key in ("families", "groups", "sizes"):
            values[key] = {name: tuple(members) for name, members in values.get(key, {}).items()}
        return Meta(**values)
