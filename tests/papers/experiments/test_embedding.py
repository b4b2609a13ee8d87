"""Chance-corrected purity of neighbourhoods."""

from __future__ import annotations

import numpy as np
import pytest

from classwise.papers.experiments.class_wise import beyond_chance
from classwise.stats.intervals import Estimate


def test_beyond_chance_equals_cohens_kappa() -> None:
    """Random neighbourhoods give 0, pure ones 1, others the kappa of image and neighbour."""
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(4), 5000)
    other = np.where(rng.random(len(own)) < 0.4, own, rng.integers(4, size=len(own)))
    found = beyond_chance(Estimate(float((own == other).mean()), 0.25, 1.0), 0.25)
    assert found.value == pytest.approx(cohen_kappa_score(own, other), abs=0.005)
    assert (found.low, found.high) == (0, 1)
