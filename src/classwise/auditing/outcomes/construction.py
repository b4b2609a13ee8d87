"""Tables of outcomes: checked, from predictions, and with a further grouping."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.auditing.evaluation.evaluation import STORED
from classwise.auditing.evaluation.option import Decides
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.files import NAME
from classwise.auditing.outcomes.meta import CLEAN, Meta, check_attack_labels, setting_of, threat_of
from classwise.core.compute.tensors import as_array
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.code_identity import changes
from classwise.core.settings.names import checked_names, checked_text
from classwise.data.image_names import image_names as checked_image_names
from classwise.data.image_names import or_none
from classwise.stats.counts import IntArray, class_labels, whole_numbers
from classwise.stats.metrics import confidence_variance

Table = tuple[pd.DataFrame, Meta]

SUM_TOLERANCE = 5e-3
"""Largest distance from 1 of the sum of a row of confidences, which may be rounded to half precision."""
TIE = 1e-6
"""Largest difference of two confidences that are equal up to the rounding of float32."""


def checked_rows(frame: pd.DataFrame, meta: Meta) -> pd.DataFrame:
    """The rows of a table in the types of its columns, sorted by attack and image.

    Raises:
        ClasswiseError: if a column is missing, a row occurs twice, a label, prediction or group has no name, the
            verdict differs from the prediction, or two rows of one image differ in its label or group.
    """
    if not isinstance(frame, pd.DataFrame) or not isinstance(meta, Meta):
        raise ClasswiseError(
            f"outcomes are a DataFrame and a Meta, not {type(frame).__name__} and {type(meta).__name__}"
        )
    typed = outcome_files.typed(frame, meta)
    place = pd.Index(meta.attacks).get_indexer(pd.Index(typed["attack"]))
    if (place < 0).any():
        raise unknown("attack in the table:", str(typed["attack"][place < 0].iloc[0]), meta.attacks)
    order = np.lexsort((typed["index"].to_numpy(), place))
    typed = typed.take(order)
    typed.index = pd.RangeIndex(len(typed))
    place, index = place[order], typed["index"].to_numpy()
    repeated = (place[1:] == place[:-1]) & (index[1:] == index[:-1])
    if repeated.any():
        row = typed.iloc[int(repeated.argmax())]
        raise ClasswiseError(f"image index {row['index']} occurs twice under {row['attack']!r}; it must be unique")
    labels = class_labels(typed["label"].to_numpy(), meta.num_classes)
    known = typed["prediction"].notna().to_numpy()
    predicted = class_labels(typed["prediction"].to_numpy(np.int64, na_value=0)[known], meta.num_classes, "predictions")
    correct = np.zeros(len(typed), dtype=np.bool_)
    correct[known] = predicted == labels[known]
    for row in np.flatnonzero(correct != typed["correct"].to_numpy())[:1]:
        where = f"image {index[row]} under {typed['attack'][row]!r}"
        raise ClasswiseError(
            f"{where}: correct is {not correct[row]}, but the label is {labels[row]} and the prediction "
            f"{typed['prediction'][row]}"
        )
    images, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    for column, names in {"label": meta.class_names, **meta.groups}.items():
        values = class_labels(typed[column].to_numpy(), len(names), column)
        for row in np.flatnonzero(values != values[first][inverse])[:1]:
            pair = f"{column} {values[first][inverse[row]]} in one row and {values[row]} in another"
            raise ClasswiseError(f"image {images[inverse[row]]} has {pair}; all rows of an image must agree")
    for name in typed[NAME].dropna().unique() if NAME not in meta.groups else ():
        if len(checked_text(name, "image names")) > limits.IMAGE_NAME:
            raise ClasswiseError(f"image names: {name[:40]!r}... has {len(name):,} characters, above the limit")
    radii = typed["epsilon"].to_numpy()
    attacked = (place != [*meta.attacks, CLEAN].index(CLEAN)) & ~np.isnan(radii)
    least, largest = np.full(len(images), np.inf), np.full(len(images), -np.inf)
    np.minimum.at(least, inverse[attacked], radii[attacked])
    np.maximum.at(largest, inverse[attacked], radii[attacked])
    with np.errstate(invalid="ignore"):  # an infinite radius
        differ = largest - least > 1e-6 * largest
    for image in np.flatnonzero(differ)[:1]:
        where = f"image {images[image]} has the radius {least[image]:g} under one attack"
        raise ClasswiseError(f"{where} and {largest[image]:g} under another; all attacks must have the same threat")
    return typed


def table_of_predictions(
    labels: ArrayLike,
    clean: ArrayLike | None,
    attacks: Mapping[str, ArrayLike] | None,
    class_names: Sequence[str] | None,
    confidences: Mapping[str, ArrayLike] | None,
    image_names: Sequence[str | None] | None = None,
    **meta: Any,
) -> Table:
    """Build a table from predictions (N,) under ``clean`` and each attack; see `Outcomes.from_predictions`.

    Raises:
        ClasswiseError: see `Outcomes.from_predictions`.
    """
    for what, given in (("attacks", attacks), ("confidences", confidences)):
        if not isinstance(given, Mapping | None):
            raise ClasswiseError(f"{what}: {type(given).__name__} is not a mapping from labels, such as {{'pgd': ...}}")
    check_attack_labels(attacks or {})
    predictions = ({} if clean is None else {CLEAN: clean}) | dict(attacks or {})
    if not predictions:
        raise ClasswiseError("no predictions: give clean=, or attacks={'name': predictions}")
    for label in confidences or {}:
        if label not in predictions:
            raise unknown("attack of confidences:", str(label), predictions)
    own = ("attacks", "class_names", "images", "settings")
    known = [*STORED, *(field.name for field in dataclasses.fields(Meta) if field.name not in own)]
    for key in meta:
        if key not in known:
            raise unknown("field of the metadata", key, known)
    truth = whole_numbers(as_array(labels, "labels"), "labels")
    numbers = {
        label: whole_numbers(as_array(values, where), where)
        for label, values in predictions.items()
        if (where := f"predictions of {label!r}")
    }
    for label, predicted in numbers.items():
        if len(predicted) != len(truth):
            raise ClasswiseError(
                f"{len(predicted)} predictions of {label!r} for {len(truth)} labels; give one for each"
            )
    if class_names is None:
        top = max(int(values.max(initial=0)) for values in (truth, *numbers.values()))
        limits.check_classes(top + 1, len(truth), "without class_names")
        class_names = [str(label) for label in range(top + 1)]
    about = Meta.of(
        class_names=checked_names(class_names, "class names"), attacks=dict.fromkeys(numbers), images=len(truth), **meta
    )
    class_labels(truth, about.num_classes)
    names = None if image_names is None else checked_image_names(image_names, len(truth), "image names")
    blocks, wrong = [], np.zeros(len(truth), dtype=np.bool_)
    for label, predicted in numbers.items():
        class_labels(predicted, about.num_classes, f"predictions of {label!r}")
        misclassified = predicted != truth
        first_success = np.where(wrong, CLEAN, label).astype(object)
        first_success[~misclassified] = None
        columns = {
            "index": np.arange(len(truth)),
            "label": truth,
            "attack": np.full(len(truth), label, dtype=object),
            "prediction": predicted,
            "correct": ~misclassified,
            "first_success": first_success,
            "status": np.full(len(truth), "ok", dtype=object),
        }
        columns |= {} if names is None else {NAME: or_none(names)}
        if confidences and label in confidences:
            columns |= _confidence_columns(confidences[label], truth, predicted, about.num_classes, label)
        blocks.append(columns)
        wrong |= misclassified & (label == CLEAN)
    return outcome_files.filled(blocks, dataclasses.replace(about, groups={})), about


def _confidence_columns(
    values: ArrayLike, truth: IntArray, predicted: IntArray, classes: int, label: str
) -> dict[str, np.ndarray[Any, Any]]:
    """The columns that are computed from softmax outputs (N, C), or from probabilities of class 1 of two, (N,).

    Raises:
        ClasswiseError: if a row is not a probability of each class, or a prediction is not the most probable class.
    """
    where = f"confidences of {label!r}"
    if np.ma.is_masked(values):
        raise ClasswiseError(f"{where}: some are masked; give a probability of each class")
    try:
        probabilities = np.asarray(as_array(values, where), dtype=np.float64)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ClasswiseError(f"{where}: expected numbers of shape ({len(truth)}, {classes}) ({error})") from error
    if classes == 2 and probabilities.shape in ((len(truth),), (len(truth), 1)):
        probabilities = np.stack([1 - probabilities.ravel(), probabilities.ravel()], axis=1)
    if probabilities.shape != (len(truth), classes):
        raise ClasswiseError(f"{where}: expected ({len(truth)}, {classes}), got {probabilities.shape}")
    sums = probabilities.sum(axis=1)
    valid = (probabilities >= 0).all(axis=1) & (np.abs(sums - 1) < SUM_TOLERANCE)
    for image in np.flatnonzero(~valid)[:1]:
        least = probabilities[image].min()
        raise ClasswiseError(
            f"{where}: the row of image {image} is not a probability of each class: its sum is {sums[image]:.6g} and "
            f"its minimum {least:.6g}"
        )
    rows = np.arange(len(truth))
    p_predicted = probabilities[rows, predicted]
    for image in np.flatnonzero(probabilities.max(axis=1) - p_predicted > TIE)[:1]:
        largest = int(probabilities[image].argmax())
        raise ClasswiseError(
            f"{where}: image {image} is predicted as class {predicted[image]}, but class {largest} has the largest "
            "confidence"
        )
    columns: dict[str, np.ndarray[Any, Any]] = {
        "p_label": probabilities[rows, truth],
        "p_predicted": p_predicted,
        "confidence_variance": confidence_variance(probabilities),
    }
    if classes > 1:
        others = probabilities.copy()
        others[rows, predicted] = -np.inf
        columns["runner_up"] = others.argmax(axis=1)
    return columns


_IDENTITIES = {"model": ("model",), "data": ("data", "split")}
"""What is identified by a hash; and by names, if a table has no hash."""
ROUNDED = 0.01
"""The largest share of the clean predictions of one model that rounding changes, as on a GPU."""
_OF_ATTACKS = [name for name, option in STORED.items() if option.decides in (Decides.ATTACKED, Decides.ROWS)]
"""The settings that only concern attacks."""


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
    ball: dict[str, Any] = {} if meta.robustness_evaluated else {"threat": other_meta.threat, "norm": other_meta.norm}
    joined = dataclasses.replace(
        meta.stating(**_joined_settings(meta, other_meta)),
        attacks=attacks,
        not_applicable=tuple(label for label in attacks if label not in applicable),
        families={**other_meta.families, **meta.families},
        notes=tuple(dict.fromkeys((*meta.notes, *other_meta.notes))),
        code=None if meta.code is None or other_meta.code is None else {**other_meta.code, **meta.code},
        **ball,
    )
    return pd.concat([frame, added], ignore_index=True), joined


def _joined_settings(meta: Meta, other: Meta) -> dict[str, Any]:
    """The settings that concern attacks: of the table with attacks; of two, those in which they agree."""
    if not (meta.robustness_evaluated and other.robustness_evaluated):
        source = (other if other.robustness_evaluated else meta).settings
        return {name: source.get(name) for name in _OF_ATTACKS}
    return {name: None for name in _OF_ATTACKS if meta.settings.get(name) != other.settings.get(name)}


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
    if None not in (meta.code, other_meta.code) and (found := changes(_model(other_meta), _model(meta))):
        raise ClasswiseError(f"the two tables cannot be joined: {found[0]}; join audits of one model")
    images, other_images = (table.drop_duplicates("index").set_index("index").sort_index() for table in (frame, other))
    if not (images.index.equals(other_images.index) and images["label"].equals(other_images["label"])):
        raise ClasswiseError("the two tables cannot be joined: they have different images or labels")


def _model(meta: Meta) -> dict[str, Mapping[str, str]]:
    """The code of the model that is recorded."""
    return {"model": (meta.code or {}).get("model", {})}


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
    _check_settings(Decides.VERDICTS, meta, other_meta)
    if not (meta.robustness_evaluated and other_meta.robustness_evaluated):
        return
    threats = threat_of(frame, meta, meta.applicable), threat_of(other, other_meta, other_meta.applicable)
    if threats[0].key != threats[1].key:
        raise _difference("threat", *(threat.text for threat in threats))
    _check_settings(Decides.ATTACKED, meta, other_meta)
    if meta.cascade or other_meta.cascade:
        raise ClasswiseError(
            "the two tables cannot be joined: the attacks of a cascade ran only on images on which all attacks before "
            "them failed; run all attacks in one audit, or without cascade"
        )


def _check_settings(decides: Decides, meta: Meta, other: Meta) -> None:
    for name, option in STORED.items():
        values = setting_of(meta, name), setting_of(other, name)
        if option.decides is decides and all(value.stated for value in values) and values[0].key != values[1].key:
            raise _difference(option.words, *(value.text for value in values))


def _difference(what: str, first: object, second: object) -> ClasswiseError:
    return ClasswiseError(f"the two tables cannot be joined: they differ in {what}: {first} and {second}")
