"""Outcomes: a table with a row for each image and attack, from which everything that a report says is computed.

The table may come from `classwise.auditing.audit.audit`, or from somebody else's predictions: no model is needed, and
nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from classwise.auditing import outcome_files
from classwise.auditing.meta import Meta
from classwise.auditing.outcome_files import COLUMNS
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.stats.bounds import BoundedCounts, overall
from classwise.stats.confusion import confusion, sparse_confusion
from classwise.stats.counts import BoolArray, ClassCounts, IntArray, class_labels

CLEAN, ALL = "clean", "all"
"""The pass without an attack; and the AND over every attack, the clean pass included."""
BEST, UNION = "best", "union"
"""What a family of attacks is summed up by: its strongest member, and the AND over its members."""
UNKNOWN = -1
"""The verdict on an image that is not judged; 1 is correct, 0 misclassified."""


MOST_DENSE = 2_000
"""Up to so many classes a confusion matrix is dense: 32 MB at most."""


class Judgement(NamedTuple):
    """Which images are correctly classified; the same rows in each array.

    Attributes:
        image: (N,) the images' numbers, ascending.
        label: (N,) their labels.
        correct: (N,) true where the image is still classified correctly.
    """

    image: IntArray
    label: IntArray
    correct: BoolArray


class Grouping(NamedTuple):
    """A partition of the images.

    Attributes:
        names: one for each group.
        ids: (N,) the group of each image, in the order of `Outcomes.index`.
    """

    names: tuple[str, ...]
    ids: IntArray


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What became of every image under every attack; ``clean`` is an attack.

    Args:
        frame: the columns of `COLUMNS`, and an integer column for each grouping of ``meta.groups``. It is brought to
            the types of `COLUMNS` and sorted by attack and image.
        meta: how the rows came about.

    Raises:
        ClasswiseError: for missing columns, a row that is there twice, or a label without a class.

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
        typed = outcome_files.typed(self.frame, self.meta)
        order = {label: place for place, label in enumerate(self.meta.attacks)}
        strangers = sorted(set(typed["attack"]) - set(order))
        if strangers:
            raise unknown("attack in the table:", strangers[0], order)
        typed = typed.assign(_order=typed["attack"].map(order)).sort_values(["_order", "index"], kind="stable")
        typed = typed.drop(columns="_order").reset_index(drop=True)
        twice = typed.duplicated(["attack", "index"])
        if twice.any():
            row = typed[twice].iloc[0]
            raise ClasswiseError(f"image {row['index']} is there twice under {row['attack']!r}; numbers name images")
        class_labels(typed["label"].to_numpy(), self.meta.num_classes)
        object.__setattr__(self, "frame", typed)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self.meta.class_names

    @property
    def num_classes(self) -> int:
        """C, classes without an image included."""
        return self.meta.num_classes

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """The attacks of the audit in their order, ``clean`` among them; also those that have not judged an image.

        Without those that are not applicable to the model.
        """
        return self.meta.applicable

    @cached_property
    def families(self) -> dict[str, tuple[str, ...]]:
        """Attacks that belong together, such as one at several temperatures: those members that are in the table."""
        found = {
            name: tuple(label for label in members if label in self.attacks)
            for name, members in self.meta.families.items()
        }
        return {name: members for name, members in found.items() if len(members) > 1}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All that can be judged by: each attack, ``<family>-best`` and ``<family>-union`` after a family, ``all``.

        After a cascade there is no best of a family, since its members did not see the same images.
        """
        listed: list[str] = []
        for label in self.attacks:
            listed.append(label)
            for family, members in self.families.items():
                if label == members[-1]:
                    kinds = (UNION,) if self.meta.cascade else (BEST, UNION)
                    listed += [f"{family}-{kind}" for kind in kinds]
        return (*listed, ALL)

    @cached_property
    def index(self) -> IntArray:
        """(N,) the number of every image, ascending."""
        return np.asarray(self._images.index, dtype=np.int64)

    @cached_property
    def labels(self) -> IntArray:
        """(N,) the label of every image, in the order of `index`."""
        return self._images["label"].to_numpy(dtype=np.int64)

    @cached_property
    def missing(self) -> dict[str, int]:
        """How many images have no row under each attack (of an incomplete audit); only attacks that lack some."""
        total = self._total
        judged = self.frame["attack"].value_counts()
        left = {label: total - int(judged.get(label, 0)) for label in self.attacks}
        return {label: count for label, count in left.items() if count}

    @property
    def complete(self) -> bool:
        """Whether every attack has a row of every image, and it is known how many images there are."""
        return not self.missing and self.meta.images is not None

    def require_complete(self) -> None:
        """Refuse a table in which rows are missing.

        Raises:
            IncompleteError: if `complete` is false.
        """
        if not self.complete:
            raise IncompleteError(f"{self.gap}; continue the audit with --resume")

    @property
    def gap(self) -> str:
        """Which images are not judged, as a sentence without its full stop; empty for a complete table."""
        if self.complete:
            return ""
        if not self.unjudged and self.meta.images is not None:  # each is known from the other attacks
            rows = ", ".join(f"{label} {count:,}" for label, count in self.missing.items())
            return f"the audit is incomplete: rows of images that need no attack are missing ({rows})"
        left = ", ".join(f"{label} {count:,}" for label, count in self.unjudged.items())
        by_attack = f" (not judged: {left})" if left else ""
        return f"the audit is incomplete: {self.unfinished} images are not judged by every attack{by_attack}"

    @cached_property
    def unjudged(self) -> dict[str, int]:
        """How many images have no verdict under each attack, as far as their number is known; see `verdicts`."""
        unseen = self._total - len(self)
        left = {label: unseen + int((self._verdicts[label] < 0).sum()) for label in self.attacks}
        return {label: count for label, count in left.items() if count}

    @property
    def unfinished(self) -> str:
        """How many of the images have no verdict under some attack, as ``12 of 90``."""
        if self.meta.images is None:
            return "an unknown number of"
        open_images = np.any([self._verdicts[label] < 0 for label in self.attacks], axis=0)
        return f"{self._total - len(self) + int(open_images.sum()):,} of {self._total:,}"

    @property
    def _total(self) -> int:
        """How many images there are, as far as that is known."""
        return max(self.meta.images or 0, len(self))

    def rows(self, attack: str) -> pd.DataFrame:
        """The rows of one attack, by image; ``<family>-best`` is the family's strongest member.

        Raises:
            IncompleteError: if images have no row under the attack. `frame` has the rows that there are.
            ClasswiseError: as `member` does.
        """
        label = self.member(attack)
        if label in self.missing or self.meta.images is None:
            self.require_complete()
        return self.frame[self.frame["attack"] == label].reset_index(drop=True)

    def member(self, name: str) -> str:
        """The attack that a name stands for.

        Raises:
            ClasswiseError: if the name is not known, or stands for several attacks together.
        """
        if name in self.attacks:
            return name
        family = name.removesuffix(f"-{BEST}")
        if name in self.names and family in self.families and family != name:
            return self.best(family)
        if name in self.names:
            raise ClasswiseError(f"{name!r} is several attacks together; name one of {', '.join(self.attacks)}")
        raise unknown("attack", name, self.names)

    def best(self, family: str) -> str:
        """The member of a family with the lowest overall accuracy; the first one at a tie.

        Raises:
            IncompleteError: if a member has not judged every image.
            ClasswiseError: if there is no such family.
        """
        if family not in self.families:
            raise unknown("family of attacks", family, self.families)
        return min(self.families[family], key=lambda label: float(self.judged(label).correct.mean()))

    def verdicts(self, name: str) -> NDArray[np.int8]:
        """(N,) what is known of each image, in the order of `index`: 1 correct, 0 misclassified, -1 not judged.

        Against several attacks an image is correct if it is so against each, and misclassified if one of them
        succeeded, whatever the others will find. A row that is missing is known where an early stop or a cascade does
        not attack the image any more.

        Raises:
            ClasswiseError: for a name that is not in `names`.
        """
        members = self._members(name)
        found: NDArray[np.int8] = np.min(
            [np.where(self._verdicts[label] < 0, 2, self._verdicts[label]) for label in members], 0
        )
        unknown_yet = np.any([self._verdicts[label] < 0 for label in members], 0) & (found > 0)
        return np.where(unknown_yet, UNKNOWN, found).astype(np.int8)

    def judged(self, name: str) -> Judgement:
        """Which images are correctly classified under an attack, the best or the union of a family, or ``all``.

        Raises:
            IncompleteError: if images are not judged yet; see `bounds`.
            ClasswiseError: for a name that is not in `names`.
        """
        verdicts = self.verdicts(name)
        if (verdicts < 0).any() or len(self) < self._total or self.meta.images is None:
            self.require_complete()
        return Judgement(self.index, self.labels, verdicts > 0)

    def correct(self, name: str) -> BoolArray:
        """(N,) which images are correctly classified: `judged` without the images' numbers."""
        return self.judged(name).correct

    def counts(self, name: str, group: str | None = None) -> ClassCounts:
        """Images and right answers of each class, or of each group of a grouping.

        Raises:
            IncompleteError: if images are not judged yet; see `bounds`.
        """
        return self.counts_of(self.judged(name), group)

    def bounds(self, name: str, group: str | None = None) -> BoundedCounts:
        """Images of each class (or group), how many of them are judged, and how many of these are correct.

        Of a family whose strongest member is not known yet, the counts include every member that may be it.

        Raises:
            ClasswiseError: for a name that is not in `names`, or a grouping that the table does not have.
        """
        family = name.removesuffix(f"-{BEST}")
        if name in self.names and name not in self.attacks and family != name:
            return _widest([self.bounds(member, group) for member in self._candidates(family)])
        verdicts, grouping = self.verdicts(name), self.grouping(group)
        groups = len(grouping.names)
        seen, judged, correct = (
            np.bincount(grouping.ids[mask], minlength=groups) for mask in (verdicts > -2, verdicts >= 0, verdicts > 0)
        )
        if self.meta.images is None:
            return BoundedCounts(seen, judged, correct, float("inf"))
        sizes = self._sizes(group)
        if sizes is None or len(sizes) != groups or sizes.sum() != self._total or (sizes < seen).any():
            return BoundedCounts(seen, judged, correct, float(self._total - len(self)))
        return BoundedCounts(sizes, judged, correct)

    def counts_of(self, judgement: Judgement, group: str | None = None) -> ClassCounts:
        """The same of some images only."""
        grouping = self.grouping(group)
        ids = grouping.ids[np.searchsorted(self.index, judgement.image)]
        return ClassCounts.from_labels(ids, judgement.correct, len(grouping.names))

    def grouping(self, group: str | None = None) -> Grouping:
        """The images by class (None), by ``"superclass"``, or by a grouping of the table.

        Raises:
            ClasswiseError: if the table has no such grouping.
        """
        if group is None or group == "class":
            return Grouping(self.class_names, self.labels)
        if group == "superclass" and self.meta.superclasses is not None:
            return Grouping(self.meta.superclass_names, np.asarray(self.meta.superclasses)[self.labels])
        if group not in self.meta.groups:
            superclass = ["superclass"] if self.meta.superclasses is not None else []
            raise unknown("grouping", group, ["class", *superclass, *self.meta.groups])
        return Grouping(self.meta.groups[group], self._images[group].to_numpy(dtype=np.int64))

    def confusion(self, name: str) -> IntArray:
        """(C, C) images by truth (row) and prediction (column) under one attack.

        Rows without a prediction (images that a cascade skipped, logits that are not finite) are left out.

        Raises:
            ClasswiseError: if the name stands for several attacks, or there are more than `MOST_DENSE` classes.
        """
        if self.num_classes > MOST_DENSE:
            size = f"{self.num_classes:,} x {self.num_classes:,}"
            raise ClasswiseError(f"a confusion matrix of {size} is too large; use sparse_confusion({name!r})")
        return confusion(*self._predictions(name), self.num_classes)

    def sparse_confusion(self, name: str) -> sparse.csr_array:
        """`confusion` as a sparse (C, C) matrix, for any number of classes.

        Raises:
            ClasswiseError: if the name stands for several attacks.
        """
        return sparse_confusion(*self._predictions(name), self.num_classes)

    def _predictions(self, name: str) -> tuple[IntArray, IntArray]:
        """The labels and predictions of the rows of one attack that have a prediction."""
        rows = self.rows(name)
        rows = rows[rows["prediction"].notna()]
        return rows["label"].to_numpy(), rows["prediction"].to_numpy(dtype=np.int64)

    def add_groups(self, name: str, ids: ArrayLike, names: Sequence[str]) -> Outcomes:
        """The same table with one more grouping of the images.

        Args:
            name: the new column.
            ids: (N,) the group of each image, whole numbers from 0, in the order of `index`.
            names: one for each group.

        Raises:
            ClasswiseError: if the name is taken, the length differs, or an id has no name.
        """
        if name in (*self.frame.columns, "class", "superclass"):
            raise ClasswiseError(f"grouping {name!r}: the name is taken; choose another")
        groups = class_labels(ids, len(names), f"grouping {name!r}")
        if len(groups) != len(self):
            raise ClasswiseError(f"grouping {name!r}: {len(groups)} ids for {len(self)} images; give one for each")
        column = groups[np.searchsorted(self.index, self.frame["index"].to_numpy())]
        meta = dataclasses.replace(self.meta, groups={**self.meta.groups, name: tuple(names)})
        return Outcomes(self.frame.assign(**{name: column}), meta)

    def join(self, other: Outcomes) -> Outcomes:
        """The attacks of both tables on the same images of one model; the clean rows are this table's.

        Raises:
            IncompleteError: if rows are missing in one of them.
            ClasswiseError: if the images, labels, class names or models differ, or an attack is in both.
        """
        self.require_complete()
        other.require_complete()
        for what in ("class_names", "model_hash", "data_hash"):
            mine, theirs = getattr(self.meta, what), getattr(other.meta, what)
            if mine and theirs and mine != theirs:
                raise ClasswiseError(f"the two tables cannot be joined: they differ in {what.replace('_', ' ')}")
        if not (np.array_equal(self.index, other.index) and np.array_equal(self.labels, other.labels)):
            raise ClasswiseError("the two tables cannot be joined: they hold other images or labels")
        twice = sorted(set(self.attacks) & set(other.attacks) - {CLEAN})
        if twice:
            raise ClasswiseError(f"attack {twice[0]!r} is in both tables; rename one of the two")
        theirs = other.frame[~other.frame["attack"].isin(self.attacks)]
        kept = [column for column in theirs.columns if column in self.frame.columns]
        groups = {name: self._images[name] for name in self.meta.groups}
        theirs = theirs[kept].assign(**{name: theirs["index"].map(ids) for name, ids in groups.items()})
        meta = dataclasses.replace(
            self.meta,
            attacks={**self.meta.attacks, **{k: v for k, v in other.meta.attacks.items() if k not in self.attacks}},
            not_applicable=tuple(dict.fromkeys((*self.meta.not_applicable, *other.meta.not_applicable))),
            families={**other.meta.families, **self.meta.families},
            early_stop=self.meta.early_stop if self.meta.early_stop == other.meta.early_stop else None,
            cascade=self.meta.cascade or other.meta.cascade,
        )
        return Outcomes(pd.concat([self.frame, theirs], ignore_index=True), meta)

    def save(self, folder: str | Path) -> None:
        """Write the table as one part into a folder (``part-00000.parquet``), whole or not at all.

        Raises:
            ClasswiseError: if the folder holds parts already, or cannot be written.
        """
        if outcome_files.listed(Path(folder)):
            raise ClasswiseError(f"{folder} holds outcomes already; give another folder")
        outcome_files.write(Path(folder) / outcome_files.name(0), self.frame, self.meta)

    @classmethod
    def load(cls, path: str | Path) -> Outcomes:
        """Read a part, a folder of parts, or the folder of an audit.

        Raises:
            ClasswiseError: if there are no outcomes, a file is damaged, or a newer version wrote it.
        """
        frame, meta = outcome_files.read_all(Path(path))
        return cls(frame, meta)

    @classmethod
    def from_predictions(
        cls,
        labels: ArrayLike,
        clean: ArrayLike | None = None,
        attacks: Mapping[str, ArrayLike] | None = None,
        class_names: Sequence[str] | None = None,
        confidences: Mapping[str, ArrayLike] | None = None,
        **meta: Any,
    ) -> Outcomes:
        """A table from predictions that were made elsewhere.

        Args:
            labels: (N,) whole numbers in 0 .. C-1.
            clean: (N,) the predicted classes on the images themselves.
            attacks: the predicted classes (N,) on each attack's adversarial images.
            class_names: one for each class; the numbers where none are given.
            confidences: softmax outputs (N, C) for ``clean`` and any attack.
            **meta: further fields of `Meta`, such as ``threat="Linf:8/255"`` or ``superclasses``.

        Raises:
            ClasswiseError: if a length differs, a label or prediction has no class, or there is no prediction at all.
        """
        given = ({} if clean is None else {CLEAN: clean}) | dict(attacks or {})
        if not given:
            raise ClasswiseError("no predictions: give clean=, or attacks={'name': predictions}")
        if class_names is None:
            top = max(int(np.max(np.asarray(values), initial=0)) for values in (labels, *given.values()))
            class_names = [str(label) for label in range(top + 1)]
        classes = len(class_names)
        truth = class_labels(labels, classes)
        blocks, wrong = [], np.zeros(len(truth), dtype=np.bool_)
        for label, values in given.items():
            predicted = class_labels(values, classes, f"predictions of {label!r}")
            if len(predicted) != len(truth):
                raise ClasswiseError(
                    f"{len(predicted)} predictions of {label!r} for {len(truth)} labels; give one for each"
                )
            block = pd.DataFrame({"index": np.arange(len(truth)), "label": truth, "prediction": predicted})
            block = block.assign(attack=label, correct=predicted == truth, status="ok")
            breaker = np.where(wrong, CLEAN, label)
            block["first_success"] = pd.Series(breaker, dtype="string").where(predicted != truth)
            if confidences and label in confidences:
                block = block.assign(**_of_confidences(confidences[label], truth, predicted, classes, label))
            blocks.append(block.reindex(columns=list(COLUMNS)).astype(COLUMNS))
            wrong |= (predicted != truth) & (label == CLEAN)
        about = Meta(class_names=tuple(class_names), attacks=dict.fromkeys(given), images=len(truth), **meta)
        return cls(pd.concat(blocks, ignore_index=True), about)

    @cached_property
    def _images(self) -> pd.DataFrame:
        """A row for each image: its label and its groups, by number."""
        return self.frame.drop_duplicates("index").set_index("index").sort_index()

    @cached_property
    def _verdicts(self) -> dict[str, NDArray[np.int8]]:
        """`verdicts` of each attack."""
        order = {label: place for place, label in enumerate(self.attacks)}
        table = np.full((len(order), len(self)), UNKNOWN, dtype=np.int8)
        places = self.frame["attack"].map(order).to_numpy(dtype=np.int64)
        table[places, np.searchsorted(self.index, self.frame["index"])] = self.frame["correct"]
        fatal = [bool(self.meta.early_stop) if label == CLEAN else self.meta.cascade for label in order]
        over = np.zeros(len(self), dtype=np.bool_)  # images that later attacks do not see
        for row, ends in zip(table, fatal, strict=True):
            row[over & (row < 0)] = 0
            over |= (row == 0) & ends
        return dict(zip(order, table, strict=True))

    def _members(self, name: str) -> tuple[str, ...]:
        """The attacks whose verdicts make up that of a name."""
        if name == ALL:
            return self.attacks
        family = name.removesuffix(f"-{UNION}")
        if name in self.names and family != name and family in self.families:
            return self.families[family]
        return (self.member(name),)

    def _candidates(self, family: str) -> list[str]:
        """The members of a family that may turn out to be its strongest."""
        members = self.families[family]
        found = {label: self.bounds(label) for label in members}
        if all(counts.complete for counts in found.values()):
            return [self.best(family)]
        least = min(overall(counts).high for counts in found.values())
        return [label for label, counts in found.items() if overall(counts).low <= least]

    def _sizes(self, group: str | None) -> IntArray | None:
        """How many images each class or group has; None where that is not known."""
        if group != "superclass":
            sizes = self.meta.sizes.get(group or "class")
            return None if sizes is None else np.asarray(sizes, dtype=np.int64)
        classes = self._sizes("class")
        if classes is None or self.meta.superclasses is None or len(classes) != len(self.meta.superclasses):
            return None
        sums = np.bincount(self.meta.superclasses, weights=classes, minlength=len(self.meta.superclass_names))
        return np.rint(sums).astype(np.int64)


def _widest(found: Sequence[BoundedCounts]) -> BoundedCounts:
    """Counts that include every completion of each of some counts of the same images."""
    correct = np.min([counts.correct for counts in found], axis=0)
    most = np.max([counts.high.correct for counts in found], axis=0)
    return BoundedCounts(found[0].count, found[0].count - most + correct, correct, found[0].unplaced)


def _of_confidences(
    values: ArrayLike, truth: IntArray, predicted: IntArray, classes: int, label: str
) -> dict[str, np.ndarray[Any, Any]]:
    """What the columns hold of (N, C) softmax outputs."""
    from classwise.stats.metrics import confidence_variance

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
