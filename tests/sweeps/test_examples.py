"""The docstring examples of sweeps run with the documented output."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("cells", "collect", "cost", "executors.choice", "executors.local", "jobs", "plan", "run", "status", "tasks")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    module = importlib.import_module(f"classwise.sweeps.{name}")
    assert doctest.testmod(module, raise_on_error=False).failed == 0
