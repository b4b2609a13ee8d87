"""The interval of a selected model covers its true accuracy: exact probabilities, and identities of its ends."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from scipy import stats

from classwise.stats.intervals import clopper_pearson
from classwise.stats.selection import selected_interval
from tests.refusals import check_refused

IMAGES = 12


def interval_of(correct: tuple[int, ...], model: int, alpha: float) -> tuple[float, float]:
    low, high = clopper_pearson(correct[model], IMAGES, alpha)
    return float(low), float(high)


HARD = interval_of((9,), 0, 0.05 / 3)[0] - 1e-9
"""An accuracy at which the corrected lower end of a single model fails most often."""


def errors(truth: tuple[float, ...], *, corrected: bool) -> tuple[float, float]:
    """Exact probabilities that the lower end of the best model is above its truth, and the upper end below it."""
    chances = [stats.binom.pmf(np.arange(IMAGES + 1), IMAGES, accuracy) for accuracy in truth]
    above = below = 0.0
    for correct in itertools.product(range(IMAGES + 1), repeat=len(truth)):
        best = int(np.argmax(correct))
        if corrected:
            low, high = selected_interval(partial(interval_of, correct), len(truth), best)
        else:
            low, high = interval_of(correct, best, 0.05)
        chance = float(np.prod([chances[model][number] for model, number in enumerate(correct)]))
        above += chance * (low > truth[best])
        below += chance * (high < truth[best])
    return above, below


@pytest.mark.slow
@pytest.mark.parametrize("truth", [(HARD, HARD, HARD), (0.5, 0.5, 0.5), (0.7, 0.6, 0.5), (0.9, 0.1, 0.9)])
def test_each_end_for_the_best_of_three_fails_at_most_at_its_level(truth: tuple[float, ...]) -> None:
    above, below = errors(truth, corrected=True)
    assert above <= 0.025
    assert below <= 0.025


@pytest.mark.slow
def test_the_interval_of_one_model_fails_too_often_for_the_best_of_three() -> None:
    hard = interval_of((9,), 0, 0.05)[0] - 1e-9  # where the lower end of a single model fails most often
    assert errors((hard,) * 3, corrected=False)[0] > 0.06


def test_the_upper_end_of_a_highest_number_is_not_corrected() -> None:
    correct = (3, 9, 7)

    def interval(model: int, alpha: float) -> tuple[float, float]:
        return interval_of(correct, model, alpha)

    assert selected_interval(interval, 3, 1) == (interval(1, 0.05 / 3)[0], interval(1, 0.05)[1])
    assert selected_interval(interval, 3, 2) == (interval(2, 0.05 / 3)[0], interval(1, 0.05)[1])  # another rule
    assert selected_interval(interval, 3, 1, criterion=False) == interval(1, 0.05 / 3)
    assert selected_interval(interval, 1, 0) == interval(0, 0.05)


def test_the_selected_model_is_one_of_the_models() -> None:
    check_refused(
        "selected = 3: must be a position from 0 to 2", selected_interval, lambda model, alpha: (0.0, 1.0), 3, 3
    )
