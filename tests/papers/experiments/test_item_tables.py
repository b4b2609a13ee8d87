"""Tables of single items, recomputed from raw predictions and counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from classwise.analysis.homing import Homing
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.images import Images
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.experiments import case_study, class_wise
from classwise.papers.experiments.class_wise import DataSetAudits
from classwise.papers.experiments.defences import DropOfDefences
from classwise.papers.experiments.fair_training import Evaluated
from classwise.papers.experiments.protocol import mean, proportion
from classwise.papers.experiments.temperature import _against_first, changes_by_class, targets_reached
from classwise.papers.scales import SMALL
from classwise.papers.tables import estimate_cell
from classwise.training.folder import Run

from ..test_facts import ALPHA, exact_ends, interval_of, shows

NAMES = ("ant", "bee", "cow", "dog")
KINGDOM = (0, 1, 0, 1)
CONTEXT: Any = SimpleNamespace(
    train=lambda name: name,
    scale=SMALL,
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
    symmetry, groups = experiment("kdd21/E2").run(CONTEXT).tables
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
    matrix = (random.integers(1, 9, (4, 4)) + 80 * np.eye(4, dtype=int)) * (1 if errors else np.eye(4, dtype=int))
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
        assert [cell[:2] for cell in cells[3:]] == [("–", "")] * 2
        return
    shows(cells[3].text, 100 * home / errors)
    for text, end in zip(cells[3].span.split(" to "), interval_of(home, errors), strict=True):
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
    for text, end in zip(cell.span.split(" to "), interval_of(right, 30), strict=True):
        shows(text, 100 * end)
    cell = estimate_cell(mean(where.astype(np.float64)), 1000, 2)
    shows(cell.text, 1000 * right / 30, digits=2)
    low, high = exact_ends(np.array([right]), np.array([30]), ALPHA)
    for text, end in zip(cell.span.split(" to "), (low[0], high[0]), strict=True):
        shows(text, 1000 * end, digits=2)


@pytest.mark.parametrize(("admitted", "closed"), [([False, False], True), ([True, False], True), ([True, True], False)])
def test_fawa_is_tested_where_it_averages(admitted: list[bool], closed: bool) -> None:
    """With at most one admitted epoch, its average is a plain EMA or the weights of that epoch."""
    run = cast("Run", SimpleNamespace(events=[{"event": "fawa", "admitted": epoch} for epoch in admitted]))
    plain = cast("Run", SimpleNamespace(events=[]))
    evaluated = Evaluated({"AT + FAWA": run, "AT": plain}, {})
    assert [*evaluated.closed] == (["AT + FAWA"] if closed else [])


def attacked(seed: int, attacks: tuple[str, ...]) -> Outcomes:
    """Random predictions on 40 images of each of four classes."""
    random, labels = np.random.default_rng(seed), np.repeat(np.arange(4), 40)
    predicted = {
        name: np.where(random.random(160) < 0.6, labels, random.integers(0, 4, 160)) for name in ("clean", *attacks)
    }
    return Outcomes.from_predictions(labels, predicted.pop("clean"), predicted, NAMES)


def by_class(table: Outcomes, attack: str) -> Any:
    return np.array([table.correct(attack)[table.labels == label].mean() for label in range(4)])


def test_measured_changes_are_above_the_printed_ones() -> None:
    """Recomputed from the predictions: total, classes, MCD and unbiased CV, for the printed temperatures alone."""
    tables = {name: attacked(seed, ("PGD", "2", "5", "50")) for seed, name in enumerate(("Madry", "HE"))}
    printed = [
        {"defence": name, "inv_T": inverse, "d_tot": -1.5, "d_per_class": [-1, 2.25, 0, 3], "d_mcd": 4, "d_cv": -5}
        for name, inverse in (("Madry", 2), ("HE", 5), ("HE", 50))
    ]
    found = changes_by_class(tables, printed)
    assert found.heads == ("defence", "total", *NAMES, "MCD", "CV, %²")
    names = ["Madry, 1/T = 2", "HE, 1/T = 5", "HE, 1/T = 50"]
    assert [row.name for row in found.rows] == [text for name in names for text in (name, f"{name}, printed")]
    assert [cell.text for cell in found.rows[1].cells] == ["-1.5", "-1", "+2.25", "+0", "+3", "+4", "-5"]
    for row, (name, attack) in zip(found.rows[::2], (("Madry", "2"), ("HE", "5"), ("HE", "50")), strict=True):
        new, old = by_class(tables[name], attack), by_class(tables[name], "PGD")
        cv = [a.var() - 0.75 * (a * (1 - a) / 39).mean() for a in (new, old)]
        expected = [100 * (new - old).mean(), *(100 * (new - old)), 100 * (np.ptp(new) - np.ptp(old))]
        shown = [float(cell.text) for cell in row.cells]
        assert shown == pytest.approx([*expected, 1e4 * (cv[0] - cv[1])], abs=0.051)
    without = changes_by_class(
        tables, [{key: row[key] for key in row if key not in ("d_mcd", "d_cv")} for row in printed]
    )
    assert without.heads == ("defence", "total", *NAMES)


def test_classes_against_the_first_model() -> None:
    tables = {name: attacked(seed, ("PGD",)) for seed, name in enumerate(("Madry", "HE", "HE, margin 0.2"))}
    printed = [
        {"defence": "Madry", "nat": 84.0, "adv": 51.7, "per_class": [57.6, 74.9, 37.6, 22.1]},
        {"defence": "HE", "nat": 83.1, "adv": 60.7, "d_per_class": [7.2, -2.1, 3.2, 12.2]},
    ]
    table = _against_first(tables, printed, "PGD-7", same_classes=True)
    assert table.heads[:3] == ("model", "natural", "PGD-7")
    rows = {row.name: [cell.text for cell in row.cells] for row in table.rows}
    assert list(rows) == ["Madry", "Madry, printed", "HE", "HE, printed", "HE, margin 0.2"]
    assert rows["HE, printed"] == ["83.1", "60.7", "+7.2", "-2.1", "+3.2", "+12.2"]
    other_classes = _against_first(tables, printed, "PGD-7", same_classes=False)
    (row,) = (row for row in other_classes.rows if row.name == "HE, printed")
    assert [cell.text for cell in row.cells] == ["83.1", "60.7", *["–"] * 4]
    plain = 100 * by_class(tables["Madry"], "PGD")
    assert [float(text) for text in rows["Madry"][2:]] == pytest.approx(plain, abs=0.051)
    for name in ("HE", "HE, margin 0.2"):
        assert all(text[0] in "+-" for text in rows[name][2:])
        change = 100 * by_class(tables[name], "PGD") - plain
        assert [float(text) for text in rows[name][2:]] == pytest.approx(change, abs=0.051)


def test_targets_are_the_most_likely_wrong_classes() -> None:
    """A linear model on four pixels: a large radius reaches the second class, a small one does not."""
    pixels = torch.tensor([[0.9, 0.6, 0.1, 0.0], [0.2, 0.1, 0.8, 0.5]])
    images = Images(pixels.reshape(2, 1, 2, 2), torch.tensor([0, 2]), class_names=NAMES)
    linear = nn.Linear(4, 4, bias=False)
    linear.weight = nn.Parameter(torch.eye(4))
    model = nn.Sequential(nn.Flatten(), linear)
    trained: Any = SimpleNamespace(model=lambda: model)
    attacks = {"PGD": {"name": "pgd", "steps": 10}}
    for radius, expected in (("0.5", [True, True]), ("0.01", [False, False])):
        context: Any = SimpleNamespace(test_images=images, device="cpu", scale=SimpleNamespace(threat=f"Linf:{radius}"))
        assert targets_reached(context, trained, attacks)["PGD"].tolist() == expected
