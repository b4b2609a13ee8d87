from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from classwise.analysis.confusion import confused
from classwise.auditing.outcomes import Outcomes
from classwise.errors import UserError
from classwise.stats.confusion import confusion_rates, superclass_leakage, symmetry
from tests.analysis.tables import CLASSES, NAMES, SUPERCLASSES, outcomes


def test_the_matrix_by_a_loop() -> None:
    table = outcomes()
    found = confused(table, "strong", resamples=50)
    matrix = np.zeros((CLASSES, CLASSES), dtype=int)
    for _, row in table.rows("strong").iterrows():
        matrix[row["label"], row["prediction"]] += 1
    assert (found.matrix == matrix).all()
    assert list(found.table.index) == [NAMES[label] for label in (0, 2, 5, 1, 3, 4)]
    assert found.table.loc["b", "e"] == matrix[1, 4] / matrix[1].sum()


def test_symmetry_and_leakage_by_their_sums() -> None:
    found = confused(outcomes(), "strong", resamples=400)
    rates = confusion_rates(found.matrix)
    pairs = [(rates[i, j], rates[j, i]) for i in range(CLASSES) for j in range(i + 1, CLASSES)]
    assert found.pearson.value == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
    assert found.overlap.value == pytest.approx(1 - sum(abs(a - b) for a, b in pairs) / sum(a + b for a, b in pairs))
    errors = [(i, j, found.matrix[i, j]) for i in range(CLASSES) for j in range(CLASSES) if i != j]
    total = sum(count for *_, count in errors)
    inside = sum(count for i, j, count in errors if SUPERCLASSES[i] == SUPERCLASSES[j]) / total
    assert found.inside is not None
    assert found.inside.share.value == pytest.approx(inside)
    assert found.inside.chance == pytest.approx(2 / 5)  # three classes each
    assert found.inside.share.low < inside < found.inside.share.high
    assert found.inside.excess.low < 0 < found.inside.excess.high  # the errors fall at random


def test_resamples_are_measured_as_the_matrix_is() -> None:
    """A resample without any freedom gives back the value itself."""
    matrix = [[4, 0, 0], [0, 0, 3], [0, 5, 0]]
    labels, predictions = np.repeat(np.indices((3, 3)).reshape(2, -1), np.ravel(matrix), axis=1)
    table = Outcomes.from_predictions(labels, predictions, superclasses=(0, 1, 1), superclass_names=("x", "y"))
    found = confused(table, "clean", resamples=3)
    assert found.pearson == pytest.approx((symmetry(confusion_rates(matrix)).pearson,) * 3)
    assert found.overlap == pytest.approx((1.0,) * 3)
    assert found.inside is not None
    assert found.inside.share == pytest.approx((superclass_leakage(matrix, (0, 1, 1)).inside,) * 3)


def test_breaking_images_are_refused() -> None:
    table = outcomes()
    stopped = Outcomes(table.frame, dataclasses.replace(table.meta, stop="broken"))
    with pytest.raises(UserError, match="stop='never'"):
        confused(stopped, "strong")
    assert confused(stopped, "clean", resamples=2).matrix.sum() == len(table)
