"""Tables of outcomes: from predictions, with a further grouping, and joined from two tables of the same images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.auditing.meta import CLEAN, Meta
from classwise.auditing.outcome_files import COLUMNS
from classwise.core.errors import ClasswiseError, unknown
from classwise.stats.counts import IntArray, class_labels
from classwise.stats.metrics import confidence_variance

Table = tuple[pd.DataFrame, Meta]


class Grouping(NamedTuple):
    """A partition of the images.

    Attributes:
        names: one for each group.
        ids: (N,) the group of each image, in the order of `Outcomes.index`.
    """

    names: tuple[str, ...]
    ids: IntArray


def table_of_predictions(
    labels: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    class_names: Sequence[str] | None,
    confidences: Mapping[str, ArrayLike] | None,
    **meta: Any,
) -> Table:
    """Build a table from predictions (N,) under ``clean`` and each attack; see `Outcomes.from_predictions`.

    Raises:
        ClasswiseError: if a length differs, a label or prediction has no class, or there is no prediction.
    """
    if not predictions:
        raise ClasswiseError("no predictions: give clean=, or attacks={'name': predictions}")
    if class_names is None:
        top = max(int(np.max(np.asarray(values), initial=0)) for values in (labels, *predictions.values()))
        class_names = [str(label) for label in range(top + 1)]
    classes = len(class_names)
    truth = class_labels(labels, classes)
    blocks, wrong = [], np.zeros(len(truth), dtype=np.bool_)
    for label, values in predictions.items():
        predicted = class_labels(values, classes, f"predictions of {label!r}")
        if len(predicted) != len(truth):
            raise ClasswiseError(
                f"{len(predicted)} predictions of {label!r} for {len(truth)} labels; give one for each"
            )
        block = pd.DataFrame({"index": np.arange(len(truth)), "label": truth, "prediction": predicted})
        block = block.assign(attack=label, correct=predicted == truth, status="ok")
        first_success = pd.Series(np.where(wrong, CLEAN, label), dtype="string")
        block["first_success"] = first_success.where(predicted != truth)
        if confidences and label in confidences:
            block = block.assign(**_confidence_columns(confidences[label], truth, predicted, classes, label))
        blocks.append(block.reindex(columns=list(COLUMNS)).astype(COLUMNS))
        wrong |= (predicted != truth) & (label == CLEAN)
    about = Meta(class_names=tuple(class_names), attacks=dict.fromkeys(predictions), images=len(truth), **meta)
    return pd.concat(blocks, ignore_index=True), about


def _confidence_columns(
    values: ArrayLike, truth: IntArray, predicted: IntArray, classes: int, label: str
) -> dict[str, np.ndarray[Any, Any]]:
    """The columns that are computed from softmax outputs (N, C)."""
    probabilities = np.asarray(values, dtype=np.float64)
    if probabilities.shape != (len(truth), classes):
        raise ClasswiseError(f"confidences of {label!r}: expected ({len(truth)}, {classes}), got {probabilities.shape}")
    rows = np.arange(len(truth))
    columns: dict[str, np.ndarray[Any, Any]] = {
        "p_label": probabilities[rows, truth],
        "p_predicted": probabilities[rows, predicted],
        "confidence_variance": confidence_variance(probabilities),
    }
    if classes > 1:
        columns["runner_up"] = np.argsort(-probabilities, axis=1, kind="stable")[:, 1]
    return columns


def grouping_of(images: pd.DataFrame, meta: Meta, group: str | None) -> Grouping:
    """The images by class (None), by ``"superclass"``, or by a grouping of the metadata.

    Args:
        images: a row for each image, ascending by index, with the column ``label`` and one for each grouping.
        meta: the metadata.
        group: the grouping.

    Raises:
        ClasswiseError: if there is no such grouping.
    """
    labels = images["label"].to_numpy(dtype=np.int64)
    if group is None or group == "class":
        return Grouping(meta.class_names, labels)
    if group == "superclass" and meta.superclasses is not None:
        return Grouping(meta.superclass_names, np.asarray(meta.superclasses)[labels])
    if group not in meta.groups:
        superclass = ["superclass"] if meta.superclasses is not None else []
        raise unknown("grouping", group, ["class", *superclass, *meta.groups])
    return Grouping(meta.groups[group], images[group].to_numpy(dtype=np.int64))


def named_table(frame: pd.DataFrame, class_names: Sequence[str]) -> pd.DataFrame:
    """Add the columns ``class`` and ``predicted``, the names of the label and of the prediction."""
    names, known = np.asarray(class_names, dtype=object), frame["prediction"].notna()
    predicted = pd.Series(pd.NA, index=frame.index, dtype="string")
    predicted[known] = names[frame["prediction"][known].to_numpy(dtype=np.int64)]
    label = pd.Series(names[frame["label"].to_numpy(dtype=np.int64)], index=frame.index, dtype="string")
    return frame.assign(**{"class": label, "predicted": predicted})


def with_grouping(table: Table, index: IntArray, name: str, ids: ArrayLike, names: Sequence[str]) -> Table:
    """Add a column with the group of each image; ``ids`` (N,) are in the order of ``index``.

    Raises:
        ClasswiseError: if the name is taken, the length differs, or an id has no name.
    """
    frame, meta = table
    if name in (*frame.columns, "class", "superclass"):
        raise ClasswiseError(f"grouping {name!r}: the name is taken; choose another")
    groups = class_labels(ids, len(names), f"grouping {name!r}")
    if len(groups) != len(index):
        raise ClasswiseError(f"grouping {name!r}: {len(groups)} ids for {len(index)} images; give one for each")
    column = groups[np.searchsorted(index, frame["index"].to_numpy())]
    return frame.assign(**{name: column}), dataclasses.replace(meta, groups={**meta.groups, name: tuple(names)})


def joined_tables(first: Table, second: Table) -> Table:
    """Add the attacks of the second table to the first; the rows of ``clean`` and the groupings are the first's.

    Raises:
        ClasswiseError: if class names, models, images or labels differ, or an attack is in both tables.
    """
    (frame, meta), (other, other_meta) = first, second
    for field in ("class_names", "model_hash", "data_hash"):
        value, other_value = getattr(meta, field), getattr(other_meta, field)
        if value and other_value and value != other_value:
            raise ClasswiseError(f"the two tables cannot be joined: they differ in {field.replace('_', ' ')}")
    images, other_images = (each.drop_duplicates("index").set_index("index").sort_index() for each in (frame, other))
    if not (images.index.equals(other_images.index) and images["label"].equals(other_images["label"])):
        raise ClasswiseError("the two tables cannot be joined: they have different images or labels")
    shared = sorted(set(meta.applicable) & set(other_meta.applicable) - {CLEAN})
    if shared:
        raise ClasswiseError(f"attack {shared[0]!r} is in both tables; rename one of the two")
    groups = {name: images[name] for name in meta.groups}
    added = other[~other["attack"].isin(meta.applicable)]
    added = added[[column for column in added.columns if column in frame.columns]]
    added = added.assign(**{name: added["index"].map(ids) for name, ids in groups.items()})
    new_attacks = {label: spec for label, spec in other_meta.attacks.items() if label not in meta.applicable}
    joined = dataclasses.replace(
        meta,
        attacks={**meta.attacks, **new_attacks},
        not_applicable=tuple(dict.fromkeys((*meta.not_applicable, *other_meta.not_applicable))),
        families={**other_meta.families, **meta.families},
        early_stop=meta.early_stop if meta.early_stop == other_meta.early_stop else None,
        cascade=meta.cascade or other_meta.cascade,
    )
    return pd.concat([frame, added], ignore_index=True), joined
