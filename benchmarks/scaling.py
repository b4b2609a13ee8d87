"""Cost of an evaluation over the number of images, steps and classes, and agreement between batch sizes."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from benchmarks.evaluation import CHECKPOINTS
from benchmarks.pairing import synchronise
from benchmarks.ratios import recorded
from benchmarks.tables import table
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.apgd import APGD
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError
from classwise.data import Images, load_data
from classwise.models import build_model, load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

THREAT = Threat("Linf", 8 / 255)


def seconds(model: nn.Module, attack: Attack, count: int) -> float:
    """Seconds of an attack without early stopping on random images."""
    x = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    engine = Engine(model, precision=fastest(device_of(model)), early_stop=False)
    y = torch.cat(list(engine.predict([x]))).argmax(1).cpu()
    started = time.perf_counter()
    for _ in engine.attack(attack, THREAT, [Job(torch.arange(count), x, y)]):
        pass
    synchronise(engine.device)
    return time.perf_counter() - started


def growth(*, quick: bool, device: str) -> str:
    """Cost over images, steps and classes: medians of three rounds, and ratios to the first row, paired by round."""
    count = 128 if quick else 512
    cases = [(1, 10, 10), (2, 10, 10), (1, 20, 10), (1, 10, 100), (1, 10, 1000)]
    models = {
        classes: build_model("preactresnet18", num_classes=classes, in_channels=3, width=0.25).to(device).eval()
        for classes in (10, 100, 1000)
    }
    times_taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(1 if quick else 3):
        for place, (times, steps, classes) in enumerate(cases):
            for name, attack in (("PGD", PGD(steps=steps)), ("APGD", APGD(steps=steps))):
                duration = seconds(models[classes], attack, times * count)
                times_taken.setdefault((name, place), []).append(duration)
    rows = []
    for place, (times, steps, classes) in enumerate(cases):
        cells = [f"{times * count}", f"{steps}", f"{classes}"]
        for name in ("PGD", "APGD"):
            taken, first = times_taken[name, place], times_taken[name, 0]
            case = f"{name}, {times * count} images, {steps} steps, {classes} classes / first row"
            ratio = str(recorded(case, taken, first)) if place else "1"
            cells += [f"{statistics.median(taken):.2f} s", ratio]
        rows.append(cells)
    header = ["images", "steps", "classes", "PGD", "times the first row", "APGD-CE", "times the first row"]
    return table("Cost of an evaluation, quarter-width PreActResNet-18, without early stopping", header, rows)


def agreement(data: Images, device: str) -> str:
    """Number of images whose outcome differs between batch sizes."""
    model = load_model(CHECKPOINTS / "cifar10-at.safetensors").to(device)
    by_batch = {}
    for batch in (128, 64, 96, 200):
        engine = Engine(model, precision=fastest(device_of(model)), batch_size=batch)
        success = torch.zeros(len(data), dtype=torch.bool)
        jobs = (Job(part.index, part.x, part.y) for part in data.batches(batch))
        place = {int(index): row for row, index in enumerate(data.index)}
        for done in engine.attack(PGD(steps=20, step_size="0.1eps"), THREAT, jobs):
            for index, hit in zip(done.index.tolist(), done.success.tolist(), strict=True):
                success[place[index]] = hit
        by_batch[batch] = success
    rows = [
        [str(batch), f"{1 - float(success.float().mean()):.2%}", str(int((success != by_batch[128]).sum()))]
        for batch, success in by_batch.items()
    ]
    header = ["batch", "robust accuracy", f"images of {len(data)} that differ from batch 128"]
    return table("PGD-20 with bfloat16 gradients at several batch sizes, cifar10-at.safetensors", header, rows)


def run(*, quick: bool, device: str = "cpu") -> str:
    """Both tables."""
    try:
        data = load_data("cifar10", split="test", subset=128 if quick else 1000, download=False)
        second = agreement(data, device)
    except ClasswiseError as error:
        second = f"agreement between batch sizes was skipped: {error}\n"
    return growth(quick=quick, device=device) + "\n" + second
