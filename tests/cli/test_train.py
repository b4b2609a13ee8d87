from __future__ import annotations

import contextlib
import json
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image

from classwise.training import cost
from classwise.training.folder import Run

from .conftest import QUICK, Classwise


def test_a_run(classwise: Classwise, run_folder: Path) -> None:
    run = Run.open(run_folder)
    assert run.complete
    assert run.recipe.epochs == 2
    assert run.recipe.model.width == 0.1
    assert set(run.saved_weights()) == {"last", "best", "average", "best-average"}


def test_a_finished_run_resumes_to_itself(classwise: Classwise, run_folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*") if path.is_file()}
    said = classwise(
        "train", "cfa-at", "--budget=short", "--data=digits", f"--out={run_folder}", "--resume", "--json", *QUICK
    )
    (facts,) = said.facts
    assert f"the run in {run_folder} is complete" in said.err
    assert "to do" not in said.err
    assert "resuming" not in said.err
    assert facts["epochs"] == 2
    assert Path(facts["weights"]["best"]).is_file()
    assert {row["split"] for row in facts["last_epoch"]} == {"train", "valid", "valid-average"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_several_seeds(classwise: Classwise, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    said = classwise(
        "train", "standard", "--budget=short", "--data=digits", f"--out={out}", "--seeds=0,3", *QUICK[1:], "--epochs=1"
    )
    assert said.status == 0
    assert [Run.open(out / f"seed-{seed}").recipe.seed for seed in (0, 3)] == [0, 3]
    assert len(said.out.splitlines()) == 3
    assert "epoch 1/1" in said.err
    inside = classwise("train", "standard", "--data=digits", f"--out={out / 'seed-0'}", "--seeds=1,2")
    assert "contains a run; give another --out for the runs of --seeds" in inside.refusal


@pytest.mark.parametrize(("words", "names"), [([], [""]), (["--seeds=3"], ["seed-3"])])
def test_the_log_of_a_seed_lies_where_that_of_several_would(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], names: list[str]
) -> None:
    """So that a later ``--seeds 3,4 --resume`` continues it."""
    seen: list[str] = []

    def logging(self: object, listener: object = None, name: str = "") -> contextlib.nullcontext[None]:
        seen.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr("classwise.cli.trackers.TrackerOptions.logging", logging)
    out = f"--out={tmp_path / 'run'}"
    assert (
        classwise("train", "standard", "--budget=short", "--data=digits", out, *QUICK[1:], "--epochs=1", *words).status
        == 0
    )
    assert seen == names


def test_an_estimate_leaves_nothing(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "at", "--budget=short", "--data=digits", "--estimate", "--seeds=0,1", *QUICK[1:], "--epochs=50"]
    facts = classwise(*words, "--json").facts
    assert facts["steps"] == 2 * 50 * 4  # 120 images less 2 of each class for validation, 32 at a time
    of_at, of_trades = (
        classwise(words[0], recipe, *words[2:], "--json").facts["passes"] / (facts["steps"] * 32)
        for recipe in ("at", "trades")
    )
    assert (of_at, of_trades) == (3 + 3, 5 + 4)  # forward and backward, with two steps of PGD
    assert facts["minutes"] > 0
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    said = classwise(*words, "--set=precision.dtype=bfloat16")
    assert "400 steps" in said.out
    assert "precision.dtype=float32 is faster" in said.out
    said = classwise(*words, "--set=precision.dtype=auto", "--rates=h100", "--json")
    predicted = {
        "steps": 400,
        "passes": facts["passes"],
        "device": "NVIDIA H100 80GB HBM3 (rates of the documentation, On a GPU)",
    }
    assert predicted.items() <= json.loads(said.out).items(), said.err
    assert list(tmp_path.iterdir()) == []


def test_the_subset_is_that_of_the_recipe(classwise: Classwise) -> None:
    rest = [word for word in QUICK if "data.subset" not in word]
    words = ["train", "at", "--budget=short", "--data=digits", "--estimate", "--rates=h100", "--json"]
    words += [*rest, "--set=precision.dtype=auto"]
    counted = [classwise(*words, more).facts["steps"] for more in ("--subset=120", "--set=data.subset=120")]
    assert counted == [2 * 4, 2 * 4]
    both = classwise(*words, "--subset=60", "--set=data.subset=120")
    assert "--subset 60 and --set data.subset=120 differ" in both.refusal


def test_an_estimate_of_less_than_three_steps(classwise: Classwise) -> None:
    words = [
        "train",
        "standard",
        "--budget=short",
        "--data=digits",
        "--estimate",
        *QUICK[1:],
        "--epochs=1",
        "--set=batch_size=100",
    ]
    assert classwise(*words).status == 0


def test_an_estimate_stops_after_a_slow_step() -> None:
    watch = cost._Stopwatch()
    watch.times.append(time.monotonic() - 2 * cost.SLOW)
    with pytest.raises(cost._EnoughTimedError):
        watch.advance(1)
    assert watch.step_seconds() == pytest.approx(2 * cost.SLOW, abs=1)


@pytest.mark.slow
def test_pictures_of_mixed_sizes(classwise: Classwise, tmp_path: Path) -> None:
    """One size for all of them, which the audit of the run takes over."""
    photos, out = tmp_path / "photos", tmp_path / "run"
    for number, (split, name) in enumerate(product(("train", "test"), ("cat", "dog"))):
        (photos / split / name).mkdir(parents=True)
        for count in range(8):
            picture = Image.new("RGB", (9 + count, 12), (30 * count, 60 * number, 90))
            picture.save(photos / split / name / f"{count}.png")
    words = [
        "train",
        "standard",
        "--budget=short",
        "--data",
        photos,
        "--out",
        out,
        *QUICK[1:],
        "--epochs=1",
        "--set=data.subset=null",
    ]
    assert "--data-set size=64" in classwise(*words).refusal
    assert classwise(*words, "--data-set", "size=8").status == 0
    assert Run.open(out).recipe.data.options == {"size": 8}
    said = classwise("audit", out, "--attack=fgsm", "--json")
    assert [row["n"] for row in json.loads(said.out)["classes"].values()] == [8, 8]
    assert (
        "data set 'digits' has no option 'size'"
        in classwise("train", "at", "--data=digits", "--data-set=size=64", "--out", tmp_path / "none").refusal
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("text", ["0,0", "a", "", "-1", "1.5"])
def test_bad_seeds(classwise: Classwise, text: str) -> None:
    assert "--seeds" in classwise("train", "at", f"--seeds={text}").refusal


def test_one_way_to_say_the_seed(classwise: Classwise) -> None:
    assert classwise("train", "at", "--seeds=0,1", "--set", "seed=3").status == 2


def test_a_training_that_diverges(classwise: Classwise, tmp_path: Path) -> None:
    words = [
        "train",
        "at",
        "--budget=short",
        "--data=digits",
        *QUICK,
        "--set=optimizer.lr=1e6",
        "--set=lr_schedule=constant",
    ]
    said = classwise(*words, f"--out={tmp_path / 'stopped'}")
    assert said.status == 2
    assert "the loss is not finite at epoch 1, step " in said.err.splitlines()[-1]
    assert not (tmp_path / "stopped" / "checkpoints").exists()
    said = classwise(*words, f"--out={tmp_path / 'continued'}", "--on-nan=continue")
    assert said.status == 0
    assert "not-finite" in [event["event"] for event in Run.open(tmp_path / "continued").events]
