"""Strength and speed of every attack that another library has too: same images, same budget, same rule of what counts.

``CLASSWISE_DATA`` says where the data is, ``CHECKPOINT`` which model (``cifar10-at``, ``fashion-mnist-at`` or
``mnist-trades``), ``IMAGES`` and ``SEEDS`` how much (1,000 and 3), ``ONLY`` which attacks, and ``KEEP`` in which folder
the cells lie, so that an interrupted run goes on. Where an attack changes here, the folder has to go.
"""

from __future__ import annotations

import os
import statistics

import numpy as np

from benchmarks.cells import CHECKPOINT, KEEP, Cell, cell, chosen, right, subject
from benchmarks.contenders import BATCH, OURS, Contender, Task, contenders
from benchmarks.pairing import table
from classwise.core.errors import ClasswiseError

HEADER = [
    "attack",
    "library",
    "keeps",
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


def cells(task: Task, count: int, seeds: int) -> dict[Contender, list[Cell]]:
    """Every contender's cells, a seed each; they take turns, the order reversed with every second seed."""
    found: dict[Contender, list[Cell]] = {contender: [] for contender in contenders(task)}
    for seed in range(seeds if task.random else 1):
        for contender in list(found) if seed % 2 == 0 else list(reversed(found)):
            try:
                found[contender].append(cell(contender, task, seed, count))
            except ImportError as error:
                print(f"  {contender.library} is left out: {error}")
                del found[contender]
    return found


def rows(task: Task, found: dict[Contender, list[Cell]]) -> list[list[str]]:
    ours = {contender.keep: each for contender, each in found.items() if contender.library == OURS}
    return [_row(task, contender, each, ours[contender.keep]) for contender, each in found.items()]


def _row(task: Task, contender: Contender, theirs: list[Cell], ours: list[Cell]) -> list[str]:
    mine = contender.library == OURS
    count = theirs[0].images
    return [
        task.name,
        contender.library,
        contender.keep,
        f"{statistics.mean(each.robust for each in theirs):.2%}",
        "" if mine else f"{statistics.mean(each.robust for each in ours):.2%}",
        "" if mine else difference(ours, theirs),
        f"{_median_distance(theirs):.4f}" if contender.keep == "nearest" else "",
        f"{statistics.mean(each.cpu for each in theirs):.1f}",
        f"{statistics.mean(each.wall for each in theirs):.1f}",
        "1" if mine else _ratio([each.cpu for each in theirs], [each.cpu for each in ours]),
        "1" if mine else _ratio([each.wall for each in theirs], [each.wall for each in ours]),
        f"{count:,} x {len(theirs)}",
    ]


def difference(ours: list[Cell], theirs: list[Cell]) -> str:
    """Of robust accuracies, with the 95 % interval of the mean over images of each one's mean over seeds."""
    is_robust = [1 - np.mean([each.success for each in cells], axis=0) for cells in (ours, theirs)]
    per_image = np.zeros(ours[0].images)  # those that are wrong from the start differ in nothing
    per_image[: len(is_robust[0])] = is_robust[0] - is_robust[1]
    half = 1.96 * per_image.std(ddof=1) / len(per_image) ** 0.5
    return f"{100 * per_image.mean():+.2f} ± {100 * half:.2f}"


def _median_distance(each: list[Cell]) -> float:
    return statistics.mean(float(np.median(one.distance)) for one in each)


def _ratio(theirs: list[float], ours: list[float]) -> str:
    """The median over seeds, and the lowest and the highest."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def run(*, quick: bool) -> str:
    count = 64 if quick else int(os.environ.get("IMAGES", "1000"))
    seeds = 1 if quick else int(os.environ.get("SEEDS", "3"))
    try:
        tasks = chosen(quick=quick)
        right(count)
    except ClasswiseError as error:
        return f"Strength against other libraries is left out: {error}\n"
    print(f"cells are kept in {KEEP}")
    lines = []
    for task in tasks:
        lines += rows(task, cells(task, count, seeds))
    balls = f"Linf {subject().linf:.3g}, L2 {subject().l2:.3g}"
    said = (
        f"Batch {BATCH}; every library gets the images that the model has right, which a misclassified one never is. "
        "Attacks without random draws have one seed. Ours computes gradients in bfloat16 (C&W, FAB and Square in "
        "float32) and decides in float32. `last`: the last iterate is judged (of APGD: the one of highest loss); "
        "`success`: any misclassified one inside the ball; `nearest`: the nearest one, whose median distance is over "
        "all those images, inf where none was found.\n"
    )
    return table(f"Strength against other libraries, {CHECKPOINT}, {balls}", HEADER, lines) + "\n" + said
