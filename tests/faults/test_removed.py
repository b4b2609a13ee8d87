"""The package and folders that are removed while a command runs: one line, and a folder that can be resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import classwise
from classwise.auditing.run.result import Audit

pytestmark = pytest.mark.hostile

NET = """
import os
import shutil
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 60 and "REMOVE" in os.environ:
            shutil.rmtree(os.environ["REMOVE"])
        return self.head(x.flatten(1))

def build():
    return Net()
"""
AUDIT = ["audit", "net:build", "--data=digits", "--subset=200", "--threat=Linf:0.1", "--attack=pgd:steps=80"]
AUDIT += ["--batch-size=32", "--no-early-stop"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a copy of the package, and the user's module."""
    shutil.copytree(Path(classwise.__file__).parent, tmp_path / "site" / "classwise")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "net.py").write_text(NET)
    (tmp_path / "here").mkdir()
    return tmp_path / "site"


def run(site: Path, *words: str | Path, remove: Path | None = None) -> tuple[int, str]:
    """Run the command in its own process; returns its status and stderr."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(site.parent / "code")])}
    environment |= {} if remove is None else {"REMOVE": str(remove)}
    done = subprocess.run(
        [sys.executable, "-m", "classwise", *map(str, words)],
        cwd=site.parent / "here",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("part", [".", "reporting"])
def test_a_removed_package(site: Path, part: str) -> None:
    out, whole, package = site.parent / "audit", site.parent / "whole", site / "classwise"
    assert run(site, *AUDIT, "--out", whole)[0] == 0
    status, error = run(site, *AUDIT, "--out", out, remove=package / part)
    last = error.splitlines()[-1]
    assert status == 2, error
    assert "Traceback" not in error
    assert last.startswith("classwise: the package classwise was re")
    assert "--resume continues what is saved" in last
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(Path(classwise.__file__).parent, package)
    assert run(site, *AUDIT, "--out", out, "--resume")[0] == 0
    first, second = (Audit.load(folder).outcomes.frame for folder in (out, whole))
    assert first.equals(second)


@pytest.mark.parametrize("kind", ["out", "here"])
def test_a_removed_folder(site: Path, kind: str) -> None:
    out = site.parent / "out"
    status, error = run(site, *AUDIT, "--out", out, remove=site.parent / kind)
    assert "Traceback" not in error
    assert status == 2, error
    expected = {"out": "was removed during the audit; start the audit again", "here": "the current folder was removed;"}
    assert expected[kind] in error.splitlines()[-1]
