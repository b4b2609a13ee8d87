"""The attacks of two tables of outcomes of the same images and model in one table."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.construction import Table
from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.auditing.outcomes.threats import threat_of
from classwise.core.errors import ClasswiseError

_IDENTITIES = {"model": ("model",), "data": ("data", "split")}
"""What is identified by a hash; and by names, if a table has no hash."""
ROUNDED = 0.01
"""The largest share of the clean predictions of one model that rounding changes, as on a GPU."""
_ATTACK_FIELDS = ("threat", "norm", "grid", "early_stop", "cascade", "seed", "precision", "batch_size")
"""The fields of the metadata that only concern attacks."""


def joined_tables(first: Table, second: Table) -> Table:
    """Add the attacks of the second table to the first; the rows of ``clean`` and the groupings are the first's.

    Raises:
        ClasswiseError: if classes, images, model, clean predictions or threat differ, an attack is in both tables, or
            one of them is a cascade.
    """
    (frame, meta), (other, other_meta) = first, second
    _check_images(first, second)
    _check_clean(first, second)
    _check_attacks(first, second)
    images = frame.drop_duplicates("index").set_index("index")
    added = other[~other["attack"].isin(meta.applicable)]
    added = added[[column for column in added.columns if column in frame.columns]]
    added = added.assign(**{name: added["index"].map(images[name]) for name in meta.groups})
    attacks = {
        **meta.attacks,
        **{name: spec for name, spec in other_meta.attacks.items() if name not in meta.applicable},
    }
    if CLEAN in attacks:
        attacks = {CLEAN: attacks.pop(CLEAN), **attacks}
    applicable = {*meta.applicable, *other_meta.applicable}
    joined = dataclasses.replace(
        meta,
        attacks=attacks,
        not_applicable=tuple(label for label in attacks if label not in applicable),
        families={**other_meta.families, **meta.families},
        notes=tuple(dict.fromkeys((*meta.notes, *other_meta.notes))),
        **_joined_fields(meta, other_meta),
    )
    return pd.concat([frame, added], ignore_index=True), joined


def _joined_fields(meta: Meta, other: Meta) -> dict[str, Any]:
    """The fields that concern attacks: of the table with attacks; of two, the default where they differ."""
    if not (meta.robustness_evaluated and other.robustness_evaluated):
        return {name: getattr(other if other.robustness_evaluated else meta, name) for name in _ATTACK_FIELDS}
    agreed = [name for name in _ATTACK_FIELDS if getattr(meta, name) == getattr(other, name)]
    mixed: dict[str, Any] = {"early_stop": None, "seed": None, "precision": {}, "batch_size": None}
    return {name: value for name, value in mixed.items() if name not in agreed}


def _check_images(first: Table, second: Table) -> None:
    """Check that the classes, images, labels, data and models agree."""
    (frame, meta), (other, other_meta) = first, second
    if meta.class_names != other_meta.class_names:
        raise _difference("class names", ", ".join(meta.class_names), ", ".join(other_meta.class_names))
    for what, names in _IDENTITIES.items():
        hashes = getattr(meta, f"{what}_hash"), getattr(other_meta, f"{what}_hash")
        if all(hashes) and hashes[0] != hashes[1]:
            raise _difference(f"{what} hash", *hashes)
        for name in names if not all(hashes) else ():
            values = getattr(meta, name), getattr(other_meta, name)
            if all(values) and values[0] != values[1]:
                raise _difference(name, *map(repr, values))
    images, other_images = (each.drop_duplicates("index").set_index("index").sort_index() for each in (frame, other))
    if not (images.index.equals(other_images.index) and images["label"].equals(other_images["label"])):
        raise ClasswiseError("the two tables cannot be joined: they have different images or labels")


def _check_clean(one: Table, other: Table) -> None:
    """Check that the predictions on clean images agree: all of them, or nearly all where the model is known."""
    first, second = (
        frame[frame["attack"] == CLEAN].set_index("index")["prediction"].sort_index().fillna(-1)
        for frame, _ in (one, other)
    )
    if not len(first) or not len(second):
        return
    differ = np.flatnonzero(first.to_numpy() != second.to_numpy())
    same_model = bool(one[1].model_hash) and one[1].model_hash == other[1].model_hash
    if differ.size > (ROUNDED * len(first) if same_model else 0):
        image = first.index[differ[0]]
        what = f"the clean predictions of {differ.size:,} of {len(first):,} images (image {image})"
        raise _difference(what if same_model else f"{what}, so in the model", first[image], second[image])


def _check_attacks(first: Table, second: Table) -> None:
    """Check that the attacks differ and are no cascade, and that threat, repeats, grid and early stop agree."""
    (frame, meta), (other, other_meta) = first, second
    shared = sorted({*meta.applicable} & {*other_meta.applicable} - {CLEAN})
    if shared:
        raise ClasswiseError(f"attack {shared[0]!r} is in both tables; rename one of the two")
    for family in meta.families.keys() & other_meta.families.keys():
        if meta.families[family] != other_meta.families[family]:
            raise ClasswiseError(f"the family of attacks {family!r} is in both tables; rename one of the two")
    if meta.decided_by != other_meta.decided_by:
        raise _difference("repeats", meta.decided_by, other_meta.decided_by)
    if not (meta.robustness_evaluated and other_meta.robustness_evaluated):
        return
    if meta.grid != other_meta.grid:
        raise _difference("grid", meta.grid or "none", other_meta.grid or "none")
    threats = threat_of(frame, meta, meta.applicable), threat_of(other, other_meta, other_meta.applicable)
    if threats[0].key != threats[1].key:
        raise _difference("threat", *(threat.text for threat in threats))
    stops = meta.early_stop, other_meta.early_stop
    if None not in stops and stops[0] != stops[1]:
        raise _difference("early stop", *stops)
    if meta.cascade or other_meta.cascade:
        raise ClasswiseError(
            "the two tables cannot be joined: the attacks of a cascade ran only on images on which all attacks before "
            "them failed; run all attacks in one audit, or without cascade"
        )


def _difference(what: str, first: object, second: object) -> ClasswiseError:
    return ClasswiseError(f"the two tables cannot be joined: they differ in {what}: {first} and {second}")
