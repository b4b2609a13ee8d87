"""Long-tail techniques by hand: focal loss, LDAM, logit similarity, class weights, and the choice of beta."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from classwise.attacks.losses import cross_entropy
from classwise.core.settings.config import make
from classwise.stats.pareto import pareto_front
from classwise.threat.ball import Threat
from classwise.training import SCHEDULES
from classwise.training.classes.signals import ClassSettings
from classwise.training.criteria.softmax import Focal, Softmax
from classwise.training.objectives.adversarial import boosted_cross_entropy
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.penalties import LogitSimilarity, class_similarity
from classwise.training.schedules.base import Classes
from classwise.training.schedules.beta import AutoBeta, chosen
from classwise.training.schedules.long_tail import LDAM, ClassWeights, CriticalClass
from classwise.training.schedules.targets import TowardsClass

from ..refusals import refused
from .by_hand import NAN, classes, close, constants

NONE = ClassSettings()


def test_the_focal_loss_by_hand() -> None:
    """p_y = 3/4 and 1/4: the cross-entropies times 1/16 and 9/16."""
    logits, y = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log(), torch.tensor([0, 1])
    assert torch.allclose(Focal()(logits, y, NONE), torch.tensor([-math.log(3 / 4) / 16, -math.log(1 / 4) * 9 / 16]))
    assert torch.allclose(Focal(gamma=0)(logits, y, NONE), cross_entropy(logits, y))


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_the_focal_loss_multiplies_any_base_and_stays_finite(count: int) -> None:
    y = torch.arange(4) % count
    logits = torch.randn(4, count, generator=torch.Generator().manual_seed(0))
    doubt = 1 - logits.softmax(1)[torch.arange(4), y]
    assert torch.allclose(Focal()(logits, y, NONE, boosted_cross_entropy), doubt**2 * boosted_cross_entropy(logits, y))
    sure = (200.0 * F.one_hot(y, count)).requires_grad_()
    loss = Focal(gamma=0.5)(sure, y, NONE)
    (gradient,) = torch.autograd.grad(loss.sum(), sure)
    assert bool(loss.isfinite().all())
    assert bool(gradient.isfinite().all())


def test_class_similarity_by_hand() -> None:
    """Class means (1, 1, 0), (1, 0, 0) and none: one pair, at 45 degrees; then a third at 180 degrees to the second."""
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    assert float(class_similarity(logits, torch.tensor([0, 0, 1]))) == pytest.approx(math.sqrt(0.5))
    logits = torch.cat([logits, torch.tensor([[-1.0, 0.0, 0.0]])])
    assert float(class_similarity(logits, torch.tensor([0, 0, 1, 2]))) == pytest.approx(math.sqrt(0.5) / 3)
    assert float(class_similarity(logits, torch.tensor([1, 1, 1, 1]))) == 0


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_the_penalty_is_added_to_the_mean(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = torch.randn(30, count, generator=generator, requires_grad=True)
    y = torch.randint(min(count, 7), (30,), generator=generator)
    batch = TrainingBatch(torch.zeros(30, 1, 1, 1), y, torch.arange(30), Threat("Linf", 0.1))
    losses = cross_entropy(logits, y)
    found = LogitSimilarity(strength=0.5)(Step({"robust": losses}, robust_logits=logits), batch, NONE)
    held = sorted(set(y.tolist()))
    means = [logits[y == label].mean(0) for label in held]
    pairs = [(a, b) for place, a in enumerate(means) for b in means[:place]]
    cosines = torch.stack([F.cosine_similarity(a, b, dim=0).clamp_min(0) for a, b in pairs])
    assert torch.allclose(found, losses.mean() + 0.5 * cosines.mean())
    (gradient,) = torch.autograd.grad(found, logits)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_emphasis_on_one_class(count: int) -> None:
    schedule = CriticalClass(critical="class 1", weight=4)
    after = schedule.settings(schedule.start(classes(count)), ClassSettings(clean_weight=torch.full((count,), 0.5)), 7)
    assert close(after.robust_weight, [1, 4, *[1] * (count - 2)])
    assert close(after.clean_weight, [0.5, 2, *[0.5] * (count - 2)])
    towards = TowardsClass(target="0")
    law = [[0] * count, *[[1, *[0] * (count - 1)]] * (count - 1)]  # class 0 is untargeted
    assert close(towards.settings(towards.start(classes(count)), NONE, 0).target, law)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "critical-class", "critical": "class 11"},
        {"name": "towards-class", "target": "class 11"},
        {"name": "vector-beta", "beta": {"class 11": 0.5}},
    ],
    ids=lambda spec: spec["name"],
)
def test_an_unknown_class_raises_an_error(spec: dict[str, object]) -> None:
    start = make(SCHEDULES, spec).start
    assert "unknown class 'class 11'; did you mean 'class 1'" in refused(start, classes(3))
    assert "class 'class 11' has no training image" in refused(start, Classes(("a", "class 11"), torch.tensor([3, 0])))


def test_the_pareto_front_by_hand() -> None:
    """Class 0 against the mean of the others; the third run is dominated by the second, the last two are equal."""
    runs = [[0.2, 0.6, 0.6], [0.3, 0.5, 0.6], [0.3, 0.5, 0.5], [0.5, 0.3, 0.2], [0.5, 0.25, 0.25]]
    assert pareto_front(runs, 0).tolist() == [True, True, False, True, True]
    assert pareto_front([[0.2, 0.6, math.nan], [0.1, 0.7, math.nan]], 0).tolist() == [True, True]


def test_runs_of_equal_accuracies_in_another_order_do_not_dominate_each_other() -> None:
    """The sums of 0.1, 0.2 and 0.3 in different orders are different floats; 1/3 + 2/3 equals 1/2 + 1/2."""
    assert pareto_front([[0.5, *order] for order in itertools.permutations([0.1, 0.2, 0.3, 0.7])], 0).all()
    assert pareto_front([[0.5, 1 / 3, 2 / 3, 1 / 7, 6 / 7], [0.5, 0.5, 0.5, 0.5, 0.5]], 0).all()


CONFUSION = torch.tensor([[60.0, 30, 10], [25, 40, 35], [0, 10, 90]])
HOMING = torch.tensor([[0.0, 9, 0], [20, 0, 5], [0, 0, 0]])


def test_the_pair_of_auto_beta_by_hand() -> None:
    """Class 1 is the worst; class 2 absorbs most of its errors, but the homing count of class 0 is larger."""
    assert chosen(CONFUSION).tolist() == [1, 2]
    assert chosen(CONFUSION, HOMING).tolist() == [1, 0]
    assert chosen(CONFUSION, torch.zeros(3, 3)).tolist() == [1, 2]
    assert chosen(CONFUSION, torch.tensor([[0.0, 0, 0], [3, 0, 3], [0, 0, 0]])).tolist() == [1, 2]  # a tie
    assert chosen(torch.eye(3)).tolist() == [-1, -1]
    assert chosen(torch.tensor([[0.0, 0, 0], [0, 8, 2], [0, 4, 6]])).tolist() == [2, 1]


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_auto_beta_lowers_one_beta_from_start_epoch(count: int) -> None:
    schedule, beta = AutoBeta(beta=0.5, start_epoch=2), torch.full((count,), 6.0)
    confusion = 10 * torch.eye(count)
    confusion[1, 0], confusion[1, 1] = 7, 3
    state = schedule.start(classes(count))
    state = schedule.after_epoch(state, {"train.confusion": confusion.flip(0).flip(1)}, 0)
    state = schedule.after_epoch(state, {"train.confusion": confusion}, 1)
    state = schedule.after_epoch(state, {"train.confusion": confusion.T}, 2)
    before = ClassSettings(beta=beta)
    assert schedule.settings(state, before, 1) is before
    for epoch in (2, 9):
        assert close(schedule.settings(state, before, epoch).beta, [0.5, *[6.0] * (count - 1)])


def test_auto_beta_takes_the_matrices_of_an_audit() -> None:
    spec = {"name": "auto-beta", "start_epoch": 1, "confusion": CONFUSION.tolist(), "homing": HOMING.tolist()}
    schedule = Recipe.read("trades", {"schedules": [spec]}).parts.schedules[0]
    found = schedule.settings(schedule.start(classes(3)), ClassSettings(beta=torch.full((3,), 6.0)), 1).beta
    assert close(found, [0.5, 6, 6])
    assert "homing must have 4 rows of 4 numbers" in refused(schedule.start, classes(4))


@pytest.mark.parametrize("strength", [1, 2, 4])
def test_the_three_strengths_of_the_paper(strength: int) -> None:
    schedule = Recipe.read("robust-error", {"schedules.0.strength": strength}).parts.schedules[0]
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.5, 0.4, 0.3])}, 0)
    assert close(schedule.settings(state, NONE, 1).robust_weight, [1 - 0.1 * strength, 1, 1 + 0.1 * strength])


COUNTS = torch.tensor([100, 10, 0, 1000])


def raw(values: list[float]) -> list[float]:
    held = sum(value > 0 for value in values)
    return [value * held / sum(values) for value in values]


def test_weights_by_counts_equal_their_formulas() -> None:
    names = ("a", "b", "c", "d")
    inverse, effective = ClassWeights(kind="inverse"), ClassWeights(kind="effective", base=0.99)
    assert close(inverse.weights(inverse.start(Classes(names, COUNTS))), raw([1 / 100, 1 / 10, 0, 1 / 1000]))
    by_hand = [0.01 / (1 - 0.99**100), 0.01 / (1 - 0.99**10), 0, 0.01 / (1 - 0.99**1000)]
    assert close(effective.weights(effective.start(Classes(names, COUNTS))), raw(by_hand))
    evenly = ClassWeights(kind="inverse", mode="sampling")
    sampling = evenly.settings(evenly.start(Classes(names, COUNTS)), constants(4), 0).sampling
    each = 27.027027  # a class is drawn as often as another
    assert close(sampling, [each / 100, each / 10, 0.0, each / 1000])


def test_weights_by_robust_images_use_the_last_epoch() -> None:
    schedule = ClassWeights(kind="inverse", count="robust", start_epoch=1)
    state = schedule.start(classes(3))
    before = constants(3)
    assert schedule.settings(state, before, 0) is before
    state = schedule.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, NAN])}, 0)
    assert close(schedule.settings(state, before, 1).robust_weight, raw([1 / 4, 1 / 2, 1 / 5]))


def test_weights_by_robust_error_by_hand_and_never_negative() -> None:
    schedule = ClassWeights(kind="robust-error", strength=2)
    state = schedule.start(classes(3))
    assert close(schedule.weights(state), [1.0] * 3)
    state = schedule.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 0)
    assert close(schedule.weights(state), [0.4, 1.2, 1.4])
    steep = ClassWeights(kind="robust-error", strength=4)
    with pytest.warns(UserWarning, match="strength = 4 gives negative weights"):
        state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 0)
    state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 1)  # said once
    assert close(steep.weights(state), [0.0, 1.4 * 3 / 3.2, 1.8 * 3 / 3.2])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ldam_by_hand(scale: float) -> None:
    """Counts 160, 10, none and 810: the fourth roots of 16, 1 and 81."""
    schedule = LDAM(start_epoch=2, base=0.99, scale=scale)
    state = schedule.start(Classes(("a", "b", "c", "d"), torch.tensor([160, 10, 0, 810])))
    early, late = schedule.settings(state, constants(4), 1), schedule.settings(state, constants(4), 2)
    assert close(early.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert early.robust_weight is None
    assert close(late.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert close(late.robust_weight, raw([1 / (1 - 0.99**160), 1 / (1 - 0.99**10), 0, 1 / (1 - 0.99**810)]))
    logits, y = torch.tensor([[0.3, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9]]), torch.tensor([0, 3])
    expected = scale * torch.tensor([[0.05, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9 - 0.5 / 3]])
    scaled = Softmax().scaled(lambda x: x, early)(logits)
    asked: list[torch.Tensor] = []

    def seen(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        asked.append(z)
        return cross_entropy(z, y)

    Softmax()(scaled, y, early, seen)
    assert torch.allclose(asked[0], expected, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_ldams_margins_for_any_number_of_classes(count: int) -> None:
    counts = torch.arange(1, count + 1) ** 2
    after = LDAM(max_margin=0.8).settings(
        LDAM().start(Classes(tuple(map(str, range(count))), counts)), constants(count), 0
    )
    assert close(after.logit_margin, [0.8 / math.sqrt(label) for label in range(1, count + 1)])


def test_ldam_on_balanced_data_counts_robust_images() -> None:
    schedule = LDAM(robust=True)
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.8, NAN, 0.4])}, 0)
    roots = [2**-0.25, 2.5**-0.25, 1]
    assert close(schedule.settings(state, constants(3), 1).logit_margin, [0.5 * root for root in roots])


@pytest.mark.parametrize(
    ("by_images", "by_robust_images"),
    [
        ({"name": "class-weights", "kind": "inverse"}, {"count": "robust"}),
        ({"name": "class-weights"}, {"kind": "robust-error"}),
        ({"name": "ldam", "scale": 1.0}, {"robust": True}),
    ],
)
def test_numbers_of_images_need_no_attack(by_images: dict[str, Any], by_robust_images: dict[str, Any]) -> None:
    """So standard training may have them, and a state that no epoch changes gives the same settings."""
    (schedule,) = Recipe.read("standard", {"schedules": [by_images]}).parts.schedules
    state = schedule.start(Classes(("a", "b"), torch.tensor([10, 30])))
    (before, after) = (
        schedule.settings(each, constants(2), 300) for each in (state, schedule.after_epoch(state, {}, 0))
    )
    assert repr(before) == repr(after)
    asked = [by_images | by_robust_images]
    assert "which needs an inner attack" in refused(Recipe.read, "standard", {"schedules": asked})
