"""The state of a training run, saved in one checkpoint file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.compute.transfers import all_to_device
from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import damaged
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import verify, write_bytes
from classwise.training.averaging import Average
from classwise.training.classes.signals import ClassSums
from classwise.training.history import History

_ADVICE = "restore it from a copy, or train in another folder"


@dataclass
class TrainState:
    """The state of a training run between two steps.

    Args:
        model: the online model.
        optimizer: its optimiser.
        average: the state of the weight averaging.
        schedules: the state of each class schedule, in the order of the recipe.
        sums: the per-class sums of the current epoch.
        history: the table of the epochs, the events and the state of the selection.
        epoch: the number of complete epochs.
        step: the number of complete steps of the current epoch.
        memory: the memory of the objective, by name; it is in the file only if there is one.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average
    schedules: list[dict[str, Tensor]]
    sums: ClassSums
    history: History
    epoch: int = 0
    step: int = 0
    memory: dict[str, Tensor] = field(default_factory=dict)

    def content(self, recipe: str, processes: int) -> dict[str, Any]:
        """Return the content of the state file. Its tensors are those in use; training modifies nothing else in it.

        Args:
            recipe: the digest of the recipe.
            processes: the number of processes.
        """
        content = {
            "schema_version": SCHEMA_VERSIONS["training state"],
            "recipe": recipe,
            "processes": processes,
            "epoch": self.epoch,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": {"weights": self.average.weights, "facts": self.average.facts},
            "schedules": self.schedules,
            "sums": self.sums.sums,
            "history": self.history.state_dict(),
        }
        return content | {"memory": self.memory} if self.memory else content

    def load(self, path: Path, recipe: str, processes: int, device: torch.device) -> None:
        """Load a saved state; a different number of processes is logged as the event ``resumed``.

        Args:
            path: the file.
            recipe: the digest of the recipe.
            processes: the current number of processes.
            device: the device of the tensors.

        Raises:
            ClasswiseError: if the file has another schema version, is damaged, or belongs to another recipe.
        """
        content = read_state(path)
        if content["recipe"] != recipe:
            raise ClasswiseError(f"{path} belongs to another recipe; use another folder")
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])  # it chooses the device of each of its tensors
        self.average = Average(**all_to_device(content["average"], device))
        self.schedules = all_to_device(content["schedules"], device)
        self.sums.sums = all_to_device(content["sums"], device)
        if self.memory:
            self.memory = all_to_device(content["memory"], device)
        states = all_to_device(content["history"]["selection_states"], device)
        self.history.load_state_dict(content["history"] | {"selection_states": states})
        self.epoch, self.step = content["epoch"], content["step"]
        if content["processes"] != processes:
            self.history.log_event(self.epoch, event="resumed", processes=processes)


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content of a state file; the file is replaced atomically."""
    buffer = io.BytesIO()  # a full disk then raises an OSError, not an error of torch
    torch.save(content, buffer)
    write_bytes(path, buffer.getbuffer(), checksum=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file; its tensors are on the CPU.

    Raises:
        ClasswiseError: if the file is damaged or has another schema version.
    """
    verify(path, _ADVICE)
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise damaged(str(path), type(error).__name__, _ADVICE) from error
    if not isinstance(content, dict) or type(content.get("schema_version")) is not int:
        raise damaged(str(path), "no schema_version", _ADVICE)
    check_schema_version(content["schema_version"], SCHEMA_VERSIONS["training state"], str(path))
    return content
