from __future__ import annotations

import numpy as np
import pytest
from benchmarks.replay import RecordedAudit, Replay, _Lanes, replay

from classwise.stats.best_arm import BestArmSearch, Escalate, Rules
from tests.refusals import check_refused

COST = (1.0, 201.0, 1801.0, 6800.0)


def recorded(
    accuracy: list[float], images: int, escalation: float = 0.05, rest: float = 0.01, first: float = 0.3, seed: int = 0
) -> RecordedAudit:
    """Simulated outcomes of classes with these robust accuracies.

    ``escalation`` and ``rest`` are the fractions of the robust images by which the later attacks reduce the survivors.
    """
    generator = np.random.default_rng(seed)
    outcomes = []
    for value in accuracy:
        is_robust = round(value * images)
        later = generator.binomial(
            images - is_robust, min(1.0, (escalation + rest) * is_robust / max(images - is_robust, 1))
        )
        last = generator.binomial(later, rest / (escalation + rest))
        sooner = images - is_robust - later
        wrong = round(first * sooner)
        outcomes.append(
            ["."] * is_robust + ["r"] * last + ["e"] * (later - last) + ["f"] * (sooner - wrong) + ["c"] * wrong
        )
    outcome = np.array(outcomes).ravel()
    labels = np.repeat(np.arange(len(accuracy)), images)
    passes = np.tile(COST, (len(labels), 1)) * generator.uniform(0.5, 1, (len(labels), 4))
    return RecordedAudit(labels, outcome != "c", outcome == "f", outcome == "e", np.isin(outcome, ["r", "e"]), passes)


def run_search(
    record: RecordedAudit, order: np.ndarray[tuple[int], np.dtype[np.int64]], rules: Rules
) -> tuple[BestArmSearch, float]:
    """The search of one lane by `BestArmSearch`, and its passes counted per image."""
    survivors = np.bincount(record.labels[record.survives], minlength=record.num_classes)
    search, passes = BestArmSearch(record.images, survivors, rules), record.initial_passes
    queue = {label: order[record.labels[order] == label] for label in range(record.num_classes)}
    while moves := search.next():
        for move in moves:
            label, start = move.label, int(search.drawn[move.label])
            early = search.level[label] == 0
            rows = queue[label][start:] if isinstance(move, Escalate) else queue[label][start : start + move.size]
            success = record.escalation[rows] & early
            if early:
                passes += record.passes[rows, 2].sum()
            if isinstance(move, Escalate):
                queue[label] = rows[~success]
                search.observe_escalation(label, int(success.sum()))
            else:
                passes += record.passes[rows[~success], 3].sum()
                search.observe_draw(label, move.size, int((success | record.rest[rows]).sum()))
    return search, float(passes)


@pytest.mark.parametrize("classes_per_round", [1, 3])
@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_lanes_agree_with_the_state_machine(classes_per_round: int, tolerance: float) -> None:
    record = recorded([0.2, 0.22, 0.25, 0.6, 0.25], 120, escalation=0.1, rest=0.05)
    rules = Rules(classes_per_round=classes_per_round, tolerance=tolerance, sample_size=6, escalation_share=0.2)
    survivors = np.flatnonzero(record.survives)
    generator = np.random.default_rng(1)
    order = np.stack([generator.permutation(survivors) for _ in range(12)])
    order = np.take_along_axis(order, np.argsort(record.labels[order], axis=1, kind="stable"), 1)
    worst, low, high, passes, unsettled, _ = _Lanes(record, order, rules).run()
    for lane, sequence in enumerate(order):
        search, expected_passes = run_search(record, sequence, rules)
        verdict = search.verdict()
        assert (worst[lane], unsettled[lane]) == (verdict.worst, verdict.unsettled)
        assert (low[lane], high[lane]) == pytest.approx((search.low[verdict.worst], search.high[verdict.worst]))
        assert passes[lane] == pytest.approx(expected_passes)
        assert search.level.any()  # at least one class was escalated


@pytest.fixture(scope="module")
def hard() -> Replay:
    """Three classes with similar accuracies at a confidence of 50 %, so that errors would be visible."""
    return replay(recorded([0.30, 0.31, 0.33], 200, 0.15, 0.15), 2000, rules=Rules(alpha=0.5))


def test_coverage(hard: Replay) -> None:
    assert hard.right.mean() >= 0.5
    assert hard.covered.mean() >= 0.5
    assert hard.right.shape == (2000,)


@pytest.mark.slow
def test_invalid_intervals_would_be_detected() -> None:
    """With intervals that are too narrow, the same replay has wrong answers and intervals that do not cover."""
    easy = Rules(alpha=0.999, priors=((50.0, 1.0), (50.0, 1.0)), sample_size=1)
    found = replay(recorded([0.30, 0.31, 0.33], 200, 0.15, 0.15), 500, rules=easy)
    assert found.covered.mean() < 1
    assert found.right.mean() < 1


def test_it_costs_little_where_the_gap_is_wide_and_never_more_than_all() -> None:
    wide = replay(recorded([0.2, 0.35, 0.4, 0.4, 0.5, 0.5, 0.55, 0.6, 0.6, 0.65], 500), 50)
    assert np.median(wide.share) <= 0.15
    assert wide.right.all()
    tie = replay(recorded([0.4, 0.4, 0.4], 60), 50)
    assert (tie.share <= 1).all()
    assert tie.right.all()


def test_the_same_seed_gives_the_same_orders() -> None:
    record = recorded([0.3, 0.35, 0.4], 100)
    one, two, other = (replay(record, 20, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.passes, two.passes)
    assert not np.array_equal(one.passes, other.passes)


def test_full_is_the_cascade() -> None:
    labels = [0, 0, 0, 1, 1]
    record = RecordedAudit(labels, [1, 1, 0, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1], [COST] * 5)
    assert record.full == 5 * 1 + 4 * 201 + 3 * 1801 + 2 * 6800
    assert record.initial_passes == 5 * 1 + 4 * 201
    assert record.accuracy.tolist() == [1 / 3, 0.0]


def test_absent_classes_are_excluded() -> None:
    base = recorded([0.2, 0.5], 50)
    wider = RecordedAudit(
        base.labels * 2, base.clean, base.first, base.escalation, base.rest, base.passes, num_classes=4
    )
    found = replay(wider, 5)
    assert (found.worst == 0).all()
    assert found.right.all()


def test_bad_input() -> None:
    check_refused("passes: expected shape", RecordedAudit, [0], [1], [0], [0], [0], [[1.0]])
    check_refused("for each of the 2 labels", RecordedAudit, [0, 1], [1], [0, 0], [0, 0], [0, 0], [COST] * 2)
    check_refused("orders = 0", replay, recorded([0.5, 0.6], 10), 0)
