"""Agreement of attacks, defences and networks on the ranking of the classes.

kdd21 section 4.3 (claims on Table 1); benz20 section 3.2 (weak classes over networks and over optimisation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, check_alone
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.matrix import matrix
from classwise.reporting.svg import Drawing
from classwise.stats.correlations import Correlation, half_means, random_halves, rank_correlation
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import Association, kendalls_w, spearman_matrix


@dataclass(frozen=True, eq=False)
class Consistency(AnalysisResult):
    """Agreement of several rankings of the classes.

    Attributes:
        accuracies: a row for each ranking (attack of a model), a column for each class, fractions.
        correlations: (m, m) Spearman's correlations of the pairs of rows.
        agreement: Kendall's W over all rows, corrected for ties, and its permutation p-value. Rankings of the same
            images agree more than by chance even for equal classes, since they have the same sampling error.
        ranked: the correlations of the pairs (i, j), i < j, with their intervals; empty if computed from accuracies
            instead of outcomes.
        alpha: 1 minus the coverage of `lowest` and `mean`.
    """

    accuracies: pd.DataFrame
    correlations: FloatArray
    agreement: Association
    ranked: tuple[Correlation, ...] = ()
    alpha: float = 0.05

    @property
    def lowest(self) -> Estimate:
        """`lowest_at` the level ``alpha``."""
        return self.lowest_at(self.alpha)

    @property
    def mean(self) -> Estimate:
        """Mean over the pairs; the ends are the means of theirs, which is conservative. NaN ends without outcomes."""
        value = float(self._pairs.mean())
        if not self.ranked:
            return Estimate(value, math.nan, math.nan)
        _, low, high = np.mean([pair.estimate(self.alpha) for pair in self.ranked], axis=0)
        return Estimate(value, float(low), float(high))

    @property
    def _pairs(self) -> FloatArray:
        return self.correlations[np.triu_indices(len(self.correlations), k=1)]

    def lowest_at(self, alpha: float) -> Estimate:
        """Minimum over the pairs with an interval; its ends are NaN if computed from accuracies instead of outcomes.

        The minimum of the lower ends needs no correction for the number of pairs: it is too high only if that of the
        truly lowest pair is. The upper ends are simultaneous (Bonferroni).

        Args:
            alpha: 1 minus the coverage.
        """
        value = float(self._pairs.min())
        if not self.ranked:
            return Estimate(value, math.nan, math.nan)
        low = np.min([pair.estimate(alpha).low for pair in self.ranked])
        high = np.min([pair.estimate(alpha / len(self.ranked)).high for pair in self.ranked])
        return Estimate(value, float(low), float(high))

    @property
    def table(self) -> pd.DataFrame:
        """Spearman's correlations of the pairs of rankings."""
        names = list(self.accuracies.index)
        return pd.DataFrame(self.correlations, index=names, columns=names)

    @property
    def extremes(self) -> pd.DataFrame:
        """The lowest and the highest class of each row: columns ``worst`` and ``best``."""
        return pd.DataFrame({"worst": self.accuracies.idxmin(axis=1), "best": self.accuracies.idxmax(axis=1)})

    def figure(self) -> Drawing:
        """Matrix of Spearman's correlations of the pairs of rankings."""
        names = [str(name) for name in self.accuracies.index]
        title = "Rank correlation of the class accuracies"
        parts = [name.rpartition(", ") for name in names]
        if (
            len({(comma, attack) for _, comma, attack in parts}) == 1 and parts[0][1]
        ):  # a shared attack is in the title only
            names, title = [model for model, _, _ in parts], f"{title}, {parts[0][2]}"
        return matrix(title, names, self.correlations, "Spearman")


def consistency(accuracies: pd.DataFrame, *, permutations: int = 9999, seed: int = 0) -> Consistency:
    """Compare rankings of the classes from accuracies, such as the rows of a printed table.

    Args:
        accuracies: a row for each ranking, a column for each class; classes with NaN in any row are excluded.
        permutations: number of permutations for the p-value of Kendall's W.
        seed: seed of the permutations.

    Raises:
        ClasswiseError: if there are fewer than two rows or two classes.
    """
    known = accuracies.dropna(axis=1)
    values = known.to_numpy(dtype=np.float64)
    agreement = kendalls_w(values, permutations=permutations, seed=seed)
    return Consistency(known, spearman_matrix(values), agreement)


def ranked_alike(
    audits: Mapping[str, Outcomes | Sequence[Outcomes]],
    attacks: Mapping[str, str] | None = None,
    *,
    alpha: float = 0.05,
    permutations: int = 9999,
    seed: int = 0,
) -> Consistency:
    """Compare the class rankings of several models under several attacks (kdd21 section 4.3).

    The intervals are those of the correlations of the true accuracies (`classwise.stats.correlations`). Images with the
    same number are the same ones for all models.

    Args:
        audits: outcomes by the name of the model; several of a model, on different images, have different attacks, and
            an attack of more than one of them is that of the first.
        attacks: the attacks, as a mapping from the name in the outcomes to the name in the result; None: all attacks.
        alpha: 1 minus the coverage of the intervals, for new images.
        permutations: number of permutations for the p-value.
        seed: seed of the splits into halves and of the permutations.

    Raises:
        ClasswiseError: if there are fewer than two rankings, the models have different classes, or an attack skipped
            images in a cascade.
    """
    rows, halves, names = dict[str, FloatArray](), list[FloatArray](), None
    several = {model: [own] if isinstance(own, Outcomes) else own for model, own in audits.items()}
    for model, outcomes in ((model, table) for model, tables in several.items() for table in tables):
        if names is not None and names != outcomes.class_names:
            raise ClasswiseError(f"{model!r} and the first model have different classes; rankings require the same")
        names = outcomes.class_names
        chosen = attacks or {name: name for name in outcomes.attacks if name != "clean"}
        chosen = {attack: name for attack, name in chosen.items() if f"{model}, {name}" not in rows}
        if not chosen:
            continue
        for attack in chosen:
            check_alone(outcomes, attack)
        rows |= {f"{model}, {name}": outcomes.counts(attack).accuracy for attack, name in chosen.items()}
        correct = np.stack([outcomes.correct(attack) for attack in chosen])
        splits = random_halves(outcomes.labels, outcomes.index, seed)
        halves.append(half_means(correct, outcomes.labels, len(names), splits))
    if names is None:
        raise ClasswiseError("audits: empty; pass outcomes of two models, or of one model under two attacks")
    plain = consistency(pd.DataFrame(rows, index=list(names)).T, permutations=permutations, seed=seed)
    present = np.isin(names, plain.accuracies.columns)
    values, split = plain.accuracies.to_numpy(dtype=np.float64), np.concatenate(halves, axis=2)[..., present]
    pairs = (list(pair) for pair in combinations(range(len(values)), 2))
    ranked = tuple(rank_correlation(values[pair], split[:, :, pair]) for pair in pairs)
    return replace(plain, ranked=ranked, alpha=alpha)
