"""Incomplete audits: bounds that hold for every completion, and no unfounded estimate, worst class or decision."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import operator
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.analysis.base import last_iterates
from classwise.auditing.criteria.thresholds import Threshold, met
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.reporting import report
from classwise.stats.rational import as_rational, difference
from classwise.stats.registry import all_metrics

from .toys import images as toy_images
from .toys import model as linear

ATTACKS = ("clean", "t[1]", "t[2]")
LABELS = np.array([0, 0, 0, 1, 1, 2])


def table(correct: np.ndarray[tuple[int, int], np.dtype[np.bool_]], **meta: object) -> Outcomes:
    """A complete table of three attacks (the rows of ``correct``) on six images of three classes."""
    predictions = {name: np.where(row, LABELS, (LABELS + 1) % 3) for name, row in zip(ATTACKS, correct, strict=True)}
    names = ["a", "b", "c"]
    made = Outcomes.from_predictions(LABELS, predictions.pop("clean"), predictions, names)
    sizes = {"class": tuple(np.bincount(LABELS).tolist())}
    about = dataclasses.replace(made.meta, families={"t": ATTACKS[1:]}, sizes=sizes, **meta)  # type: ignore[arg-type]
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
        for cell, value in zip(chosen, way, strict=True):
            filled[cell] = value
        if not cascade or (filled == np.logical_and.accumulate(filled)).all():
            completions.append(table(filled, **meta))
    return without(table(correct, **meta), {(ATTACKS[row], image) for row, image in chosen}), completions


def value(measure: str, complete: Audit, name: str) -> Fraction | float:
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
            values = [value(measure, Audit(completion), name) for completion in completions]
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
                assert decided is None or {compare(difference(value, limit), 0) for value in values} == {decided}


def test_survivors_that_are_not_judged_are_unknown() -> None:
    """All images are correct; two images that are not judged must not count as misclassified."""
    correct = np.ones((3, 6), dtype=np.bool_)
    correct[2, 3:5] = False
    cut_short = Audit(without(table(correct), {("t[2]", image) for image in (0, 1, 2, 5)}))
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
    whole = table(np.ones((3, 6), dtype=np.bool_))
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
    whole = table(np.ones((3, 6), dtype=np.bool_))
    seen = Outcomes(whole.frame[whole.frame["index"] < 5], whole.meta)
    counts = seen.bounds("all")
    assert (counts.count.tolist(), counts.judged.tolist(), counts.unplaced) == ([3, 2, 1], [3, 2, 0], 0)
    bare = Outcomes(seen.frame, dataclasses.replace(seen.meta, sizes={}))
    assert bare.bounds("all").unplaced == 1
    assert Audit(bare).by_class.loc["a", "all_lower_bound"] == pytest.approx(3 / 4)


@pytest.mark.slow
def test_a_missing_file_makes_the_audit_incomplete(tmp_path: Path) -> None:
    whole = audit(linear(), toy_images(90), "Linf:0.01", ["fgsm", "pgd:steps=2"], out=tmp_path / "a")
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
        stopped = audit(
            linear(), Counted(96), "Linf:0.01", ["fgsm"], out=tmp_path / "a", max_time=1000.0, batch_size=32
        )
    assert not stopped.complete
    assert stopped.by_attack.loc["clean", "overall_upper_bound"] == 1
    assert "an unknown number of images" in stopped.outcomes.gap
    assert not Audit.load(tmp_path / "a").complete
    report(stopped, tmp_path / "page.html")
    resumed = audit(linear(), Counted(96), "Linf:0.01", ["fgsm"], out=tmp_path / "a", resume=True, batch_size=32)
    loaded = Audit.load(tmp_path / "a")
    assert resumed.complete
    assert loaded.complete
    assert loaded.outcomes.meta.data_hash == resumed.outcomes.meta.data_hash != ""
    pd.testing.assert_frame_equal(loaded.by_class, resumed.by_class)


def test_incomplete_tables_are_not_joined() -> None:
    whole = table(np.ones((3, 6), dtype=np.bool_))
    with pytest.raises(ClasswiseError, match="incomplete"):
        without(whole, {("t[1]", 0)}).join(whole)


def test_images_that_an_early_stop_does_not_attack_are_judged() -> None:
    """Rows that a killed audit did not write, for images that were misclassified by an earlier attack."""
    correct = np.ones((3, 6), dtype=np.bool_)
    correct[:, :4] = False
    cut_short = without(table(correct, early_stop=True), {("t[2]", image) for image in range(6)})
    assert cut_short.missing == {"t[2]": 6}
    assert cut_short.unjudged == {"t[2]": 2}
    assert cut_short.verdicts("t[2]").tolist() == [0, 0, 0, 0, -1, -1]
    assert cut_short.gap.endswith("2 of 6 images are not judged by every attack (not judged: t[2] 2)")
    known = without(table(np.zeros((3, 6), dtype=np.bool_), early_stop=True), {("t[2]", 0)})
    assert not known.complete
    assert known.gap == "the audit is incomplete: rows of images that need no attack are missing (t[2] 1)"
