"""Facts of results from which tables, pages and texts are built, recomputed from raw numbers by SciPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from classwise.papers.claims import Test, Verdict, evaluate
from classwise.papers.interval_estimators import IntervalEstimator, exactly
from classwise.papers.result import Evidence, Result, save_result, stored_results
from classwise.papers.store import Store
from classwise.papers.tables import class_table, elsewhere, estimate_cell, summary_table
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.variance import variance_interval

ALPHA = 0.05
ITEMS = ("kdd21/T1", "kdd21/T3", "kdd21/F2")


def z_of(level: float) -> float:
    return float(stats.norm.isf(level / 2))


@dataclass(frozen=True)
class RawTest:
    """A test with normal estimates (value, standard error): error 0 if exact, NaN without an interval."""

    parts: tuple[tuple[float, float], ...]
    limits: tuple[float, float] | None = None

    @property
    def exact(self) -> bool:
        return self.parts[0][1] == 0

    def shifted(self, number: int) -> RawTest:
        """The test with other p-values, so that no two tests of different items have the same one."""
        return RawTest(
            tuple((value + (1e-3 * number * error if error == error else 0), error) for value, error in self.parts),
            self.limits,
        )

    def test(self, estimand: str) -> Test:
        def normal(value: float, error: float) -> IntervalEstimator:
            return lambda level: Estimate(value, value - z_of(level) * error, value + z_of(level) * error)

        parts = [exactly(value) if self.exact else normal(value, error) for value, error in self.parts]
        return Test(claim="kdd21/C9", estimand=estimand, estimators=parts, exact=self.exact, limits=self.limits)

    @property
    def p_value(self) -> float:
        """Smallest level at which all estimates are above zero, or one is below at its share of the level."""
        if any(error != error for _, error in self.parts):
            return 1.0
        tails = [2 * stats.norm.sf(abs(value / error)) for value, error in self.parts]
        if all(value > 0 for value, _ in self.parts):
            return float(max(tails))
        below = [tail for tail, (value, _) in zip(tails, self.parts, strict=True) if value <= 0]
        return float(min(min(below) * len(tails), 1.0))

    def decided(self, level: float) -> tuple[str, float, float, int]:
        """Answer at a level, value and error of the deciding estimate, and how many estimates share the level."""
        number = len(self.parts)
        if unknown := [part for part in self.parts if part[1] != part[1]]:
            return "inconclusive", *unknown[0], 1
        reach, shared = z_of(level), z_of(level / number)
        least = min(self.parts, key=lambda part: part[0] - reach * part[1])
        most = min(self.parts, key=lambda part: part[0] + shared * part[1])
        if least[0] - reach * least[1] > 0:
            return "supported", *least, 1
        if most[0] + shared * most[1] < 0 or self.exact:
            return "contradicted", *most, number
        return ("inconclusive", *least, 1) if least[0] + reach * least[1] >= 0 else ("inconclusive", *most, number)


def check_verdict(found: Verdict, raw: RawTest, family: list[float]) -> None:
    """Check a verdict that is corrected over the p-values of a family; its estimate does not depend on the family."""
    level = ALPHA if raw.exact else min(max(raw.p_value, 1e-9) * (1 + 1e-6), ALPHA)
    answer, value, error, shares = raw.decided(level)
    if raw.exact:
        assert (found.answer, found.value, found.low, found.high) == (answer, value, value, value)
        return
    order = sorted(family)
    adjusted = np.minimum(np.maximum.accumulate(np.array(order) * np.arange(len(order), 0, -1)), 1.0)
    rejected = int((adjusted <= ALPHA).sum())
    ranks = [rank for rank, p in enumerate(order) if math.isclose(p, raw.p_value, rel_tol=1e-4, abs_tol=1e-8)]
    assert found.p_value == pytest.approx(raw.p_value, rel=1e-4, abs=2e-9)
    assert any(found.adjusted == pytest.approx(adjusted[rank], rel=1e-4, abs=1e-6) for rank in ranks)
    levels = [ALPHA / (len(order) - min(rank, rejected)) for rank in ranks]
    assert any(found.level == pytest.approx(level) for level in levels)
    assert (found.value, found.shares) == (value, shares)
    if error != error:
        assert math.isnan(found.low) == math.isnan(found.high) is True
        assert found.answer == "inconclusive"
        return
    low, high = value - z_of(found.level / shares) * error, value + z_of(found.level / shares) * error
    if raw.limits is not None:
        low, high = max(low, raw.limits[0]), min(high, raw.limits[1])
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-4, abs=1e-9)
    conclusive = found.adjusted <= ALPHA and (found.low > 0 or found.high < 0)
    assert found.answer == (answer if conclusive else "inconclusive")


@st.composite
def raw_tests(draw: st.DrawFn) -> RawTest:
    """Tests with one to three estimates, conclusive or not; some exact, some without an interval, some limited."""
    kind = draw(st.sampled_from(("one", "one", "all", "mixed", "exact", "none")))
    count = draw(st.integers(2, 3)) if kind in ("all", "mixed") else 1
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    errors = random.choice((0.002, 0.3, 4.0), count) * random.uniform(1, 2, count)
    signs = np.ones(count) if kind == "all" else random.choice((-1.0, 1.0), count)
    values = random.uniform(0.3, 5.4, count) * signs * errors
    if kind in ("exact", "none"):
        errors = np.full(1, 0.0 if kind == "exact" else math.nan)
    limits = (-1.0, 1.0) if kind == "one" and abs(values[0]) <= 1 and draw(st.booleans()) else None
    return RawTest(tuple(zip(values.tolist(), errors.tolist(), strict=True)), limits)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(raw_tests(), max_size=4), min_size=1, max_size=3))
def test_verdicts_of_a_store_are_corrected_over_all_items(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[RawTest]]
) -> None:
    """Each file has the verdicts that the page computes from all of them, whatever was saved first."""
    items = {
        item: [raw.shifted(10 * number + place) for place, raw in enumerate(raws)]
        for number, (item, raws) in enumerate(zip(ITEMS, drawn, strict=False))
    }
    results = [
        Result(
            item=item,
            evidence=Evidence(scale="small"),
            setting="",
            verdicts=evaluate([raw.test(f"{item} {place}") for place, raw in enumerate(raws)]),
        )
        for item, raws in items.items()
    ]
    family = [raw.p_value for raws in items.values() for raw in raws if not raw.exact]
    for order in (results, results[::-1]):
        store = Store(tmp_path_factory.mktemp("papers") / "store")
        for result in order:
            save_result(result, store)
        found = stored_results(store)
        for item, raws in items.items():
            (result,) = found[item]
            assert repr([*Result.load(store.result_file(item, "small")).verdicts]) == repr([*result.verdicts])
            for verdict, raw in zip(result.verdicts, raws, strict=True):
                check_verdict(verdict, raw, family)


def interval_of(right: int, images: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Wilson's interval, or Clopper and Pearson's where n p (1 - p) is below 50 or alpha is below 0.01."""
    share = right / images
    method: Literal["exact", "wilson"] = "exact" if alpha < 0.01 or images * share * (1 - share) < 50 else "wilson"
    found = stats.binomtest(right, images).proportion_ci(1 - alpha, method=method)
    return float(found.low), float(found.high)


def exact_ends(right: IntArray, images: IntArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Clopper and Pearson's intervals."""
    found = [
        stats.binomtest(k, n).proportion_ci(1 - alpha, "exact")
        for k, n in zip(right.tolist(), images.tolist(), strict=True)
    ]
    return np.array([ends.low for ends in found]), np.array([ends.high for ends in found])


def discrepancy_ends(right: IntArray, images: IntArray) -> tuple[float, float]:
    """The interval of MCD: the lower end is corrected for all bounds, the upper end for two."""
    classes = len(right)
    if classes == 1:
        return 0.0, 0.0
    low, high = exact_ends(right, images, 1 - (1 - ALPHA / 2) ** (1 / classes))
    least = max(float(low.max() - high.min()), 0.0)
    low, high = exact_ends(right, images, 2 * (1 - (1 - ALPHA / 2) ** 0.5))
    return least, float(high.max() - low.min())


def shows(text: str, *values: float, digits: int = 1) -> None:
    """Check that a text such as ``1.5`` or ``1.5–2.0`` is the values, rounded."""
    numbers = text.split("–")
    assert [len(number.partition(".")[2]) for number in numbers] == [digits] * len(values), text
    tolerance = 0.5 * 10.0**-digits + 2e-3 * max(abs(value) for value in values) * (len(values) > 1 and digits == 0)
    for number, value in zip(numbers, values, strict=True):
        assert float(number) == pytest.approx(value, abs=tolerance + 1e-9), text
        assert not number.startswith("-") or float(number) < 0, text


@pytest.mark.parametrize("seed", range(12))
def test_tables_of_counts(seed: int) -> None:
    """Class accuracies, total, CV, MCD, lowest and highest classes, with intervals and the printed numbers."""
    random = np.random.default_rng(seed)
    classes = int(random.integers(1, 7))
    images: IntArray = random.choice((1, 7, 100, 400, 4000), classes)
    right: IntArray = np.rint(images * random.choice((0.0, 0.0001, 0.02, 0.5, 0.5, 0.9996, 1.0), classes)).astype(int)
    names = [f"class-{label}" for label in range(classes)]
    counts, a = ClassCounts(images, right), right / images
    (row,) = class_table("by class", {"AT, PGD": counts}, names).rows
    for cell, good, count in zip(row.cells, right.tolist(), images.tolist(), strict=True):
        shows(cell.text, 100 * good / count)
        shows(str(cell.span), *(100 * end for end in interval_of(good, count)))
    printed = random.choice((12.0, 30.5, 71.25), classes)
    known = {"method": "AT", "attack": "PGD", "per_class": printed.tolist(), "tot": 40.5, "mcd": 30.25}
    (row,) = summary_table("summary", {"AT, PGD": counts}, [known], names).rows
    total, _, cv, _, mcd, _, lowest, _, highest, _ = row.cells
    shows(total.text, 100 * right.sum() / images.sum())
    shows(str(total.span), *(100 * end for end in interval_of(int(right.sum()), int(images.sum()))))
    shows(cv.text, 1e4 * a.var(), digits=0 if 1e4 * a.var() >= 100 else 1)
    ends = [1e4 * end for end in variance_interval(counts)]
    for text, end in zip(str(cv.span).split("–"), ends, strict=True):
        assert float(text) == pytest.approx(end, rel=2e-3, abs=0.5 if ends[1] >= 100 else 0.052)
    shows(mcd.text, 100 * np.ptp(a))
    shows(str(mcd.span), *(100 * end for end in discrepancy_ends(right, images)))
    for cell, end in ((lowest, a.min()), (highest, a.max())):
        assert set(cell.text.replace(" and ", ", ").split(", ")) == {names[c] for c in np.flatnonzero(a == end)}
        shows(str(cell.span), 100 * end)
    assert [row.cells[place].text for place in (1, 3, 5)] == ["40.5", "–", "30.25"]
    for place, end in ((7, printed.min()), (9, printed.max())):
        labels = row.cells[place].text.removeprefix("classes ").removeprefix("class ").replace(" and ", ", ")
        assert [int(label) for label in labels.split(", ")] == np.flatnonzero(printed == end).tolist()
        assert row.cells[place].span == f"{end:g}"


@pytest.mark.parametrize("value", [-0.0004, 0.0, 0.123456, -0.5, 1.0])
def test_cells_of_estimates(value: float) -> None:
    cell = estimate_cell(Estimate(value, value - 0.25, value + 0.25))
    shows(cell.text, 100 * value)
    for text, end in zip(str(cell.span).split(" to "), (value - 0.25, value + 0.25), strict=True):
        shows(text, 100 * end)
    assert estimate_cell(Estimate(value, math.nan, math.nan)).span == ""
    assert estimate_cell(Estimate(math.nan, math.nan, math.nan)).text == "–"


def at_every_level(one: Estimate) -> IntervalEstimator:
    return lambda _: one


def test_a_cell_names_the_claim_of_its_estimate_only() -> None:
    """A zero is not that of every test; its interval identifies it."""
    changes = [Estimate(0.0, -0.5, 0.5), Estimate(0.0, -2.0, 1.0), Estimate(3.0, 1.0, 5.0)]
    tests = [elsewhere(f"kdd21/C{12 + place}", at_every_level(one)) for place, one in enumerate(changes)]
    assert [estimate_cell(one, 1, tests=tests).span for one in changes] == [f"tested by C{12 + n}" for n in range(3)]
    assert estimate_cell(Estimate(0.0, -1.0, 1.0), 1, tests=tests).span == "-1.0 to 1.0"
    assert estimate_cell(Estimate(0.03, 0.01, 0.06), tests=tests).span == "tested by C14"


def test_wilson_and_clopper_pearson_by_hand() -> None:
    """Reference intervals of the tests in this file: 100 of 200, and 0 of 20."""
    assert interval_of(100, 200) == pytest.approx((0.4314, 0.5686), abs=1e-4)
    assert interval_of(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
