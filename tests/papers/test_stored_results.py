"""Saved verdicts: a further result of a paper changes those of the others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from classwise.papers.claims import Test, evaluate
from classwise.papers.interval_estimators import interval
from classwise.papers.result import Evidence, Result, save_result, stored_results
from classwise.papers.store import Store
from classwise.stats.intervals import Estimate
from tests.refusals import check_refused


def result_of(item: str, value: float, *more: float) -> Result:
    """A result with a test for each value, whose standard error is 1."""
    tests = [
        Test(
            claim="kdd21/C8",
            estimand=f"number {estimate}",
            estimators=[interval(Estimate(estimate, estimate - 1.96, estimate + 1.96))],
        )
        for estimate in (value, *more)
    ]
    return Result(item=item, evidence=Evidence(scale="small", trainings=1), setting="", verdicts=evaluate(tests))


def answers_of(store: Store, item: str) -> list[str]:
    facts = json.loads(store.result_file(item, "small").read_text(encoding="utf-8"))
    return [verdict["text"].partition(" at ")[0] for verdict in facts["verdicts"]]


def test_a_further_result_changes_the_files_of_the_others(tmp_path: Path) -> None:
    """2.1 standard errors are conclusive alone, not among ten tests; results of other papers do not count."""
    store = Store(tmp_path / "store")
    save_result(result_of("kdd21/T1", 2.1), store)
    save_result(result_of("cfa23/T1", *[0.5] * 12), store)
    assert answers_of(store, "kdd21/T1") == ["supported"]
    save_result(result_of("kdd21/T3", -6.0, *np.linspace(0.1, 0.8, 8)), store)
    assert answers_of(store, "kdd21/T1") == ["inconclusive"]
    assert answers_of(store, "kdd21/T3") == ["not observed", *["inconclusive"] * 8]
    wide = Result.load(store.result_file("kdd21/T1", "small")).verdicts[0]
    save_result(result_of("kdd21/T3", -6.0), store)  # run again, with fewer tests
    assert answers_of(store, "kdd21/T1") == ["supported"]
    assert wide.low < 0 < Result.load(store.result_file("kdd21/T1", "small")).verdicts[0].low


@pytest.mark.parametrize("order", [*itertools.permutations(("kdd21/T1", "kdd21/T3", "kdd21/F1"))])
def test_equal_p_values_have_the_same_levels_in_any_order_of_the_runs(order: tuple[str, ...], tmp_path: Path) -> None:
    """Three tests of the smallest p-value are rejected at three levels, and the files and the page agree on these."""
    store, values = Store(tmp_path / "store"), {"kdd21/T1": 7.0, "kdd21/T3": -8.0, "kdd21/F1": 9.0}
    for item in order:
        save_result(result_of(item, values[item], values[item] / 10), store)
    shown = {item: results[0].verdicts[0] for item, results in stored_results(store).items() if results}
    files = {item: Result.load(store.result_file(item, "small")).verdicts[0] for item in shown}
    assert len({verdict.p_value for verdict in shown.values()}) == 1
    assert [verdict.level for verdict in shown.values()] == pytest.approx([0.05 / 6, 0.05 / 5, 0.05 / 4])
    for item, verdict in shown.items():
        saved = files[item]
        assert (verdict.level, verdict.answer) == (saved.level, saved.answer)
        assert (verdict.low, verdict.high) == pytest.approx((saved.low, saved.high))


def test_a_damaged_result_of_the_paper_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    save_result(result_of("kdd21/T1", 1.0), store)
    store.result_file("kdd21/T1", "small").write_text("{", encoding="utf-8")
    check_refused(r"T1/small.json is damaged; run its item again", save_result, result_of("kdd21/T3", 1.0), store)
    save_result(result_of("kdd21/T1", 1.0), store)
    save_result(result_of("kdd21/T3", 1.0), store)
