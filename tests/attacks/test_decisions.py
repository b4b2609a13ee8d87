"""Decisions over several passes, and attacks on random models, whose final image is decided in new passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Finished, Job
from classwise.attacks.engine.decisions import decide
from classwise.core.compute.repeats import RepeatRule, Repeats
from classwise.core.settings.config import describe, make
from classwise.threat.ball import Threat
from tests.attacks.blocks import joined
from tests.attacks.models import Small, images
from tests.refusals import check_refused


class Flipping(nn.Module):
    """Predicts class 0, or with a probability class 1, independently of the image."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.generator = torch.Generator().manual_seed(0)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        flips = torch.rand(len(x), generator=self.generator) < self.probability
        return nn.functional.one_hot(flips.long(), 3).float() + 0 * x.sum((1, 2, 3))[:, None]


def attacked(net: nn.Module, attack: str, count: int, y: Tensor | None = None, **settings: Any) -> Finished:
    """All rows of an attack, in their order."""
    x = images(count)
    jobs = [Job(torch.arange(count), x, torch.zeros(count, dtype=torch.int64) if y is None else y)]
    return joined(Engine(net, batch_size=64, **settings).attack(make(ATTACKS, attack), Threat("Linf", 0.1), jobs))


@given(st.integers(0, 999), st.integers(1, 7), st.sampled_from(["majority", "all"]), st.booleans())
def test_a_decision_counts_votes(seed: int, count: int, rule: RepeatRule, faulty: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    passes, y = torch.randn(count, 6, 4, generator=generator), torch.randint(0, 4, (6,), generator=generator)
    if faulty:
        passes[0, 0, 2] = torch.nan
    decision = decide([*passes], y, Repeats(count, rule).needed)
    for row in range(6):
        finite = [bool(logits[row].isfinite().all()) for logits in passes]
        votes = [int(logits[row].argmax()) for logits in passes]
        right = sum(vote == y[row] and good for vote, good in zip(votes, finite, strict=True))
        correct = all(finite) and (right == count if rule == "all" else 2 * right > count)
        assert decision.repeats[row] == right
        assert bool(decision.correct[row]) == correct
        if all(finite):
            wrong = [votes.count(label) if label != y[row] else -1 for label in range(4)]
            assert decision.prediction[row] == (y[row] if correct else wrong.index(max(wrong)))
            assert torch.allclose(decision.logits[row], passes[:, row].mean(0), atol=1e-6)


@given(st.integers(0, 99), st.integers(2, 9), st.sampled_from(["majority", "all"]))
def test_equal_passes_decide_like_one(seed: int, count: int, rule: RepeatRule) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, y = torch.randn(9, 5, generator=generator), torch.randint(0, 5, (9,), generator=generator)
    one, several = decide([logits], y), decide([logits] * count, y, Repeats(count, rule).needed)
    assert torch.equal(several.logits, one.logits)
    assert torch.equal(several.correct, one.correct)
    assert torch.equal(several.prediction, one.prediction)
    assert torch.equal(several.repeats, count * one.repeats)


@pytest.mark.parametrize(
    ("count", "rule", "attack"),
    [
        (1, "majority", "square:steps=4"),
        (3, "majority", "pgd:steps=3,restarts=2"),
        (4, "majority", "square:steps=4"),
        (5, "all", "square:steps=4,restarts=2"),
    ],
)
def test_the_returned_image_is_decided_in_passes_of_its_own(count: int, rule: RepeatRule, attack: str) -> None:
    """The outcome is binomial, however often the attack tried; with one pass the tries add up."""
    net, size, repeats = Flipping(0.3), 1000, Repeats(count, rule)
    found = attacked(net, attack, size, repeats=repeats)
    share = 1 - float(found.success.float().mean())
    expected = float(stats.binom.sf(repeats.needed - 1, count, 0.7))
    error = 4 * (0.25 / size) ** 0.5
    if count == 1:
        assert share < expected - error
        return
    assert share == pytest.approx(expected, abs=error)
    assert float(found.repeats.float().mean()) / count == pytest.approx(0.7, abs=error)
    assert torch.equal(found.success, found.repeats < repeats.needed)


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("attack", ["pgd:steps=4,restarts=2", "apgd-ce:steps=5", "fab:steps=4", "square:steps=6"])
def test_repeats_of_a_deterministic_model_change_only_the_passes(attack: str, early_stop: bool) -> None:
    net = Small(10).eval()
    y = net(images(90)).argmax(1)
    one = attacked(net, attack, 90, y, early_stop=early_stop)
    several = attacked(net, attack, 90, y, early_stop=early_stop, repeats=Repeats(3, "all"))
    for name in ("x", "success", "prediction", "iterations", "backwards"):
        assert torch.equal(getattr(one, name), getattr(several, name)), name
    assert {*several.repeats.tolist()} <= {0, 3}
    assert several.forwards.sum() >= one.forwards.sum() + 5 * 90  # three passes for one, and for the result


@pytest.mark.parametrize("attack", ["square:steps=30", "nattack:steps=10,samples=8", "apgd-ce:steps=4"])
def test_expectations_take_that_many_passes(attack: str) -> None:
    net = Small(10).eval()
    y = net(images(40)).argmax(1)
    one, three = (attacked(net, f"{attack},eot_iter={count}", 40, y, early_stop=False) for count in (1, 3))
    assert torch.allclose(one.x, three.x, atol=1e-5)
    if "queries" in one.records:
        assert torch.equal(3 * one.records["queries"], three.records["queries"])
    extra = int(attack.startswith("nattack"))  # its reference
    assert torch.equal(three.forwards - 1 - extra, 3 * (one.forwards - 1 - extra))


@pytest.mark.parametrize("name", ["square", "nattack", "spatial-grid"])
def test_a_spec_without_expectation_is_that_of_earlier_versions(name: str) -> None:
    plain, averaged = make(ATTACKS, name), make(ATTACKS, f"{name}:eot_iter=5")
    assert "eot_iter" not in describe(ATTACKS, plain)
    assert describe(ATTACKS, averaged) == describe(ATTACKS, plain) | {"eot_iter": 5}
    assert [make(ATTACKS, describe(ATTACKS, attack)) for attack in (plain, averaged)] == [plain, averaged]


class Noisy(nn.Module):
    """A model with Gaussian noise on its logits."""

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits + self.scale * torch.randn(logits.shape, generator=self.generator)


@pytest.mark.parametrize(
    ("attack", "threat"), [("square:steps=40", "Linf:0.1"), ("spatial-grid:rotations=3,translations=3", "spatial:1")]
)
def test_the_expectation_of_the_loss_finds_images_of_lower_margin(attack: str, threat: str) -> None:
    net, x = Small(10).eval(), images(64)
    y = net(x).argmax(1)
    margins = {}
    for count in (1, 12):
        engine = Engine(Noisy(net, 3.0), batch_size=64, early_stop=False)
        found = engine.perturb([make(ATTACKS, f"{attack},eot_iter={count}")], x, y, Threat.parse(threat))
        logits = net(found).detach()
        own = logits.gather(1, y[:, None]).squeeze(1)
        others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
        margins[count] = float((own - others).mean())
    assert margins[12] < margins[1] - 0.1


@pytest.mark.parametrize("value", [0, -1, 1001, 1.5, "8", True, None])
def test_other_numbers_of_passes_are_refused(value: Any) -> None:
    check_refused(r"^repeats = .*: must be an integer from 1 to 1000$", Repeats, value)


def test_an_unknown_rule_is_refused_and_one_pass_has_one_rule() -> None:
    check_refused("unknown repeat_rule 'most'", Repeats, 3, "most")
    assert Repeats(1, "all") == Repeats()
