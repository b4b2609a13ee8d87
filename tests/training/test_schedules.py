"""Class schedules against numbers by hand and closed forms, and a short run of each on digits."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from classwise.attacks.ascent import PGD
from classwise.attacks.base import Case
from classwise.attacks.engine import Engine, Job
from classwise.compute import Forward
from classwise.data import Images
from classwise.draws import Draws
from classwise.errors import UserError
from classwise.progress import Silent
from classwise.threat import Threat
from classwise.training import loop
from classwise.training.classes import ClassSettings, ClassSums
from classwise.training.faal import FAAL, worst_distribution
from classwise.training.heldout import held_out
from classwise.training.loop import train
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.objectives.margin import with_margin
from classwise.training.objectives.trix import Trix
from classwise.training.recipe import Recipe
from classwise.training.reductions import mean, normalised
from classwise.training.schedules.base import Classes
from classwise.training.schedules.cfol import CFOL
from classwise.training.schedules.dafa import DAFA, AverageDAFA, class_weights
from classwise.training.schedules.fair_tat import FairTAT
from classwise.training.schedules.frl import FRL
from classwise.training.schedules.ldam import LDAM
from classwise.training.schedules.long_tail import ClassWeights
from classwise.training.schedules.margins import Margins
from classwise.training.schedules.wat import WAT

NAN = math.nan
EPSILON = 8 / 255


def classes(count: int) -> Classes:
    return Classes(tuple(f"class {label}" for label in range(count)), torch.full((count,), 5))


def constants(count: int) -> ClassSettings:
    return ClassSettings(epsilon=torch.full((count,), EPSILON), beta=torch.full((count,), 6.0))


def close(values: Tensor | None, expected: list[float], tolerance: float = 1e-6) -> bool:
    assert values is not None
    return torch.allclose(values.float(), torch.tensor(expected), atol=tolerance)


def batch_of(y: Tensor) -> TrainingBatch:
    return TrainingBatch(torch.zeros(len(y), 1, 1, 1), y, torch.arange(len(y)), Threat("Linf", 0.1))


# FRL


def test_frl_by_hand_over_two_epochs() -> None:
    """Clean errors 0.1, 0.2, 0.6 (mean 0.3), boundary errors 0.2, 0.5, 0.2 (mean 0.3), tolerance 0.07."""
    schedule = FRL(halve_every=1)
    state = schedule.start(classes(3))
    signals = {"valid.clean": torch.tensor([0.9, 0.8, 0.4]), "valid.robust": torch.tensor([0.7, 0.3, 0.2])}
    first = schedule.settings(state, constants(3), 0)
    assert close(first.clean_weight, [1.0] * 3)
    assert close(first.epsilon, [EPSILON] * 3)
    state = schedule.after_epoch(state, signals, 0)
    assert close(state["clean"], [0, 0, 0.05 * 0.23])
    assert close(state["robust"], [0, 0.1 * 0.13, 0])
    assert close(state["margin"], [0.2 * -0.17, 0.2 * 0.13, 0.2 * -0.17])
    state = schedule.after_epoch(state, signals, 1)  # the rate has halved, the margin's has not
    lam0, lam1, lam2 = 0.075 * 0.23, 0.15 * 0.13, 0.4 * 0.13
    assert close(state["clean"], [0, 0, lam0])
    assert close(state["robust"], [0, lam1, 0])
    after = schedule.settings(state, constants(3), 2)
    assert close(after.clean_weight, [1 - lam0, 1 - lam0, 1 + 2 * lam0])
    assert close(after.robust_weight, [1 - lam1, 1 + 2 * lam1, 1 - lam1])
    widest = EPSILON * math.exp(2 * lam2)
    assert close(after.epsilon, [0.98 * EPSILON, widest, 0.98 * EPSILON])
    assert close(after.step_size, [widest / 4] * 3)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_frl_multipliers_stay_in_their_bounds_and_weights_sum_to_the_classes(count: int) -> None:
    schedule = FRL(rate=10, margin_rate=5)
    state = schedule.start(classes(count))
    clean = torch.linspace(0.2, 0.9, count)
    for epoch in range(3):
        state = schedule.after_epoch(state, {"valid.clean": clean, "valid.robust": clean * clean}, epoch)
        for name in ("clean", "robust"):
            assert float(state[name].min()) >= 0
            assert float(state[name].sum()) <= 0.5 + 1e-6
        after = schedule.settings(state, constants(count), epoch + 1)
        for weight in (after.clean_weight, after.robust_weight):
            assert weight is not None
            assert float(weight.sum()) == pytest.approx(count, rel=1e-5)
            assert float(weight.min()) >= 0.5 - 1e-5
        assert after.epsilon is not None
        assert float(after.epsilon.min()) >= 0.98 * EPSILON - 1e-6
        assert float(after.epsilon.max()) <= 3 * EPSILON + 1e-6


def test_frl_keeps_the_multipliers_of_a_class_that_validation_does_not_hold() -> None:
    schedule = FRL()
    signals = {"valid.clean": torch.tensor([0.9, NAN, 0.1]), "valid.robust": torch.tensor([0.5, NAN, 0.1])}
    state = schedule.after_epoch(schedule.start(classes(3)), signals, 0)
    assert close(state["clean"], [0, 0, 0.05 * (0.9 - 0.5 - 0.07)])
    assert float(state["margin"][1]) == 0


def test_frl_variants_change_weights_or_radii() -> None:
    signals = {"valid.clean": torch.tensor([0.9, 0.3]), "valid.robust": torch.tensor([0.1, 0.3])}
    reweight, remargin = FRL(tolerance=0.1, margin_rate=0), FRL(boundary=0)
    state = reweight.after_epoch(reweight.start(classes(2)), signals, 0)
    after = reweight.settings(state, constants(2), 1)
    assert close(after.epsilon, [EPSILON] * 2)
    assert after.step_size is None
    assert not close(after.robust_weight, [1.0] * 2)
    state = remargin.after_epoch(remargin.start(classes(2)), signals, 0)
    after = remargin.settings(state, constants(2), 1)
    assert close(after.robust_weight, [1.0] * 2)
    assert not close(after.epsilon, [EPSILON] * 2)


def test_a_normalised_reduction_divides_by_the_weights_of_the_batch() -> None:
    y = torch.tensor([0, 0, 1])
    step = Step({"clean": torch.tensor([1.0, 2.0, 3.0]), "robust": torch.tensor([4.0, 5.0, 6.0])})
    settings = ClassSettings(clean_weight=torch.tensor([0.5, 2.0, 7.0]), robust_weight=torch.tensor([1.0, 3.0, 7.0]))
    by_hand = (0.5 + 1 + 6) / 3 + (4 + 5 + 18) / 5
    assert float(normalised(step, batch_of(y), settings)) == pytest.approx(by_hand)
    plain = ClassSettings()
    assert float(normalised(step, batch_of(y), plain)) == pytest.approx(float(mean(step, batch_of(y), plain)))


@pytest.mark.parametrize(
    ("recipe", "changes", "says"),
    [
        (
            "frl",
            {"data.validation": 0, "selection": "last"},
            "'frl' reads valid.clean, and data.validation = 0",
        ),
        (
            "wat",
            {"data.validation": 0, "selection": "last"},
            "'wat' reads valid.count, and data.validation = 0",
        ),
        ("frl", {"objective": "at"}, "sets beta, which this objective does not have"),
        (
            "ldam",
            {"objective": "at"},
            "sets margins, which this objective does not take; use at-margin",
        ),
        ("dafa", {"schedules.0.begin": 0}, "begin = 0"),
        ("dafa", {"schedules.0.terms": ["cleen"]}, "terms.0 = 'cleen'"),
        ("faal", {"reduction.radius": 0}, "radius = 0"),
        ("cfol", {"schedules.0.mix": 1.5}, "mix = 1.5"),
        ("effective-number", {"schedules.0.base": 1}, "base = 1"),
        ("fair-tat", {"schedules.0.smoothing": 0}, "smoothing = 0"),
    ],
)
def test_a_mistake_is_one_line_before_data_is_read(recipe: str, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.read(recipe, changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# DAFA

CONFIDENCE = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]])


def test_dafa_by_hand() -> None:
    """P_11 < P_00 < P_22: 1 takes 0.4 * 0.5 from 0 and 0.2 * 0.8 from 2, 0 takes 0.2 * 0.8 from 2."""
    assert close(class_weights(CONFIDENCE, 1.0), [1 - 0.2 + 0.16, 1 + 0.2 + 0.16, 1 - 0.16 - 0.16])
    assert close(class_weights(CONFIDENCE, 0.5), [0.98, 1.18, 0.84])


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_dafa_weights_sum_to_the_classes_before_the_clamp(count: int) -> None:
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


def test_dafa_of_the_average_differs_in_its_signal_alone() -> None:
    confidence = torch.tensor([[0.4, 0.6], [0.3, 0.7]])
    own, average = DAFA(begin=1), AverageDAFA(begin=1)
    state = own.after_epoch(own.start(classes(2)), {"train.confidence": confidence}, 0)
    other = average.after_epoch(average.start(classes(2)), {"valid.average_confidence": confidence}, 0)
    assert torch.equal(state["weights"], other["weights"])
    assert close(other["weights"], [1 + 0.6 * 0.7, 1 - 0.6 * 0.7])
    with pytest.raises(UserError, match=r"reads valid.average_confidence, and data.validation = 0"):
        Recipe.read("frontier", {"data.validation": 0})


def test_dafa_of_the_average_reads_the_average(tmp_path: Path) -> None:
    """P is the mean softmax of the kept average, on the validation split under its attack."""
    changes = TINY | METHODS["frontier-short"] | {"epochs": 1}
    run = train("frontier-short", out=tmp_path / "run", data="digits", changes=changes)
    weights = torch.load(run.state_file, weights_only=True)["schedules"][0]["weights"]
    images = held_out(run)
    engine = Engine(run.model("average"), batch=48, stop="never", seed=0)
    jobs = [Job(batch.index, batch.x, batch.y) for batch in images.batches(48)]
    shares = torch.zeros(10, 10)
    for done in engine.attack(run.recipe.parts().validation_attack, Threat.parse("Linf:0.1"), jobs):
        shares.index_add_(0, done.y, done.logits.softmax(1))
    expected = class_weights(shares / images.class_counts()[:, None], 1.0).clamp_min(0.1)
    assert float((expected - 1).abs().max()) > 1e-4
    assert torch.allclose(weights, expected, atol=1e-5)


def test_dafa_begins_after_its_warm_up_and_then_stays() -> None:
    schedule = DAFA(begin=2, floor=0.7)
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


def test_a_class_without_images_trades_nothing() -> None:
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


# FAAL


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_faals_distribution_lies_on_the_boundary_of_its_ball(count: int, radius: float) -> None:
    margins = torch.rand(count, generator=torch.Generator().manual_seed(count)) * 2 - 1
    p = worst_distribution(margins, radius)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert float(-p.log().mean()) - math.log(count) == pytest.approx(radius, abs=1e-8)
    assert torch.equal(p.argsort(), margins.argsort())


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_faals_closed_form_is_what_slsqp_finds(count: int, radius: float) -> None:
    margins = torch.rand(count, generator=torch.Generator().manual_seed(7 + count)).double().numpy() * 2 - 1
    uniform = np.full(count, 1 / count)
    found = scipy.optimize.minimize(  # type: ignore[call-overload]  # its stubs want narrower dicts
        lambda p: -p @ margins,
        uniform,
        jac=lambda p: -margins,
        method="SLSQP",
        bounds=[(1e-9, 1)] * count,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(count)},
            {
                "type": "ineq",
                "fun": lambda p: radius + np.log(p).mean() + math.log(count),
                "jac": lambda p: 1 / (count * p),
            },
        ],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert np.abs(worst_distribution(torch.from_numpy(margins), radius).numpy() - found.x).max() < 1e-5


def test_faal_with_equal_margins_is_the_mean_and_one_far_class_is_reached() -> None:
    assert close(worst_distribution(torch.full((10,), 0.3), 0.5), [0.1] * 10)
    margins = torch.zeros(100)
    margins[0] = -1  # a single easy class must be starved almost wholly before the divergence is 0.5
    p = worst_distribution(margins, 0.5)
    assert float(-p.log().mean()) - math.log(100) == pytest.approx(0.5, abs=1e-8)
    assert float(p[0]) < 1e-20


@pytest.mark.parametrize(("weighted", "expected"), [(False, [-0.2, 0.6, -1.0]), (True, [-0.4, 0.6, -1.0])])
def test_faals_margins_and_loss_by_hand(weighted: bool, expected: list[float]) -> None:
    """Two images of class 0 with margins -0.5 and 0.1, one of class 1 with 0.6, none of class 2; 3 images, C = 3."""
    sure = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.7, 0.1, 0.2]])
    y = torch.tensor([0, 0, 1])
    faal = FAAL(weighted=weighted)
    margins = faal.margins(sure.log(), y)
    assert close(margins, expected)
    p = worst_distribution(margins, 0.5)
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    loss = faal(Step({"robust": losses}, robust_logits=sure.log()), batch_of(y), ClassSettings())
    assert float(loss.detach()) == pytest.approx(float(3 * p[0] + 4 * p[1]), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, losses)
    assert close(gradient, p[y].tolist())


def test_a_reduction_has_settings_that_the_recipe_keeps() -> None:
    recipe = Recipe.read("faal", {"reduction.radius": 0.1})
    assert recipe.completed(Threat("Linf", 0.1)).reduction == {"name": "faal", "radius": 0.1, "weighted": False}
    assert Recipe.read("at", {"reduction": "faal:radius=0.2"}).parts().reduction == FAAL(radius=0.2)
    with pytest.raises(UserError, match="reduction 'mean' has no settings"):
        Recipe.read("at", {"reduction": "mean:radius=0.2"})
    with pytest.raises(UserError, match="unknown reduction 'fall'"):
        Recipe.read("at", {"reduction": "fall"})


# CFOL


def erring(y: Tensor, wrong: list[bool], count: int) -> Step:
    predicted = torch.where(torch.tensor(wrong), (y + 1) % count, y)
    return Step({"robust": torch.zeros(len(y))}, robust_logits=torch.eye(count)[predicted])


def test_cfol_is_exp3_by_hand() -> None:
    """Classes of 1 and 3 images; two errors in class 0 and one in class 1, rate 0.5, mix 0.4."""
    schedule = CFOL(mix=0.4, rate=0.5)
    state = schedule.start(Classes(("a", "b"), torch.tensor([1, 3])))
    first = schedule.settings(state, constants(2), 0)
    assert close(first.sampling, [0.5 / 0.25, 0.5 / 0.75])  # the odds of an image, so that a class has 1/2
    y = torch.tensor([0, 0, 1, 1, 0])
    state = schedule.after_batch(state, erring(y, [True, True, False, True, False], 2), batch_of(y))
    assert close(state["scores"], [2 * 0.5 / 0.5, 0.5 / 0.5])
    focused = math.exp(2) / (math.exp(2) + math.exp(1))
    p = 0.2 + 0.6 * focused
    assert close(schedule.law(state), [p, 1 - p])
    state = schedule.after_batch(state, erring(y, [False] * 2 + [True] + [False] * 2, 2), batch_of(y))
    assert close(state["scores"], [2.0, 1.0 + 0.5 / (1 - p)])


def test_cfol_by_weights_divides_by_the_shares_of_the_data() -> None:
    schedule = CFOL(mix=0.5, rate=0.1, acts="weights")
    state = schedule.start(Classes(("a", "b", "c"), torch.tensor([1, 3, 0])))
    y = torch.tensor([0, 1, 1])
    state = schedule.after_batch(state, erring(y, [True, True, True], 3), batch_of(y))
    assert close(state["scores"], [0.1 / 0.25, 0.2 / 0.75, 0])
    high, low = math.exp(0.4), math.exp(0.2 / 0.75)
    p = 0.25 + 0.5 * high / (high + low)
    after = schedule.settings(state, constants(3), 0)
    assert close(after.robust_weight, [3 * p, 3 * (1 - p), 0])
    assert after.sampling is None


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_cfols_law_is_a_law_whatever_the_scores(count: int) -> None:
    schedule = CFOL()
    state = {"scores": torch.linspace(0, 1e4, count), "shares": torch.full((count,), 1 / count)}
    law = schedule.law(state)
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert float(law.min()) == pytest.approx(0.5 / count)


# WAT


def test_wat_is_hedge_by_hand() -> None:
    schedule = WAT(rate=0.1, beta=6)
    state = schedule.start(classes(2))
    assert close(schedule.settings(state, constants(2), 0).clean_weight, [1.0, 1.0])
    total = [0.0, 0.0, 0.0]
    for epoch, (loss, divergence) in enumerate([([1.0, 2.0], [0.1, 0.5]), ([0.5, 1.0], [0.2, 0.4])]):
        signals = {
            "valid.loss": torch.tensor(loss),
            "valid.divergence": torch.tensor(divergence),
            "valid.count": torch.tensor([3.0, 1.0]),
        }
        state = schedule.after_epoch(state, signals, epoch)
        each = [loss[c] + 6 * divergence[c] for c in (0, 1)]
        each.append((3 * each[0] + each[1]) / 4)
        total = [before + now for before, now in zip(total, each, strict=True)]
    raised = [math.exp(0.1 * value) for value in total]
    w = [value / sum(raised) for value in raised]
    assert close(schedule.experts(state), w)
    after = schedule.settings(state, constants(2), 2)
    for weight in (after.clean_weight, after.robust_weight):
        assert close(weight, [2 * w[0] + w[2], 2 * w[1] + w[2]])


def test_wat_gives_a_class_without_validation_images_the_average() -> None:
    signals = {
        "valid.loss": torch.tensor([1.0, NAN, 3.0]),
        "valid.divergence": torch.tensor([0.0, NAN, 0.0]),
        "valid.count": torch.tensor([1.0, 0.0, 1.0]),
    }
    schedule = WAT()
    assert close(schedule.after_epoch(schedule.start(classes(3)), signals, 0)["losses"], [1.0, 2.0, 3.0, 2.0])


# TRIX and FAIR-TAT


def test_the_classes_that_trix_calls_easy_by_hand() -> None:
    """Weights 0.96, 1.36 and 0.68 for two images of class 0 and one each of the others: their mean is 0.99."""
    logits = CONFIDENCE.log()[torch.tensor([0, 0, 1, 2])]
    assert Trix().easy(logits, torch.tensor([0, 0, 1, 2])).tolist() == [True, True, False, True]
    assert Trix().easy(logits[:2], torch.tensor([0, 0])).tolist() == [False, False]  # nothing to compare with


@pytest.mark.parametrize("count", [2, 3, 10])
def test_trix_aims_at_others_for_easy_classes_alone(count: int) -> None:
    class Watched(PGD):
        """Remembers what it was asked."""

        def run(self, model: Forward, case: Case) -> Tensor:
            del model
            seen.append(case)
            return case.x

    seen: list[Case] = []
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % count
    logits = 2 * torch.randn(60, count, generator=generator) + torch.eye(count)[y] * y[:, None]
    trix = Trix()
    trix.points(lambda x: logits, batch_of(y), Watched(), ClassSettings(), Draws(0))
    target = seen[0].target
    assert target is not None
    assert torch.equal(target >= 0, trix.easy(logits, y))
    assert 0 < int((target >= 0).sum()) < 60
    assert not bool((target == y).any())
    assert int(target.max()) < count
    assert len(set(((target - y) % count)[target >= 0].tolist())) == count - 1


def test_towards_a_target_the_divergence_gives_way_to_the_cross_entropy() -> None:
    """A linear model whose logits are the pixels: a target's pixel rises, and the untargeted row moves as ever."""

    def linear(x: Tensor) -> Tensor:
        return 5 * x.flatten(1)

    x = torch.full((2, 1, 1, 3), 0.5) + torch.tensor([0.05, 0.0, -0.05])
    case = Case(x, torch.tensor([0, 0]), torch.arange(2), Threat("Linf", 0.1), Draws(0), reference=linear(x))
    attack = PGD(steps=5, step_size=0.05, objective="kl", begin="normal")
    plain = attack.run(linear, case)
    aimed = attack.run(linear, dataclasses.replace(case, target=torch.tensor([2, -1])))
    assert torch.allclose(aimed[0].flatten(), torch.tensor([0.45, 0.4, 0.55]), atol=1e-6)
    assert torch.equal(aimed[1], plain[1])


def test_fair_tat_by_hand() -> None:
    schedule = FairTAT(smoothing=1)
    state = schedule.start(classes(3))
    first = schedule.settings(state, constants(3), 0).target
    assert first is not None
    assert torch.allclose(first, (1 - torch.eye(3)) / 2)
    confusion = torch.tensor([[5.0, 2.0, 0.0], [1.0, 6.0, 0.0], [3.0, 4.0, 9.0]])
    state = schedule.after_epoch(state, {"train.confusion": confusion}, 0)  # false positives 4, 6, 0
    law = schedule.settings(state, constants(3), 1).target
    assert law is not None
    assert torch.allclose(law, torch.tensor([[0, 7 / 8, 1 / 8], [5 / 6, 0, 1 / 6], [5 / 12, 7 / 12, 0]]))


# Long-tail weights

COUNTS = torch.tensor([100, 10, 0, 1000])


def raw(values: list[float]) -> list[float]:
    held = sum(value > 0 for value in values)
    return [value * held / sum(values) for value in values]


def test_weights_by_counts_are_their_formulas() -> None:
    names = ("a", "b", "c", "d")
    inverse, effective = ClassWeights(kind="inverse"), ClassWeights(kind="effective", base=0.99)
    assert close(inverse.weights(inverse.start(Classes(names, COUNTS))), raw([1 / 100, 1 / 10, 0, 1 / 1000]))
    by_hand = [0.01 / (1 - 0.99**100), 0.01 / (1 - 0.99**10), 0, 0.01 / (1 - 0.99**1000)]
    assert close(effective.weights(effective.start(Classes(names, COUNTS))), raw(by_hand))
    evenly = ClassWeights(kind="inverse", acts="sampling")
    sampling = evenly.settings(evenly.start(Classes(names, COUNTS)), constants(4), 0).sampling
    assert sampling is not None
    assert close(sampling * COUNTS, [27.027027] * 2 + [0.0, 27.027027], 1e-4)  # a class is drawn as often as another


def test_weights_by_robust_images_follow_the_last_epoch() -> None:
    schedule = ClassWeights(kind="inverse", by="robust", begin=1)
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
    with pytest.warns(UserWarning, match="strength = 4 turns weights negative"):
        state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 0)
    state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 1)  # said once
    assert close(steep.weights(state), [0.0, 1.4 * 3 / 3.2, 1.8 * 3 / 3.2])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ldam_by_hand(scale: float) -> None:
    """Counts 160, 10, none and 810: the fourth roots of 16, 1 and 81."""
    schedule = LDAM(begin=2, base=0.99, scale=scale)
    state = schedule.start(Classes(("a", "b", "c", "d"), torch.tensor([160, 10, 0, 810])))
    early, late = schedule.settings(state, constants(4), 1), schedule.settings(state, constants(4), 2)
    assert close(early.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert early.robust_weight is None
    assert close(late.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert close(late.robust_weight, raw([1 / (1 - 0.99**160), 1 / (1 - 0.99**10), 0, 1 / (1 - 0.99**810)]))
    logits, y = torch.tensor([[0.3, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9]]), torch.tensor([0, 3])
    expected = scale * torch.tensor([[0.05, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9 - 0.5 / 3]])
    assert torch.allclose(with_margin(logits, y, early), expected, atol=1e-6)
    assert with_margin(logits, y, ClassSettings()) is logits


def test_ldam_on_balanced_data_counts_robust_images() -> None:
    schedule = LDAM(robust=True)
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.8, NAN, 0.4])}, 0)
    roots = [2**-0.25, 2.5**-0.25, 1]
    assert close(schedule.settings(state, constants(3), 1).logit_margin, [0.5 * root for root in roots])


# Margins


def radii(schedule: Margins, *epochs: list[float]) -> Tensor:
    """The radii over eps once the epochs reached these robust accuracies."""
    state = schedule.start(classes(len(epochs[0])))
    for number, robust in enumerate(epochs):
        state = schedule.after_epoch(state, {"train.robust": torch.tensor(robust)}, number)
    found = schedule.settings(state, constants(len(epochs[0])), len(epochs)).epsilon
    assert found is not None
    return found / EPSILON


def test_margins_by_hand_and_the_sign_alone_decides() -> None:
    reached = [0.2, 0.5, 0.8]
    assert close(radii(Margins(slope=1), reached), [0.7, 1.0, 1.3])
    assert close(radii(Margins(slope=-1), reached), [1.3, 1.0, 0.7])
    start = Margins().start(classes(3))
    assert close(Margins().settings(start, constants(3), 0).epsilon, [EPSILON] * 3)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_margins_keep_the_mean_radius(count: int, slope: float) -> None:
    reached = torch.rand(count, generator=torch.Generator().manual_seed(count)).tolist()
    assert float(radii(Margins(slope=slope), reached).mean()) == pytest.approx(1, abs=1e-5)


def test_margins_of_classes_never_seen_stand_and_of_absent_ones_stay() -> None:
    assert close(radii(Margins(), [0.2, NAN, 0.4]), [0.9, 1.0, 1.1])
    assert close(radii(Margins(), [0.2, 0.6, 0.4], [0.2, NAN, 0.4]), [0.8, 1.2, 1.0])
    assert close(radii(Margins(slope=10, floor=0.25), [0.0, 0.4]), [0.25, 3.0])


def test_the_two_margins_recipes_differ_in_one_sign() -> None:
    for short in ("", "-short"):
        smaller, larger = (Recipe.read(f"margins-{name}{short}") for name in ("smaller", "larger"))
        texts: dict[str, Any] = {"name": smaller.name, "description": smaller.description, "source": smaller.source}
        assert dataclasses.replace(larger, **texts, schedules=smaller.schedules) == smaller
        (one,), (other,) = smaller.parts().schedules, larger.parts().schedules
        assert isinstance(one, Margins)
        assert dataclasses.replace(one, slope=-one.slope) == other


# All of them, on digits

TINY: dict[str, object] = {
    "model": {"name": "lenet"},
    "data.subset": 160,
    "data.validation": 0.2,
    "data.augment": "none",
    "attack.steps": 2,
    "validation_attack": "pgd:steps=2,step_size=0.5eps",
    "threat": "Linf:0.1",
    "batch_size": 48,
    "epochs": 2,
}
METHODS: dict[str, dict[str, object]] = {
    "frl-short": {},
    "dafa-short": {"schedules.0.begin": 1},
    "frontier-short": {"schedules.0.begin": 1, "update.begin": 0, "averaging.decay": 0.9},
    "frontier-finetune-short": {"averaging.decay": 0.9, "epochs": 2},
    "margins-smaller-short": {},
    "margins-larger-short": {},
    "faal-short": {},
    "cfol-short": {"schedules.0.rate": 0.01},
    "cfol-weights-short": {"schedules.0.rate": 0.01},
    "wat-short": {},
    "trix-short": {"schedules.0.begin": 1},
    "fair-tat-short": {},
    "effective-number-short": {},
    "ldam-short": {"schedules.0.begin": 1},
    "auto-beta-short": {"schedules.0.begin": 1},
    "robust-error-sampling-short": {  # and the rest of the long tail
        "objective": {"name": "at", "criterion": {"name": "focal"}},
        "reduction": "logit-similarity",
        "schedules": [
            {"name": "class-weights", "kind": "robust-error", "acts": "sampling"},
            {"name": "critical-class", "critical": "1"},
            {"name": "towards-class", "target": "0"},
        ],
    },
    "he-lis-short": {"model": {"name": "lenet", "options": {"head": "cosine"}}},
    "he-cmp-short": {"model": {"name": "lenet", "options": {"head": "cosine"}}},
}


class Killed(BaseException):
    """Ends a run at once."""


class KillAt(Silent):
    """Kills the run after so many steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def advance(self, amount: int) -> None:
        self.left -= amount
        if self.left <= 0:
            raise Killed


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_digits_and_resumes_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = TINY | METHODS[name]
    whole = train(name, out=tmp_path / "whole", data="digits", changes=changes)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        train(name, out=tmp_path / "killed", data="digits", changes=changes, progress=KillAt(4))
    resumed = train(name, out=tmp_path / "killed", data="digits", changes=changes, resume=True)
    assert whole.complete
    for file in ("epochs.parquet", "checkpoints/last.safetensors"):
        assert (whole.path / file).read_bytes() == (resumed.path / file).read_bytes(), file
    states = torch.load(whole.state_file, weights_only=True)["schedules"]
    assert all(bool(value.isfinite().all()) for state in states for value in state.values())


def test_a_run_may_start_from_another(tmp_path: Path) -> None:
    first = train("at-short", out=tmp_path / "first", data="digits", changes=TINY, epochs=1)
    changes = TINY | {"model": {"name": "lenet", "start": str(first.path)}}
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}, "epochs": 1}
    second = train("faal", out=tmp_path / "second", data="digits", changes=changes | still)
    before, after = (dict(run.model("last").named_parameters()) for run in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)
    shutil.rmtree(first.path)
    train("faal", out=tmp_path / "second", data="digits", changes=changes | still, resume=True)  # not needed any more
    with pytest.raises(UserError, match="first"):
        train("faal", out=tmp_path / "third", data="digits", changes=changes)


class Heard(Silent):
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(("name", "part"), [("frl-short", "frl"), ("faal-short", "faal"), ("dafa-short", None)])
def test_what_is_meant_for_robust_models_says_so(name: str, part: str | None, tmp_path: Path) -> None:
    heard = Heard()
    first = train(name, out=tmp_path / "run", data="digits", changes=TINY, epochs=1, progress=heard)
    said = [line for line in heard.lines if "meant to start" in line]
    wanted = f"{part!r} is meant to start from a robust model; give one, as in --set model.start=runs/at"
    assert said == ([] if part is None else [wanted])
    started = Heard()
    changes = TINY | {"model": {"name": "lenet", "start": str(first.path)}}
    train(name, out=tmp_path / "second", data="digits", changes=changes, epochs=1, progress=started)
    assert not any("meant to start" in line for line in started.lines)


def test_an_epoch_records_sampling_margins_and_targets(tmp_path: Path) -> None:
    def rows(name: str) -> pd.DataFrame:
        changes = TINY | {"epochs": 2}
        return train(name, out=tmp_path / name, data="digits", changes=changes).epochs.query("split == 'train'")

    drawn, asked, aimed = rows("cfol-short"), rows("ldam-short"), rows("fair-tat-short")
    assert drawn["sampling"].notna().all()
    assert asked["logit_margin"].max() == pytest.approx(0.5)
    assert asked[["sampling", "target"]].isna().all(axis=None)
    law = np.stack(aimed.query("epoch == 1")["target"].to_list())
    assert law.shape == (10, 10)
    assert (law.diagonal() == 0).all()


def test_a_recipe_without_a_start_has_the_digest_that_it_had() -> None:
    """Written down before the field was there, so that runs from then resume."""
    assert Recipe.read("at").digest() == "3760392501186802cee842ea17d41611abaec3d2eadd286dc446a014320e3ef1"


class NeverWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Refuses what would wait for a device: a number read from a tensor, a shape that depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        assert func.overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_any_number_of_classes_unbalanced_and_missing_and_never_waits_in_a_step(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class c has about 1/(c + 1) of the first one's images; no batch holds all of 100 classes."""
    step = loop.Trainer.train_step

    def watched(self: loop.Trainer, rows: Tensor, settings: ClassSettings) -> None:
        with NeverWaits():  # type: ignore[no-untyped-call]
            step(self, rows, settings)

    monkeypatch.setattr(loop.Trainer, "train_step", watched)
    counts = [max(3, 40 // (label + 1)) for label in range(count)]
    y = torch.arange(count).repeat_interleave(torch.tensor(counts))
    x = torch.rand(len(y), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = Images(x, y, [str(label) for label in range(count)], "noise", "train")
    run = train(name, out=tmp_path / "run", data=images, changes=TINY | METHODS[name] | {"data.subset": None})
    assert run.complete
    weights = run.model("last").state_dict().values()
    assert all(bool(value.isfinite().all()) for value in weights)
    settings = run.epochs.query("split == 'train'")[["epsilon", "clean_weight", "robust_weight"]]
    assert bool((settings.fillna(1) >= 0).all(axis=None))
