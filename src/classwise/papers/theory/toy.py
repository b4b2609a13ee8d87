"""The toy model: one robust feature, d weak ones, and a classifier with a single weight (cfa23 section 2).

The label y is -1 or +1. The robust feature is y with probability p_y and -y otherwise; the d others are normal with
mean eta y and a given variance. The classifier is sign(x_1 + (x_2 + ... + x_{d+1}) / w) with w > 0: a large w relies
on the robust feature. An attack of radius epsilon moves each weak feature against its label; epsilon < 1 never flips
the robust feature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import FloatArray

EASY, HARD = 1, -1
"""The labels: the robust feature is more reliable for class +1."""


class Sample(NamedTuple):
    """Points of the toy model: ``x`` (N, d + 1), the robust feature first, and ``y`` (N,) of -1 and +1."""

    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, kw_only=True)
class ToyModel:
    """Distribution of the data, with closed forms of accuracies and optimal weights.

    For its Figure 1 the paper gives d and the variance; p and eta are not available, so their defaults are ours.

    Args:
        features: d, the number of weak features, at least 1.
        eta: 0 < eta < 1/2; the weak features have mean eta y.
        variance: variance of each weak feature, above 0.
        easy: p_{+1}, the probability that the robust feature equals the label in class +1.
        hard: p_{-1}, the same for class -1, with 1/2 < hard < easy < 1.

    Raises:
        ClasswiseError: if a value is out of range.
    """

    features: int = 1
    eta: float = 0.4
    variance: float = 0.6
    easy: float = 0.85
    hard: float = 0.70

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ClasswiseError(f"toy model: features = {self.features}; must be at least 1")
        if not 0 < self.eta < 0.5:
            raise ClasswiseError(f"toy model: eta = {self.eta}; must be between 0 and 1/2")
        if not self.variance > 0:
            raise ClasswiseError(f"toy model: variance = {self.variance}; must be above 0")
        if not 0.5 < self.hard < self.easy < 1:
            raise ClasswiseError(
                f"toy model: hard = {self.hard}, easy = {self.easy}; must satisfy 1/2 < hard < easy < 1"
            )

    @property
    def spread(self) -> float:
        """q, the standard deviation of the sum of the weak features: sigma sqrt(d)."""
        return math.sqrt(self.variance * self.features)

    @property
    def evaluation_radius(self) -> float:
        """2 eta, the radius at which the paper measures robustness: the attacked weak features have mean -eta y."""
        return 2 * self.eta

    def reliability(self, label: int) -> float:
        """Reliability p_y of the robust feature for class -1 or +1."""
        return self.easy if label == EASY else self.hard

    def shift(self, epsilon: float) -> float:
        """m, the mean of y times the sum of the weak features under attack: d (eta - epsilon)."""
        return self.features * (self.eta - epsilon)

    def accuracy(self, label: int, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy of a class under an attack of radius ``epsilon``; clean accuracy at 0.

        p_y Phi((m + w)/q) + (1 - p_y) Phi((m - w)/q), with `shift` m and `spread` q (cfa23 Appendix A, re-derived).

        Args:
            label: -1 or +1.
            weight: w > 0, any shape.
            epsilon: radius of the attack.

        Returns:
            Fractions in the shape of ``weight``.
        """
        w = np.asarray(weight, dtype=np.float64)
        p, m, q = self.reliability(label), self.shift(epsilon), self.spread
        return np.asarray(p * special.ndtr((m + w) / q) + (1 - p) * special.ndtr((m - w) / q))

    def average(self, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy over both classes, which are equally frequent."""
        return np.asarray((self.accuracy(EASY, weight, epsilon) + self.accuracy(HARD, weight, epsilon)) / 2)

    def gap(self, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy of the easy class minus that of the hard class, without cancellation.

        (p_{+1} - p_{-1}) (Phi((m + w)/q) - Phi((m - w)/q)). It is equal at epsilon = 0 and at 2 eta.
        """
        w = np.asarray(weight, dtype=np.float64)
        low, high = (self.shift(epsilon) - w) / self.spread, (self.shift(epsilon) + w) / self.spread
        # Values of Phi near 1 are subtracted through their complements.
        mirrored = low > 0
        low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
        return np.asarray((self.easy - self.hard) * (special.ndtr(high) - special.ndtr(low)))

    def slopes(self, label: int, weight: ArrayLike, epsilon: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the two densities whose difference is the derivative of `accuracy` in w.

        Far from the mean the densities underflow, but their logarithms can still be compared.

        Returns:
            log p_y phi((m + w)/q)/q and log (1 - p_y) phi((m - w)/q)/q, each in the shape of ``weight``.
        """
        w = np.asarray(weight, dtype=np.float64)
        p, m, q = self.reliability(label), self.shift(epsilon), self.spread
        constant = -math.log(q * math.sqrt(2 * math.pi))
        gain, loss = (-(((m + side * w) / q) ** 2) / 2 + constant for side in (1, -1))
        return np.asarray(math.log(p) + gain), np.asarray(math.log1p(-p) + loss)

    def best_weight(self, epsilon: float) -> float:
        """Optimal weight w* of adversarial training at radius ``epsilon``, which maximises `average` there.

        sigma^2 ln(p/(1-p)) / (2 (eta - epsilon)) with p the mean of the two p_y; infinite at epsilon = eta.

        Raises:
            ClasswiseError: if ``epsilon`` is not in [0, eta].
        """
        if not 0 <= epsilon <= self.eta:
            raise ClasswiseError(f"toy model: training radius epsilon = {epsilon}; must be in [0, eta = {self.eta}]")
        return self._optimum((self.easy + self.hard) / 2, self.eta - epsilon)

    def best_class_weight(self, label: int) -> float:
        """Weight w*_y that maximises the clean accuracy of a class: sigma^2 ln(p_y/(1-p_y)) / (2 eta)."""
        return self._optimum(self.reliability(label), self.eta)

    def _optimum(self, p: float, distance: float) -> float:
        return self.variance * math.log(p / (1 - p)) / (2 * distance) if distance > 0 else math.inf

    def sample(self, per_class: int, seed: int = 0) -> Sample:
        """Draw ``per_class`` random points of each class, class -1 first.

        Raises:
            ClasswiseError: if ``per_class`` is below 1.
        """
        if per_class < 1:
            raise ClasswiseError(f"toy model: per_class = {per_class}; must be at least 1")
        random = np.random.default_rng(seed)
        y = np.repeat([float(HARD), float(EASY)], per_class)
        agrees = random.random(len(y)) < np.where(y == EASY, self.easy, self.hard)
        weak = random.normal(self.eta * y[:, None], math.sqrt(self.variance), size=(len(y), self.features))
        return Sample(np.column_stack([np.where(agrees, y, -y), weak]), y)


def classify(x: ArrayLike, weight: float) -> FloatArray:
    """Classify points (N, d + 1) by sign(x_1 + (x_2 + ... + x_{d+1}) / w); (N,) of -1 and +1."""
    points = np.asarray(x, dtype=np.float64)
    return np.where(points[:, 0] + points[:, 1:].sum(axis=1) / weight > 0, 1.0, -1.0)


def attacked(sample: Sample, epsilon: float) -> Sample:
    """Apply the optimal attack: shift every weak feature by ``epsilon`` against the label."""
    moved = sample.x.copy()
    moved[:, 1:] -= epsilon * sample.y[:, None]
    return Sample(moved, sample.y)
