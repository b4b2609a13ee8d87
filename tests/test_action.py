"""The composite action and the Dockerfile: their form, and the steps of the action run by bash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
AUDIT = [
    "--attack=fgsm",
    "--subset=20",
    "--width=0.1",
    "--guards=off",
]


def bash(step: dict[str, Any], folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does: expressions are replaced in ``env`` only."""
    given = {name: str(about.get("default", "")) for name, about in ACTION["inputs"].items()} | inputs
    chosen = {f"inputs.{name}": value for name, value in given.items()} | {"github.action_path": str(ROOT)}
    env = {
        key: re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda match: chosen[match[1]], value)
        for key, value in step["env"].items()
    }
    files = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    path = {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        command, cwd=folder, env=os.environ | env | files | path, check=False, capture_output=True, text=True
    )


def test_the_action_has_the_form_of_a_composite_action() -> None:
    assert set(ACTION) == {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    ids = {step["id"] for step in STEPS if "id" in step}
    for about in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert about["description"]
    for output in ACTION["outputs"].values():
        (step, name) = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"]).groups()  # type: ignore[union-attr]
        assert step in ids
        assert f"{name}=" in next(candidate["run"] for candidate in STEPS if candidate.get("id") == step)
    for step in STEPS:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input in a script would be run as code"
        for text in step["env"].values():
            for name in re.findall(r"inputs\.([\w-]+)", text):
                assert name in ACTION["inputs"]
        assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0


def test_the_step_that_installs(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    done = bash(STEPS[0], tmp_path, python=str(python))
    assert done.stdout.split() == ["-m", "pip", "install", "--constraint", f"{ROOT}/constraints.txt", str(ROOT)]
    assert (ROOT / "constraints.txt").is_file()


@pytest.mark.slow
def test_the_step_that_audits(tmp_path: Path) -> None:
    """The second condition fails; a file of each kind is written all the same."""
    chosen = {"model": "small-cnn", "data": "digits", "threat": "Linf:0.1", "out": "a b", "python": sys.executable}
    done = bash(
        STEPS[1], tmp_path, **chosen, **{"fail-if": "worst(all) < 0.0\n0(all) <= 1", "arguments": "\n".join(AUDIT)}
    )
    assert done.returncode == 1, done.stderr
    output = dict(line.split("=", 1) for line in (tmp_path / "output").read_text(encoding="utf-8").splitlines())
    assert output == {"page": "a b/page.html", "junit": "a b/audit.xml", "sarif": "a b/audit.sarif"}
    assert all((tmp_path / file).is_file() for file in output.values())
    assert "worst class" in (tmp_path / "summary").read_text(encoding="utf-8")


def test_an_input_is_not_run_as_code(tmp_path: Path) -> None:
    """The program receives the text of each input as one argument."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n', encoding="utf-8")
    python.chmod(0o755)
    done = bash(STEPS[1], tmp_path, python=str(python), model="$(touch hacked); x", arguments="--set=a b\n")
    assert done.returncode == 3  # the status of the program, not of tee
    words = done.stdout.splitlines()
    assert words[3] == "$(touch hacked); x"
    assert words[-1] == "--set=a b"
    assert not {"--junit", "--fail-if", "--data"} & set(words)
    assert not (tmp_path / "hacked").exists()


def test_the_dockerfile_copies_what_exists() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == ["FROM", "python:3.11-slim"]
    assert {name for name, _ in lines} <= {"FROM", "ENV", "COPY", "ARG", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    copied = [source for name, rest in lines if name == "COPY" for source in rest.split()[:-1]]
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in kept
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"^torch==", pins, re.MULTILINE)) == 1
    assert ["ENTRYPOINT", '["classwise"]'] in lines
