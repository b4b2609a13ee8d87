"""A training run's state on disk: everything that the next step depends on, in one file, whole or not there."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

from classwise.errors import UserError
from classwise.storage import verify, write_bytes
from classwise.training.averaging import Average

if TYPE_CHECKING:
    from classwise.training.loop import Trainer

SCHEMA_VERSION = 1


def save_state(trainer: Trainer) -> None:
    """Write the state at a step boundary: model, optimiser, averager, schedules, sums, epoch rows, events."""
    state: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "recipe": trainer.recipe.digest(),
        "epoch": trainer.epoch,
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "average": {"weights": trainer.average.weights, "facts": trainer.average.facts},
        "schedules": trainer.schedule_states,
        "sums": trainer.sums.sums,
        "rows": trainer.record.rows,
        "events": trainer.record.events,
        "best": trainer.record.best,
        "judged": trainer.record.judged,
        "processes": trainer.team.size,
    }
    buffer = io.BytesIO()  # so that a full disk is the file's error, not one of torch's
    torch.save(state, buffer)
    write_bytes(trainer.folder.state_file, buffer.getbuffer(), checksum=True)


def load_state(trainer: Trainer) -> None:
    """Put a trainer where the saved state stood.

    Raises:
        UserError: if the file is of a newer format, damaged, or of another recipe.
    """
    path = trainer.folder.state_file
    verify(path, "restore it from a copy, or train in another folder")
    try:
        state = torch.load(path, map_location=trainer.device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(f"{path} is damaged ({type(error).__name__}); begin the run anew in another folder") from error
    if state["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{path} is of format {state['schema_version']}, newer than this classwise knows; update it")
    if state["recipe"] != trainer.recipe.digest():
        raise UserError(f"{path} belongs to another recipe; give another folder")
    trainer.epoch, trainer.step = state["epoch"], state["step"]
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.average = Average(**state["average"])
    trainer.schedule_states = state["schedules"]
    trainer.sums.sums = state["sums"]
    record = trainer.record
    record.rows, record.events, record.best = state["rows"], state["events"], state["best"]
    record.judged = state.get("judged", {})  # runs from before there was one have none
    if state.get("processes", 1) != trainer.team.size:
        record.tell(trainer.epoch, event="resumed", processes=trainer.team.size)
