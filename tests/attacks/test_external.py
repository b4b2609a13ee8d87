"""Other libraries' attacks and plain functions through the engine."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Finished, Job
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.run.audit import audit
from classwise.core.settings.config import make
from classwise.models.logits import LogitsModel
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .models import Linear, Small, images, labelled


def away(x: Tensor, y: Tensor) -> Tensor:
    """Far out of any ball and of the box."""
    del y
    return x - 2


def noise(x: Tensor, y: Tensor) -> Tensor:
    """Draws of all three generators."""
    del y
    return x + 0.05 * torch.randn_like(x) + 0.01 * np.random.rand() + 0.01 * random.random()  # noqa: NPY002


def climbing(model: nn.Module) -> Any:
    """Three signed steps of a user's own, with the model that it is given."""

    def attack(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            x = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)
            x = x + 0.03 * gradient.sign()
        return x

    return attack


def on_the_model(model: nn.Module, x: Tensor, y: Tensor, *, size: float = 0.09) -> Tensor:
    """One signed step; the model is the first argument, as in many repositories of papers."""
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)
    return x.detach() + size * gradient.sign()


def run(attack: ExternalAttack, model: nn.Module, x: Tensor, threat: Threat) -> Finished:
    job = Job(torch.arange(len(x)), x, model(x).argmax(1))
    (done,) = Engine(model, batch_size=32).attack(attack, threat, [job])
    return done


def test_what_leaves_the_ball_is_brought_back_and_judged_by_the_model() -> None:
    model, x = Small(3).eval(), images(32)
    done = run(ExternalAttack(attack=away), model, x, Threat("Linf", 0.1))
    assert torch.equal(done.x, (done.x0 - 0.1).clamp_min(0))
    assert torch.equal(done.success, model(done.x).argmax(1) != done.y)
    assert 0 < int(done.success.sum()) < 32
    assert bool((done.iterations == 1).all())
    assert bool((done.forwards == 1).all())


def test_not_a_number_is_no_image() -> None:
    model, x = Small(3).eval(), images(32)
    attack = ExternalAttack(attack=lambda x, y: x + torch.nan * y.view(-1, 1, 1, 1))
    with pytest.warns(UserWarning, match="returns NaN in 32 of 32 images, replaced by 0"):
        done = run(attack, model, x, Threat("Linf", 0.1))
    assert bool(done.x.isfinite().all())
    assert float(Threat("Linf", 0.1).distance(done.x, done.x0).max()) <= 0.1 + 1e-6


@pytest.mark.parametrize("wrapped", [False, True])
def test_its_passes_through_our_model_are_counted(wrapped: bool) -> None:
    """Three passes and gradients, and the verdict; also where the audit has put a layer around the model."""
    network = Small(3).eval()
    model = LogitsModel(network) if wrapped else network
    done = run(ExternalAttack(attack=climbing(network)), model, images(20), Threat("Linf", 0.1))
    assert set(done.forwards.tolist()) == {3 + 1}
    assert set(done.backwards.tolist()) == {3}
    done = run(ExternalAttack(attack=climbing(Small(3).eval())), model, images(20), Threat("Linf", 0.1))
    assert set(done.forwards.tolist()) == {1}
    assert set(done.backwards.tolist()) == {0}


def test_build_gets_the_model_under_audit() -> None:
    model, x = Small(3).eval(), images(20)
    built = run(ExternalAttack(build=climbing), model, x, Threat("Linf", 0.1))
    ready = run(ExternalAttack(attack=climbing(model)), model, x, Threat("Linf", 0.1))
    assert torch.equal(built.x, ready.x)
    assert set(built.forwards.tolist()) == {4}


def test_a_function_of_three_arguments_gets_the_model_under_audit() -> None:
    model, x = Small(3).eval(), images(32)
    done = run(ExternalAttack(attack=on_the_model), model, x, Threat("Linf", 0.1))
    assert float((done.x - on_the_model(model, done.x0, done.y).clamp(0, 1)).abs().max()) < 1e-6
    assert bool((done.backwards == 1).all())
    assert bool(done.success.any())


@pytest.mark.parametrize("radii", [None, torch.linspace(0.05, 0.2, 20)])
def test_a_parameter_eps_gets_the_radius(radii: Tensor | None) -> None:
    """With a default or without, after two arguments or after three; and one radius for each image."""

    def without_default(x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        del y
        return x + eps

    def with_model(model: nn.Module, x: Tensor, y: Tensor, *, eps: float | Tensor = 0.01) -> Tensor:
        del model, y
        return x + eps

    model, x, y = labelled(Small(3).eval(), images(20) / 2)
    job = Job(torch.arange(20), x, y, {} if radii is None else {"epsilon": radii})
    for attack in (without_default, with_model):
        (done,) = Engine(model, batch_size=32).attack(ExternalAttack(attack=attack), Threat("Linf", 0.1), [job])
        radius = 0.1 if radii is None else radii[done.row].reshape(-1, 1, 1, 1)
        assert torch.allclose(done.x, done.x0 + radius)


def test_copies_that_fill_up_a_batch_are_not_attacked() -> None:
    seen: list[int] = []

    def attack(x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return x

    engine, model, x = Engine(Small(3).eval(), batch_size=32, poll=4), Small(3).eval(), images(42)
    jobs = [Job(torch.arange(42), x, model(x).argmax(1))]
    assert sum(len(done.row) for done in engine.attack(ExternalAttack(attack=attack), Threat("Linf", 0.1), jobs)) == 42
    assert seen == [32, 10]


def test_draws_repeat_with_the_seed_and_leave_the_generators_alone() -> None:
    model, x, y = labelled(Linear(3, side=4).eval(), images(32))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    once, again, other = (
        cw.attack(model, x, y, ExternalAttack(attack=noise), threat="Linf:0.2", seed=seed, early_stop=False)
        for seed in (1, 1, 2)
    )
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_restarts_draw_anew_and_break_more() -> None:
    model, x, y = labelled(Small(5).eval(), images(64))
    once, often = (
        model(cw.attack(model, x, y, ExternalAttack(attack=noise, restarts=restarts), threat="Linf:0.1")).argmax(1) != y
        for restarts in (1, 10)
    )
    assert int(once.sum()) < int(often.sum())


def test_an_image_in_whole_levels_is_read() -> None:
    model, x = Small(3).eval(), images(32)
    done = run(ExternalAttack(attack=lambda x, _: (x * 255).round().to(torch.uint8)), model, x, Threat("Linf", 0.1))
    assert float((done.x - done.x0).abs().max()) < 0.5 / 255 + 1e-6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attack": lambda x, y: x[:1] + 0 * y[0]}, r"returns shape \(1, 2, 4, 4\); .* of shape \(12, 2, 4, 4\)"),
        ({"attack": lambda x, y: (x, y)}, "returns a tuple"),
        ({"attack": lambda x, y: x + 1j}, "returns complex numbers; expected images"),
        ({"build": lambda _: None}, "returns None; expected a callable attack"),
        ({}, "external: no attack; set one"),
    ],
)
def test_what_cannot_be_used(given: dict[str, Any], message: str) -> None:
    model, x = Small(3).eval(), images()
    check_refused(message, cw.attack, model, x, model(x).argmax(1), ExternalAttack(**given), threat="Linf:0.1")


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("attack= and build= exclude each other", {"attack": away, "build": climbing}),
        ("attack = 3 cannot be called as attack", {"attack": 3}),
        (r"called as build\(model\): its parameters are \(x: .*, y: ", {"build": away}),
        (r"parameters are \(x\); use build= to call it with the model", {"attack": lambda x: x}),
        (r"its parameters are \(model, eps\)", {"build": lambda model, eps: away}),
        (r"Small is a class; give an object of it, or build=.*Small to call it", {"attack": Small}),
    ],
)
def test_what_cannot_be_made(message: str, options: dict[str, Any]) -> None:
    check_refused(message, ExternalAttack, **options)


def test_specs_that_cannot_be_made() -> None:
    check_refused(rf"is a function; .* as external:attack={__name__}:away", make, ATTACKS, f"{__name__}:away")
    check_refused("there is no module 'nowhere'", make, ATTACKS, "external:build=nowhere:attack")


def test_targets_are_refused() -> None:
    model, x, y = labelled(Small(3).eval(), images())
    check_refused(
        "targets are not supported",
        cw.attack,
        model,
        x,
        y,
        ExternalAttack(attack=away),
        threat="Linf:0.1",
        targets=(y + 1) % 3,
    )


def test_an_audit_runs_it_from_a_spec_and_says_what_it_was() -> None:
    model, x, y = labelled(Small(3).eval(), images(64))
    spec = f"external:build={__name__}:climbing"
    done = audit(model, (x, y), "Linf:0.1", {"by path": spec, "by hand": ExternalAttack(attack=away)}, batch_size=32)
    said = done.outcomes.meta.attacks
    assert said["by path"] == {
        "name": "external",
        "attack": None,
        "build": f"{__name__}:climbing",
        "model": None,
        "restarts": 1,
    }
    assert said["by hand"] is not None
    assert said["by hand"]["attack"] == f"{__name__}:away"
    json.dumps(said)
    rows = done.outcomes.rows("by path")
    assert set(rows["backwards"]) == {3}
    assert float((rows["distance"] - 0.1).max()) <= 1e-6
    assert 0 < rows["correct"].mean() < 1


def test_ours_is_called_as_theirs_are() -> None:
    """The other way round: our attack of a model is what an external engine or ours would call."""
    model, x = Small(5).eval(), images(32)
    bound = partial(cw.attack, model, attacks=PGD(steps=4, step_size="0.1eps"), threat="Linf:0.1")
    done = run(ExternalAttack(attack=bound), model, x, Threat("Linf", 0.1))
    assert torch.equal(done.success, model(bound(done.x0, done.y)).argmax(1) != done.y)
    assert bool(done.success.any())
