"""Tables of single items, recomputed from raw predictions and counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from classwise.analysis.homing import Homing
from classwise.auditing.outcomes.table import Outcomes
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.experiments import case_study, class_wise
from classwise.papers.experiments.class_wise import DataSetAudits
from classwise.papers.experiments.defences import DropOfDefences
from classwise.papers.experiments.fair_training import Evaluated
from classwise.papers.experiments.protocol import mean, proportion
from classwise.papers.tables import estimate_cell
from classwise.training.folder import Run

from ..test_facts import ALPHA, shows, wilson_of, z_of

NAMES = ("ant", "bee", "cow", "dog")
KINGDOM = (0, 1, 0, 1)
CONTEXT: Any = SimpleNamespace(
    train=lambda name: name,
    scale=SimpleNamespace(data="cifar10", name="reduced"),
    test_images=SimpleNamespace(superclasses=None),
)


@pytest.mark.parametrize("seed", range(6))
def test_the_structure_of_a_confusion_matrix(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), (40, 80, 25, 60))
    wrong = random.integers(0, 4, len(labels))
    predicted = np.where(random.random(len(labels)) < 0.4, labels, wrong)
    about: dict[str, Any] = {"superclasses": KINGDOM, "superclass_names": ("wild", "tame")}
    found = Outcomes.from_predictions(labels, labels, {"PGD": predicted}, NAMES, **about)
    audits: Any = {"adversarial": SimpleNamespace(outcomes=found)}
    one = DataSetAudits("cifar10", CONTEXT, {}, audits, superclasses=False)
    monkeypatch.setattr(class_wise, "audit_each", lambda context, declared: ([one], {}))
    monkeypatch.setattr(class_wise, "data_tables", lambda audited, absent: [])
    symmetry, groups = class_wise.ConfusionUnderAttack(item="kdd21/E2").run(CONTEXT).tables
    rows: dict[str, str] = {}
    for table in (symmetry, groups):
        (row,) = table.rows
        assert row.name == "cifar10"
        rows |= {head: cell.text for head, cell in zip(table.heads[1:], row.cells, strict=True)}
    pairs = [(label, other) for label in range(4) for other in range(4) if label != other]
    rate = {
        (label, other): sum((labels == label) & (predicted == other)) / sum(labels == label) for label, other in pairs
    }
    there, back = np.array([rate[pair] for pair in pairs]), np.array([rate[pair[::-1]] for pair in pairs])
    # Each pair once, by the order of classes.
    half = [place for place, (label, other) in enumerate(pairs) if label < other]
    shows(rows["correlation of M_ij with M_ji"], float(np.corrcoef(there[half], back[half])[0, 1]), digits=2)
    shows(
        rows["1 - sum |M - M^T| / sum (M + M^T)"], 1 - float(abs(there - back).sum() / (there + back).sum()), digits=2
    )
    errors = [(int(a), int(b)) for a, b in zip(labels, predicted, strict=True) if a != b]
    inside = sum(KINGDOM[a] == KINGDOM[b] for a, b in errors) / len(errors)
    shows(rows["errors inside, percent"], 100 * inside)
    shows(rows["beyond chance, points"], 100 * (inside - 1 / 3))
    same = [rate[pair] for pair in pairs if KINGDOM[pair[0]] == KINGDOM[pair[1]]]
    others = [rate[pair] for pair in pairs if KINGDOM[pair[0]] != KINGDOM[pair[1]]]
    gap = float(np.mean(same) - np.mean(others))
    shows(rows["mean rate inside minus across"], 100 * gap)


@pytest.mark.parametrize("errors", [True, False])
def test_homing_pairs(errors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without errors the share of errors is undefined."""
    random = np.random.default_rng(0)
    matrix = random.integers(1, 9, (4, 4)) * (1 if errors else np.eye(4, dtype=int))
    home = np.where(np.eye(4, dtype=bool), 0, random.integers(0, matrix + 1))
    again, both = random.integers(0, matrix + 1), np.zeros_like(home)
    again *= 1 - np.eye(4, dtype=int)
    both = np.maximum(home + again - matrix, random.integers(0, np.minimum(home, again) + 1))
    found = Homing(NAMES, matrix, home, (None,) * 4, control=again, beyond=home - both)
    monkeypatch.setattr(case_study, "homing_matrices", lambda context: found)
    result = case_study.HomingMatrix(item="kdd21/F4b").run(CONTEXT)
    *rows, last = result.tables[0].rows
    for row in rows:
        pair = tuple(NAMES.index(name) for name in row.name.split(" misclassified as "))
        check(row.cells, int(home[pair]), int(again[pair]), int(matrix[pair]))
    off = int(matrix.sum() - np.trace(matrix))
    assert last.name == "all pairs"
    check(last.cells, int(home.sum()), int(again.sum()), off)
    (test,) = result.tests
    beyond, many = (part(ALPHA) for part in test.estimators)
    if errors:
        assert beyond.value == pytest.approx(100 * (home.sum() - again.sum()) / off)
        assert many.value == pytest.approx(100 * home.sum() / off - 25)
        assert beyond.low < beyond.value < beyond.high
    assert len(result.figures) == 3


def check(cells: Any, home: int, control: int, errors: int) -> None:
    assert [cell.text for cell in cells[:3]] == [str(errors), str(home), str(control)]
    if errors == 0:
        assert [tuple(cell) for cell in cells[3:]] == [("–", "")] * 2
        return
    shows(cells[3].text, 100 * home / errors)
    for text, end in zip(cells[3].span.split(" to "), wilson_of(home, errors), strict=True):
        shows(text, 100 * end)
    shows(cells[4].text, 100 * (home - control) / errors)


def test_printed_drops_equal_the_printed_rows() -> None:
    table = catalogue.printed("kdd21/T1")
    lost: dict[str, dict[int, float]] = {}
    for row in table["rows"]:
        if row["attack"] in {"FGSM", "PGD"}:
            drops = lost.setdefault(row["defence"], {})
            for label, value in enumerate(row["per_class"]):
                drops[label] = drops.get(label, 0) + (value if row["attack"] == "FGSM" else -value)
    drops_of_item = experiment("kdd21/E4")
    assert isinstance(drops_of_item, DropOfDefences)
    for name, value in drops_of_item.printed().items():
        weak, others = (
            [lost[name][label] for label in (2, 3, 4, 5)],
            [lost[name][label] for label in (0, 1, 6, 7, 8, 9)],
        )
        assert value == pytest.approx(sum(weak) / 4 - sum(others) / 6)


@pytest.mark.parametrize("right", [0, 1, 7, 30])
def test_a_share_and_a_mean_of_images(right: int) -> None:
    where = np.arange(30) < right
    cell = estimate_cell(proportion(where))
    shows(cell.text, 100 * right / 30)
    for text, end in zip(cell.span.split(" to "), wilson_of(right, 30), strict=True):
        shows(text, 100 * end)
    values = np.random.default_rng(right).normal(size=9)
    cell = estimate_cell(mean(values), 1000, 2)
    error = (sum((values - sum(values) / 9) ** 2) / 8 / 9) ** 0.5
    shows(cell.text, 1000 * sum(values) / 9, digits=2)
    for text, side in zip(cell.span.split(" to "), (-1, 1), strict=True):
        shows(text, 1000 * (sum(values) / 9 + side * z_of(ALPHA) * error), digits=2)
    assert tuple(estimate_cell(mean(values[:1]))) == ("–", "")


@pytest.mark.parametrize(("admitted", "closed"), [([False, False], True), ([True, False], True), ([True, True], False)])
def test_fawa_is_tested_where_it_averages(admitted: list[bool], closed: bool) -> None:
    """With at most one admitted epoch, its average is a plain EMA or the weights of that epoch."""
    run = cast("Run", SimpleNamespace(events=[{"event": "fawa", "admitted": epoch} for epoch in admitted]))
    plain = cast("Run", SimpleNamespace(events=[]))
    evaluated = Evaluated({"AT + FAWA": run, "AT": plain}, {})
    assert evaluated.closed(["AT + FAWA", "AT"]) == (["AT + FAWA"] if closed else [])
