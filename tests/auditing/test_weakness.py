"""The facts about a class that fails, against counts by hand, and what they are read from."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import classwise as cw
from classwise.auditing.curve.result import Curve
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import Failure, HalfRadius, Part, SmallMargins
from classwise.core.errors import IncompleteError
from tests.auditing import toys
from tests.refusals import check_refused

NAMES = ("bolt", "nut", "washer")
LABELS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
CLEAN = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]
PGD = [0, 0, 0, 1, 1, 1, 2, 1, 1, 1, 1, 2, 0]
MARGINS = [5.0, 4.0, 6.0, -1.0, 3.0, 8.0, 7.0, 9.0, 2.0, 6.5, 1.0, 0.5, -2.0]


def outcomes_of(pgd: list[int] = PGD, **columns: list[float]) -> Outcomes:
    """A table with clean margins, and columns of the rows of the attack."""
    outcomes = Outcomes.from_predictions(
        LABELS, CLEAN, {"pgd": pgd}, NAMES, threat="Linf:0.1", norm="Linf", data="screws"
    )
    frame = outcomes.frame.copy()
    frame.loc[frame["attack"] == "clean", "margin"] = MARGINS
    for name, values in columns.items():
        frame.loc[frame["attack"] == "pgd", name] = values
    return Outcomes(frame, outcomes.meta)


def test_the_weakest_class_is_described() -> None:
    found = cw.weakness(Audit(outcomes_of()))
    assert (found.kind, found.name, found.label, found.classes, found.tied, found.attacked) == (
        "class", "washer", 2, 3, (), True,
    )  # fmt: skip
    assert found.failures == Part(4, 5)
    assert found.predicted == (("nut", 3), ("bolt", 1))
    assert found.clean_errors == Part(1, 4)
    # The correct images have the margins 5, 4, 6, 3, 8, 7, 9, 2, 6.5, 1 and 0.5, whose lower quartile is 2.5.
    assert found.small_margins == SmallMargins(Part(3, 4), Part(3, 11), 2.5)
    assert found.clearest == (Failure(9, 6.5, "nut"), Failure(8, 2.0, "nut"), Failure(10, 1.0, "nut"))
    assert (found.training, found.half_radius) == (None, None)


def test_the_clearest_failures_have_the_names_of_their_files() -> None:
    outcomes = outcomes_of()
    names = [f"screws/{index}.png" for index in outcomes.frame["index"]]
    named = Outcomes(outcomes.frame.assign(name=names), outcomes.meta)
    found = cw.weakness(Audit(named))
    assert [failure.image_name for failure in found.clearest] == ["screws/9.png", "screws/8.png", "screws/10.png"]
    assert "  image 9 (screws/9.png), clean margin 6.50, misclassified as nut" in str(found).splitlines()


def test_any_class_can_be_described() -> None:
    found = cw.weakness(Audit(outcomes_of()), "bolt")
    assert (found.name, found.failures, found.clean_errors, found.clearest) == ("bolt", Part(1, 4), Part(1, 1), ())
    assert found.predicted == (("nut", 1),)
    audit = Audit(outcomes_of())
    check_refused("^unknown class 'screw'; known: bolt, nut, washer$", cw.weakness, audit, "screw")
    groups = Audit(outcomes_of().add_groups("light", [0] * 7 + [1] * 6, ["dim", "bright"]), group="light")
    assert cw.weakness(groups).name == "bright"
    check_refused("^unknown light 'washer'; known: bright, dim$", cw.weakness, groups, "washer")


def test_a_class_without_images_is_refused() -> None:
    outcomes = Outcomes.from_predictions([0, 0, 2], [0, 0, 2], {"pgd": [0, 2, 2]}, NAMES)
    check_refused("^class 'nut' has no images in the audit; choose another$", cw.weakness, Audit(outcomes), "nut")


def test_ties_are_named_for_the_first_class_only() -> None:
    outcomes = Outcomes.from_predictions([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], {"pgd": [0, 0, 1, 2, 2, 0]}, NAMES)
    first = cw.weakness(Audit(outcomes))
    assert (first.name, first.tied) == ("nut", ("nut", "washer"))
    assert cw.weakness(Audit(outcomes), "washer").tied == ()


def test_without_an_attack_or_margins_nothing_is_claimed_of_them() -> None:
    clean = cw.weakness(Audit(Outcomes.from_predictions(LABELS, CLEAN, None, NAMES)))
    assert (clean.attacked, clean.clean_errors, clean.small_margins, clean.clearest) == (False, None, None, ())
    assert (clean.name, clean.failures) == ("bolt", Part(1, 4))
    plain = cw.weakness(Audit(Outcomes.from_predictions(LABELS, CLEAN, {"pgd": PGD}, NAMES)))
    assert (plain.clean_errors, plain.small_margins, plain.clearest) == (Part(1, 4), None, ())


def test_a_failure_without_a_prediction_is_counted_apart() -> None:
    outcomes = outcomes_of()
    frame = outcomes.frame.copy()
    lost = (frame["attack"] == "pgd") & (frame["index"] == 9)
    frame.loc[lost, "prediction"] = pd.NA
    frame.loc[lost, "status"] = "nan"
    found = cw.weakness(Audit(Outcomes(frame, outcomes.meta)))
    assert found.failures == Part(4, 5)
    assert found.predicted == (("nut", 2), ("bolt", 1))
    assert found.clearest[0] == Failure(9, 6.5, None)


@pytest.mark.parametrize(
    ("pgd", "distances", "expected"),
    [
        (PGD, [math.inf] * 8 + [0.05, 0.02, 0.04, 0.09, math.nan], 0.04),  # the median of 0 (clean error), ..., 0.09
        (PGD, [math.inf] * 8 + [0.05, 0.02, math.inf, math.inf, math.inf], 0.05),
        (PGD, [math.inf] * 8 + [0.05, math.inf, math.inf, math.inf, math.inf], None),
    ],
)
def test_half_of_a_class_fails_within_the_median_of_recorded_distances(
    pgd: list[int], distances: list[float], expected: float | None
) -> None:
    found = cw.weakness(Audit(outcomes_of(pgd, minimal_distance=distances))).half_radius
    assert found == (None if expected is None else HalfRadius(expected, "Linf", "pgd"))


def test_images_that_an_earlier_attack_of_a_cascade_broke_are_not_the_most_robust() -> None:
    """Half of a class fails within the radius of the audit if and only if half of its images do."""
    attacks, data = ["pgd:steps=10", "fab:steps=10"], toys.images(90)
    found = cw.audit(toys.model(), data, "Linf:0.055", attacks, cascade=True, guards="off")
    correct, seen = found.outcomes.counts("all"), set()
    for label, name in enumerate(found.outcomes.class_names):
        half, images = cw.weakness(found, name).half_radius, int(correct.count[label])
        fails = images - int(correct.correct[label]) > (images - 1) // 2
        assert (half is not None and half.radius <= 0.055 + 1e-6) == fails
        seen.add(fails)
    assert seen == {True, False}


def curve_of(outcomes: Outcomes, **changes: Any) -> Curve:
    high = np.linspace(0.01, 0.13, len(LABELS))
    frame = pd.DataFrame({"index": range(len(LABELS)), "label": LABELS, "low": high / 2, "high": high})
    frame = frame.assign(first_success="pgd", probes=3, forwards=9, backwards=9)
    return Curve(frame, dataclasses.replace(outcomes.meta, **changes), 0.2, 4, "radii")


def test_a_curve_of_the_same_images_has_the_radius() -> None:
    outcomes = outcomes_of()
    found = cw.weakness(Audit(outcomes), curve=curve_of(outcomes)).half_radius
    assert found is not None
    assert found.radius == pytest.approx(0.11)
    assert found[1:] == ("Linf", "curve radii")
    high = curve_of(outcomes)
    beyond = dataclasses.replace(high, frame=high.frame.assign(low=0.2, high=math.inf))
    weak = cw.weakness(Audit(outcomes), curve=beyond)
    assert (weak.half_radius, weak.too_short) == (None, "radii")
    for changes in ({"data_hash": "ab"}, {"model_hash": "cd"}, {"norm": "L2"}):
        check_refused(
            f"^curve: its {next(iter(changes))} is .*; give another curve$",
            cw.weakness, Audit(outcomes), curve=curve_of(outcomes, **changes),
        )  # fmt: skip


def test_an_incomplete_audit_is_refused() -> None:
    outcomes = outcomes_of()
    partial = Outcomes(outcomes.frame.iloc[:-2], dataclasses.replace(outcomes.meta, images=len(LABELS)))
    with pytest.raises(IncompleteError):
        cw.weakness(Audit(partial))


@pytest.mark.slow
def test_a_run_has_the_training_images_and_its_curves(tmp_path: Path) -> None:
    small = {"data.subset": 80, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
    attack = {"attack": "pgd:steps=1", "validation_attack": "pgd:steps=1"}
    run = cw.train("at", data="digits", out=tmp_path / "run", overrides=small | attack, epochs=1)
    data = cw.load_data("digits", split="test", subset=40)
    audit = cw.audit(str(run.path), data, "Linf:0.1", "pgd:steps=1", out=run.audits / "mine")
    found = cw.weakness(audit)
    counts = run.data["counts"]["train"]
    assert found.training == Part(counts[found.label], sum(counts))
    assert found.training_classes == 10
    assert found.half_radius is None
    model = run.model()
    cw.robustness_curve(str(run.path), data, attacks="fgsm", highest=0.4, rounds=2, out=run.path / "curves" / "radii")
    again = cw.weakness(run.audits / "mine").half_radius
    assert again is None or again.source == "curve radii"
    other = cw.robustness_curve(model, data, attacks="fgsm", highest=0.4, rounds=2)
    median = other.summary["median"][found.name]
    assert (again is None) == math.isinf(median)
    assert again is None or again.radius == median
