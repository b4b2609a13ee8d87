"""Audits and curves under recolouring, rotation and translation, and on the 8-bit grid of stored images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.spatial import transformed
from classwise.auditing.compare.comparability import Named, check_alike
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.run.audit import audit
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.auditing.worst_class.search import find_worst_class
from classwise.core.compute.precision import EXACT
from classwise.data.images import Images, to_unit
from classwise.data.stream import Stream
from classwise.reporting import report
from classwise.reporting.exports.robustbench import robustbench
from classwise.threat.ball import Threat
from tests.auditing import toys
from tests.refusals import check_refused

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


STORED: dict[str, Any] = {"precision": EXACT, "batch_size": 32, "guards": "off", "grid": "8bit"}


def stored_images(count: int = 96, classes: int = 2, strength: float = 0.05) -> Images:
    """The toy images with 8 bits."""
    data = toys.images(count, classes, strength=strength)
    return Images((255 * data.x).round().byte(), data.y, data.class_names, name="stored")


def noise(x: Tensor, y: Tensor) -> Tensor:
    """An external attack: noise in the ball."""
    del y
    return x + 0.05 * (2 * torch.rand_like(x) - 1)


@pytest.mark.parametrize(
    ("threat", "attack"),
    [
        ("Linf:0.0494", "pgd:steps=6"),
        ("Linf:12/255", "fab:steps=5"),
        ("Linf:12/255", "square:steps=30"),
        ("L2:0.3", "apgd-ce:steps=6"),
        ("L1:2", "pgd:steps=6"),
        ("recolour:12/255", "pgd:steps=6"),
        ("spatial:1", "spatial-grid:rotations=3,translations=3"),
        ("Linf:12/255", ExternalAttack(attack=noise)),
    ],
)
@pytest.mark.parametrize("early_stop", [True, False])
def test_stored_images_reproduce_every_verdict(threat: str, attack: Any, early_stop: bool) -> None:
    data, net = stored_images(), toys.model(2)
    settings = {**STORED, "threat": threat, "attacks": [attack], "early_stop": early_stop, "save": "images"}
    if attack == "fab:steps=5" and not early_stop:
        check_refused("attack 'fab' minimises the distance, and rounding moves", audit, net, data, **settings)
        return
    found = audit(net, data, **settings)
    label = found.attacks[1]
    index, saved = found.artifacts.get("images", label)
    rows = found.outcomes.rows(label).set_index("index").loc[index]
    stored = np.rint(255 * saved).astype(np.uint8)
    again = to_unit(torch.from_numpy(stored))
    assert np.array_equal(again.numpy(), saved)
    with torch.no_grad():
        predicted = net(again).argmax(1)
    assert predicted.tolist() == rows["prediction"].tolist()
    clean = data.pixels()[torch.from_numpy(index)]
    ball = Threat.parse(threat)
    if ball.norm != "spatial":
        distance = ball.distance(again, clean)
        assert float(distance.max()) <= float(torch.as_tensor(ball.epsilon)) + 1e-6
        np.testing.assert_allclose(rows["distance"].to_numpy(np.float64), distance.numpy(), atol=1e-6)
    assert (found.outcomes.meta.grid, len(index) > 0) == ("8bit", True)


@pytest.mark.parametrize("levels", [0.4, 11.0, 12.6])
def test_robust_accuracy_of_a_linear_model_is_that_of_whole_levels(levels: float) -> None:
    data, net = stored_images(), toys.model(2)
    truth = toys.margins(data, net, int(levels) / 255) > 0
    found = audit(net, data, f"Linf:{levels / 255}", "pgd:steps=10,step_size=0.2eps", **STORED)
    assert found.outcomes.correct("pgd").tolist() == truth.tolist()
    assert levels < 1 or 0 < int(truth.sum()) < len(truth)


def test_images_that_are_not_stored_with_8_bits_are_refused(tmp_path: Path) -> None:
    smooth = toys.images(40)
    message = r"^grid '8bit': the images of toy are not stored with 8 bits: a pixel is 0\.\d+, .* levels of 1/255; give"
    check_refused(message, audit, toys.model(), smooth, "Linf:0.05", "fgsm", out=tmp_path / "x", **STORED)
    assert not (tmp_path / "x").exists()
    check_refused(
        message,
        audit,
        toys.model(),
        Stream(list(zip(smooth.x, smooth.y, strict=True)), name="toy"),
        "Linf:0.05",
        **STORED,
    )


def test_rounding_errors_of_the_images_do_not_count() -> None:
    data, settings = stored_images(), {**STORED, "threat": "Linf:12/255", "attacks": ["pgd:steps=4"], "save": "images"}
    exact = data.pixels()
    shift = 9e-7 * (2 * torch.rand(exact.shape, generator=torch.Generator().manual_seed(0)) - 1)
    noisy = Images((exact + shift).clamp(0, 1), data.y, data.class_names, name="stored")
    streamed = Stream(list(zip(noisy.x, noisy.y, strict=True)), data.class_names, "stored")
    frames = [audit(toys.model(2), source, **settings).outcomes.frame for source in (data, noisy, streamed)]
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], check_exact=True)


def test_shards_and_resumed_audits_have_the_same_bits(tmp_path: Path) -> None:
    data = stored_images(101)
    settings = {**STORED, "threat": "Linf:12/255", "attacks": ["pgd:steps=3", "square:steps=9"], "cascade": True}
    settings |= {"repeats": 3}
    whole = audit(toys.model(2), data, **settings, out=tmp_path / "whole")
    for shard in Shard.all(2):
        audit(toys.model(2), data, **settings, shard=str(shard), out=shard_folder(tmp_path / "x", shard))
    merged = audit(toys.model(2), data, **settings, shards=2, out=tmp_path / "x")
    pd.testing.assert_frame_equal(merged.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert merged.outcomes.meta == whole.outcomes.meta
    for other in (None, "9bit"):
        check_refused(
            r"other settings: grid was \"8bit\", now null|grid = '9bit': must be",
            audit,
            toys.model(2),
            data,
            resume=True,
            out=tmp_path / "whole",
            **settings | {"grid": other},
        )
    max((tmp_path / "whole" / "outcomes").glob("part-*.parquet")).unlink()
    resumed = audit(toys.model(2), data, resume=True, out=tmp_path / "whole", **settings)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)


def test_grids_are_compared_under_attack_only() -> None:
    settings = {**STORED, "threat": "Linf:12/255", "attacks": "pgd:steps=2"}
    one, other = (audit(toys.model(2), stored_images(), **settings | {"grid": grid}) for grid in (None, "8bit"))
    check_alike(Named("one", one), Named("other", other), "clean", None)
    check_refused(
        "differ in grid: none and 8bit; use audits with the same grid",
        check_alike,
        Named("one", one),
        Named("other", other),
        "all",
        None,
    )
    renamed = audit(toys.model(2), stored_images(), **settings | {"attacks": "square:steps=2"})
    check_refused("differ in grid: none and 8bit", one.outcomes.join, renamed.outcomes)
    assert other.outcomes.join(renamed.outcomes).meta.grid == "8bit"
    assert len(cw.board({"one": one, "other": other}).tables) == 2


def test_reports_state_the_grid_and_other_evaluations_refuse_it(tmp_path: Path) -> None:
    wrong = stored_images(24, classes=4)
    wrong = Images(wrong.x, (wrong.y + 1) % 4, wrong.class_names, name="stored")  # images that no attack runs on
    found = audit(toys.model(4), wrong, "Linf:12/255", "autoattack", **STORED)
    assert "8-bit: adversarial images are rounded" in report(found, tmp_path / "page.html").read_text()
    assert Audit.load(found.save(tmp_path / "saved")).outcomes.meta.grid == "8bit"
    check_refused("grid '8bit': RobustBench does not round", robustbench, found, {"dataset": "cifar10"})
    evaluations: list[Any] = [robustness_curve, find_worst_class]
    for evaluation in evaluations:
        check_refused(r"unknown argument of \w+\(\): 'grid'", evaluation, toys.model(2), stored_images(), grid="8bit")


def test_guards_attack_stored_images() -> None:
    """No ball of less than a level has another stored image, so no guard finds an adversarial example in it."""
    options = {**STORED, "guards": "full", "threat": "Linf:0.0035", "attacks": "square:steps=4"}
    found = audit(toys.model(2, scale=50), stored_images(strength=0.005), **options)
    assert found.outcomes.correct("clean").tolist() == found.outcomes.correct("square").tolist()
    assert {"random-noise", "single-step"}.isdisjoint(warning.name for warning in found.warnings)
    without = audit(toys.model(2, scale=50), stored_images(strength=0.005), **options | {"grid": None})
    assert "single-step" in {warning.name for warning in without.warnings}
