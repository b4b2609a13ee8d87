"""SWA by its closed form, the control chart and the intersection-union test by hand, and both in real runs."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from classwise.training.averaging import EMA, FAWA, IUTFAWA, SWA, Average, Averager, ChartFAWA
from classwise.training.classes.signals import Signals

from .by_hand import event_of
from .test_cfa import weights


def soft(worst: float, count: int = 3) -> Signals:
    """A worst class, better classes, and an absent class."""
    return {"valid.soft": torch.tensor([*torch.linspace(worst, 0.9, count - 1).tolist(), math.nan])}


@pytest.mark.parametrize("every", ["epoch", "step"])
def test_swa_is_the_mean_of_the_weights(every: str) -> None:
    averager, state = SWA(start_fraction=0.5, every="step" if every == "step" else "epoch"), Average()
    for place, value in enumerate([100.0, 1.0, 2.0, 6.0, 7.0]):
        progress = 0.25 + place / 4
        state = averager.after_step(state, weights(value), progress)
        if every == "epoch":
            state = averager.after_epoch(state, weights(value), {}, progress)
    assert float(state.weights["w"]) == pytest.approx(4.0)
    assert float(state.weights["bn.running_mean"]) == pytest.approx(40.0)
    assert int(state.weights["steps"]) == 7  # counters are taken over
    assert state.facts == {"count": 4}


def test_the_ema_per_step_equals_its_closed_form_and_ignores_epochs() -> None:
    averager, state = EMA(decay=0.9, start_fraction=0.0, every="step"), Average()
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    for value in values:
        state = averager.after_step(state, weights(value), 0.0)
        state = averager.after_epoch(state, weights(99.0), {}, 0.0)
    expected = 0.9**4 * 3 + 0.1 * sum(0.9 ** (4 - place) * values[place] for place in range(1, 5))
    assert float(state.weights["w"]) == pytest.approx(expected)


def test_the_chart_by_hand() -> None:
    """A window of 3: medians of the first epochs, then the median of the best window minus half a deviation."""
    gate = ChartFAWA(start_fraction=0.0, decay=0.0, window=3, slack=0.5)
    state, bars, admitted = Average(), [], []
    reached = [0.30, 0.20, 0.26, 0.29, 0.20, 0.40]
    for value in reached:
        state = gate.after_epoch(state, weights(value * 100), soft(value), 0.5)
        bars.append(event_of(state)["threshold"])
        admitted.append(event_of(state)["admitted"])
    expected = [
        0.0,  # nothing to compare with
        0.30,
        0.25,  # median of 0.30, 0.20
        0.26 - 0.5 * 1.4826 * 0.04,  # deviations 0.04, 0.06, 0
        0.26 - 0.5 * 1.4826 * 0.03,  # windows 0.26, 0.26; the last is 0.20, 0.26, 0.29
        0.26 - 0.5 * 1.4826 * 0.03,  # windows 0.26, 0.26, 0.26; the last is 0.26, 0.29, 0.20
    ]
    assert bars == pytest.approx(expected, abs=1e-6)
    assert admitted == [True, False, True, True, False, True]
    assert state.facts["admitted"] == 4
    assert state.facts["history"] == pytest.approx(reached)


def test_the_reference_of_the_chart_is_the_best_window_and_its_spread_that_of_the_last() -> None:
    history = [0.1] * 5 + [0.30, 0.31, 0.32, 0.33, 0.34] * 2 + [0.2, 0.21] * 5
    medians = [statistics.median(history[first : first + 10]) for first in range(len(history) - 9)]
    assert ChartFAWA().score_and_threshold(history, soft(0.2))[1] == pytest.approx(max(medians) - 0.5 * 1.4826 * 0.005)
    assert max(medians) == pytest.approx(0.32)


def test_the_chart_scores_early_epochs_and_reports_long_refusals() -> None:
    gate, state = ChartFAWA(start_fraction=0.5, patience=2), Average()
    found = []
    for epoch, value in enumerate([0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1]):
        state = gate.after_epoch(state, weights(float(epoch)), soft(value), epoch / 8)
        if epoch < 4:
            assert not state.weights
            assert state.event is None
        else:
            event = event_of(state)
            found.append((event["admitted"], event["plain_average_saved"], event.get("refused_in_a_row")))
    assert found == [(False, True, None), (False, True, 2), (False, True, None)]
    assert state.weights  # the average of all epochs is saved until then
    kept = gate.after_epoch(state, weights(50.0), soft(0.9), 0.9)
    assert float(kept.weights["w"]) == 50.0  # the first admitted epoch begins the real average
    assert torch.equal(gate.after_epoch(kept, weights(1.0), soft(0.01), 0.9).weights["w"], kept.weights["w"])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.data())
def test_fawa_admits_an_epoch_at_the_threshold(images: int, data: st.DataObject) -> None:
    """The signals are float32: 12 of 50 is below 0.24 there, and 4/5 of an accuracy is rarely a float."""
    right = data.draw(st.integers(0, images))
    signals = {"valid.robust": torch.tensor([right / images, 1.0, math.nan])}
    for share, admitted in ((right / images, True), ((right + 0.5) / (images + 0.5), right == images)):
        gate = FAWA(start_fraction=0.0, threshold=share)
        assert event_of(gate.after_epoch(Average(), weights(1.0), signals, 0.5))["admitted"] is admitted
    relative = FAWA(start_fraction=0.0, gate="relative", threshold=0.8)
    best = relative.after_epoch(Average(), weights(1.0), {"valid.robust": torch.tensor([right / images, 1.0])}, 0.5)
    reached = {"valid.robust": torch.tensor([4 * right / (5 * images), 1.0])}
    assert event_of(relative.after_epoch(best, weights(1.0), reached, 0.5))["admitted"] is True


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_the_bound_of_the_test_is_the_90_percent_wilson_bound(count: int) -> None:
    images = torch.full((count,), 250.0)
    right = torch.arange(count).remainder(40) + 60.0
    right[0] = 50.0
    signals = {"valid.robust": right / images, "valid.count": images}
    reached, bar = IUTFAWA(threshold=0.2).score_and_threshold([], signals)
    one_sided = binomtest(50, 250, alternative="greater").proportion_ci(0.9, method="wilson").low
    assert reached == pytest.approx(one_sided, abs=1e-6)
    assert bar == 0.2
    absent = {"valid.robust": torch.tensor([math.nan, 0.5]), "valid.count": torch.tensor([0.0, 250.0])}
    assert IUTFAWA().score_and_threshold([], absent)[0] == pytest.approx(0.4596, abs=1e-3)


def test_the_test_has_no_power_with_few_images() -> None:
    """A threshold of 20 % is not reached by 20 % of 250 images, but by 24 %; nor is it by 40 % of 10 images."""
    for share, images, admitted in ((0.2, 250, False), (0.24, 250, True), (0.3, 10, False)):
        signals = {"valid.robust": torch.tensor([share, 0.9]), "valid.count": torch.full((2,), float(images))}
        state = IUTFAWA(start_fraction=0.0).after_epoch(Average(), weights(1.0), signals, 0.0)
        assert event_of(state)["admitted"] is admitted


def test_no_epoch_is_admitted_if_no_class_can_be_measured() -> None:
    nothing = torch.full((3,), math.nan)
    gates: tuple[Averager, ...] = (ChartFAWA(start_fraction=0.0), IUTFAWA(start_fraction=0.0))
    for gate in gates:
        signals = {"valid.soft": nothing, "valid.robust": nothing, "valid.count": torch.zeros(3)}
        assert not event_of(gate.after_epoch(Average(), weights(1.0), signals, 0.5))["admitted"]
