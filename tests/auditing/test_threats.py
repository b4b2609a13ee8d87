"""Audits and curves under recolouring, and under rotation and translation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.gradient.spatial import transformed
from classwise.auditing.run.suite import parse_attacks

from .toys import images, model

OFF: Any = {"guards": "off", "batch_size": 32}


def test_recolouring_attacks_whole_values_and_finds_less_than_linf() -> None:
    """Two values per image: what moves all pixels of a value cannot follow the pattern of a class within the value."""
    few = images(count=30, noise=0)
    data = cw.Images((few.x * 255).round() / 255, few.y, few.class_names)
    attacks = {"pgd": "pgd:steps=5", "apgd": "apgd-ce:steps=5"}
    recoloured, pixelwise = (
        cw.audit(model(), data, threat=f"{norm}:0.02", attacks=attacks, **OFF) for norm in ("recolour", "Linf")
    )
    assert recoloured.outcomes.meta.threat == "recolour:0.02"
    assert (recoloured.by_class["all"] >= pixelwise.by_class["all"]).all()
    distances = recoloured.outcomes.frame.query("attack == 'pgd'")["distance"]
    assert distances.max() <= 0.02 + 1e-6


class Corner(nn.Module):
    """Class 1 if the corner is brighter than 0.3, with the brightness in the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        corner = x[:, 0, 0, 0] + 0 * self.unused
        return torch.stack([0.3 - corner, corner - 0.3], 1)


def bright() -> cw.Images:
    """Images of brightness 0.4 to 0.95: translated by a pixel of 32, the corner is black."""
    x = torch.linspace(0.4, 0.95, 40).view(40, 1, 1, 1).expand(40, 1, 32, 32).contiguous()
    return cw.Images(x, torch.ones(40, dtype=torch.int64), ["dark", "bright"])


def test_the_grid_is_the_default_and_finds_every_translation() -> None:
    assert list(parse_attacks(None, "spatial").attacks) == ["spatial-grid"]
    audit = cw.audit(Corner(), bright(), threat="spatial:1", batch_size=32)
    assert audit.by_class.loc["bright", "clean"] == 1
    assert audit.by_class.loc["bright", "all"] == 0
    assert audit.outcomes.frame.query("attack == 'spatial-grid'")["distance"].isna().all()
    assert audit.outcomes.meta.norm == "spatial"


def test_the_outcomes_are_those_of_the_transformed_images() -> None:
    """A translation down by d pixels of 32 leaves (1 - d) of the brightness of the corner, for d up to 1."""
    specs = {"grid": "spatial-grid:rotations=1,translations=3", "pgd": "spatial-pgd:steps=10,objective=margin"}
    audit = cw.audit(Corner(), bright(), threat="spatial:0.1", attacks=specs, **OFF)
    corner = transformed(bright().x, torch.tensor([[0.0, 0.1, 0.1]] * 40))[:, 0, 0, 0]
    assert torch.allclose(corner, 0.7 * 0.7 * bright().x[:, 0, 0, 0], atol=1e-4)
    rows = audit.outcomes.frame.sort_values("index")
    grid, pgd = (rows.query(f"attack == '{label}'")["correct"].to_numpy() for label in specs)
    assert np.array_equal(grid, (corner > 0.3).numpy())
    assert 0 < grid.mean() < 1
    assert 0 < pgd.mean() < 1  # rotations darken the corner further, but some starts have no gradient


def test_guards_of_pixels_do_not_run_for_spatial_threats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that finds more than gradients do is no sign of masked gradients."""
    for radius, wanted in (("spatial:1", False), ("Linf:0.2", True)):
        attacks = ["spatial-grid:rotations=3,translations=3"] if not wanted else ["pgd:steps=1,step_size=1/255"]
        audit = cw.audit(Corner(), bright(), threat=radius, attacks=attacks, guards="full", batch_size=32)
        names = {warning.name for warning in audit.warnings}
        assert bool(names & {"random-noise", "single-step", "not-converged", "black-box-stronger"}) == wanted


def test_a_curve_over_the_radius_of_translations() -> None:
    """At radius r <= 1/3, the corner has (1 - 3 r)^2 of its brightness; brighter images have larger radii."""
    data = bright()
    curve = cw.robustness_curve(
        Corner(), data, norm="spatial", attacks="spatial-grid:rotations=1,translations=3", highest=1.0, rounds=4
    )
    rows = curve.frame.sort_values("index")
    exact = (1 - np.sqrt(0.3 / data.x[:, 0, 0, 0].numpy())) / 3
    assert (rows["low"] - 1e-6 <= exact).all()
    assert (exact <= rows["high"] + 1e-6).all()
    assert (rows["high"] - rows["low"]).max() <= 1 / 8


@pytest.mark.parametrize("attack", ["pgd", "square", "fab"])
def test_attacks_on_pixels_are_refused(attack: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=f"attack '{attack}' does not support spatial; it supports Linf"):
        cw.audit(Corner(), bright(), threat="spatial:1", attacks=attack)


def test_a_recipe_with_a_threat_that_its_attack_does_not_support_is_refused() -> None:
    with pytest.raises(cw.ClasswiseError, match="PGD does not support spatial"):
        cw.Recipe.read("at", {"threat": "spatial:1"})
    recipe = cw.Recipe.read("at", {"threat": "spatial:1", "attack": "spatial-pgd", "validation_attack": "spatial-pgd"})
    assert recipe.parts.threat == cw.Threat("spatial", 1.0)
