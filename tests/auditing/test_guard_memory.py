"""Results of the guards' attacks that a later audit of the same model, data and threat reuses."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.audit import audit
from classwise.auditing.guards.memory import memory_of
from classwise.auditing.result import Audit
from classwise.core.precision import EXACT
from classwise.core.threat import Threat
from classwise.data.images import Images

from . import toys
from .test_guard_budget import Counting, evidence_of, mislabelled

LONG, OTHER = "pgd:steps=30", "pgd:steps=30,objective=margin"
"""Two suites of as many passes, on a model that resists both."""


def run(model: nn.Module, data: Images, **more: Any) -> Audit:
    chosen: dict[str, Any] = {"threat": "Linf:0.02", "attacks": LONG, "precision": EXACT, "batch_size": 64}
    return audit(model, data, **(chosen | more))


def reused(result: Audit) -> int:
    assert result.guards is not None
    return result.guards.reused


def passes(result: Audit) -> int:
    assert result.guards is not None
    return result.guards.passes


def test_an_audit_by_other_attacks_reuses_the_results_of_the_guards() -> None:
    """The passes are counted by the model; the warnings are those of an audit of another instance of it."""
    data, model = mislabelled(400), Counting(reverse=True)
    first = run(model, data)
    before = model.passes
    second = run(model, data, attacks=OTHER)
    fresh = Counting(reverse=True)
    expected = run(fresh, data, attacks=OTHER)
    assert reused(first) == reused(expected) == 0 < reused(second)
    assert passes(second) < passes(expected)
    assert model.passes - before == fresh.passes - passes(expected) + passes(second)
    named = {each.name: each for each in second.warnings}
    assert {"misleading-gradients", "large-radius"} <= named.keys()
    assert all(named[each.name] == each for each in expected.warnings)


def with_other_weights(model: nn.Module) -> None:
    next(model.parameters()).data.mul_(1.001)


def with_other_logits(model: nn.Module) -> None:
    inner: Any = model.get_submodule("inner")
    forward = inner.forward
    inner.forward = lambda x: forward(x) / 2


@pytest.mark.parametrize("change", [with_other_weights, with_other_logits])
def test_nothing_is_reused_after_a_change_of_the_model(change: Callable[[nn.Module], None]) -> None:
    data, model = mislabelled(400), Counting(reverse=True)
    run(model, data)
    change(model)
    assert reused(run(model, data)) == 0


@pytest.mark.parametrize("change", ["images", "labels", "norm", "seed", "guards"])
def test_nothing_is_reused_after_a_change_of_the_audit(change: str) -> None:
    data, model = mislabelled(400), Counting(reverse=True)
    run(model, data)
    options: dict[str, dict[str, Any]] = {
        "images": {"data": Images(data.x * 0.999, data.y, data.class_names, data.name)},
        "labels": {"data": Images(data.x, data.y.roll(3), data.class_names, data.name)},
        "norm": {"threat": "L2:0.1"},
        "seed": {"seed": 1},
        "guards": {"guards": "full"},
    }
    assert reused(run(model, **({"data": data} | options[change]))) == 0


def test_another_radius_shares_the_attack_at_the_radius_of_the_grey_image() -> None:
    """It depends on the norm only."""
    data, model = mislabelled(400), Counting(reverse=True)
    run(model, data)
    found = run(model, data, threat="Linf:0.03")
    assert found.guards is not None
    assert 0 < found.guards.reused <= found.guards.images


def test_a_memory_gives_the_results_of_the_attacks_themselves() -> None:
    """On overlapping parts of a sample, for two attacks, at a number and at radii per image."""
    evidence = evidence_of(toys.model(), toys.images(60))
    plain = evidence.probe
    assert plain is not None
    model = toys.model()
    kept = dataclasses.replace(plain, memory=memory_of(model, "weights", "data"))
    parts = [torch.arange(60) < 40, torch.arange(60) >= 20, torch.arange(60) % 3 == 0]
    balls = [None, Threat("Linf", 0.05), Threat("Linf", torch.linspace(0.01, 0.1, 60))]
    for attack in (FGSM(), PGD(steps=5)):
        for ball in balls:
            for part in parts:
                expected = plain.succeeds_on(part, attack, ball)
                assert torch.equal(kept.succeeds_on(part, attack, ball), expected)
                assert not expected[~part].any()
    assert kept.taken.reused == 2 * 3 * (20 + 20)


def test_a_memory_ends_with_its_model() -> None:
    model = toys.model()
    memory = weakref.ref(memory_of(model, "weights", "data"))
    assert memory() is memory_of(model, "weights", "data")
    assert memory() is not memory_of(model, "weights", "other data")
    gc.collect()
    assert memory() is None
    last = weakref.ref(memory_of(model, "weights", "data"))
    del model
    gc.collect()
    assert last() is None
