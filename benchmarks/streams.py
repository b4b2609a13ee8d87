"""An audit of large images in a folder or tar shards: images per second and peak memory, loaded or streamed."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import classwise as cw
from benchmarks.ratios import recorded
from benchmarks.tables import table
from classwise.core.errors import ClasswiseError

CLASSES = 1000
FILES = 500
"""Number of different image files; the folder has hard links to them, the shards copies."""
SHARD = 1000
"""Number of images in a tar shard."""
SIDES = (500, 375)
"""Width and height of the files, the usual ones of ImageNet."""
SIZE, RESIZE = 224, 256


class Strided(nn.Module):
    """A small network whose passes take about as long as decoding an image on one core."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(16, 64, 3, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x).mean((2, 3)))
        return logits


def write(folder: Path, count: int) -> None:
    """Write JPEG files, noise of low frequency, of the size of photographs on disk: a folder, and as tar shards."""
    sources = []
    (folder / "sources").mkdir(parents=True)
    for number in range(min(FILES, count)):
        coarse = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        fine = np.random.default_rng(number).integers(-12, 13, (SIDES[1], SIDES[0], 3))
        smooth = np.asarray(Image.fromarray(coarse).resize(SIDES, Image.Resampling.BICUBIC)).astype(np.int64)
        file = folder / "sources" / f"{number}.jpg"
        Image.fromarray((smooth + fine).clip(0, 255).astype(np.uint8)).save(file, quality=90)
        sources.append(file)
    classes = min(CLASSES, count)
    for label in range(classes):
        (folder / "images" / f"{label:04}").mkdir(parents=True)
    for number in range(count):
        target = folder / "images" / f"{number % classes:04}" / f"{number:06}.jpg"
        os.link(sources[number % len(sources)], target)
    _write_shards(folder / "shards", sources, count, classes)


def _write_shards(folder: Path, sources: Sequence[Path], count: int, classes: int) -> None:
    """Write the images of the folder as tar shards in the layout of WebDataset."""
    folder.mkdir()
    (folder / "classnames.txt").write_text("".join(f"{label:04}\n" for label in range(classes)), encoding="utf-8")
    for first in range(0, count, SHARD):
        with tarfile.open(folder / f"{first // SHARD:06}.tar", "w", dereference=True) as shard:  # copies, no links
            for number in range(first, min(first + SHARD, count)):
                shard.add(sources[number % len(sources)], f"{number:06}.jpg")
                label = str(number % classes).encode()
                member = tarfile.TarInfo(f"{number:06}.cls")
                member.size = len(label)
                shard.addfile(member, io.BytesIO(label))


def _loaded(folder: Path) -> Any:
    return cw.load_data(folder / "images", size=SIZE, resize=RESIZE)


def _one_worker(folder: Path) -> Any:
    return cw.stream_data(folder / "images", size=SIZE, resize=RESIZE, workers=1)


def _streamed(folder: Path) -> Any:
    return cw.stream_data(folder / "images", size=SIZE, resize=RESIZE)


def _streamed_shards(folder: Path) -> Any:
    return cw.stream_data(folder / "shards", size=SIZE, resize=RESIZE)


def _decoded(folder: Path) -> float:
    """Seconds of decoding alone."""
    started = time.perf_counter()
    for _ in _streamed(folder).blocks(128):
        pass
    return time.perf_counter() - started


def _audited(folder: Path, open_: Callable[[Path], Any]) -> float:
    """Seconds of an audit by FGSM without guards, from opening the folder to the outcomes."""
    started = time.perf_counter()
    data = open_(folder)
    torch.manual_seed(0)
    cw.audit(Strided(data.num_classes), data, "Linf:4/255", "fgsm", guards="off", batch_size=128)
    return time.perf_counter() - started


CASES: dict[str, Callable[[Path], float]] = {
    "decoding alone": _decoded,
    "audit of loaded images": lambda folder: _audited(folder, _loaded),
    "audit of a stream, one thread decodes": lambda folder: _audited(folder, _one_worker),
    "audit of a stream, a thread per core decodes": lambda folder: _audited(folder, _streamed),
    "audit of a stream of tar shards, a thread per core decodes": lambda folder: _audited(folder, _streamed_shards),
}

LOADED, STREAMED, SHARDS = (list(CASES)[number] for number in (1, 3, 4))
"""The audit without a stream, and the streams of both layouts, which are also measured on many images."""


def _measure(case: str, folder: str, result: str) -> None:
    """Write seconds and the growth of the peak memory in MiB; runs in a process of its own."""
    import resource  # Windows has no such module

    _audited(Path(folder) / "few", _loaded)  # imports, and the buffers of the network
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = CASES[case](Path(folder) / "all")
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    Path(result).write_text(json.dumps([seconds, growth]), encoding="utf-8")


def measured(case: str, folder: Path) -> tuple[float, float]:
    """Seconds and growth of the peak memory in MiB of a case in a new process."""
    result = folder / "result.json"
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(case, str(folder), str(result)))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{case}: the process ended with status {process.exitcode}")
    seconds, growth = json.loads(result.read_text(encoding="utf-8"))
    return seconds, growth


def rows_of(cases: Sequence[str], count: int) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Measure cases in turn on new files; a case that occurs several times is measured as often.

    Returns:
        A row for each case, with the median of the seconds and the largest growth of the peak memory; the seconds.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "all", count)
        write(Path(name) / "few", 64)
        for case in cases:
            found.setdefault(case, []).append(measured(case, Path(name)))
            print(f"{case}, {count:,} images: {found[case][-1]}", file=sys.stderr, flush=True)
    rows = []
    for case, timings in found.items():
        seconds, growth = statistics.median(seconds for seconds, _ in timings), max(growth for _, growth in timings)
        rows.append([case, f"{count:,}", f"{seconds:.1f} s", f"{count / seconds:.0f}", f"{growth:,.0f} MiB"])
    return rows, {case: [seconds for seconds, _ in timings] for case, timings in found.items()}


def _table(rows: list[list[str]]) -> str:
    header = ["", "images", "time", "images/s", "growth of the peak memory"]
    title = f"JPEG files of {SIDES[0]}x{SIDES[1]}, resized to {RESIZE}, cropped to {SIZE}; {CLASSES:,} classes, FGSM"
    return table(title, header, rows)


def run(*, quick: bool) -> str:
    """Seconds, images per second and peak memory of each case on a folder, and of the last on ten times the images."""
    many, few = (400, 200) if quick else (50_000, 5_000)
    rows, times = rows_of([case for case in CASES if case != SHARDS], few)
    recorded(f"{LOADED} / {STREAMED}", times[LOADED], times[STREAMED])
    return _table([*rows, *rows_of([STREAMED], many)[0]])


def _images() -> int:
    """The number of images that ``IMAGES`` sets.

    Raises:
        ClasswiseError: if it is not a positive whole number.
    """
    text = os.environ.get("IMAGES", "50000")
    if not text.isdecimal() or not int(text):
        raise ClasswiseError(f"IMAGES={text}: must be a positive whole number, such as 50000")
    return int(text)


def run_shards(*, quick: bool) -> str:
    """The same of tar shards and the folder in turn, and of tar shards on ten times the images.

    The environment variable ``IMAGES`` sets the larger number of images.
    """
    many, few, rounds = (400, 200, 1) if quick else (_images(), 5_000, 3)
    rows, times = rows_of([STREAMED, SHARDS] * rounds, few)
    recorded(f"{SHARDS} / {STREAMED}", times[SHARDS], times[STREAMED])
    return _table([*rows, *rows_of([SHARDS], many)[0]])
