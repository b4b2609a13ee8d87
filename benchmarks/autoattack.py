"""AutoAttack standard: classwise against the reference (pyautoattack), stage by stage, on trained models.

Environment variables: ``SEEDS=0,1,2``; ``CASES=cifar10,mnist`` selects models; ``KEEP`` is a folder for the finished
stages, with which an interrupted run is resumed. The ratio is of CPU seconds, which exclude the time of other programs.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.ratios import recorded
from benchmarks.tables import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.attacks.suites import members
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.precision import FAST
from classwise.core.storage import replacing
from classwise.core.threat import Threat
from classwise.data import load_data
from classwise.models import load_model

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
STAGES = members("autoattack")
BATCH = 128
CASES = (
    ("cifar10-at.safetensors", "cifar10", 8 / 255, 512),
    ("mnist-trades.safetensors", "mnist", 0.3, 1000),
    ("fashion-mnist-at.safetensors", "fashion-mnist", 0.1, 1000),
)
KEEP = Path(os.environ.get("KEEP") or tempfile.mkdtemp(prefix="classwise-autoattack-"))


@dataclass(frozen=True)
class Stage:
    """Result of one attack of the suite on the survivors of the attacks before it."""

    success: Tensor
    passes: int
    wall: float
    cpu: float


@dataclass
class SuiteRun:
    """Result of the whole suite of one library with one seed."""

    stages: dict[str, Stage] = field(default_factory=dict)

    def robust(self, until: str) -> Tensor:
        """(N,) bool, the images that are robust after a stage."""
        names = list(self.stages)
        return ~torch.stack([self.stages[name].success for name in names[: names.index(until) + 1]]).any(0)

    @property
    def passes(self) -> int:
        return sum(stage.passes for stage in self.stages.values())

    @property
    def cpu(self) -> float:
        return sum(stage.cpu for stage in self.stages.values())


@contextlib.contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """Count the forward passes of images through the model."""
    total = [0]

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        total[0] += len(inputs[0])

    handle = model.register_forward_pre_hook(count)
    try:
        yield total
    finally:
        handle.remove()


def misclassified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) whether the model misclassifies each image."""
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(x, BATCH)]).argmax(1) != y


@dataclass(frozen=True)
class Problem:
    """The model, the images and their labels, the radius and the seed."""

    model: nn.Module
    x: Tensor
    y: Tensor
    epsilon: float
    seed: int


def ours(problem: Problem, spec: str, rows: Tensor) -> tuple[Tensor, int]:
    """(N,) success of an attack on the given rows, and its forward passes of images."""
    engine = Engine(problem.model, precision=FAST, batch_size=BATCH, seed=problem.seed)
    jobs = [Job(part, problem.x[part], problem.y[part]) for part in torch.split(rows, BATCH)]
    success, passes = torch.zeros(len(problem.y), dtype=torch.bool), 0
    for done in engine.attack(make(ATTACKS, spec), Threat("Linf", problem.epsilon), jobs):
        success[done.index[done.success]] = True
        passes += int(done.forwards.sum())
    return success, passes


def reference(problem: Problem, spec: str, rows: Tensor) -> tuple[Tensor, int]:
    from pyautoattack import AutoAttack

    options = {"norm": "Linf", "eps": problem.epsilon, "version": "standard", "seed": problem.seed}
    suite = AutoAttack(problem.model, **options, device="cpu")
    suite.attacks_to_run = [spec]
    x, y = problem.x[rows], problem.y[rows]
    with counted(problem.model) as total, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        attacked, _ = suite.run_standard_evaluation(x, y, batch_size=BATCH)
        passes = total[0]
    success = torch.zeros(len(problem.y), dtype=torch.bool)
    success[rows] = misclassified(problem.model, attacked, y)
    return success, passes


LIBRARIES = {"classwise": ours, "pyautoattack": reference}


def run_suite(library: str, problem: Problem, path: Path) -> SuiteRun:
    """Run AutoAttack of one library with one seed, timed and counted per stage; finished stages are read from files."""
    suite_run, robust = SuiteRun(), ~misclassified(problem.model, problem.x, problem.y)
    for name in STAGES:
        file_of_stage = path / f"{library}-{problem.seed}-{name}.npz"
        if file_of_stage.exists():
            with np.load(file_of_stage) as saved:
                stage = Stage(torch.from_numpy(saved["success"]), int(saved["passes"]), *saved["seconds"].tolist())
        else:
            wall, cpu = time.perf_counter(), time.process_time()
            success, passes = LIBRARIES[library](problem, name, robust.nonzero().squeeze(1))
            stage = Stage(success, passes, time.perf_counter() - wall, time.process_time() - cpu)
            path.mkdir(parents=True, exist_ok=True)
            with replacing(file_of_stage) as part, part.open("wb") as file:
                np.savez(file, success=success.numpy(), passes=passes, seconds=[stage.wall, stage.cpu])
        suite_run.stages[name] = stage
        robust &= ~stage.success
        cost = f"{stage.wall:.0f} s, {stage.cpu:.0f} s of CPU, {stage.passes:,} passes"
        indices = stage.success.nonzero().squeeze(1).tolist()
        print(f"  {library}, seed {problem.seed}, {name}: {cost}, success on images {indices}", flush=True)
    return suite_run


def compare(checkpoint: str, data: str, epsilon: float, count: int, seeds: Sequence[int]) -> str:
    """Tables for one model: the stages, and the images on which only one of the two libraries succeeds."""
    images = load_data(data, split="test", subset=count, download=False)
    model = load_model(CHECKPOINTS / checkpoint).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    batch = images.batch(slice(0, len(images)))
    x, y = batch.x, batch.y
    runs: dict[str, list[SuiteRun]] = {name: [] for name in LIBRARIES}
    path = KEEP / f"{Path(checkpoint).stem}-{count}"
    for seed in seeds:
        for name in LIBRARIES if seed % 2 == 0 else reversed(LIBRARIES):
            runs[name].append(run_suite(name, Problem(model, x, y, epsilon, seed), path))
    correct = ~misclassified(model, x, y)
    rows = [_row(data, stage, runs, correct) for stage in STAGES]
    rows.append(_total(data, runs))
    last = STAGES[-1]
    union = {name: ~torch.stack([run.robust(last) for run in each]).all(0) for name, each in runs.items()}
    exclusive = {name: (union[name] & ~union[other]).nonzero().squeeze(1).tolist() for name, other in _pairs()}
    columns = ("robust", "passes", "CPU s")
    header = ["after", *(f"{name}: {column}" for name in LIBRARIES for column in columns), "ratio"]
    images_and_seeds = f"{count} test images ({int(correct.sum())} correct), {len(seeds)} seeds"
    title = f"AutoAttack standard at Linf {epsilon:.3g}, {checkpoint}, {images_and_seeds}"
    lines = [f"Success of {name} only, in any seed: {exclusive[name] or 'none'}.  " for name in LIBRARIES]
    return table(title, header, rows) + "\n" + "\n".join(lines) + "\n"


def _pairs() -> list[tuple[str, str]]:
    first, second = LIBRARIES
    return [(first, second), (second, first)]


def _row(of: str, stage: str, runs: dict[str, list[SuiteRun]], correct: Tensor) -> list[str]:
    cells = [stage]
    for each in runs.values():
        shares = [float((run.robust(stage) & correct).float().mean()) for run in each]
        spread = f" ({min(shares):.1%} to {max(shares):.1%})" if len(shares) > 1 else ""
        cells += [
            f"{statistics.mean(shares):.2%}{spread}",
            f"{statistics.mean(run.stages[stage].passes for run in each) / len(correct):.0f} per image",
            f"{statistics.median(run.stages[stage].cpu for run in each):.0f}",
        ]
    return [*cells, _ratio(f"{of}, {stage}", runs, lambda run: run.stages[stage].cpu)]


def _total(of: str, runs: dict[str, list[SuiteRun]]) -> list[str]:
    cells = ["all"]
    for each in runs.values():
        cells += ["", f"{statistics.mean(run.passes for run in each):,.0f}"]
        cells += [f"{statistics.median(run.cpu for run in each):.0f}"]
    return [*cells, _ratio(f"{of}, all", runs, lambda run: run.cpu)]


def _ratio(name: str, runs: dict[str, list[SuiteRun]], seconds: Callable[[SuiteRun], float]) -> str:
    (ours_, first), (theirs, second) = runs.items()
    return str(recorded(f"{name}: {theirs} / {ours_}, CPU", *(list(map(seconds, each)) for each in (second, first))))


def run(*, quick: bool) -> str:
    parts = []
    seeds = [0] if quick else [int(seed) for seed in os.environ.get("SEEDS", "0,1,2").split(",")]
    selected = os.environ.get("CASES", ",".join(case[1] for case in CASES)).split(",")
    for checkpoint, data, epsilon, count in CASES:
        if data not in selected:
            continue
        try:
            parts.append(compare(checkpoint, data, epsilon, 64 if quick else count, seeds))
        except (ClasswiseError, ImportError) as error:
            parts.append(f"AutoAttack on {data} was skipped: {error}\n")
    return "\n".join(parts)
