"""`Audit`: outcomes, the accuracies of each class, and the worst class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from classwise.auditing.guards.report import GuardReport
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.construction import named_table
from classwise.auditing.outcomes.grouped_metric import GroupedMetric
from classwise.auditing.outcomes.repeats import RepeatEstimates
from classwise.auditing.outcomes.table import ALL, CLEAN, UNION, Outcomes
from classwise.auditing.run.audit_folder import (
    ABOUT,
    audit_in,
    folder_for,
    read_about,
    read_trace,
    write_trace,
)
from classwise.core.arguments import Level, checked
from classwise.core.display import RichDisplay
from classwise.core.errors import ClasswiseError, IncompleteError, printable
from classwise.core.names import checked_name
from classwise.core.storage import ResultFolder
from classwise.stats import metrics
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Interval, class_intervals
from classwise.stats.metric import MetricInputs, all_metrics, arranged
from classwise.stats.worst_class import minimum, possibly_worst

if TYPE_CHECKING:
    from classwise.auditing.outcomes.two_phase import TwoPhase

from classwise.stats.worst_class import Minimum


@dataclass(frozen=True)
class WorstClassEstimate:
    """The class (or group) of lowest accuracy under one attack.

    Its own interval, which does not account for its selection, is in the table of classes (`Audit.by_class`).

    Attributes:
        attack: the attack, or ``all``.
        name: name of the class.
        count: number of its images.
        possibly: names of the classes that may be the true worst class.
        minimum: estimates of the lowest class accuracy, whichever class it is: plug-in, split estimate, interval.

    Example:
        >>> import classwise as cw
        >>> labels = [0] * 100 + [1] * 100
        >>> outcomes = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0] * 150 + [1] * 50})
        >>> worst = cw.Audit(outcomes).worst_class("pgd")
        >>> worst.name, worst.accuracy, round(worst.low, 3), round(worst.high, 3)
        ('1', 0.5, 0.398, 0.615)
    """

    attack: str
    name: str
    count: int
    possibly: tuple[str, ...]
    minimum: Minimum

    @property
    def label(self) -> int:
        """Number of the class."""
        return self.minimum.label

    @property
    def accuracy(self) -> float:
        """Accuracy of the class on these images, biased low, since the class is selected for its low accuracy."""
        return self.minimum.plug_in

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval of the lowest class accuracy, whichever class it is, for new images."""
        return self.minimum.low

    @property
    def high(self) -> float:
        """Upper end of this interval (`classwise.stats.intervals.lowest_interval`)."""
        return self.minimum.high


LOWER, UPPER = "lower_bound", "upper_bound"
"""Suffixes of the columns of an incomplete audit: bounds over all possible verdicts on images not judged."""


class AuditWarning(NamedTuple):
    """A warning of a guard about the evaluation.

    Attributes:
        name: of the guard.
        sentence: the problem, in one sentence.
        value: the measured number; NaN if there is none.
    """

    name: str
    sentence: str
    value: float


@checked
@dataclass(frozen=True, eq=False)
class Audit(RichDisplay, RepeatEstimates):
    """The result of an audit.

    Attributes:
        outcomes: a row for each image and attack.
        warnings: warnings of the guards.
        group: the grouping that tables use instead of the class; None: the class.
        name: name of the audit.
        path: its folder, if it was written or saved.
        environment: versions, device, and duration of the run.
        artifacts: the tensors that were saved (``logits``, ``features``, ``images``), and ``examples`` of each class.
        trace: confidences of the traced images, a row for each image, attack, iteration and class; or None.
        alpha: 1 minus the coverage of the intervals.
        guards: which guards ran; None for imported outcomes.

    Example:
        >>> import classwise as cw
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> outcomes = cw.Outcomes.from_predictions(
        ...     labels, clean=[0, 0, 0, 1, 1, 0], attacks={"pgd": [0, 0, 1, 1, 0, 0]}, class_names=["cat", "dog"]
        ... )
        >>> audit = cw.Audit(outcomes)
        >>> audit.by_class["all"].round(2).to_dict()  # the table has a row per class
        {'cat': 0.67, 'dog': 0.33}
        >>> audit.worst_class("all").name
        'dog'
    """

    outcomes: Outcomes
    warnings: tuple[AuditWarning, ...] = ()
    group: str | None = None
    name: str = "audit"
    path: Path | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Artifacts = field(default_factory=Artifacts)
    trace: pd.DataFrame | None = None
    alpha: Level = 0.05
    guards: GuardReport | None = None

    def __post_init__(self) -> None:
        checked_name(self.name, "name of the audit")
        self.outcomes.grouping(self.group)

    def __repr__(self) -> str:
        meta, images = self.outcomes.meta, f"{len(self.outcomes)} images"
        over = meta.model, " ".join(filter(None, (meta.data, meta.split))), meta.threat or "", images
        if self.complete:
            overall, worst = metrics.overall_micro(self.counts()), self.worst_class()
            result = f"accuracy under all {100 * overall:.1f} %, worst {worst.name} {100 * worst.accuracy:.1f} %"
        else:
            result = f"incomplete: {self.outcomes.unfinished} images not judged"
        about = [*filter(None, over), ", ".join(self.attacks), result, f"{len(self.warnings)} warnings"]
        return printable(f"<Audit {self.name!r}: {'; '.join(about)}>")

    @property
    def names(self) -> tuple[str, ...]:
        """Names for all methods and tables: ``clean``, each attack, ``<family>-best``, ``<family>-union``, ``all``."""
        return self.outcomes.names

    @property
    def attacks(self) -> tuple[str, ...]:
        """Labels of the attacks, ``clean`` included."""
        return self.outcomes.attacks

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups."""
        return self.outcomes.grouping(self.group).names

    @cached_property
    def _counts(self) -> dict[str, ClassCounts]:
        return {name: self.outcomes.counts(name, self.group) for name in self.names}

    def counts(self, name: str = ALL) -> ClassCounts:
        """Number of images and of correct images of each class under an attack.

        Raises:
            IncompleteError: if images are not judged under the attack; see `bounds`.
            ClasswiseError: for an attack that is not in `names`.
        """
        if self.complete and name in self._counts:
            return self._counts[name]
        return self.outcomes.counts(name, self.group)

    def bounds(self, name: str = ALL) -> BoundedCounts:
        """Number of images of each class, of judged images under an attack, and of correct images among these.

        Raises:
            ClasswiseError: for an attack that is not in `names`.
        """
        return self.outcomes.bounds(name, self.group)

    def intervals(self, name: str = ALL, *, simultaneous: bool = False) -> Interval:
        """95 % intervals of the class accuracies (C,) under an attack, for new images of the same classes.

        They do not account for the selection of a class by its accuracy; see `worst_class`.

        Raises:
            IncompleteError: see `counts`.
        """
        return class_intervals(self.counts(name), self.alpha, simultaneous=simultaneous)

    @cached_property
    def by_class(self) -> pd.DataFrame:
        """A row for each class (or group) that has images.

        Columns: ``n`` (images), and for each of `names` the accuracy ``<name>`` with the ends of its interval,
        ``<name>_low`` and ``<name>_high`` (fractions).

        An incomplete audit has no estimates. Its columns are ``n``, and for each of `names` ``<name>_judged`` (images),
        ``<name>_lower_bound`` (if all images not judged are misclassified) and ``<name>_upper_bound`` (if all of them
        are correct).
        """
        if not self.complete:
            return self._bounds_by_class()
        columns: dict[str, Any] = {"n": np.max([counts.count for counts in self._counts.values()], axis=0)}
        for name, counts in self._counts.items():
            low, high = self.intervals(name)
            columns |= {name: counts.accuracy, f"{name}_low": low, f"{name}_high": high}
        frame = pd.DataFrame(columns, index=pd.Index(self.group_names, name=self.group or "class"))
        return frame[frame["n"] > 0]

    def _bounds_by_class(self) -> pd.DataFrame:
        bounds = {name: self.bounds(name) for name in self.names}
        columns: dict[str, Any] = {"n": next(iter(bounds.values())).count}
        for name, counts in bounds.items():
            low, high = counts.accuracy
            columns |= {f"{name}_judged": counts.judged, f"{name}_{LOWER}": low, f"{name}_{UPPER}": high}
        frame = pd.DataFrame(columns, index=pd.Index(self.group_names, name=self.group or "class"))
        return frame if any(counts.unplaced for counts in bounds.values()) else frame[frame["n"] > 0]

    @cached_property
    def by_attack(self) -> pd.DataFrame:
        """A row for each of `names`.

        Columns: ``n`` (images); ``overall``, the accuracy over images, with ``overall_low`` and ``overall_high``
        (Wilson); ``macro``, the mean over classes; ``worst_class`` (name) and ``worst`` (its accuracy), with
        ``worst_low`` and ``worst_high``, the interval of the lowest class accuracy, whichever class it is; and each
        other metric of `classwise.stats.metric.METRICS` (NaN where what it reads is unknown, as ``nrr`` without clean
        accuracy).

        An incomplete audit has no estimates, worst class or intervals. Its columns are ``n``, ``judged`` (images), and
        for each metric ``<metric>_lower_bound`` and ``<metric>_upper_bound`` (NaN for a metric without bounds).
        """
        row = self._summary_row if self.complete else self._bounds_row
        return pd.DataFrame([row(self.inputs(name)) for name in self.names], index=pd.Index(self.names, name="attack"))

    def inputs(self, name: str = ALL) -> MetricInputs:
        """What metrics under an attack are computed from.

        Raises:
            ClasswiseError: for an attack that is not in `names`.
        """
        if name not in self._inputs:
            counts = BoundedCounts.of(self.counts(name)) if self.complete else self.bounds(name)
            self._inputs[name] = self.outcomes.inputs(name, counts, self.group)
        return self._inputs[name]

    @cached_property
    def _inputs(self) -> dict[str, MetricInputs]:
        """What `inputs` has returned, by the attack's name."""
        return {}

    def _bounds_row(self, inputs: MetricInputs) -> dict[str, Any]:
        counts = inputs.counts
        row: dict[str, Any] = {"n": counts.total, "judged": int(counts.judged.sum())}
        for name, metric in all_metrics().items():
            low, high = metric.possible(inputs)
            row |= {f"{name}_{LOWER}": float(low), f"{name}_{UPPER}": float(high)}
        return row

    def _summary_row(self, inputs: MetricInputs) -> dict[str, Any]:
        counts, known = inputs.counts.low, all_metrics()
        overall, worst = (known[name].estimate(inputs, self.alpha) for name in ("overall", "worst"))
        return {
            "n": int(counts.count.sum()),
            "overall": overall.value,
            "overall_low": overall.low,
            "overall_high": overall.high,
            "macro": known["macro"].value(inputs),
            "worst_class": self.group_names[metrics.worst_class(counts.accuracy).label],
            "worst": worst.value,
            "worst_low": worst.low,
            "worst_high": worst.high,
            **{each.name: each.value(inputs) for each in arranged(without=("overall", "macro", "worst"))},
        }

    def metric(self, function: Callable[..., Any], name: str = ALL, group: str | None = None) -> GroupedMetric:
        """Compute any function of labels and predictions, over all images and by class or another grouping.

        The predictions are those of `Outcomes.predicted`: under several attacks together the first incorrect one of an
        image, or its label if it is correct under each; -1 where the logits give no prediction.

        Args:
            function: maps labels (n,) and predictions (n,) to a number, as the functions of ``sklearn.metrics`` do.
            name: one of `names`.
            group: a grouping; None: that of the audit.

        Returns:
            The metric with ``overall``, ``by_group``, ``group_min()``, ``group_max()``, ``difference()``, ``ratio()``.

        Raises:
            IncompleteError: if the audit is incomplete.
            ClasswiseError: for an unknown attack or grouping, or a function that returns no number.

        Example:
            >>> import classwise as cw
            >>> outcomes = cw.Outcomes.from_predictions([0, 0, 1, 1], attacks={"pgd": [0, 1, 1, 1]})
            >>> accuracy = cw.Audit(outcomes).metric(lambda y_true, y_pred: (y_true == y_pred).mean(), "pgd")
            >>> accuracy.overall, accuracy.by_group.to_dict(), accuracy.difference()
            (0.75, {'0': 0.5, '1': 1.0}, 0.5)
        """
        self.outcomes.require_complete()
        group = group or self.group
        frame, groups = self.outcomes.predicted(name, group), self.outcomes.grouping(group).names
        labels, predictions, ids = (frame[column].to_numpy() for column in ("label", "prediction", "group"))
        return GroupedMetric.of(function, labels, predictions, ids, pd.Index(groups, name=group or "class"))

    def worst_class(self, name: str = ALL) -> WorstClassEstimate:
        """The class of lowest accuracy under an attack, with the interval of the lowest class accuracy.

        Raises:
            IncompleteError: if images are not judged under the attack, since any class may then be the worst.
            ClasswiseError: for an attack that is not in `names`.
        """
        counts = self.counts(name)
        least = minimum(counts, self.alpha)
        candidates = np.flatnonzero(possibly_worst(counts, self.alpha))
        return WorstClassEstimate(
            attack=name,
            name=self.group_names[least.label],
            count=int(counts.count[least.label]),
            possibly=tuple(self.group_names[label] for label in candidates),
            minimum=least,
        )

    def to_pandas(self) -> pd.DataFrame:
        """The outcomes with names: a row for each image and attack, with the columns ``class`` and ``predicted``."""
        return named_table(self.outcomes.frame, self.outcomes.class_names)

    def confusion(self, name: str = ALL) -> pd.DataFrame:
        """Confusion matrix under any of `names`: rows are true classes, columns predicted ones, values are images.

        Under several attacks together an image counts by its first incorrect prediction. With ``early_stop=True`` the
        predictions are those on the first adversarial example found; see `shows`, whose text is in ``attrs["shows"]``.

        Raises:
            IncompleteError: see `counts`.
            ClasswiseError: for a name that is not in `names`, or for too many classes (`Outcomes.confusion`).
        """
        names = list(self.outcomes.class_names)
        frame = pd.DataFrame(
            self.outcomes.confusion(name),
            index=pd.Index(names, name="truth"),
            columns=pd.Index(names, name="prediction"),
        )
        frame.attrs["shows"] = self.shows(name)
        return frame

    def shows(self, name: str) -> str:
        """The images on which the predictions of an attack were made, in words."""
        if name == CLEAN:
            return "predictions on the clean images"
        if name == ALL or name.endswith(f"-{UNION}"):
            return "the first incorrect prediction of each image, in the order of the attacks"
        texts = {
            False: "predictions on the attack's last iterate",
            True: "predictions on adversarial examples, or on the iterate of lowest margin where none was found",
            None: "predictions made elsewhere",
        }
        return texts[self.outcomes.meta.early_stop]

    @property
    def complete(self) -> bool:
        """Whether every image is judged under every attack."""
        return self.outcomes.complete

    @cached_property
    def two_phase(self) -> TwoPhase | None:
        """AutoAttack's accuracies estimated from a sample, of an audit with ``settle``; else None.

        None, too, until the first phase has finished, and if the sample turned out to be all images.
        """
        if self.outcomes.meta.settle is None or self.complete:
            return None
        from classwise.auditing.outcomes.two_phase import TwoPhase  # imports torch

        return TwoPhase.of(self.outcomes, self.alpha)

    @property
    def finished(self) -> bool:
        """Whether the audit is complete, or its sample has made the intervals as narrow as requested."""
        return self.complete or (self.two_phase is not None and self.two_phase.estimate.settled)

    def save(self, path: str | Path) -> Path:
        """Write the audit into a folder; into ``audits/<name>`` of a run folder.

        Returns:
            The folder of the audit.

        Raises:
            ClasswiseError: if the folder contains another audit, or cannot be written.
        """
        folder = folder_for(Path(path), self.name)
        if self.path is not None and folder.resolve() == self.path.resolve():
            return folder
        if (folder / ABOUT).exists() or outcome_files.listed(folder / "outcomes"):
            raise ClasswiseError(f"{folder} already contains an audit; give another folder")
        self.outcomes.save(folder / "outcomes")
        self.artifacts.save(folder)
        write_trace(folder, self.trace)
        ResultFolder(folder, "audit").write(**about_of(self))
        return folder

    @staticmethod
    def load(path: str | Path) -> Audit:
        """Read an audit from its folder, from a run folder with exactly one audit, or from a table of outcomes.

        Raises:
            IncompleteError: if the audit has no outcomes yet.
            ClasswiseError: if there is no audit, there are several, or the schema version is another.
        """
        folder = audit_in(Path(path))
        if (folder / ABOUT).is_file() and not outcome_files.listed(folder / "outcomes"):
            raise IncompleteError(f"{folder}: no image is judged yet; continue the audit with --resume")
        outcomes = Outcomes.load(folder)
        about = read_about(folder) if (folder / ABOUT).is_file() else {}
        # The files of a stream were written while it was read, before its length and hash were known.
        images, data_hash = about.get("images"), about.get("data_hash")
        if "settle" in about:  # of the last run, which may have found all its rows in the folder
            outcomes = Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta, settle=about["settle"]))
        if isinstance(images, int) and isinstance(data_hash, str) and data_hash:
            outcomes = Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta, images=images, data_hash=data_hash))
        return Audit(
            outcomes=outcomes,
            warnings=tuple(AuditWarning(*warning) for warning in about.get("warnings", ())),
            group=about.get("group"),
            name=about.get("name", folder.absolute().stem),
            path=folder,
            environment=about.get("environment", {}),
            artifacts=Artifacts(folder) if folder.is_dir() else Artifacts(),
            trace=read_trace(folder),
            alpha=about.get("alpha", 0.05),
            guards=GuardReport.read(about["guards"]) if about.get("guards") else None,
        )


def about_of(audit: Audit) -> dict[str, Any]:
    """The entries of ``audit.json``, the last file of an audit that is written."""
    return {
        "name": audit.name,
        "group": audit.group,
        "alpha": audit.alpha,
        "complete": audit.complete,
        "missing": audit.outcomes.missing,
        "images": audit.outcomes.meta.images,
        "data_hash": audit.outcomes.meta.data_hash,
        "settle": audit.outcomes.meta.settle,
        "warnings": [[*warning] for warning in audit.warnings],
        "guards": None if audit.guards is None else dataclasses.asdict(audit.guards),
        "environment": dict(audit.environment),
    }
