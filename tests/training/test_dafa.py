"""DAFA against numbers by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from classwise.attacks.engine import Engine, Job
from classwise.core.progress.listener import NullProgress
from classwise.posthoc.fitting import validation_split
from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings, ClassSums
from classwise.training.classes.similarity_weights import class_weights
from classwise.training.schedules.dafa import DAFA, AverageDAFA
from classwise.training.train import train

from .by_hand import CONFIDENCE, EPSILON, NAN, classes, close
from .on_digits import TINY

AVERAGE = {
    "schedules": [{"name": "dafa-average", "strength": 1, "start_epoch": 1}],
    "averaging": {"name": "ema", "decay": 0.9, "start_fraction": 0, "every": "step"},
}


def test_dafa_by_hand() -> None:
    """P_11 < P_00 < P_22: 1 receives 0.4 * 0.5 from 0 and 0.2 * 0.8 from 2; 0 receives 0.2 * 0.8 from 2."""
    assert close(class_weights(CONFIDENCE, 1.0), [1 - 0.2 + 0.16, 1 + 0.2 + 0.16, 1 - 0.16 - 0.16])
    assert close(class_weights(CONFIDENCE, 0.5), [0.98, 1.18, 0.84])


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_weights_sum_to_the_number_of_classes_before_the_clamp(count: int) -> None:
    logits = 3 * torch.randn(count, count, generator=torch.Generator().manual_seed(0)).double()
    weights = class_weights(logits.softmax(1), 1.5)
    assert float(weights.sum()) == pytest.approx(count, rel=1e-12)
    expected = [1.0] * count
    confidence = logits.softmax(1).tolist()
    for i in range(count):
        for j in range(count):
            if confidence[i][i] < confidence[j][j]:
                expected[i] += 1.5 * confidence[i][j] * confidence[j][j]
                expected[j] -= 1.5 * confidence[i][j] * confidence[j][j]
    assert weights.tolist() == pytest.approx(expected)


def test_negative_weights_are_reported_once() -> None:
    """All easier classes are confused with class 0, which receives more weight than they have."""
    confidence = torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.9, 0.0], [0.1, 0.0, 0.9]])
    schedule = DAFA(start_epoch=1, strength=3, floor=0.05)
    with pytest.warns(UserWarning, match=r"DAFA: strength = 3 gives negative weights, clamped at 0.05"):
        state = schedule.after_epoch(schedule.start(classes(3)), {"train.confidence": confidence}, 0)
    assert close(state["weights"], [1 + 2 * 3 * 0.4 * 0.9, 0.05, 0.05])
    schedule.after_epoch(state, {"train.confidence": confidence}, 0)  # said once


def test_dafa_average_differs_in_its_signal_only() -> None:
    confidence = torch.tensor([[0.4, 0.6], [0.3, 0.7]])
    own, average = DAFA(start_epoch=1), AverageDAFA(start_epoch=1)
    state = own.after_epoch(own.start(classes(2)), {"train.confidence": confidence}, 0)
    other = average.after_epoch(average.start(classes(2)), {"valid.average_confidence": confidence}, 0)
    assert torch.equal(state["weights"], other["weights"])
    assert close(other["weights"], [1 + 0.6 * 0.7, 1 - 0.6 * 0.7])


def test_dafa_average_uses_the_averaged_model(tmp_path: Path) -> None:
    """P is the mean softmax of the averaged model, on the validation split under its attack."""
    run = train("trades", out=tmp_path / "run", data="digits", overrides=TINY | AVERAGE | {"epochs": 1})
    weights = torch.load(run.state_file, weights_only=True)["schedules"][0]["weights"]
    images = validation_split(run, None, [], NullProgress())
    engine = Engine(run.model("average"), batch_size=48, early_stop=False, seed=0)
    jobs = [Job(batch.index, batch.x, batch.y) for batch in images.batches(48)]
    shares = torch.zeros(10, 10)
    for done in engine.attack(run.recipe.parts.validation_attack, Threat.parse("Linf:0.1"), jobs):
        shares.index_add_(0, done.y, done.logits.softmax(1))
    expected = class_weights(shares / images.class_counts()[:, None], 1.0).clamp_min(0.1)
    assert float((expected - 1).abs().max()) > 1e-4
    assert torch.allclose(weights, expected, atol=1e-5)


def test_weights_are_set_after_the_warm_up_and_constant_afterwards() -> None:
    schedule = DAFA(start_epoch=2, floor=0.7)
    before = ClassSettings(epsilon=torch.full((3,), EPSILON), step_size=torch.full((3,), 0.01))
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.confidence": torch.eye(3)}, 0)
    assert schedule.settings(state, before, 1) is before
    state = schedule.after_epoch(state, {"train.confidence": CONFIDENCE}, 1)
    weights = [0.96, 1.36, 0.7]  # 0.68 before the clamp
    for epoch in (2, 3):
        after = schedule.settings(state, before, epoch)
        assert close(after.clean_weight, weights)
        assert after.robust_weight is None
        assert close(after.epsilon, [weight * EPSILON for weight in weights])
        assert close(after.step_size, [weight * 0.01 for weight in weights])
        state = schedule.after_epoch(state, {"train.confidence": torch.eye(3)}, epoch)


def test_a_class_without_images_transfers_no_weight() -> None:
    confidence = CONFIDENCE.clone()
    confidence[1] = NAN
    assert close(class_weights(confidence, 1.0), [1.16, 1.0, 0.84])


def test_confidences_are_means_over_the_epochs_attacked_images() -> None:
    sums = ClassSums(3, frozenset({"train.confidence"}), torch.device("cpu"))
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    sums.add(torch.tensor([0, 0]), None, logits[:2])
    sums.add(torch.tensor([2]), None, logits[2:])
    confidence = sums.signals()["train.confidence"]
    assert torch.allclose(confidence[0], logits[:2].softmax(1).mean(0))
    assert confidence[1].isnan().all()
    assert torch.allclose(confidence[2], torch.full((3,), 1 / 3))
