"""Comparisons: the functions of classwise.stats, applied to the right images and to distinct runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classwise.attacks import ATTACKS
from classwise.auditing.compare.comparability import canonical
from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.sources import audits_in, training_seed
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY, parse_attacks
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.settings.config import describe, make
from classwise.reporting.board.board import board
from classwise.reporting.facts.comparison_tables import measure_table
from classwise.stats.counts import PairedCounts
from classwise.stats.intervals import clopper_pearson, lowest_interval
from classwise.stats.paired import class_differences, difference_of_minima
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)
from tests.refusals import check_refused

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
            assert found.table[measure][name] == audit.by_attack[measure]["all"]
        assert found.table["worst_low"][name] == audit.worst_class("all").low
        assert found.table["overall_high"][name] == audit.by_attack["overall_high"]["all"]
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


def test_seeds_of_a_method_are_averaged() -> None:
    seeds = [made(AT, seed) for seed in range(3)]
    found = compare({"at": seeds, "cfa": made(CFA, 9)})
    row = found.table.loc["at"].to_dict()
    overall = [audit.by_attack["overall"]["all"] for audit in seeds]
    worst = [audit.by_attack["worst"]["all"] for audit in seeds]
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
    path.mkdir(parents=True)
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
    fewer = Audit(Outcomes.from_predictions(LABELS[:90], LABELS[:90], {"pgd": LABELS[:90]}, NAMES))
    renamed = Audit(Outcomes.from_predictions(LABELS, LABELS, {"pgd": LABELS}, ["x", "y", "z"]))
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ({"a": one, "b": fewer}, {}, r"'a' and 'b' differ in images: 120 .* and 90 "),
        ({"a": one, "b": renamed}, {}, "'a' and 'b' differ in class names: cat, dog, elk and x, y, z"),
        ({"a": one, "b": one}, {"attack": "apgd"}, "attack of 'a'"),
        ([], {}, "nothing to compare"),
    ]
    for methods, options, message in refused:
        check_refused(message, compare, methods, **options)
    check_refused("unknown method", compare({"a": one}).pair, "a", "b")


PGD = {"name": "pgd", "steps": 20, "step_size": "0.25eps"}
ABOUT: dict[str, Any] = {
    "data": "toy",
    "split": "test",
    "data_hash": "ab" * 32,
    "threat": "Linf:8/255",
    "norm": "Linf",
    "early_stop": True,
}


def audited(
    seed: int = 0,
    rates: tuple[float, float, float] = AT,
    specs: dict[str, dict[str, Any]] | None = None,
    epsilon: Any = 8 / 255,
    index: Any = None,
    labels: Any = LABELS,
    **about: Any,
) -> Audit:
    """An audit with all fields recorded, like one of `audit`."""
    chosen: dict[str, dict[str, Any]] = {"pgd": PGD, "fgsm": {"name": "fgsm"}} if specs is None else specs
    success = {name: predictions(rates, seed + place) for place, name in enumerate(chosen)}
    success = {name: np.where(predicted == LABELS, labels, (labels + 1) % 3) for name, predicted in success.items()}
    made_of = Outcomes.from_predictions(labels, labels, success, NAMES, **ABOUT | {"model_hash": f"m{seed}"} | about)
    frame = made_of.frame
    numbers = np.arange(len(LABELS)) if index is None else np.asarray(index)
    radius = np.broadcast_to(np.asarray(epsilon, dtype=np.float64), (len(LABELS),))
    frame = frame.assign(
        epsilon=np.where(frame["attack"] == "clean", 0.0, radius[frame["index"]]), index=numbers[frame["index"]]
    )
    specs_of: dict[str, dict[str, Any] | None] = {"clean": None}
    specs_of.update(chosen)
    return Audit(Outcomes(frame, dataclasses.replace(made_of.meta, attacks=specs_of)))


RADII = np.linspace(0.01, 0.03, 120)
OTHER_LABELS = np.where(np.arange(120) == 7, 2, LABELS)
UNLIKE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "radius": ({}, {"threat": "Linf:4/255", "epsilon": 4 / 255}, "threat: Linf:8/255 and Linf:4/255"),
    "norm": ({}, {"threat": "L2:0.5", "norm": "L2", "epsilon": 0.5}, "threat: Linf:8/255 and L2:0.5"),
    "a radius that prints alike": (
        {"threat": "Linf:0.1", "epsilon": 0.1},
        {"threat": "Linf:0.1", "epsilon": 0.1001},
        "threat: Linf:0.1 and Linf:0.1001",
    ),
    "per-image radii": (
        {"threat": "Linf:per-image", "epsilon": RADII},
        {"threat": "Linf:per-image", "epsilon": RADII[::-1]},
        "threat: Linf:per-image, 0.01 to 0.03, mean 0.02 and Linf:per-image",
    ),
    "steps": (
        {},
        {"specs": {"pgd": {**PGD, "steps": 50}, "fgsm": {"name": "fgsm"}}},
        "attacks: pgd:steps=20.*steps=50",
    ),
    "fewer attacks": ({}, {"specs": {"pgd": PGD}}, "attacks: fgsm and no fgsm"),
    "early stop": (
        {},
        {"early_stop": False},
        "early stop: an attack stops at its first success and an attack runs all its steps",
    ),
    "cascade": ({}, {"cascade": True}, "cascade: no and yes"),
    "cascade in another order": (
        {"cascade": True},
        {"cascade": True, "specs": {"fgsm": {"name": "fgsm"}, "pgd": PGD}},
        "attacks: clean then pgd then fgsm and clean then fgsm then pgd",
    ),
    "pixels": ({}, {"data_hash": "cd" * 32}, "data: toy test SHA-256 abababababab and toy test SHA-256 cdcdcdcdcdcd"),
    "a hash that one lacks": ({}, {"data_hash": ""}, "data: .* and toy test, hash not stated"),
    "subset": ({}, {"index": np.arange(1, 121)}, "images: 120 .indices 0 to 119. and 120 .indices 1 to 120."),
    "numbers in between": (
        {"index": [*range(119), 130]},
        {"index": [*range(50), *range(51, 120), 130]},
        "images: with index 50 and without index 50",
    ),
    "labels": ({}, {"labels": OTHER_LABELS}, "labels: image 7 is 'dog' and image 7 is 'elk'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNLIKE)
def test_unlike_audits_are_refused_with_the_field_and_both_values(case: str, tmp_path: Path) -> None:
    first, second, message = UNLIKE[case]
    audits = {"a": audited(0, **first), "b": audited(1, **second)}
    for methods in (audits, dict(reversed(audits.items()))):
        with pytest.raises(ClasswiseError) as refused:
            compare(methods)
        assert not isinstance(refused.value, IncompleteError)
        assert "'a'" in str(refused.value)
        assert "'b'" in str(refused.value)
    check_refused(f"'a' and 'b' differ in {message}", compare, audits)
    # Also between the seeds of one method.
    check_refused("differ in", compare, {"a": [audits["a"], audits["b"]]})


def test_one_attack_is_compared_whatever_the_others_are() -> None:
    one = audited(0)
    more = audited(1, specs={"pgd": PGD, "fgsm": {"name": "fgsm", "random_init": "uniform"}})
    assert len(compare({"a": one, "b": more}, attack="pgd").pairs) == 1
    for attack in ("fgsm", "all"):
        check_refused("differ in attacks", compare, {"a": one, "b": more}, attack=attack)
    # In a cascade what an attack sees depends on those before it.
    first: dict[str, Any] = {**PGD, "steps": 3}
    cascades = [audited(0, specs={"pgd": spec, "fgsm": {"name": "fgsm"}}, cascade=True) for spec in (PGD, first)]
    check_refused("differ in attacks", compare, {"a": cascades[0], "b": cascades[1]}, attack="fgsm")


def test_clean_accuracies_compare_under_any_threat() -> None:
    found = compare(
        {"a": audited(0), "b": audited(1, threat="L2:1", norm="L2", epsilon=1, early_stop=False)}, attack="clean"
    )
    assert found.table["overall"].tolist() == [1.0, 1.0]
    assert found.notes == ()


def test_families_compare_with_equal_members() -> None:
    specs: dict[str, dict[str, Any]]
    specs = {f"tpgd[{value}]": {"name": "tpgd", "inverse_temperature": value} for value in (2, 5)}
    about: Any = {"families": {"tpgd": tuple(specs)}}
    one, two = audited(0, specs=specs, **about), audited(1, specs=specs, **about)
    for attack in ("tpgd-best", "tpgd-union"):
        assert len(compare({"a": one, "b": two}, attack=attack).pairs) == 1
    other = audited(1, specs={**specs, "tpgd[5]": {"name": "tpgd", "inverse_temperature": 6}}, **about)
    for attack in ("tpgd-best", "tpgd-union"):
        check_refused("differ in attacks", compare, {"a": one, "b": other}, attack=attack)


def test_unrecorded_fields_must_be_unrecorded_in_both_audits() -> None:
    bare = [made(AT, 0), made(CFA, 1)]
    (note,) = compare({"a": bare[0], "b": bare[1]}).notes
    assert "data hash, threat, early stop, attacks" in note
    check_refused("not stated", compare, {"a": bare[0], "b": audited(1)})
    # A stated threat is one threat however it is written.
    stated = [
        Audit(Outcomes.from_predictions(LABELS, LABELS, {"pgd": LABELS}, NAMES, threat=threat))
        for threat in ("Linf:8/255", "linf: 0.0313725490196", "Linf:4/255")
    ]
    assert compare({"a": stated[0], "b": stated[1]}).complete
    check_refused("differ in threat: Linf:8/255 and Linf:4/255", compare, {"a": stated[0], "b": stated[2]})
    check_refused("differ in threat: Linf:8/255 and not stated", compare, {"a": stated[0], "b": bare[0]})


def test_groupings_must_agree() -> None:
    def grouped(ids: list[int], names: list[str]) -> Audit:
        return Audit(audited().outcomes.add_groups("half", ids, names))

    halves = grouped([0] * 60 + [1] * 60, ["first", "second"])
    other = grouped([0] * 61 + [1] * 59, ["first", "second"])
    renamed = grouped([0] * 60 + [1] * 60, ["one", "two"])
    assert compare({"a": halves, "b": other}).complete
    check_refused(
        "differ in grouping half: image 60 in 'second' and image 60 in 'first'",
        compare,
        {"a": halves, "b": other},
        group="half",
    )
    check_refused(
        "differ in grouping half: first, second and one, two", compare, {"a": halves, "b": renamed}, group="half"
    )


def test_across_threats_there_are_no_tests(tmp_path: Path) -> None:
    """One model at three radii: accuracies at each, no differences or p-values."""
    at = {radius: audited(0, epsilon=radius, threat=f"Linf:{radius}") for radius in (4 / 255, 1 / 255, 2 / 255)}
    other = audited(1, epsilon=1 / 255, threat="Linf:1/255")
    check_refused(
        r"differ in threat: Linf:4/255 and Linf:1/255.*--across threat", compare, {"a": at[4 / 255], "b": at[1 / 255]}
    )
    found = compare({"a": [*at.values()], "b": other}, across="threat")
    assert list(found.levels) == ["Linf:1/255", "Linf:2/255", "Linf:4/255"]
    assert found.radii is not None
    assert found.radii[0] == "Linf"
    assert found.radii[1] == pytest.approx((1 / 255, 2 / 255, 4 / 255), rel=1e-5)
    assert found.table.index.tolist() == [*(("a", level) for level in found.levels), ("b", "Linf:1/255")]
    assert not hasattr(found, "pairs")
    for level, radius in zip(found.levels, (1 / 255, 2 / 255, 4 / 255), strict=True):
        expected = at[radius].by_attack.loc["all"]
        row: Any = found.table.loc[("a", level)]
        assert (row["overall"], row["worst"]) == (expected["overall"], expected["worst"])
        assert (row["overall_low"], row["overall_high"]) == (expected["overall_low"], expected["overall_high"])
    # Without names the audits of one model are a line.
    assert compare([*at.values(), other], across="threat").names == ("audit", "audit-2")


def test_across_one_field_the_others_must_agree() -> None:
    one = audited(0)
    weak = audited(1, epsilon=1 / 255, threat="Linf:1/255", early_stop=False)
    other = audited(1, epsilon=1 / 255, threat="Linf:1/255", specs={"pgd": {**PGD, "steps": 50}})
    refused: list[tuple[Audit, Audit, dict[str, Any], str]] = [
        (one, weak, {"across": "threat"}, "differ in early stop"),
        (one, audited(1), {"across": "threat"}, "same threat, Linf:8/255"),
        (one, weak, {"across": "early_stop"}, "unknown field to compare across"),
        (one, weak, {"across": "threat", "attack": "clean"}, "clean accuracy does not depend on the threat"),
        (one, other, {"across": "attacks"}, "use audits with the same threat$"),
        (one, weak, {"across": "attacks"}, "differ in threat: .*; use audits with the same threat and early stop$"),
        (made(AT, 0), made(AT, 1), {"across": "threat"}, "'a' has no recorded threat"),
    ]
    for first, second, options, message in refused:
        check_refused(message, compare, {"a": first, "b": second}, **options)


def test_norms_are_levels_without_a_curve() -> None:
    found = compare({"a": audited(0), "b": audited(1, epsilon=0.5, threat="L2:0.5", norm="L2")}, across="threat")
    assert (list(found.levels), found.radii) == (["L2:0.5", "Linf:8/255"], None)


def test_across_attacks() -> None:
    weak, strong = audited(0, specs={"pgd": PGD}), audited(0, specs={"pgd": {**PGD, "steps": 50}}, cascade=True)
    found = compare({"a": [weak, strong]}, across="attacks")
    assert list(found.levels) == ["pgd:steps=20,step_size=0.25eps", "pgd:steps=50,step_size=0.25eps"]


def without(audit: Audit, attack: str, images: range) -> Audit:
    frame = audit.outcomes.frame
    lost = (frame["attack"] == attack) & frame["index"].isin(images)
    return Audit(Outcomes(frame[~lost], audit.outcomes.meta))


def test_incomplete_audits_have_bounds_only() -> None:
    one, two = audited(0), audited(1)
    part = without(two, "fgsm", range(30))
    with pytest.raises(IncompleteError, match="'b' is incomplete: images not judged: 30 under fgsm"):
        compare({"a": one, "b": part})
    found = compare({"a": one, "b": part}, allow_incomplete=True)
    assert not found.complete
    assert (found.pairs, found.judged_by_all) == ((), 90)
    for ask in (lambda: found.table, lambda: found.classes, lambda: found.pair("a", "b")):
        with pytest.raises(IncompleteError):
            ask()
    survivors = two.outcomes.correct("pgd")[:30].sum()  # whose verdict the missing rows decide
    sure = two.outcomes.correct("all")[30:].sum()
    row = found.bounds.loc["b"]
    assert (row["overall_low"], row["overall_high"]) == (
        pytest.approx(sure / 120),
        pytest.approx((sure + survivors) / 120),
    )
    assert row["judged"] == 120 - survivors
    whole = found.bounds.loc["a"]
    assert (
        whole["overall_low"] == pytest.approx(whole["overall_high"]) == pytest.approx(one.by_attack["overall"]["all"])
    )
    assert whole["worst_low"] == pytest.approx(whole["worst_high"]) == pytest.approx(one.by_attack["worst"]["all"])
    # Whatever the missing rows say, the truth lies between the bounds.
    assert row["worst_low"] <= two.by_attack["worst"]["all"] <= row["worst_high"]
    # Attacks that are whole still compare, with a note.
    incomplete, objectives = compare({"a": one, "b": part}, attack="pgd").notes
    assert "incomplete under attacks that are not compared" in incomplete
    assert objectives == CROSS_ENTROPY
    other = audited(0, epsilon=0.2, threat="Linf:0.2")
    with pytest.raises(IncompleteError) as crossed:  # bounds of crossings cannot be shown
        compare({"a": other, "b": part}, across="threat")
    assert "allow_incomplete" not in str(crossed.value)
    check_refused(
        r"across \(--across\) requires complete audits",
        compare,
        {"a": one, "b": part},
        across="threat",
        allow_incomplete=True,
    )


def test_different_suites_are_refused_even_if_incomplete_audits_are_allowed() -> None:
    part = without(audited(1, specs={"pgd": PGD}), "pgd", range(30))
    check_refused("differ in attacks", compare, {"a": audited(0), "b": part}, allow_incomplete=True)


@pytest.mark.slow
def test_pairs_use_all_seeds(tmp_path: Path) -> None:
    def saved(method: str, numbers: tuple[int, ...], rates: tuple[float, float, float]) -> list[Path]:
        places = [tmp_path / method / f"seed-{number}" for number in numbers]
        return [
            audited(10 * len(method) + number, rates).save(place) for number, place in zip(numbers, places, strict=True)
        ]

    saved("at", (0, 1, 2), AT)
    saved("cfa", (0, 1, 2), CFA)
    saved("dafa", (0, 1, 5), CFA)
    saved("one", (0,), CFA)

    def correct(method: str) -> np.ndarray:
        return np.stack([Audit.load(path).outcomes.correct("all") for path in sorted((tmp_path / method).iterdir())])

    for second in ("cfa", "dafa", "one"):
        found = compare([tmp_path / "at", tmp_path / second])
        assert found.names == ("at", second)
        (pair,) = found.pairs
        runs = correct(second), correct("at")
        expected = difference_over_seeds(*runs, LABELS, 3, paired=False)
        whole = difference_over_seeds(*runs, np.zeros(120, int), 1, paired=False)
        assert pair.seeds == (len(runs[0]), 3)
        assert pair.test == "test over seeds and images"
        assert pair.classes["difference"].tolist() == expected.difference.tolist()
        assert pair.classes["adjusted"].tolist() == expected.adjusted.tolist()
        assert pair.p_value == whole.p_value[0]
        assert pair.overall == (whole.difference[0], whole.low[0], whole.high[0])
        worst = worst_difference_over_seeds(runs[0], runs[1], LABELS, 3)
        assert (*pair.minima, pair.of_images) == worst
        assert pair.narrower == worst.narrower
        assert ("one is one training" in pair.population) == (second == "one")
    single = compare([tmp_path / "one", tmp_path / "at" / "seed-0"]).pairs[0]
    assert single.test == "McNemar test"
    assert re.fullmatch(
        r"<Pair seed-0 minus one, in points: overall \S+ \[\S+, \S+\], worst class \S+ \[\S+, \S+\]; McNemar test>",
        repr(single),
    )
    assert "not new training seeds" in single.population


@pytest.mark.slow
def test_the_selected_method_has_intervals_that_account_for_its_selection() -> None:
    audits = {"at": made(AT, 0), "cfa": made(CFA, 1), "dafa": made((0.35, 0.6, 0.7), 2)}
    found = compare(audits)
    selected = found.selected
    assert selected is not None
    assert (selected.name, selected.models) == (found.best[0], 3)
    counts = audits[selected.name].outcomes.counts("all")
    assert selected.worst.low == lowest_interval(counts, 0.05 / 3)[0]
    assert selected.worst.high == found.table["worst_high"].max()
    ends = clopper_pearson(counts.correct.sum(), counts.count.sum(), 0.05 / 3)
    assert selected.overall == pytest.approx((found.table["overall"][selected.name], *map(float, ends)))
    assert compare({"at": audits["at"]}).selected is None


def test_methods_of_unequal_numbers_of_seeds_do_not_widen_the_selected_one() -> None:
    two, three = ([made(rates, seed) for seed in seeds] for rates, seeds in ((AT, (0, 1)), (CFA, (2, 3, 4))))
    selected = compare({"at": two, "cfa": three}).selected
    assert selected is not None
    correct = np.stack([audit.outcomes.correct("all") for audit in three])
    ends = worst_over_seeds(correct, LABELS, 3, 0.025, simultaneous=True)
    assert (selected.name, *selected.worst) == ("cfa", *ends[:3])


def test_the_order_of_paired_seeds_does_not_matter(tmp_path: Path) -> None:
    paths = {
        (m, s): audited(10 * s + len(m), AT).save(tmp_path / m / f"seed-{s}") for m in ("a", "bb") for s in range(3)
    }
    found = [
        compare({"a": [paths["a", s] for s in order], "bb": [paths["bb", s] for s in range(3)]}).pairs[0]
        for order in ((0, 1, 2), (2, 0, 1))
    ]
    assert found[0].p_value == pytest.approx(found[1].p_value)
    assert found[0].overall == pytest.approx(found[1].overall)


def test_a_model_is_one_seed() -> None:
    one = audited(0)
    check_refused("runs 1 and 2 of 'a' are audits of the same model", compare, {"a": [one, one], "b": audited(1)})


@pytest.mark.slow
def test_a_folder_is_one_method_only_if_names_differ_in_a_number(tmp_path: Path) -> None:
    for seed, name in enumerate(("at", "cfa")):
        audited(seed).save(tmp_path / "mixed" / name)
    check_refused(r"names differ in more than a seed's number \(at, cfa\)", compare, [tmp_path / "mixed"])
    for seed in (10, 9):
        audited(seed).save(tmp_path / "at" / f"run{seed}")
    assert [path.name for path in audits_in(tmp_path / "at")] == ["run9", "run10"]
    assert audits_in(tmp_path / "at" / "run9") == [tmp_path / "at" / "run9"]
    found = compare({"at": tmp_path / "at"})
    assert found.seeds == {"at": 2}
    runs = [run_folder(tmp_path / "seeds" / f"seed-{seed}", "at-mine", seed) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        audited(20 + seed).save(run)
    found = compare([tmp_path / "seeds"])
    assert found.seeds == {"at-mine": 2}
    assert [training_seed(audit) for audit in found.audits["at-mine"]] == [0, 1]
    run_folder(tmp_path / "seeds" / "seed-2", "another", 2)
    audited(22).save(tmp_path / "seeds" / "seed-2")
    check_refused("differ in more than the seed", compare, [tmp_path / "seeds"])


def test_inapplicable_attacks_are_not_compared() -> None:
    one = audited(0)
    frame, meta = audited(1).outcomes.frame, audited(1).outcomes.meta
    part = Outcomes(frame[frame["attack"] != "pgd"], dataclasses.replace(meta, not_applicable=("pgd",)))
    check_refused(r"differ in attacks: pgd:.* and no pgd", compare, {"a": one, "b": Audit(part)})
    assert compare({"a": one, "b": Audit(part)}, attack="fgsm").complete
    with pytest.raises(IncompleteError, match="'b' has no robust accuracy under 'pgd': not applicable"):
        compare({"a": one, "b": Audit(part)}, attack="pgd")


def test_a_teacher_has_a_column(tmp_path: Path) -> None:
    plain, ours = run_folder(tmp_path / "plain", "at", 0), run_folder(tmp_path / "ours", "fair-ard", 0)
    text = (ours / "recipe.yaml").read_text().replace("objective: at", "objective: {name: ard, teacher: runs/large}")
    (ours / "recipe.yaml").write_text(text)
    for number, run in enumerate((plain, ours)):
        made(CFA, number).save(run / "audits" / "short")
    found = compare([plain, ours])
    assert found.teachers == {"at": "", "fair-ard": "runs/large"}
    assert found.table["teacher"].tolist() == ["", "runs/large"]
    assert found.notes[-1] == "fair-ard distils a teacher, which is usually larger; the others do not."
    table = measure_table(found)
    assert table.heads[:3] == ["method", "teacher", "seeds"]
    assert [row.cells[0].text for row in table.rows] == ["none", "runs/large"]
    assert board([plain, ours]).table.set_index("model")["teacher"].to_dict() == {"plain": "", "ours": "runs/large"}
    without = compare([plain])
    assert "teacher" not in without.table
    assert "teacher" not in measure_table(without).heads
    assert not any("teacher" in note for note in without.notes)


TWENTY = np.repeat([0, 1], 10)


def of_two_classes(correct: int = 5, spec: dict[str, Any] | None = None, **about: Any) -> Audit:
    predicted = np.where(np.arange(20) % 10 < correct, TWENTY, 1 - TWENTY)
    outcomes = Outcomes.from_predictions(TWENTY, TWENTY, {"pgd": predicted}, ["cat", "dog"], **about)
    meta = dataclasses.replace(outcomes.meta, attacks={"clean": None, "pgd": spec})
    return Audit(Outcomes(outcomes.frame, meta))


def test_one_audit_is_not_two_seeds(tmp_path: Path) -> None:
    """Neither as an object, nor in another audit of its outcomes, nor from its folder, nor by its model."""
    audit, rest = of_two_classes(), of_two_classes(7)
    audit.save(tmp_path / "audit")
    folder, same = tmp_path / "audit", tmp_path / "audit" / ".." / "audit"
    loaded = Audit.load(folder)
    hashed = [of_two_classes(correct, model_hash="ab" * 32) for correct in (5, 6)]
    cases: tuple[tuple[list[Any], str], ...] = (
        ([audit, audit], "the same outcomes"),
        ([rest, audit, of_two_classes(6), dataclasses.replace(audit, name="other")], "the same outcomes"),
        ([folder, same], "the same folder"),
        ([loaded, folder], "the same folder"),
        (hashed, "the same model"),
    )
    for runs, what in cases:
        check_refused(
            rf"^runs \d and \d of 'a' are audits of {what}.*; give each training", compare, {"a": runs, "b": rest}
        )
    twice = of_two_classes(threat="Linf:0.1"), of_two_classes(threat="Linf:0.2")
    check_refused(
        "runs 1 and 3 of 'a' are audits of the same outcomes", compare, {"a": [*twice, twice[0]]}, across="threat"
    )


def test_equal_predictions_of_two_models_are_two_seeds() -> None:
    assert compare({"a": [of_two_classes(), of_two_classes()], "b": of_two_classes(7)}).seeds == {"a": 2, "b": 1}


def test_other_seeds_of_the_attacks_are_noted() -> None:
    note = "The audits used different seeds of the attacks' random numbers: 0, 3."
    runs = {"a": of_two_classes(seed=3), "b": of_two_classes(7, seed=0), "c": of_two_classes(8)}
    assert note in compare(runs).notes
    assert note not in compare(runs, attack="clean").notes
    assert note not in compare({"a": of_two_classes(seed=3), "b": of_two_classes(7, seed=3)}).notes
    levels = {"a": [of_two_classes(seed=3, threat="Linf:0.1"), of_two_classes(4, seed=0, threat="Linf:0.2")]}
    assert note in compare(levels, across="threat").notes


@pytest.mark.parametrize("name", [None, 3, "", " ", "\ud800", "b "])
def test_names_of_methods_are_checked(name: Any) -> None:
    check_refused(
        r"names of methods: |compare\(\): audits = ", compare, {name: of_two_classes(), "b": of_two_classes(7)}
    )


@pytest.mark.parametrize("name", [None, 3, "", "\ud800"])
def test_the_name_of_an_audit_is_checked(name: Any) -> None:
    check_refused(r"name of the audit: |Audit\(\): name = ", Audit, of_two_classes().outcomes, name=name)


SAME = (
    ({"steps": 10}, {"steps": 10.0}),
    ({"steps": 10}, {"steps": "10"}),
    ({"step_size": "0.1eps"}, {"step_size": "0.10eps"}),
    ({"step_size": "eps"}, {"step_size": "1eps"}),
    ({"step_size": 0.25}, {"step_size": "1/4"}),
    ({"attack": {"name": "pgd", "steps": 3}}, {"attack": {"name": "pgd", "steps": 3.0}}),
    ({"sizes": (1, 2)}, {"sizes": [1.0, 2.0]}),
)
OTHER = (
    ({"steps": 10}, {"steps": 10.5}),
    ({"steps": 1}, {"steps": True}),
    ({"steps": 0}, {"steps": None}),
    ({"step_size": "0.1eps"}, {"step_size": 0.1}),
    ({"step_size": "0.1eps"}, {"step_size": "0.2eps"}),
    ({"seed": 2**62}, {"seed": 2**62 + 1}),
    ({"objective": "ce"}, {"objective": "margin"}),
)


@pytest.mark.parametrize(("first", "second"), SAME)
def test_equal_settings_in_another_form_compare(first: dict[str, Any], second: dict[str, Any]) -> None:
    found = compare(
        {"a": of_two_classes(5, {"name": "pgd", **first}), "b": of_two_classes(7, {"name": "pgd", **second})}
    )
    assert found.names == ("a", "b")
    assert len(found.pairs) == 1


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_other_settings_do_not_compare(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert canonical(first) is not canonical(second)
    check_refused(
        "differ in attacks",
        compare,
        {"a": of_two_classes(5, {"name": "pgd", **first}), "b": of_two_classes(7, {"name": "pgd", **second})},
    )


@pytest.mark.parametrize("steps", [10.0, "10", "10.0", np.int64(10)])
def test_a_whole_number_of_steps_in_any_form_is_one_attack(steps: Any) -> None:
    attack = make(ATTACKS, {"name": "pgd", "steps": steps})
    assert describe(ATTACKS, attack) == describe(ATTACKS, make(ATTACKS, "pgd:steps=10"))
    assert type(describe(ATTACKS, attack)["steps"]) is int
    assert [*parse_attacks([f"pgd:steps={steps}"]).attacks] == ["pgd"]


@pytest.mark.parametrize("label", ["n", "low", "high", "class", "pgd_low", "all_judged", "pgd ", " ", "\ud800"])
def test_labels_of_an_audits_attacks_are_those_that_tables_can_show(label: str) -> None:
    check_refused(r"is reserved|but for blanks|is blank|surrogate", parse_attacks, {"pgd": "pgd", label: "fgsm"})
