"""The passes counted by the benchmark of methods equal those of its page; intervals over seeds; paired rounds."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import (
    audit_calls,
    cluster_scaling,
    merging,
    named_class,
    ratios,
    streams,
    target_order,
    two_phase,
)
from benchmarks.__main__ import main
from benchmarks.comparison.page import classes_of, over_seeds
from benchmarks.coverage import lowest
from benchmarks.methods import counted, trainer_in_last_epoch
from benchmarks.pairing import Timing, paired

from classwise.attacks import suites
from classwise.attacks.gradient.apgd import APGDT
from classwise.auditing.compare.compare import compare
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY
from classwise.data import load_data
from classwise.data.images import Images
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval
from classwise.sweeps.executors.local import Local
from classwise.threat.ball import Threat
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from tests.attacks import models
from tests.auditing import toys
from tests.refusals import check_refused

PAGE = Path(__file__).parents[1] / "docs" / "results" / "methods.md"
BATCH = 4


def page_rows() -> dict[str, list[str]]:
    """The cells of each row by the row's first recipe."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "| `" in line]
    return {re.findall(r"`([^`]+)`", cells[0])[0]: cells for cells in rows}


def test_a_recipe_is_in_one_row_at_most() -> None:
    listed = [name for cells in page_rows().values() for name in re.findall(r"`([^`]+)`", cells[0])]
    assert len(listed) == len(set(listed)) > 40
    assert set(listed) <= set(recipe_names())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(page_rows()))
def test_the_page_has_the_passes_of_a_step(name: str) -> None:
    passes = counted(trainer_in_last_epoch(name, 0.0625, BATCH), BATCH)
    assert passes == Recipe.read(name).parts.passes * BATCH
    counts = [passes.forward, passes.to_image, passes.to_weights, passes.equivalents]
    assert [float(cell) for cell in page_rows()[name][1:5]] == [count / BATCH for count in counts]


def test_a_mean_over_seeds_has_student_s_interval() -> None:
    """For 1, 2 and 3 the half-width is 4.303 standard errors of 1 / sqrt(3)."""
    assert over_seeds([1, 2, 3]) == "+2.0 [-0.5, 4.5]"
    assert over_seeds([-0.5, -0.5, -0.5]) == "-0.5 [-0.5, -0.5]"


def test_the_classes_of_a_comparison_are_a_long_table() -> None:
    labels = np.arange(40) % 2
    predictions = {"at": np.where(np.arange(40) < 10, 0, labels), "cfa": labels}
    audits = {
        name: Audit(Outcomes.from_predictions(labels, labels, {"pgd": predicted}, ("cat", "dog")))
        for name, predicted in predictions.items()
    }
    rows = classes_of(compare(audits))
    assert list(rows.columns) == ["method", "class", "n", "mean", "low", "high"]
    assert rows[["method", "class", "n", "mean"]].to_numpy().tolist() == [
        ["at", "cat", 20, 1.0],
        ["at", "dog", 20, 0.75],
        ["cfa", "cat", 20, 1.0],
        ["cfa", "dog", 20, 1.0],
    ]


@pytest.mark.parametrize("profile", lowest.PROFILES)
def test_the_exact_coverage_of_the_worst_class_is_that_of_a_simulation(profile: str) -> None:
    """Two thousand samples with the function of the package."""
    classes, images, alpha = 4, 30, 0.2
    accuracy = lowest.PROFILES[profile](classes)
    drawn = np.random.default_rng(0).binomial(images, accuracy, size=(2000, classes))
    count = np.full(classes, images)
    ends = np.array([lowest_interval(ClassCounts(count, correct), alpha) for correct in drawn])
    found = lowest.exact(profile, accuracy, images, alpha)
    fails = (ends[:, 0] > accuracy.min() + 1e-9, ends[:, 1] < accuracy.min() - 1e-9)
    assert found.above <= alpha / 2
    assert found.below <= alpha / 2
    for probability, observed in zip((found.above, found.below), fails, strict=True):
        assert observed.mean() == pytest.approx(probability, abs=0.03)  # 4 standard errors at 10 %
    assert np.ptp(ends, axis=1).mean() == pytest.approx(found.width, rel=0.02)


def test_the_page_of_the_named_class_has_the_recorded_counts() -> None:
    text = named_class.PAGE.read_text(encoding="utf-8").partition(named_class.MARK)[2]
    assert text.strip() == named_class.run(quick=True).strip()
    another, lower, models = named_class.cross_entropy_only(named_class.of_cross_entropy(named_class.cases()))
    assert lower == models
    assert f"{another} of {models} models had another worst class and all had a lower" in CROSS_ENTROPY


def test_a_two_phase_replay_counts_its_sample() -> None:
    """Of the recorded outcomes of cifar10-at: passes, coverage, and a sample of everything."""
    label, fell = two_phase.of_counts(two_phase.RESULTS / "worst-class" / "cifar10-at.csv")
    outcomes = two_phase.of_stages("cifar10-at", label, fell, informative=False)
    assert outcomes.images.tolist() == [1000] * 10
    survivors = np.flatnonzero(outcomes.stage >= two_phase.SECOND)
    found = two_phase.replay(outcomes, 0.02, np.random.default_rng(0))
    assert found.estimate.settled
    assert 0 < len(found.drawn) < len(survivors)
    assert set(found.drawn) <= set(survivors)
    assert found.estimate.drawn.sum() == len(found.drawn)
    share = [outcomes.share(drawn, backwards=True) for drawn in (survivors[:0], found.drawn, survivors)]
    assert share == sorted(share)
    assert share[2] == pytest.approx(1)
    assert share[0] == pytest.approx(0.22, abs=0.02)  # APGD on all images
    every = two_phase.replay(outcomes, 1e-6, np.random.default_rng(0)).estimate
    assert every.overall.value == pytest.approx((outcomes.stage == two_phase.ROBUST).mean())
    assert every.worst.value == pytest.approx(outcomes.accuracy.min())


def test_the_rates_of_the_synthetic_outcomes() -> None:
    for uneven in (False, True):
        label, fell = two_phase.mnist(10_000, uneven=uneven)
        assert np.bincount(fell).tolist() == [130, 450, 120, 370, 8930]
        by_class = np.bincount(label[fell == 3])
        assert (by_class.max() > 0.4 * 370) == uneven


def test_outcomes_are_recorded_from_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.auditing.toys import images, model

    members = ("fgsm:step_size=0.9eps", "pgd:steps=2,step_size=0.3eps", "apgd-ce:steps=6", "square:steps=5")
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": members})
    monkeypatch.setitem(suites.SUITES, "fast", {"standard": members[:2]})
    whole = audit(model(), images(150, strength=0.034), "Linf:0.03", "autoattack", out=tmp_path / "a", batch_size=32)
    two_phase.record(tmp_path / "a", tmp_path / "a.csv")
    found = two_phase.recorded(tmp_path / "a.csv")
    assert found.accuracy.tolist() == pytest.approx(whole.by_class["all"].tolist())
    first = whole.outcomes.counts("pgd").correct.sum()
    assert (found.stage >= two_phase.SECOND).sum() == first > (found.stage == two_phase.ROBUST).sum()
    rows = whole.outcomes.frame
    assert found.forwards.sum() == rows["forwards"].sum()
    assert found.backwards[:, 1].sum() == rows[rows["attack"].isin(["apgd-ce", "square"])]["backwards"].sum()
    assert (
        not two_phase.replay(found, 1e-6, np.random.default_rng(0)).estimate.overall.high > found.accuracy.mean() + 1e-9
    )


@pytest.mark.parametrize("interrupted", [False, True])
def test_finished_rounds_are_not_repeated(tmp_path: Path, interrupted: bool) -> None:
    called: list[str] = []

    def stop() -> None:
        called.append("b")
        if interrupted and called.count("b") == 3:
            raise KeyboardInterrupt

    functions = {"a": lambda: called.append("a"), "b": stop}
    clock = lambda: float(len(called))  # noqa: E731
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            paired(functions, 3, clock=clock, keep=tmp_path)
        assert called == ["a", "b", "b", "a", "a", "b"]  # the warm-up, one round, half a round
        assert [file.name for file in tmp_path.iterdir()] == ["0.json"]
        called.clear()
        called += ["b"] * 3
        before = len(called)
        timing = paired(functions, 3, clock=clock, keep=tmp_path)
        assert called[before:] == ["a", "b", "a", "b", "b", "a"]  # the warm-up, the second and the third round
    else:
        timing = paired(functions, 3, clock=clock, keep=tmp_path)
        assert called == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert timing.seconds == {"a": [1, 1, 1], "b": [1, 1, 1]}
    done = len(called)
    assert paired(functions, 3, clock=clock, keep=tmp_path) == timing
    assert len(called) == done


@pytest.fixture
def fake_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchattacks whose PGD returns the clean images."""
    module = types.ModuleType("torchattacks")
    module.__dict__["PGD"] = lambda model, **options: lambda x, y: x
    monkeypatch.setitem(sys.modules, "torchattacks", module)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_peer")
def test_whole_audits_are_compared_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> str:
        return audit_calls.page(
            toys.model(scale=2.0), toys.images(120), Threat.parse("Linf:0.05"), 0.0125, sizes, tmp_path
        )

    sizes = {40: 1, 120: 2}
    text = measured()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [row[:2] for row in rows] == [["40", "1"], ["120", "2"]]
    for row in rows:
        auto = float(re.search(r"auto ([\d.]+)%", row[-2])[1])  # type: ignore[index]
        assert 0 < auto <= 20
        assert re.search(r"full ([\d.]+)%", row[-2])
        peer, ours = (float(cell.rstrip("%")) for cell in row[-1].split(", "))
        assert peer > ours  # the clean accuracy, and that under PGD
    monkeypatch.setattr(audit_calls, "audit", None)  # it is not called again
    assert measured() == text


@pytest.mark.slow
@pytest.mark.usefixtures("fake_peer")
def test_a_trial_of_the_audit_calls_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PAGE": tmp_path / "page.md",
        "KEEP": tmp_path,
        "QUICK": {32: 1},
        "ROUNDS": {32: 1},
        "load_data": lambda *_, **__: toys.images(32),
        "load_model": lambda _: toys.model(scale=2.0),
    }.items():
        monkeypatch.setattr(audit_calls, name, value)
    trial = audit_calls.run(quick=True)
    assert not (tmp_path / "page.md").exists()
    assert trial.count("| 32 |") == 1
    full = audit_calls.run(quick=False)
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == f"{audit_calls.INTRODUCTION}\n{full}"


def test_audit_calls_are_skipped_without_the_other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    assert "were skipped" in audit_calls.run(quick=True)


@pytest.mark.slow
def test_the_audits_of_streams_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SIDES", (40, 30)), ("SIZE", 16), ("RESIZE", 20), ("CLASSES", 3), ("FILES", 2), ("SHARD", 4)):
        monkeypatch.setattr(streams, name, value)
    streams.write(tmp_path, 7)
    assert len(list((tmp_path / "images" / "0000").iterdir())) == 3
    assert [file.name for file in sorted((tmp_path / "shards").glob("*.tar"))] == ["000000.tar", "000001.tar"]
    in_folder, in_shards = (load_data(tmp_path / name) for name in ("images", "shards"))
    assert in_folder.class_names == in_shards.class_names
    order = in_shards.y.argsort(stable=True)  # the folder is sorted by class
    assert torch.equal(in_folder.x, in_shards.x[order])
    assert torch.equal(in_folder.y, in_shards.y[order])
    assert all(case(tmp_path) > 0 for case in streams.CASES.values())


@pytest.mark.slow
def test_generated_shards_merge_into_a_complete_audit(tmp_path: Path) -> None:
    for step in merging.STEPS.values():  # the last one checks the table
        step(tmp_path, 2, 40)
    assert 0 < len(Artifacts(tmp_path).get("examples", "square")[0]) < 2 * 8  # those correct without attack


def test_the_ratios_of_a_table_are_noted_for_the_history(tmp_path: Path) -> None:
    ratios.taken()
    timing = Timing({"peer": [3.0, 8.0, 5.0], "ours": [1.0, 2.0, 2.0]})
    assert str(timing.ratio("peer", "ours", "PGD")) == "3.00 (2.50 to 4.00)"
    found = ratios.taken()
    assert found == {"PGD: peer / ours": ratios.Ratio((3.0, 4.0, 2.5))}
    assert ratios.taken() == {}
    conditions = {"date": "2026-01-01", "commit": "abc", "size": "quick", "device": "2 threads", "torch": "2.13.0"}
    history = tmp_path / "history.csv"
    for median in (3.0, 6.0):
        rows = ratios.rows_of("evaluation", {"PGD: peer / ours": ratios.Ratio((median,))}, conditions)
        ratios.append(rows, history)
    assert [row["median"] for row in ratios.read(history)] == ["3.000", "6.000"]
    assert set(ratios.read(history)[0]) == {*ratios.COLUMNS}
    now = ratios.rows_of("evaluation", found, conditions)
    assert "| evaluation | PGD: peer / ours | 3.000 | 6.000 | 2026-01-01, abc | -50% ! |" in ratios.changes(
        now, ratios.read(history)
    )
    elsewhere = [row | {"device": "1 threads"} for row in now]
    assert "| evaluation | PGD: peer / ours | 3.000 |  |  |  |" in ratios.changes(elsewhere, ratios.read(history))


def test_times_of_earlier_runs_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEEP", "earlier")
    with pytest.raises(SystemExit):
        main(["scaling", "--quick", "--record"])
    assert "--record: the folder KEEP has times of earlier runs" in capsys.readouterr().err


@pytest.mark.parametrize("images", ["abc", "0", "-5", "1.5"])
def test_an_impossible_number_of_streamed_images_is_an_error(monkeypatch: pytest.MonkeyPatch, images: str) -> None:
    monkeypatch.setenv("IMAGES", images)
    check_refused(f"^IMAGES={re.escape(images)}: must be a positive whole number", streams.run_shards, quick=False)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_local_worker_takes_the_memory_of_an_interpreter_without_torch() -> None:
    assert 5 < cluster_scaling.memory(Local(), 2) < 60  # MiB; with torch more than 150


def test_targets_within_a_prefix_are_those_of_a_run_with_so_many_targets() -> None:
    model, x, threat = models.Linear(12, channels=3, side=4), models.images(60, channels=3), Threat("Linf", 0.08)
    with torch.no_grad():
        model.weight.mul_(torch.linspace(0.2, 3, 12)[:, None])
        data = Images(x, model(x).argmax(1), [str(number) for number in range(12)])
    start, steps = target_order.starts_used(model, data, APGDT(steps=3), threat)
    assert int((start > 1).sum()) > 0
    for first in (1, 4):
        few, fewer_steps = target_order.starts_used(model, data, APGDT(steps=3, targets=first), threat)
        assert torch.equal(few, torch.where(start <= first, start, 0))
        assert torch.equal(fewer_steps, steps.clamp_max(4 * first))
    start, steps = target_order.starts_used(model, data, APGDT(steps=3, order="linearised"), threat)
    assert int(start.max()) == 1  # the nearest boundary is the first to be crossed
    assert int(steps[start == 0].min()) == int(steps.max()) == 4 * 9


def test_the_order_of_targets_is_not_measured_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert target_order.main([str(tmp_path / "train"), str(tmp_path / "test")]) == 0
    assert "not measured" in capsys.readouterr().out
