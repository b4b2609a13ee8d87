"""How a table of outcomes came about: the metadata that its files carry."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.schema import check_schema_version

SCHEMA_VERSION = 2
"""The layout of the table and of this metadata."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Everything that decided the rows.

    Attributes:
        class_names: one for each class.
        attacks: the attacks in the order of the audit, each with its complete spec; None where it is not known
            (``clean``, or predictions made elsewhere).
        not_applicable: the attacks that need gradients which the model does not have: they have no rows and no verdict.
        families: attacks that belong together, by the family's name.
        groups: groupings of the images that have a column: the column's name to the groups' names.
        superclasses: the superclass of each class, or None.
        superclass_names: one for each superclass.
        data: what the data are called.
        split: which split of them.
        data_hash: SHA-256 of pixels and labels.
        images: how many images the data have; 0: as many as the table; None: not known, of a stream that was not read
            to its end.
        sizes: how many images each class has (under ``"class"``), and each group of a grouping (under its name); where
            there is no entry, it is not known.
        model: what the model is called.
        model_hash: SHA-256 of its parameters and buffers.
        threat: such as ``"Linf:8/255"``.
        norm: the norm of the column ``distance``.
        early_stop: True: the rows show the first verified adversarial example, or else the iterate of lowest margin.
            False: they show the last iterate. None: unknown, or mixed.
        cascade: whether an attack saw only what those before it left standing.
        seed: the seed of the attacks' draws.
        precision: how gradients were computed (`classwise.core.precision.Precision`); success is decided in float32.
        batch_size: images on the device at once.
        notes: what voids the promise of the same bits, such as a batch that was halved for memory.
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
    seed: int | None = None
    precision: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.superclasses is not None and len(self.superclasses) != len(self.class_names):
            raise ClasswiseError(
                f"{len(self.superclasses)} superclasses for {len(self.class_names)} classes; one for each"
            )

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def robustness_evaluated(self) -> bool:
        """Whether there is an attack beside ``clean`` that can be applied to the model."""
        return len(self.applicable) > 1

    @property
    def applicable(self) -> tuple[str, ...]:
        """The attacks of the audit, ``clean`` among them, without those that are not applicable to the model."""
        return tuple(label for label in self.attacks if label not in self.not_applicable)

    def to_json(self) -> str:
        """The metadata as one line of JSON, the schema version in it."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Meta:
        """Read what `to_json` wrote; ``where`` begins an error.

        Raises:
            ClasswiseError: if a newer version wrote it, or it is not whole.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            version = int(values.pop("schema_version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(f"{where}: these are no outcomes that classwise wrote") from error
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
