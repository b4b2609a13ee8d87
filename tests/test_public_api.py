"""The public API: exactly these names, each with its arguments described."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import classwise as cw

NAMES = {
    "adjust_logits", "attack", "audit", "audit_seeds", "board", "compare", "export", "find_worst_class",
    "interpolate_weights", "load_data", "load_model", "report", "robustness_curve", "stream_data", "sweep", "train",
    "Attack", "Audit", "Board", "ClassWiseLoss", "ClasswiseError", "Comparison", "Curve", "Images", "Normalized",
    "Outcomes", "Precision", "Recipe", "Run", "Threat", "WorstClass", "ATTACKS", "metrics",
}  # fmt: skip


def functions() -> list[str]:
    return sorted(name for name in NAMES if inspect.isfunction(getattr(cw, name)))


def test_the_public_names() -> None:
    assert set(cw.__all__) - {"__version__"} == NAMES
    assert set(dir(cw)) >= NAMES


@pytest.mark.parametrize("name", functions())
def test_every_argument_is_described(name: str) -> None:
    function = getattr(cw, name)
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\nR")[0]
    described = re.findall(r"^    \**(\w+): ", section, re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", ["audit", "robustness_curve", "find_worst_class", "attack"])
def test_options_are_in_the_signature(name: str) -> None:
    """With their defaults, for completion in notebooks."""
    parameters = inspect.signature(getattr(cw, name)).parameters.values()
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
