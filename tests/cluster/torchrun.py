"""Many runs of two processes, which must all end cleanly; for ``make test-cluster``, which names this file.

The number of runs is in the environment variable ``RUNS``. They find most on a busy machine: start several.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from classwise.auditing.run.result import Audit
from classwise.training.folder import Run
from tests.launching import ENVIRONMENT, ROOT

RUNS = int(os.environ.get("RUNS", "4"))
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "classwise"]
SMALL = ["--set=model.width=0.0625", "--set=data.subset=240", "--set=epochs=2"]


def classwise(*words: str | Path) -> None:
    """Run a command in two processes; it must exit with 0, nothing but lines of ours on stderr."""
    done = subprocess.run(
        [*LAUNCH, *map(str, words)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not [word for word in ("Traceback", "terminate called") if word in done.stderr], done.stderr[-4000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run to audit."""
    path = tmp_path_factory.mktemp("cluster") / "run"
    classwise("train", "cfa-at", "--budget=short", "--data=digits", *SMALL, f"--out={path}")
    return path


@pytest.mark.parametrize("number", range(RUNS))
def test_two_processes_end_cleanly(number: int, trained: Path, tmp_path: Path) -> None:
    """Trainings and audits in turn."""
    out = tmp_path / "out"
    if number % 2:
        classwise("audit", trained, "--attack=pgd:steps=5", "--subset=200", f"--out={out}")
        assert Audit.load(out).complete
        assert (out / "page.html").is_file()
    else:
        classwise("train", "cfa-at", "--budget=short", "--data=digits", *SMALL, f"--out={out}")
        assert Run.open(out).complete
