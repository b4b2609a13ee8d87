"""Agreement of attacks, defences and networks on the ranking of the classes.

kdd21 section 4.3 (claims on Table 1); benz20 section 3.2 (weak classes over networks and over optimisation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.matrix import matrix
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import Association, kendalls_w, spearman_matrix
from classwise.stats.resampling import percentiles, resampled_accuracies

_RESAMPLES = 400
"""The default number of resamples; each requires the correlations of all pairs."""


@dataclass(frozen=True, eq=False)
class Consistency(AnalysisResult):
    """Agreement of several rankings of the classes.

    Attributes:
        accuracies: a row for each ranking (attack of a model), a column for each class, fractions.
        correlations: (m, m) Spearman's correlations of the pairs of rows.
        lowest: minimum over the pairs; its interval is NaN if computed from accuracies instead of outcomes.
        mean: mean over the pairs, likewise.
        agreement: Kendall's W over all rows, corrected for ties, and its permutation p-value.
    """

    accuracies: pd.DataFrame
    correlations: FloatArray
    lowest: Estimate
    mean: Estimate
    agreement: Association

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
    correlations = spearman_matrix(values)
    pairs = _pairs(correlations)
    agreement = kendalls_w(values, permutations=permutations, seed=seed)
    unknown = (float("nan"), float("nan"))
    lowest, mean = Estimate(float(pairs.min()), *unknown), Estimate(float(pairs.mean()), *unknown)
    return Consistency(known, correlations, lowest, mean, agreement)


def ranked_alike(
    audits: Mapping[str, Outcomes | Sequence[Outcomes]],
    attacks: Mapping[str, str] | None = None,
    *,
    alpha: float = 0.05,
    resamples: int = _RESAMPLES,
    permutations: int = 9999,
    seed: int = 0,
) -> Consistency:
    """Compare the class rankings of several models under several attacks (kdd21 section 4.3).

    For the intervals the images of each model are resampled, jointly under its attacks. Rank correlations of noisy
    accuracies are biased towards 0, and resampling doubles the bias: the intervals are too low, and extended to their
    estimates where these lie outside.

    Args:
        audits: outcomes by the name of the model; several of a model, on different images, have different attacks, and
            an attack of more than one of them is that of the first.
        attacks: the attacks, as a mapping from the name in the outcomes to the name in the result; None: all attacks.
        alpha: 1 minus the coverage of the intervals, for new images.
        resamples: number of resamples of the images.
        permutations: number of permutations for the p-value.
        seed: seed of the resampling and the permutations.

    Raises:
        ClasswiseError: if there are fewer than two rankings, or the models have different classes.
    """
    rows, resampled, names = dict[str, FloatArray](), list[FloatArray](), None
    several = {model: [own] if isinstance(own, Outcomes) else own for model, own in audits.items()}
    for model, outcomes in ((model, table) for model, tables in several.items() for table in tables):
        if names is not None and names != outcomes.class_names:
            raise ClasswiseError(f"{model!r} and the first model have different classes; rankings require the same")
        names = outcomes.class_names
        chosen = attacks or {name: name for name in outcomes.attacks if name != "clean"}
        chosen = {attack: name for attack, name in chosen.items() if f"{model}, {name}" not in rows}
        if not chosen:
            continue
        rows |= {f"{model}, {name}": outcomes.counts(attack).accuracy for attack, name in chosen.items()}
        correct = np.stack([outcomes.correct(attack) for attack in chosen])
        options = {"resamples": resamples, "seed": seed + len(resampled)}
        resampled.append(resampled_accuracies(correct, outcomes.labels, len(names), **options))
    if names is None:
        raise ClasswiseError("audits: empty; pass outcomes of two models, or of one model under two attacks")
    plain = consistency(pd.DataFrame(rows, index=list(names)).T, permutations=permutations, seed=seed)
    present = [name in plain.accuracies.columns for name in names]
    pairs = _pairs(spearman_matrix(np.concatenate(resampled, axis=1)[:, :, present]))
    pairs = pairs[~np.isnan(pairs).all(axis=1)]  # of a resample with equal accuracies of all classes none is defined
    lowest = _with_estimate(percentiles(plain.lowest.value, np.nanmin(pairs, axis=1), alpha))
    mean = _with_estimate(percentiles(plain.mean.value, np.nanmean(pairs, axis=1), alpha))
    return Consistency(plain.accuracies, plain.correlations, lowest, mean, plain.agreement)


def _with_estimate(found: Estimate) -> Estimate:
    """Extend an interval to its estimate: the noise of resampling lowers correlations, and with them both ends."""
    return found._replace(low=min(found.low, found.value), high=max(found.high, found.value))


def _pairs(correlations: FloatArray) -> FloatArray:
    return correlations[(..., *np.triu_indices(correlations.shape[-1], k=1))]
