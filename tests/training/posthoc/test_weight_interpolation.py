"""Weight interpolation: its arithmetic, the selected coefficient, and averaged weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import write_text
from classwise.models import load_model
from classwise.training.folder import Run
from classwise.training.posthoc.logit_adjustment import adjust_logits
from classwise.training.posthoc.weight_interpolation import interpolate_weights
from classwise.training.train import train

from ..test_trainer import SMALL

ATTACK = "pgd:steps=2,step_size=0.5eps"
NETWORK = {"name": "preactresnet18", "width": 0.0625}
STAGE = SMALL | {"model": NETWORK, "data.subset": 200, "batch_size": 32, "averaging.decay": 0.9}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("stages") / "first"
    return train("at-ema-step", budget="short", out=out, data="digits", overrides=STAGE | {"epochs": 2})


@pytest.fixture(scope="module")
def tuned(first: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = STAGE | {"epochs": 1, "model.weights": str(first.weights_file("average"))}
    out = tmp_path_factory.mktemp("stages") / "tuned"
    return train("at-ema-step", budget="short", out=out, data="digits", overrides=overrides)


@pytest.mark.slow
def test_the_interpolated_weights_are_between_the_two(first: Run, tuned: Run, tmp_path: Path) -> None:
    before, after = first.model("average").state_dict(), tuned.model("average").state_dict()
    for share in (0.0, 0.25, 1.0):
        found = interpolate_weights(
            tuned, which="average", shares=[share], attack=ATTACK, out=tmp_path / f"{share}.safetensors"
        )
        assert found.share == share
        for name, value in load_model(found.path).state_dict().items():
            if value.is_floating_point():
                expected = share * after[name] + (1 - share) * before[name]
                assert torch.allclose(value, expected, atol=1e-6), name


@pytest.mark.slow
def test_the_first_of_ties_is_selected(tuned: Run) -> None:
    found = interpolate_weights(tuned, shares=[0.5, 0.3, 0.3, 1], attack=ATTACK)
    assert found.path == tuned.path / "checkpoints" / "interpolated.safetensors"
    assert "interpolated" in tuned.saved_weights()
    assert tuned.default_weights() != "interpolated"
    scores = found.tried.groupby("share", sort=False)["score"].first()
    assert found.share == scores.idxmax()
    each = found.tried[found.tried["share"] == found.share]
    assert scores.max() == pytest.approx(each["robust"].mean() + each["robust"].min(), abs=0.05)  # nearly even classes
    again = found.path.read_bytes()
    interpolate_weights(tuned, shares=[0.5, 0.3, 0.3, 1], attack=ATTACK)
    assert found.path.read_bytes() == again


def test_logit_adjustment_continues_from_the_interpolated_weights(tuned: Run) -> None:
    mixed = interpolate_weights(tuned, attack=ATTACK)
    found = adjust_logits(tuned, which="interpolated", attack=ATTACK)
    x = torch.rand(8, 1, 8, 8)
    with torch.no_grad():
        assert torch.allclose(load_model(found.path)(x), load_model(mixed.path)(x) + found.constants, atol=1e-5)


def refused(run: Run | Path, **more: Any) -> str:
    with pytest.raises(ClasswiseError) as caught:
        interpolate_weights(run, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_impossible_requests_raise_errors(first: Run, tuned: Run, tmp_path: Path) -> None:
    assert "started from random weights" in refused(first)
    assert "shares = [0.3, 1.5]" in refused(tuned, shares=[0.3, 1.5])
    assert "shares = []" in refused(tuned, shares=[])
    assert "no device 'gpu7'" in refused(tuned, device="gpu7")
    assert "has no weights 'adjusted'" in refused(first, which="adjusted", start=tuned.path)
    assert "nowhere" in refused(tuned, start=tmp_path / "nowhere")
    shutil.copytree(tuned.path, tmp_path / "bare")
    write_text(tmp_path / "bare" / "validation.json", '{"index": []}', checksum=True)
    assert "has no validation split" in refused(tmp_path / "bare")
