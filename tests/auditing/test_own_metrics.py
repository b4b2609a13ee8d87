"""Metrics of a user that fail: named gaps in the tables of audits and comparisons; conditions on them are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import classwise as cw
from classwise.auditing.criteria.thresholds import Threshold
from classwise.core.errors import ClasswiseError
from classwise.reporting import report
from classwise.stats import METRICS, registry
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.registry import Metric, MetricInputs, metric

LABELS = np.repeat([0, 1], 40)


def raising(counts: ClassCounts) -> float:
    """The mean, or an error."""
    raise LookupError(f"no {len(counts.count)}")


def infinite(counts: ClassCounts) -> float:
    """An infinite number."""
    return math.inf * len(counts.count)


def textual(counts: ClassCounts) -> Any:
    """Text."""
    return f"{len(counts.count)} classes"


def stopping(counts: ClassCounts) -> float:
    """Nothing."""
    raise StopIteration(len(counts.count))


FAILING: dict[Callable[..., Any], str] = {
    raising: "LookupError: no 2 (test_own_metrics.py:",
    infinite: "metric 'mine' returned inf; return a finite number, or NaN where it is not defined",
    textual: "metric 'mine' returned a str; return a number",
    stopping: "StopIteration: 2 (test_own_metrics.py:",
}
MINE: list[Metric] = []
"""The metric that the registry names."""


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Any]], None]]:
    def add(function: Callable[..., Any]) -> None:
        made = metric(name="mine")(function)
        monkeypatch.setattr(METRICS, "_entries", {**METRICS._entries, "mine": f"{__name__}:made"})
        monkeypatch.setitem(globals(), "made", made)
        registry.all_metrics.cache_clear()

    yield add
    monkeypatch.undo()
    registry.all_metrics.cache_clear()


def audit(shift: int = 0) -> cw.Audit:
    wrong = (np.arange(80) + shift) % 5 == 0
    return cw.Audit(cw.Outcomes.from_predictions(LABELS, LABELS, {"pgd": np.where(wrong, 1 - LABELS, LABELS)}))


@pytest.mark.parametrize("function", FAILING)
def test_tables_have_a_named_gap(
    register: Any, function: Callable[..., Any], tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry._log_failure.cache_clear()
    register(function)
    found = audit()
    row = found.by_attack.loc["pgd"]
    assert np.isnan(row["mine"])
    assert row["overall"] == 0.8
    page = report(found, tmp_path / "audit.html").read_text(encoding="utf-8")
    reason = FAILING[function]
    assert f"mine has no value: {reason}" in page.replace("&#x27;", "'").replace("&#39;", "'")
    comparison = cw.compare({"a": found, "b": audit(1)})
    assert np.isnan(comparison.table["mine"].to_numpy(dtype=float)).all()
    page = report(comparison, tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert f"mine has no value: {reason}" in page.replace("&#x27;", "'").replace("&#39;", "'")
    assert f"metric 'mine' has no value in tables: {reason}" in caplog.text
    assert caplog.text.count("has no value in tables") == 1


def test_conditions_raise_the_error(register: Any) -> None:
    register(raising)
    with pytest.raises(LookupError, match="no 2"):
        Threshold.parse("mine(pgd) < 0.5").holds(audit())
    register(infinite)
    with pytest.raises(ClasswiseError, match="returned inf"):
        Threshold.parse("mine(pgd) < 0.5").holds(audit())


def test_an_audit_with_a_failing_metric_returns_its_outcomes(register: Any) -> None:
    import torch

    register(raising)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    found = cw.audit(model, (torch.rand(40, 1, 4, 4), torch.arange(40) % 2), "Linf:0.01", "fgsm")
    assert found.complete
    assert "mine" in found.by_attack


def test_metrics_of_classwise_raise_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = MetricInputs(BoundedCounts.of(ClassCounts(np.array([2, 2]), np.array([1, 2]))))
    broken = Metric(name="overall", function=raising, title="t", about="a")
    with pytest.raises(LookupError):
        broken.value_in_table(inputs)
    assert inputs.failures == {}


def interval(value: Any) -> Metric:
    return Metric(name="m", function=lambda _: 0.5, title="t", about="a", interval=lambda counts, alpha: value)


def test_intervals_are_three_numbers() -> None:
    inputs = MetricInputs(BoundedCounts.of(ClassCounts(np.array([2, 2]), np.array([1, 2]))))
    for value in (None, 0.5, (0.5, 0.4), "abc"):
        with pytest.raises(ClasswiseError, match="return an Estimate"):
            interval(value).estimate(inputs)
    found = interval((0.5, -math.inf, math.inf)).estimate(inputs)
    assert found.value == 0.5
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(
    ("about", "function", "words"),
    [
        ({}, lambda: 1, r"metric '<lambda>'"),
        ({"name": "m"}, lambda: 1, r"the function is called with \(counts\), but its parameters are \(none\)"),
        ({"name": "m"}, lambda a, b: 1, r"called with \(counts\), but its parameters are \(a, b\)"),
        ({"name": "m", "reads": "clean and counts"}, lambda a: 1, r"called with \(clean, counts\)"),
        ({"name": "m", "reads": "outcomes"}, lambda *, frame: 1, r"called with \(outcomes\)"),
        ({"name": "m", "interval": lambda a: 1}, lambda a: 1, r"interval is called with \(counts, alpha\)"),
        ({"name": "m", "bounds": lambda a, b: 1}, lambda a: 1, r"bounds is called with \(counts\)"),
    ],
)  # fmt: skip
def test_other_signatures_are_refused_when_a_metric_is_made(about: Any, function: Any, words: str) -> None:
    with pytest.raises(ClasswiseError, match=words):
        metric(**about)(function)


def test_functions_with_defaults_and_builtins_are_accepted() -> None:
    assert metric(name="m")(lambda counts, weight=2: weight).name == "m"
    assert metric(name="m", reads="confusion")(np.trace).reads == "confusion"
