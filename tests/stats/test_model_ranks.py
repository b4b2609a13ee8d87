"""Ranks of models: joint tests of all pairs, transitive conclusions, shared ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats.counts import BoolArray, ClassCounts, IntArray, PairedCounts
from classwise.stats.intervals import lowest_interval
from classwise.stats.metrics import worst_class
from classwise.stats.model_ranks import Verdicts, worst_class_ranks
from classwise.stats.paired import difference_of_minima

LABELS = np.arange(400) % 2


def model(correct: BoolArray, labels: IntArray = LABELS) -> Verdicts:
    return Verdicts(ClassCounts.from_labels(labels, correct, int(labels.max()) + 1), correct)


def first_correct(images: int) -> BoolArray:
    """Correct on the first images: two such models differ on the images between their numbers only."""
    return np.arange(len(LABELS)) < images


def unpaired(*correct: int) -> list[Verdicts]:
    """Models of two classes of 500 images, the second of which has 90 % accuracy."""
    return [Verdicts(ClassCounts(np.array([500, 500]), np.array([worst, 450]))) for worst in correct]


def test_one_model_is_the_first() -> None:
    ranks = worst_class_ranks([model(first_correct(10))], LABELS)
    assert (ranks.low.tolist(), ranks.high.tolist(), ranks.better.tolist()) == ([1], [1], [[False]])


def test_equal_models_share_the_rank() -> None:
    ranks = worst_class_ranks([model(first_correct(200))] * 3, LABELS)
    assert ranks.low.tolist() == [1, 1, 1]
    assert ranks.high.tolist() == [3, 3, 3]


def test_pairing_separates_models_that_differ_on_few_images() -> None:
    models = [model(first_correct(200)), model(first_correct(240))]
    assert worst_class_ranks(models, LABELS).low.tolist() == [2, 1]
    without = [Verdicts(verdicts.counts) for verdicts in models]
    assert worst_class_ranks(without, LABELS).low.tolist() == [1, 1]
    assert worst_class_ranks([models[0], without[1]], LABELS).low.tolist() == [1, 1]


def test_intervals_of_all_pairs_are_joint() -> None:
    """A difference that is significant on its own is not one of three at the same joint confidence."""

    def low(images: int, alpha: float) -> float:
        pairs = PairedCounts.from_labels(LABELS, first_correct(images), first_correct(200), 2)
        return difference_of_minima(pairs, alpha).low

    margin = next(images for images in range(200, 300, 2) if low(images, 0.05) > 0)
    assert low(margin, 0.05 / 3) <= 0
    two = [model(first_correct(margin)), model(first_correct(200))]
    assert worst_class_ranks(two, LABELS).low.tolist() == [1, 2]
    assert worst_class_ranks([*two, two[1]], LABELS).low.tolist() == [1, 1, 1]


def test_without_outcomes_both_intervals_share_the_error() -> None:
    ends = [lowest_interval(verdicts.counts, 0.025) for verdicts in unpaired(*range(200, 300))]
    low = next(200 + place for place, end in enumerate(ends) if end[0] > ends[0][1])
    assert worst_class_ranks(unpaired(low, 200)).low.tolist() == [1, 2]
    assert worst_class_ranks(unpaired(low - 1, 200)).low.tolist() == [1, 1]


def test_a_conclusion_through_a_third_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """a > b by pairing and b > c by pairing, but a and c have no common pairing: a > c follows."""
    labels = np.zeros(200, dtype=np.int64)
    place = np.arange(200)
    found = iter([(0.0, 0.1, 0.2), (0.0, -0.1, 0.3), (0.0, 0.1, 0.2)])  # a-b, a-c, b-c
    monkeypatch.setattr("classwise.stats.model_ranks.difference_of_minima", lambda *_: next(found))
    ranks = worst_class_ranks([model(place < images, labels) for images in (120, 110, 100)], labels)
    assert ranks.low.tolist() == [1, 2, 3]
    assert ranks.high.tolist() == [1, 2, 3]


@st.composite
def boards(draw: st.DrawFn) -> tuple[list[Verdicts], IntArray]:
    classes, per_class = draw(st.integers(1, 3)), draw(st.integers(5, 60))
    labels = np.arange(classes * per_class) % classes
    seed = np.random.default_rng(draw(st.integers(0, 10_000)))
    shares = draw(st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.7, 1.0]), min_size=1, max_size=5))
    common = seed.random(len(labels))
    models = []
    for share in shares:
        correct = (common if draw(st.booleans()) else seed.random(len(labels))) < share
        verdicts = model(correct, labels)
        models.append(verdicts if draw(st.booleans()) else Verdicts(verdicts.counts))
    return models, labels


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(boards())
def test_ranks_are_a_strict_order_with_ties(made: tuple[list[Verdicts], IntArray]) -> None:
    models, labels = made
    ranks = worst_class_ranks(models, labels)
    number = len(models)
    least = [worst_class(verdicts.counts.accuracy).accuracy for verdicts in models]
    better = ranks.better.astype(int)
    assert not ((better @ better > 0) & ~ranks.better).any()  # transitive
    assert not (ranks.better & ranks.better.T).any()
    assert ((ranks.low >= 1) & (ranks.low <= ranks.high) & (ranks.high <= number)).all()
    assert ranks.low.min() == 1
    for better, worse in np.argwhere(ranks.better):
        assert ranks.low[better] < ranks.low[worse]
        assert ranks.high[better] < ranks.high[worse]
        assert least[better] > least[worse]
    best = np.flatnonzero(np.array(least) == max(least))
    assert (ranks.low[best] == 1).all()
    reverse = worst_class_ranks(models[::-1], labels)
    assert np.array_equal(reverse.low[::-1], ranks.low)
    assert np.array_equal(reverse.high[::-1], ranks.high)


@pytest.mark.slow
def test_equal_models_are_rarely_separated() -> None:
    """Simulated outcomes of four models with the same true accuracies: at most 5 % of the boards separate any two."""
    generator, separated, repetitions = np.random.default_rng(0), 0, 60
    for _ in range(repetitions):
        models = [model(generator.random(len(LABELS)) < 0.5) for _ in range(4)]
        separated += bool(worst_class_ranks(models, LABELS).better.any())
    assert separated <= 0.05 * repetitions
