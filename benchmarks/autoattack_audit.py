"""Seconds of each attack of an AutoAttack audit, with the images that are left after it.

    python -m benchmarks.autoattack_audit DATA [--weights FILE] --compile on auto --images 512 10000 --out DIR

Without --weights, the model is trained first: adversarial training with the budget "short", in DIR/at. Each number of
images is one audit for each value of --compile, in a folder of its own. The same command continues the training and the
audits that have not ended. A first run on a few images, whose times are not reported, loads the libraries. Tables are
printed, and added to DIR/autoattack.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.tables import table
from classwise.auditing.run.audit import Audit, audit
from classwise.core.compute.compilation import Compile
from classwise.core.compute.precision import DTYPES, Precision, check_device, fastest
from classwise.core.files.storage import read_json, write_text
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.training.train import train

WARM_UP, IMAGES = ("pgd:steps=5", "fab-t:steps=3,targets=1"), 64
"""Attacks and number of images of the first run."""
HEADER = ["images", "compile", "attack", "images attacked", "robust", "seconds"]


@dataclass
class Clock:
    """A listener that notes when each attack starts and how many images it attacks."""

    starts: dict[str, tuple[float, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def start(self, task: str, total: int) -> None:
        """Note the start of an attack."""
        self.starts[task] = (time.perf_counter(), total)
        print(f"{time.strftime('%H:%M:%S')} {task}: {total:,} images", flush=True)

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def log(self, line: str) -> None:
        """Print and keep a line, such as why no graph was used."""
        self.lines.append(line)
        print(line, flush=True)


def measured(
    model: torch.nn.Module,
    data: Images,
    attacks: Sequence[str],
    out: Path | None,
    precision: Precision,
    limit: float,
) -> tuple[Audit, dict[str, Any]]:
    """The audit, and a row for each attack: images attacked, images robust after it, seconds."""
    clock, begun = Clock(), time.perf_counter()
    resume = out is not None and out.is_dir()
    options: dict[str, Any] = {"precision": precision, "max_time": limit, "guards": "off", "progress": clock}
    result = audit(model, data, "Linf:8/255", attacks, out=out, resume=resume, **options)
    ends = [*(began for began, _ in clock.starts.values()), time.perf_counter()][1:]
    timed = {name: (total, end - began) for (name, (began, total)), end in zip(clock.starts.items(), ends, strict=True)}
    frame, missing = result.outcomes.frame, result.outcomes.missing
    table_rows = []
    for name in result.outcomes.meta.applicable:
        if name in timed or name not in missing:  # run by this call or an earlier one
            attacked, seconds = timed.get(name, (0, 0.0))
            correct = frame[frame["attack"] == name]["correct"]
            robust = None if name in missing else int(correct.sum())  # unknown if the limit was reached
            table_rows.append({"attack": name, "attacked": attacked, "robust": robust, "seconds": seconds})
    return result, {
        "attacks": table_rows,
        "seconds": time.perf_counter() - begun,
        "log": clock.lines,
        "resumed": resume,
    }


def trained(model: str, width: float, data: str, device: str, out: Path) -> Path:
    """The weights after adversarial training, in bfloat16 where that is fast; a run in the folder is continued."""
    fields = {"model.name": model, "model.width": width, "precision.dtype": "auto"}
    resume = out.is_dir()
    run = train("at", data=data, out=out, budget="short", device=device, resume=resume, overrides=fields, progress=True)
    return run.weights_file("last")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the audits and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoattack_audit", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("data", help="a data set's name or file")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="of the model [those of a training in OUT/at]")
    parser.add_argument("--model", default="preactresnet18", help="[%(default)s]")
    parser.add_argument("--width", type=float, default=1.0, help="of the network [1]")
    parser.add_argument("--attacks", nargs="+", default=["autoattack"], metavar="SPEC", help="[autoattack]")
    parser.add_argument("--images", type=int, nargs="+", default=[512, 10_000], help="[512 10000]")
    parser.add_argument("--precision", choices=list(DTYPES), help="[the fastest on the device]")
    parser.add_argument("--compile", choices=get_args(Compile), nargs="+", default=["auto"], help="[auto]")
    parser.add_argument("--device", default="cuda", help="[%(default)s]")
    parser.add_argument("--max-time", type=float, default=440.0, metavar="S", help="of each audit [%(default)s]")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    check_device(given.device)
    data = load_data(given.data)
    weights = given.weights or trained(given.model, given.width, given.data, given.device, given.out / "at")
    network = {"weights": weights, "num_classes": data.num_classes, "width": given.width}
    model = load_model(given.model, **network, device=given.device)
    fast = fastest(torch.device(given.device)) if given.precision is None else DTYPES[given.precision]
    measured(model, data.take(range(min(IMAGES, len(data)))), WARM_UP, None, fast, given.max_time)
    file, rows = given.out / "autoattack.json", []
    results = read_json(file) if file.is_file() else {}
    for compiles, images in itertools.product(given.compile, given.images):
        folder = given.out / f"{weights.stem}-{images}-{given.precision or 'auto'}-compile-{compiles}"
        precision = dataclasses.replace(fast, compile=compiles)
        result, found = measured(model, data.take(range(images)), given.attacks, folder, precision, given.max_time)
        before = results.get(folder.name, {})
        if before.get("complete"):  # the resumption has checked that it is the same audit, and has computed nothing
            found = before
        else:
            meta = result.outcomes.meta
            found |= {"complete": result.complete, "precision": dict(meta.precision), "batch_size": meta.batch_size}
            results[folder.name] = found | {"environment": result.environment}
            write_text(file, json.dumps(results, indent=2, default=str) + "\n")
        rows += [
            [
                f"{images:,}",
                compiles,
                row["attack"],
                f"{row['attacked']:,}",
                "" if row["robust"] is None else f"{row['robust']:,}",
                f"{row['seconds']:.1f}",
            ]
            for row in found["attacks"]
        ]
        end = "whole audit" if found["complete"] else "until the limit"
        rows.append([f"{images:,}", compiles, end, "", "", f"{found['seconds']:.1f}"])
    print(table(f"AutoAttack, {weights.name}", HEADER, rows))


if __name__ == "__main__":
    main()
