"""Successes for equal passes: the members of the suite ``fast``, constraint relaxation, and suites with and without it.

Every attack runs on all correctly classified images of each checkpoint. In a suite, an image takes the
passes of its attacks in their order, up to the first success, as in a cascade.

Environment variables: ``CLASSWISE_DATA`` is the data folder, ``IMAGES`` the number of test images (500), ``MODEL`` one
of the checkpoints (all), and ``KEEP`` the folder of the results, with which an interrupted run is resumed. Delete that
folder after a change of an attack.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.implementations import BATCH
from benchmarks.measurements import CHECKPOINTS, KEEP, MODELS, of_checkpoints
from benchmarks.tables import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.core.compute.precision import fastest
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.models import load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

MEMBERS = ("apgd-ce", "pma", "apgd-t", "cr")
CASCADES = (("apgd-ce", "pma", "apgd-t"), ("apgd-ce", "cr", "apgd-t"), ("cr", "apgd-t"), ("apgd-ce", "pma", "cr"))
BUDGETS = (20, 50, 100, 200, 500, 2000)
HEADER = ["attacks", *(f"{budget:,}" for budget in BUDGETS), "all", "passes of an image"]


class Result(NamedTuple):
    """The images on which attacks succeeded, and the forward and backward passes of each up to then; arrays (N,)."""

    success: np.ndarray[Any, np.dtype[np.bool_]]
    passes: np.ndarray[Any, np.dtype[np.int64]]


def results(name: str, count: int, attacks: Sequence[str]) -> dict[str, Result]:
    """The results of attacks on the correctly classified images of a checkpoint.

    Raises:
        ClasswiseError: if the data set is not in the data folder.
    """
    data = load_data(MODELS[name].data, split="test", subset=count, download=False)
    model = load_model(CHECKPOINTS / f"{name}.safetensors").eval()
    engine = Engine(model, precision=fastest(device_of(model)), batch_size=BATCH)
    logits = torch.cat(list(engine.predict(batch.x for batch in data.batches(BATCH))))
    correct = (logits.argmax(1).cpu() == data.y).nonzero().squeeze(1)
    parts: dict[str, list[Result]] = {attack: [] for attack in attacks}
    for place, rows in enumerate(torch.split(correct, BATCH)):
        batch = data.batch(rows)
        for attack, of_blocks in parts.items():
            path = KEEP / f"members-{name}-{attack}-{count}-{place}.npz"
            if not path.exists():
                job, threat = Job(batch.index, batch.x, batch.y), Threat("Linf", MODELS[name].linf)
                blocks = list(engine.attack(make(ATTACKS, attack), threat, [job]))
                order = torch.cat([block.row for block in blocks]).argsort()
                success = torch.cat([block.success for block in blocks])[order]
                passes = torch.cat([block.forwards + block.backwards for block in blocks])[order]
                KEEP.mkdir(parents=True, exist_ok=True)
                np.savez(path, success=success.numpy(), passes=passes.numpy())
            of_blocks.append(Result(**np.load(path)))
    return {attack: Result(*map(np.concatenate, zip(*found, strict=True))) for attack, found in parts.items()}


def cascade(parts: Sequence[Result]) -> Result:
    """The result of attacks in cascade, from their results on all images."""
    success, passes = np.zeros_like(parts[0].success), np.zeros_like(parts[0].passes)
    for part in parts:
        passes = passes + np.where(success, 0, part.passes)
        success = success | part.success
    return Result(success, passes)


def row(name: str, result: Result) -> list[str]:
    """Successes within each of `BUDGETS`, all of them, and the mean number of passes."""
    within = [int((result.success & (result.passes <= budget)).sum()) for budget in BUDGETS]
    return [name, *map(str, within), str(int(result.success.sum())), f"{result.passes.mean():.0f}"]


def run(*, quick: bool) -> str:
    count = 64 if quick else int(os.environ.get("IMAGES", "500"))

    def section(name: str) -> str:
        found = results(name, count, MEMBERS)
        rows = [row(attack, result) for attack, result in found.items()]
        rows += [row(" + ".join(suite), cascade([found[attack] for attack in suite])) for suite in CASCADES]
        title = f"Successes within a number of passes of an image, {name}, Linf {MODELS[name].linf:.3g}"
        images = f"{len(found[MEMBERS[0]].success)} correctly classified images of {count}.\n"
        return table(title, HEADER, rows) + "\n" + images

    return of_checkpoints(section)
