"""The code of a user in the records of audits, curves and searches: resuming, caches, comparisons and evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.search import find_worst_class
from classwise.core.settings.code_identity import STRUCTURE
from classwise.models import load_model, save_weights
from classwise.reporting.evidence import build
from tests.auditing.test_criteria import written
from tests.auditing.toys import Listener
from tests.refusals import check_refused, refused
from tests.user_modules import UserModules, user_modules  # noqa: F401  # a fixture

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
    def forward(self, x):
        return self.linear(x.flatten(1))

def build(num_classes=10, in_channels=1):
    return Net()

def step(model, x, y):
    return (x + 0.1).clamp(0, 1)
"""
STEP = "external:attack=usercode:step"


def model_of(modules: UserModules, change: str = "") -> nn.Module:
    modules.write(usercode=CODE + change)
    torch.manual_seed(0)
    net: nn.Module = modules.load("usercode").Net()
    return net


def run(model: nn.Module, **more: Any) -> Audit:
    given: dict[str, Any] = {"attacks": [STEP, "fgsm"], "guards": "off", "batch_size": 32}
    return audit(model, cw.load_data("digits", split="test", subset=64), "Linf:0.1", **(given | more))


SEARCHES: dict[str, Callable[..., Any]] = {
    "audit": run,
    "curve": lambda model, **more: robustness_curve(
        model, cw.load_data("digits", split="test", subset=64), "Linf", ["fgsm"], highest=0.2, rounds=2, **more
    ),
    "search": lambda model, **more: find_worst_class(
        model, cw.load_data("digits", split="test", subset=64), "Linf:0.1", ["fgsm", "pgd:steps=2"], **more
    ),
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_changed_code_stops_a_resumed_evaluation_and_is_a_warning_for_a_finished_one(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    search, out = SEARCHES[kind], tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        search(model_of(user_modules), out=out, progress=Listener(20))
    message = refused(search, model_of(user_modules, "# changed"), out=out, resume=True)
    assert f"the code of model: usercode ({user_modules.folder / 'usercode.py'}) has changed" in message
    assert "restore it to continue, or give another folder" in message
    search(model_of(user_modules), out=out, resume=True)
    assert not [record for record in caplog.records if "code" in record.message]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".owner"}
    search(model_of(user_modules, "# changed"), out=out, resume=True)
    assert "was computed with other code: the code of model: usercode" in caplog.text
    assert before == {path: path.read_bytes() for path in before}


def test_an_appended_layer_is_another_model(tmp_path: Path, user_modules: UserModules) -> None:  # noqa: F811
    model = model_of(user_modules)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(KeyboardInterrupt):
        run(whole, attacks="fgsm", out=tmp_path / "a", progress=Listener(20))
    check_refused(
        f"the code of model: {STRUCTURE} has changed", run, whole.append(nn.Hardtanh()), attacks="fgsm",
        out=tmp_path / "a", resume=True,
    )  # fmt: skip
    audits = {name: run(net, out=tmp_path / name) for name, net in (("b", model), ("c", nn.Sequential(model)))}
    assert audits["b"].outcomes.meta.code != audits["c"].outcomes.meta.code


def test_an_audit_without_a_record_is_resumed_with_a_note(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 24)
    model, about = model_of(user_modules), tmp_path / "a" / "audit.json"
    with pytest.raises(KeyboardInterrupt):
        run(model, out=tmp_path / "a", progress=Listener(70))
    content = json.loads(about.read_text())
    del content["code"]
    about.write_text(json.dumps(content))
    (tmp_path / "a" / "checksums.txt").unlink()
    resumed = run(model, out=tmp_path / "a", resume=True)
    assert "does not record the code of your own" in caplog.text
    assert resumed.complete
    assert resumed.outcomes.meta.code is None is Audit.load(tmp_path / "a").outcomes.meta.code
    assert "code" not in json.loads(about.read_text())


def test_changed_code_is_not_taken_from_the_cache(tmp_path: Path, user_modules: UserModules) -> None:  # noqa: F811
    for change, folders in (("", 1), ("", 1), ("# changed", 2)):
        run(model_of(user_modules, change), attacks="fgsm", cache=tmp_path)
        assert len([*tmp_path.glob("*/audit.json")]) == folders


def test_comparisons_require_the_same_code_of_attacks(tmp_path: Path, user_modules: UserModules) -> None:  # noqa: F811
    first = run(model_of(user_modules), out=tmp_path / "first")
    same, other = run(model_of(user_modules)), run(model_of(user_modules, "# changed"))
    cw.compare({"first": first, "same": same})
    message = refused(cw.compare, {"first": first, "other": other})
    assert "differ in code of attacks: external usercode" in message
    cw.compare({"first": first, "other": other}, attack="fgsm")
    cw.compare({"first": first, "other": other}, attack="clean")


def test_a_saved_network_of_the_user_is_loaded_with_a_warning_if_its_code_has_changed(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    model_of(user_modules)
    save_weights(tmp_path / "w.safetensors", load_model("usercode:build", num_classes=10, in_channels=1))
    user_modules.forget()
    load_model(tmp_path / "w.safetensors")
    assert "other code" not in caplog.text
    model_of(user_modules, "# changed")
    load_model(tmp_path / "w.safetensors")
    assert "w.safetensors was saved with other code: the code of model: usercode" in caplog.text


def test_evidence_has_the_code_and_verify_compares_it_with_the_files_here(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
) -> None:
    policy = written(tmp_path / "policy.yaml", fail_if=["overall(all) < 0.001"])
    made = run(model_of(user_modules), out=tmp_path / "a", policy=policy)
    report = cw.evidence(tmp_path / "a", policy, tmp_path / "evidence")
    assert report.facts["audits"][0]["code"] == made.outcomes.meta.code
    assert made.outcomes.meta.code is not None
    assert made.outcomes.meta.code["model"][STRUCTURE] in report.page.read_text()
    assert build.verify(report.folder).differences == []
    file = user_modules.folder / "usercode.py"
    assert build.code_notes(report.folder) == [f"{tmp_path / 'a'}: the code of usercode ({file}) is unchanged"]
    file.write_text("")
    assert build.code_notes(report.folder) == [f"{tmp_path / 'a'}: the code of usercode ({file}) has changed"]
    assert build.verify(report.folder).differences == []
