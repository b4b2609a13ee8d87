"""Confusion matrix under attack, its symmetry and its superclass structure: kdd21/F2, E2, benz20/P2.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from classwise.analysis.confusion import Confused, confused
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.data_set_audits import (
    ADVERSARIAL,
    ROBUST,
    SCALES,
    DataSetAudits,
    audit_each,
    data_tables,
    declare,
    no_verdict,
)
from classwise.papers.interval_estimators import ALPHA, IntervalEstimator, interval
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.tables import Row, Table
from classwise.stats.counts import FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_rows

MANY = 200
"""Number of classes above which fewer resamples are drawn, since each has the size of the matrix."""
SVHN = "svhn"
SIX, EIGHT = 6, 8
"""The digits that kdd21 names as similar in shape."""
INSIDE, ACROSS = "more inside superclasses", "less across superclasses than by chance"
"""The tested parts of claim C6; that confusion across superclasses is rare has no threshold."""
MUTUAL = "mutual inside superclasses"
"""The other part of claim C5 of benz20, on each data set."""


class ConfusionUnderAttack(Experiment):
    """kdd21 Figure 2: confusion matrix of adversarial training under PGD, on each data set."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """An adversarially trained model of each data set."""
        return declare(scale, (ADVERSARIAL,))

    def run(self, context: Context) -> Findings:
        """Measure the symmetry, and the errors inside superclasses relative to chance; test the claims."""
        audited, absent = audit_each(context, (ADVERSARIAL,))
        classes = {one.data: _confused(one.by_class) for one in audited}
        matrices = {one.data: _confused(one) if one.superclasses else classes[one.data] for one in audited}
        caption = "rows: truth; columns: prediction on the attacked image; percent of the row."
        tests, not_tested = self.claims(audited, matrices, classes)
        return Findings(
            tables=(*structure_tables(matrices, classes, tests), *data_tables(audited, absent)),
            figures=[(matrix.figure(), f"{data}: {caption}") for data, matrix in matrices.items()],
            tests=tests,
            not_tested=not_tested,
        )

    def claims(
        self, audited: Sequence[DataSetAudits], matrices: Mapping[str, Confused], classes: Mapping[str, Confused]
    ) -> tuple[list[Test], dict[str, str]]:
        """Test kdd21 C5 on each data set, C6 where there are superclasses, and C7 on SVHN.

        Args:
            audited: audits of the data sets.
            matrices: confusion matrices by data set, of superclasses where statements are about superclasses.
            classes: confusion matrices of the classes, by data set.
        """
        fit = {one.data: one for one in audited if not one.unfit}
        tests = [
            Test(
                claim="kdd21/C5",
                covers=(data,),
                estimand=f"correlation of M_ij with M_ji over pairs of classes, {data}",
                estimators=[interval(matrices[data].pearson)],
                unit="",
                limits=CORRELATION,
            )
            for data, one in fit.items()
            if one.judges("kdd21/C5")
        ]
        not_tested = no_verdict("kdd21/C5", audited)
        inside = {data: each for data in fit if (each := classes[data].inside) is not None}
        if inside:
            note = f"on {', '.join(inside)}; error rates of pairs need no verdict about a single class"
            contrasts = [interval(each.contrast, 100) for each in inside.values()]
            estimand = "mean rate M_ij of pairs inside the superclasses minus that of pairs across, each data set"
            tests.append(Test(claim="kdd21/C6", covers=(INSIDE,), estimand=estimand, estimators=contrasts, note=note))
            excesses = [interval(each.excess, 100) for each in inside.values()]
            estimand = "share of the errors across superclasses: chance minus measured, each data set"
            note = f"on {', '.join(inside)}"
            tests.append(Test(claim="kdd21/C6", covers=(ACROSS,), estimand=estimand, estimators=excesses, note=note))
        else:
            not_tested["kdd21/C6"] = "no data set with superclasses gives a verdict"
        if SVHN in fit:
            tests.append(_similar_digits(matrices[SVHN].matrix))
        else:
            not_tested["kdd21/C7"] = "the claim is about SVHN, which is not available or gives no verdict"
        return tests, not_tested


def _confused(one: DataSetAudits) -> Confused:
    outcomes = one.outcomes()
    return confused(outcomes, ROBUST, resamples=RESAMPLES if outcomes.num_classes <= MANY else RESAMPLES // 10)


def structure_tables(
    matrices: Mapping[str, Confused], classes: Mapping[str, Confused], tests: Sequence[Test] = ()
) -> list[Table]:
    """Tables of the symmetry of each matrix, and of the errors inside superclasses where there are any."""
    rows = [
        Row(data, [estimate_cell(matrix.pearson, 1, 2, tests=tests), estimate_cell(matrix.overlap, 1, 2)])
        for data, matrix in matrices.items()
    ]
    heads = ("data set", "correlation of M_ij with M_ji", "1 - sum |M - M^T| / sum (M + M^T)")
    note = "Small print: 95 % confidence intervals."
    tables = [Table("Symmetry of the confusion matrix", heads, rows, note)]
    rows = [
        Row(
            data,
            [
                estimate_cell(matrix.inside.share),
                *(estimate_cell(one, tests=tests) for one in (matrix.inside.excess, matrix.inside.contrast)),
            ],
        )
        for data, matrix in classes.items()
        if matrix.inside is not None
    ]
    heads_of_groups = ("data set", "errors inside, percent", "beyond chance, points", "mean rate inside minus across")
    return [*tables, *([Table("Errors inside the superclasses", heads_of_groups, rows, note)] if rows else [])]


def _similar_digits(matrix: IntArray) -> Test:
    """Test of C7: both rates between 6 and 8 exceed the mean rate of the other pairs of digits."""
    return Test(
        claim="kdd21/C7",
        estimand="rate 6 as 8, and rate 8 as 6, each minus the mean rate of all pairs",
        estimators=[interval(_beyond_mean(matrix, *pair), 100) for pair in ((SIX, EIGHT), (EIGHT, SIX))],
    )


def _beyond_mean(matrix: IntArray, truth: int, predicted: int) -> Estimate:
    """Rate of one pair of classes minus the mean rate of all pairs, with its interval for new images."""

    def difference(counts: FloatArray) -> FloatArray:
        rates = counts / counts.sum(axis=2, keepdims=True)
        pairs = rates[:, ~np.eye(len(matrix), dtype=np.bool_)]
        return np.asarray(rates[:, truth, predicted] - pairs.mean(axis=1))

    observed = difference(matrix[None].astype(np.float64))
    return percentiles(float(observed[0]), difference(resampled_rows(matrix)), ALPHA)


def symmetry_inside(matrix: IntArray, superclasses: Sequence[int]) -> Estimate:
    """Correlation of the rates M_ij and M_ji over the pairs of classes of one superclass, with its interval.

    Args:
        matrix: (C, C) confusion counts, label by prediction; every class has images.
        superclasses: (C,) the superclass of each class.
    """
    group = np.asarray(superclasses)
    first, second = np.triu_indices(len(group), k=1)
    same = group[first] == group[second]
    first, second = first[same], second[same]

    def correlation(counts: FloatArray) -> FloatArray:
        rates = counts / counts.sum(axis=2, keepdims=True)
        a, b = (side - side.mean(axis=1, keepdims=True) for side in (rates[:, first, second], rates[:, second, first]))
        return ratio((a * b).sum(axis=1), np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1)))

    observed = correlation(matrix[None].astype(np.float64))
    return percentiles(float(observed[0]), correlation(resampled_rows(matrix)), ALPHA)


class ConfusedLabels(ConfusionUnderAttack):
    """benz20 section 3.2: semantically similar classes are mutually confused."""

    def claims(
        self, audited: Sequence[DataSetAudits], matrices: Mapping[str, Confused], classes: Mapping[str, Confused]
    ) -> tuple[list[Test], dict[str, str]]:
        """Test benz20 C5: confusion is more frequent inside the superclasses, and mutual there.

        Args:
            audited: audits of the data sets.
            matrices: unused; the plan is about classes.
            classes: confusion matrices of the classes, by data set.
        """
        del matrices
        chosen = [one for one in audited if not one.unfit and classes[one.data].inside is not None]
        if not chosen:
            return [], {"benz20/C5": "no data set with superclasses gives a verdict"}
        found = {one.data: classes[one.data] for one in chosen}
        contrasts, symmetries = list[IntervalEstimator](), list[IntervalEstimator]()
        for each in found.values():
            assert each.inside is not None
            assert each.superclasses is not None
            contrasts.append(interval(each.inside.contrast, 100))
            symmetries.append(interval(symmetry_inside(each.matrix, each.superclasses)))
        return [
            Test(
                claim="benz20/C5",
                estimand="mean rate M_ij of pairs inside the superclasses minus that of pairs across, each data set",
                estimators=contrasts,
                covers=[f"{data}: {INSIDE}" for data in found],
            ),
            Test(
                claim="benz20/C5",
                estimand="correlation of M_ij with M_ji over the pairs inside the superclasses, each data set",
                estimators=symmetries,
                unit="",
                limits=CORRELATION,
                covers=[f"{data}: {MUTUAL}" for data in found],
            ),
        ], {}
