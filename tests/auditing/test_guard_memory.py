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

from classwise.attacks.engine import State
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.guards import evidence as evidence_module
from classwise.auditing.guards.evidence import Memory, memory_of
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT
from classwise.data.images import Images
from classwise.threat.ball import Threat

from . import toys
from .test_guard_budget import Counting, counted, evidence_of, mislabelled

LONG, OTHER = "pgd:steps=30", "pgd:steps=30,objective=margin"


def run(model: Counting, data: Images, **more: Any) -> tuple[Audit, int]:
    """An audit, and the passes of its guards that the model did not take."""
    chosen: dict[str, Any] = {"threat": "Linf:0.02", "attacks": LONG, "precision": EXACT, "batch_size": 64}
    with counted(model) as spent:
        result = audit(model, data, **(chosen | more))
    assert result.guards is not None
    return result, result.guards.passes - spent.guards


@pytest.mark.parametrize("reverse", [True, False])
def test_an_audit_by_other_attacks_reuses_the_results_of_the_guards(reverse: bool) -> None:
    """Also where an attack of the guards succeeds, so that it ends early; the report is that of a first audit."""
    data, model = mislabelled(160), Counting(reverse=reverse)
    first, before = run(model, data)
    second, saved = run(model, data, attacks=OTHER)
    expected, none = run(Counting(reverse=reverse), data, attacks=OTHER)
    assert before == none == 0 < saved
    assert (second.guards, second.warnings) == (expected.guards, expected.warnings)
    assert {"misleading-gradients", "large-radius"} <= {warning.name for warning in first.warnings} or not reverse


def with_other_weights(model: nn.Module) -> None:
    next(model.parameters()).data.mul_(1.001)


def with_other_logits(model: nn.Module) -> None:
    inner: Any = model.get_submodule("inner")
    forward = inner.forward
    inner.forward = lambda x: forward(x) / 2


@pytest.mark.parametrize("change", [with_other_weights, with_other_logits])
def test_nothing_is_reused_after_a_change_of_the_model(change: Callable[[nn.Module], None]) -> None:
    data, model = mislabelled(160), Counting(reverse=True)
    run(model, data)
    change(model)
    assert run(model, data)[1] == 0


@pytest.mark.parametrize("change", ["images", "labels", "norm", "seed", "guards"])
def test_nothing_is_reused_after_a_change_of_the_audit(change: str) -> None:
    data, model = mislabelled(160), Counting(reverse=True)
    run(model, data)
    options: dict[str, dict[str, Any]] = {
        "images": {"data": Images(data.x * 0.999, data.y, data.class_names, data.name)},
        "labels": {"data": Images(data.x, data.y.roll(3), data.class_names, data.name)},
        "norm": {"threat": "L2:0.1"},
        "seed": {"seed": 1},
        "guards": {"guards": "full"},
    }
    assert run(model, **({"data": data} | options[change]))[1] == 0


def test_another_radius_shares_the_attack_at_the_radius_of_the_grey_image() -> None:
    """It depends on the norm only: 20 passes and a verification of each survivor."""
    data, model = mislabelled(160), Counting(reverse=True)
    run(model, data)
    result, saved = run(model, data, threat="Linf:0.03")
    assert result.guards is not None
    assert 0 < saved <= 21 * result.guards.images
    assert saved % 21 == 0


def test_a_memory_gives_the_results_of_the_attacks_themselves() -> None:
    """On overlapping parts of a sample, for two attacks, at a number and at radii per image, with the same passes."""
    evidence = evidence_of(toys.model(), toys.images(60))
    assert evidence.probe is not None
    kept = dataclasses.replace(evidence.probe, memory=Memory()).first(60)
    parts = [torch.arange(60) < 40, torch.arange(60) >= 20, torch.arange(60) % 3 == 0, torch.zeros(60).bool()]
    balls = [None, Threat("Linf", 0.05), Threat("Linf", torch.linspace(0.01, 0.1, 60))]
    for attack in (FGSM(), PGD(steps=5)):
        for ball in balls:
            for part in parts:
                plain = dataclasses.replace(kept, memory=Memory()).first(60)
                assert len(kept.logits) == len(plain.logits)
                before = kept.taken
                expected = plain.succeeds_on(part, attack, ball)
                assert torch.equal(kept.succeeds_on(part, attack, ball), expected)
                assert kept.taken - before == plain.taken - 60
                assert not expected[~part].any()


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_results_do_not_depend_on_how_often_the_end_of_an_attack_is_checked(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = evidence_of(toys.model(), toys.images(60))
    assert evidence.probe is not None
    steps, places, ball = [], torch.arange(32), Threat("Linf", epsilon)
    step = PGD.step

    def noted(attack: PGD, *arguments: Any) -> State:
        steps.append(attack)
        return step(attack, *arguments)

    monkeypatch.setattr(PGD, "step", noted)
    at_each = evidence.probe._attack(places, PGD(steps=20), ball)
    fewest = len(steps)
    monkeypatch.setattr(evidence_module, "_POLL", {"cpu": 8})
    assert evidence.probe._attack(places, PGD(steps=20), ball) == at_each
    assert len(steps) - fewest == min(20, -(-fewest // 8) * 8)
    assert (fewest < 20) == all(success for success, _ in at_each)


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
