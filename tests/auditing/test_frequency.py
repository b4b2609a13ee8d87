"""Head, middle and tail of the classes by their training images: counts by hand, and those of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import classwise as cw
from classwise import metrics
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.stats.intervals import class_intervals
from tests.refusals import check_refused

from ..training.on_digits import TINY

LABELS = np.repeat(np.arange(5), 4)
CORRECT = np.array([4, 1, 3, 2, 0])
"""Correct images of each class, of 4."""
TRAINING = (100, 5, 60, 40, 10)
"""Head: class 0; tail: class 1; middle: the others."""


def outcomes(training: tuple[int, ...] | None = TRAINING, correct: np.ndarray = CORRECT) -> Outcomes:
    place = np.arange(len(LABELS)) % 4
    predictions = np.where(place < correct[LABELS], LABELS, (LABELS + 1) % 5)
    return Outcomes.from_predictions(LABELS, LABELS, {"pgd": predictions}, training_counts=training)


@given(st.lists(st.integers(0, 60), min_size=3, max_size=40).filter(lambda counts: len(set(counts)) > 1))
def test_thirds_beside_a_sorted_list(counts: list[int]) -> None:
    ranked = sorted(range(len(counts)), key=lambda label: (-counts[label], label))
    size = len(counts) // 3
    expected = dict.fromkeys(ranked[:size], 0) | dict.fromkeys(ranked[len(counts) - size :], 2)
    found = metrics.frequency_thirds(counts)
    assert found.tolist() == [expected.get(label, 1) for label in range(len(counts))]
    assert max(np.array(counts)[found == 2]) <= min(np.array(counts)[found < 2])


def test_ten_classes_are_three_four_and_three() -> None:
    tail = [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]
    assert metrics.frequency_thirds(tail).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert np.bincount(metrics.frequency_thirds(range(100))).tolist() == [33, 34, 33]
    check_refused(
        "each class has 5,000; head and tail need classes of different sizes",
        metrics.frequency_thirds,
        [5000] * 10,
    )
    check_refused("head, middle and tail need at least 3 classes, got 2", metrics.frequency_thirds, [1, 2])
    check_refused("-1 is negative", metrics.frequency_thirds, [1, 2, -1])


def test_the_accuracy_of_a_third_is_the_mean_of_its_classes_on_balanced_images() -> None:
    audit = Audit(outcomes(), group="frequency")
    accuracy = CORRECT / 4
    expected = {"head": accuracy[0], "middle": accuracy[[2, 3, 4]].mean(), "tail": accuracy[1]}
    assert audit.by_class["pgd"].to_dict() == pytest.approx(expected)
    assert audit.by_class["n"].to_dict() == {"head": 4, "middle": 12, "tail": 4}
    counts = audit.counts("pgd")
    assert (counts.count.tolist(), counts.correct.tolist()) == ([4, 12, 4], [4, 5, 1])
    interval = class_intervals(counts, 0.05)
    assert audit.by_class["pgd_low"].tolist() == pytest.approx(interval.low.tolist())
    assert audit.worst_class("pgd").name == "tail"
    by_class = Audit(outcomes())
    assert by_class.by_attack.loc["pgd", "macro"] == pytest.approx(accuracy.mean()), "balanced accuracy"


def test_two_methods_are_compared_by_thirds() -> None:
    better = CORRECT + np.array([0, 3, 0, 0, 1])
    audits = {"at": Audit(outcomes()), "robust-lt": Audit(outcomes(correct=better))}
    comparison = cw.compare(audits, attack="pgd", group="frequency")
    assert comparison.pairs[0].classes["difference"].to_dict() == pytest.approx(
        {"head": 0, "middle": 1 / 12, "tail": 3 / 4}
    )
    assert comparison.classes["robust-lt", "mean"].to_dict() == pytest.approx({"head": 1, "middle": 0.5, "tail": 1})
    audits["robust-lt"] = Audit(outcomes(training=(5, 100, 60, 40, 10)))
    check_refused("grouping frequency", cw.compare, audits, attack="pgd", group="frequency")


def test_metadata_and_refusals() -> None:
    meta = outcomes().meta
    assert Meta.from_json(meta.to_json(), "x") == meta
    assert meta.training_counts == TRAINING
    assert "training_counts" not in outcomes(None).meta.to_json()
    assert meta.names_of("frequency") == ("head", "middle", "tail")
    sizes = dataclasses.replace(meta, sizes={"class": (1, 2, 3, 4, 5)}).group_sizes("frequency")
    assert sizes is not None
    assert sizes.tolist() == [1, 12, 2]
    check_refused("the training images of each class are not known", outcomes(None).grouping, "frequency")
    check_refused("each class has 7", outcomes((7,) * 5).grouping, "frequency")
    check_refused("3 training counts for 5 classes; give one for each class", outcomes, (1, 2, 3))
    check_refused("training counts: expected integers", outcomes, (1, 2, 3, 4, 0.5))
    own = outcomes().add_groups("frequency", LABELS % 2, ["even", "odd"])
    assert own.grouping("frequency").names == ("even", "odd"), "a column of the data replaces that of the classes"


@pytest.mark.slow
def test_an_audit_of_a_run_knows_head_middle_and_tail(tmp_path: Path) -> None:
    overrides = TINY | {"data.subset": 400, "data.imbalance": 10, "epochs": 1}
    run = cw.train("at", data="digits", out=tmp_path / "run", overrides=overrides)
    counts = run.data["counts"]["train"]
    assert counts == sorted(counts, reverse=True)
    test = cw.load_data("digits", split="test", subset=100)
    asked: dict[str, Any] = {"threat": "Linf:0.1", "attacks": ["fgsm"], "guards": "off"}
    audit = cw.audit(run, test, out=tmp_path / "audit", **asked)
    assert audit.outcomes.meta.training_counts == tuple(counts)
    thirds = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])[audit.outcomes.labels]
    expected = [audit.outcomes.correct("fgsm")[thirds == third].mean() for third in range(3)]
    again = cw.audit(run, test, out=tmp_path / "audit", resume=True, group="frequency", **asked)
    assert again.by_class["fgsm"].tolist() == pytest.approx(expected)
    assert Audit.load(tmp_path / "audit").outcomes.grouping("frequency").names == ("head", "middle", "tail")
    check_refused("grouping 'frequency': the training images", cw.audit, run.model(), test, group="frequency", **asked)
    pairs: Any = [(image, int(label)) for image, label in zip(test.pixels(), test.y, strict=True)]
    stream = cw.stream_data(torch.utils.data.DataLoader(pairs, batch_size=20), classes=range(10))
    assert cw.audit(run, stream, group="frequency", **asked).by_class["fgsm"].tolist() == pytest.approx(expected)
