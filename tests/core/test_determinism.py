"""Deterministic algorithms: in use during runs and audits, restored afterwards, and refusals in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.deterministic
from torch import Tensor

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.auditing.run.cost import CostEstimate, estimate
from classwise.core.compute.determinism import WORKSPACE, deterministic_algorithms
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.training.recipe import Recipe
from classwise.training.trainer import Trainer
from tests.refusals import check_refused

from ..attacks.models import Small, images

EXACT = cw.Precision(deterministic=True)
NO_KERNEL = "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use_"
NO_WORKSPACE = (
    "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or `at::Context::...`, "
    f"but this operation is not deterministic because it uses CuBLAS. Set {WORKSPACE}=:4096:8 or {WORKSPACE}=:16:8."
)


MEMORY: Any = torch.utils.deterministic


def settings() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        MEMORY.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


ACTIVE = (True, False, False, False)


@pytest.fixture(autouse=True)
def unusual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of the user that all differ from those in deterministic mode."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv(WORKSPACE, raising=False)
    torch.use_deterministic_algorithms(False, warn_only=True)
    before = settings()
    assert not before[0]
    assert before[2:] == (True, True)
    yield
    assert settings() == before
    torch.use_deterministic_algorithms(False)


def test_settings_are_restored() -> None:
    with deterministic_algorithms():
        assert settings() == ACTIVE
        assert os.environ[WORKSPACE] == ":4096:8"
    with pytest.raises(KeyError), deterministic_algorithms():
        raise KeyError
    with deterministic_algorithms(enabled=False):
        assert not settings()[0]


def test_a_workspace_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with deterministic_algorithms():
        assert os.environ[WORKSPACE] == ":16:8"


KERNEL_LINE = (
    "precision.deterministic = true: adaptive_avg_pool2d_backward_cuda has no deterministic implementation; "
    "use another attack or model, or set it to false"
)
WORKSPACE_LINE = (
    "precision.deterministic = true: a matrix product ran on the GPU without CUBLAS_WORKSPACE_CONFIG=:4096:8 "
    "or :16:8; set it before this process starts"
)


@pytest.mark.parametrize(("message", "line"), [(NO_KERNEL, KERNEL_LINE), (NO_WORKSPACE, WORKSPACE_LINE)])
def test_refusals_are_one_line(message: str, line: str) -> None:
    with pytest.raises(ClasswiseError) as refused, deterministic_algorithms():
        raise RuntimeError(message)
    assert str(refused.value) == line
    for error in (RuntimeError("another error"), torch.OutOfMemoryError("out of memory")):
        with pytest.raises(type(error), match=str(error)), deterministic_algorithms():
            raise error


class Watched(Small):
    """Records the settings in each pass."""

    def __init__(self) -> None:
        self.seen: set[tuple[bool, bool, bool, bool]] = set()
        super().__init__(4)
        self.seen.clear()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(settings())
        return super().forward(x)


class Refused(Watched):
    """Fails in the backward pass as a layer without deterministic implementation."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError(NO_KERNEL)
        return super().forward(x)


def evaluations(model: Small) -> list[Callable[[], Any]]:
    data = cw.Images(images(40), torch.arange(40) % 4)
    options: dict[str, Any] = {"precision": EXACT, "attacks": ["fgsm", "pgd:steps=1"]}
    return [
        lambda: cw.audit(model, data, "Linf:0.1", **options, guards="off"),
        lambda: cw.robustness_curve(model, data, highest=0.1, rounds=1, **options),
        lambda: cw.find_worst_class(model, data, "Linf:0.1", **options),
        lambda: estimate(model, data, "Linf:0.1", **options),
        lambda: whole_suite(model).run_standard_evaluation(images(8), torch.arange(8) % 4, return_labels=True),
        lambda: whole_suite(model).run_standard_evaluation_individual(images(8), torch.arange(8) % 4),
    ]


def whole_suite(model: Small) -> AutoAttack:
    suite = AutoAttack(model, version="custom", attacks_to_run=["apgd-ce"], eps=0.1, precision=EXACT, verbose=False)
    suite.attacks["apgd-ce"] = make(ATTACKS, "apgd-ce:steps=2")
    return suite


@pytest.mark.parametrize("number", range(6))
def test_evaluations(number: int) -> None:
    model = Watched()
    result = evaluations(model)[number]()
    assert model.seen == {ACTIVE}
    if not isinstance(result, CostEstimate | Tensor | tuple | dict):
        meta = result.meta if hasattr(result, "meta") else result.outcomes.meta
        assert meta.precision["deterministic"] is True
    check_refused(
        "adaptive_avg_pool2d_backward_cuda has no deterministic implementation", evaluations(Refused())[number]
    )


def test_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Trainer, "fit", lambda _: seen.append(settings()))
    recipe = Recipe.read("at", {"model.name": "lenet", "data.subset": 40, "precision.deterministic": True})
    cw.train(recipe, data="digits", out=tmp_path / "run")
    assert seen == [ACTIVE]
    assert "deterministic: true" in recipe.yaml()
    assert recipe.digest() != Recipe.read(recipe, {"precision.deterministic": False}).digest()


def test_older_recipes_and_results_have_the_same_keys() -> None:
    assert not {"deterministic", "search", "graphs"} & cw.Precision().recorded(torch.device("cuda")).keys()
    assert repr(cw.Precision()) == "Precision(dtype='float32', channels_last=False, compile=False)"
