"""Small tables of outcomes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.counts import FloatArray, IntArray

CLASSES = 6
NAMES = tuple("abcdef")
SUPERCLASSES = (0, 1, 0, 1, 1, 0)


def confidences(images: int, label: IntArray, strength: float, seed: int) -> FloatArray:
    """Softmax outputs that favour the label."""
    logits = np.random.default_rng(seed).normal(size=(images, CLASSES))
    logits[np.arange(images), label] += strength * (1 + label % 3)
    shares = np.exp(logits)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def outcomes(images: int = 240, seed: int = 0) -> Outcomes:
    """Outcomes on clean images and under two attacks, the second stronger; classes 0 and 3 are vulnerable."""
    labels = np.random.default_rng(seed).integers(0, CLASSES, images)
    shares = {
        name: confidences(images, labels, strength, seed + 1)
        for name, strength in {"clean": 2.0, "weak": 1.2, "strong": 0.8}.items()
    }
    predictions = {name: values.argmax(axis=1) for name, values in shares.items()}
    clean = predictions.pop("clean")
    return Outcomes.from_predictions(
        labels,
        clean,
        predictions,
        NAMES,
        shares,
        superclasses=SUPERCLASSES,
        superclass_names=("first", "second"),
    )


def same_frame(first: pd.DataFrame, second: pd.DataFrame) -> None:
    """Check that two tables are equal to the bit."""
    pd.testing.assert_frame_equal(first, second, check_exact=True)
