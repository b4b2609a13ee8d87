from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.best_arm import (
    BestArmSearch,
    Draw,
    Escalate,
    Rules,
    contenders,
    default_sample_size,
    default_tolerance,
)
from classwise.stats.confidence_sequence import intersect_bounds, log_prior_posterior_ratio, success_bounds
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval
from tests.refusals import check_refused


def ratio_by_hand(pool: int, drawn: int, hits: int, a: float, b: float) -> dict[int, float]:
    """Prior over posterior for each possible number, with scipy's beta-binomial, as the paper writes it."""
    possible = range(hits, pool - (drawn - hits) + 1)
    rest = stats.betabinom(pool - drawn, a + hits, b + drawn - hits)
    return {K: stats.betabinom(pool, a, b).pmf(K) / rest.pmf(K - hits) for K in possible}


@pytest.mark.parametrize(("a", "b"), [(0.5, 8.0), (0.5, 60.0), (1.0, 1.0)])
@pytest.mark.parametrize(("pool", "drawn", "hits"), [(7, 3, 1), (12, 0, 0), (12, 12, 4), (30, 10, 0), (30, 11, 11)])
def test_the_ratio_is_prior_over_posterior(pool: int, drawn: int, hits: int, a: float, b: float) -> None:
    by_hand = ratio_by_hand(pool, drawn, hits, a, b)
    numbers = np.arange(pool + 1)
    ours = np.exp(log_prior_posterior_ratio(numbers, pool, drawn, hits, (a, b)))
    assert [K for K in numbers if np.isfinite(ours[K])] == list(by_hand)
    assert ours[list(by_hand)] == pytest.approx(list(by_hand.values()), rel=1e-9)


@given(st.data())
def test_bounds_are_the_ends_of_the_set(data: st.DataObject) -> None:
    pool = data.draw(st.integers(0, 40))
    drawn = data.draw(st.integers(0, pool))
    hits = data.draw(st.integers(0, drawn))
    a, b = data.draw(st.sampled_from([(0.5, 8.0), (0.5, 60.0), (2.0, 2.0)]))
    alpha = data.draw(st.sampled_from([0.5, 0.05, 0.0025]))
    ratios = ratio_by_hand(pool, drawn, hits, a, b)
    assume(all(abs(ratio * alpha - 1) > 1e-9 for ratio in ratios.values()))  # which rounding decides
    inside = [K for K, ratio in ratios.items() if ratio < 1 / alpha]
    bounds = success_bounds(pool, drawn, hits, (a, b), alpha)
    assert (int(bounds.least), int(bounds.most)) == (min(inside), max(inside))
    assert len(inside) == max(inside) - min(inside) + 1


def test_the_ratio_does_not_grow_on_average() -> None:
    """At the true number the ratio is a martingale; it decreases on average if a possible outcome is used up."""
    pool, success, prior = 20, 6, (0.5, 8.0)
    for drawn, hits in [(0, 0), (5, 1), (12, 6), (10, 0)]:
        left, hot = pool - drawn, success - hits
        after = [
            math.exp(float(log_prior_posterior_ratio(success, pool, drawn + 1, hits + hit, prior))) for hit in (0, 1)
        ]
        chance = hot / left
        mean = sum(weight * value for weight, value in zip((1 - chance, chance), after, strict=True) if weight)
        now = math.exp(float(log_prior_posterior_ratio(success, pool, drawn, hits, prior)))
        assert mean == pytest.approx(now, rel=1e-9) if hits < success else mean < now


def run(search: BestArmSearch, outcomes: list[str]) -> list[str]:
    """Run a search to its end and return its moves.

    Each class has a string of its survivors in order: ``.`` is robust, on ``e`` the escalating attack succeeds and on
    ``r`` another attack of the suite.
    """
    order = dict(enumerate(outcomes))
    log = []
    while moves := search.next():
        for move in moves:
            start = int(search.drawn[move.label])
            if isinstance(move, Escalate):
                rest = order[move.label][start:]
                order[move.label] = rest.replace("e", "")
                search.observe_escalation(move.label, rest.count("e"))
                log.append(f"escalate {move.label}")
            else:
                drawn = order[move.label][start : start + move.size]
                search.observe_draw(move.label, move.size, move.size - drawn.count("."))
                log.append(f"draw {move.size} of {move.label}")
    return log


def test_it_samples_every_class_first_and_stops_when_separated() -> None:
    search = BestArmSearch([1000, 1000, 1000], [200, 600, 700])
    assert search.next() == (Draw(0, 10), Draw(1, 10), Draw(2, 10))
    log = run(search, ["." * 200, "." * 600, "." * 700])
    assert log == ["draw 10 of 0", "draw 10 of 1", "draw 10 of 2"]
    verdict = search.verdict()
    assert (verdict.worst, verdict.possibly, verdict.settled) == (0, (0,), True)
    assert verdict.unsettled == 1500 - 30
    assert verdict.low <= 0.2 == verdict.high
    # Ten images drawn, no success: the upper confidence bound of the rival by hand.
    most = max(K for K, ratio in ratio_by_hand(600, 10, 0, 0.5, 8.0).items() if ratio < 2 * 3 / 0.05)
    assert search.low[1] == pytest.approx((600 - most) / 1000)
    assert search.low[1] >= verdict.high


def test_it_samples_until_the_stopping_rule_is_met() -> None:
    outcomes = ["." * 90 + "e" * 10, "." * 100 + "e" * 5, "." * 300]
    search = BestArmSearch([400, 400, 400], [100, 105, 300], Rules(sample_size=7))
    log = run(search, [_shuffled(text, seed) for seed, text in enumerate(outcomes)])
    assert search.verdict().settled
    assert search.verdict().worst == 0
    assert search.high[0] <= min(search.low[1:]) + 1e-9
    assert log.count("escalate 0") == log.count("escalate 1") == 1
    assert "escalate 2" not in log
    truth = np.array([90, 100, 300]) / 400
    assert (search.low <= truth).all()
    assert (truth <= search.high).all()


def _shuffled(text: str, seed: int) -> str:
    return "".join(np.random.default_rng(seed).permutation(list(text)))


def test_a_tie_is_attacked_in_full_and_both_may_be_the_worst() -> None:
    search = BestArmSearch([50, 50], [20, 20])
    run(search, [_shuffled("." * 18 + "re", 0), _shuffled("." * 18 + "er", 1)])
    verdict = search.verdict()
    assert verdict.possibly == (0, 1)
    assert verdict.low == verdict.high == 18 / 50
    assert "no class is below" in verdict.sentence(["cat", "dog"])
    assert "the worst may be any of cat, dog" in verdict.sentence(["cat", "dog"])


def test_a_tolerance_saves_samples() -> None:
    def cost(tolerance: float) -> int:
        search = BestArmSearch([500, 500], [200, 205], Rules(tolerance=tolerance))
        run(search, [_shuffled("." * 198 + "re", 0), _shuffled("." * 202 + "eer", 1)])
        return 405 - search.verdict().unsettled

    assert cost(0.1) < cost(0.02) < cost(0.0)


def test_an_unfinished_search_has_a_verdict() -> None:
    search = BestArmSearch([100, 100, 100], [50, 60, 99])
    verdict = search.verdict()
    assert not verdict.settled
    assert verdict.possibly == (0, 1, 2)
    assert "the worst class is one of a, b, c" in verdict.sentence("abc")


def test_the_interval_for_new_images_of_a_finished_suite_is_that_of_an_audit() -> None:
    search = BestArmSearch([50, 40, 50], [20, 20, 0])
    for label, text in enumerate(("." * 18 + "re", "." * 17 + "ree")):
        search.observe_draw(label, len(text), len(text) - text.count("."))
    assert search.verdict().new_images == lowest_interval(ClassCounts(np.array([50, 40, 50]), np.array([18, 17, 0])))
    none = BestArmSearch([4, 4], [0, 0]).verdict()
    assert (none.low, none.high) == (0.0, 0.0)  # of these images
    assert none.new_images == lowest_interval(ClassCounts(np.array([4, 4]), np.array([0, 0])))


@pytest.mark.parametrize(("accuracy", "images"), [((0.5,) * 6, (40,) * 6), ((0.2, 0.3, 0.3), (60, 30, 90))])
def test_both_intervals_cover_the_lowest_accuracy(accuracy: tuple[float, ...], images: tuple[int, ...]) -> None:
    random, hits = np.random.default_rng(2), []
    for _ in range(60):
        texts = []
        for share, size in zip(accuracy, images, strict=True):
            fates = random.choice([".", "e", "r", ""], size, p=[share, 0.1, 0.05, 0.85 - share])  # empty: no survivor
            texts.append("".join(fates))
        search = BestArmSearch(images, [len(text) for text in texts], Rules(tolerance=0.1))
        run(search, texts)
        verdict = search.verdict()
        lowest = min(text.count(".") / size for text, size in zip(texts, images, strict=True))
        new_low, new_high = verdict.new_images
        assert new_low <= verdict.low
        assert verdict.high <= new_high
        hits.append((verdict.low - 1e-9 <= lowest <= verdict.high + 1e-9, new_low <= min(accuracy) <= new_high))
    assert (np.mean(hits, axis=0) >= 0.9).all()  # 95 % up to the error of 60 searches


def test_searches_without_moves() -> None:
    assert BestArmSearch([5], [3]).next() == ()
    assert BestArmSearch([5, 0, 0], [3, 0, 0]).verdict().worst == 0
    search = BestArmSearch([0, 10, 10], [0, 0, 4])
    assert search.next() == ()  # no accuracy is below 0; that of the other class may be 0, too
    assert (search.verdict().worst, search.verdict().possibly) == (1, (1, 2))
    search.observe_draw(2, 4, 0)
    assert search.verdict().possibly == (1,)
    none = BestArmSearch([4, 4], [0, 0]).verdict()
    assert (none.settled, none.possibly, none.low, none.high) == (True, (0, 1), 0.0, 0.0)


def test_contenders() -> None:
    estimate = np.array([[0.3, 0.2, 0.5, 0.6]])
    low, high = np.array([[0.1, 0.15, 0.05, 0.55]]), np.array([[0.4, 0.25, 0.6, 0.7]])
    current = contenders(estimate, low, high, 0.0)
    assert (current.worst[0], current.rival[0], current.labels[0, 0], current.valid[0, 0]) == (1, 2, 2, True)
    current = contenders(estimate, low, high, 0.0, classes_per_round=4)
    # The weighted width of the worst class is 0.1 sqrt(2); the intervals of 0 and 2 are wider, 3 is far above.
    assert current.labels[0][current.valid[0]].tolist() == [2, 0]
    assert not contenders(estimate, low, high, 0.25, classes_per_round=4).valid.any()


@pytest.mark.parametrize("classes_per_round", [1, 6])
def test_the_worst_class_gets_a_narrower_interval_than_each_of_many_rivals(classes_per_round: int) -> None:
    def due(width: float) -> list[int]:
        estimate = np.array([0.3, *[0.32] * 4])
        half = np.array([width, *[0.1] * 4]) / 2
        current = contenders(estimate, estimate - half, estimate + half, 0.0, classes_per_round)
        return [int(label) for label in current.labels[current.valid]]

    single = classes_per_round == 1
    assert due(0.07) == [0]  # its weighted width is far above that of the rivals, so only it is sampled
    assert due(0.051) == ([0] if single else [0, 1, 2, 3, 4])  # the rivals are almost as wide and fill the batch
    assert due(0.049) == ([1] if single else [1, 2, 3, 4])


def test_new_bounds_replace_old_ones_that_exclude_them() -> None:
    new = success_bounds(10, 10, 7, (0.5, 8.0), 0.05)
    assert [int(end) for end in intersect_bounds(0, 10, new, 2)] == [9, 9]
    assert [int(end) for end in intersect_bounds(0, 5, new, 2)] == [9, 9]


def test_default_sizes() -> None:
    assert [default_tolerance(classes) for classes in (2, 99, 100, 1000)] == [0.0, 0.0, 0.02, 0.02]
    assert [default_sample_size([count, 0]) for count in (1000, 250, 100, 50, 3)] == [10, 10, 4, 2, 2]


def escalated() -> BestArmSearch:
    search = BestArmSearch([30, 30], [20, 20])
    search.observe_escalation(0, 2)
    return search


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rules(alpha=0.0), "alpha = 0.0"),
        (lambda: Rules(tolerance=-0.1), "tolerance = -0.1"),
        (lambda: Rules(tolerance=1.0), "tolerance = 1.0"),
        (lambda: Rules(sample_size=0), "sample_size = 0"),
        (lambda: Rules(classes_per_round=0), "classes_per_round = 0"),
        (lambda: Rules(priors=((0.0, 8.0),)), "priors"),
        (lambda: Rules(escalation_share=1.5), "escalation_share = 1.5"),
        (lambda: BestArmSearch([3, 3], [4, 1]), "class 0: 4 survivors of 3"),
        (lambda: BestArmSearch([3, 3], [1]), "images and survivors: expected equal lengths, got 2 and 1"),
        (lambda: BestArmSearch([0, 0], [0, 0]), "no class has an image"),
        (lambda: BestArmSearch([2.5, 1], [1, 1]), "integers"),
        (lambda: BestArmSearch([30, 30], [20, 20]).observe_draw(0, 3, 5), "5 successes of 3"),
        (lambda: BestArmSearch([30, 30], [20, 20]).observe_draw(0, 21, 0), "20 survivors remained"),
        (
            lambda: BestArmSearch([30, 30], [20, 20]).observe_escalation(0, 21),
            "class 0: 21 successes of the escalation; 20 survivors remained",
        ),
        (lambda: escalated().observe_escalation(0, 1), "class 0: already escalated"),
    ],
)
def test_invalid_values(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)
