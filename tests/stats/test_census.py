"""Everything with an interval, a p-value or a verdict has an entry in the census, and the coverage that it states."""

from __future__ import annotations

import pytest
from benchmarks.coverage.base import Regime, simulated
from benchmarks.coverage.census import LEAST, PAGE, Entry, functions_with_intervals, measure, missing, page, read
from benchmarks.coverage.entries import CENSUS, NO_INTERVAL

LONG = {"means.drops", "selection.best_is_decided", *(entry.key for entry in CENSUS if "own_metrics" in entry.key)}
"""Simulations that take more than a minute even for one regime; the hostile tests run them."""
FEW = 40
"""Repetitions of a regime in the hostile tests."""


def test_every_function_with_an_interval_has_an_entry() -> None:
    assert missing(CENSUS, NO_INTERVAL) == []


@pytest.mark.slow
def test_a_function_without_an_entry_is_found() -> None:
    names = set(functions_with_intervals())
    assert {"stats.stratified:class_mean", "analysis.drop:drop", "auditing.curve.result:Curve._row"} <= names
    without = [entry for entry in CENSUS if "stats.stratified:class_mean" not in entry.functions]
    assert "stats.stratified:class_mean" in missing(without, NO_INTERVAL)
    unknown = Entry("", ("stats.intervals:gone",), "", "", "", CENSUS[0].simulation)
    assert missing([*CENSUS, unknown], NO_INTERVAL) == ["stats.intervals:gone does not exist"]


def test_the_page_has_the_measured_coverages() -> None:
    found = read()
    assert set(found) == {entry.key for entry in CENSUS}
    assert PAGE.read_text(encoding="utf-8") == page(CENSUS, found).rstrip() + "\n"


@pytest.mark.parametrize("entry", CENSUS, ids=lambda entry: entry.key)
def test_coverages_are_at_least_nominal_up_to_the_error_of_the_simulation(entry: Entry) -> None:
    least = read()[entry.key]
    assert least.coverage >= LEAST
    assert least.above + least.below == pytest.approx(1 - least.coverage, abs=2e-4)


def test_a_regime_is_simulated_again_with_other_numbers() -> None:
    first = simulated("a normal mean", lambda rng: (mean := rng.normal(), mean + 2, 1.0), 500)
    assert first.again is not None
    second = first.again(500)
    assert (second.name, second.repetitions) == (first.name, 500)
    assert second.coverage != first.coverage
    assert simulated("a normal mean", lambda rng: (mean := rng.normal(), mean + 2, 1.0), 500)[:5] == first[:5]
    assert first.coverage == pytest.approx(0.683, abs=0.08)  # P(|X| < 1)


def test_the_least_regime_is_measured() -> None:
    def regimes(repetitions: int) -> list[Regime]:
        return [Regime("wide", 0.0, 0.0, 1.0, 0), Regime("narrow", 0.02, 0.03, 0.5, 0 * repetitions)]

    entry = Entry("", (), "", "", "", lambda repetitions: iter(regimes(repetitions)))
    least = measure(entry)
    assert (least.regime, least.regimes, least.above, least.below) == ("narrow", 2, 0.02, 0.03)
    assert least.coverage == pytest.approx(0.95)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in CENSUS if entry.key not in LONG], ids=lambda entry: entry.key)
def test_the_hardest_regime_is_covered(entry: Entry) -> None:
    """The regime with the least measured coverage, in 100 samples: within 3 standard errors of 94 %."""
    hardest = read()[entry.key].regime
    least = next(regime for regime in entry.simulation(2) if regime.name == hardest)  # two repetitions to find it
    found = least if least.again is None else least.again(100)
    assert found.coverage >= LEAST - 3 * found.standard_error


@pytest.mark.hostile
@pytest.mark.parametrize("entry", CENSUS, ids=lambda entry: entry.key)
def test_few_simulations_do_not_contradict_the_coverage(entry: Entry) -> None:
    """The least regime of few repetitions, again in five times as many: within 5 standard errors of 94 %."""
    least = measure(entry, FEW)
    error = (LEAST * (1 - LEAST) / max(least.repetitions, 1)) ** 0.5 if least.repetitions else 0.0
    assert least.coverage >= LEAST - 5 * error
