"""Audits on the 8-bit grid: success is decided on images that a file with 8 bits per channel stores exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks.external import ExternalAttack
from classwise.auditing.compare.comparability import Named, check_alike
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.run.audit import audit
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.partition import Shard
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.search import find_worst_class
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images, to_unit
from classwise.data.stream import Stream
from classwise.reporting import report
from classwise.reporting.exports.robustbench import robustbench
from classwise.threat.ball import Threat
from tests.auditing import toys

OPTIONS: dict[str, Any] = {"precision": EXACT, "batch_size": 32, "guards": "off", "grid": "8bit"}


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
    settings = {**OPTIONS, "threat": threat, "attacks": [attack], "early_stop": early_stop, "save": "images"}
    if attack == "fab:steps=5" and not early_stop:
        with pytest.raises(ClasswiseError, match="attack 'fab' minimises the distance, and rounding moves"):
            audit(net, data, **settings)
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
    found = audit(net, data, f"Linf:{levels / 255}", "pgd:steps=10,step_size=0.2eps", **OPTIONS)
    assert found.outcomes.correct("pgd").tolist() == truth.tolist()
    assert levels < 1 or 0 < int(truth.sum()) < len(truth)


def test_images_that_are_not_stored_with_8_bits_are_refused(tmp_path: Path) -> None:
    smooth = toys.images(40)
    message = r"^grid '8bit': the images of toy are not stored with 8 bits: a pixel is 0\.\d+, .* levels of 1/255; give"
    with pytest.raises(ClasswiseError, match=message):
        audit(toys.model(), smooth, "Linf:0.05", "fgsm", out=tmp_path / "x", **OPTIONS)
    assert not (tmp_path / "x").exists()
    with pytest.raises(ClasswiseError, match=message):
        audit(toys.model(), Stream(list(zip(smooth.x, smooth.y, strict=True)), name="toy"), "Linf:0.05", **OPTIONS)


def test_rounding_errors_of_the_images_do_not_count() -> None:
    data, settings = stored_images(), {**OPTIONS, "threat": "Linf:12/255", "attacks": ["pgd:steps=4"], "save": "images"}
    exact = data.pixels()
    shift = 9e-7 * (2 * torch.rand(exact.shape, generator=torch.Generator().manual_seed(0)) - 1)
    noisy = Images((exact + shift).clamp(0, 1), data.y, data.class_names, name="stored")
    streamed = Stream(list(zip(noisy.x, noisy.y, strict=True)), data.class_names, "stored")
    frames = [audit(toys.model(2), source, **settings).outcomes.frame for source in (data, noisy, streamed)]
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], check_exact=True)


def test_shards_and_resumed_audits_have_the_same_bits(tmp_path: Path) -> None:
    data = stored_images(101)
    settings = {**OPTIONS, "threat": "Linf:12/255", "attacks": ["pgd:steps=3", "square:steps=9"], "cascade": True}
    settings |= {"repeats": 3}
    whole = audit(toys.model(2), data, **settings, out=tmp_path / "whole")
    for shard in Shard.all(2):
        audit(toys.model(2), data, **settings, shard=str(shard), out=shard_folder(tmp_path / "x", shard))
    merged = audit(toys.model(2), data, **settings, shards=2, out=tmp_path / "x")
    pd.testing.assert_frame_equal(merged.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert merged.outcomes.meta == whole.outcomes.meta
    for other in (None, "9bit"):
        with pytest.raises(ClasswiseError, match=r"other settings: grid was \"8bit\", now null|grid = '9bit': must be"):
            audit(toys.model(2), data, resume=True, out=tmp_path / "whole", **settings | {"grid": other})
    max((tmp_path / "whole" / "outcomes").glob("part-*.parquet")).unlink()
    resumed = audit(toys.model(2), data, resume=True, out=tmp_path / "whole", **settings)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)


def test_grids_are_compared_under_attack_only() -> None:
    settings = {**OPTIONS, "threat": "Linf:12/255", "attacks": "pgd:steps=2"}
    one, other = (audit(toys.model(2), stored_images(), **settings | {"grid": grid}) for grid in (None, "8bit"))
    check_alike(Named("one", one), Named("other", other), "clean", None)
    with pytest.raises(ClasswiseError, match="differ in grid: none and 8bit; use audits with the same grid"):
        check_alike(Named("one", one), Named("other", other), "all", None)
    renamed = audit(toys.model(2), stored_images(), **settings | {"attacks": "square:steps=2"})
    with pytest.raises(ClasswiseError, match="differ in grid: none and 8bit"):
        one.outcomes.join(renamed.outcomes)
    assert other.outcomes.join(renamed.outcomes).meta.grid == "8bit"
    assert len(cw.board({"one": one, "other": other}).tables) == 2


def test_reports_state_the_grid_and_other_evaluations_refuse_it(tmp_path: Path) -> None:
    wrong = stored_images(24, classes=4)
    wrong = Images(wrong.x, (wrong.y + 1) % 4, wrong.class_names, name="stored")  # images that no attack runs on
    found = audit(toys.model(4), wrong, "Linf:12/255", "autoattack", **OPTIONS)
    assert "8-bit: adversarial images are rounded" in report(found, tmp_path / "page.html").read_text()
    assert Audit.load(found.save(tmp_path / "saved")).outcomes.meta.grid == "8bit"
    with pytest.raises(ClasswiseError, match="grid '8bit': RobustBench does not round"):
        robustbench(found, {"dataset": "cifar10"})
    evaluations: list[Any] = [robustness_curve, find_worst_class]
    for evaluation in evaluations:
        with pytest.raises(ClasswiseError, match=r"unknown argument of \w+\(\): 'grid'"):
            evaluation(toys.model(2), stored_images(), grid="8bit")


def test_guards_attack_stored_images() -> None:
    """No ball of less than a level has another stored image, so no guard finds an adversarial example in it."""
    options = {**OPTIONS, "guards": "full", "threat": "Linf:0.0035", "attacks": "square:steps=4"}
    found = audit(toys.model(2, scale=50), stored_images(strength=0.005), **options)
    assert found.outcomes.correct("clean").tolist() == found.outcomes.correct("square").tolist()
    assert {"random-noise", "single-step"}.isdisjoint(warning.name for warning in found.warnings)
    without = audit(toys.model(2, scale=50), stored_images(strength=0.005), **options | {"grid": None})
    assert "single-step" in {warning.name for warning in without.warnings}
