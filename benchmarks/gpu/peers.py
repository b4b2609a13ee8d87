"""Beside the peers: the same model and images attacked by other libraries, and their ways to train, in one call.

The images are the digits of scikit-learn, resized, as in `parity`, and their labels the model's predictions. Each cell
times classwise and a peer in turn, and counts the images that are still classified correctly in float32.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import classwise as cw
from benchmarks.gpu import parity
from benchmarks.gpu.cells import Result, Stage, Timer, run_cells
from benchmarks.tables import table
from benchmarks.training_step import FAST as FAST_FIELDS
from benchmarks.training_step import BaselineStep, PlainStep, prepared_trainer
from benchmarks.training_step import images as random_images
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.engine import Engine
from classwise.core.compute.float32 import tf32
from classwise.core.compute.graphs import WARM_UP
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError
from classwise.training.graphed_step import VERIFIED

EPSILON = 8 / 255
OURS = "classwise"
CHECKPOINT, TRAINED = "cifar10-at", "full width, trained in the benchmark"
MODELS = (CHECKPOINT, TRAINED)


@dataclass(frozen=True)
class Size:
    """Sizes of the computations.

    Args:
        images: images of the attacks.
        trained: images of the training.
        batch: images of a batch of training, and of the attacks of peers.
        width: of the network that is trained.
        seconds: of its training.
        pgd: steps of the attack in training.
        steps: largest number of steps of AutoAttack's attacks.
        rounds: of each measurement, except of AutoAttack.
    """

    images: int = 512
    trained: int = 1000
    batch: int = 128
    width: float = 1.0
    seconds: float = 60.0
    pgd: int = 10
    steps: int = 5000
    rounds: int = 5


QUICK = Size(4, 40, 4, 0.0625, 0.0, 1, 1, 1)


def peer(package: str) -> Any:
    """Import the package of a peer.

    Raises:
        ClasswiseError: if it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ClasswiseError(
            f"{package} is missing; pip install --no-deps {package}, then repeat the command"
        ) from error


def digits(count: int) -> Tensor:
    """Digits in the shape of the checkpoint's images, uint8."""
    _, side = parity.MODELS[CHECKPOINT]
    x = cw.load_data("digits", split="train").pixels(slice(0, count))
    x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
    return x.mul(255).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()


@functools.cache
def trained(size: Size, device: str) -> nn.Module:
    """A PreActResNet-18 after adversarial training on the digits, once in each process."""
    data = cw.Images(digits(size.trained), cw.load_data("digits", split="train").y[: size.trained])
    fields = {"batch_size": size.batch, "attack.steps": size.pgd, "data.augment": "none"}
    trainer = prepared_trainer("at", size.width, data, device, precision={**FAST_FIELDS, "graphs": "off"}, **fields)
    settings, timer = trainer.class_settings(), Timer(device, size.seconds)
    while True:
        order = trainer.batches.order(trainer.state.step // trainer.batches.steps)
        place = trainer.state.step % trainer.batches.steps * size.batch
        trainer.train_step(order[place : place + size.batch], settings)
        trainer.state.step += 1
        if timer.remaining <= 0:
            return trainer.model.eval()


def subject(size: Size, name: str, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model on the device, the images, and their labels."""
    model = trained(size, device) if name == TRAINED else copy.deepcopy(parity.model(name)).to(device)
    x = digits(size.images).to(device).float() / 255
    return model, x, torch.cat(list(Engine(model).predict([x]))).argmax(1)


def robust(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The number of images that are classified correctly in float32."""
    return int((torch.cat(list(Engine(model).predict([x]))).argmax(1) == y).sum())


def compared(
    timer: Timer, attacks: Mapping[str, Callable[[], Tensor]], rounds: int, model: nn.Module, y: Tensor
) -> Result:
    """Seconds of attacks on the same images, and the numbers of robust images."""
    found: dict[str, Tensor] = {}

    def run(name: str) -> None:
        found[name] = attacks[name]()

    calls = {name: functools.partial(run, name) for name in attacks}
    timing = timer.paired(calls, rounds, warm_up=1 if rounds > 1 else 0)
    return {
        "images": len(y),
        "seconds": {name: timing.median(name) for name in attacks},
        "robust": {name: robust(model, found[name].to(y.device), y) for name in attacks},
        "rounds": timing.rounds,
        "planned": rounds,
    }


def autoattack(timer: Timer, size: Size, name: str) -> Result:
    """AutoAttack, with the package of its authors' code; torch's default arithmetic, TF32 in convolutions."""
    package = peer("pyautoattack")
    model, x, y = subject(size, name, timer.device)

    def ours() -> Tensor:
        suite = AutoAttack(model, eps=EPSILON, seed=0, verbose=False)
        for member, attack in suite.attacks.items():
            settings: Any = attack
            suite.attacks[member] = dataclasses.replace(settings, steps=min(settings.steps, size.steps))
        attacked: Tensor = suite.run_standard_evaluation(x, y, bs=size.images)
        return attacked

    def theirs() -> Tensor:
        suite = package.AutoAttack(model, norm="Linf", eps=EPSILON, seed=0, device=timer.device)
        suite.verbose = False
        for member in (suite.apgd, suite.apgd_targeted, suite.fab):
            member.n_iter = min(member.n_iter, size.steps)
        suite.square.n_queries = min(suite.square.n_queries, size.steps)
        attacked: Tensor = suite.run_standard_evaluation(x, y, batch_size=size.batch)[0]
        return attacked

    return compared(timer, {OURS: ours, "pyautoattack": theirs}, 1, model, y)


def pgd(timer: Timer, size: Size, name: str) -> Result:
    """PGD-20, with torchattacks."""
    package = peer("torchattacks")
    model, x, y = subject(size, name, timer.device)
    theirs = package.PGD(model, eps=EPSILON, alpha=EPSILON / 4, steps=20)
    ours = functools.partial(
        cw.attack, model, x, y, "pgd:steps=20,step_size=0.25eps", threat=f"Linf:{EPSILON}", precision=fastest(x.device)
    )

    def in_batches() -> Tensor:
        blocks = zip(torch.split(x, size.batch), torch.split(y, size.batch), strict=True)
        return torch.cat([theirs(images, labels).detach() for images, labels in blocks])

    return compared(timer, {OURS: ours, "torchattacks": in_batches}, size.rounds, model, y)


PLAIN: dict[str, tuple[str, type[PlainStep]]] = {
    "at": ("plain loop, TF32", PlainStep),
    "cfa-at": ("public CFA step, TF32", BaselineStep),
}
"""The peer of each recipe: its name and its step."""


def training_step(timer: Timer, size: Size, recipe: str) -> Result:
    """A step of training in bfloat16 as a CUDA graph, with a loop as in public code."""
    data = random_images(max(40, 2 * size.batch)).to(timer.device)
    name, kind = PLAIN[recipe]
    step = kind(size.width, data, timer.device)
    step.steps = size.pgd
    fields = {"precision": FAST_FIELDS | {"graphs": "on", "compile": "off"}, "batch_size": size.batch}
    trainer = prepared_trainer(recipe, size.width, data, timer.device, **fields, **{"attack.steps": size.pgd})
    rows, settings = torch.arange(size.batch, device=timer.device), trainer.class_settings()
    for _ in range(WARM_UP + VERIFIED):
        trainer.train_step(rows, settings)
    x, y = trainer.train.x[rows], trainer.train.y[rows]

    def theirs() -> None:
        with tf32(torch.device(timer.device)):
            step(x, y)

    ours = functools.partial(trainer.train_step, rows, settings)
    timing = timer.paired({OURS: ours, name: theirs}, size.rounds)
    seconds = {way: timing.median(way) for way in (OURS, name)}
    return {"batch": size.batch, "seconds": seconds, "rounds": timing.rounds, "planned": size.rounds}


def stage(size: Size, models: Sequence[str] = MODELS) -> Stage:
    """The stage, with attacks on some models."""
    cells: dict[str, Callable[[Timer], Result]] = {
        f"training step, {recipe}": functools.partial(training_step, size=size, recipe=recipe) for recipe in PLAIN
    }
    for name in models:
        cells[f"PGD-20, {name}"] = functools.partial(pgd, size=size, name=name)
        cells[f"AutoAttack, {name}"] = functools.partial(autoattack, size=size, name=name)
    return Stage("peers", "Beside the peers", functools.partial(run_cells, cells=cells), tables)


def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
    """Seconds and robust images of classwise and of each peer."""
    rows = []
    for cell, result in every.get("peers", {}).items():
        (first, ours), (second, theirs) = result["seconds"].items()
        counts = result.get("robust", {})
        of = f"{result['images']:,} images" if counts else f"batch {result['batch']:,}"
        rows.append(
            [cell, of, second, *(f"{seconds:.4g}" for seconds in (ours, theirs)), f"{theirs / ours:.2f}"]
            + [f"{counts[name]:,}" if counts else "" for name in (first, second)]
        )
    header = ["cell", "of", "peer", f"{OURS}, s", "peer, s", "peer / classwise", f"robust, {OURS}", "robust, peer"]
    return table("The same model and images", header, rows) if rows else ""
