"""Thousands of classes: the cost of a report grows with the images, not with the squared number of classes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from classwise.auditing.outcomes.table import MOST_DENSE, Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.tables import audit_facts
from classwise.reporting import export, report
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.text.audit import worst_line
from classwise.stats.confusion import confusion, sparse_confusion, superclass_leakage
from classwise.stats.counts import ClassCounts
from classwise.stats.worst_class import possibly_worst, significantly_above
from tests.refusals import check_refused

CLASSES, IMAGES, SUPERCLASSES = 4_000, 8_000, 100
MEGABYTES = 100
"""A dense matrix of these classes needs 128 MB."""


def outcomes(classes: int, images: int, **more: Any) -> Outcomes:
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    clean, pgd = (
        np.where(rng.random(images) < share, labels, rng.integers(0, classes, images)) for share in (0.8, 0.4)
    )
    names = [f"class {label}" for label in range(classes)]
    return Outcomes.from_predictions(labels, clean, {"pgd": pgd}, names, threat="Linf:8/255", **more)


@pytest.mark.slow
def test_memory_and_pages_are_bounded(tmp_path: Path) -> None:
    more = {
        "superclasses": tuple(label % SUPERCLASSES for label in range(CLASSES)),
        "superclass_names": tuple(f"kind {label}" for label in range(SUPERCLASSES)),
    }
    tracemalloc.start()
    try:
        audit = Audit(outcomes(CLASSES, IMAGES, **more))
        assert len(audit.by_class) == CLASSES
        assert len(worst_line(audit)) < 500
        assert audit_facts(audit)["worst"]["n"] == 2
        page = report(audit, tmp_path / "page.html")
        written = export(audit, tmp_path / "tables", formats=("csv", "md"))
        peak = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTES
    assert page.stat().st_size < 500_000
    pairs = pd.read_csv(tmp_path / "tables" / "confusion-pgd.csv")
    assert list(pairs.columns) == ["truth", "prediction", "count"]
    assert pairs["count"].sum() == IMAGES
    assert sum(path.stat().st_size for path in written) < 20e6


def test_a_dense_matrix_is_refused_and_the_sparse_one_holds_the_same() -> None:
    check_refused(
        r"4,000 x 4,000 is too large; use sparse_confusion\('pgd'\)", outcomes(CLASSES, IMAGES).confusion, "pgd"
    )
    small = outcomes(12, 400)
    assert small.sparse_confusion("pgd").toarray().tolist() == small.confusion("pgd").tolist()


def test_the_figures_of_a_sparse_matrix_are_those_of_a_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tuple(label // 8 for label in range(40))
    for more in ({}, {"superclasses": groups, "superclass_names": ("a", "b", "c", "d", "e")}):
        audit = Audit(outcomes(40, 800, **more))
        dense = AuditSummary.of(audit).confusions["all"]
        for module in ("classwise.reporting.facts.audit_summary", "classwise.auditing.outcomes.table"):
            monkeypatch.setattr(f"{module}.MOST_DENSE", 10)
        sparse = AuditSummary.of(audit).confusions["all"]
        monkeypatch.undo()
        assert not isinstance(sparse.matrix, np.ndarray)
        assert sparse.wrong == dense.wrong
        assert sparse.row(3).tolist() == dense.row(3).tolist()
        assert sparse.images.tolist() == dense.images.tolist()
        (one, note), (other, same) = sparse.condensed(), dense.condensed()
        assert note == same
        assert one.names == other.names
        assert np.asarray(one.matrix).tolist() == np.asarray(other.matrix).tolist()
    assert len(dense.names) < MOST_DENSE


def test_superclass_leakage_of_sparse_and_dense_matrices_is_equal() -> None:
    rng = np.random.default_rng(1)
    labels, predictions = rng.integers(0, 30, (2, 500))
    groups = rng.integers(0, 4, 30)
    dense = superclass_leakage(confusion(labels, predictions, 30), groups)
    assert superclass_leakage(sparse_confusion(labels, predictions, 30), groups) == pytest.approx(dense)


def test_classes_of_equal_counts_are_compared_once_with_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    count = rng.integers(0, 40, 60)
    counts = ClassCounts(count, rng.binomial(count, rng.uniform(0.05, 0.95, 60)))
    above, candidates = significantly_above(counts), possibly_worst(counts)
    assert above.any()
    assert (candidates == (counts.present & ~above.any(axis=1))).all()
    monkeypatch.setattr("classwise.stats.worst_class.BLOCK_CELLS", 100)
    assert (significantly_above(counts) == above).all()
    for first, second in ((3, 7), (10, 50), (20, 21)):  # the verdict on a pair does not depend on the other classes
        pair = ClassCounts(count[[first, second]], counts.correct[[first, second]])
        if (pair.count > 0).all():
            level = 0.05 / (int(counts.present.sum()) - 1)
            assert significantly_above(pair, level)[0, 1] == above[first, second]
