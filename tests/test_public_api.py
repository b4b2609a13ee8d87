"""The public API: exactly these names, with signatures that fit on a line or two."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import classwise as cw

NAMES = {
    "attack", "audit", "robustness_curve", "find_worst_class", "compare", "report", "train", "load_model", "load_data",
    "stream_data", "Audit", "Comparison", "Curve", "WorstClass", "Outcomes", "Images", "Normalized", "Threat",
    "Precision", "Attack", "board", "Board", "ATTACKS", "Recipe", "Run", "metrics", "ClasswiseError",
}  # fmt: skip
PARAMETERS = 12
"""The most parameters of a public function; options that belong together count once (``**options``)."""


def functions() -> list[str]:
    return sorted(name for name in NAMES if inspect.isfunction(getattr(cw, name)))


def test_the_public_names() -> None:
    assert set(cw.__all__) - {"__version__"} == NAMES
    assert set(dir(cw)) >= NAMES


@pytest.mark.parametrize("name", functions())
def test_functions_have_few_parameters(name: str) -> None:
    assert len(inspect.signature(getattr(cw, name)).parameters) <= PARAMETERS


def test_a_user_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown data set 'digitz'; did you mean 'digits'"):
        cw.load_data("digitz")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'audits'"):
        _ = cw.audits


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, classwise; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
