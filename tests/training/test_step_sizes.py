"""Step sizes of recipes: they follow the radius of the threat, and those of a paper are unchanged at its radius."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from classwise.attacks import ATTACKS
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make, relative_step
from classwise.threat.ball import Threat
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from classwise.training.step_sizes import with_absolute_step
from classwise.training.train import train

from ..refusals import check_refused
from .on_digits import TINY

RECORDED = {
    "cfa-at": "5f074e1cffbcaaccce7d7e41e6fbe27102684e10030b1ecc81013014dbae021b",
    "cfa-trades": "66dff2fd0b93788bc7e2e9b2e8a866c871070429ac209bc91675b0bd14d1e16e",
    "fair-tat-code": "da028d1c9c93b5a8272cfa8766c77450c2e2786c79125b1603fbc445b295e16a",
    "mart-wrn": "8f4e1467fb18d3b5cf06a4cbf974e2cf1c60b3908398f6a0d5b6bfce1b21aa54",
    "dafa": "f83d89fbdca2fae9427f649a1ef0592cf32e33739d4281a61287abda4f2046ae",
}
"""Digests of complete recipes from when their step sizes were the numbers 2/255 and 0.007."""
STATED: dict[str, dict[str, Any]] = {
    name: {"attack.step_size": "2/255"} for name in ("cfa-at", "cfa-trades", "cfa-code", "fair-tat-code")
}
STATED |= {
    name: {"attack.step_size": 0.007, "validation_attack.step_size": 0.007}
    for name in ("bat-code", "he-wrn", "madry-wrn", "mart-wrn", "rst", "trades-wrn", "wat-code")
}
STATED |= {"dafa": {"validation_attack.step_size": 0.007}}
"""The step sizes that the papers and their public codes state, at the radius of the recipe."""


def steps(recipe: Recipe, radius: float) -> list[float]:
    """Step sizes of the inner and the validation attack, absolute for images of a radius."""
    sizes = [relative_step(getattr(attack, "step_size", 0.0)) for attack in attacks(recipe)]
    return [factor * radius if relative else factor for factor, relative in sizes]


def attacks(recipe: Recipe) -> list[Any]:
    parts = recipe.parts
    return [parts.attack, parts.validation_attack]


@pytest.mark.parametrize("budget", [None, "short"])
def test_the_step_sizes_of_every_recipe_follow_the_threat(budget: str | None) -> None:
    for name in recipe_names():
        own = Recipe.read(name, budget=budget)
        threat = own.parts.threat or Threat("Linf", 8 / 255)
        assert isinstance(threat.epsilon, float)
        other = Recipe.read(own, {"threat": f"Linf:{3 * threat.epsilon!r}"})
        tripled = [3 * step for step in steps(own.completed(threat), threat.epsilon)]
        assert steps(other, 3 * threat.epsilon) == pytest.approx(tripled), name


@pytest.mark.parametrize("name", STATED)
def test_at_the_radius_of_the_paper_the_step_is_the_stated_number(name: str) -> None:
    ours, stated = Recipe.read(name), Recipe.read(name, STATED[name])
    assert attacks(ours) == attacks(stated)  # the same number, so the same bits
    assert ours.digest() == stated.digest()
    assert ours.parts.threat is not None
    complete = [recipe.completed(ours.parts.threat, 10) for recipe in (ours, stated)]
    assert complete[0].digest() == complete[1].digest()
    assert attacks(complete[0]) == attacks(complete[1])


@pytest.mark.parametrize("name", RECORDED)
def test_runs_with_absolute_steps_have_the_digest_of_the_recipe(name: str) -> None:
    recipe = Recipe.read(name)
    assert recipe.parts.threat is not None
    assert recipe.completed(recipe.parts.threat, 10).digest() == RECORDED[name]


def test_a_run_with_an_absolute_step_is_resumed_by_the_recipe(tmp_path: Any) -> None:
    at_paper = TINY | {"threat": "Linf:8/255", "epochs": 1}
    stated = train("cfa-at", out=tmp_path / "run", data="digits", overrides=at_paper | {"attack.step_size": "2/255"})
    again = train("cfa-at", out=tmp_path / "run", data="digits", overrides=at_paper, resume=True)
    assert again.recipe.digest() == stated.recipe.digest()
    ours = train("cfa-at", out=tmp_path / "ours", data="digits", overrides=at_paper)
    weights = [run.weights_file("last").read_bytes() for run in (stated, ours)]
    assert weights[0] == weights[1]


def test_class_wise_radii_leave_a_step_of_the_base_radius() -> None:
    """One step from the image on f(x) = (-sum x, sum x): x moves by the step, in balls that are larger than it."""
    recipe = Recipe.read("cfa-at", {"threat": "Linf:0.1", "attack.steps": 1, "attack.random_init": "none"})
    x, y, radii = torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 0]), torch.tensor([0.05, 0.2])
    moved = []
    for step in ("0.25base_eps", "0.25eps"):
        attack = Recipe.read(recipe, {"attack.step_size": step}).parts.attack
        inputs = AttackInputs(x, y, torch.arange(2), Threat("Linf", radii), CounterRNG(0))
        found = attack.run(lambda z: torch.stack([-z.flatten(1).sum(1), z.flatten(1).sum(1)], 1), inputs)
        moved.append((found - x).flatten(1).amax(1))
    assert torch.allclose(moved[0], torch.tensor([0.025, 0.025]))
    assert torch.allclose(moved[1], 0.25 * radii)


@pytest.mark.parametrize("threat", [None, "Linf:0"])
def test_without_a_radius_the_recipe_is_read(threat: str | None) -> None:
    recipe = Recipe.read("cfa-at", {"threat": threat})
    assert attacks(recipe)[0].step_size == "0.25eps"
    later = recipe.completed(Threat("L2", 0.5), 10)
    assert attacks(later)[0].step_size == later.attack["step_size"] == 0.125  # type: ignore[index]


@pytest.mark.parametrize("step", ["-1base_eps", "0base_eps", "xbase_eps", "1/0base_eps"])
def test_a_multiple_that_is_not_positive_is_refused(step: str) -> None:
    check_refused("must be a positive multiple", Recipe.read, "at", {"attack.step_size": step})


def test_an_attack_of_an_audit_has_no_recipe() -> None:
    check_refused("step_size", make, ATTACKS, "pgd:step_size=0.25base_eps")
    assert with_absolute_step("pgd:step_size=base_eps", Threat("L2", 0.5)) == {"name": "pgd", "step_size": 0.5}
