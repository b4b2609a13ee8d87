"""The merge of the shards of an audit, and reading the merged audit: seconds and peak memory, on generated outcomes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tables import table
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.outcomes import artifacts
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import EXAMPLES
from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.merging import merge, shard_folder
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import settings_of
from classwise.auditing.run.result import Audit, about_of
from classwise.auditing.run.suite import parse_attacks
from classwise.core.files.storage import ResultFolder
from classwise.threat.ball import Threat

CLASSES = 10
CASES = ((10, 50_000), (100, 50_000), (1_000, 50_000), (100, 200_000))
"""Numbers of shards and of images; each image has a row under `clean` and each attack of AutoAttack."""
QUICK = ((3, 600), (10, 600))
SHAPE = (3, 32, 32)


def plan() -> Plan:
    """AutoAttack at 8/255."""
    return Plan.of(parse_attacks("autoattack"), Threat.parse("Linf:8/255"), {})


def meta(images: int) -> Meta:
    """The metadata of an audit of generated outcomes."""
    suite = plan().suite
    names = tuple(f"class {label}" for label in range(CLASSES))
    return Meta.of(
        class_names=names, attacks={CLEAN: None, **suite.specs()}, data_hash="generated", images=images, cascade=True
    )


def rows_of(index: np.ndarray[Any, np.dtype[np.int64]], attack: str, about: Meta) -> pd.DataFrame:
    """Rows of images under an attack, of which random ones are correct."""
    rng = np.random.default_rng([int(index[0]), list(about.attacks).index(attack)])
    correct, values = rng.random(len(index)) < 0.7, rng.random((6, len(index)))
    rows = {"index": index, "label": index % CLASSES, "attack": attack, "epsilon": 8 / 255, "correct": correct}
    rows |= {
        "prediction": np.where(correct, index % CLASSES, (index + 1) % CLASSES),
        "runner_up": (index + 2) % CLASSES,
    }
    rows |= dict(zip(("p_label", "p_predicted", "margin", "confidence_variance", "distance"), values, strict=False))
    rows |= dict.fromkeys(("iterations", "forwards", "backwards"), 100) | {"status": "ok"}
    rows["first_success"] = np.array([attack, None], dtype=object)[correct.astype(np.int64)]
    return outcome_files.typed(pd.DataFrame(rows), about)


def write_shard(folder: Path, shard: Shard, images: int) -> None:
    """Write the folder of a finished shard, in files as small as an audit writes them."""
    about, index = meta(images), np.arange(shard.number - 1, images, shard.count)
    number = 0
    for attack in about.attacks:
        for block in np.array_split(index, -(-len(index) // 2048)):
            if attack != CLEAN:
                pairs = np.zeros((8, 2, *SHAPE), dtype=np.float16)
                artifacts.write(folder, EXAMPLES, attack, number, block[:8], pairs[: len(block[:8])])
            outcome_files.write(folder / "outcomes" / outcome_files.name(number), rows_of(block, attack, about), about)
            number += 1
    facts = {"finished": True, "images": len(index), "overwrites": False, "attacks": list(about.attacks)}
    empty = Audit(Outcomes(pd.DataFrame(columns=list(outcome_files.COLUMNS)), about), environment={"seconds": 1.0})
    settings = settings_of(plan(), about) | {"shard": str(shard)}
    ResultFolder(folder, "audit").write(**about_of(empty), settings=settings, shard=facts)


def _write(folder: Path, shards: int, images: int) -> None:
    for shard in Shard.all(shards):
        write_shard(shard_folder(folder, shard), shard, images)


def _merge(folder: Path, shards: int, images: int) -> None:
    merge(folder, shards, meta(images), settings_of(plan(), meta(images)), {})


def _read(folder: Path, shards: int, images: int) -> None:
    del shards
    audit = Audit(Outcomes.load(folder))
    assert audit.complete
    assert len(audit.outcomes) == images
    assert len(audit.by_class) == CLASSES


STEPS: Mapping[str, Callable[[Path, int, int], None]] = {"write": _write, "merge": _merge, "read": _read}


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a step.

    Attributes:
        seconds: wall-clock time.
        memory: peak memory during the step minus memory before it, in MiB.
    """

    seconds: float
    memory: float


def _memory(field: str) -> int:
    """A field of this process's status in KiB: ``VmRSS``, or ``VmHWM`` for its peak (Linux only)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def _measure(step: str, folder: Path, shards: int, images: int, results: Any) -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak of the imports
    before = _memory("VmRSS")
    started = time.perf_counter()
    STEPS[step](folder, shards, images)
    seconds = time.perf_counter() - started
    results.put(Cost(seconds, (_memory("VmHWM") - before) / 1024))


def measured(step: str, folder: Path, shards: int, images: int) -> Cost:
    """The cost of a step in a new process, without its imports."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_measure, args=(step, folder, shards, images, results))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{step}: the process ended with status {process.exitcode}")
    cost: Cost = results.get()
    return cost


def run(*, quick: bool) -> str:
    """Seconds and peak memory of the merge, and of reading the merged table, by numbers of shards and rows."""
    rows = []
    for shards, images in QUICK if quick else CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            measured("write", folder, shards, images)
            files = len(list(folder.glob("shards/*/*/**/*.[ps]a*")))
            merge_cost, read_cost = (measured(step, folder, shards, images) for step in ("merge", "read"))
            written = sum(path.stat().st_size for path in folder.glob("outcomes/*")) / 2**20
        costs = [
            text for cost in (merge_cost, read_cost) for text in (f"{cost.seconds:.2f} s", f"{cost.memory:.0f} MiB")
        ]
        rows.append(
            [f"{shards:,}", f"{images * len(meta(images).attacks):,}", f"{files:,}", *costs, f"{written:.1f} MiB"]
        )
    header = ["shards", "rows", "files", "merge", "its memory", "read and tabulate", "its memory", "merged table"]
    return table("Merge of the shards of an audit", header, rows)
