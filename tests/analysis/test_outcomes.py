"""Analyses of outcomes, each against a loop over the rows or the printed numbers of its paper."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from classwise.analysis.ablation import ablation
from classwise.analysis.consistency import consistency, ranked_alike
from classwise.analysis.drop import drop
from classwise.analysis.extremes import extremes
from classwise.analysis.gap import gap, gap_of, order_of
from classwise.analysis.norm_link import norm_link_of, row_norms
from classwise.analysis.smoothness import smoothness
from classwise.analysis.spread import spread_of
from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.metrics import overall_micro
from tests.analysis.printed import TABLE_1, TEMPERATURE_MART, TEMPERATURE_MART_CHANGES, counts, table_1
from tests.analysis.tables import CLASSES, NAMES, confidences, outcomes
from tests.auditing import toys
from tests.refusals import check_refused


def test_the_gap_of_two_classes_has_no_correlation() -> None:
    table = Outcomes.from_predictions([0, 1] * 20, [0, 1] * 20, {"pgd": [0, 0] * 20}, ("cat", "dog"))
    found = gap(table, table, "pgd")
    assert found.discrepancy[1].value == 1
    assert np.isnan([found.order.value, found.ranked.value]).all()
    assert found.figure()


def test_cumulative_verdicts_of_a_cascade_are_refused() -> None:
    table, (first, second) = outcomes(), ("weak", "strong")
    frame = table.frame.copy()
    skipped = (frame["attack"] == second) & (frame["index"] < 5)
    frame.loc[skipped, "status"] = "skipped"
    cascade = Outcomes(frame, table.meta)
    check_refused("requires an audit without a cascade", drop, cascade, first, second)
    check_refused("requires an audit without a cascade", ranked_alike, {"m": cascade})
    check_refused("requires an audit without a cascade", ablation, {"m": cascade}, first, second)


def test_the_printed_rankings_agree() -> None:
    """kdd21 section 4.3: Spearman of all pairs 0.77 to 1; class 1 is the best and class 3 the worst in all 20 rows."""
    found = consistency(table_1())
    pairs = found.correlations[np.triu_indices(20, k=1)]
    assert round(pairs.min(), 2) == 0.77
    assert found.lowest.value == pairs.min()
    assert pairs.max() <= 1
    assert found.agreement.value > 0.9
    assert found.agreement.p_value == 1e-4
    assert (found.extremes["worst"] == 3).all()
    assert (found.extremes["best"] == 1).all()


def test_rankings_of_outcomes_have_intervals() -> None:
    found = ranked_alike({"one": outcomes(seed=0), "two": outcomes(seed=9)}, permutations=99)
    assert list(found.accuracies.index) == ["one, weak", "one, strong", "two, weak", "two, strong"]
    assert found.accuracies.loc["two, weak", "c"] == outcomes(seed=9).counts("weak").accuracy[2]
    assert found.lowest.low <= found.mean.low <= found.mean.high <= 1
    parts = {"one": (outcomes(seed=0), outcomes(seed=9))}  # both have both attacks, so the first one counts
    assert ranked_alike(parts).accuracies.equals(found.accuracies.loc[["one, weak", "one, strong"]])
    check_refused("pass outcomes of two models", ranked_alike, {})


def test_intervals_of_equal_rankings_contain_the_estimate() -> None:
    """The correlation of a model with itself is 1, and that of noisy resamples lower."""
    labels = np.repeat(np.arange(10), 20)
    right = np.tile(np.arange(20), 10) < 5 + labels
    same = Outcomes.from_predictions(labels, attacks={"weak": np.where(right, labels, (labels + 1) % 10)})
    found = ranked_alike({"one": same, "two": same}, {"weak": "weak"}, permutations=99)
    assert found.lowest.value == pytest.approx(1)
    assert found.lowest.low < 1
    assert found.lowest.high == found.lowest.value


def test_drops_of_the_printed_tables() -> None:
    """iclr21 C8 and C9: Madry's class 3 drops by 16.2, class 1 by 9.6; from transfer to N attack by 36.9 and 10.0."""
    images = np.repeat(np.arange(10), 1000)
    right = {
        attack: np.concatenate([np.arange(1000) < round(10 * share) for share in TABLE_1["Madry", attack]])
        for attack in ("FGSM", "PGD", "transfer", "N")
    }
    predictions = {attack: np.where(is_robust, images, (images + 1) % 10) for attack, is_robust in right.items()}
    table = Outcomes.from_predictions(images, attacks=predictions)
    found = drop(table, "FGSM", "PGD")
    assert 100 * found.classes["drop"].to_numpy()[[3, 1]] == pytest.approx([16.2, 9.6])
    assert 100 * drop(table, "transfer", "N").classes["drop"].to_numpy()[[3, 1]] == pytest.approx([36.9, 10.0])
    assert [int(label) for label in found.classes.index[found.classes["vulnerable"]]] == [2, 3, 4, 5]
    wanted = found.classes["drop"].groupby(found.classes["vulnerable"]).mean()
    assert found.difference.value == pytest.approx(wanted[True] - wanted[False], abs=0.02)  # random halves
    assert -0.01 < found.difference.low < 0 < found.p_value < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accuracy", "lost", "images", "runs"),
    [
        (np.linspace(0.5, 0.9, 8), 0.1 / np.linspace(0.5, 0.9, 8), 60, 60),  # each class loses a tenth of its images
        (np.full(10, 0.5), np.full(10, 0.98), 10, 40),  # few images in tied classes
    ],
)
def test_equal_drops_are_rarely_a_significant_difference(
    accuracy: FloatArray, lost: FloatArray, images: int, runs: int
) -> None:
    """Both halves of the images enter both differences, so their errors are correlated; 5 % are expected."""
    labels, misses = np.repeat(np.arange(len(accuracy)), images), 0
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        weak = generator.random(len(labels)) < accuracy[labels]
        strong = weak & (generator.random(len(labels)) >= lost[labels])
        wrong = (labels + 1) % len(accuracy)
        attacks = {name: np.where(right, labels, wrong) for name, right in {"w": weak, "s": strong}.items()}
        found = drop(Outcomes.from_predictions(labels, attacks=attacks), "w", "s", seed=seed)
        covered = found.difference.low <= 0 <= found.difference.high
        assert covered == (found.p_value > 0.05)
        misses += not covered
    assert misses <= 0.1 * runs


def test_the_histogram_by_a_loop() -> None:
    sums = ClassCounts(np.array([10, 10, 10, 10, 0, 10]), np.array([0, 1, 2, 3, 0, 10]))
    found = spread_of(sums)
    wanted = np.zeros(10, int)
    for share in (0, 10, 20, 30, 100):  # [0, 10], (10, 20], ...: 10, 20 and 30 are upper ends
        wanted[0 if share == 0 else -(-share // 10) - 1] += 1
    assert found.count.tolist() == wanted.tolist() == [2, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert ((found.low <= found.count) & (found.count <= found.high)).all()
    assert found.table["classes"].sum() == 5
    check_refused("bins = 0", spread_of, sums, bins=0)


def test_the_gap_of_printed_rows() -> None:
    """Madry's transfer row and its PGD row: MCD 19.4 and 46.3, CV 56.1 and 224.3 (kdd21 Table 1)."""
    sides = counts(TABLE_1["Madry", "transfer"]), counts(TABLE_1["Madry", "PGD"])
    found = gap_of(*sides, [str(label) for label in range(10)])
    assert [round(100 * discrepancy.value, 1) for discrepancy in found.discrepancy] == [19.4, 46.3]
    plug_in = [1e4 * side.accuracy.var() for side in sides]
    assert plug_in == pytest.approx([56.1, 224.3], abs=0.15)
    sampling = [9 / 10 * (1e4 * side.accuracy * (1 - side.accuracy) / 999).mean() for side in sides]
    corrected = np.array(plug_in) - sampling
    assert [1e4 * variance.value for variance in found.variance] == pytest.approx(corrected)
    assert all(variance.low < variance.value < variance.high for variance in found.variance)
    assert found.variance_ratio.value == pytest.approx(corrected[1] / corrected[0])
    assert found.discrepancy_ratio.value == pytest.approx(46.3 / 19.4)
    assert found.variance_ratio.low > 2.5
    assert found.discrepancy_ratio.low > 1
    ranked = table_1().T[["Madry, transfer", "Madry, PGD"]].corr("spearman")
    assert found.order.value == pytest.approx(ranked.iloc[0, 1])
    assert found.order_interval.low < found.order.value < found.order_interval.high
    assert found.order_interval.low > 0.3
    other = dataclasses.replace(outcomes().meta, class_names=tuple("uvwxyz"))
    check_refused("different classes", gap, outcomes(), Outcomes(outcomes().frame, other), "weak")


def test_the_norm_link() -> None:
    model = toys.model(4)
    with np.errstate(all="raise"):
        norms = row_norms(model)
    assert norms == pytest.approx([float((row**2).sum() ** 0.5) for row in model.head.weight.detach().double()])
    share, length = np.array([0.2, 0.5, 0.4, 0.9, 0.7]), np.array([1.0, 1.4, 1.5, 2.0, 1.1])
    sums = ClassCounts(np.full(5, 100), np.rint(100 * share).astype(np.int64))
    found = norm_link_of(sums, tuple("abcde"), length)
    frame = pd.DataFrame({"a": share, "b": length})
    for method in ("pearson", "spearman", "kendall"):
        assert getattr(found, method).value == pytest.approx(frame.corr(method).iloc[0, 1])
    assert found.classes["accuracy_normalised"].to_list() == pytest.approx([0, 3 / 7, 2 / 7, 1, 5 / 7])
    assert found.classes["norm_normalised"].to_list() == pytest.approx([0, 0.4, 0.5, 1, 0.1])
    shown = dataclasses.replace(found, classes=found.classes.loc[["b", "c", "e"]])  # normalised over the shown classes
    for link, ends in ((found, ("0 to 0.714", "0 to 0.1")), (shown, ("0.333 to 1", "0.75 to 0"))):
        drawn = link.curves().svg()
        assert [f"{name}: from {end}<" in drawn for name, end in zip(("accuracy", "norm"), ends, strict=True)] == [
            True
        ] * 2
    linear, ranked = found.intervals
    assert linear == found.linear.estimate(0.05)
    assert linear.low < linear.value < linear.high
    assert np.isnan([ranked.low, ranked.high]).all(), "five classes"
    assert "(0." not in found.figure().svg()
    check_refused("one value for each of the 5 classes", norm_link_of, sums, tuple("abcde"), [1, 2])


def test_cvc_by_a_loop() -> None:
    """Definition 5.1 with 1/C inside: the mean over a class's images of the variance of their confidences."""
    table = outcomes()
    labels = table.labels
    shares = confidences(len(labels), labels, 0.8, 1)  # those of "strong"
    found = smoothness({"m": table}, "strong").rows.set_index("class")
    for label, name in enumerate(NAMES):
        each = [sum((p - 1 / CLASSES) ** 2 for p in row) / CLASSES for row in shares[labels == label]]
        assert found["cvc"][name] == pytest.approx(np.mean(each))
        assert found["n"][name] == len(each)
        assert found["low"][name] < found["cvc"][name] < found["high"][name] <= (CLASSES - 1) / CLASSES**2
    bare = Outcomes.from_predictions([0, 1], [0, 1])
    check_refused("no confidences under 'clean'", smoothness, {"m": bare}, "clean")


def test_the_ablation_of_printed_rows() -> None:
    """MART of kdd21 Table 3: the changes against PGD, and -3.9 in all."""
    labels = np.repeat(np.arange(10), 1000)
    rows = {"pgd": TABLE_1["MART", "PGD"], "tpgd[5]": TEMPERATURE_MART, "tpgd[2]": TABLE_1["MART", "PGD"]}
    predictions = {
        name: np.where(np.arange(10000) % 1000 < np.rint(10 * np.array(row))[labels], labels, (labels + 1) % 10)
        for name, row in rows.items()
    }
    table = Outcomes.from_predictions(labels, attacks=predictions, families={"tpgd": ("tpgd[5]", "tpgd[2]")})
    specs = {"pgd": None, "tpgd[5]": {"inverse_temperature": 5.0}, "tpgd[2]": {"inverse_temperature": 2.0}}
    found = ablation({"MART": Outcomes(table.frame, dataclasses.replace(table.meta, attacks=specs))})
    five = found.rows[found.rows["inverse_temperature"] == 5].set_index("class")
    assert 100 * five["change"].to_numpy()[:10] == pytest.approx(TEMPERATURE_MART_CHANGES)
    assert found.best.loc["MART", "inverse_temperature"] == 5
    assert round(100 * float(found.best["change"].iloc[0]), 1) == -3.9
    assert five["change"]["overall"] == pytest.approx(
        overall_micro(counts(TEMPERATURE_MART)) - overall_micro(counts(TABLE_1["MART", "PGD"]))
    )
    two = found.rows[found.rows["inverse_temperature"] == 2]
    assert (two["change"] == 0).all()
    assert (two["p"] == 1).all()
    check_refused("family of attacks", ablation, {"MART": outcomes()})
    check_refused("contain no 1/T of 'tpgd", ablation, {"MART": table})


def test_the_extremes_of_a_class_by_sorting() -> None:
    table = outcomes()
    found = extremes(table, "strong", 3, count=4)
    members = [row for _, row in table.rows("strong").iterrows() if row["label"] == 3]
    order = [row["index"] for row in sorted(members, key=lambda row: (-row["p_label"], row["index"]))]
    assert found.most.tolist() == order[:4]
    assert found.least.tolist() == order[::-1][:4]
    assert len(found.images) == len(members)
    assert found.table["index"].to_list() == order[:4] + order[-4:]
    check_refused("class 6 is not one", extremes, table, "strong", 6)
    check_refused("the outcomes of 'd' under 'strong' have no margin", extremes, table, "strong", 3, by="margin")


def test_few_images_or_classes_have_no_interval_of_a_rank_correlation() -> None:
    labels = [0, 0, 1, 1, 2, 2]
    attacks = {"pgd": [0, 1, 2, 2, 1, 1], "fgsm": [0, 1, 2, 2, 1, 1]}
    outcomes = Outcomes.from_predictions(labels, clean=labels, attacks=attacks)
    found = ranked_alike({"model": outcomes}, permutations=99)
    assert found.lowest.value == pytest.approx(1)
    assert np.isnan([found.lowest.low, found.lowest.high, found.mean.low]).all()


def test_images_that_two_models_share_have_the_same_halves() -> None:
    """Two equal models with tied classes: their errors are the same, which is no agreement of the true accuracies."""
    labels = np.repeat(np.arange(10), 40)
    right = np.random.default_rng(0).random(400) < 0.6
    same = Outcomes.from_predictions(labels, attacks={"weak": np.where(right, labels, (labels + 1) % 10)})
    found = ranked_alike({"one": same, "two": same}, {"weak": "weak"}, permutations=99)
    assert found.lowest == pytest.approx((1, -1, 1))
    attacked = np.where(right, labels, (labels + 1) % 10)
    both = Outcomes.from_predictions(labels, attacked, {"weak": attacked})
    assert order_of(both, both, "weak", range(10)).estimate().low == -1
