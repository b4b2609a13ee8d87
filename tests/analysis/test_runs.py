"""Analyses of run folders and of saved tensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classwise.analysis.embedding import embedding, embedding_of
from classwise.analysis.epochs import inside
from classwise.analysis.fluctuation import fluctuation
from classwise.analysis.similarity import similarity, similarity_of
from classwise.analysis.steps import steps_of
from classwise.analysis.sweep import sweep
from classwise.analysis.trend import trend, trend_of
from classwise.auditing.run.audit import Audit, audit
from classwise.stats.counts import ClassCounts
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from tests.auditing import toys
from tests.refusals import check_refused

ROBUST = np.array([[0.1, 0.5, 0.9], [0.2, 0.6, 0.5], [0.4, 0.3, 0.8], [0.6, 0.2, 0.7]])
COUNT = np.array([10, 20, 30])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder of four epochs with known accuracies."""
    return written(tmp_path / "run", ROBUST)


def written(folder: Path, robust: np.ndarray[tuple[int, int], np.dtype[np.float64]], best: int = 2) -> Run:
    folder.mkdir()
    (folder / "recipe.yaml").write_text(Recipe(name="by hand", epochs=len(robust)).yaml())
    rows = [
        {"epoch": e, "split": "valid", "class": "abc"[c], "label": c, "count": COUNT[c], "clean": None, "robust": value}
        for e, values in enumerate(robust)
        for c, value in enumerate(values)
    ]
    pd.DataFrame(rows).to_parquet(folder / "epochs.parquet")
    (folder / "events.jsonl").write_text(
        json.dumps({"event": "selected", "which": "best", "epoch": best, "score": 1}) + "\n"
    )
    return Run.open(folder)


def test_a_trend_by_hand(run: Run) -> None:
    found = trend({"a": run})
    overall = [sum(n * a for n, a in zip(COUNT, row, strict=True)) / 60 for row in ROBUST]
    assert found.epochs["overall"].to_list() == pytest.approx(overall)
    assert found.epochs["worst"].to_list() == [0.1, 0.2, 0.3, 0.2]
    assert found.epochs["worst_class"].to_list() == ["a", "a", "b", "b"]
    assert found.epochs["gap"].to_list() == pytest.approx([0.8, 0.4, 0.5, 0.5])
    summary = found.summary.loc["a"]
    assert summary["change"] == pytest.approx(0.1)  # 0.1, 0.1, -0.1
    assert summary["variance"] == pytest.approx(np.var([0.1, 0.1, -0.1]))
    assert summary["turns"] == 1
    steps = np.abs(np.diff(overall))
    reach = 12.706205 * steps.std(ddof=1) * np.sqrt(2 / 3)  # t, 1 degree of freedom
    assert summary["change_overall_high"] == pytest.approx(steps.mean() + reach, rel=1e-5)
    assert summary["change_overall_low"] == max(0, steps.mean() - reach)
    last = trend({"a": run}, window=(0.5, 1.0)).summary.loc["a"]
    assert last["change"] == pytest.approx(0.1)
    assert np.isnan([last["change_low"], last["change_high"]]).all()
    assert "worst 20.0" in found.figure().svg()
    assert "a worst" in trend({"a": run, "b": (run, "valid")}).figure().svg()


def test_a_trend_of_counts_is_that_of_the_run(run: Run) -> None:
    counts = {epoch: ClassCounts(COUNT, np.rint(COUNT * row).astype(int)) for epoch, row in enumerate(ROBUST, 1)}
    found, measured = trend_of({"a": counts}, "abc"), trend({"a": run})
    for name in ("epochs", "classes", "summary"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(measured, name), check_dtype=False)


def test_windows_are_those_of_the_paper() -> None:
    """cfa23: epochs 101-120, 181-200 and 151-170 of 200."""
    for window, first, last in (((0.5, 0.6), 101, 120), ((0.9, 1.0), 181, 200), ((0.75, 0.85), 151, 170)):
        assert [epoch for epoch in range(1, 201) if inside(epoch, 200, window)] == [*range(first, last + 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measure": "clean"}, "clean was never measured"),
        ({"measure": "robusst"}, "did you mean 'robust'"),
        ({"split": "train"}, "split"),
        ({"window": (0.9, 1.0)}, "at least 2"),
    ],
)
def test_a_trend_of_missing_epochs(run: Run, change: dict[str, object], message: str) -> None:
    check_refused(message, trend, {"a": run}, **change)


def test_fluctuation_by_a_loop() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(300) % 3
    rates = np.array([[0.3], [0.7], [0.3], [0.7], [0.3]])
    wild, calm = generator.random((5, 300)) < rates, np.tile(generator.random(300) < 0.5, (4, 1))
    found = fluctuation({"wild": wild, "calm": calm}, labels, 3, resamples=200)
    worst = [min(row[labels == label].mean() for label in range(3)) for row in wild]
    assert found.runs["change"]["wild"] == pytest.approx(np.mean([abs(b - a) for a, b in zip(worst, worst[1:])]))  # noqa: B905, RUF007
    assert found.runs["change"]["calm"] == found.runs["change_high"]["calm"] == 0  # shared images cancel
    assert found.differences["calm"].high < 0
    assert 0 < found.runs["change_low"]["wild"] < found.runs["change"]["wild"] < found.runs["change_high"]["wild"]
    constant = fluctuation({"noise": generator.random((5, 300)) < 0.5}, labels, 3, resamples=200)
    assert constant.runs["change_low"]["noise"] == 0  # changes of the size of the noise may be none
    assert "calm" in found.figure().svg()
    check_refused("at least two epochs", fluctuation, {"one": wild[:1]}, labels, 3)


def test_a_sweep_by_hand(run: Run, tmp_path: Path) -> None:
    better = written(tmp_path / "better", np.minimum(ROBUST + 0.05, 1))
    found = sweep({2.0: better, 1.0: run}, "beta", window=(0.25, 0.75))
    middle = ROBUST[1:3].mean(axis=0)
    assert found.values("window").to_numpy()[0, :3] == pytest.approx(middle)
    assert found.values("window")["overall"].iloc[0] == pytest.approx((middle * COUNT).sum() / 60)
    assert found.values("last")["a"].iloc[0] == 0.6
    assert found.values("best")["a"].iloc[1] == pytest.approx(0.45)
    assert found.overfitting()["c"].iloc[0] == pytest.approx(0.1)
    change = found.change(1.0, 2.0)
    assert change["change"].to_list() == pytest.approx([0.05] * 4)
    assert (change["low"] < 0).all()
    assert (((change["low"] > 0) | (change["high"] < 0)) == (change["p"] < 0.05)).all()
    assert "beta" in found.figure().svg()
    check_refused("beta = 3 is not in the sweep", found.change, 1.0, 3.0)
    check_refused("no epoch between", sweep, {1.0: run}, "beta", window=(0.1, 0.12))


@pytest.fixture(scope="module")
def saved() -> Audit:
    """An audit of 60 images of three classes without early stopping, with all artifacts saved."""
    images = toys.images(60)
    return audit(
        toys.model(),
        images,
        "Linf:0.05",
        {"pgd": "pgd:steps=3", "tpgd": "tpgd:steps=3,inverse_temperature=5"},
        early_stop=False,
        save=["logits", "features"],
        trace=[4],
    )


def test_steps_are_rows_of_the_trace(saved: Audit) -> None:
    found = steps_of(saved, 4, steps=(0, 3))
    assert found.attacks == ("pgd", "tpgd")
    assert found.confidences.shape == (2, 2, 3)
    assert found.confidences.sum(axis=2) == pytest.approx(1)
    assert saved.trace is not None
    row = saved.trace.query("attack == 'tpgd' and iteration == 3 and `class` == 1")
    assert found.confidences[1, 1, 1] == row["confidence"].item()
    last = saved.outcomes.rows("tpgd").set_index("index").loc[4]
    assert found.confidences[1, 1, found.label] == pytest.approx(last["p_label"], abs=1e-6)
    assert bool(found.fooled.loc["tpgd", 3]) is not bool(last["correct"])
    assert "pgd, step 3" in found.figure().svg()
    for image, attacks, steps, message in ((5, (), (0,), "was not traced"), (4, ("fgsm",), (0,), "traced attack")):
        check_refused(message, steps_of, saved, image, attacks, steps)
    check_refused("no step 10; its last is 3", steps_of, saved, 4)
    check_refused(r"trace=\[4\]", steps_of, dataclasses.replace(saved, trace=None), 4)


def test_similarity_by_a_loop(saved: Audit) -> None:
    found = similarity(saved, "pgd")
    index, logits = saved.artifacts.get("logits", "clean")
    labels = saved.outcomes.labels[index]
    means = [logits[labels == label].astype(np.float64).mean(axis=0) for label in range(3)]
    for i in range(3):
        for j in range(3):
            cosine = means[i] @ means[j] / np.sqrt((means[i] ** 2).sum() * (means[j] ** 2).sum())
            assert found.cosines[i, j] == pytest.approx(cosine)
    assert found.nearest[0] == max(found.cosines[0, 1], found.cosines[0, 2])
    assert found.link is not None
    assert found.ranked is not None
    assert found.ranked.value == pytest.approx(found.link.value)
    assert "cosine" in found.figure().svg()
    assert similarity_of(logits, labels, "abc").link is None
    check_refused("expected shape", similarity_of, logits[:, :2], labels, "abc")


@pytest.mark.slow
def test_the_purity_of_neighbourhoods_by_a_loop(saved: Audit) -> None:
    index, clean = saved.artifacts.get("features", "clean")
    attacked = saved.artifacts.get("features", "pgd")[1]
    labels = saved.outcomes.labels[index]
    found = embedding_of(clean, attacked, labels, "abc", superclasses=(0, 0, 1), per_class=15, neighbours=4)
    rows = [row for label in range(3) for row in np.flatnonzero(labels == label)[:15]]
    group = {"class": labels, "superclass": np.array([0, 0, 1])[labels]}
    for kind, features in (("clean", clean), ("attack", attacked)):
        for level, ids in group.items():
            shares = []
            for row in rows:
                others = [other for other in rows if other != row]
                others.sort(key=lambda other: ((features[row].astype(float) - features[other]) ** 2).sum())
                shares.append(np.mean([ids[other] == ids[row] for other in others[:4]]))
            assert found.purity.loc[(kind, level), "purity"] == pytest.approx(np.mean(shares))
            if level == "class":
                own = found.points.loc[found.points["kind"] == kind, "purity"]
                assert sorted(own) == pytest.approx(sorted(shares))
    assert found.purity.loc[("clean", "class"), "chance"] == pytest.approx(14 / 44)
    assert len(found.points) == 90
    pd.testing.assert_frame_equal(embedding(saved, "pgd").points, embedding(saved, "pgd").points)
    assert found.figure().svg().count("<circle") == 90
    check_refused("requires more images", embedding_of, clean[:3], attacked[:3], labels[:3], "abc")
