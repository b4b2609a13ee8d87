"""The hint for a missing path, and the commands and functions that print it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import classwise as cw
from classwise.auditing.curve.result import Curve
from classwise.core.errors import ClasswiseError, did_you_mean
from classwise.models.loading.checkpoints import read_state
from classwise.reporting.board.sources import read
from classwise.sweeps.plan import Plan
from classwise.training.recipe import Recipe


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("runs/trades-1", "audits", "photos/train"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("weights.pt", "recipe.yaml", "net.onnx", "runs.pt", ".hidden.pt", "net.py"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("run", "runs"),  # a folder, not runs.pt
        ("run.pt", "runs.pt"),
        ("nets.pt", "runs.pt"),  # not net.py
        ("nets.pyi", "net.py"),
        ("runs/trades1", "runs/trades-1"),
        ("RUNS/TRADES-1", "runs/trades-1"),
        ("runz/trades-1", "runs/trades-1"),
        ("runz/other", "runs"),
        ("photos/trian", "photos/train"),
        ("hidden.pt", ""),
        ("weights.pt", ""),  # it exists
        ("nothing/like/it", ""),
        ("runs/\0", ""),
        ("weights.pt/inside", ""),
    ],
)
def test_the_nearest_path(place: Path, path: str, hint: str) -> None:
    assert did_you_mean(path) == (f"; did you mean {hint}?" if hint else "")
    assert did_you_mean(place / path) == (f"; did you mean {place / hint}?" if hint else "")


CALLS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "weights": (read_state, "weigths.pt", "weights.pt"),
    "run as a model": (cw.load_model, "runs/trades1", "runs/trades-1"),
    "weights as a model": (cw.load_model, "weigths.pt", "weights.pt"),
    "ONNX": (cw.load_model, "nett.onnx", "net.onnx"),
    "Python file": (cw.load_model, "nett.py:Net", "net.py"),
    "recipe": (Recipe.read, "recipes.yaml", "recipe.yaml"),
    "run": (cw.Run.open, "runs/trades1", "runs/trades-1"),
    "audit": (cw.Audit.load, "audit", "audits"),
    "curve": (Curve.load, "audit", "audits"),
    "board": (read, "audit", "audits"),
    "plan of a sweep": (Plan.read, "recip.yaml", "recipe.yaml"),
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", CALLS)
def test_errors_name_the_nearest_path(name: str) -> None:
    call, path, hint = CALLS[name]
    with pytest.raises(ClasswiseError) as caught:
        call(path)
    assert str(caught.value).endswith(f"; did you mean {hint}?")
