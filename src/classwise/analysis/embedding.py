"""t-SNE of the features of clean and attacked images, and the purity of their neighbourhoods.

iclr21 Appendix D, Figure 8: t-SNE separates the two superclasses of CIFAR-10 and mixes the animals. The figure is only
an illustration; the purity is computed from the nearest neighbours in feature space.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting import formatting
from classwise.reporting.figures.points import Cloud, clouds
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray, IntArray, class_labels, place_in_class
from classwise.stats.intervals import Estimate
from classwise.stats.resampling import share_of_dependent

NEIGHBOURS = 10
GROUPS = 10
"""Number of groups of images that are left out in turn for the intervals."""
_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Embedding(AnalysisResult):
    """Images embedded in the plane.

    Attributes:
        attack: the attack of the attacked images.
        class_names: (C,) names.
        purity: a row for each kind and level (``class``, ``superclass``): ``purity``, the mean share of an image's 10
            nearest neighbours of its kind in feature space that are of its class or superclass; ``low`` and ``high``
            (interval for as many new images, see `share`); ``chance``, that share among all other images.
        points: a row for each image and kind: ``index``, ``label``, ``kind`` (``clean`` or the attack), ``x``, ``y``,
            and ``purity``, the share of the image's neighbours that are of its class.
        by_class: purity of each class at the level ``class``: class names (rows) by kinds (columns).
        shares: for each kind and level, (1 + `GROUPS`, N): the share of each image's neighbours that are of its class
            or superclass, among all images and without each group of images; NaN for the images that are left out.
    """

    attack: str
    class_names: tuple[str, ...]
    purity: pd.DataFrame
    points: pd.DataFrame
    by_class: pd.DataFrame
    shares: Mapping[tuple[str, str], FloatArray]

    def share(
        self, kind: str, level: str = "class", classes: Collection[int] | None = None, alpha: float = 0.05
    ) -> Estimate:
        """Mean purity of the images of some classes, with its interval for as many new images.

        Images are each other's neighbours, so their shares are dependent: the interval comes from the purities without
        each of ten groups of images (`share_of_dependent`).

        Args:
            kind: ``clean`` or the attack.
            level: ``class`` or ``superclass``.
            classes: numbers of the classes; None: all.
            alpha: 1 minus the coverage.
        """
        labels = self.points.loc[self.points["kind"] == kind, "label"]
        chosen = np.ones(len(labels), np.bool_) if classes is None else labels.isin(classes).to_numpy()
        return mean_share(self.shares[kind, level][:, chosen], alpha)

    def figure(self) -> Drawing:
        """iclr21 Figure 8: t-SNE of the features of clean and attacked images."""
        panels = [
            Cloud(str(kind), frame["x"].to_numpy(), frame["y"].to_numpy(), frame["label"].to_numpy())
            for kind, frame in self.points.groupby("kind", sort=False)
        ]
        purity = self.purity.xs("class", level="level")["purity"]
        note = "; ".join(
            f"{kind}: {formatting.percent(float(share))} of neighbours in the class" for kind, share in purity.items()
        )
        return clouds("Features by t-SNE", panels, self.class_names, range(len(self.class_names)), note)


def embedding(audit: Audit, attack: str, *, per_class: int = 200, perplexity: float = 30.0, seed: int = 0) -> Embedding:
    """Embed the features of clean and attacked images in the plane by t-SNE (iclr21 Figure 8).

    Args:
        audit: an audit with ``save="features"``.
        attack: name of the attack; use ``early_stop=False`` for its last iterates.
        per_class: maximal number of images of each class; the first ones are used.
        perplexity: perplexity of t-SNE, at most a third of the number of images minus 1.
        seed: seed of t-SNE.

    Raises:
        ClasswiseError: if the audit has no saved features.
    """
    outcomes = audit.outcomes
    audit.outcomes.require_complete()
    index, clean = audit.artifacts.get("features", CLEAN)
    index_attacked, attacked = audit.artifacts.get("features", attack)
    shared, rows, rows_attacked = np.intersect1d(index, index_attacked, return_indices=True)
    labels = outcomes.labels[np.searchsorted(outcomes.index, shared)]
    return embedding_of(
        clean[rows],
        attacked[rows_attacked],
        labels,
        outcomes.class_names,
        attack=attack,
        index=shared,
        superclasses=outcomes.meta.superclasses,
        per_class=per_class,
        perplexity=perplexity,
        seed=seed,
    )


def embedding_of(
    clean: ArrayLike,
    attacked: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    *,
    attack: str = "attack",
    index: ArrayLike | None = None,
    superclasses: Sequence[int] | None = None,
    per_class: int = 200,
    components: int = 50,
    perplexity: float = 30.0,
    neighbours: int = NEIGHBOURS,
    alpha: float = 0.05,
    seed: int = 0,
) -> Embedding:
    """`embedding` of arrays of features.

    Args:
        clean: (N, F) features of the clean images.
        attacked: (N, F) features of the attacked images, in the same order.
        labels: (N,) integers in 0 .. C-1.
        class_names: (C,) names.
        attack: name of the kind of the attacked images.
        index: (N,) index of each image; None: 0 .. N-1.
        superclasses: the superclass of each class, or None.
        per_class: maximal number of images of each class; the first ones are used.
        components: number of principal components that are passed to t-SNE.
        perplexity: perplexity of t-SNE, at most a third of the number of images minus 1.
        neighbours: number of nearest neighbours for the purity.
        alpha: 1 minus the coverage of the intervals.
        seed: seed of t-SNE.

    Raises:
        ClasswiseError: if the shapes do not match, or there are too few images for the purity.
    """
    first, second = np.asarray(clean, dtype=np.float64), np.asarray(attacked, dtype=np.float64)
    truth = class_labels(labels, len(class_names))
    if first.ndim != 2 or first.shape != second.shape or len(first) != len(truth):
        raise ClasswiseError(
            f"features: expected two arrays of shape ({len(truth)}, F), got {first.shape} and {second.shape}; "
            "flatten features with more dimensions"
        )
    numbers = np.arange(len(truth)) if index is None else np.asarray(index)
    chosen = place_in_class(truth) < per_class
    truth, numbers, kinds = truth[chosen], numbers[chosen], {CLEAN: first[chosen], attack: second[chosen]}
    both = np.concatenate(list(kinds.values()))
    plane = _plane(both, components, perplexity, seed)
    points = pd.DataFrame(
        {
            "index": np.tile(numbers, 2),
            "label": np.tile(truth, 2),
            "kind": np.repeat(list(kinds), len(truth)),
            "x": plane[:, 0],
            "y": plane[:, 1],
        }
    )
    levels = {"class": truth}
    if superclasses is not None:
        levels["superclass"] = np.asarray(superclasses, dtype=np.int64)[truth]
    rows, by_class, shares = list[dict[str, object]](), dict[str, FloatArray](), dict[tuple[str, str], FloatArray]()
    for kind, features in kinds.items():
        for level, group in levels.items():
            share = shares[kind, level] = neighbour_shares(features, group, neighbours)
            size = np.bincount(group)
            chance = float((size * (size - 1)).sum() / (len(group) * (len(group) - 1)))
            ends = dict(zip(("purity", "low", "high"), mean_share(share, alpha), strict=True))
            rows.append({"kind": kind, "level": level, **ends, "chance": chance})
            if level == "class":
                points.loc[points["kind"] == kind, "purity"] = share[0]
                by_class[kind] = np.array(
                    [share[0, truth == c].mean() if (truth == c).any() else np.nan for c in range(len(class_names))]
                )
    purity = pd.DataFrame(rows).set_index(["kind", "level"])
    frame = pd.DataFrame(by_class, index=pd.Index(list(class_names), name="class"))
    return Embedding(attack, tuple(class_names), purity, points, frame, shares)


def neighbour_shares(features: FloatArray, labels: IntArray, neighbours: int = NEIGHBOURS) -> FloatArray:
    """The share of each image's nearest neighbours that have its label, for `mean_share`.

    Args:
        features: (N, F).
        labels: (N,) numbers of classes or superclasses.
        neighbours: number of nearest neighbours.

    Returns:
        (1 + `GROUPS`, N): among all images, then without each of ten groups of images, which are equal shares of each
        label; NaN for the images of the group.

    Raises:
        ClasswiseError: if there are not more images outside a group than neighbours.
    """
    groups = place_in_class(labels) % GROUPS
    if len(labels) - np.bincount(groups).max(initial=0) <= neighbours:
        raise ClasswiseError(f"{len(labels)} images: the purity of {neighbours} neighbours requires more images")
    squares = (features**2).sum(axis=1)
    shares = np.full((1 + GROUPS, len(features)), np.nan)
    for start in range(0, len(features), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(features)))
        distance = squares[rows, None] + squares[None] - 2 * features[rows] @ features.T
        distance[np.arange(len(rows)), rows] = np.inf
        for left_out in range(-1, GROUPS):
            kept, own = np.flatnonzero(groups != left_out), groups[rows] != left_out
            near = np.argpartition(distance[np.ix_(own, kept)], neighbours - 1, axis=1)[:, :neighbours]
            shares[left_out + 1, rows[own]] = (labels[kept[near]] == labels[rows[own], None]).mean(axis=1)
    return shares


def mean_share(shares: FloatArray, alpha: float = 0.05) -> Estimate:
    """Mean of `neighbour_shares`, of all images or of some (columns), with its interval for as many new images."""
    return share_of_dependent(shares[0], np.nanmean(shares[1:], axis=1), alpha)


def _plane(features: FloatArray, components: int, perplexity: float, seed: int) -> FloatArray:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    reduced = features
    if features.shape[1] > components and len(features) > components:
        reduced = PCA(components, svd_solver="full").fit_transform(features)
    perplexity = min(perplexity, (len(features) - 1) / 3)
    plane: FloatArray = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(reduced)
    return plane
