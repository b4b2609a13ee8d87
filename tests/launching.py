"""Start a script of the tests in several processes, by ``torchrun`` or by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def launch(module: str, folder: Path) -> None:
    """Run a module in two processes, with the folder as its argument; what goes wrong is in the assertion."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", module]
    environment = os.environ | ENVIRONMENT
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


def launch_by_hand(module: str, *words: str | Path) -> list[tuple[int, str]]:
    """Run a module in two processes without a launcher that watches them; the exit status and stderr of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", module, *map(str, words)]
    processes = []
    for rank in range(2):
        environment = os.environ | ENVIRONMENT | group | {"RANK": str(rank)}
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        )
    try:
        found = [process.communicate(timeout=120)[1].decode(errors="replace") for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, found, strict=True)]
