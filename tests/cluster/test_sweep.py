"""`classwise sweep` on real engines, started as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import slurm_cluster
from tests.launching import ENVIRONMENT, ROOT

pytest.importorskip("classwise.sweeps.plan", reason="this version has no classwise sweep")

pytestmark = pytest.mark.slow

PLAN = """
recipes: [at]
budgets: [short]
data: [digits]
seeds: [0, 1]
overrides: [{model.width: 0.0625, data.subset: 120, epochs: 1}]
audits: {quick: {attack: fgsm, subset: 40}}
"""


def classwise(*words: str | Path) -> str:
    """Run a command that must succeed; what it prints."""
    command = [sys.executable, "-m", "classwise", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def sweep(folder: Path, *options: str) -> None:
    """Run a sweep of two cells, and check that both have finished."""
    plan = folder / "plan.yaml"
    plan.write_text(PLAN)
    classwise("sweep", plan, "--out", folder / "sweep", *options)
    assert "2 finished" in classwise("sweep", "status", folder / "sweep")
    classwise("sweep", "collect", folder / "sweep")


def test_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='Ray is not installed: pip install "classwise[ray]", or make test-cluster')
    sweep(tmp_path, "--on=ray", "--workers=2")


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())
def test_on_slurm(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "classwise[slurm]"')
    place = tmp_path / "slurm"
    place.mkdir()
    with slurm_cluster.running(place):
        sweep(tmp_path, "--on=slurm", "--slurm=partition=main,timeout_min=60")
