"""Case study of class 3: its claims on the printed counts, whose differences are printed in the paper."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from classwise.analysis.homing import Homing
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.images import Images
from classwise.data.masks import GrabCut
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.claims import evaluate
from classwise.papers.experiment import Context, recipe_at
from classwise.papers.experiments import case_study
from classwise.papers.experiments.case_study import (
    ATTACK,
    OPENCV,
    OWN,
    PRINTED,
    TAKER,
    VICTIM,
    accuracies,
    claims,
    class_pairs,
    contrast,
    count_rows,
    object_masks,
    predictions,
    repaired,
    trades_with_beta,
)
from classwise.papers.experiments.case_study import NAMED_PAIRS as GROUPS
from classwise.papers.experiments.protocol import SCALES
from classwise.papers.store import Store
from classwise.reporting.svg import Image
from classwise.reporting.tables import Cell
from classwise.stats.counts import IntArray

NAMES = tuple("abcdef")


def printed() -> dict[tuple[str, str], IntArray]:
    """Predictions on 1,000 images with the printed counts, in an arbitrary order of images."""
    rows = {row["line"]: row["predicted_as_class"] for row in catalogue.printed_rows("kdd21/T4")}
    return {key: np.repeat(np.arange(10), rows[line]) for key, line in PRINTED.items()}


def tables(right: list[bool], clean: list[bool]) -> Outcomes:
    """Outcomes of one class with given correctness under the attack and clean."""
    labels = np.full(len(right), VICTIM)
    attacked, natural = (np.where(correct, VICTIM, TAKER) for correct in (right, clean))
    return Outcomes.from_predictions(labels, natural, {ATTACK: attacked}, NAMES)


def test_claims_of_the_printed_counts() -> None:
    """In points of 1,000 images: 262 to 403 and 435; 710 to 742 and 758; class 5 254 to 136 and 84."""
    white, strongly, adjusted, taken = claims(printed())
    values = [[part(0.05).value for part in test.estimators] for test in (white, adjusted, taken, strongly)]
    assert values[0] == pytest.approx([14.1, 3.2])
    assert values[1] == pytest.approx([3.2, 1.6])
    assert values[2] == pytest.approx([14.1, 11.8 - 14.1 / 2, 17.3, 17.0 - 17.3 / 2])
    assert values[3] == pytest.approx([14.1 - 7, 7 - 3.2])
    assert all(part(0.05).low < part(0.05).value < part(0.05).high for part in white.estimators)
    verdicts = evaluate([white, strongly, adjusted, taken])
    assert [verdict.answer for verdict in verdicts if verdict.claim == "kdd21/C26"] == ["supported"] * 2


def test_rows_precede_the_printed_ones() -> None:
    rows = count_rows(printed(), 10, printed=True)
    assert len(rows) == 12
    for measured, reference in zip(rows[::2], rows[1::2], strict=True):
        assert reference.name == f"{measured.name}, printed"
        assert measured.cells == reference.cells
    assert len(count_rows(printed(), 10, printed=False)) == 6


def test_repaired_images_are_correct_when_clean() -> None:
    before = tables([False, False, False, True, False], [True, True, False, True, True])
    after = tables([True, False, True, True, True], [True, True, True, True, False])
    assert repaired(before, after).tolist() == [True, False, False, False, False]
    assert predictions(before, ATTACK).tolist() == [TAKER, TAKER, TAKER, VICTIM, TAKER]


def test_accuracies_over_beta() -> None:
    labels = np.array([0, 0, 1, 1, 1, 1])
    found = {
        beta: Outcomes.from_predictions(labels, None, {ATTACK: predicted}, ["a", "b"])
        for beta, predicted in ((6.0, [0, 1, 1, 1, 1, 0]), (0.5, [0, 0, 0, 0, 0, 0]))
    }
    frame = accuracies(found)
    assert list(frame.index) == [0.5, 6.0]
    assert frame.to_numpy() == pytest.approx(np.array([[1, 0, 1 / 3], [0.5, 0.75, 4 / 6]]))


def plain_text(cell: Cell) -> str:
    return cell.text.replace("\N{NO-BREAK SPACE}", " ")


def blobs() -> Images:
    """Bright squares on a dark background."""
    pixels = torch.full((3, 3, 16, 16), 20, dtype=torch.uint8)
    pixels[:, :, 5:11, 4:12] = 220
    return Images(pixels, torch.zeros(3, dtype=torch.int64))


def test_masks_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_study, "has_opencv", lambda: False)
    found = object_masks(blobs())
    assert found.masks[:, 5:11, 4:12].all()
    assert found.masks.sum() == 3 * 6 * 8
    assert found.method == OWN
    assert "OpenCV, whose GrabCut is used if available, is not installed." in found.note
    (row,) = found.table().rows
    assert [plain_text(cell) for cell in row.cells] == ["18.8 %", "0.0 %", "0.0 %", "–", "–"]


def test_masks_of_opencv_are_used_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 48 object pixels of each mask, OpenCV's has the first row alone: here a stand-in for it."""

    class First:
        inset = 2

        def __init__(self, inset: int) -> None:
            assert inset == GrabCut().inset

        def __call__(self, images: Images) -> torch.Tensor:
            masks = torch.zeros(len(images), 16, 16, dtype=torch.bool)
            masks[:, 5, 4:12] = True
            return masks

    monkeypatch.setattr(case_study, "has_opencv", lambda: True)
    monkeypatch.setattr(case_study, "OpenCVGrabCut", First)
    found = object_masks(blobs())
    assert found.method == OPENCV
    assert found.masks.sum() == 3 * 8
    rows = {row.name: [plain_text(cell) for cell in row.cells] for row in found.table().rows}
    assert rows == {
        OPENCV: ["3.1 %", "100.0 %", "0.0 %", "0.17", "84.4 %"],
        OWN: ["18.8 %", "0.0 %", "0.0 %", "0.17", "84.4 %"],
    }
    assert (
        f"Agreement with {OWN}: mean intersection over union 0.17, 84.4\N{NO-BREAK SPACE}% of the pixels." in found.note
    )


def test_only_the_beta_of_one_class_differs() -> None:
    plain, lowered = (
        recipe_at(SCALES["full"], training) for training in trades_with_beta(SCALES["full"], 6.0, 0.5).values()
    )
    assert plain.schedules == ()
    assert lowered.schedules == ({"name": "vector-beta", "beta": {"5": 0.5}},)
    assert dataclasses.replace(lowered, schedules=()).digest() == plain.digest()


def test_contrast_of_two_samples() -> None:
    first, second = np.array([0.9, 0.7, 0.8, 0.6]), np.array([0.1, 0.5, 0.3])
    value, low, high = contrast(first, second)
    assert value == pytest.approx(0.45)
    assert -1 < low < 0 < 0.45 < high < 1  # few values
    value, low, high = contrast(np.tile(first, 2500), np.tile(second, 2500))
    reach = 1.959964 * np.sqrt(first.var() / 10_000 + second.var() / 7_500)
    assert [low, high] == pytest.approx([0.45 - reach, 0.45 + reach], abs=1e-3)


def test_both_matrices_cover_all_images_of_a_class() -> None:
    """The diagonal contains the rest of a class, so that shares refer to all its images."""
    matrix = np.array([[6, 3, 1], [2, 8, 0], [5, 0, 5]])
    homing = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 0]])
    both = class_pairs(Homing(("a", "b", "c"), matrix, homing, (None,) * 3), (0, 0, 1))
    for pairs in both.values():
        assert pairs.matrix.sum(axis=1).tolist() == [10, 10, 10]
    assert both["Misclassified"].errors.tolist() == [[0, 3, 1], [2, 0, 0], [5, 0, 0]]
    assert both["Homing"].errors.tolist() == homing.tolist()
    assert both["Homing"].lead(0, 1).value == pytest.approx(0.2)
    assert GROUPS == ((3, 5), (1, 9), (0, 8))


def test_the_class_of_the_case_study_is_the_cat() -> None:
    names = catalogue.paper("kdd21").conventions["cifar10_classes"]
    assert (names[VICTIM], names[TAKER]) == ("cat", "dog")


def test_changes_of_accuracy_in_both_directions() -> None:
    accuracy = np.array([[[0.5, 0.7], [0.6, 0.9]], [[0.5, 0.7], [0.4, 0.5]]])
    assert case_study._change(accuracy) == pytest.approx([0.15, -0.15])


def test_the_figure_has_each_class_once_on_its_background(tmp_path: Path) -> None:
    context = Context(case_study.DigitsFigure.scales["smoke"], Store(tmp_path / "store"))
    found = case_study.DigitsFigure(item="kdd21/F5a").run(context)
    ((drawing, _),) = found.figures
    pictures = [mark.pixels for mark in drawing.marks if isinstance(mark, Image)]
    assert len(pictures) == 10
    corners = np.stack([picture[:, 0, 0] for picture in pictures])  # the first pixel of a digit is nearly black
    assert (corners[:5, 0] > 0.9).all()
    assert (corners[5:, 2] > 0.9).all()
    assert [row.cells[0].text for row in found.tables[0].rows] == ["0, 2, 3, 6, 8", "1, 4, 5, 7, 9"]
    assert context.requests.trainings == {}


def test_coloured_digits_are_also_attacked_at_the_radius_of_the_paper(tmp_path: Path) -> None:
    """Beside that of the scale, without a verdict; at small scale, which has another radius, they are not."""
    one = experiment("kdd21/F5bc")
    threats = {
        name: [recipe_at(scale, training).threat for training in one.trainings(scale).values()]
        for name, scale in one.scales.items()
    }
    assert threats["full"] == threats["medium"] == ["Linf:0.3", "Linf:0.5"]
    assert threats["small"] == ["Linf:0.2"]
    context = Context(one.scales["smoke"], Store(tmp_path / "store"))
    found = one.run(context)
    (table,) = found.tables
    assert [row.name for row in table.rows] == ["clean", "PGD", "clean, paper's radius", "PGD, paper's radius"]
    assert len(found.figures) == 4
    assert context.requests.attacks == {"pgd in Linf:0.1", "pgd in Linf:0.5"}
    own = {part(0.05).value for test in found.tests for part in test.estimators}
    attacked = float(table.rows[1].cells[-1].text)
    assert any(value == pytest.approx(attacked, abs=0.05) for value in own)
    assert not any("tested by" in str(cell.span) for row in table.rows[2:] for cell in row.cells)
