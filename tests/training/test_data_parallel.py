"""Data-parallel runs equal runs of one process with the total batch size."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classwise.core.compute.distributed import ProcessGroup
from classwise.threat.ball import Threat
from classwise.training.data_parallel import BatchShard
from classwise.training.folder import Run
from classwise.training.objectives.base import TrainingBatch
from classwise.training.train import train
from tests.forkserver import Server
from tests.launching import launch

from ..refusals import refused
from .test_finite_checks import state_of
from .test_trainer import SMALL, contents
from .together import EACH, RECIPES, SETTINGS, WHOLE, begun, with_memory

pytestmark = pytest.mark.slow

CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(fork_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two processes of one group, and the initial model."""
    path = tmp_path_factory.mktemp("together")
    start = {
        "model": SETTINGS["model"],
        "data.validation": 0,
        "selection": "last",
        "lr_schedule": "constant",
        "epochs": 4,
    }
    start |= {"data.subset": 400, "batch_size": 20, "optimizer": {"name": "adam", "lr": 0.003}}
    run = train("standard", budget="short", out=path / "start", data="digits", overrides=start)
    shutil.copy(run.weights_file("last"), path / "start.safetensors")  # it was trained on all images
    with fork_server.serving():
        launch("tests.training.together", path)
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [pickle.loads((folder / f"rank-{rank}.pkl").read_bytes()) for rank in range(2)]


def assert_alike(shared: Run, single: Run) -> None:
    """The same images are classified correctly; weights and settings differ by rounding only."""
    ours, theirs = shared.epochs, single.epochs
    numbers = [name for name in ours.columns if name not in ("epoch", "split", "class", "label")]
    assert ours.drop(columns=numbers).equals(theirs.drop(columns=numbers))
    for name in ("count", "clean", "robust"):
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name
    for name in numbers:
        first, second = ours[name].to_numpy(float), theirs[name].to_numpy(float)
        assert np.allclose(first, second, rtol=CLOSE, atol=CLOSE, equal_nan=True), name
    for name, value in state_of(shared)["model"].items():
        assert (value - state_of(single)["model"][name]).abs().max() < CLOSE, name


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_equal_one_with_twice_the_batch_size(recipe: str, folder: Path, tmp_path: Path) -> None:
    overrides = with_memory(recipe, folder)
    single = train(recipe, budget="short", out=tmp_path / "run", overrides=overrides, batch_size=WHOLE)
    shared = Run(folder / recipe)
    assert_alike(shared, single)
    losses = [state_of(run)["schedules"][-1]["loss"] for run in (shared, single)]
    assert losses[0].shape == (2, 10)
    assert (losses[0] - losses[1]).abs().max() < CLOSE
    assert shared.epochs.query("split == 'train'")["robust"].nunique() > 5  # it is not that all of them know nothing
    assert shared.recipe.digest() == single.recipe.digest()
    assert shared.recipe.batch_size == WHOLE
    memories = [state_of(run).get("memory", {}) for run in (shared, single)]
    assert memories[0].keys() == memories[1].keys()
    for name, tensor in memories[0].items():
        assert (tensor.float() - memories[1][name].float()).abs().mean() < CLOSE, name


def test_only_the_main_process_prints(ranks: list[dict[str, Any]], folder: Path) -> None:
    assert [rank["status"] for rank in ranks] == [0, 0]
    assert "2 processes, batch size 40 in total" in ranks[0]["err"]
    assert "saved weights last, best" in ranks[0]["out"]
    assert ranks[0]["err"].splitlines()[-1].startswith("classwise: --estimate times one process")
    assert (ranks[1]["out"], ranks[1]["err"]) == ("", "")
    assert Run(folder / "cli").environment["processes"] == 2


def test_killed_and_resumed_in_two_processes_gives_the_same_bits(folder: Path) -> None:
    """Also with batch normalisation, whose statistics each process measures on its rows, in attacks and updates."""
    whole, cut = Run(folder / "norm"), Run(folder / "norm-cut")
    assert whole.complete
    assert contents(cut) == contents(whole)


def test_a_failure_of_one_process_stops_the_others(ranks: list[dict[str, Any]]) -> None:
    assert "norm-cut" not in ranks[0]  # it was killed
    assert ranks[1]["norm-cut"] == "ProcessFailedError: process 0 of 2 failed: Killed"


def test_a_run_can_be_resumed_with_another_number_of_processes(folder: Path, tmp_path: Path) -> None:
    single = train("at", budget="short", out=tmp_path / "run", overrides=begun(folder), batch_size=WHOLE)
    assert "batch_size was 40, now 20; use the same recipe" in refused(
        train, "at", budget="short", out=folder / "handed-over", overrides=begun(folder), batch_size=EACH, resume=True
    )
    for name, now in (("handed-over", 1), ("taken-over", 2)):
        run = train("at", budget="short", out=folder / name, overrides=begun(folder), batch_size=WHOLE, resume=True)
        assert_alike(run, single)
        resumed = [event["processes"] for event in run.events if event["event"] == "resumed"]
        assert resumed[0] == now


def test_processes_must_have_the_same_arguments(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["differ"].startswith(
            "ClasswiseError: process 1 has a different recipe; start all processes with the same"
        )


def test_synchronised_statistics_need_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.training.setup.load_data", None)  # it is found before data is read
    assert "sync_batch_norm = true needs a GPU, not device 'cpu'" in refused(
        train, "at", budget="short", out=tmp_path / "run", overrides=SMALL | {"model.sync_batch_norm": True}
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("count", "size"), [(8, 2), (9, 2), (11, 3), (4, 2)])
def test_every_row_belongs_to_one_process(count: int, size: int) -> None:
    y = torch.arange(count)
    batch = TrainingBatch(torch.rand(count, 1, 2, 2), y, y + 7, Threat("Linf", y / 100), target=-y)
    parts = [BatchShard(ProcessGroup(rank, size), count).of_batch(batch) for rank in range(size)]
    for name in ("x", "y", "index", "target"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    assert torch.equal(torch.cat([torch.as_tensor(part.threat.epsilon) for part in parts]), y / 100)
    assert all(torch.equal(y[part.rows], part.y) and part.step_size is None for part in parts)
    assert max(map(len, (part.y for part in parts))) - min(map(len, (part.y for part in parts))) <= 1


def test_too_few_rows_are_replicated() -> None:
    assert [BatchShard(ProcessGroup(rank, 2), 3).rows for rank in range(2)] == [slice(0, 3)] * 2
