"""With ``precision.deterministic`` on a GPU: equal bits after a kill, and for other orders of the images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training.folder import Run

from ..training.killing import KillAt, Killed
from ..training.test_trainer import SMALL, contents
from . import MARKS

pytestmark = MARKS


def trained(out: Path, dtype: str, **options: Any) -> Run:
    overrides = SMALL | {"model": {"name": "preactresnet18", "width": 0.0625}}
    overrides |= {"precision": {"dtype": dtype, "channels_last": True, "deterministic": True}}
    return cw.train("cfa-trades", budget="short", out=out, data="digits", overrides=overrides, device="cuda", **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_killed_training_resumes_to_the_same_bits(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    reference = trained(tmp_path / "reference", dtype)
    for step in (3, 4, 6):
        with pytest.raises(Killed):
            trained(tmp_path / str(step), dtype, progress=KillAt(step))
        assert contents(trained(tmp_path / str(step), dtype, resume=True)) == contents(reference)


@pytest.mark.parametrize(
    "spec", ["pgd:steps=9", "apgd-t:steps=5,targets=2", "fab-t:steps=3,targets=2", "square:steps=30"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_order_of_the_images_changes_no_bit(spec: str, dtype: Any) -> None:
    data = cw.load_data("digits", split="test").take(torch.arange(256))
    model = cw.load_model("preactresnet18", data=data, width=0.25, device="cuda").eval()
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    found = []
    with deterministic_algorithms():
        for rows in (torch.arange(256), order):
            engine = Engine(model, precision=cw.Precision(dtype=dtype, deterministic=True), batch_size=64)
            jobs = [Job(part, data.pixels(part), data.y[part]) for part in torch.split(rows, 64)]
            blocks = list(engine.attack(make(ATTACKS, spec), Threat("Linf", 0.1), jobs))
            index, x, logits = (
                torch.cat([getattr(block, name) for block in blocks]) for name in ("index", "x", "logits")
            )
            place = index.argsort()
            found.append((x[place], logits[place]))
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))
