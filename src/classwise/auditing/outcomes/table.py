"""Outcomes: a table with one row per image and attack, from which every reported number is computed.

The table may come from `classwise.auditing.run.audit.audit`, or from predictions made elsewhere: no model is needed,
and nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.construction import checked_rows, joined_tables, table_of_predictions
from classwise.auditing.outcomes.files import check_groupings
from classwise.auditing.outcomes.meta import ALL, BEST, CLEAN, FREQUENCY, FREQUENCY_UNKNOWN, UNION, Meta
from classwise.core.compute.tensors import as_array
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.core.settings.accepted import BY_CONTENT
from classwise.core.settings.arguments import checked
from classwise.core.settings.description import PassCounts
from classwise.core.settings.extras import require
from classwise.core.settings.names import checked_names
from classwise.stats.bounds import BoundedCounts
from classwise.stats.confusion import confusion, sparse_confusion
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, class_labels
from classwise.stats.metrics.averages import overall_bounds
from classwise.stats.registry import MetricInputs

MOST_DENSE = 2_000
"""The largest number of classes of a dense confusion matrix, which then takes 32 MB."""
NO_PREDICTION = -1
"""In place of a predicted class: the logits were NaN or +inf, or all -inf."""
UNKNOWN = -1
"""The verdict on an image that is not judged; 1 is correct, 0 misclassified."""

Verdicts = NDArray[np.int8]


class Grouping(NamedTuple):
    """A partition of the images.

    Attributes:
        names: one for each group.
        ids: (N,) the group of each image, in the order of `Outcomes.index`.
    """

    names: tuple[str, ...]
    ids: IntArray


__all__ = ["ALL", "BEST", "CLEAN", "MOST_DENSE", "UNION", "Grouping", "Outcomes"]


@checked
@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcome of every image under every attack; the clean pass is the attack ``clean``.

    An image is *judged* under an attack once its verdict, correct or misclassified, is known.

    Args:
        frame: the columns of `COLUMNS`, and an integer column for each grouping of ``meta.groups``. The rows are
            converted to the types of `COLUMNS` and sorted by attack and image.
        meta: the metadata of the rows.

    Raises:
        ClasswiseError: if a column is missing, a row occurs twice, a label, prediction or group has no name, a verdict
            differs from its prediction, or the rows of an image differ in its label, groups or radius.

    Example:
        >>> import classwise as cw
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> outcomes = cw.Outcomes.from_predictions(
        ...     labels, clean=[0, 0, 0, 1, 1, 0], attacks={"pgd": [0, 0, 1, 1, 0, 0]}, class_names=["cat", "dog"]
        ... )
        >>> outcomes.names
        ('clean', 'pgd', 'all')
        >>> outcomes.counts("all").correct
        array([2, 1])
        >>> outcomes.confusion("pgd")
        array([[2, 1],
               [2, 1]])
    """

    frame: pd.DataFrame
    meta: Meta

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", checked_rows(self.frame, self.meta))

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        return f"<Outcomes: {len(self)} images, {self.num_classes} classes, {', '.join(self.attacks)}{state}>"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self.meta.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes C, including classes without an image."""
        return self.meta.num_classes

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """Labels of the attacks that are applicable to the model, ``clean`` included, in the order of the audit."""
        return self.meta.applicable

    @cached_property
    def families(self) -> dict[str, tuple[str, ...]]:
        """Applicable members of each family of attacks, such as one attack at several temperatures; at least two."""
        return self.meta.applicable_families

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all verdicts: each attack, ``<family>-best`` and ``<family>-union`` after a family, and ``all``.

        After a cascade there is no best of a family, since its members ran on different images.
        """
        return self.meta.names

    @cached_property
    def index(self) -> IntArray:
        """(N,) the index of every image in the data set, ascending."""
        return self._images[0]

    @cached_property
    def labels(self) -> IntArray:
        """(N,) the label of every image, in the order of `index`."""
        return self._of_images("label")

    @cached_property
    def image_names(self) -> NDArray[Any]:
        """(N,) the name of every image, text, in the order of `index`; None for an image without a name."""
        names = np.full(len(self), None, dtype=object)
        if outcome_files.NAME not in self.meta.groups:
            known = self.frame[self.frame[outcome_files.NAME].notna()].drop_duplicates("index")
            names[np.searchsorted(self.index, known["index"])] = known[outcome_files.NAME].to_numpy(dtype=object)
        return names

    @property
    def total(self) -> int:
        """Number of images of the data; if it is unknown, that of the table."""
        return max(self.meta.images or 0, len(self))

    @cached_property
    def missing(self) -> dict[str, int]:
        """Number of images without a row under each attack of an incomplete audit; only attacks that lack some."""
        rows = {str(label): int(count) for label, count in self.frame["attack"].value_counts().items()}
        counts = {label: self.total - rows.get(label, 0) for label in self.attacks}
        return {label: count for label, count in counts.items() if count}

    @cached_property
    def unjudged(self) -> dict[str, int]:
        """Number of images that are not judged under each attack; only attacks that lack some. See `verdicts`."""
        unseen = self.total - len(self)
        counts = {label: unseen + int((verdicts < 0).sum()) for label, verdicts in self._verdicts.items()}
        return {label: count for label, count in counts.items() if count}

    @property
    def complete(self) -> bool:
        """Whether every attack has a row for every image, and the number of images is known."""
        return not self.missing and self.meta.images is not None

    @property
    def unfinished(self) -> str:
        """How many images are not judged under every attack, such as ``12 of 90``."""
        if self.meta.images is None:
            return "an unknown number of"
        undecided = np.any([verdicts < 0 for verdicts in self._verdicts.values()], axis=0)
        return f"{self.total - len(self) + int(undecided.sum()):,} of {self.total:,}"

    @property
    def gap(self) -> str:
        """Which images are not judged, as a sentence without its full stop; empty for a complete table."""
        if self.complete:
            return ""
        if not self.unjudged and self.meta.images is not None:  # the other attacks imply each missing row
            rows = ", ".join(f"{label} {count:,}" for label, count in self.missing.items())
            return f"the audit is incomplete: rows of images that need no attack are missing ({rows})"
        counts = ", ".join(f"{label} {count:,}" for label, count in self.unjudged.items())
        by_attack = f" (not judged: {counts})" if counts else ""
        what = self.meta.kind_if_incomplete
        return f"the audit is {what}: {self.unfinished} images are not judged by every attack{by_attack}"

    @property
    def completion(self) -> str:
        """How to complete the audit."""
        return f"continue the audit with {self.meta.completion}"

    def require_complete(self) -> None:
        """Check that no row is missing.

        Raises:
            IncompleteError: if `complete` is false.
        """
        if not self.complete:
            raise IncompleteError(f"{self.gap}; {self.completion}")

    def rows(self, attack: str) -> pd.DataFrame:
        """The rows of one attack, by image; ``<family>-best`` is the family's strongest member.

        Raises:
            IncompleteError: if images have no row under the attack; `frame` has all existing rows.
            ClasswiseError: see `member`.
        """
        label = self.member(attack)
        self._require_rows(label)
        return self.frame[self.frame["attack"] == label].reset_index(drop=True)

    def _require_rows(self, label: str) -> None:
        """Check that every image has a row under an attack, or was excluded from it.

        Raises:
            IncompleteError: otherwise.
        """
        if label in self.missing or self.meta.images is None:
            self.require_complete()

    def member(self, name: str) -> str:
        """The single attack that a name refers to.

        Raises:
            ClasswiseError: if the name is unknown, or refers to several attacks together.
        """
        if name in self.attacks:
            return name
        family = name.removesuffix(f"-{BEST}")
        if name in self.names and family in self.families and family != name:
            return self.best(family)
        if name in self.names:
            raise ClasswiseError(f"{name!r} combines several attacks; choose one of {', '.join(self.attacks)}")
        raise unknown("attack", name, self.names)

    def best(self, family: str) -> str:
        """The member of a family with the lowest overall accuracy; the first of equal ones.

        Raises:
            IncompleteError: if a member has not judged every image.
            ClasswiseError: if there is no such family.
        """
        if family not in self.families:
            raise unknown("family of attacks", family, self.families)
        return min(self.families[family], key=lambda label: float(self.correct(label).mean()))

    def verdicts(self, name: str) -> Verdicts:
        """(N,) int8 verdict on each image, in the order of `index`: 1 correct, 0 misclassified, -1 not judged.

        Under several attacks an image is correct if it is correct under each, and misclassified if one of them
        succeeded. A missing row has a verdict where early stop or a cascade excludes the image from the attack.

        Raises:
            ClasswiseError: for a name that is not in `names`.
        """
        verdicts = np.stack([self._verdicts[label] for label in self._members(name)])
        lowest = np.where(verdicts < 0, 2, verdicts).min(axis=0)
        return np.where((verdicts < 0).any(axis=0) & (lowest > 0), UNKNOWN, lowest).astype(np.int8)

    def correct(self, name: str) -> BoolArray:
        """(N,) which images are classified correctly under any of `names`, in the order of `index`.

        Raises:
            IncompleteError: if images are not judged; see `bounds`.
            ClasswiseError: for a name that is not in `names`.
        """
        verdicts = self.verdicts(name)
        if (verdicts < 0).any() or len(self) < self.total or self.meta.images is None:
            self.require_complete()
        return verdicts > 0

    def counts(self, name: str, group: str | None = None) -> ClassCounts:
        """Number of images and of correct images of each class, or of each group of a grouping.

        Raises:
            IncompleteError: if images are not judged; see `bounds`.
        """
        correct, (names, ids) = self.correct(name), self.grouping(group)
        return ClassCounts.from_labels(ids, correct, len(names))

    def bounds(self, name: str, group: str | None = None) -> BoundedCounts:
        """Number of images of each class (or group), of judged images, and of correct images among these.

        While the strongest member of a family is unknown, the counts cover every member that may be it.

        Raises:
            ClasswiseError: for a name that is not in `names`, or a grouping that the table does not have.
        """
        family = name.removesuffix(f"-{BEST}")
        if name in self.names and name not in self.attacks and family != name:
            members = [self.bounds(member, group) for member in self._candidates(family)]
            correct = np.min([counts.correct for counts in members], axis=0)
            most, first = np.max([counts.high.correct for counts in members], axis=0), members[0]
            return BoundedCounts(first.count, first.count - most + correct, correct, first.unplaced)
        verdicts, (names, ids), sizes = self.verdicts(name), self.grouping(group), self.meta.group_sizes(group)
        images = float("inf") if self.meta.images is None else float(self.total)
        seen, judged, correct = (
            np.bincount(ids[mask], minlength=len(names)) for mask in (verdicts > -2, verdicts >= 0, verdicts > 0)
        )
        if sizes is None or len(sizes) != len(names) or sizes.sum() != images or (sizes < seen).any():
            return BoundedCounts(seen, judged, correct, images - len(ids))
        return BoundedCounts(sizes, judged, correct)

    def inputs(self, name: str, counts: BoundedCounts | None = None, group: str | None = None) -> MetricInputs:
        """What metrics under an attack are computed from.

        Args:
            name: one of `names`.
            counts: the counts under the attack, if they are known; None: `bounds`.
            group: the grouping of the counts; None: the class.

        Raises:
            ClasswiseError: for a name that is not in `names`, or a grouping that the table does not have.
        """
        return MetricInputs(
            self.bounds(name, group) if counts is None else counts,
            self.bounds(CLEAN, group) if CLEAN in self.names else None,
            partial(self.confusion, name) if self.num_classes <= MOST_DENSE else None,
            partial(self.predicted, name, group),
        )

    def grouping(self, group: str | None = None) -> Grouping:
        """The images by class (None), ``"superclass"`` or ``"frequency"``, or by a grouping of the table.

        The groups ``head``, ``middle`` and ``tail`` of the frequency are thirds of the classes by their training images
        (`classwise.stats.counts.frequency_thirds`), which are known of the model of a run.

        Raises:
            ClasswiseError: if the table has no such grouping.
        """
        meta, labels = self.meta, self.labels
        if group is None or group == "class":
            return Grouping(meta.class_names, labels)
        if (found := meta.of_classes(group)) is not None:
            return Grouping(found.names, found.ids[labels])
        if group not in meta.groups:
            if group == FREQUENCY:
                raise ClasswiseError(FREQUENCY_UNKNOWN)
            superclass = ["superclass"] if meta.superclasses is not None else []
            raise unknown("grouping", group, ["class", *superclass, *meta.groups])
        return Grouping(meta.groups[group], self._of_images(group))

    def add_groups(
        self,
        name: Annotated[str, BY_CONTENT],
        ids: Annotated[ArrayLike, BY_CONTENT],
        names: Annotated[Sequence[str], BY_CONTENT],
    ) -> Outcomes:
        """Copy the table and add a grouping of the images.

        Args:
            name: the new column.
            ids: (N,) the group of each image, integers from 0, in the order of `index`.
            names: one for each group; they must differ.

        Raises:
            ClasswiseError: if the name is taken, the length differs, an id has no name, or a name is not text, is blank
                or occurs twice.
        """
        where = f"grouping {name!r}"
        check_groupings([name], self.meta.attacks)
        if name in self.meta.groups:
            raise ClasswiseError(f"{where}: the name is taken; choose another")
        checked = checked_names(names, f"names of {where}")
        groups = class_labels(as_array(ids, where), len(checked), where)
        if len(groups) != len(self):
            raise ClasswiseError(f"{where}: {len(groups)} ids for {len(self)} images; give one for each")
        frame = self.frame.assign(**{name: groups[np.searchsorted(self.index, self.frame["index"].to_numpy())]})
        return Outcomes(frame, dataclasses.replace(self.meta, groups={**self.meta.groups, name: checked}))

    def join(self, other: Outcomes) -> Outcomes:
        """Combine the attacks of two tables of the same images and model; the clean rows are those of this table.

        Of attacks with different seeds, precisions or batch sizes, the metadata of the result state none.

        Raises:
            IncompleteError: if rows are missing in one of them.
            ClasswiseError: if the images, labels, class names, models, clean predictions, threats or early stop differ,
                an attack is in both, or both have attacks and one is a cascade.
        """
        self.require_complete()
        other.require_complete()
        return Outcomes(*joined_tables((self.frame, self.meta), (other.frame, other.meta)))

    def save(self, folder: str | Path) -> None:
        """Write the table into a folder as ``part-00000.parquet``, atomically.

        Raises:
            ClasswiseError: if the folder already contains outcomes, or cannot be written.
        """
        if outcome_files.listed(Path(folder)):
            raise ClasswiseError(f"{folder} already contains outcomes; give another folder")
        outcome_files.write(Path(folder) / outcome_files.name(0), self.frame, self.meta)

    @classmethod
    def load(cls, path: str | Path) -> Outcomes:
        """Read a file of outcomes, a folder of such files, or the folder of an audit.

        Raises:
            ClasswiseError: if there are no outcomes, or a file is damaged or has another schema version.
        """
        return cls(*outcome_files.read_all(Path(path)))

    @classmethod
    def from_predictions(
        cls,
        labels: Annotated[ArrayLike, BY_CONTENT],
        clean: Annotated[ArrayLike | None, BY_CONTENT] = None,
        attacks: Annotated[Mapping[str, ArrayLike] | None, BY_CONTENT] = None,
        class_names: Annotated[Sequence[str] | None, BY_CONTENT] = None,
        confidences: Annotated[Mapping[str, ArrayLike] | None, BY_CONTENT] = None,
        image_names: Annotated[Sequence[str | None] | None, BY_CONTENT] = None,
        **meta: Any,
    ) -> Outcomes:
        """Build a table from predictions made elsewhere.

        Args:
            labels: (N,) integers in [0, C).
            clean: (N,) the predicted classes of the clean images.
            attacks: the predicted classes (N,) of the adversarial images of each attack.
            class_names: one for each class; they must differ. None: the class numbers.
            confidences: softmax outputs (N, C) for ``clean`` and any attack; the predicted class has the largest. With
                two classes also the probabilities of class 1, (N,) or (N, 1).
            image_names: (N,) the name of each image, such as the path of its file; None or empty for none.
            **meta: further fields of `Meta`, such as ``threat="Linf:8/255"`` or ``superclasses``.

        Raises:
            ClasswiseError: if a length differs, a label or prediction is missing or has no class, there is no
                prediction, confidences do not fit the predictions, a name is not text, is blank, occurs twice or is
                reserved, or a field is unknown.
        """
        if not isinstance(meta.get("threat"), str | None):
            from classwise.threat.ball import Threat  # imports torch

            meta["threat"] = str(Threat.parse(meta["threat"]))
        return cls(*table_of_predictions(labels, clean, attacks, class_names, confidences, image_names, **meta))

    @cached_property
    def passes(self) -> dict[str, PassCounts]:
        """Forward and backward passes of single images that each attack took, for each attack with a row."""
        sums = self.frame.groupby("attack", observed=True)[["forwards", "backwards"]].sum().astype("int64")
        return {
            str(label): PassCounts(int(forwards), to_image=int(backwards))
            for label, (forwards, backwards) in zip(sums.index, sums.to_numpy(), strict=True)
        }

    @cached_property
    def _images(self) -> tuple[IntArray, IntArray]:
        """The index of every image, ascending, and the place of its first row."""
        index, first = np.unique(self.frame["index"].to_numpy(dtype=np.int64), return_index=True)
        return index, first

    def _of_images(self, column: str) -> IntArray:
        """(N,) the values of a column that all rows of an image share."""
        return self.frame[column].to_numpy(dtype=np.int64)[self._images[1]]

    @cached_property
    def _verdicts(self) -> dict[str, Verdicts]:
        """(N,) verdicts of each applicable attack."""
        verdicts: dict[str, Verdicts] = self._by_attack(self.frame["correct"], UNKNOWN, np.int8)
        done = np.zeros(len(self), dtype=np.bool_)  # images that no later attack runs on
        for label, row in verdicts.items():
            row[done & (row < 0)] = 0
            done |= (row == 0) & bool(self.meta.early_stop if label == CLEAN else self.meta.cascade)
        return verdicts

    def _by_attack(self, values: ArrayLike, missing: float, dtype: type[Any]) -> dict[str, NDArray[Any]]:
        """(N,) the values of the rows of each applicable attack; ``missing`` where an image has no row."""
        order = {label: place for place, label in enumerate(self.attacks)}
        table = np.full((len(order), len(self)), missing, dtype=dtype)
        places = self.frame["attack"].map(order).to_numpy(dtype=np.int64)
        table[places, np.searchsorted(self.index, self.frame["index"])] = values
        return dict(zip(order, table, strict=True))

    def correct_shares(self, name: str) -> FloatArray:
        """(N,) the fraction of correct passes of each image under an attack or ``all`` (`Audit.probabilities`)."""
        labels = self.attacks
        if name != ALL:
            labels = labels[: labels.index(name) + 1] if self.meta.cascade else (name,)
        repeats = self.frame[outcome_files.REPEATS].to_numpy(np.float64, na_value=np.inf)
        passes = self._by_attack(repeats, np.inf, np.float64)
        lowest: FloatArray = np.min([passes[label] for label in labels], axis=0) / self.meta.repeats
        return np.where(np.isinf(lowest), np.nan, lowest)

    def _members(self, name: str) -> tuple[str, ...]:
        """The attacks whose verdicts decide that of a name."""
        if name == ALL:
            return self.attacks
        family = name.removesuffix(f"-{UNION}")
        if name in self.names and family != name and family in self.families:
            return self.families[family]
        return (self.member(name),)

    def _candidates(self, family: str) -> list[str]:
        """The members of a family that may be its strongest."""
        counts = {label: self.bounds(label) for label in self.families[family]}
        if all(class_counts.complete for class_counts in counts.values()):
            return [self.best(family)]
        least = min(overall_bounds(class_counts).high for class_counts in counts.values())
        return [label for label, class_counts in counts.items() if overall_bounds(class_counts).low <= least]

    def confusion(self, name: str = ALL) -> IntArray:
        """(C, C) confusion matrix under any of `names`: rows are true classes, columns predicted ones.

        Under several attacks together, such as ``all``, an image counts by its first incorrect prediction, in the order
        of the attacks; the diagonal counts images that are correctly classified under each of them.

        After a cascade the matrix is cumulative, as `counts` is: an image that it skipped has its earlier prediction.
        Rows of the table without a prediction (logits of NaN or +inf) do not count.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: for a name that is not in `names`, or for more than `MOST_DENSE` classes.
        """
        classes = self.meta.num_classes
        if classes > MOST_DENSE:
            size = f"{classes:,} x {classes:,}"
            raise ClasswiseError(f"a confusion matrix of {size} is too large; use sparse_confusion({name!r})")
        return confusion(*self._predictions(name), classes)

    def sparse_confusion(self, name: str = ALL) -> sparse.csr_array:
        """`confusion` as a sparse (C, C) matrix, for any number of classes.

        Raises:
            ClasswiseError: see `confusion`.
        """
        return sparse_confusion(*self._predictions(name), self.meta.num_classes)

    def to_metricframe(
        self,
        name: str = ALL,
        *,
        group: str | None = None,
        metrics: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """Convert to fairlearn's `MetricFrame`: metrics of the predictions by class, or by group.

        ``y_true`` are the labels, ``y_pred`` the predictions under the attack: the label of an image that is correctly
        classified, otherwise the first incorrect prediction, or -1 where the logits give no prediction.

        Args:
            name: one of `names`.
            group: a grouping; None: the class.
            metrics: functions ``(y_true, y_pred)`` by name, or one of them; None: ``accuracy`` and ``count``.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: without fairlearn (the extra ``fairlearn``), or for an unknown attack or group.
        """
        fairlearn = require("fairlearn.metrics", "fairlearn")
        names, ids = self.grouping(group)
        return fairlearn.MetricFrame(
            metrics=metrics or {"accuracy": _accuracy, "count": fairlearn.count},
            y_true=self.labels,
            y_pred=self._predicted(name),
            sensitive_features=pd.Series(np.asarray(names, dtype=object)[ids], name=group or "class"),
        )

    def predicted(self, name: str = ALL, group: str | None = None) -> pd.DataFrame:
        """A row for each image: its prediction under any of `names`, in the order of the images' indices.

        Columns: ``index``; ``label``; ``group``, its number in a grouping (None: the class); ``prediction``, as in
        `to_metricframe`; ``correct``; and with a clean pass ``clean``, whether it is correct without an attack.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: for an unknown attack or grouping.
        """
        columns: dict[str, Any] = {"index": self.index, "label": self.labels, "group": self.grouping(group).ids}
        columns |= {"prediction": self._predicted(name), "correct": self.correct(name)}
        return pd.DataFrame(columns | ({"clean": self.correct(CLEAN)} if CLEAN in self.meta.applicable else {}))

    def _predictions(self, name: str) -> tuple[IntArray, IntArray]:
        """Labels and predictions of the images that have a prediction."""
        members = self._members(name)
        if len(members) == 1 and not self.meta.cascade:
            self._require_rows(members[0])
            predicted = self._classes[members[0]]
        else:
            predicted = self._predicted(name)
        known = predicted != NO_PREDICTION
        return self.labels[known], predicted[known]

    @cached_property
    def _classes(self) -> dict[str, IntArray]:
        """(N,) the predictions under each applicable attack, `NO_PREDICTION` where there is none."""
        predictions = self.frame["prediction"].to_numpy(dtype=np.int64, na_value=NO_PREDICTION)
        return self._by_attack(predictions, NO_PREDICTION, np.int64)

    def _predicted(self, name: str) -> IntArray:
        """(N,) the prediction on each image under any of `names`: its label if it is correct.

        An image that a cascade did not attack, since an earlier attack succeeded, has the prediction under that one.
        """
        correct, members = self.correct(name), self._members(name)
        applicable = self.meta.applicable
        if self.meta.cascade:
            members = applicable[: 1 + max(map(applicable.index, members))]
        wrong = np.full(len(self), NO_PREDICTION, dtype=np.int64)
        for label in sorted(members, key=applicable.index, reverse=True):  # the first incorrect prediction counts
            predicted = self._classes[label]
            wrong = np.where((predicted != NO_PREDICTION) & (predicted != self.labels), predicted, wrong)
        return np.where(correct, self.labels, wrong)


def _accuracy(y_true: IntArray, y_pred: IntArray) -> float:
    return float(np.mean(y_true == y_pred))
