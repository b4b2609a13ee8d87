"""The audit of a folder of seed runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import classwise as cw
from classwise.auditing.compare.compare import compare
from classwise.auditing.run.result import Audit
from classwise.auditing.run.seeds import audit_seeds
from classwise.cli.seeds import _facts, _show
from classwise.stats.seeds import mean_over_seeds
from tests.auditing.test_criteria import written
from tests.refusals import check_refused

from .conftest import QUICK, Classwise

FAST = ["--attack=pgd:steps=2", "--subset=60"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from classwise.cli import main

    folder = tmp_path_factory.mktemp("seeds") / "at"
    words = ["train", "at", "--budget=short", "--data=digits", f"--out={folder}", "--seeds=0,3"]
    words += [*QUICK[1:], "--epochs=1"]
    assert main(words) == 0
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Two runs of one recipe, without audits."""
    return Path(shutil.copytree(trained, tmp_path / "at"))


@pytest.mark.slow
def test_every_seed_is_audited_into_its_own_run(classwise: Classwise, runs: Path) -> None:
    printed = classwise("audit", runs, *FAST).printed
    places = [runs / f"seed-{seed}" / "audits" / "digits-test" for seed in (0, 3)]
    audits = [Audit.load(place) for place in places]
    assert all((place / "page.html").is_file() for place in places)
    lines = printed.splitlines()
    assert [line.split("  ")[0] for line in lines[2:5]] == ["seed 0", "seed 3", "mean of 2 seeds"]
    for line, audit in zip(lines[2:4], audits, strict=True):
        row = audit.by_attack.loc["all"]
        assert f"{100 * row['overall']:.1f}  [{100 * row['overall_low']:.1f}, {100 * row['overall_high']:.1f}]" in line
    correct = np.stack([audit.outcomes.correct("all") for audit in audits])
    means = mean_over_seeds(correct, np.zeros(60, int), 1)
    ends = f"[{100 * means.low[0]:.1f}, {100 * means.high[0]:.1f}]"
    assert f"{100 * means.mean[0]:.1f}  {ends}" in lines[4]
    assert "new images and new training seeds" in printed
    # `compare` takes the same folder as one method.
    assert compare([runs]).seeds == {"at-short": 2}

    # So does it the folder of a sweep, whose runs have other names.
    sweep = runs.parent / "runs"
    sweep.mkdir()
    for number, run in enumerate(sorted(runs.iterdir())):
        shutil.copytree(run, sweep / f"cell{number}")
    assert compare([sweep]).seeds == {"at-short": 2}

    # Without --resume nothing is done twice; with it what is missing is made, and the rest is loaded.
    again = classwise("audit", runs, *FAST)
    assert (again.status, again.err.count("\n")) == (2, 1)
    assert "--resume" in again.err
    shutil.rmtree(places[1])
    resumed = classwise("audit", runs, *FAST, "--resume", "--json")
    facts = json.loads(resumed.out)
    assert resumed.status == 0, resumed.err
    assert (list(facts["seeds"]), facts["complete"]) == (["0", "3"], True)
    assert facts["mean"]["overall"] == pytest.approx(means.mean[0])
    assert Audit.load(places[1]).outcomes.frame.equals(audits[1].outcomes.frame)
    assert Audit.load(places[0]).outcomes.frame.equals(audits[0].outcomes.frame)


def test_the_table_of_the_seeds_is_by_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As the tables of each seed are."""
    labels = [0, 0, 1, 1, 2, 2]
    predictions = {0: [0, 0, 1, 0, 2, 0], 3: [0, 0, 0, 1, 0, 2]}
    audits = {
        seed: cw.Audit(
            cw.Outcomes.from_predictions(labels, attacks={"pgd": attacked}, training_counts=[50, 10, 2]),
            group="frequency",
        )
        for seed, attacked in predictions.items()
    }
    _show(tmp_path, audits, len(audits))
    lines = capsys.readouterr().out.splitlines()
    assert all(" middle " in line for line in lines[2:5])
    assert "lowest frequency group accuracy" in lines[5]
    assert lines[6].endswith("lowest frequency group; worst frequency group is that of the lowest mean")
    mean = _facts(tmp_path, audits, {}, len(audits))["mean"]
    assert (mean["worst_class"], mean["worst"]) == ("middle", 0.5)


@pytest.mark.slow
def test_a_condition_fails_if_it_holds_for_any_seed(classwise: Classwise, runs: Path, tmp_path: Path) -> None:
    classwise("audit", runs, *FAST)
    clean = {s: Audit.load(runs / f"seed-{s}" / "audits" / "digits-test").by_attack["overall"]["clean"] for s in (0, 3)}
    low, high = sorted(clean.values())
    thresholds = {f"overall(clean) < {low}": [], f"overall(clean) <= {high}": [0, 3]}
    if low < high:
        thresholds[f"overall(clean) < {(low + high) / 2}"] = [seed for seed in (0, 3) if clean[seed] == low]
    failed = classwise("audit", runs, *FAST, "--resume", "--json", *(f"--fail-if={text}" for text in thresholds))
    assert failed.status == 1
    assert json.loads(failed.out)["fail_if_seeds"] == thresholds
    assert f"failed: fails if overall(clean) <= {high}, which is true (seeds 0, 3)" in failed.err
    assert f"failed: overall(clean) < {low}" not in failed.err


@pytest.mark.slow
def test_a_policy_is_decided_for_every_seed(classwise: Classwise, runs: Path, tmp_path: Path) -> None:
    stated = {"attacks": ["pgd:steps=2"], "fail_if": ["overall(all) > 0.999"]}
    words = ["audit", runs, *FAST, "--precision=float32", f"--policy={tmp_path / 'policy.yaml'}"]
    written(tmp_path / "policy.yaml", **stated)
    assert (
        "passed: fails if overall(all) > 0.999, which is false for every seed" in classwise(*words).printed.splitlines()
    )
    written(tmp_path / "policy.yaml", **stated, guards=["training-attack"])  # PGD of 2 steps is one
    said = classwise(*words, "--resume")
    assert (said.status, "passed: " in said.out) == (3, False)
    for seed in (0, 3):
        assert f"not as required, seed {seed}: The guard training-attack has a warning." in said.err
    assert json.loads(classwise(*words, "--resume", "--json").out)["fail_if"] == {"overall(all) > 0.999": None}
    written(tmp_path / "policy.yaml", **stated | {"fail_if": ["overall(all) >= 0"]})
    assert classwise(*words, "--resume").status == 1


@pytest.mark.slow
def test_seeds_without_time_left_make_the_audit_incomplete(
    classwise: Classwise, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from classwise.auditing.run import seeds

    ticks = iter([0.0, 0.0, 61.0])
    monkeypatch.setattr(seeds, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    real = cw.audit
    monkeypatch.setattr(seeds, "audit", lambda *args, **more: real(*args, **{**more, "max_time": None}))
    said = classwise("audit", runs, *FAST, "--max-time=1", "--json", "--fail-if=overall(all) > 0.999")
    assert said.status == 3
    assert json.loads(said.out)["fail_if"] == {"overall(all) > 0.999": None}
    assert "undecided: overall(all) > 0.999 (seeds 3)" in said.err
    assert "these seeds are incomplete: 3" in said.err
    assert not (runs / "seed-3" / "audits").exists()


@pytest.mark.parametrize("option", ["--weights=w.pt", "--html=p.html", "--estimate", "--width=0.5", "--outputs=binary"])
def test_options_of_one_model_are_refused(classwise: Classwise, runs: Path, option: str) -> None:
    line = classwise("audit", runs, option).refusal
    assert option.split("=", maxsplit=1)[0] in line
    assert "name one of the runs" in line


@pytest.mark.parametrize("command", ["curve", "worst-class"])
def test_commands_that_take_one_model_refuse_a_folder_of_seeds(classwise: Classwise, runs: Path, command: str) -> None:
    assert (
        f"{runs} contains a run per seed, and this command takes one run; name one of them"
        in classwise(command, runs).refusal
    )


def test_runs_that_differ_in_more_than_the_seed_are_no_seeds(classwise: Classwise, runs: Path) -> None:
    (runs / "seed-3" / "checksums.txt").unlink()
    recipe = runs / "seed-3" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("epochs: 1", "epochs: 2"))
    assert "differ in more than the seed" in classwise("audit", runs, *FAST).refusal


@pytest.mark.slow
def test_the_library_audits_seeds_too(runs: Path, tmp_path: Path) -> None:
    data = cw.load_data("digits", split="test", subset=40)
    found = audit_seeds(runs, data, "Linf:0.1", "fgsm", out=tmp_path / "audits")
    assert list(found) == [0, 3]
    single = cw.audit(runs / "seed-3", data, "Linf:0.1", "fgsm")
    assert found[3].outcomes.frame.equals(single.outcomes.frame)
    assert cw.compare([tmp_path / "audits"]).seeds == {"audits": 2}
    check_refused("audit_seeds", cw.audit, runs, data, "Linf:0.1", "fgsm")
    check_refused("contains no runs", audit_seeds, tmp_path, data, "Linf:0.1", "fgsm")
    check_refused(
        "already contains an audit; if only outputs changed: add --resume",
        audit_seeds,
        runs,
        data,
        "Linf:0.1",
        "fgsm",
        out=tmp_path / "audits",
    )
