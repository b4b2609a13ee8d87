"""A measured cell: a library's attack on a model's test images with one seed; kept in a folder, and found there again.

Every library gets the same images, those that the model classifies rightly, and what it hands back is judged alike: an
image is broken if float32 says that the returned image is misclassified, inside the ball (and the box).
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.contenders import BATCH, TASKS, Contender, Given, Ours, Passes, Perturb, Task
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.core.config import make
from classwise.core.errors import unknown
from classwise.core.precision import FAST
from classwise.core.threat import Threat
from classwise.data import Images, load_data
from classwise.models import load_model

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
CHECKPOINT = os.environ.get("CHECKPOINT", "cifar10-at")
KEEP = Path(os.environ.get("KEEP") or tempfile.mkdtemp(prefix="classwise-cells-"))
ROOM = 1e-4
"""By which share of the radius a returned image may lie outside; libraries round differently."""


@dataclass(frozen=True)
class Subject:
    """A model that is attacked: its data set, and its radii."""

    data: str
    linf: float
    l2: float

    def epsilon(self, task: Task) -> float:
        return self.l2 if task.norm == "L2" else self.linf


SUBJECTS = {
    "cifar10-at": Subject("cifar10", 8 / 255, 0.5),
    "fashion-mnist-at": Subject("fashion-mnist", 0.1, 1.0),
    "mnist-trades": Subject("mnist", 0.3, 2.0),
}


def subject() -> Subject:
    if CHECKPOINT not in SUBJECTS:
        raise unknown("checkpoint", CHECKPOINT, SUBJECTS)
    return SUBJECTS[CHECKPOINT]


def chosen(*, quick: bool, names: tuple[str, ...] | None = None) -> list[Task]:
    """The tasks to run: those of ``ONLY``, or all of ``names``; in a quick run the cheap ones of them."""
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    known = {task.name: task for task in TASKS}
    for name in only:
        if name not in known:
            raise unknown("attack", name, known)
    wanted = only or names or tuple(known)
    return [known[name] for name in wanted if only or not quick or known[name].cheap]


@dataclass(frozen=True)
class Cell:
    """What a library did: of each image that was right, whether it broke, and how far away the returned image is."""

    success: np.ndarray[Any, Any]
    distance: np.ndarray[Any, Any]
    images: int
    wall: float
    cpu: float
    forwards: int
    backwards: int

    @property
    def robust(self) -> float:
        """Robust accuracy over all images, those wrong from the start included."""
        return float((~self.success).sum()) / self.images


@lru_cache(maxsize=1)
def attacked() -> nn.Module:
    model = load_model(CHECKPOINTS / f"{CHECKPOINT}.safetensors").eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


@lru_cache(maxsize=4)
def right(count: int) -> tuple[Images, Tensor, Tensor]:
    """A stratified subset of the test images; of those that the model gets right, the images and labels."""
    data = load_data(subject().data, split="test", subset=count, download=False)
    batch = data.batch(slice(0, len(data)))
    kept = ~_wrong(attacked(), batch.x, batch.y)
    return data, batch.x[kept], batch.y[kept]


def _wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(x, BATCH)])
    return (logits.argmax(1) != y) | ~logits.isfinite().all(1)


def given(task: Task, data: Images, seed: int) -> Given:
    return Given(attacked(), task, subject().epsilon(task), data.shape, data.num_classes, seed)


def path_of(contender: Contender, task: Task, seed: int, count: int) -> Path:
    name = f"{CHECKPOINT}-{task.name}-{contender.library}-{contender.keep}-{count}-{seed}.npz"
    return KEEP / name


def cell(contender: Contender, task: Task, seed: int, count: int) -> Cell:
    """The cell, measured unless it is kept already.

    Raises:
        ImportError: where the library is not installed.
    """
    path = path_of(contender, task, seed, count)
    if path.exists():
        with np.load(path) as kept:
            arrays = {name: kept[name] for name in ("broken", "distance")}
            numbers = {name: kept[name].item() for name in kept.files if name not in arrays}
        return Cell(**arrays, **numbers)
    found = _measured(contender, task, seed, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, **vars(found))
    part.replace(path)
    what = f"{task.name}, {contender.library} ({contender.keep}), seed {seed}"
    print(f"  {what}: {found.robust:.2%}, {found.wall:.1f} s, {found.cpu:.1f} s of CPU", flush=True)
    return found


def _measured(contender: Contender, task: Task, seed: int, count: int) -> Cell:
    data, x, y = right(count)
    settings = given(task, data, seed)
    with quiet(seed):
        perturb = contender.make(settings)
        _warmed(data.shape)
        with counted(perturb, settings.model) as passes:
            wall, cpu = time.perf_counter(), time.process_time()
            returned = perturb(x.clone(), y.clone())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    distance = Threat(task.norm, settings.epsilon).distance(returned, x)
    wrong = _wrong(settings.model, returned, y)
    wrong &= ((returned >= 0) & (returned <= 1)).flatten(1).all(1)
    inside = distance <= settings.epsilon * (1 + ROOM)
    return Cell(
        success=(wrong & inside).numpy(),
        distance=torch.where(wrong, distance, torch.inf).numpy(),
        images=len(data),
        wall=wall,
        cpu=cpu,
        forwards=passes.forwards,
        backwards=passes.backwards,
    )


@contextlib.contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Libraries print, warn, and draw from the global generators, which are seeded here and put back."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    with (
        torch.random.fork_rng(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(None),
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        yield
    np.random.set_state(before[0])  # noqa: NPY002
    random.setstate(before[1])


@lru_cache(maxsize=1)
def _warmed(shape: tuple[int, int, int]) -> None:
    """A step of ours and one in plain float32: which kernels fit is found out in the first pass, in nobody's time."""
    x, y = torch.rand(BATCH, *shape, requires_grad=True), torch.zeros(BATCH, dtype=torch.int64)
    torch.autograd.grad(attacked()(x).sum(), x)
    jobs = [Job(torch.arange(BATCH), x.detach(), y)]
    list(Engine(attacked(), precision=FAST, batch_size=BATCH).attack(make(ATTACKS, "fgsm"), Threat("Linf", 0.01), jobs))


@contextlib.contextmanager
def counted(perturb: Perturb, model: nn.Module) -> Iterator[Passes]:
    """Count the images that pass forward through the model, and those whose gradients pass back."""
    if isinstance(perturb, Ours):
        yield perturb
        return
    passes = Passes()

    def back(gradient: Tensor) -> None:
        passes.backwards += len(gradient)

    def count(_: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        passes.forwards += len(inputs[0])
        if logits.requires_grad:
            logits.register_hook(back)  # type: ignore[no-untyped-call]  # torch does not annotate it

    handle = model.register_forward_hook(count)
    try:
        yield passes
    finally:
        handle.remove()
