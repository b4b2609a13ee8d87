"""Measurements of a library's attack on a model's test images with one seed, cached in a folder.

Every library gets the same correctly classified images, and its results are evaluated by the same rule: the attack
succeeds if the returned image is misclassified in float32, inside the ball and inside [0, 1].
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.implementations import (
    BATCH,
    TASKS,
    AttackBuilder,
    ClasswiseAttack,
    Implementation,
    PassCounts,
    Perturb,
    Task,
)
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import make
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
CHECKPOINT = os.environ.get("CHECKPOINT", "cifar10-at")
KEEP = Path(os.environ.get("KEEP") or tempfile.mkdtemp(prefix="classwise-cells-"))
RELATIVE_TOLERANCE = 1e-4
"""A returned image may exceed the radius by this fraction of it, because libraries round differently."""


@dataclass(frozen=True)
class Checkpoint:
    """A trained model of the project: its data set and the radii of the attacks."""

    data: str
    linf: float
    l2: float

    def epsilon(self, task: Task) -> float:
        return self.l2 if task.norm == "L2" else self.linf


MODELS = {
    "cifar10-at": Checkpoint("cifar10", 8 / 255, 0.5),
    "fashion-mnist-at": Checkpoint("fashion-mnist", 0.1, 1.0),
    "mnist-trades": Checkpoint("mnist", 0.3, 2.0),
}


def checkpoint() -> Checkpoint:
    if CHECKPOINT not in MODELS:
        raise unknown("checkpoint", CHECKPOINT, MODELS)
    return MODELS[CHECKPOINT]


def of_checkpoints(section: Callable[[str], str]) -> str:
    """A section for each checkpoint, or for that of the variable ``MODEL``; one without its data set is skipped."""
    chosen = os.environ.get("MODEL")
    shown = []
    for name in [chosen] if chosen else MODELS:
        try:
            shown.append(section(name))
        except ClasswiseError as error:
            shown.append(f"{name} was skipped: {error}\n")
    return "\n".join(shown)


def selected_tasks(*, quick: bool, names: tuple[str, ...] | None = None) -> list[Task]:
    """The tasks to run: those of ``ONLY``, or all of ``names``; in a quick run only the cheap ones of ``names``."""
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    known = {task.name: task for task in TASKS}
    for name in only:
        if name not in known:
            raise unknown("attack", name, known)
    selected = only or names or tuple(known)
    return [known[name] for name in selected if only or not quick or known[name].cheap]


@dataclass(frozen=True)
class Measurement:
    """Result of an attack on the correctly classified images: success, distance of the returned image, and cost."""

    success: np.ndarray[Any, Any]
    distance: np.ndarray[Any, Any]
    images: int
    wall: float
    cpu: float
    forwards: int
    backwards: int

    @property
    def robust(self) -> float:
        """Robust accuracy over all images, including those that are misclassified without an attack."""
        return float((~self.success).sum()) / self.images


@lru_cache(maxsize=1)
def attacked_model() -> nn.Module:
    model = load_model(CHECKPOINTS / f"{CHECKPOINT}.safetensors").eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


@lru_cache(maxsize=4)
def correct_images(count: int) -> tuple[Images, Tensor, Tensor]:
    """A stratified subset of the test images, and the images and labels of its correctly classified images."""
    data = load_data(checkpoint().data, split="test", subset=count, download=False)
    batch = data.batch(slice(0, len(data)))
    correct = ~_wrong(attacked_model(), batch.x, batch.y)
    return data, batch.x[correct], batch.y[correct]


def _wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(x, BATCH)])
    return (logits.argmax(1) != y) | ~logits.isfinite().all(1)


def builder(task: Task, data: Images, seed: int) -> AttackBuilder:
    return AttackBuilder(attacked_model(), task, checkpoint().epsilon(task), data.shape, data.num_classes, seed)


def path_of(implementation: Implementation, task: Task, seed: int, count: int) -> Path:
    name = f"{CHECKPOINT}-{task.name}-{implementation.library}-{implementation.keep}-{count}-{seed}.npz"
    return KEEP / name


def measurement(implementation: Implementation, task: Task, seed: int, count: int) -> Measurement:
    """Read a measurement from its file, after measuring and saving it if the file is missing.

    Raises:
        ImportError: if the library is not installed.
    """
    path = path_of(implementation, task, seed, count)
    if path.exists():
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in ("success", "distance")}
            numbers = {name: saved[name].item() for name in saved.files if name not in arrays}
        return Measurement(**arrays, **numbers)
    result = _measured(implementation, task, seed, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, **vars(result))
    part.replace(path)
    label = f"{task.name}, {implementation.library} ({implementation.keep}), seed {seed}"
    print(f"  {label}: {result.robust:.2%}, {result.wall:.1f} s, {result.cpu:.1f} s of CPU", flush=True)
    return result


def _measured(implementation: Implementation, task: Task, seed: int, count: int) -> Measurement:
    data, x, y = correct_images(count)
    attack = builder(task, data, seed)
    with quiet(seed):
        perturb = implementation.make(attack)
        _warm_up(data.shape)
        with counted(perturb, attack.model) as passes:
            wall, cpu = time.perf_counter(), time.process_time()
            returned = perturb(x.clone(), y.clone())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    distance = Threat(task.norm, attack.epsilon).distance(returned, x)
    wrong = _wrong(attack.model, returned, y)
    wrong &= ((returned >= 0) & (returned <= 1)).flatten(1).all(1)
    inside = distance <= attack.epsilon * (1 + RELATIVE_TOLERANCE)
    return Measurement(
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
    """Suppress prints and warnings of libraries; seed the global random generators and restore their states."""
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
def _warm_up(shape: tuple[int, int, int]) -> None:
    """Run one step of classwise and one in plain float32, so that kernel selection is not part of a measurement."""
    x, y = torch.rand(BATCH, *shape, requires_grad=True), torch.zeros(BATCH, dtype=torch.int64)
    torch.autograd.grad(attacked_model()(x).sum(), x)
    jobs = [Job(torch.arange(BATCH), x.detach(), y)]
    model = attacked_model()
    engine = Engine(model, precision=fastest(device_of(model)), batch_size=BATCH)
    list(engine.attack(make(ATTACKS, "fgsm"), Threat("Linf", 0.01), jobs))


@contextlib.contextmanager
def counted(perturb: Perturb, model: nn.Module) -> Iterator[PassCounts]:
    """Count the forward and backward passes of images through the model."""
    if isinstance(perturb, ClasswiseAttack):
        yield perturb
        return
    passes = PassCounts()

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
