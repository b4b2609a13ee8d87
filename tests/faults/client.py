"""The client of the runner, and functions that compare folders."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.outcomes.writer import BLOCK_ROWS
from tests.launching import ENVIRONMENT, ROOT

SETTINGS = {
    "data.subset": 120,
    "data.validation": 0.25,
    "model.width": 0.0625,
    "attack.steps": 1,
    "validation_attack": "pgd:steps=1",
    "threat": "Linf:0.1",
    "batch_size": 32,
    "epochs": 2,
}
TRAIN = [
    "train",
    "cfa-at",
    "--budget=short",
    "--data",
    "digits",
    *(f"--set={key}={value}" for key, value in SETTINGS.items()),
]
AUDIT = ["--data", "digits", "--subset", "60", "--attack", "fgsm", "--attack", "pgd:steps=2", "--save", "logits"]
AUDIT += ["--batch-size", "32"]
BLOCK = 32
"""Rows of a part, so that an audit writes several."""
assert BLOCK < BLOCK_ROWS


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        status: the exit status, or minus the signal.
        lines: its output on stdout and stderr.
        count: the number of counted calls.
        calls: the number of calls by name.
        seconds: the duration.
    """

    status: int
    lines: list[str]
    count: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def refusal(self) -> str:
        """The error message in one line.

        Raises:
            AssertionError: if the process did not end with exit status 2 and one message.
        """
        text = "\n".join(self.lines)
        assert self.status == 2, text
        assert "Traceback" not in text, text
        refusals = [line for line in self.lines if line.startswith("classwise: ")]
        assert len(refusals) == 1, text
        assert self.lines[-1] == refusals[0], text
        return refusals[0]


class Runner:
    """The client of a process of `tests.faults.runner`."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.cases = 0
        # The level is set as the command line does before it imports torch.
        environment = os.environ | ENVIRONMENT | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        logs.chmod(0o777)
        words = [sys.executable, "-m", "tests.faults.runner"]
        self.process = subprocess.Popen(words, cwd=ROOT, env=environment, **pipes)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.kill()  # it has no state to save, and a regular exit takes seconds
        self.process.wait(30)
        self.process.stdout.close()

    def run(self, arguments: Sequence[object], folder: Path, **job: Any) -> Ended:
        """Run the command line in one process; see `tests.faults.runner.child` for the other entries of a job."""
        return self.run_all([{"args": arguments, **job}], folder)[0]

    def run_all(self, jobs: Sequence[dict[str, Any]], folder: Path) -> list[Ended]:
        """Run several jobs at the same time."""
        requests = []
        for job in jobs:
            self.cases += 1
            log = self.logs / f"{self.cases}.log"
            log.touch()
            log.chmod(0o666)
            settings = {"classwise.auditing.outcomes.writer.BLOCK_ROWS": BLOCK} | job.pop("set", {})
            words = [str(word) for word in job.pop("args")]
            requests.append({"args": words, "folder": str(folder), "log": str(log), "set": settings, **job})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(requests) + "\n")
        self.process.stdin.flush()
        answers = json.loads(self.process.stdout.readline())
        logs = [Path(job["log"]).read_text(errors="replace").splitlines() for job in requests]
        return [
            Ended(answer["status"], lines, answer.get("count", 0), answer.get("calls", {}), answer["seconds"])
            for answer, lines in zip(answers, logs, strict=True)
        ]

    def run_ranks(self, arguments: Sequence[object], folder: Path, *ranks: dict[str, Any]) -> list[Ended]:
        """Run the same command line in processes of one group; each mapping has the other entries of a rank's job."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = {"WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environments = ({**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(ranks)))
        jobs = zip(environments, ranks, strict=True)
        return self.run_all([{"args": arguments, "env": env, **job} for env, job in jobs], folder)

    def succeed(self, arguments: Sequence[object], folder: Path, **job: Any) -> Ended:
        """Run the command line and check that it succeeds."""
        ended = self.run(arguments, folder, **job)
        assert ended.status == 0, "\n".join(ended.lines)
        return ended


def files_of_run(folder: Path) -> dict[str, bytes]:
    """The files of a run that are reproducible bit for bit."""
    names = ["recipe.yaml", "epochs.parquet", "events.jsonl", "validation.json"]
    files = [*(folder / name for name in names), *sorted((folder / "checkpoints").iterdir())]
    found = {file.name: file.read_bytes() for file in files if file.name != "checksums.txt"}
    # The pickle of equal values differs where a string was shared and is now a copy.
    found["state.pt"] = _plain(torch.load(folder / "checkpoints" / "state.pt", weights_only=True)).encode()
    return found


def _plain(value: Any) -> str:
    """An exact text of every value in a state."""
    if isinstance(value, dict):
        return "".join(f"{key}: {_plain(item)}\n" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "".join(map(_plain, value))
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.numpy().tobytes().hex()}"
    return repr(value)


def rows_of_audit(folder: Path) -> pd.DataFrame:
    """The outcomes of an audit."""
    return Outcomes.load(folder).frame


def temporaries(folder: Path) -> list[str]:
    """The names of the temporary files in a folder and its subfolders."""
    return sorted(path.name for path in folder.rglob(".*.tmp"))
