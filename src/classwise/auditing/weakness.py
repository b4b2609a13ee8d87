"""`weakness`: facts that describe how one class of an audit fails, by default the weakest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from classwise.auditing.curve.result import RADII, Curve
from classwise.auditing.outcomes.display import TextDisplay
from classwise.auditing.outcomes.table import ALL, CLEAN, NO_PREDICTION, Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.training_run import run_of
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.accepted import BY_CONTENT
from classwise.core.settings.arguments import checked
from classwise.stats.counts import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from classwise.training.folder import Run

CLEAREST = 3
"""Number of the clearest failures."""
QUARTILE = 0.25
"""A clean margin is small if it is below this quantile of those of all correctly classified images."""


class Part(NamedTuple):
    """Some of a number of images, such as 12 of 17."""

    part: int
    whole: int

    def __str__(self) -> str:
        return f"{self.part:,} of {self.whole:,}"


class SmallMargins(NamedTuple):
    """The images with a small clean margin, among those that are classified correctly without an attack.

    Attributes:
        of_class: those of the class.
        of_all: those of all classes, about a quarter.
        threshold: the lower quartile of the clean margins of all correctly classified images, a difference of logits.
    """

    of_class: Part
    of_all: Part
    threshold: float


class HalfRadius(NamedTuple):
    """A radius at which at least half of the images of a class are misclassified.

    Attributes:
        radius: the median of the smallest radii at which an adversarial example was found; 0 if half of the images are
            misclassified without an attack.
        norm: of the radius.
        source: where these radii are from: a curve, or attacks.
    """

    radius: float
    norm: str | None
    source: str


class Failure(NamedTuple):
    """An image that is classified correctly without an attack, and misclassified under one.

    Attributes:
        image: its index in the data set.
        margin: its clean margin, the logit of the label minus the largest other logit.
        predicted: the class that it is first misclassified as; None without a prediction.
        image_name: its name in the data, such as the path of its file; None without one.
    """

    image: int
    margin: float
    predicted: str | None
    image_name: str | None = None


@checked
@dataclass(frozen=True)
class Weakness(TextDisplay):
    """How a class (or group) of an audit fails: a description of the outcomes, which shows no cause.

    An image fails if at least one attack misclassifies it, or the model does so without an attack.

    Attributes:
        kind: ``"class"``, or the name of the grouping of the audit.
        name: of the class.
        label: its number.
        classes: number of classes with images.
        tied: all classes with the lowest accuracy, if this is the first one of several; else empty.
        attacked: whether at least one attack was run.
        failures: the images of the class that fail, of all images of the class.
        predicted: for each class that these are first misclassified as the number of images, most frequent first;
            the rest of them has no prediction.
        clean_errors: the failures that are misclassified without an attack; None without clean predictions or attacks.
        small_margins: None without clean margins, or for a single class.
        training: the training images of the class, of those of all classes; None if they are not known.
        training_classes: number of classes with training images; 0 if it is not known.
        half_radius: None without a curve or a minimum-norm attack that reaches half of the images.
        clearest: the failures of the largest clean margins, largest first.
        too_short: name of the curve within whose radii fewer than half of the images fail; empty for none.

    Example:
        >>> import classwise as cw
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> outcomes = cw.Outcomes.from_predictions(
        ...     labels, clean=[0, 0, 1, 1, 1, 1], attacks={"pgd": [1, 0, 1, 1, 1, 0]}, class_names=["cat", "dog"]
        ... )
        >>> found = cw.weakness(cw.Audit(outcomes))
        >>> found.name, str(found.failures), found.predicted, str(found.clean_errors)
        ('cat', '2 of 3', (('dog', 2),), '1 of 2')
    """

    kind: str
    name: str
    label: int
    classes: int
    tied: tuple[str, ...]
    attacked: bool
    failures: Part
    predicted: tuple[tuple[str, int], ...]
    clean_errors: Part | None
    small_margins: SmallMargins | None
    training: Part | None
    training_classes: int
    half_radius: HalfRadius | None
    clearest: tuple[Failure, ...]
    too_short: str = ""


@checked
def weakness(
    audit: Annotated[Audit | str | Path, BY_CONTENT],
    name: str | None = None,
    *,
    run: Annotated[Run | None, BY_CONTENT] = None,
    curve: Annotated[Curve | None, BY_CONTENT] = None,
) -> Weakness:
    """Describe how a class of an audit fails, from its outcomes; nothing is attacked.

    Args:
        audit: a complete audit, or its folder.
        name: of the class, or of the group if the audit is by groups; None: the one of lowest accuracy under all
            attacks, and of several the first.
        run: the training run of the model, which knows the number of training images of each class; None: the one whose
            folder contains the audit.
        curve: a curve of the same model, images and norm (`robustness_curve`), which knows the radius at which half of
            the class fails; None: one in the folder ``curves`` of the run. Without a curve the distances that
            minimum-norm attacks of the audit recorded are used, if any.

    Returns:
        The facts; ``print`` shows them as sentences.

    Raises:
        IncompleteError: if the audit is incomplete.
        ClasswiseError: if there is no such class, it has no images, or the curve is of another model, other images or
            another norm.

    Example:
        >>> import classwise as cw
        >>> outcomes = cw.Outcomes.from_predictions([0, 0, 1, 1], attacks={"pgd": [1, 1, 1, 0]}, class_names=["a", "b"])
        >>> str(cw.weakness(cw.Audit(outcomes), "b")).splitlines()[0]
        '1 of 2 images of b fail, first misclassified as a (1).'
    """
    source = audit if isinstance(audit, Audit) else Audit.load(audit)
    outcomes, (names, ids) = source.outcomes, source.outcomes.grouping(source.group)
    counts = source.counts()
    if name is not None and name not in names:
        raise unknown(source.group or "class", name, names)
    label = source.worst_class().label if name is None else names.index(name)
    members = ids == label
    if not members.any():
        raise ClasswiseError(f"{source.group or 'class'} {names[label]!r} has no images in the audit; choose another")
    run = run or run_of(source)
    if curve is not None:
        _check(curve, outcomes)
    elif run is not None:
        curve = _curve_of(run, outcomes)
    table = outcomes.predicted(ALL, source.group)
    wrong, predictions = members & ~table["correct"].to_numpy(), table["prediction"].to_numpy(dtype=np.int64)
    attacked = any(attack != CLEAN for attack in outcomes.attacks)
    right = table["clean"].to_numpy() if attacked and "clean" in table else None
    lowest = np.flatnonzero(counts.present & (counts.accuracy == np.nanmin(counts.accuracy)))
    training, training_classes = (None, 0) if source.group or run is None else _training(run, outcomes, label)
    curve = None if source.group else curve
    half_radius = _half_radius(outcomes, members, names[label], curve)
    return Weakness(
        kind=source.group or "class",
        name=names[label],
        label=label,
        classes=int(counts.present.sum()),
        tied=tuple(names[other] for other in lowest) if len(lowest) > 1 and label == lowest[0] else (),
        attacked=attacked,
        failures=Part(int(wrong.sum()), int(members.sum())),
        predicted=_counted(predictions[wrong], outcomes.class_names),
        clean_errors=None if right is None else Part(int((wrong & ~right).sum()), int(wrong.sum())),
        small_margins=None if right is None else _small_margins(outcomes, members, right),
        training=training,
        training_classes=training_classes,
        half_radius=half_radius,
        too_short="" if curve is None or half_radius is not None else curve.name,
        clearest=() if right is None else _clearest(outcomes, wrong & right, predictions),
    )


def _counted(predictions: IntArray, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The predicted classes with their numbers of images, most frequent first."""
    labels, counts = np.unique(predictions[predictions != NO_PREDICTION], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return tuple((names[int(labels[place])], int(counts[place])) for place in order)


def _margins(outcomes: Outcomes) -> FloatArray:
    """(N,) the clean margins; NaN where there is none."""
    rows = outcomes.rows(CLEAN)
    return np.where(rows["status"] == "ok", rows["margin"].to_numpy(np.float64, na_value=np.nan), np.nan)


def _small_margins(outcomes: Outcomes, members: BoolArray, right: BoolArray) -> SmallMargins | None:
    margins = _margins(outcomes)
    known = right & np.isfinite(margins)
    if not (known & members).any() or not (known & ~members).any():
        return None
    threshold = float(np.quantile(margins[known], QUARTILE))
    small = known & (margins < threshold)
    of_class, of_all = (
        Part(int((small & which).sum()), int((known & which).sum())) for which in (members, np.ones_like(members))
    )
    return SmallMargins(of_class, of_all, threshold)


def _clearest(outcomes: Outcomes, failures: BoolArray, predictions: IntArray) -> tuple[Failure, ...]:
    margins = _margins(outcomes)
    places = np.flatnonzero(failures & np.isfinite(margins))
    chosen = places[np.argsort(-margins[places], kind="stable")][:CLEAREST].tolist()
    found = []
    for place in chosen:
        predicted = int(predictions[place])
        as_class = None if predicted == NO_PREDICTION else outcomes.class_names[predicted]
        image, name = int(outcomes.index[place]), outcomes.image_names[place]
        found.append(Failure(image, float(margins[place]), as_class, name))
    return tuple(found)


def _half_radius(outcomes: Outcomes, members: BoolArray, name: str, curve: Curve | None) -> HalfRadius | None:
    if curve is not None:
        median = float(curve.summary["median"].get(name, np.inf))
        return HalfRadius(median, curve.meta.norm, f"curve {curve.name}") if np.isfinite(median) else None
    frame = outcomes.frame
    found = frame[frame["minimal_distance"].notna()]
    if found.empty:
        return None
    # In a cascade, an image that an earlier attack misclassified has the distance of that adversarial image only.
    broken = frame["distance"].where((frame["attack"] != CLEAN) & ~frame["correct"] & (frame["status"] != "skipped"))
    distances = frame["minimal_distance"].fillna(np.inf).clip(upper=broken.fillna(np.inf))
    nearest = distances.groupby(frame["index"]).min().reindex(outcomes.index).to_numpy(np.float64)
    if CLEAN in outcomes.attacks:
        nearest = np.where(outcomes.correct(CLEAN), nearest, 0.0)
    ranked = np.sort(nearest[members])
    median = float(ranked[(len(ranked) - 1) // 2])
    attacks = ", ".join(map(str, found["attack"].unique()))
    return HalfRadius(median, outcomes.meta.norm, attacks) if np.isfinite(median) else None


def _training(run: Run, outcomes: Outcomes, label: int) -> tuple[Part | None, int]:
    """The training images of a class, and the number of classes with training images; of a run of the same classes."""
    counts = run.training_counts(outcomes.class_names)
    if counts is None:
        return None, 0
    return Part(counts[label], sum(counts)), sum(count > 0 for count in counts)


_SAME = ("class_names", "norm", "data_hash", "model_hash")
"""What a curve and an audit must share."""


def _check(curve: Curve, outcomes: Outcomes) -> None:
    """Check that a curve is of the model, the images and the norm of an audit.

    Raises:
        ClasswiseError: otherwise.
    """
    for field in _SAME:
        ours, theirs = getattr(outcomes.meta, field), getattr(curve.meta, field)
        if ours != theirs:
            raise ClasswiseError(f"curve: its {field} is {theirs!r}, that of the audit is {ours!r}; give another curve")


def _curve_of(run: Run, outcomes: Outcomes) -> Curve | None:
    """The first curve in the folder of a run that is of the model, the images and the norm of an audit."""
    for file in sorted((run.path / "curves").glob(f"*/{RADII}")):
        curve = Curve.load(file)
        if all(getattr(curve.meta, field) == getattr(outcomes.meta, field) for field in _SAME):
            return curve
    return None
