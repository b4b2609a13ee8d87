"""Strength and speed of the attacks that another library also has: same images, same budget, same success rule.

Environment variables: ``CLASSWISE_DATA`` is the data folder, ``CHECKPOINT`` the model (``cifar10-at``,
``fashion-mnist-at`` or ``mnist-trades``), ``IMAGES`` and ``SEEDS`` the numbers of images and seeds (1,000 and 3),
``ONLY`` a list of attacks, and ``KEEP`` the folder of the measurements, with which an interrupted run is resumed.
Delete that folder after a change of an attack.
"""

from __future__ import annotations

import os
import statistics

import numpy as np

from benchmarks.implementations import BATCH, OURS, Implementation, Task, implementations
from benchmarks.measurements import (
    CHECKPOINT,
    KEEP,
    Measurement,
    checkpoint,
    correct_images,
    measurement,
    selected_tasks,
)
from benchmarks.ratios import recorded
from benchmarks.tables import table
from classwise.core.errors import ClasswiseError

HEADER = [
    "attack",
    "library",
    "returned image",
    "robust accuracy",
    "ours under the same rule",
    "ours minus theirs, points",
    "median distance",
    "CPU s",
    "s",
    "times ours (CPU)",
    "times ours (wall)",
    "images x seeds",
]


def measurements(task: Task, count: int, seeds: int) -> dict[Implementation, list[Measurement]]:
    """Measurements of every implementation, one per seed, interleaved; the order is reversed for every second seed."""
    measured: dict[Implementation, list[Measurement]] = {implementation: [] for implementation in implementations(task)}
    for seed in range(seeds if task.random else 1):
        for implementation in list(measured) if seed % 2 == 0 else list(reversed(measured)):
            try:
                measured[implementation].append(measurement(implementation, task, seed, count))
            except ImportError as error:
                print(f"  {implementation.library} was skipped: {error}")
                del measured[implementation]
    return measured


def rows(task: Task, measured: dict[Implementation, list[Measurement]]) -> list[list[str]]:
    ours = {
        implementation.keep: samples for implementation, samples in measured.items() if implementation.library == OURS
    }
    return [
        _row(task, implementation, samples, ours[implementation.keep]) for implementation, samples in measured.items()
    ]


def _row(task: Task, implementation: Implementation, theirs: list[Measurement], ours: list[Measurement]) -> list[str]:
    is_ours = implementation.library == OURS
    count = theirs[0].images
    return [
        task.name,
        implementation.library,
        implementation.keep,
        f"{statistics.mean(sample.robust for sample in theirs):.2%}",
        "" if is_ours else f"{statistics.mean(sample.robust for sample in ours):.2%}",
        "" if is_ours else difference(ours, theirs),
        f"{_median_distance(theirs):.4f}" if implementation.keep == "nearest" else "",
        f"{statistics.mean(sample.cpu for sample in theirs):.1f}",
        f"{statistics.mean(sample.wall for sample in theirs):.1f}",
        *(
            ["1", "1"]
            if is_ours
            else _ratios(f"{task.name}, {implementation.keep}: {implementation.library}", theirs, ours)
        ),
        f"{count:,} x {len(theirs)}",
    ]


def difference(ours: list[Measurement], theirs: list[Measurement]) -> str:
    """Difference of robust accuracies with its 95 % interval, the mean over images of their means over seeds."""
    is_robust = [1 - np.mean([sample.success for sample in group], axis=0) for group in (ours, theirs)]
    per_image = np.zeros(ours[0].images)  # 0 for images that are misclassified without an attack
    per_image[: len(is_robust[0])] = is_robust[0] - is_robust[1]
    half_width = 1.96 * per_image.std(ddof=1) / len(per_image) ** 0.5
    return f"{100 * per_image.mean():+.2f} ± {100 * half_width:.2f}"


def _median_distance(samples: list[Measurement]) -> float:
    return statistics.mean(float(np.median(sample.distance)) for sample in samples)


def _ratios(name: str, theirs: list[Measurement], ours: list[Measurement]) -> list[str]:
    """The ratios of CPU and wall-clock seconds over the seeds."""
    cpu = recorded(f"{name} / {OURS}, CPU", [sample.cpu for sample in theirs], [sample.cpu for sample in ours])
    wall = recorded(f"{name} / {OURS}", [sample.wall for sample in theirs], [sample.wall for sample in ours])
    return [str(cpu), str(wall)]


def run(*, quick: bool) -> str:
    count = 64 if quick else int(os.environ.get("IMAGES", "1000"))
    seeds = 1 if quick else int(os.environ.get("SEEDS", "3"))
    try:
        tasks = selected_tasks(quick=quick)
        correct_images(count)
    except ClasswiseError as error:
        return f"Strength against other libraries was skipped: {error}\n"
    print(f"measurements are saved in {KEEP}")
    lines = []
    for task in tasks:
        lines += rows(task, measurements(task, count, seeds))
    balls = f"Linf {checkpoint().linf:.3g}, L2 {checkpoint().l2:.3g}"
    notes = (
        f"Batch {BATCH}; every library gets only the correctly classified images. Deterministic attacks have one seed. "
        "classwise computes gradients in bfloat16 (C&W, FAB and Square in float32) and decides success in float32. "
        "`last`: the last iterate is evaluated (for APGD the one of highest loss); `first`: any misclassified iterate "
        "inside the ball; `nearest`: the nearest misclassified point, with the median distance over all images "
        "(inf where none was found).\n"
    )
    return table(f"Strength against other libraries, {CHECKPOINT}, {balls}", HEADER, lines) + "\n" + notes
