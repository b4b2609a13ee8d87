"""The composite action, the workflows of examples/ci and the Dockerfile: their form, and their steps run by bash."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

import classwise
from classwise.models import build_model, save_weights

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
AUDIT = [
    "--attack=fgsm",
    "--subset=20",
    "--width=0.1",
    "--guards=off",
]


STUB = """#!/bin/sh
case "$2" in pip) echo "$@" >> pip.txt ;; *) exec %s "$@" ;; esac
"""
"""A Python interpreter that installs nothing."""


def run_script(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script in a folder, as a runner does."""
    files = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    path = {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=folder, env=os.environ | files | path | env, check=False, capture_output=True, text=True
    )


def bash(step: dict[str, Any], folder: Path, *, cache: str = "", **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action: expressions are replaced in ``env`` only."""
    given = {name: str(about.get("default", "")) for name, about in ACTION["inputs"].items()} | inputs
    env = {key: evaluated(value, given) for key, value in step["env"].items()}
    return run_script(step["run"], folder, CLASSWISE_CACHE=cache, **env)


def evaluated(text: str, inputs: dict[str, str], outputs: dict[str, str] | None = None) -> str:
    """The text with the values of its expressions: inputs of the action and outputs of its step, empty if unset."""
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}
    known |= {f"steps.audit.outputs.{name}": (outputs or {}).get(name, "") for name in ACTION["outputs"]}
    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda match: known[match[1]], text)


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def written_outputs(folder: Path) -> dict[str, str]:
    """The outputs that steps have set."""
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


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


@pytest.mark.parametrize("extras", ["", "timm,robustbench"])
def test_the_step_that_installs(tmp_path: Path, extras: str) -> None:
    """Extras are installed beside the pinned torch, and not constrained: some require other versions."""
    python = executable(tmp_path / "python", STUB % sys.executable)
    assert bash(STEPS[0], tmp_path, python=str(python), extras=extras).returncode == 0
    (torch_pin,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    expected = [f"-m pip install --constraint {ROOT}/constraints.txt {ROOT}"]
    expected += [f"-m pip install {ROOT}[{extras}] {torch_pin}"] if extras else []
    assert (tmp_path / "pip.txt").read_text(encoding="utf-8").splitlines() == expected


def test_the_examples_install_from_this_repository() -> None:
    """classwise is installed by the action or from a clone, at the version of the package, not from an index."""
    for file in (ROOT / "examples" / "ci").glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        assert "pip install classwise" not in text, file.name
        (found,) = re.findall(r"OWNER/classwise(?:@|, ref: )v([\w.]+)", text)
        assert found == classwise.__version__.partition(".dev")[0], file.name


def workflow(name: str, job: str) -> list[dict[str, Any]]:
    """The steps of a job in examples/ci."""
    text = (ROOT / "examples" / "ci" / f"{name}.yml").read_text(encoding="utf-8")
    steps: list[dict[str, Any]] = yaml.safe_load(text)["jobs"][job]["steps"]
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "conditions", "status", "line"),
    [
        ("small-cnn", "worst(all) < 0.0", 0, "worst class: "),
        ("small-cnn", "worst(all) < 0.0\n0(all) <= 1", 1, "failed: fails if 0(all) <= 1, which is true: "),
        ("nosuch.safetensors", "worst(all) < 0.0", 2, "classwise: there is no file"),
    ],
    ids=["success", "failed gate", "error"],
)
def test_the_workflow_that_audits(tmp_path: Path, model: str, conditions: str, status: int, line: str) -> None:
    """In a clean folder: the action with the inputs of the example on a small model, then the uploads that are due."""
    steps = workflow("audit", "audit")
    (step,) = (step for step in steps if step.get("id") == "audit")
    assert step["with"].keys() <= ACTION["inputs"].keys()
    python = executable(tmp_path / "python", STUB % sys.executable)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "page.html").touch()  # of an earlier run
    chosen = {"model": model, "data": "digits", "threat": "Linf:0.1", "out": "a b", "python": str(python)}
    chosen |= {"fail-if": conditions, "arguments": "\n".join(AUDIT)}
    done = [bash(step, tmp_path, **{**step.get("with", {}), **chosen}) for step in STEPS]
    assert [step.returncode for step in done] == [0, status], done[-1].stderr
    summary = (tmp_path / "summary").read_text(encoding="utf-8")
    assert [found for found in summary.splitlines() if found.startswith(f"    {line}")], summary
    assert not re.search(r"^ *\d\d:\d\d:\d\d ", summary, re.MULTILINE)
    outputs, uploaded = written_outputs(tmp_path), []
    for upload in steps[steps.index(step) + 1 :]:
        (needed,) = re.fullmatch(r"always\(\) && steps\.audit\.outputs\.(\w+)", upload["if"]).groups()  # type: ignore[union-attr]
        if outputs.get(needed):
            given = upload["with"].get("path") or upload["with"]["sarif_file"]
            uploaded += evaluated(given, {}, outputs).split("\n")
    files = ["a b/page.html", "a b/audit.xml", "", "a b/audit.sarif"]
    assert uploaded == (files if status < 2 else [])
    assert all((tmp_path / file).is_file() for file in uploaded if file)


@pytest.mark.slow
def test_the_workflow_that_compares(tmp_path: Path) -> None:
    """Twelve lines, whose commands fail for a model of lower accuracy."""
    steps = workflow("regression", "compare")
    text = (ROOT / "examples" / "ci" / "regression.yml").read_text(encoding="utf-8")
    assert len(text.partition("    steps:\n")[2].splitlines()) == 12
    script = steps[-1]["run"].replace("photos/", "photos.npz --attack fgsm --guards off")
    executable(tmp_path / "pip", "#!/bin/sh\n")
    executable(tmp_path / "classwise", f'#!/bin/sh\nexec {sys.executable} -m classwise "$@"\n')
    images = np.concatenate([np.full((20, 1, 8, 8), value, np.float32) for value in (0.2, 0.8)])
    np.savez(tmp_path / "photos.npz", x=images, y=np.repeat([0, 1], 20))
    model = build_model("small-cnn", num_classes=2, in_channels=1, width=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(torch.from_numpy(images)), torch.arange(40) // 20))
        optimizer.step()
    (tmp_path / "base").mkdir()
    save_weights(tmp_path / "base" / "model.safetensors", model)
    with torch.no_grad():
        model.get_parameter("fc3.bias")[0] += 100  # all images are predicted as class 0
    save_weights(tmp_path / "model.safetensors", model)
    done = run_script(script, tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 1, done.stderr
    assert "failed: fails if any(clean).high < 0, which is true (new: upper end -" in done.stderr
    assert (tmp_path / "comparison.html").is_file()


PRINTS_WORDS = '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n'


def test_an_input_is_not_run_as_code(tmp_path: Path) -> None:
    """The program receives the text of each input as one argument, paths after ``--`` or joined to the option."""
    python = executable(tmp_path / "python", PRINTS_WORDS)
    arguments = "--set=a b\n \n\r\n--seed=1\r\n"
    done = bash(STEPS[1], tmp_path, python=str(python), model="$(touch hacked); x", arguments=arguments, out="-o")
    assert done.returncode == 3  # the status of the program, not of tee
    words = done.stdout.splitlines()[1:-1]
    assert words[-4:] == ["--set=a b", "--seed=1", "--", "$(touch hacked); x"]
    assert words[:6] == [
        "-m",
        "classwise",
        "audit",
        "--html=./-o/page.html",
        "--sarif=./-o/audit.sarif",
        "--out=./-o/audit",
    ]
    assert len(words) == 10
    assert "--out" not in bash(STEPS[1], tmp_path, cache="cache", python=str(python), model="x").stdout
    assert not (tmp_path / "hacked").exists()
    conditions = {"fail-if": "worst(all) < 0.2\n\t\n", "require": "any < 1\r\n"}
    words = bash(STEPS[1], tmp_path, python=str(python), model="x", **conditions).stdout.splitlines()
    assert words[7:10] == ["--fail-if=worst(all) < 0.2", "--require=any < 1", "--junit=classwise-audit/audit.xml"]
    words = bash(STEPS[1], tmp_path, python=str(python), model="x", policy="a b.yaml").stdout.splitlines()
    assert words[7:9] == ["--policy=a b.yaml", "--junit=classwise-audit/audit.xml"]


def test_the_output_is_not_read_as_commands_of_the_workflow(tmp_path: Path) -> None:
    """Such as the name of a class that begins with two colons, or with the fence of the summary."""
    python = executable(tmp_path / "python", "#!/bin/sh\necho '::add-mask::x'\necho '```'\necho '::error::y' >&2\n")
    done = bash(STEPS[1], tmp_path, python=str(python), model="x")
    first, *shown, last = done.stdout.splitlines()
    assert shown == ["::add-mask::x", "```"]
    assert first.startswith("::stop-commands::")
    assert last == f"::{first.removeprefix('::stop-commands::')}::"
    assert len(last) == 36
    assert bash(STEPS[1], tmp_path, python=str(python), model="x").stdout.splitlines()[0] != first
    assert all(line.startswith("    ") for line in (tmp_path / "summary").read_text(encoding="utf-8").splitlines())


def test_an_output_folder_of_several_lines_is_refused(tmp_path: Path) -> None:
    """It would set other outputs of the step."""
    python = executable(tmp_path / "python", PRINTS_WORDS)
    done = bash(STEPS[1], tmp_path, python=str(python), model="x", out="a\npage=b")
    assert (done.returncode, done.stderr) == (2, "out must be one line\n")
    assert not (tmp_path / "output").exists()


WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").glob("*")
}


def test_the_workflows_of_the_project() -> None:
    """They may read the repository, run targets of make that exist, and publish only what a person has started."""
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    known = {target for line in targets for target in line.split()}
    assert set(WORKFLOWS) == {"ci", "docs", "release"}
    for about in WORKFLOWS.values():
        assert about["permissions"] == {"contents": "read"}
        scripts = [step.get("run", "") for job in about["jobs"].values() for step in job["steps"]]
        assert set(re.findall(r"^make ([\w-]+)", "\n".join(scripts), re.MULTILINE)) <= known
    assert set(WORKFLOWS["release"][True]) == {"workflow_dispatch"}  # YAML 1.1 reads the key ``on`` as true
    assert WORKFLOWS["release"]["jobs"]["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that Windows does not have."""


def test_the_job_on_windows_can_import_its_tests() -> None:
    """A module that fails to import ends pytest before the first test."""
    (command,) = (
        step["run"] for step in WORKFLOWS["ci"]["jobs"]["systems"]["steps"] if "pytest" in step.get("run", "")
    )
    ignored = {ROOT / folder for folder in re.findall(r"--ignore (\S+)", command)}
    needed = []
    for file in (path for folder in ("tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if POSIX & {*names} and not ignored & {*file.parents}:
                needed.append((file.name, names))
    assert needed == []
    assert len(ignored) == 2


def test_a_release_has_absolute_links_in_its_readme(tmp_path: Path) -> None:
    """On PyPI the links that are relative here point to the files of the tag, images to their bytes."""
    (script,) = (
        step["run"] for step in WORKFLOWS["release"]["jobs"]["build"]["steps"] if "links" in step.get("name", "")
    )
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    about = {"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "me/it", "GITHUB_REF_NAME": "v1.2.0"}
    assert run_script(script, tmp_path, **about).returncode == 0
    changed = (tmp_path / "README.md").read_text(encoding="utf-8")
    target = re.compile(r'(?:\]\(|src=\"|srcset=\")([^)"]+)')
    links, absolute = target.findall(text), target.findall(changed)
    assert len(links) == len(absolute) > 20
    for link, found in zip(links, absolute, strict=True):
        kind = "raw" if link.endswith(".png") else "blob"
        assert found == (link if ":" in link else f"https://host/me/it/{kind}/v1.2.0/{link}")
    assert target.sub("", changed) == target.sub("", text)


@pytest.mark.parametrize(
    ("tag", "owner", "error"),
    [
        ("v1.2.0", "me", ""),
        ("v1.2.1", "me", "tag v1.2.1 is not v1.2.0, the version of the package"),
        ("v1.2.0", "other", "[project.urls] of pyproject.toml does not name https://github.com/other/classwise"),
        ("v1.2.0", "OWNER", "replace OWNER in examples"),
    ],
)
def test_a_release_has_the_version_and_the_address_of_its_tag(tmp_path: Path, tag: str, owner: str, error: str) -> None:
    (script,) = (
        step["run"] for step in WORKFLOWS["release"]["jobs"]["build"]["steps"] if "tag" in step.get("name", "")
    )
    (tmp_path / "build/empty/bin").mkdir(parents=True)
    executable(tmp_path / "build/empty/bin/classwise", "#!/bin/sh\necho 1.2.0\n")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = "OWNER" if owner == "OWNER" else "me"
    text = re.sub(r"github\.com/[\w-]+/classwise", f"github.com/{named}/classwise", text)
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "audit.yml").write_text(f"uses: {named}/classwise@v1\n", encoding="utf-8")
    about = {"GITHUB_REF_NAME": tag, "GITHUB_SERVER_URL": "https://github.com"}
    about |= {"GITHUB_REPOSITORY": f"{owner}/classwise", "GITHUB_REPOSITORY_OWNER": owner}
    done = run_script(script, tmp_path, **about)
    assert done.returncode == bool(error), done.stdout
    assert done.stdout.count("::error::") == bool(error)
    assert error in done.stdout


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
