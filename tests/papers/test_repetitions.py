"""Several trainings of each model: seeds, combined tests, tables and measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from classwise.papers.catalogue import paper, papers
from classwise.papers.claims import Measurement, Test
from classwise.papers.experiment import Findings, Training, recipe_at
from classwise.papers.interval_estimators import exactly, interval, over_trainings
from classwise.papers.runner import TRAININGS, combine, for_data, run
from classwise.papers.scales import SMALL, SMOKE, on_data_set
from classwise.reporting.tables import Row, Table
from classwise.stats.intervals import Estimate

VALUES = (2.0, 3.0, 4.0)
REACH = 0.5


def findings(value: float, estimand: str = "gain") -> Findings:
    around = interval(Estimate(value, value - REACH, value + REACH))
    return Findings(
        tables=(Table("Accuracy", ("model", "value"), [Row("AT", [])]),),
        tests=[
            Test(claim="cfa23/C11", estimand=estimand, estimators=[around]),
            Test(claim="kdd21/C9", estimand="printed", estimators=[exactly(1)], exact=True, basis="printed numbers"),
        ],
        measurements=[Measurement.of("benz20/C10", "correlation", Estimate(value, value - REACH, value + REACH))],
    )


def test_estimates_over_trainings_by_hand() -> None:
    """Student's interval of three values, widened by the error of the images that they share."""
    combined = combine([findings(value) for value in VALUES])
    gain, printed = combined.tests
    estimate = gain.estimators[0](0.05)
    between = stats.t.ppf(0.975, 2) * np.std(VALUES, ddof=1) / np.sqrt(3)
    assert estimate.value == pytest.approx(3)
    assert estimate.high - estimate.value == pytest.approx(np.hypot(between, REACH))
    assert estimate.value - estimate.low == pytest.approx(np.hypot(between, REACH))
    assert gain.trainings == 3
    assert (printed.trainings, printed.exact) == (1, True)
    (measured,) = combined.measurements
    assert measured.value == pytest.approx(3)
    assert measured.population == TRAININGS
    assert measured.high == pytest.approx(estimate.high)
    assert [table.caption for table in combined.tables] == [f"Accuracy, training {place} of 3" for place in (1, 2, 3)]


def test_a_test_that_one_training_does_not_have_is_not_tested() -> None:
    printed, gain = combine([findings(2), findings(3, "another gain")]).tests
    assert (printed.claim, gain.claim, len(gain.estimators)) == ("kdd21/C9", "cfa23/C11", 0)
    assert gain.note == "another gain: tested in 1 of 2 trainings only"


def test_claims_about_classes_of_cifar10_on_other_data() -> None:
    """They are not tested, each once and after the other tests; on CIFAR-10 they are."""
    gain, other = findings(2).tests
    tests = [replace(gain, cifar10=True), replace(gain, cifar10=True, estimand="another gain"), other]
    assert for_data("cifar10", tests) == tests
    tested, untested = for_data("digits", tests)
    assert (tested, untested.claim, untested.estimators) == (other, "cfa23/C11", ())
    assert untested.note == "the claim names classes of CIFAR-10; this scale uses digits"


def test_coverage_over_trainings_and_images() -> None:
    """Three trainings with their own deviations, on the same images: at least 95 % of 2,000 intervals cover."""
    rng = np.random.default_rng(0)
    count, images, spread = 2000, 200, 0.04
    covered = 0
    for _ in range(count):
        shares = np.clip(rng.normal(0.5, spread, size=3), 0, 1)
        difficulty = rng.random(images)  # common to the trainings
        means = [(difficulty < share).mean() for share in shares]
        error = 1.96 * np.sqrt(0.25 / images)
        low, high = over_trainings([interval(Estimate(mean, mean - error, mean + error)) for mean in means])(0.05)[1:]
        covered += low <= 0.5 <= high
    assert covered / count > 0.95


def test_repetitions_have_other_seeds() -> None:
    """On every data set, also where the scale of the data set is another one."""
    for scale in (SMOKE, SMALL):
        for data in (scale.data, "mnist"):
            repeated = [on_data_set(replace(scale, repetition=repetition), data) for repetition in range(3)]
            seeds = [
                recipe_at(repeated_scale, Training(recipe="at", overrides={"seed": seed})).seed
                for repeated_scale in repeated
                for seed in (0, 1)
            ]
            assert len(set(seeds)) == 6
            assert seeds[:2] == [0, 1]


@pytest.mark.parametrize("item", ["benz20/P1.1", "cfa23/F4"])
def test_notes_are_true_of_any_number_of_trainings(item: str, tmp_path: Path) -> None:
    """The evidence states their number, and the intervals cover the variation between several of them."""
    (result,) = run(item, "smoke", tmp_path / "store", trainings=2)
    assert not [verdict.note for verdict in result.verdicts if "one training" in verdict.note]


@pytest.mark.parametrize("name", papers())
def test_no_declared_note_counts_trainings(name: str) -> None:
    declared = [test for one in paper(name).experiments.values() for test in one.get("tests", ())]
    counted = [test["note"] for test in declared if "one training" in test.get("note", "")]
    assert all("printed" in note for note in counted)  # those of the paper


@pytest.mark.slow
def test_a_run_with_two_trainings(tmp_path: Path) -> None:
    (result,) = run("iclr21/F6", "smoke", tmp_path / "store", trainings=2)
    assert result.evidence.trainings == 2
    assert len(result.runs) == 2
    assert {table.caption.rpartition(", ")[2] for table in result.tables} == {"training 1 of 2", "training 2 of 2"}
    assert {verdict.trainings for verdict in result.verdicts if verdict.estimand} <= {2}
