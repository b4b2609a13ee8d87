"""Values of the package: results as flat mappings, the recorded parts, and the comparison of two files."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tools.values import parts
from tools.values.__main__ import main
from tools.values.inputs import predictions
from tools.values.plain import FEW, Plain, flat
from tools.values.recorder import differences, values_of_part

import classwise as cw

MACHINE = {"processor": "a", "torch": "2.13"}
SIZES = st.integers(1, 2 * FEW)
NUMBERS = arrays.arrays(np.float64, SIZES, elements=st.floats(width=32))


def recorded(values: dict[str, Plain], **machine: str) -> dict[str, Any]:
    return {"machine": MACHINE | machine, "parts": {"part": {"seconds": 1.0}}, "values": {"part": values}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"": None}),
        (Fraction(1, 3), {"": "1/3"}),
        (float("nan"), {"": "nan"}),
        (np.float32(0.5), {"": 0.5}),
        ({"a": (), ("b", 1): {2, 1}}, {"a": "empty", "b,1/0": 1, "b,1/1": 2}),
        (torch.tensor([[1, 2]]), {"0,0": 1.0, "0,1": 2.0}),
        (pd.DataFrame({"x": [True, False]}, index=["cat", "dog"]), {"x/cat": True, "x/dog": False}),
        (Path("/tmp"), {}),
    ],
)
def test_values_are_flat(value: object, expected: dict[str, Plain]) -> None:
    assert flat(value) == expected


@given(NUMBERS, st.data())
def test_every_number_of_an_array_counts_and_its_type_does_not(
    values: np.ndarray[Any, Any], data: st.DataObject
) -> None:
    table = pd.DataFrame({"x": values, "text": [str(value) for value in values]})
    assert flat(values) == flat(torch.from_numpy(values).float()) == flat(torch.from_numpy(values))
    place = data.draw(st.integers(0, len(values) - 1))
    other = values.copy()
    other[place] = 1.5 if values[place] != 1.5 else 2.5
    assert flat(other) != flat(values)
    assert flat(table) != flat(table.assign(x=other))
    assert flat(table) != flat(table.assign(text=[str(value) for value in other]))


def test_unknown_results_are_refused() -> None:
    with pytest.raises(TypeError, match="no plain values of object"):
        flat({"a": object()})


def test_a_case_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"fails": partial(cw.Threat.parse, "Linf:abc"), "audit": partial(cw.Audit, predictions(0))}
    monkeypatch.setattr(parts, "PARTS", {"tiny": lambda: cases})
    found = values_of_part("tiny")
    assert str(found["fails/error"]).startswith("error: ClasswiseError: threat 'Linf:abc'")
    audit = cw.Audit(predictions(0))
    assert found["audit/by_class/all/4"] == audit.by_class["all"]["4"]
    assert found["audit/under/first/worst class/minimum/low"] == audit.worst_class("first").low


@pytest.mark.slow
def test_every_attack_and_statistic_has_values() -> None:
    assert {f"attack/{name}" for name in cw.ATTACKS} <= set(parts.PARTS)
    found = values_of_part("statistics")
    assert found["metrics:hmw"] == cw.metrics.hmw(0.4, 0.3)
    assert [key for key, value in found.items() if str(value).startswith("error: ")] == []


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from([None, True, 1, 2.5, "nan"]), max_size=3))
def test_equal_files_have_no_difference(values: dict[str, Plain]) -> None:
    assert list(differences(recorded(values), json.loads(json.dumps(recorded(values))))) == []


def test_differences() -> None:
    first, second = recorded({"a": 1, "b": 0.5, "c": True}), recorded({"b": 0.75, "c": 1, "d": "x"})
    lines = ["removed part/a = 1", "changed part/b: 0.5 -> 0.75 (by 2.5e-01)", "changed part/c: True -> 1 (by 0.0e+00)"]
    assert list(differences(first, second)) == [*lines, "added part/d = 'x'"]
    assert list(differences(first, second, "part/b")) == lines[1:2]


def test_the_command_compares_files_of_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {"a": recorded({"x": 1}), "b": recorded({"x": 2}), "other": recorded({"x": 1}, torch="2.14")}
    files = {name: str(tmp_path / name) for name in contents}
    for name, content in contents.items():
        Path(files[name]).write_text(json.dumps(content))
    assert main(["compare", files["a"], files["a"]]) == 0
    assert main(["compare", files["a"], files["b"]]) == 1
    assert "changed part/x: 1 -> 2" in capsys.readouterr().out
    assert main(["compare", files["a"], files["other"]]) == 2
    assert "torch differs: 2.13 and 2.14" in capsys.readouterr().err
    assert main(["compare", "--force", files["a"], files["other"]]) == 0
    assert main(["record", files["a"]]) == 2
