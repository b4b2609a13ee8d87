"""The commands of the page on executors run verbatim; shards find what one process finds."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import classwise as cw
from tests.cli.test_readme import commands
from tests.cluster import slurm_cluster
from tests.documents import DOCS
from tests.faults.client import rows_of_audit
from tests.launching import ENVIRONMENT

pytestmark = pytest.mark.slow

PLAN = """
recipes: [at]
budgets: [short]
data: [digits]
seeds: [0, 1]
overrides: [{model.width: 0.0625, data.subset: 120, epochs: 1}]
audits: {quick: {attack: fgsm, subset: 40}}
"""
SMALL = ("--set=model.name=small-cnn", "--set=model.width=0.05", "--set=data.subset=240", "--epochs=2")


def classwise(*words: str) -> str:
    """Run a command in the current folder, which must succeed; what it prints."""
    command = [sys.executable, "-m", "classwise", *words]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, shlex.join(words) + done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def run_verbatim(engine: str) -> list[str]:
    """Run the commands that name an engine, each of which must succeed, and return their names.

    All cells of the sweep must have finished, and sharded audits are compared with that of one process.
    """
    page = DOCS / "how-to/executors.md"
    ran = [words for words in commands("Commands", page) if any(engine in word for word in words)]
    for words in ran:
        if words[0] == "audit":
            check_shards(words)
        else:
            classwise(*words)
    assert "2 finished" in classwise("sweep", "status", f"sweeps/{engine}")
    return [words[0] if words[0] == "audit" else words[1] for words in ran]


def check_shards(words: list[str]) -> None:
    """Compare a sharded audit with that of one process."""
    classwise("train", "at", "--budget=short", "--data=digits", f"--out={words[1]}", *SMALL)
    classwise(*words, "--out=sharded")
    classwise(*words[: words.index("--shards")], "--out=whole")
    sharded, whole = rows_of_audit(Path("sharded")), rows_of_audit(Path("whole"))
    steps = whole.groupby("attack")["iterations"].max().drop("clean")
    assert len(steps) == 4
    assert steps.gt(0).all()  # every attack of the cascade had images left
    if depends_on_batch(Path(words[1])):
        assert_same_verdicts(sharded, whole)
    else:
        assert sharded.equals(whole)


def depends_on_batch(run: Path) -> bool:
    """Whether the last bits of a logit depend on the other images of its batch, as of this model on some processors."""
    model, images = cw.load_model(run).eval(), cw.load_data("digits", split="test").x[:128]
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        logits = model(images)
        orders = [torch.randperm(128, generator=random) for _ in range(10)]
        return any(not torch.equal(model(images[order]), logits[order]) for order in orders)


def assert_same_verdicts(first: pd.DataFrame, second: pd.DataFrame) -> None:
    """Equal verdicts, scores that differ in rounding: there a logit of this model depends on the rest of its batch."""
    scores = first.select_dtypes("float").columns
    work = ["iterations", "forwards", "backwards", "queries", "zero_gradients"]
    assert first.drop(columns=[*scores, *work]).equals(second.drop(columns=[*scores, *work]))
    np.testing.assert_allclose(first[scores], second[scores], rtol=1e-3, atol=1e-6)
    assert (first["forwards"] - second["forwards"]).abs().le(5).mean() > 0.99


def test_on_this_machine() -> None:
    assert run_verbatim("here") == ["run"]


def test_on_ray() -> None:
    pytest.importorskip("ray", reason='Ray is not installed: pip install ".[ray]", or make test-cluster')
    assert run_verbatim("ray") == ["run"]
    check_shards(["audit", "runs/mine", "--attack", "autoattack", "--shards", "2", "--on", "ray"])


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())
def test_on_slurm(place: Path) -> None:
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "classwise[slurm]"')
    (place / "slurm").mkdir()
    with slurm_cluster.running(place / "slurm"):
        assert run_verbatim("slurm") == ["run", "status", "resume", "collect", "audit"]
