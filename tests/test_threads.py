"""Audits in threads: beside other audits and the passes of other models, without an effect on either."""

from __future__ import annotations

import copy
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import classwise as cw
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.operations import operations_of
from classwise.core.compute.rng import seeded
from classwise.models.fused_copy import foldable

THREADS = 3


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def data() -> cw.Images:
    return cw.load_data("digits", split="test", subset=40)


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Switch threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(works: list[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


@pytest.mark.parametrize("shared", [False, True])
def test_audits_in_threads_give_the_numbers_of_one(data: cw.Images, shared: bool) -> None:
    model = network().train()
    modes = [module.training for module in model.modules()]

    def audit(audited: nn.Module) -> object:
        return cw.audit(audited, data, "Linf:0.1", "pgd:steps=3").by_class["all"].tolist()

    expected = audit(copy.deepcopy(model))
    models = [model if shared else copy.deepcopy(model) for _ in range(THREADS)]
    assert together([functools.partial(audit, audited) for audited in models]) == [expected] * THREADS
    for audited in models:
        assert [module.training for module in audited.modules()] == modes
        assert all(parameter.requires_grad for parameter in audited.parameters())


def test_a_network_is_folded_without_patching_others() -> None:
    """While the copy is traced, another thread calls a module of another model, and torch's classes are unchanged."""
    seen: list[object] = []
    other, call = network(1), nn.Module.__call__

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()[:2]

        def forward(self, x: Tensor) -> Tensor:
            def elsewhere() -> None:
                seen.append(nn.Module.__call__ is call)
                seen.append(other(torch.rand(1, 1, 8, 8)).shape == (1, 10))
                seen.append(not torch.fx._symbolic_trace._is_fx_tracing_flag)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            out: Tensor = self.inner(x)
            return out

    assert foldable(Looks().eval()) == {"inner.1": "inner.0"}
    assert seen == [True] * 3


def test_the_classes_of_a_model_are_not_registered_again() -> None:
    """Tracing makes subclasses; code of the model that runs for each of its subclasses does not run for them."""
    found: list[str] = []

    class Registered(nn.Module):
        def __init_subclass__(cls) -> None:
            found.append(cls.__name__)

    class Network(Registered):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()[:2]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers(x)
            return out

    assert foldable(Network().eval()) == {"layers.1": "layers.0"}
    assert found == ["Network"]


def test_operations_are_counted_without_hooks_on_other_modules() -> None:
    hooks: list[int] = []

    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            hooks.append(len(torch_module._global_forward_pre_hooks) + len(torch_module._global_forward_hooks))
            return super().forward(x)

    assert operations_of(Looks(8, 2), torch.rand(3, 8)) == 2 * 3 * 8 * 2
    assert hooks == [0]


@pytest.mark.parametrize("first", [0, 1])
def test_deterministic_algorithms_last_until_the_last_thread_has_ended(first: int) -> None:
    contexts = [deterministic_algorithms() for _ in range(2)]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    contexts[1 - first].__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_code_of_others_is_seeded_in_one_thread_at_a_time() -> None:
    def drawn() -> list[float]:
        with seeded(3, torch.device("cpu")):
            return [value for _ in range(50) for value in (float(torch.rand(())), np.random.rand(), random.random())]  # noqa: NPY002

    expected = drawn()
    assert together([drawn] * THREADS) == [expected] * THREADS
