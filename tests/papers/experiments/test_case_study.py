"""Case study of class 3: its claims on the printed counts, whose differences are printed in the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classwise.analysis.homing import Homing
from classwise.auditing.outcomes import Outcomes
from classwise.papers import catalogue
from classwise.papers.claims import evaluate
from classwise.papers.context import Context
from classwise.papers.experiments import coloured_background
from classwise.papers.experiments.case_study import ATTACK, TAKER, VICTIM, accuracies, contrast
from classwise.papers.experiments.homing import GROUPS, class_pairs
from classwise.papers.experiments.white_background import PRINTED, claims, count_rows, predictions, repaired
from classwise.papers.store import Store
from classwise.reporting.svg import Image
from classwise.stats.counts import IntArray

NAMES = tuple("abcdef")


def printed() -> dict[tuple[str, str], IntArray]:
    """Predictions on 1,000 images with the printed counts, in an arbitrary order of images."""
    rows = {row["line"]: row["predicted_as_class"] for row in catalogue.printed_rows("kdd21/T4")}
    return {key: np.repeat(np.arange(10), rows[line]) for key, line in PRINTED.items()}


def tables(right: list[bool], clean: list[bool]) -> Outcomes:
    """Outcomes of one class with given correctness under the attack and clean."""
    labels = np.full(len(right), VICTIM)
    attacked, natural = (np.where(each, VICTIM, TAKER) for each in (right, clean))
    return Outcomes.from_predictions(labels, natural, {ATTACK: attacked}, NAMES)


def test_claims_of_the_printed_counts() -> None:
    """In points of 1,000 images: 262 to 403 and 435; 710 to 742 and 758; class 5 254 to 136 and 84."""
    white, adjusted, taken = claims(printed())
    values = [[part(0.05).value for part in test.estimators] for test in (white, adjusted, taken)]
    assert values[0] == pytest.approx([14.1, 3.2])
    assert values[1] == pytest.approx([3.2, 1.6])
    assert values[2] == pytest.approx([14.1, 11.8 - 14.1 / 2, 17.3, 17.0 - 17.3 / 2])
    assert all(part(0.05).low < part(0.05).value < part(0.05).high for part in white.estimators)
    answers = {one.claim: one.answer for one in evaluate([white, adjusted, taken])}
    assert answers["kdd21/C26"] == "supported"


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


def test_contrast_of_two_samples() -> None:
    first, second = np.array([0.9, 0.7, 0.8, 0.6]), np.array([0.1, 0.5, 0.3])
    value, low, high = contrast(first, second)
    assert value == pytest.approx(0.45)
    reach = 1.959964 * np.sqrt(first.var(ddof=1) / 4 + second.var(ddof=1) / 3)
    assert [low, high] == pytest.approx([0.45 - reach, 0.45 + reach])


def test_both_matrices_cover_all_images_of_a_class() -> None:
    """The diagonal contains the rest of a class, so that shares refer to all its images."""
    matrix = np.array([[6, 3, 1], [2, 8, 0], [5, 0, 5]])
    homing = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 0]])
    both = class_pairs(Homing(("a", "b", "c"), matrix, homing, (None,) * 3), (0, 0, 1))
    for one in both.values():
        assert one.matrix.sum(axis=1).tolist() == [10, 10, 10]
    assert both["Misclassified"].errors.tolist() == [[0, 3, 1], [2, 0, 0], [5, 0, 0]]
    assert both["Homing"].errors.tolist() == homing.tolist()
    assert both["Homing"].lead(0, 1).value == pytest.approx(0.2)
    assert GROUPS == ((3, 5), (1, 9), (0, 8))


def test_the_class_of_the_case_study_is_the_cat() -> None:
    names = catalogue.facts("kdd21")["conventions"]["cifar10_classes"]
    assert (names[VICTIM], names[TAKER]) == ("cat", "dog")


def test_changes_of_accuracy_in_both_directions() -> None:
    accuracy = np.array([[[0.5, 0.7], [0.6, 0.9]], [[0.5, 0.7], [0.4, 0.5]]])
    assert coloured_background._change(accuracy) == pytest.approx([0.15, -0.15])


def test_the_figure_has_each_class_once_on_its_background(tmp_path: Path) -> None:
    context = Context(coloured_background.DigitsFigure.scales["smoke"], Store(tmp_path / "store"))
    found = coloured_background.DigitsFigure().run(context)
    ((drawing, _),) = found.figures
    pictures = [mark.pixels for mark in drawing.marks if isinstance(mark, Image)]
    assert len(pictures) == 10
    corners = np.stack([picture[:, 0, 0] for picture in pictures])  # the first pixel of a digit is nearly black
    assert (corners[:5, 0] > 0.9).all()
    assert (corners[5:, 2] > 0.9).all()
    assert [row.cells[0].text for row in found.tables[0].rows] == ["0, 2, 3, 6, 8", "1, 4, 5, 7, 9"]
    assert context.trainings == {}
