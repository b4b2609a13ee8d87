"""Methods side by side: the pieces are those of classwise.stats, put together over the right images."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from classwise.auditing.compare import compare
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.errors import UserError
from classwise.stats.counts import PairedCounts
from classwise.stats.paired import class_differences, difference_of_minima
from classwise.stats.seeds import mean_over_seeds, worst_over_seeds

NAMES = ["cat", "dog", "elk"]
LABELS = np.arange(120) % 3


def predictions(rates: tuple[float, float, float], seed: int) -> np.ndarray:
    right = np.random.default_rng(seed).random(len(LABELS)) < np.asarray(rates)[LABELS]
    return np.where(right, LABELS, (LABELS + 1) % 3)


def made(rates: tuple[float, float, float], seed: int, name: str = "audit") -> Audit:
    outcomes = Outcomes.from_predictions(LABELS, LABELS, {"pgd": predictions(rates, seed)}, NAMES)
    return Audit(outcomes, name=name)


AT, CFA = (0.2, 0.6, 0.8), (0.4, 0.6, 0.7)


def test_the_table_has_a_row_per_method() -> None:
    one, two = made(AT, 0), made(CFA, 1)
    found = compare({"at": one, "cfa": two})
    assert found.table.index.tolist() == ["at", "cfa"]
    assert found.table["seeds"].tolist() == [1, 1]
    for name, audit in (("at", one), ("cfa", two)):
        for measure in ("overall", "macro", "worst", "worst20", "cv", "mcd", "nrr", "hmw", "worst_class"):
            assert found.table[measure][name] == audit.summary[measure]["all"]
        assert found.table["worst_low"][name] == audit.worst("all").minimum.low
        assert found.table["overall_high"][name] == audit.summary["high"]["all"]
    assert found.table["overall_sd"].isna().all()


def test_pairs_are_tested_on_the_same_images() -> None:
    one, two = made(AT, 0), made(CFA, 1)
    (pair,) = compare({"at": one, "cfa": two}).pairs
    cells = PairedCounts.from_labels(LABELS, two.outcomes.correct("all"), one.outcomes.correct("all"), 3)
    expected = class_differences(cells)
    assert (pair.first, pair.second) == ("cfa", "at")
    assert pair.classes["difference"].tolist() == expected.difference.tolist()
    assert pair.classes["adjusted"].tolist() == expected.adjusted.tolist()
    assert pair.minima == difference_of_minima(cells)
    assert pair.overall.value == pytest.approx(two.outcomes.correct("all").mean() - one.outcomes.correct("all").mean())
    assert pair.overall.low < pair.overall.value < pair.overall.high


def test_an_audit_does_not_differ_from_itself() -> None:
    one = made(AT, 0)
    (pair,) = compare({"at": one, "again": one}).pairs
    assert pair.p_value == 1.0
    assert pair.classes["difference"].tolist() == [0.0, 0.0, 0.0]


def test_seeds_of_a_method_are_taken_together() -> None:
    seeds = [made(AT, seed) for seed in range(3)]
    found = compare({"at": seeds, "cfa": made(CFA, 9)})
    row = found.table.loc["at"].to_dict()
    overall = [audit.summary["overall"]["all"] for audit in seeds]
    worst = [audit.summary["worst"]["all"] for audit in seeds]
    assert row["seeds"] == 3
    assert row["overall"] == pytest.approx(np.mean(overall))
    assert row["overall_sd"] == pytest.approx(np.std(overall, ddof=1))
    assert row["worst"] == pytest.approx(np.mean(worst))
    correct = np.stack([audit.outcomes.correct("all") for audit in seeds])
    means = mean_over_seeds(correct, np.zeros_like(LABELS), 1)
    assert (row["overall_low"], row["overall_high"]) == (means.low[0], means.high[0])
    both = worst_over_seeds(correct, LABELS, 3)
    assert (row["worst_low"], row["worst_high"]) == (both.low, both.high)
    assert found.classes["at", "sd"].notna().all()
    assert found.classes["cfa", "sd"].isna().all()
    assert found.classes["", "n"].tolist() == [40, 40, 40]
    assert found.classes["at", "mean"].tolist() == pytest.approx(correct.reshape(3, 40, 3).mean(axis=(0, 1)).tolist())


def test_it_compares_under_any_attack_and_group() -> None:
    one, two = made(AT, 0), made(CFA, 1)
    assert compare({"a": one, "b": two}, attack="clean").table["overall"].tolist() == [1.0, 1.0]
    halves = [
        Audit(audit.outcomes.add_groups("half", [0] * 60 + [1] * 60, ["first", "second"])) for audit in (one, two)
    ]
    found = compare({"a": halves[0], "b": halves[1]}, group="half")
    assert found.classes.index.tolist() == ["first", "second"]
    assert found.classes["a", "mean"].tolist() == [
        pytest.approx(one.outcomes.correct("all")[part].mean()) for part in (slice(60), slice(60, 120))
    ]


def test_folders_are_read_and_named(tmp_path: Path) -> None:
    made(AT, 0).save(tmp_path / "first")
    made(CFA, 1).save(tmp_path / "second")
    assert compare([tmp_path / "first", tmp_path / "second"]).names == ("first", "second")
    assert compare([made(AT, 0, "x"), made(CFA, 1, "x")]).names == ("x", "x-2")


def run_folder(path: Path, recipe: str, seed: int) -> Path:
    path.mkdir()
    (path / "recipe.yaml").write_text(f"name: {recipe}\nobjective: at\nseed: {seed}\nepochs: {len(recipe)}\n")
    return path


def test_runs_that_differ_in_the_seed_are_one_method(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / f"run{seed}", "at-mine", seed) for seed in (0, 1)]
    runs.append(run_folder(tmp_path / "other", "cfa-mine", 0))
    for seed, folder in enumerate(runs):
        made(AT, seed).save(folder)
    found = compare(runs)
    assert found.table["seeds"].to_dict() == {"at-mine": 2, "cfa-mine": 1}


def test_only_audits_of_the_same_images_compare() -> None:
    one = made(AT, 0)
    meta = dataclasses.replace(one.outcomes.meta, images=100)
    fewer = Audit(Outcomes(one.outcomes.frame[one.outcomes.frame["index"] < 100], meta))
    with pytest.raises(UserError, match="'b' judged other images"):
        compare({"a": one, "b": fewer})
    renamed = Audit(Outcomes.from_predictions(LABELS, LABELS, {"pgd": LABELS}, ["x", "y", "z"]))
    with pytest.raises(UserError, match="'b' has other classes"):
        compare({"a": one, "b": renamed})
    hashed = [
        Audit(Outcomes.from_predictions(LABELS, LABELS, {"pgd": LABELS}, NAMES, data_hash=word))
        for word in ("one", "two")
    ]
    with pytest.raises(UserError, match="other pixels or labels"):
        compare({"a": hashed[0], "b": hashed[1]})
    with pytest.raises(UserError, match="attack of 'a'"):
        compare({"a": one, "b": one}, attack="apgd")
    with pytest.raises(UserError, match="nothing to compare"):
        compare([])
    with pytest.raises(UserError, match="unknown method"):
        compare({"a": one}).pair("a", "b")
