"""APGD-T by the order of its targets: ``python -m benchmarks.target_order TRAIN TEST [--label COLUMN] [--size N]``.

A small network is adversarially trained on the first file and attacked on the second, both with labelled images that
`classwise.load_data` reads. The table has the successes and steps within the first 1, 2, 4 and 9 targets.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import classwise as cw
from benchmarks.tables import table
from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.apgd import APGDT
from classwise.data import Images
from classwise.threat.ball import Threat

FIRST = (1, 2, 4, 9)
ORDERS: tuple[Literal["logits", "linearised"], ...] = ("logits", "linearised")
HEADER = ["seed", "images", "targets", *(f"successes, {order}" for order in ORDERS)]
HEADER += [f"only {order}" for order in ORDERS] + [f"steps per image, {order}" for order in ORDERS]


def starts_used(model: torch.nn.Module, data: Images, attack: APGDT, threat: Threat) -> tuple[Tensor, Tensor]:
    """The number of the start that succeeds on each image (0: none) and its steps up to then, both int64 (N,)."""
    jobs = (Job(batch.index, batch.x, batch.y) for batch in data.batches(128))
    blocks = list(Engine(model).attack(attack, threat, jobs))
    order = torch.cat([block.index for block in blocks]).argsort()
    steps, success = (torch.cat([getattr(block, name) for block in blocks])[order] for name in ("backwards", "success"))
    if attack.orders_targets:
        steps = steps - attack.starts_for(data.num_classes)
    return torch.where(success, -(-steps // attack.length), 0), steps


def rows(model: torch.nn.Module, data: Images, seed: int, steps: int, threat: Threat) -> list[list[str]]:
    """The rows of one model."""
    correct = torch.cat(list(Engine(model).predict(batch.x for batch in data.batches(128)))).argmax(1) == data.y
    chosen = data.take(correct.nonzero().squeeze(1))
    found = [starts_used(model, chosen, APGDT(steps=steps, order=order), threat) for order in ORDERS]
    result = []
    for first in FIRST:
        one, other = ((start > 0) & (start <= first) for start, _ in found)
        taken = [f"{taken.clamp_max(first * (steps + 1)).double().mean():.1f}" for _, taken in found]
        paired = [one, other, one & ~other, other & ~one]
        result.append([f"{seed}", f"{len(chosen)}", f"{first}", *(f"{int(which.sum())}" for which in paired), *taken])
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.target_order", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--label", help="the column of the labels")
    parser.add_argument("--size", type=int, help="side of the images in pixels; larger ones are resized")
    parser.add_argument("--width", type=float, default=0.25, help="of small-cnn")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100, help="of APGD-T for each target")
    parser.add_argument("--threat", default="Linf:4/255", help="of the training and the attack")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    if missing := [str(path) for path in (options.train, options.test) if not path.exists()]:
        print(f"the order of targets was not measured: {' and '.join(missing)} not found")
        return 0
    named = {"label": options.label, "size": options.size}
    read = {name: value for name, value in named.items() if value is not None}
    train, test = (cw.load_data(str(path), **read) for path in (options.train, options.test))
    measured: list[list[str]] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            overrides = {
                "model.name": "small-cnn",
                "model.width": options.width,
                "threat": options.threat,
                "data.validation": 0,
                "selection": "last",
            }
            run = cw.train(
                "fast-at", data=train, out=Path(folder) / "run", epochs=options.epochs, seed=seed, overrides=overrides
            )
            measured += rows(run.model(), test, seed, options.steps, Threat.parse(options.threat))
    title = (
        f"{options.test.name}, {options.threat}, {options.steps} steps per target, {options.epochs} epochs of fast-at"
    )
    print(table(title, HEADER, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
