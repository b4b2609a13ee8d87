"""AutoAttack standard: classwise against the reference (pyautoattack), stage by stage, on trained models.

In the case ``own-network``, both attack a network written by a user, and classwise also attacks its own network with
the same weights. In each stage, the contenders take turns in one process, each on its own survivors.

Environment variables: ``SEEDS=0,1,2``; ``CASES=cifar10,mnist`` selects cases; ``KEEP`` is a folder for the finished
stages, with which an interrupted run is resumed. The ratios are of CPU seconds, which exclude the time of other
programs.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.fusion import own_network
from benchmarks.ratios import recorded
from benchmarks.tables import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.attacks.suites import members
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import replacing
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.models import load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
STAGES = members("autoattack")
BATCH = 128
QUICK = 48
"""Images of a quick run."""


@dataclass(frozen=True)
class Case:
    """What the contenders attack.

    Args:
        checkpoint: file of the model.
        data: name of the data set, of whose test images the first are attacked.
        epsilon: radius of the Linf ball.
        images: number of images.
        quick: number of stages of a quick run, which has `QUICK` images.
        own: whether to attack a user's network with the weights of the checkpoint, beside the model.
    """

    checkpoint: str
    data: str
    epsilon: float
    images: int
    quick: int = len(STAGES)
    own: bool = False


CASES = {
    "cifar10": Case("cifar10-at.safetensors", "cifar10", 8 / 255, 512),
    "mnist": Case("mnist-trades.safetensors", "mnist", 0.3, 1000),
    "fashion-mnist": Case("fashion-mnist-at.safetensors", "fashion-mnist", 0.1, 1000),
    "own-network": Case("cifar10-at.safetensors", "cifar10", 8 / 255, 128, quick=2, own=True),
}
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
    """Result of the whole suite of one contender with one seed."""

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
    engine = Engine(problem.model, precision=fastest(device_of(problem.model)), batch_size=BATCH, seed=problem.seed)
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


@dataclass(frozen=True)
class Contender:
    """A library and the network that it attacks."""

    attack: Callable[[Problem, str, Tensor], tuple[Tensor, int]]
    model: nn.Module


def contenders(model: nn.Module, *, own: bool) -> dict[str, Contender]:
    """The contenders by name, the reference last."""
    if not own:
        return {"classwise": Contender(ours, model), "pyautoattack": Contender(reference, model)}
    users = own_network(model)
    return {
        "classwise": Contender(ours, users),
        "classwise-zoo": Contender(ours, model),
        "pyautoattack": Contender(reference, users),
    }


Problems = Mapping[str, tuple[Contender, Problem]]


def run_suites(problems: Problems, seed: int, stages: Sequence[str], path: Path) -> dict[str, SuiteRun]:
    """Run AutoAttack of each contender with one seed; within a stage, they take turns."""
    runs = {name: SuiteRun() for name in problems}
    robust = {name: ~misclassified(problem.model, problem.x, problem.y) for name, (_, problem) in problems.items()}
    for stage in stages:
        for name in problems if seed % 2 == 0 else reversed(list(problems)):
            contender, problem = problems[name]
            file = path / f"{name}-{seed}-{stage}.npz"
            found = run_stage(contender, problem, stage, robust[name], file)
            runs[name].stages[stage] = found
            robust[name] &= ~found.success
            cost = f"{found.wall:.0f} s, {found.cpu:.0f} s of CPU, {found.passes:,} passes"
            indices = found.success.nonzero().squeeze(1).tolist()
            print(f"  {name}, seed {seed}, {stage}: {cost}, success on images {indices}", flush=True)
    return runs


def run_stage(contender: Contender, problem: Problem, stage: str, robust: Tensor, file: Path) -> Stage:
    """Run one attack on the robust images, timed and counted; a finished stage is read from its file."""
    if file.exists():
        with np.load(file) as saved:
            return Stage(torch.from_numpy(saved["success"]), int(saved["passes"]), *saved["seconds"].tolist())
    wall, cpu = time.perf_counter(), time.process_time()
    success, passes = contender.attack(problem, stage, robust.nonzero().squeeze(1))
    found = Stage(success, passes, time.perf_counter() - wall, time.process_time() - cpu)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part, part.open("wb") as opened:
        np.savez(opened, success=success.numpy(), passes=passes, seconds=[found.wall, found.cpu])
    return found


def compare(name: str, case: Case, count: int, seeds: Sequence[int], stages: Sequence[str] = STAGES) -> str:
    """Tables of one case: the stages, and the images on which only some of the contenders succeed."""
    images = load_data(case.data, split="test", subset=count, download=False)
    model = load_model(CHECKPOINTS / case.checkpoint).eval()
    batch = images.batch(slice(0, len(images)))
    each = contenders(model, own=case.own)
    runs: dict[str, list[SuiteRun]] = {contender: [] for contender in each}
    for contender in each.values():
        contender.model.requires_grad_(requires_grad=False)
    for seed in seeds:
        problems = {
            key: (contender, Problem(contender.model, batch.x, batch.y, case.epsilon, seed))
            for key, contender in each.items()
        }
        for key, suite_run in run_suites(problems, seed, stages, KEEP / f"{name}-{count}").items():
            runs[key].append(suite_run)
    correct = ~misclassified(model, batch.x, batch.y)
    rows = [_row(name, stage, runs, correct) for stage in stages]
    rows.append(_total(name, runs))
    columns = ("robust", "passes", "CPU s")
    *faster, slowest = runs
    header = ["after", *(f"{key}: {column}" for key in runs for column in columns)]
    header += [f"{slowest} / {key}" for key in faster]
    images_and_seeds = f"{count} test images ({int(correct.sum())} correct), seeds {', '.join(map(str, seeds))}"
    of = " and a user's network with its weights" if case.own else ""
    title = f"AutoAttack standard at Linf {case.epsilon:.3g}, {case.checkpoint}{of}, {images_and_seeds}"
    return table(title, header, rows) + "\n" + verdicts(runs)


def verdicts(runs: Mapping[str, Sequence[SuiteRun]]) -> str:
    """A line for each contender but the last: the images on which its verdict and that of the last differ."""
    *others, last = runs
    attacked = {
        key: torch.stack([~suite_run.robust(list(suite_run.stages)[-1]) for suite_run in suite_runs])
        for key, suite_runs in runs.items()
    }
    lines = []
    for key in others:
        differ = (attacked[key] != attacked[last]).nonzero().tolist()
        if not differ:
            lines.append(f"{key} and {last}: the same verdict on every image, with every seed.  ")
            continue
        found = {suite: attacked[suite].any(0) for suite in (key, last)}
        only = {
            suite: (found[suite] & ~found[other]).nonzero().squeeze(1).tolist()
            for suite, other in ((key, last), (last, key))
        }
        exclusive = "; ".join(f"success of {suite} only, in any seed: {rows or 'none'}" for suite, rows in only.items())
        lines.append(f"{key} and {last}: {len(differ)} verdicts differ in single seeds; {exclusive}.  ")
    return "\n".join(lines) + "\n"


def _row(of: str, stage: str, runs: dict[str, list[SuiteRun]], correct: Tensor) -> list[str]:
    cells = [stage]
    for suite_runs in runs.values():
        shares = [float((run.robust(stage) & correct).float().mean()) for run in suite_runs]
        spread = f" ({min(shares):.1%} to {max(shares):.1%})" if len(shares) > 1 else ""
        cells += [
            f"{statistics.mean(shares):.2%}{spread}",
            f"{statistics.mean(run.stages[stage].passes for run in suite_runs) / len(correct):.0f} per image",
            f"{statistics.median(run.stages[stage].cpu for run in suite_runs):.0f}",
        ]
    return [*cells, *_ratios(f"{of}, {stage}", runs, lambda run: run.stages[stage].cpu)]


def _total(of: str, runs: dict[str, list[SuiteRun]]) -> list[str]:
    cells = ["all"]
    for suite_runs in runs.values():
        cells += ["", f"{statistics.mean(run.passes for run in suite_runs):,.0f}"]
        cells += [f"{statistics.median(run.cpu for run in suite_runs):.0f}"]
    return [*cells, *_ratios(f"{of}, all", runs, lambda run: run.cpu)]


def _ratios(name: str, runs: dict[str, list[SuiteRun]], seconds: Callable[[SuiteRun], float]) -> list[str]:
    """The ratio of the last contender's seconds to those of each other one."""
    *others, last = runs
    slow = [seconds(run) for run in runs[last]]
    return [str(recorded(f"{name}: {last} / {key}, CPU", slow, [seconds(run) for run in runs[key]])) for key in others]


def run(*, quick: bool) -> str:
    parts = []
    seeds = [int(seed) for seed in os.environ.get("SEEDS", "0,1,2").split(",")]
    for name in os.environ.get("CASES", ",".join(CASES)).split(","):
        case = CASES[name]
        try:
            if quick:
                parts.append(compare(name, case, QUICK, [0], STAGES[: case.quick]))
            else:
                parts.append(compare(name, case, case.images, seeds))
        except (ClasswiseError, ImportError) as error:
            parts.append(f"AutoAttack on {name} was skipped: {error}\n")
    return "\n".join(parts)
