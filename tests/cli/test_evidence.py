"""``classwise evidence``: its exit statuses, and the report that it verifies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import classwise as cw
from tests.auditing.test_criteria import written
from tests.reporting.test_evidence import as_if_computed

from .conftest import Classwise


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    labels = np.repeat([0, 1], 20)
    outcomes = cw.Outcomes.from_predictions(
        labels, labels, {"pgd": labels * (np.arange(40) % 2)}, ["0", "1", "2"], threat="Linf:0.1"
    )
    cw.Audit(as_if_computed(outcomes)).save(tmp_path / "a")
    return "a"


def test_statuses_of_the_verdicts(audit: str, classwise: Classwise) -> None:
    for name, condition, status, verdict in (
        ("passed", "overall(all) < 0.1", 0, "passed"),
        ("failed", "overall(all) < 0.9", 1, "failed"),
        ("undecided", "'2'(all) < 0.1", 3, "undecided"),
    ):
        policy = written(Path(f"{name}.yaml"), fail_if=[condition])
        said = classwise("evidence", audit, "--policy", str(policy), "--out", name)
        assert said.status == status
        assert f"verdict: {verdict}" in said.out
        assert "Criteria stated after the run." in said.out
        assert (Path(name) / "evidence.html").is_file()


def test_a_model_card_on_request(audit: str, classwise: Classwise) -> None:
    words = ("evidence", audit, f"--policy={written(Path('policy.yaml'), fail_if=['overall(all) < 0.1'])}")
    assert "card:" not in classwise(*words, "--out=plain").out
    assert not Path("plain/README.md").exists()
    assert "card: evidence/README.md" in classwise(*words, "--card").out
    assert Path("evidence/README.md").read_text().startswith("---\nlicense: unknown\n")
    assert classwise("evidence", "verify", "evidence").status == 0


def test_verification_exits_with_1_if_anything_differs(audit: str, classwise: Classwise) -> None:
    policy = written(Path("policy.yaml"), fail_if=["overall(all) < 0.1"])
    said = classwise("evidence", "write", audit, "--policy", str(policy), "--json")
    assert json.loads(said.out)["verdict"] == "passed"
    assert "give the same report" in classwise("evidence", "verify", "evidence", audit).out
    page = Path("evidence/evidence.html")
    page.write_text(page.read_text().replace("passed", "failed", 1))
    said = classwise("evidence", "verify", "evidence")
    assert said.status == 1
    assert "evidence.html differs from its SHA-256" in said.err
