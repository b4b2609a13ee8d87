"""Audits of one model under several corruptions, and the accuracy of each class under each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.audit import audit
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import Attacks
from classwise.core.errors import ClasswiseError
from classwise.core.files.csv_files import write_csv
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import checked
from classwise.data.corruptions.base import SEVERITIES, Severity
from classwise.data.corruptions.corrupt import STANDARD
from classwise.data.images import Images
from classwise.data.sets.loading import open_corrupted
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.counts import BoolArray, FloatArray, class_means
from classwise.threat.ball import ThreatLike

OVERALL, MEAN = "overall", "mean"
"""The row of all images, and the column of the mean over corruptions."""


@dataclass(frozen=True, eq=False)
class CorruptionAudits:
    """Audits of one model on the same images under corruptions.

    Attributes:
        audits: an audit for each corruption and severity.
    """

    audits: Mapping[tuple[str, int], Audit]

    def table(self, attack: str = ALL) -> pd.DataFrame:
        """A row for each corruption, severity and class: images ``n``, ``accuracy``, 95 % interval ``low``, ``high``.

        The class `OVERALL` has all images. ``attack`` is a name of the audits; without attacks it is ``all``.

        Raises:
            IncompleteError: if an audit is incomplete.
        """
        rows = []
        for (corruption, severity), result in self.audits.items():
            counts, interval = result.counts(attack), result.intervals(attack)
            whole = result.by_attack.loc[attack, ["n", "overall", "overall_low", "overall_high"]]
            rows.append((corruption, severity, OVERALL, *whole))
            classes = zip(result.group_names, counts.count, counts.accuracy, interval.low, interval.high, strict=True)
            rows += [(corruption, severity, name, int(n), *values) for name, n, *values in classes if n]
        return pd.DataFrame(rows, columns=["corruption", "severity", "class", "n", "accuracy", "low", "high"])

    def by_class(self, attack: str = ALL) -> pd.DataFrame:
        """The class-by-corruption table: accuracies averaged over severities.

        A row for all images, `OVERALL`, and for each class; a column for each corruption, and `MEAN` over them, each
        with ``_low`` and ``_high``, the 95 % interval for new images of the mean over severities, since the same images
        have every severity (`classwise.stats.bounded_means.mean_intervals`). 1 minus the mean of all images is the
        unnormalised mean corruption error (mCE).

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: if the audits are of different images.
        """
        audits = list(self.audits.values())
        for other in audits:
            other.outcomes.require_complete()
            if not np.array_equal(other.outcomes.labels, audits[0].outcomes.labels):
                raise ClasswiseError("the audits are of different images; audit the same images under each corruption")
        correct: dict[str, list[BoolArray]] = {}
        for (corruption, _), result in self.audits.items():
            correct.setdefault(corruption, []).append(result.outcomes.correct(attack))
        shares = {corruption: np.mean(rows, axis=0) for corruption, rows in correct.items()}
        shares[MEAN] = np.mean(list(shares.values()), axis=0)
        ids, names = audits[0].outcomes.grouping(audits[0].group).ids, audits[0].group_names
        both, index = np.concatenate([np.zeros_like(ids), ids + 1]), pd.Index([OVERALL, *names], name="class")
        columns: dict[str, FloatArray] = {}
        for name, share in shares.items():
            twice = np.concatenate([share, share])
            low, high = mean_intervals(twice, both, len(index))
            columns |= {name: class_means(twice, both, len(index)), f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame(columns, index=index).dropna(how="all")

    def relative_error(self, baseline: CorruptionAudits, attack: str = ALL) -> pd.DataFrame:
        """Corruption errors relative to those of a baseline, in the layout of `by_class`.

        The sum of the errors over severities, divided by that of the baseline (Hendrycks and Dietterich 2019, section
        4.1); `MEAN` is the mCE. The paper's baseline is AlexNet on ImageNet-C. NaN or infinite where the baseline has
        no error.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: if the baseline has other corruptions or severities.
        """
        if self.audits.keys() != baseline.audits.keys():
            raise ClasswiseError("the baseline has other corruptions or severities; they must be equal")
        names = list(dict.fromkeys(corruption for corruption, _ in self.audits))
        ours, theirs = (1 - audits.by_class(attack)[names] for audits in (self, baseline))
        ratio = ours / theirs
        return ratio.assign(**{MEAN: ratio.mean(axis=1, skipna=False)})

    def save(self, folder: str | Path, attack: str = ALL) -> list[Path]:
        """Write `table` and `by_class` as ``corruptions.csv`` and ``by_class.csv``.

        Raises:
            IncompleteError: if an audit is incomplete.
        """
        frames = {"corruptions": self.table(attack), "by_class": self.by_class(attack).reset_index()}
        return [write_csv(Path(folder) / f"{name}.csv", frame, float_format=None) for name, frame in frames.items()]


@checked
@evaluates
def audit_corruptions(
    model: Model,
    data: str | Path | Images,
    attacks: Attacks = CLEAN,
    threat: ThreatLike | None = None,
    *,
    corruptions: Sequence[str] = STANDARD,
    severities: Sequence[Severity] = SEVERITIES,
    load: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    **options: Unpack[Evaluation],
) -> CorruptionAudits:
    """Audit a model under every corruption and severity, by default without attacks; ``max_time`` is for each audit.

    Args:
        model: as of `classwise.audit`.
        data: a published set such as ``cifar10-c``, ``imagenet-c`` or the folder ``CIFAR-10-C``; or another name, path
            or `Images`, whose corruptions are computed (`classwise.data.corrupt`).
        attacks: as of `classwise.audit`; by default none, so that the accuracies are those on the corrupted images.
        threat: as of `classwise.audit`, for attacks.
        corruptions: names of the corruptions; by default the 15 of the benchmark.
        severities: from 1 to 5.
        load: options of `classwise.load_data` for a name or path, such as ``{"root": "data", "subset": 1000}``.
        out: folder for the audits, ``fog-3`` and so on; None: they are in memory only.
        resume: load finished audits in ``out``, continue interrupted ones, and run the missing ones.
        progress: True shows a progress bar; or a listener.
        **options: see `Evaluation`.

    Returns:
        The audits, and the class-by-corruption tables computed from their outcomes.

    Raises:
        ClasswiseError: as `classwise.audit`, or for an unknown corruption or severity, or none.

    Example:
        >>> import classwise as cw
        >>> from classwise.auditing.run.corruptions import audit_corruptions
        >>> data = cw.load_data("digits", subset=32)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> found = audit_corruptions(model, data, corruptions=["fog", "contrast"], severities=[1, 5])
        >>> found.by_class().columns[::3].tolist(), len(found.by_class())
        (['fog', 'contrast', 'mean'], 11)
    """
    pairs = [(corruption, severity) for corruption in corruptions for severity in severities]
    if not pairs or len(set(pairs)) < len(pairs):
        raise ClasswiseError("corruptions and severities: give at least one of each, and each once")
    if options.get("unique") and isinstance(data, Images):
        data = data.unique()  # equal images have different corruptions
    audits: dict[tuple[str, int], Audit] = {}
    with listening(progress) as listener:
        for corruption, severity in pairs:
            images = open_corrupted(data, corruption, severity, **(load or {}))
            listener.log(f"{images.name}: {len(audits) + 1} of {len(pairs)}")
            audits[corruption, severity] = audit(
                model,
                images,
                threat,
                attacks,
                out=None if out is None else Path(out) / f"{corruption}-{severity}",
                resume=resume,
                progress=listener,
                **options,
            )
    return CorruptionAudits(audits)
