"""Comparisons of random outcomes, whose intervals, p-values and worst classes must not contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval
from tests.hostile.case import Case

NUMBER = 60
SHARES = (0.0, 0.02, 0.05, 0.3, 0.5, 0.95, 1.0)
"""Accuracies of classes; of 0 and 1, all images have one outcome."""


def cases(random: Random) -> list[Case]:
    """Two or three methods of one to five runs on up to twelve classes of unequal sizes."""
    return [
        _comparison(f"a comparison of random outcomes {number}", random.randrange(2**32)) for number in range(NUMBER)
    ]


def _comparison(name: str, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(1, 13))
    labels = np.repeat(np.arange(classes), rng.integers(1, 41, classes))
    difficulty = rng.random(len(labels))
    files: dict[str, Callable[[Path], object]] = {}
    words = ["compare"]
    lowest: dict[str, list[ClassCounts]] = {}
    tied = rng.choice(SHARES)
    for method in "abc"[: int(rng.integers(2, 4))]:
        shares = rng.choice([tied, *rng.choice(SHARES, 2)], classes)
        for run in range(int(rng.choice([1, 1, 2, 3, 5]))):
            own = rng.random(len(labels))
            correct = np.where(rng.random() < 0.5, difficulty, own) < shares[labels]
            files[f"{method}-{run}"] = _writer(labels, correct, f"{method}-{run}", classes)
            words.append(f"{method}={method}-{run}")
            lowest.setdefault(method, []).append(ClassCounts.from_labels(labels, correct, classes))
    return Case(name, (*words, "--json"), files, frozenset({0}), check=lambda facts: contradictions(facts, lowest))


def _writer(labels: Any, correct: Any, name: str, classes: int) -> Callable[[Path], object]:
    predictions = np.where(correct, labels, (labels + 1) % max(classes, 2))

    def write(folder: Path) -> object:
        names = [f"class {label}" for label in range(max(classes, 2))]
        about: dict[str, Any] = {"class_names": names, "model": name, "data": "toy", "threat": "Linf:0.1"}
        return Audit(Outcomes.from_predictions(labels, attacks={"pgd": predictions}, **about), name=name).save(folder)

    return write


def contradictions(facts: Any, lowest: dict[str, list[ClassCounts]]) -> list[str]:
    """Intervals without their value, tests and intervals that disagree, and worst classes with another interval."""
    problems = []
    for method, counts in lowest.items():
        row = facts["methods"][method]
        if not row["worst_low"] <= row["worst"] <= row["worst_high"]:
            problems.append(f"worst-class accuracy of {method} outside its interval")
        if len(counts) == 1 and (row["worst_low"], row["worst_high"]) != lowest_interval(counts[0]):
            problems.append(f"another interval of the worst class of {method} than that of an audit")
    for pair in facts["pairs"]:
        name = f"{pair['first']} minus {pair['second']}"
        tests = [(pair["overall"], "value", pair["p_value"]), (pair["minima"], "value", None)]
        tests += [(row, "difference", row["adjusted"]) for row in pair["classes"].values()]
        for ends, key, p_value in tests:
            if ends["low"] is None:  # a class with a single image, over several runs
                continue
            if not ends["low"] <= ends[key] <= ends["high"]:
                problems.append(f"{name}: {ends[key]} outside [{ends['low']}, {ends['high']}]")
            if p_value is not None and (p_value < 0.05) != (ends["low"] > 0 or ends["high"] < 0):
                problems.append(f"{name}: p = {p_value} beside [{ends['low']}, {ends['high']}]")
    return problems
