"""The public API: exactly these names, each with its arguments described."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import classwise as cw
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.cost import estimate

NAMES = {
    "adjust_logits", "attack", "audit", "audit_seeds", "board", "compare", "evidence", "export", "find_worst_class",
    "interpolate_weights", "load_data", "load_model", "plan", "report", "robustness_curve", "stream_data", "sweep",
    "train", "view", "weakness",
    "Attack", "Audit", "Board", "ClassWiseLoss", "ClasswiseError", "Comparison", "Curve", "Images", "Normalized",
    "Outcomes", "Precision", "Recipe", "Run", "Threat", "Weakness", "WorstClass", "ATTACKS", "metrics", "papers",
}  # fmt: skip


EVALUATIONS: list[Callable[..., Any]] = [
    cw.audit, cw.audit_seeds, cw.robustness_curve, cw.find_worst_class, audit_corruptions, estimate
]  # fmt: skip
FUNCTIONS: set[Callable[..., Any]] = {*filter(inspect.isfunction, map(cw.__getattr__, NAMES)), *EVALUATIONS}


def descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """The description of each argument in the docstring."""
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\nR")[0]
    return dict(re.findall(r"^    \**(\w+): ((?:.+|\n {8})*)", section, re.MULTILINE))


def test_the_public_names() -> None:
    assert set(cw.__all__) - {"__version__"} == NAMES
    assert set(dir(cw)) >= NAMES


@pytest.mark.parametrize("function", sorted(FUNCTIONS, key=str))
def test_every_argument_is_described(function: Callable[..., Any]) -> None:
    assert list(descriptions(function)) == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("function", [*EVALUATIONS, cw.attack])
def test_options_are_in_the_signature(function: Callable[..., Any]) -> None:
    """With their defaults, for completion in notebooks."""
    parameters = inspect.signature(function).parameters.values()
    assert not [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]


def test_a_user_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown data set 'digitz'; did you mean 'digits'"):
        cw.load_data("digitz")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'audits'"):
        _ = cw.audits


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, classwise; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
