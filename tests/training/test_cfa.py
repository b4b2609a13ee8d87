"""CFA by hand: eq. 6 to 8 and FAWA over three epochs, for C = 3 and C = 10; radii in both directions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from classwise.threat.ball import Threat
from classwise.training.averaging import EMA, FAWA, Average, NoAverage
from classwise.training.classes.signals import ClassSettings, ClassSums
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import mean
from classwise.training.schedules.beta import VectorBeta
from classwise.training.schedules.cfa import CCM, CCR, Margins
from classwise.training.schedules.long_tail import CriticalClass

from ..refusals import refused
from .by_hand import EPSILON, NAN, classes, close, constants, event_of

ACCURACIES = {
    3: [[0.5, 0.1, 0.9], [0.6, 0.2, 0.8], [0.7, 0.0, 1.0]],
    10: [
        [0.00, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45],
        [0.50, 0.45, 0.40, 0.35, 0.30, 0.25, 0.20, 0.15, 0.10, 0.05],
        [1.00, 0.00, 0.90, 0.10, 0.80, 0.20, 0.70, 0.30, 0.60, 0.40],
    ],
}


@pytest.mark.parametrize("count", [3, 10])
def test_radii_and_betas_follow_equations_6_to_8_over_three_epochs(count: int) -> None:
    margin, regularisation = CCM(lambda1=0.3), CCR(lambda2=0.5)
    first, second = margin.start(classes(count)), regularisation.start(classes(count))
    settings = regularisation.settings(second, margin.settings(first, constants(count), 0), 0)
    assert close(settings.epsilon, [EPSILON] * count)  # nothing is known before the first epoch
    assert close(settings.beta, [6.0] * count)
    assert close(settings.clean_weight, [1 / 7] * count)
    for epoch, accuracy in enumerate(ACCURACIES[count]):
        signals = {"train.robust": torch.tensor(accuracy)}
        first = margin.after_epoch(first, signals, epoch)
        second = regularisation.after_epoch(second, signals, epoch)
        settings = regularisation.settings(second, margin.settings(first, constants(count), epoch + 1), epoch + 1)
        assert close(settings.epsilon, [(0.3 + t) * 8 / 255 for t in accuracy])
        assert close(settings.beta, [(0.5 + t) * 6 for t in accuracy])
        assert close(settings.clean_weight, [1 / (1 + (0.5 + t) * 6) for t in accuracy])
        assert close(settings.robust_weight, [1 / (1 + (0.5 + t) * 6) for t in accuracy])


def test_ccr_composes_with_other_weights_in_either_order() -> None:
    calibration, critical = CCR(lambda2=0.5), CriticalClass(critical="1", weight=4)
    parts = [(part, part.start(classes(3))) for part in (calibration, critical)]
    for order in (parts, parts[::-1]):
        settings = constants(3)
        for part, state in order:
            settings = part.settings(state, settings, 0)
        assert close(settings.clean_weight, [1 / 7, 4 / 7, 1 / 7])
        assert close(settings.robust_weight, [1 / 7, 4 / 7, 1 / 7])


def test_a_class_without_images_in_an_epoch_is_unchanged() -> None:
    schedule = CCM(lambda1=0.5)
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.2, math.nan, 0.4])}, 0)
    assert close(schedule.settings(state, constants(3), 1).epsilon, [0.7 * EPSILON, EPSILON, 0.9 * EPSILON])
    state = schedule.after_epoch(state, {"train.robust": torch.tensor([math.nan, 0.3, math.nan])}, 1)
    assert close(schedule.settings(state, constants(3), 2).epsilon, [0.7 * EPSILON, 0.8 * EPSILON, 0.9 * EPSILON])


def test_calibration_starts_at_start_epoch() -> None:
    schedule = CCM(lambda1=0.5, start_epoch=10)
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.2, 0.3, 0.4])}, 0)
    assert close(schedule.settings(state, constants(3), 9).epsilon, [EPSILON] * 3)
    assert close(schedule.settings(state, constants(3), 10).epsilon, [0.7 * EPSILON, 0.8 * EPSILON, 0.9 * EPSILON])


def test_the_weighted_loss_equals_equation_8_for_each_image() -> None:
    y = torch.tensor([0, 2, 1, 2])
    clean, robust = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, 0.25, 1.0, 2.0])
    beta = torch.tensor([1.0, 3.0, 7.0])
    settings = ClassSettings(beta=beta, clean_weight=1 / (1 + beta), robust_weight=1 / (1 + beta))
    batch = TrainingBatch(torch.zeros(4, 1, 1, 1), y, torch.arange(4), Threat("Linf", 0.1))
    by_hand = ((1 + 0.5) / 2 + (2 + 7 * 0.25) / 8 + (3 + 3 * 1.0) / 4 + (4 + 7 * 2.0) / 8) / 4
    assert float(mean(Step({"clean": clean, "robust": robust * beta[y]}), batch, settings)) == pytest.approx(by_hand)


def test_training_accuracy_is_accumulated_per_class_over_batches() -> None:
    sums = ClassSums(3, frozenset({"train.confusion", "train.loss"}), torch.device("cpu"))
    logits = torch.eye(3)[torch.tensor([0, 1, 1, 2, 0])]
    sums.add(torch.tensor([0, 1, 0]), None, logits[:3], torch.tensor([1.0, 2.0, 3.0]))
    sums.add(torch.tensor([0, 0]), None, logits[3:], torch.tensor([5.0, 7.0]))
    signals = sums.signals()
    assert signals["train.robust"].nan_to_num(nan=-1).tolist() == [0.5, 1.0, -1]
    assert signals["train.count"].tolist() == [4, 1, 0]
    assert signals["train.clean"].isnan().all()
    assert signals["train.confusion"].tolist() == [[2, 1, 1], [0, 1, 0], [0, 0, 0]]
    assert signals["train.loss"].nan_to_num(nan=-1).tolist() == [4.0, 2.0, -1]


def weights(value: float) -> dict[str, Tensor]:
    return {
        "w": torch.tensor([value]),
        "bn.running_mean": torch.tensor([10 * value]),
        "steps": torch.tensor(int(value)),
    }


@pytest.mark.parametrize("count", [3, 10])
def test_fawa_admits_epochs_by_the_worst_class(count: int) -> None:
    """Threshold 0.2, decay 0.85: epochs 1 and 3 are admitted, epoch 2 (worst class 0.19) is not."""
    averager, state = FAWA(decay=0.85, start_fraction=0.0, threshold=0.2), Average()
    for epoch, lowest in enumerate([0.25, 0.19, 0.20]):
        robust = torch.linspace(lowest, 0.9, count)
        state = averager.after_epoch(state, weights(epoch + 1.0), {"valid.robust": robust}, epoch / 3)
        assert event_of(state)["admitted"] == (lowest >= 0.2)
    assert state.facts["admitted"] == 2
    assert float(state.weights["w"]) == pytest.approx(0.85 * 1 + 0.15 * 3)
    assert float(state.weights["bn.running_mean"]) == pytest.approx(0.85 * 10 + 0.15 * 30)
    assert int(state.weights["steps"]) == 3


def test_a_relative_threshold_follows_the_best_worst_class_so_far() -> None:
    averager, state = FAWA(start_fraction=0.0, gate="relative"), Average()
    admitted, bars = [], []
    for lowest in (0.05, 0.10, 0.079, 0.081, 0.2, 0.15):
        state = averager.after_epoch(state, weights(1.0), {"valid.robust": torch.tensor([lowest, 0.9])}, 0.5)
        admitted.append(event_of(state)["admitted"])
        bars.append(event_of(state)["threshold"])
    assert admitted == [True, True, False, True, True, False]
    assert bars == pytest.approx([0.04, 0.08, 0.08, 0.08, 0.16, 0.16])


def test_without_admitted_epochs_the_average_of_all_epochs_is_saved_and_reported() -> None:
    fawa, ema = FAWA(decay=0.5, start_fraction=0.0, threshold=0.2), EMA(decay=0.5, start_fraction=0.0)
    gated, plain = Average(), Average()
    for epoch in range(3):
        signals = {"valid.robust": torch.tensor([0.1, 0.9])}
        gated = fawa.after_epoch(gated, weights(epoch), signals, 0.0)
        plain = ema.after_epoch(plain, weights(epoch), signals, 0.0)
        assert event_of(gated)["plain_average_saved"]
    assert torch.equal(gated.weights["w"], plain.weights["w"])
    gated = fawa.after_epoch(gated, weights(8), {"valid.robust": torch.tensor([0.3, 0.9])}, 0.0)
    assert float(gated.weights["w"]) == 8.0  # the average starts at the first admitted epoch
    assert not event_of(gated)["plain_average_saved"]


def test_averages_start_at_start_fraction() -> None:
    signals = {"valid.robust": torch.tensor([0.5, 0.9])}
    for averager in (EMA(start_fraction=0.25), FAWA(start_fraction=0.25)):
        assert not averager.after_epoch(Average(), weights(1), signals, 0.24).weights
        assert averager.after_epoch(Average(), weights(1), signals, 0.25).weights
    assert not NoAverage().after_epoch(Average(), weights(1), signals, 0.9).weights


def test_the_average_equals_the_closed_form_and_shares_no_memory_with_the_model() -> None:
    averager, state = EMA(decay=0.8, start_fraction=0.0), Average()
    live = weights(0.0)
    for value in [1.0, 2.0, 4.0, 8.0]:
        live["w"].fill_(value)
        state = averager.after_epoch(state, live, {}, 0.5)
    live["w"].fill_(100.0)
    assert float(state.weights["w"]) == pytest.approx(0.8**3 * 1 + 0.2 * (0.8**2 * 2 + 0.8 * 4 + 8))


def test_vector_beta_sets_the_given_classes_only() -> None:
    schedule = VectorBeta(beta={"class 1": 0.5, "2": 2.0})
    settings = schedule.settings(schedule.start(classes(3)), constants(3), 0)
    assert close(settings.beta, [6.0, 0.5, 2.0])
    assert settings.clean_weight is None
    assert "unknown class 'class 9'" in refused(VectorBeta(beta={"class 9": 1.0}).start, classes(3))


def radii(schedule: Margins, *epochs: list[float]) -> Tensor:
    """The radii divided by eps after epochs with these robust accuracies."""
    state = schedule.start(classes(len(epochs[0])))
    for number, robust in enumerate(epochs):
        state = schedule.after_epoch(state, {"train.robust": torch.tensor(robust)}, number)
    found = schedule.settings(state, constants(len(epochs[0])), len(epochs)).epsilon
    assert found is not None
    return found / EPSILON


def test_margins_by_hand_for_both_signs() -> None:
    reached = [0.2, 0.5, 0.8]
    assert close(radii(Margins(slope=1), reached), [0.7, 1.0, 1.3])
    assert close(radii(Margins(slope=-1), reached), [1.3, 1.0, 0.7])
    assert close(Margins().settings(Margins().start(classes(3)), constants(3), 0).epsilon, [EPSILON] * 3)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_the_mean_radius_is_constant(count: int, slope: float) -> None:
    reached = torch.rand(count, generator=torch.Generator().manual_seed(count)).tolist()
    assert float(radii(Margins(slope=slope), reached).mean()) == pytest.approx(1, abs=1e-5)


def test_radii_of_unseen_classes_are_eps_and_of_absent_classes_unchanged() -> None:
    assert close(radii(Margins(), [0.2, NAN, 0.4]), [0.9, 1.0, 1.1])
    assert close(radii(Margins(), [0.2, 0.6, 0.4], [0.2, NAN, 0.4]), [0.8, 1.2, 1.0])
    assert close(radii(Margins(slope=10, floor=0.25), [0.0, 0.4]), [0.25, 3.0])


def test_the_two_margins_recipes_differ_in_one_sign() -> None:
    for budget in (None, "short"):
        smaller, larger = (Recipe.read(f"margins-{name}", budget=budget) for name in ("smaller", "larger"))
        texts: dict[str, Any] = {"name": smaller.name, "description": smaller.description, "source": smaller.source}
        assert dataclasses.replace(larger, **texts, schedules=smaller.schedules) == smaller
        (one,), (other,) = smaller.parts.schedules, larger.parts.schedules
        assert isinstance(one, Margins)
        assert dataclasses.replace(one, slope=-one.slope) == other
