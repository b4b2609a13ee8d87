"""The trained checkpoints of the project are complete, small, stored in half precision, and trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from classwise.core.errors import ClasswiseError
from classwise.data import load_data
from classwise.models import load_model

FOLDER = Path(__file__).parents[1] / "checkpoints"
SHARED = Path(__file__).parents[1] / ".." / "shared" / "data"
PARAMETERS = {"cifar10-at": 701_018, "fashion-mnist-at": 312_202}
CLEAN = {"cifar10-at": 0.55, "fashion-mnist-at": 0.7}


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_a_checkpoint_is_small_and_contains_its_model_name(name: str) -> None:
    file = FOLDER / f"{name}.safetensors"
    assert file.stat().st_size < 2_000_000
    with safe_open(file, framework="pt") as opened:
        stored = {opened.get_tensor(key).dtype for key in opened.keys()}  # noqa: SIM118  # not a mapping
    assert stored <= {torch.float16, torch.int64}
    model = load_model(file)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_a_checkpoint_is_trained(name: str) -> None:
    data = name.removesuffix("-at")
    try:
        images = load_data(data, split="test", root=SHARED if data == "cifar10" else None, subset=200, download=False)
    except ClasswiseError:
        pytest.skip(f"the data set {data} is not available")
    with torch.no_grad():
        right = load_model(FOLDER / f"{name}.safetensors")(images.pixels()).argmax(1) == images.y
    assert float(right.float().mean()) > CLEAN[name]
