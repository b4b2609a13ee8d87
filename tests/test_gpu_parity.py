"""The GPU benchmarks' comparison with the CPU, on a pretended GPU: each difference is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from benchmarks.gpu import parity
from benchmarks.gpu.cells import Result
from benchmarks.training_step import prepared_trainer
from torch import Tensor

from classwise.core.compute.compilation import Compiling
from classwise.core.compute.precision import Forward, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.models.fusion import Fusion

from .pretend_cuda import PretendCuda


@pytest.fixture
def gpu() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


def check(name: str) -> Result:
    return parity.checks(parity.QUICK)[name]("cuda")


@pytest.mark.parametrize(
    ("method", "error", "passed"),
    [
        ("uniform", 2.0**-24, False),
        ("normal", 1e-6, True),
        ("normal", 1e-4, False),
    ],
)
def test_other_random_numbers_are_found(
    gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch, method: str, error: float, passed: bool
) -> None:
    original = getattr(CounterRNG, method)

    def changed(rng: CounterRNG, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        numbers: Tensor = original(rng, index, *args, **kwargs)
        return numbers + error if gpu.holds(index) else numbers

    monkeypatch.setattr(CounterRNG, method, changed)
    assert check("random numbers")["passed"] == passed


@pytest.mark.parametrize("name", ["PGD in float32", "PGD in bfloat16", "FAB", "Square"])
@pytest.mark.parametrize("lost", [3, 8])
def test_a_weaker_attack_is_found(monkeypatch: pytest.MonkeyPatch, name: str, lost: int) -> None:
    """Eight lost images in one direction are beyond chance; three are not, and are within the tolerance of PGD."""

    def success(size: parity.Size, device: str, spec: str, count: int, precision: object = None) -> Tensor:
        return torch.arange(count) < (20 - lost if device == "cuda" else 20)

    monkeypatch.setattr(parity, "success", success)
    monkeypatch.setattr(parity, "success_on_cpu", lambda size, spec, count: success(size, "cpu", spec, count))
    assert check(name)["passed"] == (lost == 3)


def test_differences_that_cancel_are_within_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "success", lambda *_, **__: torch.arange(32) % 2 == 0)
    monkeypatch.setattr(parity, "success_on_cpu", lambda *_: torch.arange(32) % 2 == 1)
    result = check("FAB")
    assert result["passed"]
    assert "16 lost, 16 gained" in result["measured"]


@pytest.mark.parametrize(("margin", "passed"), [(0.5e-4, True), (2e-4, False)])
def test_only_predictions_near_the_boundary_may_differ(
    gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch, margin: float, passed: bool
) -> None:
    x, logits = parity.images(parity.ATTACKED, parity.QUICK.images)
    changed = logits.clone()
    label = int(logits[3].argmax())
    changed[3, (label + 1) % 10] = changed[3, label] + margin  # the margin of the CPU, which predicts another class
    monkeypatch.setattr(parity, "images", lambda *_: (x, changed))
    result = check(f"predictions, {parity.ATTACKED}")
    assert result["measured"].startswith(f"1 of {len(x)} predictions differ")
    assert result["passed"] == passed


def test_the_training_step_of_parity_is_in_true_float32(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("training step")["passed"]
    assert gpu.in_tf32 == []
    monkeypatch.setattr(parity, "UPDATE", 1e-9)  # the rounding errors of float32 are measured
    assert not check("training step")["passed"]


def test_another_training_step_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:

    def other(recipe: str, width: float, data: Any, device: str, **options: Any) -> Any:
        lr = {"optimizer.lr": 0.1001 if device == "cuda" else 0.1}
        return prepared_trainer(recipe, width, data, device, **options, **lr)

    monkeypatch.setattr(parity, "prepared_trainer", other)
    assert not check("training step")["passed"]


def test_a_model_that_cannot_be_fused_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.models.fusion.TOLERANCE", -1.0)
    result = check(f"fused copy, {parity.ATTACKED}")
    assert not result["passed"]
    assert result["measured"].startswith("its copy's logits differ")


def test_another_fused_copy_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    class Inexact(Fusion):
        @contextmanager
        def forward(
            self, precision: Precision, images: Tensor, compiling: Compiling | None = None
        ) -> Iterator[Forward]:
            with super().forward(precision, images, compiling) as forward:
                yield lambda x: forward(x) * (1 + 2e-5)

    monkeypatch.setattr(parity, "Fusion", Inexact)
    assert not check(f"fused copy, {parity.ATTACKED}")["passed"]
