from __future__ import annotations

import numpy as np
import pytest
from benchmarks.replay import RecordedAudit, Replay, _Lanes, replay

from classwise.core.errors import ClasswiseError
from classwise.stats.best_arm import BestArmSearch, Escalate, Rules

COST = (1.0, 201.0, 1801.0, 6800.0)


def recorded(
    accuracy: list[float], images: int, escalation: float = 0.05, rest: float = 0.01, first: float = 0.3, seed: int = 0
) -> RecordedAudit:
    """Classes of these final accuracies, of whose survivors of the first attack so many fall later."""
    generator = np.random.default_rng(seed)
    fates = []
    for value in accuracy:
        is_robust = round(value * images)
        later = generator.binomial(
            images - is_robust, min(1.0, (escalation + rest) * is_robust / max(images - is_robust, 1))
        )
        last = generator.binomial(later, rest / (escalation + rest))
        sooner = images - is_robust - later
        wrong = round(first * sooner)
        fates.append(
            ["."] * is_robust + ["r"] * last + ["e"] * (later - last) + ["f"] * (sooner - wrong) + ["c"] * wrong
        )
    fate = np.array(fates).ravel()
    labels = np.repeat(np.arange(len(accuracy)), images)
    passes = np.tile(COST, (len(labels), 1)) * generator.uniform(0.5, 1, (len(labels), 4))
    return RecordedAudit(labels, fate != "c", fate == "f", fate == "e", np.isin(fate, ["r", "e"]), passes)


def one_race(
    record: RecordedAudit, order: np.ndarray[tuple[int], np.dtype[np.int64]], rules: Rules
) -> tuple[BestArmSearch, float]:
    """The same race by the state machine, image by image, with its passes counted one by one."""
    survivors = np.bincount(record.labels[record.survives], minlength=record.num_classes)
    race, spent = BestArmSearch(record.images, survivors, rules), record.initial_passes
    queue = {label: order[record.labels[order] == label] for label in range(record.num_classes)}
    while moves := race.next():
        for move in moves:
            label, begin = move.label, int(race.drawn[move.label])
            early = race.level[label] == 0
            rows = queue[label][begin:] if isinstance(move, Escalate) else queue[label][begin : begin + move.size]
            falls = record.escalation[rows] & early
            if early:
                spent += record.passes[rows, 2].sum()
            if isinstance(move, Escalate):
                queue[label] = rows[~falls]
                race.observe_escalation(label, int(falls.sum()))
            else:
                spent += record.passes[rows[~falls], 3].sum()
                race.observe_draw(label, move.size, int((falls | record.rest[rows]).sum()))
    return race, float(spent)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_lanes_agree_with_the_state_machine(together: int, tolerance: float) -> None:
    record = recorded([0.2, 0.22, 0.25, 0.6, 0.25], 120, escalation=0.1, rest=0.05)
    rules = Rules(together=together, tolerance=tolerance, draw=6, patience=0.2)
    survivors = np.flatnonzero(record.survives)
    generator = np.random.default_rng(1)
    order = np.stack([generator.permutation(survivors) for _ in range(12)])
    order = np.take_along_axis(order, np.argsort(record.labels[order], axis=1, kind="stable"), 1)
    worst, low, high, passes, unsettled, _ = _Lanes(record, order, rules).run()
    for lane, sequence in enumerate(order):
        race, spent = one_race(record, sequence, rules)
        verdict = race.verdict()
        assert (worst[lane], unsettled[lane]) == (verdict.worst, verdict.unsettled)
        assert (low[lane], high[lane]) == pytest.approx((verdict.low, verdict.high))
        assert passes[lane] == pytest.approx(spent)
        assert race.level.any()  # the escalation was played too


@pytest.fixture(scope="module")
def hard() -> Replay:
    """Three classes close together, at a confidence of only a half, so that an error would show."""
    return replay(recorded([0.30, 0.31, 0.33], 200, 0.15, 0.15), 2000, rules=Rules(alpha=0.5))


def test_coverage(hard: Replay) -> None:
    assert hard.right.mean() >= 0.5
    assert hard.covered.mean() >= 0.5
    assert hard.right.shape == (2000,)


@pytest.mark.slow
def test_a_set_too_short_would_be_caught() -> None:
    """With all of alpha spent ten times over, the same figures do show wrong answers and lost intervals."""
    easy = Rules(alpha=0.999, priors=((50.0, 1.0), (50.0, 1.0)), draw=1)
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


def test_absent_classes_take_no_part() -> None:
    base = recorded([0.2, 0.5], 50)
    wider = RecordedAudit(
        base.labels * 2, base.clean, base.first, base.escalation, base.rest, base.passes, num_classes=4
    )
    found = replay(wider, 5)
    assert (found.worst == 0).all()
    assert found.right.all()


def test_bad_input() -> None:
    with pytest.raises(ClasswiseError, match="passes: expected shape"):
        RecordedAudit([0], [1], [0], [0], [0], [[1.0]])
    with pytest.raises(ClasswiseError, match="for each of the 2 labels"):
        RecordedAudit([0, 1], [1], [0, 0], [0, 0], [0, 0], [COST] * 2)
    with pytest.raises(ClasswiseError, match="orders = 0"):
        replay(recorded([0.5, 0.6], 10), 0)
