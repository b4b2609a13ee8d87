"""Combine the findings of an experiment over several independent trainings of each of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from classwise.papers.claims import Test
from classwise.papers.experiment import Findings
from classwise.papers.interval_estimators import over_trainings
from classwise.papers.measurements import Measurement
from classwise.reporting.tables import Table
from classwise.stats.intervals import Estimate, student

TRAININGS = "new trainings of the same models and new images of the same classes"
"""Population of intervals over several trainings."""


def combine(repetitions: Sequence[Findings]) -> Findings:
    """Combine the findings of repetitions that differ only in the seeds of their trainings.

    A test of the combination has estimates and intervals over the trainings. A test that some repetition does not
    have, since its trainings did not allow it, is not tested. Tables of every repetition are shown; figures are those
    of the first.

    Args:
        repetitions: findings of the same experiment, at least one.
    """
    first, *others = repetitions
    if not others:
        return first
    tests, missing = _combined_tests(repetitions)
    not_tested = {claim: reason for one in reversed(repetitions) for claim, reason in one.not_tested.items()}
    count = len(repetitions)
    tables = [_numbered(table, place, count) for place, one in enumerate(repetitions, 1) for table in one.tables]
    return Findings(
        tables=tables,
        figures=[(drawing, f"{caption} Training 1 of {count}.") for drawing, caption in first.figures],
        tests=tests,
        not_tested={**missing, **not_tested},
        measurements=_combined_measurements(repetitions),
    )


def _combined_tests(repetitions: Sequence[Findings]) -> tuple[list[Test], dict[str, str]]:
    """Tests that all repetitions have, over the trainings; and the claims of the others with the reason."""
    tests, missing = list[Test](), dict[str, str]()
    by_key = [{_key(test): test for test in one.tests} for one in repetitions]
    for key in dict.fromkeys(key for known in by_key for key in known):
        same = [known[key] for known in by_key if key in known]
        if len(same) < len(repetitions):
            missing[same[0].claim] = f"{same[0].estimand}: tested in {len(same)} of {len(repetitions)} trainings only"
        elif same[0].basis != "experiment":
            tests.append(same[0])
        else:
            parts = [over_trainings(each) for each in zip(*(test.estimators for test in same), strict=True)]
            tests.append(replace(same[0], estimators=parts, exact=False, trainings=len(repetitions)))
    return tests, missing


def _key(test: Test) -> tuple[str, str, tuple[str, ...], int]:
    return test.claim, test.estimand, tuple(test.covers), len(test.estimators)


def _combined_measurements(repetitions: Sequence[Findings]) -> list[Measurement]:
    """Measurements that all repetitions have; intervals include the variation between trainings."""
    found = []
    for one in repetitions[0].measurements:
        same = [
            other
            for each in repetitions
            for other in each.measurements
            if (other.question, other.quantity) == (one.question, one.quantity)
        ]
        if len(same) < len(repetitions):
            continue
        if one.low != one.low:  # NaN: the measurement has no interval for images
            value, low, high = student([each.value for each in same])
        else:
            value, low, high = over_trainings(
                [lambda _, each=each: Estimate(each.value, each.low, each.high) for each in same]  # type: ignore[misc]
            )(0.05)
        found.append(replace(one, value=value, low=low, high=high, population=TRAININGS))
    return found


def _numbered(table: Table, place: int, count: int) -> Table:
    return replace(table, caption=f"{table.caption}, training {place} of {count}")
