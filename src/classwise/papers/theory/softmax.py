"""Softmax at an inverse temperature, and its gradient with respect to the classifier (iclr21, Appendix G, Eq. 3-4).

The printed gradient, (P_i - 1) z for the label and P_i z for the others, lacks the factor 1/T: the logits are
w_i z / T, so the chain rule gives (P_i - [i = y]) z / T. At 1/T = 1 the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.settings.docstrings import docstring
from classwise.papers.theory.toy_model import Statement
from classwise.stats.counts import FloatArray

STEP = 1e-5
"""Step of the central differences, in units of the weights."""
AGREE = 1e-7
"""Tolerance of a gradient, in units of the features; central differences have an error of order STEP squared."""
NEAR = 1e-6
"""Tolerance of a probability against its limit."""


@dataclass(frozen=True, eq=False)
class Case:
    """A linear classifier and the features of one image.

    Attributes:
        features: z, (d,).
        weights: (C, d), a row for each class.
        label: label of the image, 0 .. C-1.
        inverse: 1/T.
    """

    features: FloatArray
    weights: FloatArray
    label: int
    inverse: float

    @property
    def logits(self) -> FloatArray:
        """Logits w_i z before the temperature, (C,)."""
        return self.weights @ self.features


def probabilities(logits: ArrayLike, inverse: float) -> FloatArray:
    """Softmax P of logits / T along the last axis.

    Args:
        logits: (..., C).
        inverse: 1/T.
    """
    scaled = np.asarray(logits, dtype=np.float64) * inverse
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def gradient(case: Case) -> FloatArray:
    """Gradient of the cross-entropy with respect to the weights, (C, d): (P_i - [i = y]) z / T."""
    return case.inverse * printed_gradient(case)


def printed_gradient(case: Case) -> FloatArray:
    """Gradient as printed in iclr21 (Eq. 4), without the factor 1/T, (C, d)."""
    return np.outer(_residual(case), case.features)


def grid(
    classes: Sequence[int] = (3, 10),
    features: Sequence[int] = (2, 16),
    inverses: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 5.0, 15.0),
    samples: int = 5,
    seed: int = 0,
) -> list[Case]:
    """Random cases: normal features of unit expected squared norm, and standard normal weights."""
    numbers = np.random.default_rng(seed)
    return [
        Case(
            numbers.standard_normal(d) / np.sqrt(d),
            numbers.standard_normal((c, d)),
            int(numbers.integers(c)),
            inverse,
        )
        for c in classes
        for d in features
        for inverse in inverses
        for _ in range(samples)
    ]


def closed_form(cases: Iterable[Case]) -> Statement:
    """The gradient with the factor 1/T agrees with central differences."""
    return _compared("iclr21/Eq4 with 1/T", closed_form, [(case, gradient(case)) for case in cases])


def as_printed(cases: Iterable[Case]) -> Statement:
    """The printed gradient, without 1/T, agrees with central differences."""
    return _compared("iclr21/Eq4 as printed", as_printed, [(case, printed_gradient(case)) for case in cases])


def limits(cases: Iterable[Case]) -> Statement:
    """The probability of the largest logit tends to 1 as 1/T grows; all tend to 1/C as 1/T tends to 0."""
    count, failures = 0, []
    for case in cases:
        logits = case.logits
        best, second = np.sort(logits)[:-3:-1]
        size = len(logits)
        cold = probabilities(logits, float(np.log(size / NEAR) / (best - second)))
        hot = probabilities(logits, NEAR / float(np.ptp(logits)))
        count += 2
        if not cold[logits.argmax()] > 1 - NEAR:
            failures.append(f"{size} classes, 1/T large: {cold.max()}")
        if not np.abs(hot - 1 / size).max() < NEAR:
            failures.append(f"{size} classes, 1/T small: {hot}")
    return Statement("limits of P", docstring(limits), count, tuple(failures))


def _residual(case: Case) -> FloatArray:
    """P - e_y, (C,)."""
    residual = probabilities(case.logits, case.inverse)
    residual[case.label] -= 1
    return residual


def _loss(weights: FloatArray, case: Case) -> float:
    scaled = case.inverse * (weights @ case.features)
    return float(np.logaddexp.reduce(scaled) - scaled[case.label])


def _differences(case: Case) -> FloatArray:
    """Gradient by central differences, (C, d)."""
    estimate = np.empty_like(case.weights)
    for index in np.ndindex(estimate.shape):
        shift = np.zeros_like(estimate)
        shift[index] = STEP
        estimate[index] = (_loss(case.weights + shift, case) - _loss(case.weights - shift, case)) / (2 * STEP)
    return estimate


def _compared(name: str, statement: object, gradients: Sequence[tuple[Case, FloatArray]]) -> Statement:
    failures = []
    for case, value in gradients:
        error = float(np.abs(value - _differences(case)).max())
        if not error < AGREE * max(1.0, case.inverse**3):
            failures.append(f"{value.shape} at 1/T = {case.inverse:g}: off by {error:.1e}")
    return Statement(name, docstring(statement), len(gradients), tuple(failures))
