"""Power that `classwise.plan` predicts, and the power that audits of the planned size have in a separate simulation.

    python -m benchmarks.coverage.power

prints the table of docs/how-to/plan.md. The audits are drawn by this module from the counts of each class, not by the
simulation that planned them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import classwise as cw
from benchmarks.tables import table
from classwise.stats.counts import ClassCounts, FloatArray, PairedCounts
from classwise.stats.intervals import class_intervals, lowest_interval
from classwise.stats.paired import difference_of_minima
from classwise.stats.power import shared_images
from classwise.stats.seeds import mean_over_seeds
from classwise.stats.worst_class import possibly_worst

REPETITIONS = 4000
CLASSES = 10
TARGET = 0.8
LOW, NEAR = np.array([0.3, *[0.6] * 9]), np.array([0.3, *[0.45] * 9])
"""Accuracies of the classes: the others far above the worst one, and nearer."""
GAP, DIFFERENT, RUN_SD, RUNS = 0.05, 0.15, 0.01, 5

Decides = Callable[[int, np.random.Generator], bool]
"""Whether an audit or a comparison on so many images of a class decides the question."""


class Answer(NamedTuple):
    """A question, the images of a class that were planned for a power of 80 %, and the power that they have."""

    question: str
    command: str
    images: int
    planned: float
    reached: float
    repetitions: int


def _counts(accuracy: FloatArray, images: int, rng: np.random.Generator) -> ClassCounts:
    return ClassCounts(np.full(CLASSES, images), rng.binomial(images, accuracy))


def _difference(images: int, rng: np.random.Generator) -> bool:
    """Draws both, only first, only second and neither correct of each class; the second model is better by `GAP`."""
    p, q = LOW, LOW + GAP
    shared = shared_images(p, q, DIFFERENT)
    both = shared * p + (1 - shared) * p * q
    cells = rng.multinomial(images, np.stack([both, q - both, p - both, 1 - p - q + both], axis=1))
    return difference_of_minima(PairedCounts(*cells.T)).low > 0


def _half_width(images: int, rng: np.random.Generator) -> bool:
    """Draws how many runs are correct on each image: half of the images are alike in all of them."""
    accuracy = LOW + RUN_SD * rng.standard_normal((RUNS, 1))
    labels = np.repeat(np.arange(CLASSES), images)
    own, common = rng.random((RUNS, len(labels))), rng.random(len(labels))
    correct = np.where(rng.random(len(labels)) < 0.5, common, own) < accuracy[:, labels]
    _, low, high = mean_over_seeds(correct, np.zeros_like(labels), 1)
    return bool(high[0] - low[0] <= 0.04)


QUESTIONS: dict[str, tuple[str, Decides, dict[str, Any]]] = {
    "the worst class is above 20 %": (
        "--worst 30% --others 60% --classes 10 --above 20%",
        lambda images, rng: lowest_interval(_counts(LOW, images, rng))[0] > 0.2,
        {"accuracy": LOW.tolist(), "above": 0.2},
    ),
    "class 0 is below 40 %": (
        "--worst 30% --others 60% --classes 10 --below 40% --class 0",
        lambda images, rng: bool(class_intervals(_counts(LOW, images, rng)).high[0] < 0.4),
        {"accuracy": LOW.tolist(), "below": 0.4, "class_name": "0"},
    ),
    "the worst classes of two models differ, by 5 points": (
        "--worst 30% --others 60% --classes 10 --difference 5% --different 15%",
        _difference,
        {"accuracy": LOW.tolist(), "difference": GAP, "different": DIFFERENT},
    ),
    "which class is the worst": (
        "--worst 30% --others 45% --classes 10 --identity",
        lambda images, rng: possibly_worst(_counts(NEAR, images, rng)).nonzero()[0].tolist() == [0],
        {"accuracy": NEAR.tolist(), "identity": True},
    ),
    "the overall accuracy of 5 seeds, to ±2 points": (
        "--worst 30% --others 60% --classes 10 --half-width 2% --seeds 5 --run-sd 1%",
        _half_width,
        {"accuracy": LOW.tolist(), "half_width": 0.02, "seeds": [RUNS], "run_sd": RUN_SD},
    ),
}
"""Of each question the options of the command, a simulation of one audit, and the arguments of the plan."""


def planned_power(repetitions: int) -> Iterator[Answer]:
    """10 classes, the worst at 30 %: five planned numbers of images, and the power that audits of this size have."""
    for number, (question, (command, decides, arguments)) in enumerate(QUESTIONS.items()):
        plan = cw.plan(attacks="pgd", **arguments)
        row = next(row for row in plan.rows if row.target == TARGET)
        assert row.images is not None
        rng = np.random.default_rng((1, number))
        reached = float(np.mean([decides(row.images, rng) for _ in range(repetitions)]))
        yield Answer(question, command, row.images, row.power, reached, repetitions)


def report(repetitions: int = REPETITIONS) -> str:
    """The table of docs/how-to/plan.md."""
    rows = [
        [
            answer.question,
            f"`{answer.command}`",
            f"{answer.images:,}",
            f"{100 * answer.planned:.0f} %",
            f"{100 * answer.reached:.1f} %",
        ]
        for answer in planned_power(repetitions)
    ]
    heads = ["question", "options", "images a class for 80 %", "planned power", "power reached"]
    return table(f"Five plans, and {repetitions:,} simulated audits of the planned size", heads, rows)


if __name__ == "__main__":
    print(report(*map(int, sys.argv[1:])))
