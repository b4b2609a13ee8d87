"""Guards that compare attacks: black boxes with gradients, one step with many, and losses with their classes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.gradient.apgd import APGDDLR, APGDT
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.guards.budget import GUARDS
from classwise.auditing.guards.evidence import Evidence
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.guards.significance import significant_class

from .test_guards import ConstantLoss, Ratio, names_of, run, table


@pytest.mark.parametrize(
    ("white", "black", "expected"),
    [
        ({0: 50}, {0: 50}, None),
        ({0: 50}, {0: 52}, None),  # 0.2 % of 1,000 images, not more
        ({0: 50}, {0: 51, 1: 1, 2: 1}, ""),  # 0.3 %, in no class beyond chance
        ({0: 50}, {1: 50}, "50.0 % of 'class 1'"),  # the same number of other images: class 1 is masked
        ({0: 50}, {0: 30, 1: 9}, "9.0 % of 'class 1'"),  # 10 * 2^-8 = 0.039
        ({0: 50}, {0: 30, 1: 8}, None),  # 10 * 2^-7 = 0.078
    ],
)
def test_black_boxes_are_compared_overall_and_by_class(
    white: dict[int, int], black: dict[int, int], expected: str | None
) -> None:
    """In one class b images to none have the p-value 2^(1-b), which Holm multiplies by the ten classes."""
    found = GUARDS["black-box-stronger"](Evidence(table(10, 100, white=white, black=black)))
    assert (found is None) is (expected is None)
    if isinstance(found, AuditWarning) and expected is not None:
        assert expected in found.sentence
        assert ("of 'class" in found.sentence) is bool(expected)


@pytest.mark.slow
def test_in_a_cascade_only_images_that_an_attack_ran_on_are_compared() -> None:
    """After a successful search no gradient-based attack runs; in the other order the search has an excess."""
    for order, warned in (
        (["square:steps=100", "pgd:steps=5"], False),
        ([ConstantLoss(steps=3), "square:steps=100"], True),
    ):
        result = run(attacks=order, cascade=True, threat="Linf:0.05")
        assert ("black-box-stronger" in {warning.name for warning in result.warnings}) is warned


def test_one_step_is_compared_with_many_in_the_outcomes() -> None:
    attacks = {"fgsm": FGSM(), "pgd": PGD(steps=20)}
    equal = Evidence(table(10, 100, fgsm={0: 20}, pgd={0: 50}), attacks)
    masked = Evidence(table(10, 100, fgsm={0: 20, 4: 15}, pgd={0: 50}), attacks)
    assert GUARDS["single-step"](equal) is None
    found = GUARDS["single-step"](masked)
    assert isinstance(found, AuditWarning)
    assert "15.0 % of 'class 4'" in found.sentence


@pytest.mark.parametrize(("late", "expected"), [({}, None), ({3: 5}, None), ({3: 13}, "13.0 % of 'class 3'")])
def test_a_class_may_need_more_steps_than_others(late: dict[int, int], expected: str | None) -> None:
    """With 100 images and a rate of 5 %, 13 or more have the probability 0.0015, below 0.05 / 10; 5 have 0.56."""
    found = GUARDS["not-converged"](Evidence(table(10, 100, pgd=late), {"pgd": PGD(steps=12)}))
    sentence = found.sentence if isinstance(found, AuditWarning) else ""
    assert (expected in sentence) if expected else found is None


def test_significant_classes_agree_with_scipy() -> None:
    images = np.array([13, 13, 0, 40])
    for hits in ([0, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 5], [0, 3, 0, 6], [13, 13, 0, 40]):
        tails = stats.binom.sf(np.array(hits) - 1, images, 0.03)
        expected = int(np.nanargmin(tails)) if np.nanmin(tails) < 0.05 / 3 else None
        assert significant_class(np.array(hits), images, 0.03) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "least"),
    [(Ratio(steps=3), 3), (APGDDLR(), 3), (APGDT(), 4), (PGD(steps=3, objective="dlr"), 3), (PGD(steps=3), 2)],
)
def test_the_ratio_of_logits_needs_three_classes_and_four_if_targeted(attack: Attack, least: int) -> None:
    for classes in (2, 3, 4):
        found = GUARDS["few-classes"](Evidence(table(classes, 5, a={}), {"a": attack}))
        assert (found is not None) is (classes < least)
        assert not isinstance(found, AuditWarning) or f"needs {least} classes and there are {classes}" in found.sentence


@pytest.mark.slow
def test_a_suite_with_a_black_box_is_not_probed_for_one() -> None:
    assert "no-black-box" not in names_of(attacks=[ConstantLoss(steps=3), "square:steps=100"], threat="Linf:0.05")


def test_without_square_there_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: path for name, path in ATTACKS.items() if name != "square"}
    monkeypatch.setattr(ATTACKS, "_entries", others)
    monkeypatch.setattr(ATTACKS, "_own", others)  # deleting the entry would restore it in another position
    assert "no-black-box" not in names_of(attacks=[ConstantLoss(steps=3)], threat="Linf:0.05")
