"""`Audit`: outcomes, the accuracies of each class, and the worst class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.display import RichDisplay
from classwise.auditing.outcomes.grouped_metric import GroupedMetric
from classwise.auditing.outcomes.table import ALL, CLEAN, UNION, Outcomes
from classwise.auditing.run.audit_folder import (
    ABOUT,
    audit_in,
    folder_for,
    guards_in,
    read_about,
    read_trace,
    write_trace,
)
from classwise.auditing.run.estimators import BoundsEstimator, CompleteEstimator, Estimator
from classwise.core.errors import ClasswiseError, IncompleteError, printable
from classwise.core.files.storage import ResultFolder
from classwise.core.rounding import in_percent
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.names import checked_name
from classwise.stats import metrics
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Interval, class_intervals
from classwise.stats.metrics.lowest import Minimum, minimum
from classwise.stats.registry import MetricInputs
from classwise.stats.worst_class import possibly_worst


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


@checked
@dataclass(frozen=True, eq=False)
class Audit(RichDisplay):
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
            result = (
                f"accuracy under all {in_percent(overall):.1f} %, worst {worst.name} {in_percent(worst.accuracy):.1f} %"
            )
        else:
            result = f"incomplete: {self.outcomes.unfinished} images not judged"
        warnings = f"{len(self.warnings)} {'warning' if len(self.warnings) == 1 else 'warnings'}"
        about = [*filter(None, over), ", ".join(self.attacks), result, warnings]
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

    def counts(self, name: str = ALL) -> ClassCounts:
        """Number of images and of correct images of each class under an attack.

        Raises:
            IncompleteError: if images are not judged under the attack; see `bounds`.
            ClasswiseError: for an attack that is not in `names`.
        """
        return self.inputs(name).counts.low if self.complete else self.outcomes.counts(name, self.group)

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

    @property
    def by_class(self) -> pd.DataFrame:
        """A row for each class (or group) that has images.

        Columns: ``n`` (images), and for each of `names` the accuracy ``<name>`` with the ends of its interval,
        ``<name>_low`` and ``<name>_high`` (fractions).

        An incomplete audit has no estimates. Its columns are ``n``, and for each of `names` ``<name>_judged`` (images),
        ``<name>_lower_bound`` (if all images not judged are misclassified) and ``<name>_upper_bound`` (if all of them
        are correct).
        """
        return self.estimator.by_class

    @property
    def by_attack(self) -> pd.DataFrame:
        """A row for each of `names`.

        Columns: ``n`` (images); ``overall``, the accuracy over images; ``macro``, the mean over classes;
        ``worst_class`` (name) and ``worst``, the lowest class accuracy, whichever class it is; and each other metric of
        `classwise.stats.METRICS` (NaN where what it reads is unknown, as ``nrr`` without clean accuracy). Metrics
        with an interval of their own have it in ``<metric>_low`` and ``<metric>_high``.

        An incomplete audit has no estimates, worst class or intervals. Its columns are ``n``, ``judged`` (images), and
        for each metric ``<metric>_lower_bound`` and ``<metric>_upper_bound`` (NaN for a metric without bounds).
        """
        return self.estimator.by_attack

    def inputs(self, name: str = ALL) -> MetricInputs:
        """What metrics under an attack are computed from.

        Raises:
            ClasswiseError: for an attack that is not in `names`.
        """
        return self.estimator.inputs(name)

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
        frame, names = self.outcomes.frame, np.asarray(self.outcomes.class_names, dtype=object)
        known = frame["prediction"].notna()
        predicted = pd.Series(pd.NA, index=frame.index, dtype="string")
        predicted[known] = names[frame["prediction"][known].to_numpy(dtype=np.int64)]
        label = pd.Series(names[frame["label"].to_numpy(dtype=np.int64)], index=frame.index, dtype="string")
        return frame.assign(**{"class": label, "predicted": predicted})

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
    def estimator(self) -> Estimator:
        """What the tables are computed with, by how far the outcomes are known.

        `CompleteEstimator`, or of an incomplete audit `BoundsEstimator`; if the last attacks were to run on a sample,
        and the first have finished, `classwise.auditing.run.sampling.TwoPhaseEstimator`.
        """
        if self.complete:
            return CompleteEstimator(self.outcomes, self.group, self.alpha)
        if self.outcomes.meta.sampled:
            from classwise.auditing.run.sampling import TwoPhaseEstimator  # imports torch

            if (sampled := TwoPhaseEstimator.of(self.outcomes, self.group, self.alpha)) is not None:
                return sampled
        return BoundsEstimator(self.outcomes, self.group, self.alpha)

    def probabilities(self, *, overall: bool = False) -> pd.DataFrame:
        """The mean probability of a correct prediction in one pass, for each class (or group) that has images.

        The value of an image is the fraction of its passes that are correct: on the clean image under ``clean``, and
        under an attack on the image that the attack returned, in passes that the choice of that image did not depend
        on. With early stop, images that are misclassified without attack keep their clean passes. Under ``all``, and in
        a cascade, the value is the lowest one under all attacks so far. That is a minimum of estimates, so it is too
        low rather than too high.

        The images are independent with values in [0, 1], so the intervals are for new images of the same classes and
        new passes (`classwise.stats.bounded_means.mean_intervals`).

        Args:
            overall: one row for all images, instead of a row for each class.

        Returns:
            Columns ``n`` (images), and for each attack and ``all`` ``<name>``, ``<name>_low`` and ``<name>_high``.

        Raises:
            ClasswiseError: if each image was evaluated in one pass.
            IncompleteError: if images are not judged under every attack.
        """
        return self.estimator.probabilities(overall=overall)

    @property
    def finished(self) -> bool:
        """Whether the audit is complete, or its sample has made the intervals as narrow as requested."""
        return self.estimator.finished

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
        about = read_about(folder) if (folder / ABOUT).exists() else {}
        warnings, guards = guards_in(about)
        if (meta := outcomes.meta.as_of(about)) != outcomes.meta:
            outcomes = Outcomes(outcomes.frame, meta)
        return Audit(
            outcomes=outcomes,
            warnings=warnings,
            group=about.get("group"),
            name=about.get("name", folder.absolute().stem),
            path=folder,
            environment=about.get("environment", {}),
            artifacts=Artifacts(folder) if folder.is_dir() else Artifacts(),
            trace=read_trace(folder),
            alpha=about.get("alpha", 0.05),
            guards=guards,
        )


def about_of(audit: Audit) -> dict[str, Any]:
    """The entries of ``audit.json``, the last file of an audit that is written."""
    return {
        "name": audit.name,
        "group": audit.group,
        "alpha": audit.alpha,
        "complete": audit.complete,
        "missing": audit.outcomes.missing,
        **audit.outcomes.meta.of_last_run,
        "policy": audit.outcomes.meta.policy,
        **({} if audit.outcomes.meta.code is None else {"code": audit.outcomes.meta.code}),
        "warnings": [[*warning] for warning in audit.warnings],
        "guards": None if audit.guards is None else dataclasses.asdict(audit.guards),
        "environment": dict(audit.environment),
    }
