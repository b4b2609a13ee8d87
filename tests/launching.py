"""Start a script of the tests in several processes, as ``torchrun`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def launch(module: str, folder: Path) -> None:
    """Run a module in two processes, with the folder as its argument; what goes wrong is in the assertion."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", module]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    log = folder / "log.txt"
    with log.open("wb") as file:
        launcher = subprocess.Popen(
            [sys.executable, *words, str(folder)], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
        try:
            status = launcher.wait(120)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # and torchrun ends its processes
            status = launcher.wait(60)
    assert status == 0, log.read_text(errors="replace")[-4000:]
