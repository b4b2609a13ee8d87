"""Script that kills AutoAttack in each of its stages and resumes it; its argument is a folder.

It prints one line for each stage: its name, the number of saved rows of its attack when it was killed, the number of
attacked images, and whether the resumed outcomes equal those of an uninterrupted audit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from classwise.auditing.outcomes import writer
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.core.compute.precision import EXACT
from classwise.core.progress.listener import NullProgress
from tests.auditing import toys

STAGES: Mapping[str, str] = {
    "apgd-ce": "apgd-ce:steps=4",
    "apgd-t": "apgd-t:steps=3",
    "fab-t": "fab-t:steps=3",
    "square": "square:steps=20",
}
"""The stages of the standard version, with few steps."""
CLASSES = 4
BLOCK = 8
"""Rows of a part, small enough that a stage is killed between its parts."""


class KillIn(NullProgress):
    """A listener that kills the process at the first finished images of a stage, or at its start without images."""

    def __init__(self, stage: str) -> None:
        self.stage, self.current = stage, ""

    def start(self, label: str, total: int) -> None:
        self.current = label
        if label == self.stage and not total:
            os.kill(os.getpid(), signal.SIGKILL)

    def advance(self, count: int) -> None:
        del count
        if self.current == self.stage:
            os.kill(os.getpid(), signal.SIGKILL)


def run(out: Path, progress: NullProgress | None = None, *, resume: bool = False) -> Outcomes:
    data = toys.images(96, CLASSES, strength=(0.03, 0.05, 0.08, 0.08))
    suite, model = list(STAGES.values()), toys.model(CLASSES, 2.0)
    result = audit(
        model, data, "Linf:0.04", suite, cascade=True, precision=EXACT, batch_size=32, out=out, resume=resume,
        progress=progress, guards="off",
    )  # fmt: skip
    return result.outcomes


def main(folder: Path) -> None:
    writer.BLOCK_ROWS = BLOCK
    whole = run(folder / "whole")
    for stage in STAGES:
        out = folder / stage
        child = os.fork()
        if not child:
            run(out, KillIn(stage))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), stage
        assert os.WTERMSIG(status) == signal.SIGKILL, stage
        parts = [pd.read_parquet(part) for part in sorted((out / "outcomes").glob("part-*.parquet"))]
        saved = sum(int((part["attack"] == stage).sum()) for part in parts)
        again = run(out, resume=True)
        same = again.frame.equals(whole.frame) and Outcomes.load(out).frame.equals(whole.frame)
        attacked = int((whole.rows(stage)["forwards"] > 0).sum())
        sys.stdout.write(f"{stage} {saved} {attacked} {same}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
