"""The precision of an audit for which none was asked: float32 if that is faster for the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.run import chosen_precision
from classwise.auditing.run.chosen_precision import seconds
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.suite import parse_attacks
from classwise.core.compute.precision import FAST, FLOAT32, Precision
from classwise.threat.ball import Threat

LONG = "pgd:steps=2,restarts=1000"
"""Long enough for 64 images; it succeeds early."""


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def audited(monkeypatch: pytest.MonkeyPatch, lower: float, exact: float, attack: str = LONG, **options: Any) -> str:
    """The precision of an audit on a CPU with fast bfloat16, if a pass takes so many seconds in each precision."""
    times = {FAST: lower, FLOAT32: exact}
    monkeypatch.setattr("classwise.core.compute.precision._multiplies_bfloat16", lambda _: True)
    monkeypatch.setattr(chosen_precision, "seconds", lambda plan, *_: times[plan.precision])
    data = cw.load_data("digits", split="test", subset=64)
    audit = cw.audit(network(), data, "Linf:0.3", attack, guards="off", **options)
    dtype: str = audit.outcomes.meta.precision["dtype"]
    stated = any("bfloat16 is slower" in note for note in audit.outcomes.meta.notes)
    assert stated == (dtype == "float32" and "precision" not in options)
    return dtype


@pytest.mark.parametrize(
    ("lower", "exact", "dtype"),
    [(0.3, 0.2, "float32"), (0.2, 0.2, "bfloat16"), (0.22, 0.2, "bfloat16"), (0.003, 0.001, "bfloat16")],
)
def test_the_faster_precision_is_chosen(
    lower: float, exact: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited(monkeypatch, lower, exact) == dtype


def test_a_short_audit_a_shard_and_a_given_precision_are_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited(monkeypatch, 0.3, 0.2, "fgsm") == "bfloat16"
    assert audited(monkeypatch, 0.3, 0.2, precision="bfloat16") == "bfloat16"
    assert audited(monkeypatch, 0.2, 0.3, precision="float32") == "float32"
    assert audited(monkeypatch, 0.3, 0.2, out=tmp_path / "shards" / "001-of-002", shard="1/2") == "bfloat16"


def test_a_resumed_audit_keeps_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert audited(monkeypatch, 0.3, 0.2, out=tmp_path / "a", max_time=1e-9) == "float32"
    with monkeypatch.context() as other:
        other.setattr(chosen_precision, "WORTHWHILE", 0)
        data = cw.load_data("digits", split="test", subset=64)
        resumed = cw.audit(network(), data, "Linf:0.3", LONG, guards="off", out=tmp_path / "a", resume=True)
    assert resumed.outcomes.meta.precision["dtype"] == "float32"


@pytest.mark.parametrize("precision", [FAST, FLOAT32])
def test_a_pass_is_timed_in_the_precision_of_the_plan(precision: Precision) -> None:
    data = cw.load_data("digits", split="test", subset=32)
    plan = Plan.of(parse_attacks("fgsm"), Threat("Linf", 0.1), {"precision": precision}, torch.device("cpu"))
    before = torch.get_rng_state()
    assert 0 < seconds(plan, network(), data.pixels()) < 60
    assert torch.equal(torch.get_rng_state(), before)
