"""AutoAttack killed in any of its stages resumes to the outcomes of an uninterrupted audit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import ENVIRONMENT, ROOT

from .autoattack import STAGES


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_each_stage_resumes_to_the_same_outcomes(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.autoattack", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [line[0] for line in lines] == list(STAGES)
    for _, saved, attacked, same in lines:
        assert same == "True"
        assert int(attacked) >= 8  # the stage has images to attack
        assert 0 < int(saved) < 96  # killed between the first and the last part
