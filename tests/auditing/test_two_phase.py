"""Audits that estimate AutoAttack's accuracy from a sample (``settle``)."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import classwise as cw
from classwise.attacks import suites
from classwise.attacks.engine import Engine
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.guards.evidence import Evidence, Probe
from classwise.auditing.outcomes.files import Columns
from classwise.auditing.outcomes.writer import OutcomeWriter, Tensors
from classwise.auditing.run.audit import estimate
from classwise.auditing.run.estimators import CompleteEstimator
from classwise.auditing.run.loop import AttackLoop
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import TwoPhaseEstimator, candidates, successes
from classwise.cli.console import show_result
from classwise.cli.tables import audit_facts
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.progress.listener import NullProgress
from classwise.data.images import Images
from classwise.reporting import export, report
from classwise.reporting.exports.robustbench import robustbench
from classwise.stats.two_phase import UNKNOWN
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .toys import SUITE, images, model, small_autoattack

pytestmark = pytest.mark.slow

FIRST, SECOND = ("fgsm", "pgd"), ("apgd-ce", "square")
SETTLE = 0.02
EPSILON = "Linf:0.03"
QUICK: dict[str, Any] = {"batch_size": 128, "guards": "off"}


@pytest.fixture(scope="module", autouse=True)
def suite() -> Any:
    with small_autoattack():
        yield


@pytest.fixture(scope="module")
def data() -> Images:
    return images(600, strength=(0.033, 0.036, 0.04))


@pytest.fixture(scope="module")
def full(data: Images) -> Audit:
    return cw.audit(model(), data, EPSILON, "autoattack", **QUICK)


@pytest.fixture(scope="module")
def sampled(data: Images, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("sampled") / "audit"
    return cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, out=folder, **QUICK)


def result(audit: Audit) -> TwoPhaseEstimator:
    assert isinstance(audit.estimator, TwoPhaseEstimator)
    return audit.estimator


def test_the_estimate_is_of_the_full_audit(sampled: Audit, full: Audit) -> None:
    found, truth = result(sampled), full.by_class["all"]
    estimate, overall = found.estimate, full.by_attack["overall"]["all"]
    assert estimate.settled
    assert estimate.overall.low <= overall <= estimate.overall.high
    assert estimate.worst.low <= truth.min() <= estimate.worst.high
    assert max(estimate.overall.value - estimate.overall.low, estimate.overall.high - estimate.overall.value) <= 0.02
    assert truth.idxmin() in found.possibly
    table = found.estimates
    assert ((table["low"] <= truth + 1e-12) & (truth <= table["high"] + 1e-12)).all()
    assert list(table["clean"]) == list(full.by_class["clean"])
    assert list(table["first"]) == list(full.by_class["pgd"])
    assert 0 < table["sampled"].sum() < table["survivors"].sum()
    assert (full.by_class["pgd"] > full.by_class["all"]).any()  # the second phase succeeds on something


def test_the_guards_run_on_an_estimate(data: Images, tmp_path: Path) -> None:
    """They read the outcomes, of which the second phase has some only."""
    options = QUICK | {"guards": "full", "out": tmp_path / "audit"}
    found = cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, **options)
    assert found.guards is not None
    assert result(found).estimate.settled


@pytest.mark.parametrize(
    ("limit", "reason"), [(None, "they are outside the sample"), (1e-6, "the time limit was reached")]
)
def test_the_log_states_why_images_are_not_judged(data: Images, limit: float | None, reason: str) -> None:
    lines: list[str] = []
    progress = NullProgress()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "log", lines.append, raising=False)
        cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, max_time=limit, progress=progress, **QUICK)
    found = [line for line in lines if "not judged" in line]
    assert found
    assert all(line.endswith(f" images are not judged, {reason}") for line in found)


def test_its_rows_are_those_of_the_full_audit(sampled: Audit, full: Audit) -> None:
    key = ["attack", "index"]
    some, every = (audit.outcomes.frame.set_index(key) for audit in (sampled, full))
    pd.testing.assert_frame_equal(some, every.loc[some.index], check_exact=True)
    passes = every[["forwards", "backwards"]].sum().sum()
    found = result(sampled)
    assert found.passes == some[["forwards", "backwards"]].sum().sum() < passes
    assert found.full_audit_passes == pytest.approx(passes, rel=0.1)


def test_the_sample_depends_on_the_seed_and_not_on_the_order_of_the_images(sampled: Audit, data: Images) -> None:
    again = cw.audit(model(), data.take(torch.randperm(600)), EPSILON, "autoattack", settle=SETTLE, **QUICK)
    assert again.outcomes.frame["index"].equals(sampled.outcomes.frame["index"])
    assert result(again).estimate.overall == result(sampled).estimate.overall
    other = cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, seed=1, **QUICK)
    assert not other.outcomes.frame["index"].equals(sampled.outcomes.frame["index"])


def test_it_is_loaded_from_its_folder(sampled: Audit) -> None:
    assert sampled.path is not None
    loaded = Audit.load(sampled.path)
    assert not loaded.complete
    pd.testing.assert_frame_equal(result(loaded).estimates, result(sampled).estimates, check_exact=True)
    assert result(loaded).estimate.worst == result(sampled).estimate.worst


class Killed(Exception):  # noqa: N818  # a signal, not an error
    """Raised in place of a kill."""


@pytest.mark.parametrize("blocks", [1, 22, 30])
def test_a_killed_audit_resumes_to_the_same_sample(
    blocks: int, sampled: Audit, data: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, add = [], OutcomeWriter.add
    with monkeypatch.context() as patch:

        def killing(self: OutcomeWriter, rows: Columns, tensors: Tensors | None = None) -> None:
            add(self, rows, tensors)
            added.append(len(rows["index"]))
            if len(added) > blocks:
                self.flush()
                raise Killed

        patch.setattr(OutcomeWriter, "add", killing)
        with pytest.raises(Killed):
            cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, out=tmp_path / "a", **QUICK)
    settings = {"settle": SETTLE, "out": tmp_path / "a", "resume": True, **QUICK}
    resumed = cw.audit(model(), data, EPSILON, "autoattack", **settings)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, sampled.outcomes.frame, check_exact=True)
    assert result(resumed).estimate.overall == result(sampled).estimate.overall


def test_a_sample_of_everything_is_the_full_audit(data: Images, full: Audit, tmp_path: Path) -> None:
    settings = {"out": tmp_path / "a", **QUICK}
    every = cw.audit(model(), data, EPSILON, "autoattack", settle=1e-6, **settings)
    assert every.complete
    assert isinstance(every.estimator, CompleteEstimator)
    pd.testing.assert_frame_equal(every.outcomes.frame, full.outcomes.frame, check_exact=True)
    pd.testing.assert_frame_equal(every.by_class, full.by_class, check_exact=True)


def test_an_estimate_is_completed_without_settle(data: Images, full: Audit, tmp_path: Path) -> None:
    settings = {"out": tmp_path / "a", **QUICK}
    wide = cw.audit(model(), data, EPSILON, "autoattack", settle=0.05, **settings)
    narrow = cw.audit(model(), data, EPSILON, "autoattack", settle=0.02, resume=True, **settings)
    again = cw.audit(model(), data, EPSILON, "autoattack", settle=0.05, resume=True, **settings)
    sizes = [int(result(audit).estimate.drawn.sum()) for audit in (wide, narrow, again)]
    assert sizes[0] < sizes[1] == sizes[2]
    assert result(Audit.load(tmp_path / "a")).sampling.settle == 0.05
    check_refused("already contains this audit", cw.audit, model(), data, EPSILON, "autoattack", **settings)
    whole = cw.audit(model(), data, EPSILON, "autoattack", resume=True, **settings)
    pd.testing.assert_frame_equal(whole.outcomes.frame, full.outcomes.frame, check_exact=True)
    loaded = Audit.load(tmp_path / "a")
    assert loaded.complete
    assert loaded.outcomes.meta.settle is None


def test_after_the_time_limit_the_intervals_are_wider(
    data: Images, full: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = AttackLoop._attack
    with monkeypatch.context() as patch:
        calls = []

        def limited(self: AttackLoop, *arguments: Any) -> None:
            calls.append(arguments[0])
            if calls.count("apgd-ce") == 3:  # the first two are of no survivor and of the first sample
                self.deadline = 0.0
            attack(self, *arguments)

        patch.setattr(AttackLoop, "_attack", limited)
        late = cw.audit(model(), data, EPSILON, "autoattack", settle=SETTLE, out=tmp_path / "a", **QUICK)
    found = result(late).estimate
    assert not found.settled
    assert found.overall.low <= full.by_attack["overall"]["all"] <= found.overall.high
    assert found.overall.high - found.overall.low > 0.01
    report(late, tmp_path / "page.html")
    assert (
        "stopped before the overall and worst-class intervals for these images were within 2 points"
        in (tmp_path / "page.html").read_text()
    )


def test_readers_do_not_take_it_for_a_complete_audit(sampled: Audit, full: Audit, tmp_path: Path) -> None:
    what = r"an estimate from a sample \(settle 0.02\): \d+ of 600 images are not judged by every attack"
    for ask in (sampled.worst_class, sampled.counts, sampled.intervals):
        with pytest.raises(IncompleteError, match=rf"{what}.*; continue the audit with --resume and without --settle"):
            ask()
    assert "all" not in sampled.by_class
    assert "overall" not in sampled.by_attack
    with pytest.raises(IncompleteError, match=r"'sampled' is an estimate from a sample .*with --resume and without"):
        cw.compare({"full": full, "sampled": sampled})
    assert not cw.compare({"full": full, "sampled": sampled}, allow_incomplete=True).pairs
    assert cw.compare({"full": full, "sampled": sampled}, attack="pgd").complete
    # A threshold is decided by what is certain, not by an estimate.
    estimate = result(sampled).estimate.overall.value
    assert Threshold.parse(f"overall(all) < {estimate}").decide(sampled) is None
    assert Threshold.parse("overall(all) > 0.99").decide(sampled) is False


def test_robustbench_accepts_no_estimate(sampled: Audit) -> None:
    meta = dataclasses.replace(sampled.outcomes.meta, data="cifar10", threat="Linf:8/255")
    audit = Audit(type(sampled.outcomes)(sampled.outcomes.frame, meta))
    with pytest.raises(
        ClasswiseError, match=r"autoattack_acc: .*an estimate from a sample.*accepts no estimates"
    ) as error:
        robustbench(audit)
    assert "\n" not in str(error.value)


def test_page_terminal_and_json_name_the_estimate(
    sampled: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result(sampled)
    value, low, high = (f"{100 * number:.1f}" for number in found.estimate.overall[:3])
    text = f"AutoAttack, estimated: {value} % [{low}, {high}]"
    page = report(sampled, tmp_path / "page.html").read_text()
    assert f"<h1>{text}</h1>" in page
    assert f"worst class, estimated: {found.worst}, {100 * found.estimate.worst.value:.1f} %".capitalize() in page
    assert "without --settle" in page
    show_result(sampled)
    said = capsys.readouterr().out
    assert text in said
    assert "apgd-ce and square ran on" in said
    facts = json.loads(json.dumps(audit_facts(sampled), default=float))
    assert not facts["complete"]
    assert facts["worst"] is None
    assert facts["estimate"]["text"] == text
    assert facts["estimate"]["overall"] == pytest.approx(found.estimate.overall._asdict())
    assert facts["estimate"]["sampled"] == found.estimates["sampled"].sum()
    names = {path.name for path in export(sampled, tmp_path / "tables", ("csv", "md"))}
    assert {"estimates.csv", "estimates.md", "classes.csv"} <= names


def test_what_settle_refuses(data: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(
        match: str, attacks: Any = "autoattack", images: Any = data, threat: str = EPSILON, **more: Any
    ) -> None:
        check_refused(match, cw.audit, model(), images, threat, attacks, **{"settle": 0.01, **QUICK, **more})

    for settle in (0, 1, -0.1, np.nan, "0.5", True, [0.1]):
        refused(rf"settle = {re.escape(repr(settle))}: must be a number above 0 and below 1", settle=settle)
    refused(r"settle requires the attacks autoattack and no other, but the attacks are fgsm$", ["fgsm"])
    refused("settle requires the attacks autoattack", {"mine": "autoattack"})
    refused("settle requires cascade=True", cascade=False)
    refused("requires early_stop=True", early_stop=False)
    refused("does not support group", group=np.zeros(600, dtype=np.int64))
    refused("settle samples from images in memory", images=iter([(data.pixels(), data.y)]))
    monkeypatch.setitem(suites.SUITES, "fast", {"standard": SUITE})
    refused("settle: under Linf AutoAttack has no attack beyond fgsm, pgd, apgd-ce, square")
    monkeypatch.setitem(suites.SUITES, "fast", {"standard": ("apgd-ce", "pma", "apgd-t")})
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": ("apgd-ce", "apgd-t", "fab-t", "square")})
    refused("under L1 AutoAttack has no attack beyond apgd-ce, apgd-t; omit it", threat="L1:1")


def test_the_cost_is_that_of_a_full_audit_at_most(data: Images) -> None:
    settled = estimate(model(), data, EPSILON, "autoattack", settle=0.01, **QUICK)
    whole = estimate(model(), data, EPSILON, "autoattack", **QUICK)
    assert settled.forwards == whole.forwards
    assert ["of a full audit" in found.note for found in (settled, whole)] == [True, False]


def test_guards_also_see_survivors_outside_the_sample(sampled: Audit, full: Audit, data: Images) -> None:
    probe = Probe(Engine(model(), batch_size=32), data.batch(slice(0, 600)), Threat.parse(EPSILON))
    every, some = (Evidence(audit.outcomes, probe=probe).survivors for audit in (full, sampled))
    assert torch.equal(every & some, every)
    assert some.sum() > every.sum()  # on some of these, an attack outside the sample would have succeeded
    assert some.sum() < result(sampled).estimates["survivors"].sum()


def test_unknown_results_are_no_results(sampled: Audit) -> None:
    rows = sampled.outcomes.frame
    found = candidates(rows, FIRST, 600, 3, 0)
    assert found is not None
    results = successes(rows, found.index, SECOND)
    half = rows[rows["attack"] != "square"]
    before = successes(half, found.index, SECOND)
    assert ((before == results) | ((results == 0) & (before == UNKNOWN))).all()
    assert (results == 0).any()
    assert (results == UNKNOWN).any()
    margin = rows[rows["attack"].isin(["clean", *FIRST])].groupby("index")["margin"].min()[found.index].to_numpy()
    for label in range(3):
        low, inside = found.survivors.low, found.survivors.label == label
        assert low[inside].sum() == inside.sum() // 5
        assert margin[inside & low].max() <= margin[inside & ~low].min()
    survivor = rows["index"] == found.index[0]
    assert candidates(rows[~survivor | (rows["attack"] != FIRST[1])], FIRST, 600, 3, 0) is None
    assert candidates(rows, FIRST, 601, 3, 0) is None
