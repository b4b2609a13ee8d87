"""Whole `cw.audit` calls against the loop of torchattacks over the same images, in one process: PGD-20.

A call includes what an audit does besides the attack: checks, the float32 verdicts, the table of outcomes, and the
guards. Environment variable ``KEEP``: a folder for the finished rounds, with which an interrupted run is resumed.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.evaluation import BATCH, CHECKPOINTS, threads, torchattacks_pgd, with_attack
from benchmarks.pairing import Timing, paired
from benchmarks.tables import table
from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.auditing.guards.report import MODES
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.audit import audit
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import write_text
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.threat.ball import Threat

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit-calls.md"
KEEP = Path(os.environ.get("KEEP") or tempfile.mkdtemp(prefix="classwise-audit-calls-"))
CHECKPOINT, DATA, STEP = "cifar10-at.safetensors", "cifar10", 2 / 255
ROUNDS = {128: 9, 512: 5, 2_000: 3, 10_000: 1}
"""Number of rounds for each number of images."""
QUICK = {32: 1}
PEER = "torchattacks"
INTRODUCTION = f"""\
# Whole audits

`cw.audit` with PGD of 20 steps, in each mode of the [guards](../reference/guards.md), against the loop of
torchattacks over the same images (batch {BATCH}), in turn in one process. Seconds are medians over the rounds. The
number behind them is the time of torchattacks divided by that of the audit (median, lowest to highest round). Passes of
the guards are in percent of those of the attack. `python -m benchmarks audit-calls` measures this.
"""


@dataclass
class Calls:
    """The calls on one set of images.

    Args:
        model: the model.
        data: the images.
        threat: the ball.
        step: the step size of PGD.
        keep: the folder of the finished rounds.

    Attributes:
        facts: for each mode, the robust accuracy, the passes of the attack and those of the guards; for torchattacks
            the robust accuracy.
    """

    model: nn.Module
    data: Images
    threat: Threat
    step: float
    keep: Path
    facts: dict[str, dict[str, float]] = field(default_factory=dict)

    def audit(self, mode: GuardMode) -> None:
        attack: dict[str, Any] = {"name": "pgd", "steps": 20, "step_size": self.step}
        device = str(next(self.model.parameters()).device)
        result = audit(self.model, self.data, self.threat, attack, batch_size=BATCH, guards=mode, device=device)
        frame = result.outcomes.frame
        passes = frame.loc[frame["attack"] != CLEAN, ["forwards", "backwards"]].sum().sum()
        assert result.guards is not None
        self.facts[mode] = {
            "robust": float(result.by_attack["overall"][ALL]),
            "attack": int(passes),
            "guards": result.guards.passes,
        }

    def peer(self) -> None:
        assert isinstance(self.threat.epsilon, float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attack = torchattacks_pgd(self.model, self.threat.epsilon, self.step, self.data)
        self.facts[PEER] = {"robust": with_attack(attack, self.model, self.data)}

    def timing(self, rounds: int) -> Timing:
        """Time the calls and complete the facts, which are saved with the rounds."""
        functions: dict[str, Callable[[], None]] = {
            PEER: self.peer,
            **{mode: partial(self.audit, mode) for mode in MODES},
        }
        timing = paired(functions, rounds, keep=self.keep, device=next(self.model.parameters()).device)
        file = self.keep / "facts.json"
        if self.facts:
            write_text(file, json.dumps(self.facts))
        self.facts = json.loads(file.read_text(encoding="utf-8"))
        return timing

    def row(self, rounds: int) -> list[str]:
        timing = self.timing(rounds)
        cells = [f"{len(self.data):,}", str(rounds), f"{timing.median(PEER):.2f}"]
        ratios = {mode: timing.ratio(PEER, mode, f"{len(self.data)} images") for mode in MODES}
        cells += [f"{timing.median(mode):.2f}: {ratio}" for mode, ratio in ratios.items()]
        share = ", ".join(
            f"{mode} {self.facts[mode]['guards'] / self.facts[mode]['attack']:.1%}" for mode in MODES[:-1]
        )
        robust = f"{self.facts[PEER]['robust']:.1%}, {self.facts[MODES[0]]['robust']:.1%}"
        return [*cells, share, robust]


def page(model: nn.Module, data: Images, threat: Threat, step: float, sizes: dict[int, int], keep: Path) -> str:
    """The table of the calls on the first images of the data, from the numbers of rounds by number of images."""
    rows = []
    for count, rounds in sizes.items():
        calls = Calls(model, data.take(slice(0, count)), threat, step, keep / str(count))
        rows.append(calls.row(rounds))
        print(" | ".join(rows[-1]), flush=True)
    modes = [f"guards={mode}" for mode in MODES]
    header = ["images", "rounds", f"{PEER}, s", *(f"{mode}, s: ratio" for mode in modes)]
    header += ["passes of the guards", f"robust accuracy ({PEER}, ours)"]
    return table(f"PGD-20 at {threat}, step {step * 255:.2g}/255, {threads()}", header, rows)


def run(*, quick: bool, device: str = "cpu") -> str:
    sizes = QUICK if quick else ROUNDS
    try:
        import torchattacks  # noqa: F401  # before hours of audits

        data = load_data(DATA, split="test", subset=max(sizes), download=False)
    except (ClasswiseError, ImportError) as error:
        return f"whole audits were skipped: {error}\n"
    model = load_model(CHECKPOINTS / CHECKPOINT).to(device)
    keep = KEEP / ("quick" if quick else "full") / device.replace(":", "-")
    measured = page(model, data, Threat.parse(DATA), STEP, sizes, keep)
    if not quick and device == "cpu":
        write_text(PAGE, f"{INTRODUCTION}\n{measured}")
    return measured
