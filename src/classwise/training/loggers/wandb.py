"""Logging to Weights & Biases, which needs the extra ``wandb``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from classwise.core.errors import ClasswiseError
from classwise.core.progress.listener import Progress
from classwise.core.settings.extras import require
from classwise.training.loggers.base import Logger, joined_run


class WandB(Logger):
    """Log metrics, the recipe, and the files of audits to Weights & Biases.

    Each run folder has one run of a project, which a resumed training and its audits continue. The environment
    variables of wandb apply: ``WANDB_MODE=offline`` writes files only, which ``wandb sync`` uploads later.

    Args:
        project: name of the project.
        listener: the listener to forward to.

    Raises:
        ClasswiseError: if wandb is not installed, or rejects the run.
    """

    kind: ClassVar[str] = "wandb"

    def __init__(self, project: str, listener: Progress | None = None) -> None:
        super().__init__(listener)
        self._wandb = require("wandb", "wandb")
        self.project = project
        self.run: Any = None

    def open(self, folder: Path) -> None:
        """Continue the run of the folder, or create one."""

        def start(saved: str | None) -> str:
            run = saved or uuid.uuid4().hex[:8]
            try:
                self.run = self._wandb.init(project=self.project, id=run, name=folder.name, resume="allow")
            except self._wandb.Error as error:
                raise ClasswiseError(f"Weights & Biases, project {self.project!r}: {error}") from error
            return run

        if self.run is None:
            joined_run(folder, f"{self.kind} {self.project}", start)

    def write_recipe(self, recipe: str) -> None:
        """Set the configuration of the run to the fields of the recipe."""
        self.run.config.update(yaml.safe_load(recipe), allow_val_change=True)

    def write_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics with the epoch as step."""
        self.run.log(dict(values), step=epoch)

    def write_audit(self, name: str, values: Mapping[str, float], files: Sequence[Path]) -> None:
        """Set the accuracies in the summary of the run, and log the files as an artifact of type ``audit``."""
        self.run.summary.update({f"audits/{name}/{key}": value for key, value in values.items()})
        artifact = self._wandb.Artifact(re.sub(r"[^\w.-]", "-", f"{name}-{self.run.id}", flags=re.ASCII), type="audit")
        for file in files:
            artifact.add_file(str(file), name=file.name)
        self.run.log_artifact(artifact)

    def close(self, *, failed: bool = False) -> None:
        """Finish the run."""
        if self.run is not None:
            self.run.finish(exit_code=int(failed))
            self.run = None
