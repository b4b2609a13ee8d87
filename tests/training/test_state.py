"""The state file of a run: its content, and which files are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.training.averaging import Average
from classwise.training.classes.signals import ALWAYS, ClassSums
from classwise.training.folder import Run
from classwise.training.history import History
from classwise.training.selection import last
from classwise.training.state import TrainState, read_state, write_state

from ..refusals import check_refused, refused

CPU = torch.device("cpu")


def state(folder: Path, seed: int) -> TrainState:
    """The state of a linear model after one step."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    history = History(Run(folder), last, epochs=3, labels=None, metadata={})
    history.log_event(1, event="selected", which="best", score=None)
    history.best["best"] = 0.5 + seed
    sums = ClassSums(3, ALWAYS, CPU)
    sums.add(torch.tensor([0, 2, seed]), torch.randn(3, 3), None)
    average = Average({"weight": torch.randn(2)}, {"count": seed})
    return TrainState(model, optimizer, average, [{"t": torch.randn(3)}], sums, history, epoch=1, step=seed)


def changed(file: Path, **values: Any) -> None:
    torch.save(torch.load(file, weights_only=True) | values, file)
    (file.parent / "checksums.txt").unlink(missing_ok=True)


def test_a_loaded_state_equals_the_saved_one(tmp_path: Path) -> None:
    saved, loaded, file = state(tmp_path, 1), state(tmp_path, 2), tmp_path / "state.pt"
    write_state(file, saved.content("recipe", processes=1))
    loaded.load(file, "recipe", 1, CPU)
    write_state(tmp_path / "again.pt", loaded.content("recipe", processes=1))
    assert (loaded.epoch, loaded.step) == (1, 1)
    assert loaded.history.events == saved.history.events
    assert loaded.history.best == {"best": 1.5}
    for parameter, other in zip(loaded.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(parameter, other)
        assert torch.equal(
            loaded.optimizer.state[parameter]["momentum_buffer"], saved.optimizer.state[other]["momentum_buffer"]
        )
    assert torch.equal(loaded.sums.sums["clean_count"], saved.sums.sums["clean_count"])
    assert torch.equal(loaded.schedules[0]["t"], saved.schedules[0]["t"])
    assert loaded.average.facts == {"count": 1}


def test_another_number_of_processes_is_an_event(tmp_path: Path) -> None:
    saved, file = state(tmp_path, 1), tmp_path / "state.pt"
    write_state(file, saved.content("recipe", processes=1))
    saved.load(file, "recipe", 2, CPU)
    assert saved.history.events[-1] == {"epoch": 1, "event": "resumed", "processes": 2}


def test_another_recipe_or_schema_version_is_rejected(tmp_path: Path) -> None:
    saved, file = state(tmp_path, 1), tmp_path / "state.pt"
    write_state(file, saved.content("recipe", processes=1))
    assert "state.pt belongs to another recipe" in refused(saved.load, file, "other", 1, CPU)
    for version, message in (
        (SCHEMA_VERSIONS["training state"] - 1, "is older than"),
        (SCHEMA_VERSIONS["training state"] + 1, "is newer than"),
    ):
        changed(file, schema_version=version)
        check_refused(f"schema_version {version} .*{message}", read_state, file)
