"""The verdicts of a store: corrected over all of its results, and the same in every file whatever was saved first."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from classwise.core.errors import ClasswiseError
from classwise.papers.claims import Test, Verdict, evaluate
from classwise.papers.interval_estimators import interval
from classwise.papers.result import Evidence, Result, save_result, stored_results
from classwise.papers.store import Store
from classwise.stats.intervals import Estimate

from .statements import Paper
from .strategies import papers


def verdicts_of(store: Store) -> dict[str, list[Verdict]]:
    """The saved verdicts by file."""
    files = sorted((store.path / "results").rglob("*.json"))
    return {str(file.relative_to(store.path)): [*Result.load(file).verdicts] for file in files}


def numbers(verdicts: dict[str, list[Verdict]]) -> np.ndarray:
    return np.array([(one.low, one.high, one.level, one.adjusted) for each in verdicts.values() for one in each])


@pytest.mark.slow
@settings(max_examples=5, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
@given(papers(), st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(paper: Paper, random: Random) -> None:
    """Each file has the verdicts that the page computes from all of them."""
    results = [raw.result() for raw in paper.results]
    saved = []
    with tempfile.TemporaryDirectory() as folder:
        for place, order in enumerate((results, random.sample(results, len(results)))):
            store = Store(Path(folder) / str(place))
            for result in order:
                save_result(result, store)
            saved.append(verdicts_of(store))
            for item, known in stored_results(store).items():
                for result in known:
                    file = Result.load(store.result_file(item, result.scale))
                    assert repr([*file.verdicts]) == repr([*result.verdicts])
    first, second = saved
    assert list(first) == list(second)
    answers = [[[one.answer for one in each] for each in verdicts.values()] for verdicts in saved]
    assert answers[0] == answers[1]
    np.testing.assert_allclose(numbers(first), numbers(second), rtol=1e-9, atol=1e-9)


def result_of(item: str, value: float, *more: float) -> Result:
    """A result with a test for each value, whose standard error is 1."""
    tests = [
        Test(claim="kdd21/C8", estimand=f"number {one}", estimators=[interval(Estimate(one, one - 1.96, one + 1.96))])
        for one in (value, *more)
    ]
    level = Evidence(scale="reduced", trainings=1)
    return Result(item=item, evidence=level, setting="", verdicts=evaluate(tests))


def answers_of(store: Store, item: str) -> list[str]:
    facts = json.loads(store.result_file(item, "reduced").read_text(encoding="utf-8"))
    return [one["text"].partition(" at ")[0] for one in facts["verdicts"]]


def test_a_further_result_changes_the_files_of_the_others(tmp_path: Path) -> None:
    """2.1 standard errors are conclusive alone, not among ten tests; results of other papers do not count."""
    store = Store(tmp_path / "store")
    save_result(result_of("kdd21/T1", 2.1), store)
    save_result(result_of("cfa23/T1", *[0.5] * 12), store)
    assert answers_of(store, "kdd21/T1") == ["supported"]
    save_result(result_of("kdd21/T3", -6.0, *np.linspace(0.1, 0.8, 8)), store)
    assert answers_of(store, "kdd21/T1") == ["inconclusive"]
    assert answers_of(store, "kdd21/T3") == ["not observed", *["inconclusive"] * 8]
    wide = Result.load(store.result_file("kdd21/T1", "reduced")).verdicts[0]
    save_result(result_of("kdd21/T3", -6.0), store)  # run again, with fewer tests
    assert answers_of(store, "kdd21/T1") == ["supported"]
    narrow = Result.load(store.result_file("kdd21/T1", "reduced")).verdicts[0]
    assert wide.low < 0 < narrow.low


def test_a_damaged_result_of_the_paper_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    save_result(result_of("kdd21/T1", 1.0), store)
    store.result_file("kdd21/T1", "reduced").write_text("{", encoding="utf-8")
    with pytest.raises(ClasswiseError, match=r"T1/reduced.json is damaged; run the experiment again"):
        save_result(result_of("kdd21/T3", 1.0), store)
    save_result(result_of("kdd21/T1", 1.0), store)
    save_result(result_of("kdd21/T3", 1.0), store)
