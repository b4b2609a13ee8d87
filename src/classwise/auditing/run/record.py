"""The record of an evaluation over all of its runs: its environment and its seconds, also of runs that were stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from classwise.auditing.run.inputs import network_of
from classwise.core.compute.environment import PHASES, Environment, continued, environment
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import Marker, read_json, write_json
from classwise.models.base import device_of
from classwise.models.provenance import model_facts

SAVE_SECONDS = 30.0
"""Seconds between two saves of the record while results are written."""


def environment_of(model: nn.Module) -> dict[str, Any]:
    """The environment of a run: command, versions, machine, and the network, weights and normalisation of the model."""
    return {**environment(device_of(model)), "network": network_of(model), **model_facts(model)}


class _Recorded(Marker, total=False):
    environment: Environment | None


class RunRecord:
    """The environment of an evaluation, in the JSON file that marks its folder.

    A run that writes results saves the record at intervals and where it fails, so that a later run, which continues it,
    adds its own seconds. A run that writes none leaves the file unchanged.

    Args:
        file: the file, which exists; None: nothing is saved.
        environment: that of this run.
        started: when it began, on the monotonic clock.
        before: the environment of the earlier runs; None: that in the file.

    Attributes:
        worked: whether this run has written results.
    """

    def __init__(
        self,
        file: Path | None,
        environment: Mapping[str, Any],
        started: float,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self.file, self.worked = file, False
        self._environment, self._started, self._saved_at = environment, started, time.monotonic()
        self._phases: dict[str, float] = {}
        in_file = Environment() if file is None else read_json(file, kind=_Recorded).get("environment") or Environment()
        self._before: Mapping[str, Any] = in_file if before is None else before

    def environment(self, **facts: Any) -> dict[str, Any]:
        """The environment of all runs, with further facts on this one."""
        seconds = round(time.monotonic() - self._started, 3)
        phases = {PHASES: dict(self._phases)} if self._phases else {}
        return continued(self._before, {**self._environment, "seconds": seconds, **phases, **facts})

    def prepared(self) -> None:
        """Note the phase before the first pass: reading the data and the model, and all checks."""
        self._phases["preparation"] = round(time.monotonic() - self._started, 3)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a phase."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = round(self._phases.get(name, 0.0) + time.monotonic() - begin, 3)

    def written(self) -> None:
        """Note that results were written, and save the record if it is due."""
        self.worked = True
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save()

    @contextlib.contextmanager
    def saved_on_failure(self) -> Iterator[None]:
        """Save the record if the block is stopped or fails after results were written."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(ClasswiseError, OSError):  # a full disk, or a folder that was removed
                if self.worked:
                    self._save()
            raise

    def _save(self) -> None:
        if self.file is not None:
            content = read_json(self.file) | {"environment": self.environment()}
            write_json(self.file, content, indent=2, checksum=True)
        self._saved_at = time.monotonic()
