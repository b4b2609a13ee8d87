from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.core.errors import ClasswiseError
from classwise.stats.best_arm import (
    Draw,
    Escalate,
    Race,
    Rules,
    contenders,
    usual_draw,
    usual_tolerance,
)
from classwise.stats.confidence_sequence import intersected, log_prior_posterior_ratio, success_bounds


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
    inside = [K for K, ratio in ratio_by_hand(pool, drawn, hits, a, b).items() if ratio < 1 / alpha]
    bounds = success_bounds(pool, drawn, hits, (a, b), alpha)
    assert (int(bounds.least), int(bounds.most)) == (min(inside), max(inside))
    assert len(inside) == max(inside) - min(inside) + 1


@pytest.mark.parametrize("success", [0, 1, 3, 6])
def test_the_set_covers_at_all_times(success: int) -> None:
    """Every order of a small pool, weighed alike: the share in which the truth is ever lost is at most alpha."""
    pool, alpha, lost, orders = 6, 0.3, 0, 0
    for hit in itertools.combinations(range(pool), success):
        fate = np.isin(np.arange(pool), hit)
        drawn = np.arange(pool + 1)
        found = success_bounds(pool, drawn, np.concatenate([[0], np.cumsum(fate)]), (0.5, 2.0), alpha)
        orders += 1
        lost += bool(((success < found.least) | (success > found.most)).any())
    assert lost <= alpha * orders


def test_the_ratio_does_not_grow_on_average() -> None:
    """At the true number the next ratio is, on average over the next draw, the present one; or less, if a draw that
    the prior allows cannot come.
    """
    pool, success, prior = 20, 6, (0.5, 8.0)
    for drawn, hits in [(0, 0), (5, 1), (12, 6), (10, 0)]:
        left, hot = pool - drawn, success - hits
        after = [
            math.exp(float(log_prior_posterior_ratio(success, pool, drawn + 1, hits + one, prior))) for one in (0, 1)
        ]
        chance = hot / left
        mean = sum(weight * value for weight, value in zip((1 - chance, chance), after, strict=True) if weight)
        now = math.exp(float(log_prior_posterior_ratio(success, pool, drawn, hits, prior)))
        assert mean == pytest.approx(now, rel=1e-9) if hits < success else mean < now


def run(race: Race, fates: list[str]) -> list[str]:
    """Play a race; each class has a string of its survivors in order: ``.`` stands, ``e`` and ``r`` break."""
    order = dict(enumerate(fates))
    said = []
    while moves := race.next():
        for move in moves:
            begin = int(race.drawn[move.label])
            if isinstance(move, Escalate):
                left = order[move.label][begin:]
                order[move.label] = left.replace("e", "")
                race.observe_escalation(move.label, left.count("e"))
                said.append(f"escalate {move.label}")
            else:
                drawn = order[move.label][begin : begin + move.size]
                race.observe_draw(move.label, move.size, move.size - drawn.count("."))
                said.append(f"draw {move.size} of {move.label}")
    return said


def test_it_begins_with_every_class_and_stops_when_told_apart() -> None:
    race = Race([1000, 1000, 1000], [200, 600, 700])
    assert race.next() == (Draw(0, 10), Draw(1, 10), Draw(2, 10))
    said = run(race, ["." * 200, "." * 600, "." * 700])
    assert said == ["draw 10 of 0", "draw 10 of 1", "draw 10 of 2"]
    verdict = race.verdict()
    assert (verdict.worst, verdict.possibly, verdict.settled) == (0, (0,), True)
    assert verdict.unsettled == 1500 - 30
    assert verdict.low <= 0.2 == verdict.high
    # Ten drawn, none broken: what remains possible of the rival is by hand below.
    worst_case = max(K for K, ratio in ratio_by_hand(600, 10, 0, 0.5, 8.0).items() if ratio < 2 * 3 / 0.05)
    assert race.low[1] == pytest.approx((600 - worst_case) / 1000)
    assert race.low[1] >= verdict.high


def test_it_goes_on_until_the_stopping_rule_holds() -> None:
    fates = ["." * 90 + "e" * 10, "." * 100 + "e" * 5, "." * 300]
    race = Race([400, 400, 400], [100, 105, 300], Rules(draw=7))
    said = run(race, [_shuffled(text, seed) for seed, text in enumerate(fates)])
    assert race.verdict().settled
    assert race.verdict().worst == 0
    assert race.high[0] <= min(race.low[1:]) + 1e-9
    assert said.count("escalate 0") == said.count("escalate 1") == 1
    assert "escalate 2" not in said
    truth = np.array([90, 100, 300]) / 400
    assert (race.low <= truth).all()
    assert (truth <= race.high).all()


def _shuffled(text: str, seed: int) -> str:
    return "".join(np.random.default_rng(seed).permutation(list(text)))


def test_a_tie_is_settled_whole_and_both_may_be_the_worst() -> None:
    race = Race([50, 50], [20, 20])
    run(race, [_shuffled("." * 18 + "re", 0), _shuffled("." * 18 + "er", 1)])
    verdict = race.verdict()
    assert verdict.possibly == (0, 1)
    assert verdict.low == verdict.high == 18 / 50
    assert "no class is below" in verdict.sentence(["cat", "dog"])
    assert "the worst may be any of cat, dog" in verdict.sentence(["cat", "dog"])


def test_a_tolerance_saves_draws() -> None:
    def cost(tolerance: float) -> int:
        race = Race([500, 500], [200, 205], Rules(tolerance=tolerance))
        run(race, [_shuffled("." * 198 + "re", 0), _shuffled("." * 202 + "eer", 1)])
        return 405 - race.verdict().unsettled

    assert cost(0.1) < cost(0.02) < cost(0.0)


def test_a_race_may_be_read_before_its_end() -> None:
    race = Race([100, 100, 100], [50, 60, 99])
    verdict = race.verdict()
    assert not verdict.settled
    assert verdict.possibly == (0, 1, 2)
    assert "the worst class is one of a, b, c" in verdict.sentence("abc")


def test_nothing_to_race_for() -> None:
    assert Race([5], [3]).next() == ()
    assert Race([5, 0, 0], [3, 0, 0]).verdict().worst == 0
    race = Race([0, 10, 10], [0, 0, 4])
    assert race.next() == ()  # no class is below 0; the other may be there too
    assert (race.verdict().worst, race.verdict().possibly) == (1, (1, 2))
    race.observe_draw(2, 4, 0)
    assert race.verdict().possibly == (1,)
    none = Race([4, 4], [0, 0]).verdict()
    assert (none.settled, none.possibly, none.low, none.high) == (True, (0, 1), 0.0, 0.0)


def test_leaders() -> None:
    estimate = np.array([[0.3, 0.2, 0.5, 0.6]])
    low, high = np.array([[0.1, 0.15, 0.05, 0.55]]), np.array([[0.4, 0.25, 0.6, 0.7]])
    who = contenders(estimate, low, high, 0.0)
    assert (who.worst[0], who.rival[0], who.labels[0, 0], who.valid[0, 0]) == (1, 2, 2, True)
    who = contenders(estimate, low, high, 0.0, together=4)
    # 0.1 wide, the worst counts as 0.1 times the root of its two rivals; 0 and 2 are wider, and 3 is far away.
    assert who.labels[0][who.valid[0]].tolist() == [2, 0]
    assert not contenders(estimate, low, high, 0.25, together=4).valid.any()


@pytest.mark.parametrize("together", [1, 6])
def test_the_worst_class_is_told_more_narrowly_than_each_of_many_rivals(together: int) -> None:
    def due(width: float) -> list[int]:
        estimate = np.array([0.3, *[0.32] * 4])
        half = np.array([width, *[0.1] * 4]) / 2
        who = contenders(estimate, estimate - half, estimate + half, 0.0, together)
        return [int(label) for label in who.labels[who.valid]]

    single = together == 1
    assert due(0.07) == [0]  # twice its width is more than theirs by far: it is drawn from alone
    assert due(0.051) == ([0] if single else [0, 1, 2, 3, 4])  # theirs are nearly as wide, and fill the batch
    assert due(0.049) == ([1] if single else [1, 2, 3, 4])


def test_new_bounds_win_over_old_ones_that_exclude_them() -> None:
    found = success_bounds(10, 10, 7, (0.5, 8.0), 0.05)
    assert [int(end) for end in intersected(0, 10, found, 2)] == [9, 9]
    assert [int(end) for end in intersected(0, 5, found, 2)] == [9, 9]


def test_usual_sizes() -> None:
    assert [usual_tolerance(classes) for classes in (2, 99, 100, 1000)] == [0.0, 0.0, 0.02, 0.02]
    assert [usual_draw([count, 0]) for count in (1000, 250, 100, 50, 3)] == [10, 10, 4, 2, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"tolerance": -0.1}, "tolerance = -0.1"),
        ({"tolerance": 1.0}, "tolerance = 1.0"),
        ({"draw": 0}, "draw = 0"),
        ({"together": 0}, "together = 0"),
        ({"priors": ((0.0, 8.0),)}, "priors"),
        ({"patience": 1.5}, "patience = 1.5"),
    ],
)
def test_rules_out_of_range(values: dict[str, float], said: str) -> None:
    with pytest.raises(ClasswiseError, match=said):
        Rules(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "survivors", "said"),
    [
        ([3, 3], [4, 1], "class 0: 4 survivors of 3"),
        ([3, 3], [1], "2 classes with images and 1"),
        ([0, 0], [0, 0], "no class has an image"),
        ([2.5, 1], [1, 1], "whole numbers"),
    ],
)
def test_counts_that_are_none(images: list[float], survivors: list[int], said: str) -> None:
    with pytest.raises(ClasswiseError, match=said):
        Race(images, survivors)


def test_a_race_refuses_what_cannot_be() -> None:
    race = Race([30, 30], [20, 20])
    with pytest.raises(ClasswiseError, match="5 successes of 3"):
        race.observe_draw(0, 3, 5)
    with pytest.raises(ClasswiseError, match="of 20 that were left"):
        race.observe_draw(0, 21, 0)
    race.observe_escalation(0, 2)
    with pytest.raises(ClasswiseError, match="class 0"):
        race.observe_escalation(0, 1)
