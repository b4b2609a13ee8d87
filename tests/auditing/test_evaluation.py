"""What is derived from the declaration of the options of an evaluation, for each of them; and two made-up options."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import classwise as cw
from classwise.auditing.compare.comparability import Named, check_alike
from classwise.auditing.evaluation.evaluation import FLAGS, OPTIONS, STORED, complete
from classwise.auditing.evaluation.option import COMPARED, Decides, Option
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.cost import estimate
from classwise.cli.evaluation import flags, written
from classwise.core.settings.arguments import check
from classwise.sweeps.settings import read_audit
from tests.refusals import check_refused

FUNCTIONS: list[Callable[..., Any]] = [
    cw.audit, cw.audit_seeds, cw.robustness_curve, cw.find_worst_class, audit_corruptions, estimate
]  # fmt: skip
VALUES: Mapping[str, Any] = {"precision": {"dtype": "bfloat16"}, "policy": "5f" * 32}
"""Values in metadata of options that are stored as something else."""


def other_value(option: Option) -> Any:
    """A value that is not the default."""
    known = {bool: not option.default, int: 64, float: 0.25}
    assert option.flag is not None
    choices = re.findall(r"\w+", option.flag.metavar or "")
    return VALUES.get(option.name) or known.get(option.flag.kind, choices[-1] if choices else "")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_have_the_options_with_types_defaults_and_descriptions(function: Callable[..., Any]) -> None:
    parameters, text = inspect.signature(function).parameters, " ".join((inspect.getdoc(function) or "").split())
    shared = OPTIONS.keys() & parameters.keys()
    assert shared >= {"device", "precision", "batch_size", "seed"}
    assert function is not cw.audit or shared == OPTIONS.keys()
    for name in shared - {"max_time"} if function is cw.find_worst_class else shared:
        option = OPTIONS[name]
        assert (parameters[name].default, parameters[name].annotation) == (option.default, option.type)
        assert f"{name}: {option.help}" in text
    check(function, {name: OPTIONS[name].default for name in shared})


def test_the_command_and_plans_have_the_options_and_the_defaults_of_python() -> None:
    given = flags(*FLAGS)().options
    assert given == {name: value for name, value in complete({}).items() if name in FLAGS} | {"device": "cpu"}
    for option in FLAGS.values():
        for key in {option.name, option.key}:
            assert read_audit({key: option.default}, "plan").asked == {option.name: option.default}


@pytest.mark.parametrize("option", [option for option in FLAGS.values() if option.flag and option.flag.per != 1])
def test_plans_have_the_unit_of_python_and_recorded_commands_that_of_the_command_line(option: Option) -> None:
    assert read_audit({option.key: 0.5, "attack": "autoattack"}, "plan").asked[option.name] == 0.5
    assert option.flag is not None
    assert float(written(option.key, 0.5)) == pytest.approx(0.5 * option.flag.per, rel=1e-5)
    assert (option.flag.metavar or "").lower() in ("points", "minutes")


@pytest.mark.parametrize("name", STORED)
def test_metadata_keep_a_value_and_refuse_another_type(name: str) -> None:
    value = other_value(STORED[name])
    meta = Meta.of(class_names=("a", "b"), attacks={"pgd": None}, **{name: value})
    assert Meta.from_json(meta.to_json(), "file") == meta
    assert meta.settings[name] == value
    check_refused(f"metadata: {name} = ", Meta.of, class_names=("a", "b"), attacks={}, **{name: object()})


@pytest.mark.parametrize("name", STORED)
def test_compared_audits_agree_in_what_decides_verdicts(name: str) -> None:
    option = STORED[name]
    first = cw.Outcomes.from_predictions([0, 1], clean=[0, 1], attacks={"pgd": [0, 0]}, early_stop=True, repeats=2)
    changed = first.meta.stating(**{name: other_value(option)})
    one = Named("a", cw.Audit(first))
    other = Named("b", cw.Audit(cw.Outcomes(first.frame, changed)))
    if option.decides not in COMPARED:
        return check_alike(one, other, "pgd", None)
    if option.decides is Decides.ATTACKED:
        check_alike(one, other, "clean", None)
    words = "repeats" if name == "repeat_rule" else option.words
    check_refused(f"a and b differ in {words}: ", check_alike, one, other, "pgd", None)
    return None


NEW = """
    note: Annotated[
        "str | None", Option(None, Decides.RECORD, "a remark.", flag=Flag(str, metavar="TEXT", panel="Records"))
    ]
    noise: Annotated[
        "int", Option(0, Decides.VERDICTS, "noise on the image.", flag=Flag(int, metavar="N", panel="Attack"))
    ]
"""
USE = """
import importlib.util, inspect, io, contextlib, sys, tempfile
from pathlib import Path

name = "classwise.auditing.evaluation.evaluation"
spec = importlib.util.find_spec(name)
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
text = Path(spec.origin).read_text(encoding="utf-8")
place = text.index("    early_stop: Annotated[")
exec(compile(text[:place] + NEW + text[place:], spec.origin, "exec"), vars(module))
importlib.import_module("classwise.auditing.evaluation").evaluation = module

import torch
import classwise as cw
from classwise.auditing.run.result import Audit
from classwise.cli import main
from classwise.reporting.facts.provenance import settings_of
from classwise.sweeps.plan import Plan
from tools.reference import evaluation

data = cw.Images(torch.rand(40, 1, 4, 4), torch.arange(40) % 2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
def audited(**options):
    return cw.audit(model, data, "Linf:0.1", "fgsm", guards="off", **options)
with tempfile.TemporaryDirectory() as folder:
    audited(note="mine", noise=3, out=f"{folder}/a")
    found = Audit.load(f"{folder}/a")
    assert {key: found.outcomes.meta.settings[key] for key in ("note", "noise")} == {"note": "mine", "noise": 3}
    assert ("Note", "mine") in settings_of(found) and ("Noise", "3") in settings_of(found)
    audited(note="other", noise=3, out=f"{folder}/a", resume=True)
    for wrong in (lambda: audited(noise=4, out=f"{folder}/a", resume=True), lambda: cw.compare(found, audited())):
        try:
            wrong()
        except cw.ClasswiseError as error:
            assert "noise" in str(error), error
        else:
            raise AssertionError("another noise")
    cw.compare(found, audited(noise=3))
with contextlib.redirect_stdout(io.StringIO()) as printed:
    main(["audit", "--help-all"])
assert "--note TEXT" in printed.getvalue() and "Noise on the image. [0]" in printed.getvalue()
plan = Plan.read({"recipes": ["at"], "data": ["digits"], "audits": {"full": {"note": "mine", "noise": 3}}})
(cell,) = plan.cells()
assert cell.audits["full"] == {"note": "mine", "noise": 3}
assert "`noise` | `--noise`" in evaluation()
"""


@pytest.mark.slow
def test_a_new_option_is_one_entry() -> None:
    """Of the declaration: then functions, command, plan, record, report, comparison and reference page have it."""
    code = f"NEW = {NEW!r}\n{USE}"
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(filter(None, ("src", os.environ.get("PYTHONPATH"))))
    words, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": paths}
    run = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_record_is_complete() -> None:
    assert complete({"seed": 3, "save": "logits"}).items() >= {"seed": 3, "save": ("logits",), "repeats": 1}.items()
    assert {option.unit for option in OPTIONS.values() if option.flag and option.flag.per != 1} == {
        "fraction",
        "seconds",
    }
