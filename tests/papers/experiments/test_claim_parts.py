"""Parts of claims on constructed outcomes, most of them with the printed accuracies, and where they are not tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from classwise.analysis.embedding import embedding_of
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.images import Images
from classwise.papers import catalogue
from classwise.papers.catalogue import claim_parts, experiment, printed_rows
from classwise.papers.claims import Test, not_tested, unless
from classwise.papers.declared import DeclaredTest, declared_tests
from classwise.papers.experiment import Context
from classwise.papers.experiments import case_study, class_wise, defences, protocol, temperature
from classwise.papers.experiments.case_study import ATTACK
from classwise.papers.experiments.protocol import (
    FAMILY,
    unmet_precondition,
    unmet_preconditions,
    unrecognised,
)
from classwise.papers.interval_estimators import exactly
from classwise.papers.runner import for_data
from classwise.papers.scales import SMALL, SMOKE
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate

from ..conftest import Smoke

NAMES = catalogue.paper("kdd21").conventions["cifar10_classes"]
ROUNDING = 0.051
"""The papers print accuracies of 1,000 images a class; differences of the constructed ones are exact."""


def outcomes(rows: Mapping[str, Sequence[float]], per_class: int = 1000, clean: float = 100) -> Outcomes:
    """Outcomes with class accuracies in percent: the first images of a class are correct."""
    labels, place = np.repeat(np.arange(10), per_class), np.tile(np.arange(per_class), 10)

    def predictions(accuracy: Sequence[float]) -> Any:
        right = np.round(np.asarray(accuracy) * per_class / 100)[labels]
        return np.where(place < right, labels, (labels + 1) % 10)

    attacks = {name: predictions(accuracy) for name, accuracy in rows.items()}
    return Outcomes.from_predictions(labels, predictions([clean] * 10), attacks, NAMES)


def context(scale: Any = SMALL, **parts: Any) -> Any:
    return SimpleNamespace(scale=scale, test_images=SimpleNamespace(class_names=NAMES), **parts)


def by_part(tests: Sequence[Test], claim: str) -> dict[str, list[float]]:
    """The estimates of each tested part of a claim; those of its default part, or the whole, by the empty name."""
    return {
        "".join(test.covers[:1]): [estimator(0.05).value for estimator in test.estimators]
        for test in tests
        if test.claim == claim and test.estimators
    }


def reasons(tests: Sequence[Test], claim: str) -> dict[tuple[str, ...], str]:
    return {tuple(test.covers): test.note for test in tests if test.claim == claim and not test.estimators}


def printed(item: str, **where: Any) -> dict[str, Mapping[str, Any]]:
    """Printed rows of an item by defence, those with some values."""
    rows = [row for row in printed_rows(item) if all(row[key] == value for key, value in where.items())]
    return {row["defence"]: row for row in rows}


def changed(base: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
    return np.array(base["per_class"]) + np.array(row["d_per_class"])


def test_each_of_the_two_hardest_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """kdd21/C14: HE loses more in class 3 and in class 4 than in every other class; Madry does not, in class 3."""
    plain, attacked = printed("kdd21/T1", attack="PGD"), {row["inv_T"]: row for row in printed_rows("kdd21/T3")}
    tables = {
        name: outcomes({"PGD": plain[name]["per_class"], **dict.fromkeys(("2", "5", "10", "50"), row["per_class"])})
        for name, row in (("Madry", attacked[2]), *((name, attacked[50]) for name in ("TRADES", "MART", "HE")))
    }
    tables |= dict.fromkeys(("TRADES", "MART"), tables["HE"])
    monkeypatch.setattr(temperature.Temperature, "audit", lambda self, context: tables)
    monkeypatch.setattr(temperature, "settings_table", lambda *_: class_wise.gap_table([]))
    values = by_part(experiment("kdd21/T3").run(context()).tests, "kdd21/C14")
    pairs = np.array(values["each of the two hardest"]).reshape(4, 2, 8)  # defence, class, other class
    for place, name, at in ((0, "Madry", 2), (3, "HE", 50)):
        drop = np.array(plain[name]["per_class"]) - attacked[at]["per_class"]
        others = np.delete(drop, (3, 4))
        assert pairs[place] == pytest.approx(np.array([drop[3] - others, drop[4] - others]), abs=1.5)
    assert (pairs[3] > 0).all()
    assert pairs[0].min() < 0


def improved(monkeypatch: pytest.MonkeyPatch, item: str, attacks: Mapping[float, str]) -> Sequence[Test]:
    """Tests of an item of iclr21 on the printed accuracies and changes."""
    base = printed("iclr21/T2", attack="PGD")
    tables = {}
    for name in ("Madry", "TRADES", "MART", "RST"):
        changes = {row["inv_T"]: row for row in printed_rows(item) if row["defence"] == name}
        rows = {text: changed(base[name], changes[at]) for at, text in attacks.items() if at in changes}
        tables[name] = outcomes({"PGD": base[name]["per_class"], **rows})
        specs: Any = {attack: {"name": "tpgd", "inverse_temperature": float(attack)} for attack in rows}
        meta = replace(
            tables[name].meta, families={FAMILY: tuple(rows)}, attacks={**tables[name].meta.attacks, **specs}
        )
        tables[name] = Outcomes(tables[name].frame, meta)
    found = experiment(item)
    monkeypatch.setattr(type(found), "audit", lambda self, context, step=0: tables)
    monkeypatch.setattr(temperature, "settings_table", lambda *_: class_wise.gap_table([]))
    monkeypatch.setattr(temperature, "unlabelled_note", lambda *_: "")
    return found.run(context()).tests


def test_sizes_of_the_drops_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """iclr21/C10: more than half of the smallest printed drop of the total and of class 4, for each defence."""
    values = by_part(improved(monkeypatch, "iclr21/T3", {2: "2", 5: "5"}), "iclr21/C10")
    expected = [value for total, deer in ((1.8, 5.0), (3.9, 10.2), (2.0, 4.2)) for value in (total - 0.9, deer - 2.1)]
    assert sorted(values["sizes as printed"]) == pytest.approx(sorted(expected), abs=ROUNDING)
    assert min(values["sizes as printed"]) > 0


def test_clear_losses_and_other_vulnerable_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """iclr21/C12: class 4 loses at least 2.9 points in print; classes 2, 3 and 5 lose in each row."""
    tests = improved(monkeypatch, "iclr21/T4", {at: str(at) for at in (2, 3, 4, 7, 10)})
    values = by_part(tests, "iclr21/C12")
    losses = [row["d_per_class"] for row in printed_rows("iclr21/T4") if row["defence"] != "Madry"]
    assert min(values["clear loss"]) == pytest.approx(2.9 - 2, abs=ROUNDING)
    assert len(values["clear loss"]) == len(losses) == 15
    others = [-changes[label] for changes in losses for label in (2, 3, 5)]
    assert sorted(values["other vulnerable classes"]) == pytest.approx(sorted(others), abs=2 * ROUNDING)


def attacked(
    monkeypatch: pytest.MonkeyPatch, item: str, few: int = 200, main: int = 1000, pgd: float | None = None
) -> Sequence[Test]:
    """Tests of a table of defences on its printed accuracies."""
    audits = {}
    for name in dict.fromkeys(row["defence"] for row in printed_rows(item)):
        rows = {row["attack"]: row["per_class"] for row in printed_rows(item) if row["defence"] == name}
        rows |= {"PGD": [pgd] * 10} if pgd is not None and name == "MART" else {}
        both = [
            SimpleNamespace(outcomes=outcomes({attack: rows[attack] for attack in attacks}, count), attacks=attacks)
            for attacks, count in ((("FGSM", "PGD", "transfer"), main), (("transfer", "CW_inf", "N_attack"), few))
        ]
        audits[name] = defences.Attacked(name, *both)  # type: ignore[arg-type]
    monkeypatch.setattr(defences, "audit_defences", lambda context, trainings: audits)
    monkeypatch.setattr(defences, "settings_table", lambda *_: class_wise.gap_table([]))
    monkeypatch.setattr(defences, "unlabelled_note", lambda *_: "")
    monkeypatch.setattr(defences, "_rst_note", lambda *_: "")
    return experiment(item).run(context()).tests


def test_other_vulnerable_classes_under_a_stronger_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """iclr21/C8 and C9: classes 2, 4 and 5 against the robust ones, in the order of the defences."""
    tests = attacked(monkeypatch, "iclr21/T2")
    claims = (("iclr21/C8", "FGSM", "PGD", 0.1), ("iclr21/C9", "transfer", "N_attack", 0.5))
    for claim, weak, strong, tolerance in claims:
        first, second = (printed("iclr21/T2", attack=attack) for attack in (weak, strong))
        drops = [np.array(first[name]["per_class"]) - second[name]["per_class"] for name in first]
        expected = [drop[[2, 4, 5]].mean() - drop[[0, 1, 6, 7, 8, 9]].mean() for drop in drops]
        assert by_part(tests, claim)["other vulnerable classes"] == pytest.approx(expected, abs=tolerance)


def test_rows_with_few_images_decide_nothing_about_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """kdd21/C8: 12 of 20 rows remain with 20 images a class under the costly attacks, and the reason is stated."""
    whole = by_part(attacked(monkeypatch, "kdd21/T1"), "kdd21/C8")["in every row"]
    assert len(whole) == 20
    tests = attacked(monkeypatch, "kdd21/T1", few=20)
    assert len(by_part(tests, "kdd21/C8")["in every row"]) == 12
    why = {name: f"{name}: 20 test images in a class, fewer than 50" for name in ("CW_inf", "N_attack")}
    assert reasons(tests, "kdd21/C8") == {("in every row",): "; ".join(why.values())}
    others = attacked(monkeypatch, "iclr21/T2", few=20)
    assert reasons(others, "iclr21/C9") == {(): why["N_attack"], ("other vulnerable classes",): why["N_attack"]}
    assert by_part(others, "iclr21/C8").keys() == {"", "other vulnerable classes"}


def test_a_defence_at_chance_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all rows is not tested without it; the changes of CV are those of the other defences."""
    tests = attacked(monkeypatch, "kdd21/T1", pgd=15)
    reason = "MART: the total is not above 2 times chance (20 percent)"
    assert reasons(tests, "kdd21/C8") == {("on average",): reason, ("in every row",): reason}
    assert reasons(tests, "kdd21/C10") == {("CV",): reason, ("MCD",): reason}
    assert len(by_part(tests, "kdd21/C10")["CV"]) == 3


def test_gains_of_hypersphere_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """iclr21/C18 and C23 on the printed Table 5: gains of 3.2 and 9.2 points over HE; vulnerable classes gain most."""
    rows = printed("iclr21/T5")
    accuracy = {name: changed(rows["Madry"], row) for name, row in rows.items() if name != "Madry"}
    accuracy |= {"Madry": rows["Madry"]["per_class"], "HE, margin 0.2": accuracy["HE"]}
    tables = {name: outcomes({"PGD": by_class}) for name, by_class in accuracy.items()}
    monkeypatch.setattr(temperature, "under_pgd", lambda context, model: SimpleNamespace(outcomes=tables[model]))
    monkeypatch.setattr(temperature, "settings_table", lambda *_: class_wise.gap_table([]))
    monkeypatch.setattr(temperature, "pgd_name", lambda _: "PGD-20")
    tests = experiment("iclr21/T5").run(context(train_all=lambda trainings: {name: name for name in trainings})).tests
    assert by_part(tests, "iclr21/C18")["strong gain"] == pytest.approx([3.2 - 1.6, 9.2 - 4.6], abs=0.1)
    assert by_part(tests, "iclr21/C23")[""] == pytest.approx([11.2 - 7.5, 18.2 - 8.3, 25.8 - 13.2], abs=0.1)


def test_much_smaller_confidence_variances() -> None:
    """kdd21/C17: less than half of the CVC of each other defence."""
    variances: Any = SimpleNamespace(mean={"MART": Estimate(0.05, 0.04, 0.06), "HE": Estimate(0.02, 0.01, 0.03)}.get)
    value, low, high = temperature._sharper(variances, "MART", "HE", "2")(0.05)
    assert [value, low, high] == pytest.approx([10, 10 - 1000 * 0.0005**0.5, 10 + 1000 * 0.0005**0.5])
    (test,) = (one for one in experiment("kdd21/F3a").tests if one.covers == ("much smaller",))
    assert {part[-1] for part in test.parts} == {"2"}


def test_neighbours_of_the_superclass_and_of_other_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """iclr21/C15: kappa of the superclass minus that of the class; the share of other classes around animals."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    animals = np.isin(labels, [2, 3, 4, 5, 6, 7])
    features = 3.0 * animals[:, None] * np.ones(4) + random.normal(size=(300, 4)) / 4
    names = tuple("abcdefghij")
    superclasses = [int(label in range(2, 8)) for label in range(10)]
    projection = embedding_of(features, features, labels, names, attack="PGD", superclasses=superclasses)
    monkeypatch.setattr(class_wise, "embedding", lambda audit, attack: projection)
    audit = SimpleNamespace(counts=outcomes({"PGD": [40] * 10}).counts)
    monkeypatch.setattr(class_wise, "under_pgd", lambda context, model, save: audit)
    tests = experiment("iclr21/F8").run(context(train_all=lambda trainings: trainings)).tests
    values = by_part(tests, "iclr21/C15")
    purity = projection.points[projection.points["kind"] == "clean"]["purity"].to_numpy()
    assert values["animals mixed"] == pytest.approx([100 * (0.5 - purity[animals].mean())] * 2)
    kappa = (purity.mean() - 29 / 299) / (1 - 29 / 299)
    assert values[""] == pytest.approx([1 - kappa] * 2)
    for test in tests:
        for estimator in test.estimators:
            wide, narrow = estimator(0.001), estimator(0.2)
            assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_the_disparity_under_a_lower_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    """kdd21/C30 on the printed accuracies: classes 3 and 5 are 16.8 points apart, and 0.5 with the lower beta."""
    before = {row["defence"]: row for row in printed_rows("kdd21/T3")}["TRADES"]["per_class"]
    after = [*before[:3], 33.6, before[4], 34.1, *before[6:]]
    tables = {"beta 6": outcomes({ATTACK: before}), "beta 0.5": outcomes({ATTACK: after})}
    parts = context(
        train_all=lambda trainings: {name: name for name in trainings},
        audit=lambda model, attacks: SimpleNamespace(outcomes=tables[model]),
    )
    monkeypatch.setattr(case_study, "case_study_attack", lambda context: {})
    values = by_part(experiment("kdd21/F4c").run(parts).tests, "kdd21/C30")
    assert values["classes 3 and 5"] == pytest.approx([16.8 - 0.5, 16.8 + 0.5])
    assert values["all classes"] == pytest.approx([np.ptp(before) - np.ptp(after)], abs=1e-6)
    tables["beta 0.5"] = outcomes({ATTACK: [12.0] * 10})
    tests = experiment("kdd21/F4c").run(parts).tests
    assert not any(test.estimators for test in tests)
    assert reasons(tests, "kdd21/C21") == {(): "beta 0.5: the total is not above 2 times chance (20 percent)"}


def test_pairs_with_a_lowered_beta_belong_to_the_claim_on_beta(smoke: Smoke) -> None:
    """kdd21/E11 repeats for 1-9 and 0-8 what C21 claims for classes 3 and 5; C20 is about the confusion."""
    assert {measurement.question for measurement in smoke.results["kdd21/E11"].measurements} == {"kdd21/C21"}


def standard_and_adversarial(
    monkeypatch: pytest.MonkeyPatch, item: str, clean: Sequence[float], per_class: int = 1000
) -> Sequence[Test]:
    """Tests of benz20 with a standard model of some accuracy, which the attack halves, and an adversarial one."""
    robust = [value / 2 for value in clean]
    audits = {
        "standard": SimpleNamespace(outcomes=outcomes({"PGD": robust}, per_class)),
        "adversarial": SimpleNamespace(outcomes=outcomes({"PGD": robust}, per_class, clean=80)),
    }
    labels = np.repeat(np.arange(10), per_class)
    place = np.tile(np.arange(per_class), 10)
    right = np.where(place < np.round(np.asarray(clean) * per_class / 100)[labels], labels, (labels + 1) % 10)
    halved = np.where(place < np.round(np.asarray(robust) * per_class / 100)[labels], labels, (labels + 1) % 10)
    audits["standard"].outcomes = Outcomes.from_predictions(labels, right, {"PGD": halved}, NAMES)
    for audit in audits.values():
        audit.counts = audit.outcomes.counts
    monkeypatch.setattr(class_wise, "under_pgd", lambda context, model: audits[model])
    monkeypatch.setattr(class_wise, "at_radius", lambda context, trained, share: audits["standard"])
    own = context(train_all=lambda trainings: {name: name for name in trainings})
    return experiment(item).run(own).tests


def test_the_cat_is_more_vulnerable(monkeypatch: pytest.MonkeyPatch) -> None:
    """benz20/C11: clean, and at the radius where the average is about a half."""
    clean = [95.0, 97, 92, 86, 95, 90, 97, 96, 97, 96]
    (values,) = by_part(standard_and_adversarial(monkeypatch, "benz20/F1", clean), "benz20/C11").values()
    others = np.delete(clean, 3) - 86
    assert values == pytest.approx([value for one in others for value in (one, one / 2)], abs=0.11)
    few = standard_and_adversarial(monkeypatch, "benz20/F1", clean, per_class=40)
    assert not any(test.estimators for test in few)
    assert len(reasons(few, "benz20/C3")) == 1


def test_the_same_weak_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """benz20/C2: the order of the classes under attack is that of the standard model."""
    tests = standard_and_adversarial(monkeypatch, "benz20/F2", [95.0, 97, 92, 86, 94, 90, 98, 96, 99, 93])
    robustness, _ = by_part(tests, "benz20/C2")["same weak classes"]
    assert robustness == pytest.approx(1, abs=0.01)


def test_what_cannot_be_tested_has_a_reason_and_no_part_in_the_verdict() -> None:
    claims = [claim for name in catalogue.OWN for claim in catalogue.paper(name).claims if claim.untestable]
    assert {claim.id for claim in claims} == {"kdd21/C18", "kdd21/C25", "kdd21/C29"}
    for claim in claims:
        assert min(map(len, claim.untestable.values())) > 40
        assert not {*claim.untestable} & {part for _, part in claim_parts(claim.id)}


def test_a_part_on_what_a_scale_lacks_is_left_out() -> None:
    parts = (("excess", "MART"), ("excess", "HE"))
    tested = DeclaredTest(claim="kdd21/C18", estimand="a", parts=parts, covers=("test images",))
    measures = {"excess": lambda name: exactly(len(name))}
    (one,) = declared_tests([tested], measures, known=("MART",))
    assert [estimator(0.05).value for estimator in one.estimators] == [4]
    (closed,) = declared_tests([tested], measures, excluded={"MART": "MART: few", "HE": "HE: weak"})
    assert (closed.covers, closed.note) == (("test images",), "MART: few; HE: weak")
    numbers = DeclaredTest(claim="kdd21/C4", estimand="a", parts=(("CV", "cifar10", "2.5"),))
    (test,) = declared_tests([numbers], {"CV": lambda data, factor: exactly(float(factor))}, known=("cifar10",))
    assert test.estimators[0](0.05).value == 2.5


def test_each_reason_of_a_claim_is_stated_once() -> None:
    few = [not_tested("kdd21/C10", "few", covers=[part]) for part in ("CV", "MCD", "CV")]
    weak = not_tested("kdd21/C10", "weak")
    found = for_data("cifar10", [*few, weak, *unless("few", [weak])])
    assert [(test.note, test.covers) for test in found] == [("few", ()), ("weak", ())]
    assert [test.covers for test in for_data("cifar10", few)] == [("CV", "MCD")]
    assert unless("", few) == few


@pytest.mark.parametrize(
    ("per_class", "right", "reason"),
    [
        (49, 40, "49 test images in a class, fewer than 50"),
        (50, 11, "the total is not above 2 times chance (20 percent)"),
        (50, 14, ""),
    ],
)
def test_preconditions_of_a_verdict_about_classes(per_class: int, right: int, reason: str) -> None:
    counts = ClassCounts(np.full(10, per_class), np.full(10, right))
    assert unmet_precondition(SMALL, counts) == reason
    assert unmet_precondition(SMOKE, counts) == ""
    tables = {"AT": outcomes({"PGD": [100 * right / per_class] * 10}, per_class), "HE": outcomes({"PGD": [60] * 10})}
    assert unmet_preconditions(SMALL, tables) == ({"AT": f"AT: {reason}"} if reason else {})


@pytest.mark.parametrize(
    ("per_class", "clean", "reason"),
    [
        (100, 24, "24 of 100 clean images of the class are correct"),
        (1000, 49, "490 of 1000 clean images of the class are correct"),
        (1000, 50, ""),
        (40, 90, "40 test images of the class, fewer than 50"),
    ],
)
def test_colours_say_nothing_about_a_class_that_is_not_recognised(per_class: int, clean: float, reason: str) -> None:
    """kdd21/C24 to C28 are about cats that the model recognises; the paper's does so on 710 of 1,000."""
    table = outcomes({ATTACK: [20] * 10}, per_class, clean)
    found = unrecognised(SMALL, table, case_study.VICTIM)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    assert unrecognised(SMOKE, table, case_study.VICTIM) == ""


@pytest.fixture
def cats() -> Images:
    """100 images of cats; the first ten are white."""
    pixels = torch.full((100, 3, 16, 16), 0.2)
    pixels[:10] = 0.95
    return Images(pixels, torch.full((100,), case_study.VICTIM), NAMES)


def of_cats(clean: int) -> Outcomes:
    """Outcomes of 100 cats: the first ones are robust, or correct without attack; the confidence falls."""
    labels, place = np.full(100, case_study.VICTIM), np.arange(100)
    predicted = {
        name: np.where(place < right, case_study.VICTIM, 5) for name, right in (("clean", clean), (ATTACK, 30))
    }
    confidences = np.full((100, 10), 0.01)
    confidences[place, predicted[ATTACK]] = 0.91
    confidences[:, case_study.VICTIM] -= place / 1e5
    confidences[:, 0] += place / 1e5
    return Outcomes.from_predictions(
        labels, predicted["clean"], {ATTACK: predicted[ATTACK]}, NAMES, confidences={ATTACK: confidences}
    )


@pytest.mark.parametrize("clean", [30, 80])
@pytest.mark.parametrize(("item", "claims"), [("kdd21/T4", {"C26", "C27", "C28"}), ("kdd21/E9", {"C24"})])
def test_colours_are_judged_where_cats_are_recognised(
    item: str, claims: set[str], clean: int, cats: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is right on 30 or 80 of the 100 clean cats; the most robust tenth is white, at 95 percent."""
    nothing = torch.zeros(100, 16, 16, dtype=torch.bool)
    masks: Any = SimpleNamespace(masks=nothing, note="", table=lambda: class_wise.gap_table([]))
    painted = case_study.PaintedImages(cats, cats, cats, masks)
    monkeypatch.setattr(case_study, "painted_images", lambda context: painted)
    monkeypatch.setattr(case_study, "object_masks", lambda images: masks)
    monkeypatch.setattr(case_study, "case_study_attack", lambda context: {})
    own: Any = SimpleNamespace(
        scale=SMALL,
        test_images=cats,
        train_all=lambda trainings: trainings,
        audit=lambda model, attacks, images: SimpleNamespace(outcomes=of_cats(clean)),
    )
    tests = experiment(item).run(own).tests
    assert {test.claim for test in tests} == {f"kdd21/{claim}" for claim in claims}
    assert all(bool(test.estimators) == (clean == 80) for test in tests)
    if item == "kdd21/E9" and clean == 80:
        assert by_part(tests, "kdd21/C24")["pure white background"] == pytest.approx([95 - 90], abs=0.3)


OTHER_CLAIMS = {"kdd21/C18", "kdd21/C23", "iclr21/C13", "iclr21/C17"}
"""Claims on single images or on totals, some of whose parts need no class."""


@pytest.mark.parametrize("name", [name for name in catalogue.runnable() if not name.startswith("cfa23")])
def test_no_experiment_judges_classes_without_the_preconditions(
    smoke: Smoke, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the models of the smoke scale, with more images required than there are."""
    if not {verdict.claim for verdict in smoke.results[name].verdicts if verdict.estimand} - OTHER_CLAIMS:
        return  # it judges none of them with fewer images either
    monkeypatch.setattr(protocol, "EXEMPT", ())
    monkeypatch.setattr(protocol, "LEAST_IMAGES", 10**6)
    found = experiment(name)
    tests = found.run(Context(found.scales["smoke"], smoke.store)).tests
    judged = {test.claim for test in tests if test.estimators and test.basis == "experiment"}
    assert judged <= OTHER_CLAIMS
