"""The tool that resolves extras: it finds a torch that would be replaced, and conflicts of versions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tools import check_extras

CONFLICT = """ERROR: Cannot install classwise[mlflow]==0.1.0 because versions have conflicting dependencies.

The conflict is caused by:
    classwise 0.1.0 depends on pyarrow>=15
    mlflow 3.17.2 depends on pyarrow<26 and >=4.0.0
    The user requested (constraint) pyarrow==26.0.1
"""
REASON = "mlflow 3.17.2 depends on pyarrow<26 and >=4.0.0; The user requested (constraint) pyarrow==26.0.1"


def report(**packages: str) -> str:
    entries = [{"metadata": {"name": name, "version": version}} for name, version in packages.items()]
    return json.dumps({"install": [{"metadata": {"name": "classwise", "version": "0.1.0"}}, *entries]})


def fake_pip(monkeypatch: pytest.MonkeyPatch, answers: Sequence[str]) -> list[list[str]]:
    """Replace pip; an answer is a report, or the output of a failure. Returns the pins of each call."""
    pins: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        place = command.index("--report")
        answer = answers[len(pins)]
        pins.append(command[place + 3 :])
        assert "--dry-run" in command[:place]
        failed = not answer.startswith("{")
        if not failed:
            Path(command[place + 1]).write_text(answer, encoding="utf-8")
        return subprocess.CompletedProcess(command, failed, "", answer if failed else "")

    monkeypatch.setattr(subprocess, "run", run)
    return pins


FOR = check_extras.PURPOSES["hf"]
CONSTRAINTS = ["--constraint", "constraints.txt"]
TORCH = [f"torch=={metadata.version('torch').partition('+')[0]}"]
CASES: dict[str, tuple[list[str], list[list[str]], int, str]] = {
    "added": ([report(timm_x="1.0")], [CONSTRAINTS], 0, f"| `hf` | {FOR} | resolves | 1 |"),
    "torch": ([report(torch="9.0")], [CONSTRAINTS], 1, f"| `hf` | {FOR} | resolves, replaces torch | 1 |"),
    "conflict": (
        [CONFLICT, report(NumPy="1.0")],
        [CONSTRAINTS, TORCH],
        0,
        f"| `hf` | {FOR} | resolves, replaces numpy ({REASON}) | 1 |",
    ),
    "none": (
        ["ERROR: no|versions", "ERROR"],
        [CONSTRAINTS, TORCH],
        1,
        f"| `hf` | {FOR} | does not resolve (no/versions) | 0 |",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_pip_would_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers, expected, status, row = CASES[name]
    pins = fake_pip(monkeypatch, answers)
    assert check_extras.main(["hf", "--out", str(tmp_path / "extras.md")]) == status
    assert pins == expected
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == row
    assert (tmp_path / "extras.md").read_text(encoding="utf-8") == output


def test_an_unknown_extra_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_extras.main(["tim"])
    assert "unknown extra 'tim'; known: tensorboard, " in capsys.readouterr().err


def test_the_page_has_every_extra() -> None:
    page = (check_extras.ROOT / "docs" / "reference" / "extras.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == check_extras.extras()
