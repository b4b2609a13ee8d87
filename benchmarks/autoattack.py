"""AutoAttack standard: ours against the reference (pyautoattack), stage by stage, on really trained models."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.pairing import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.attacks.suites import members
from classwise.compute import FAST
from classwise.data import load_data
from classwise.errors import UserError
from classwise.models import load_model
from classwise.settings import make
from classwise.threat import Threat

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
STAGES = members("autoattack")
BATCH = 128
CASES = (
    ("cifar10-at.safetensors", "cifar10", 8 / 255, 512),
    ("fashion-mnist-at.safetensors", "fashion-mnist", 0.1, 1000),
)


@dataclass
class Passage:
    """What one library did to the images with one seed."""

    broken: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)

    def standing(self, until: str) -> Tensor:
        """Which images stand after a stage, bool (N,)."""
        names = list(self.broken)
        return ~torch.stack([self.broken[name] for name in names[: names.index(until) + 1]]).any(0)


@contextlib.contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """Count the images that pass forward through the model."""
    total = [0]

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        total[0] += len(inputs[0])

    handle = model.register_forward_pre_hook(count)
    try:
        yield total
    finally:
        handle.remove()


def clean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(x, BATCH)]).argmax(1) != y


def ours(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, seed: int) -> Iterator[tuple[str, Tensor]]:
    standing = ~clean(model, x, y)
    engine = Engine(model, compute=FAST, batch=BATCH, seed=seed)
    for spec in STAGES:
        rows = standing.nonzero().squeeze(1)
        broken = torch.zeros_like(standing)
        jobs = [Job(part, x[part], y[part]) for part in torch.split(rows, BATCH)]
        for done in engine.attack(make(ATTACKS, spec), Threat("Linf", epsilon), jobs):
            broken[done.index[done.broken]] = True
        standing &= ~broken
        yield spec, broken


def reference(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, seed: int) -> Iterator[tuple[str, Tensor]]:
    from pyautoattack import AutoAttack

    standing = ~clean(model, x, y)
    suite = AutoAttack(model, norm="Linf", eps=epsilon, version="standard", seed=seed, device="cpu")
    for spec in STAGES:
        suite.attacks_to_run = [spec]
        rows = standing.nonzero().squeeze(1)
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            attacked, _ = suite.run_standard_evaluation(x[rows], y[rows], batch_size=BATCH)
        broken = torch.zeros_like(standing)
        broken[rows] = clean(model, attacked, y[rows])
        standing &= ~broken
        yield spec, broken


LIBRARIES = {"classwise": ours, "pyautoattack": reference}


def passage(library: str, model: nn.Module, x: Tensor, y: Tensor, epsilon: float, seed: int) -> Passage:
    """Run a library's AutoAttack once, timed and counted stage by stage."""
    found = Passage()
    stages = LIBRARIES[library](model, x, y, epsilon, seed)
    with counted(model) as total:
        while True:
            started, cpu, before = time.perf_counter(), time.process_time(), total[0]
            stage = next(stages, None)
            if stage is None:
                return found
            name, broken = stage
            found.broken[name] = broken
            found.seconds[name] = time.perf_counter() - started
            found.passes[name] = total[0] - before
            which = broken.nonzero().squeeze(1).tolist()
            spent = time.process_time() - cpu
            cost = f"{found.seconds[name]:.0f} s, {spent:.0f} s of CPU, {found.passes[name]:,} passes"
            print(f"  {library}, seed {seed}, {name}: {cost}, broke {which}", flush=True)


def compare(checkpoint: str, data: str, epsilon: float, count: int, seeds: int) -> str:
    """Tables for one model: stages, and which images only one of the two breaks."""
    images = load_data(data, split="test", subset=count, download=False)
    model = load_model(CHECKPOINTS / checkpoint).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    batch = images.batch(slice(0, len(images)))
    x, y = batch.x, batch.y
    runs: dict[str, list[Passage]] = {name: [] for name in LIBRARIES}
    for seed in range(seeds):
        for name in LIBRARIES if seed % 2 == 0 else reversed(LIBRARIES):
            runs[name].append(passage(name, model, x, y, epsilon, seed))
    right = ~clean(model, x, y)
    rows = [_row(stage, runs, right) for stage in STAGES]
    rows.append(_total(runs))
    last = STAGES[-1]
    union = {name: ~torch.stack([run.standing(last) for run in each]).all(0) for name, each in runs.items()}
    lone = {name: (union[name] & ~union[other]).nonzero().squeeze(1).tolist() for name, other in _pairs()}
    header = ["after", *(f"{name}: {what}" for name in LIBRARIES for what in ("robust", "passes", "s")), "ratio"]
    what = f"{count} test images ({int(right.sum())} right), {seeds} seeds"
    title = f"AutoAttack standard at Linf {epsilon:.3g}, {checkpoint}, {what}"
    lines = [f"Broken by {name} alone, in any seed: {lone[name] or 'none'}.  " for name in LIBRARIES]
    return table(title, header, rows) + "\n" + "\n".join(lines) + "\n"


def _pairs() -> list[tuple[str, str]]:
    first, second = LIBRARIES
    return [(first, second), (second, first)]


def _row(stage: str, runs: dict[str, list[Passage]], right: Tensor) -> list[str]:
    cells = [stage]
    for each in runs.values():
        shares = [float((run.standing(stage) & right).float().mean()) for run in each]
        spread = f" ({min(shares):.1%} to {max(shares):.1%})" if len(shares) > 1 else ""
        cells += [
            f"{statistics.mean(shares):.2%}{spread}",
            f"{statistics.mean(run.passes[stage] for run in each) / len(right):.0f} an image",
            f"{statistics.median(run.seconds[stage] for run in each):.0f}",
        ]
    return [*cells, _ratio([run.seconds[stage] for run in runs[name]] for name in LIBRARIES)]


def _total(runs: dict[str, list[Passage]]) -> list[str]:
    cells = ["all"]
    for each in runs.values():
        cells += ["", f"{statistics.mean(sum(run.passes.values()) for run in each):,.0f}"]
        cells += [f"{statistics.median(sum(run.seconds.values()) for run in each):.0f}"]
    return [*cells, _ratio([sum(run.seconds.values()) for run in runs[name]] for name in LIBRARIES)]


def _ratio(seconds: Iterator[list[float]]) -> str:
    ours_, theirs = seconds
    return f"{statistics.median(b / a for a, b in zip(ours_, theirs, strict=True)):.2f}"


def run(*, quick: bool) -> str:
    found, seeds = [], 1 if quick else int(os.environ.get("SEEDS", "3"))
    for checkpoint, data, epsilon, count in CASES:
        try:
            found.append(compare(checkpoint, data, epsilon, 64 if quick else count, seeds))
        except (UserError, ImportError) as error:
            found.append(f"AutoAttack on {data} is left out: {error}\n")
    return "\n".join(found)
