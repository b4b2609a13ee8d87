"""Tables of an audit, compared with numbers computed by hand; and what an incomplete audit has in their place."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import operator
import pickle
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, recall_score

from classwise.analysis.base import last_iterates
from classwise.auditing.criteria.thresholds import Threshold, met
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit as run_audit
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.core.errors import IncompleteError
from classwise.core.files.storage import CHECKSUMS
from classwise.reporting import report
from classwise.stats.intervals import lowest_interval
from classwise.stats.rational import as_rational, difference
from classwise.stats.registry import all_metrics
from tests.refusals import check_refused

from .toys import images as toy_images
from .toys import model as linear

NAMES = ["cat", "dog"]
LABELS = [0] * 10 + [1] * 40
CLEAN = [0] * 9 + [1] + [1] * 36 + [0] * 4
ATTACKED = [0] * 3 + [1] * 7 + [1] * 20 + [0] * 20


@pytest.fixture
def audit() -> Audit:
    return Audit(Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES))


def test_the_table_has_a_row_per_class(audit: Audit) -> None:
    table = audit.by_class
    assert list(table.columns) == [
        "n",
        *(name + end for name in ("clean", "pgd", "all") for end in ("", "_low", "_high")),
    ]
    assert table.index.tolist() == NAMES
    assert table.index.name == "class"
    assert table["n"].tolist() == [10, 40]
    assert table["pgd"].tolist() == [0.3, 0.5]
    # Clopper and Pearson for few images (n p q < 50): the ends where the binomial tails are 2.5 %.
    assert table[["pgd_low", "pgd_high"]].to_numpy()[0].tolist() == pytest.approx([0.06674, 0.65245], abs=1e-5)
    assert table[["pgd_low", "pgd_high"]].to_numpy()[1].tolist() == pytest.approx([0.33802, 0.66198], abs=1e-5)
    assert table["clean_low"]["dog"] > table["pgd_high"]["dog"]  # 36 of 40 without an attack


def test_the_summary_has_the_papers_metrics(audit: Audit) -> None:
    row = audit.by_attack.loc["pgd"].to_dict()
    assert row["n"] == 50
    assert row["overall"] == pytest.approx(23 / 50)
    assert row["macro"] == pytest.approx(0.4)
    assert (row["worst_class"], row["worst"], row["worst20"]) == ("cat", 0.3, 0.3)
    assert row["cv"] == pytest.approx(0.01)
    assert row["mcd"] == pytest.approx(0.2)
    assert row["nrr"] == pytest.approx(2 * 0.9 * 0.46 / (0.9 + 0.46))
    assert row["hmw"] == pytest.approx(2 * 0.46 * 0.3 / 0.76)
    assert audit.by_attack["overall"].dtype == np.float64


def test_without_clean_predictions_nrr_is_unknown() -> None:
    audit = Audit(Outcomes.from_predictions(LABELS, attacks={"pgd": ATTACKED}, class_names=NAMES))
    assert audit.by_attack["nrr"].isna().all()


def test_the_worst_class_has_the_interval_of_the_lowest_accuracy_and_candidates(audit: Audit) -> None:
    worst = audit.worst_class("pgd")
    assert (worst.name, worst.label, worst.count, worst.accuracy) == ("cat", 0, 10, 0.3)
    assert (worst.low, worst.high) == pytest.approx((0.06674, 0.68194), abs=1e-5)
    assert worst.possibly == ("cat", "dog")
    assert worst.minimum.plug_in == 0.3
    assert (worst.low, worst.high) == lowest_interval(audit.counts("pgd"))
    own = audit.intervals("pgd")
    assert worst.low == pytest.approx(own.low[0])  # its lower end needs no correction
    assert worst.high > own.high[0]  # the upper end is corrected for the two classes
    assert tuple(audit.by_attack.loc["pgd", ["worst", "worst_low", "worst_high"]]) == (0.3, worst.low, worst.high)
    assert worst.minimum.split > 0.3


def test_confusion_describes_its_images(audit: Audit) -> None:
    frame = audit.confusion("pgd")
    assert frame.to_numpy().tolist() == [[3, 7], [20, 20]]
    assert (frame.index.name, frame.columns.name) == ("truth", "prediction")
    assert frame.attrs["shows"] == "predictions made elsewhere"
    success = Audit(Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES, early_stop=True))
    assert "on adversarial examples" in success.confusion("pgd").attrs["shows"]
    assert success.confusion("clean").attrs["shows"] == "predictions on the clean images"


def test_tables_by_group_instead_of_class() -> None:
    outcomes = Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES)
    audit = Audit(outcomes.add_groups("site", [0, 1] * 25, ["north", "south"]), group="site")
    assert audit.by_class.index.tolist() == ["north", "south"]
    assert audit.by_class.index.name == "site"
    assert audit.by_attack["worst_class"]["pgd"] in ("north", "south")
    check_refused("unknown grouping", Audit, outcomes, group="site")


def test_saving_and_loading_preserves_the_audit(audit: Audit, tmp_path: Path) -> None:
    noted = Audit(
        audit.outcomes, (AuditWarning("train-mode", "It was.", 1.0), AuditWarning("x", "y", float("nan"))), name="mine"
    )
    assert noted.save(tmp_path / "audit") == tmp_path / "audit"
    again = Audit.load(tmp_path / "audit")
    pd.testing.assert_frame_equal(again.by_class, audit.by_class)
    assert again.warnings[0] == noted.warnings[0]
    assert np.isnan(again.warnings[1].value)
    assert again.name == "mine"
    check_refused("already contains an audit", noted.save, tmp_path / "audit")


def test_a_run_folder_keeps_its_audits_apart(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: at\n")
    check_refused("a run without an audit", Audit.load, tmp_path)
    assert audit.save(tmp_path) == tmp_path / "audits" / "audit"
    assert Audit.load(tmp_path).names == audit.names
    Audit(audit.outcomes, name="second").save(tmp_path)
    check_refused("several audits", Audit.load, tmp_path)


def test_a_newer_or_damaged_audit_is_refused(audit: Audit, tmp_path: Path) -> None:
    audit.save(tmp_path / "a")
    about = json.loads((tmp_path / "a" / ABOUT).read_text())
    (tmp_path / "a" / ABOUT).write_text(json.dumps({**about, "schema_version": 99}))
    (tmp_path / "a" / CHECKSUMS).unlink()
    check_refused("schema_version 99 is newer", Audit.load, tmp_path / "a")
    (tmp_path / "a" / ABOUT).write_text("{")
    check_refused("is damaged", Audit.load, tmp_path / "a")


def test_any_function_of_labels_and_predictions_is_a_metric_by_class_and_group() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 1, 2, 2, 0, 1])
    made = Outcomes.from_predictions(labels, labels, {"pgd": predicted}, ["cat", "dog", "owl", "yak"])
    audit = Audit(made.add_groups("half", [0, 1] * 4, ["even", "odd"]))
    recall = audit.metric(lambda true, found: recall_score(true, found, average="micro"), "pgd")
    assert recall.overall == pytest.approx(4 / 8)
    assert recall.by_group.to_dict() == pytest.approx({"cat": 2 / 3, "dog": 1 / 2, "owl": 1 / 3})
    assert recall.by_group.index.name == "class"
    assert (recall.group_min(), recall.group_max()) == pytest.approx((1 / 3, 2 / 3))
    assert (recall.difference(), recall.ratio()) == pytest.approx((1 / 3, 1 / 2))
    assert (recall.difference("to_overall"), recall.ratio("to_overall")) == pytest.approx((1 / 6, 2 / 3))
    halves = audit.metric(accuracy_score, "pgd", group="half")
    assert halves.by_group.to_dict() == {"even": 0.25, "odd": 0.75}
    assert audit.metric(f1_score_macro, "clean").by_group.tolist() == [1, 1, 1]
    assert audit.metric(accuracy_score).overall == audit.by_attack.loc["all", "overall"]


def test_an_audit_whose_metrics_were_computed_can_be_pickled(audit: Audit) -> None:
    table = audit.by_attack
    again = pickle.loads(pickle.dumps(audit))
    pd.testing.assert_frame_equal(again.by_attack, table)
    assert again.inputs("pgd").confusion().sum() == len(LABELS)


def test_a_metric_is_refused_in_one_line() -> None:
    made = Outcomes.from_predictions([0, 0, 1], [0, 0, 1], {"pgd": [0, 1, 1]})
    part = Audit(Outcomes(made.frame[:-1], made.meta))
    for name in ("all", "pgd", "clean"):
        with pytest.raises(IncompleteError, match="1 of 3 images are not judged") as refused:
            part.metric(accuracy_score, name)
        assert "\n" not in str(refused.value)
    for name, group, message in (("fgsm", None, "unknown attack"), ("pgd", "animal", "unknown grouping")):
        check_refused(message, Audit(made).metric, accuracy_score, name, group)
    check_refused(
        "metric function returned a ndarray; return a number", Audit(made).metric, lambda true, found: true == found
    )
    check_refused("difference", Audit(made).metric(accuracy_score).difference, "within")


def f1_score_macro(true: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    return float(f1_score(true, found, average="macro"))


ATTACKS = ("clean", "t[1]", "t[2]")
SIX = np.array([0, 0, 0, 1, 1, 2])


def families(correct: np.ndarray[tuple[int, int], np.dtype[np.bool_]], **meta: object) -> Outcomes:
    """A complete table of three attacks (the rows of ``correct``) on six images of three classes."""
    predictions = {name: np.where(row, SIX, (SIX + 1) % 3) for name, row in zip(ATTACKS, correct, strict=True)}
    names = ["a", "b", "c"]
    made = Outcomes.from_predictions(SIX, predictions.pop("clean"), predictions, names)
    sizes = {"class": tuple(np.bincount(SIX).tolist())}
    about = dataclasses.replace(made.meta.stating(**meta), families={"t": ATTACKS[1:]}, sizes=sizes)
    return Outcomes(made.frame, about)


def without(whole: Outcomes, missing: set[tuple[str, int]]) -> Outcomes:
    """The table without some rows (attack, image)."""
    keep = [row not in missing for row in zip(whole.frame["attack"], whole.frame["index"], strict=True)]
    return Outcomes(whole.frame[keep], whole.meta)


@st.composite
def cut(draw: st.DrawFn) -> tuple[Outcomes, list[Outcomes]]:
    """An incomplete table and all its completions; in a cascade those that a cascade can have."""
    cascade = draw(st.booleans())
    correct = np.array(draw(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=3, max_size=3)))
    meta = {"cascade": True, "early_stop": True} if cascade else {}
    if cascade:
        correct = np.logical_and.accumulate(correct)
    cells = list(itertools.product(range(3), range(6)))
    chosen = draw(st.lists(st.sampled_from(cells), min_size=1, max_size=3, unique=True))
    completions = []
    for way in itertools.product((False, True), repeat=len(chosen)):
        filled = correct.copy()
        for cell, value_of in zip(chosen, way, strict=True):
            filled[cell] = value_of
        if not cascade or (filled == np.logical_and.accumulate(filled)).all():
            completions.append(families(filled, **meta))
    return without(families(correct, **meta), {(ATTACKS[row], image) for row, image in chosen}), completions


def value_of(measure: str, complete: Audit, name: str) -> Fraction | float:
    """A measure of a complete audit."""
    metric, _, end = measure.partition(".")
    inputs, found = complete.inputs(name), all_metrics()[metric]
    return found.ends[end](inputs.counts, 0.05).low if end else found.possible(inputs).low


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(cut(), st.data())
def test_bounds_and_decisions_agree_with_every_completion(
    drawn: tuple[Outcomes, list[Outcomes]], chosen: st.DataObject
) -> None:
    incomplete, completions = Audit(drawn[0]), drawn[1]
    cascade = incomplete.outcomes.meta.cascade
    for name in incomplete.names:
        for measure in Threshold.measures():
            values = [value_of(measure, Audit(completion), name) for completion in completions]
            limit = chosen.draw(st.sampled_from(values))
            if measure == "worst.split" or math.isnan(limit):
                continue
            limit = as_rational(limit)
            low, high = Threshold(measure, name, "<", limit).bounds(incomplete)
            if math.isnan(low):  # a metric without bounds
                assert Threshold(measure, name, "<", limit).decide(incomplete) is None
                continue
            assert low <= min(values) + 1e-15
            assert max(values) <= high + 1e-15
            if measure in ("overall", "worst") and name != "t-best" and not cascade:
                assert (low, high) == pytest.approx((min(values), max(values)))
            for comparison, compare in (("<", operator.lt), (">=", operator.ge)):
                decided = Threshold(measure, name, comparison, limit).decide(incomplete)
                assert decided is None or {compare(difference(value_of, limit), 0) for value_of in values} == {decided}


def test_survivors_that_are_not_judged_are_unknown() -> None:
    """All images are correct; two images that are not judged must not count as misclassified."""
    correct = np.ones((3, 6), dtype=np.bool_)
    correct[2, 3:5] = False
    cut_short = Audit(without(families(correct), {("t[2]", image) for image in (0, 1, 2, 5)}))
    assert cut_short.by_attack.loc["all", "overall_lower_bound"] == 0
    assert cut_short.by_attack.loc["all", "overall_upper_bound"] == pytest.approx(4 / 6)
    assert cut_short.by_attack.loc["all", "judged"] == 2
    assert list(cut_short.by_class["all_lower_bound"]) == [0, 0, 0]
    assert list(cut_short.by_class["all_upper_bound"]) == [1, 0, 1]
    assert list(cut_short.by_class["t[2]_judged"]) == [0, 2, 0]
    # Of attacks that are complete there are still estimates.
    assert cut_short.counts("t[1]").accuracy.tolist() == [1, 1, 1]
    for ask in (cut_short.worst_class, cut_short.counts, cut_short.intervals):
        with pytest.raises(IncompleteError, match="4 of 6 images are not judged by every attack"):
            ask()
    assert met(cut_short, ["worst(all) < 0.1"]) == {Threshold.parse("worst(all) < 0.1"): (0, 0)}
    with pytest.raises(IncompleteError, match=r"condition 'overall\(all\) < 0.5' is undecided"):
        Threshold.parse("overall(all) < 0.5").holds(cut_short)
    assert not Threshold.parse("overall(all) > 0.7").holds(cut_short)


def test_an_attack_that_never_ran_is_unknown_and_not_zero() -> None:
    whole = families(np.ones((3, 6), dtype=np.bool_))
    never = Audit(Outcomes(whole.frame[whole.frame["attack"] != "t[2]"], whole.meta))
    assert never.names == ("clean", "t[1]", "t[2]", "t-best", "t-union", "all")
    row = never.by_attack.loc["t[2]"]
    assert (row["judged"], row["overall_lower_bound"], row["overall_upper_bound"]) == (0, 0, 1)
    assert Threshold.parse("worst(t[2]) < 0.5").decide(never) is None
    with pytest.raises(IncompleteError):
        last_iterates(never.outcomes, "t[2]")
    with pytest.raises(IncompleteError):
        never.outcomes.best("t")


def test_images_without_any_row_have_their_class_from_the_metadata() -> None:
    whole = families(np.ones((3, 6), dtype=np.bool_))
    seen = Outcomes(whole.frame[whole.frame["index"] < 5], whole.meta)
    counts = seen.bounds("all")
    assert (counts.count.tolist(), counts.judged.tolist(), counts.unplaced) == ([3, 2, 1], [3, 2, 0], 0)
    bare = Outcomes(seen.frame, dataclasses.replace(seen.meta, sizes={}))
    assert bare.bounds("all").unplaced == 1
    assert Audit(bare).by_class.loc["a", "all_lower_bound"] == pytest.approx(3 / 4)


@pytest.mark.slow
def test_a_missing_file_makes_the_audit_incomplete(tmp_path: Path) -> None:
    whole = run_audit(linear(), toy_images(90), "Linf:0.01", ["fgsm", "pgd:steps=2"], out=tmp_path / "a")
    assert json.loads((tmp_path / "a" / ABOUT).read_text())["complete"]
    outcome_files.listed(tmp_path / "a" / "outcomes")[-1].unlink()
    found = Audit.load(tmp_path / "a")
    assert not found.complete
    assert found.outcomes.missing == {"pgd": 90}
    low, high = Threshold.parse("overall(all) < 0.5").bounds(found)
    assert low <= whole.by_attack["overall"]["all"] <= high
    with pytest.raises(IncompleteError):
        found.worst_class()


class Counted:
    """A stream without a length."""

    def __init__(self, images: int) -> None:
        self.images = images

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images = toy_images(self.images)
        yield from zip(torch.split(images.x, 32), torch.split(images.y, 32), strict=True)


@pytest.mark.slow
def test_a_stream_is_complete_when_it_was_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from classwise.auditing.run import inputs
    from classwise.auditing.run.loop import AttackLoop

    monkeypatch.setattr(inputs, "PIECE_BYTES", 1)
    late = iter([False] * 5)
    with monkeypatch.context() as patched:
        patched.setattr(AttackLoop, "late", property(lambda _: next(late, True)))
        stopped = run_audit(
            linear(), Counted(96), "Linf:0.01", ["fgsm"], out=tmp_path / "a", max_time=1000.0, batch_size=32
        )
    assert not stopped.complete
    assert stopped.by_attack.loc["clean", "overall_upper_bound"] == 1
    assert "an unknown number of images" in stopped.outcomes.gap
    assert not Audit.load(tmp_path / "a").complete
    report(stopped, tmp_path / "page.html")
    resumed = run_audit(linear(), Counted(96), "Linf:0.01", ["fgsm"], out=tmp_path / "a", resume=True, batch_size=32)
    loaded = Audit.load(tmp_path / "a")
    assert resumed.complete
    assert loaded.complete
    assert loaded.outcomes.meta.data_hash == resumed.outcomes.meta.data_hash != ""
    pd.testing.assert_frame_equal(loaded.by_class, resumed.by_class)


def test_incomplete_tables_are_not_joined() -> None:
    whole = families(np.ones((3, 6), dtype=np.bool_))
    check_refused("incomplete", without(whole, {("t[1]", 0)}).join, whole)


def test_images_that_an_early_stop_does_not_attack_are_judged() -> None:
    """Rows that a killed audit did not write, for images that were misclassified by an earlier attack."""
    correct = np.ones((3, 6), dtype=np.bool_)
    correct[:, :4] = False
    cut_short = without(families(correct, early_stop=True), {("t[2]", image) for image in range(6)})
    assert cut_short.missing == {"t[2]": 6}
    assert cut_short.unjudged == {"t[2]": 2}
    assert cut_short.verdicts("t[2]").tolist() == [0, 0, 0, 0, -1, -1]
    assert cut_short.gap.endswith("2 of 6 images are not judged by every attack (not judged: t[2] 2)")
    known = without(families(np.zeros((3, 6), dtype=np.bool_), early_stop=True), {("t[2]", 0)})
    assert not known.complete
    assert known.gap == "the audit is incomplete: rows of images that need no attack are missing (t[2] 1)"
