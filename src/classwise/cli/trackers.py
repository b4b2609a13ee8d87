"""Options of experiment trackers, shared by ``train`` and ``audit``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from classwise.cli.help import TRACKERS

if TYPE_CHECKING:
    from classwise.core.progress.listener import Progress
    from classwise.training.loggers.base import Logger


@dataclass(frozen=True)
class TrackerOptions:
    """Experiment trackers that receive metrics, recipes and the files of audits."""

    panel: ClassVar[str] = TRACKERS
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="Log to TensorBoard, in this directory.")
    ] = None
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Log to MLflow, at this tracking URI.")
    ] = None
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Log to Weights & Biases, in this project.")
    ] = None

    @contextlib.contextmanager
    def logging(self, listener: Progress | None = None, name: str = "") -> Iterator[Logger | None]:
        """The outermost logger, which forwards to the others and to a listener; None without a tracker.

        Args:
            listener: a listener to forward to.
            name: folder below the log directory of TensorBoard, for one of several runs.

        Raises:
            ClasswiseError: if the package of a tracker is not installed, or the tracker rejects the run.
        """
        logger: Logger | None = None
        with contextlib.ExitStack() as stack:
            if self.tensorboard is not None:
                from classwise.training.loggers.tensorboard import TensorBoard

                logger = stack.enter_context(TensorBoard(self.tensorboard / name, listener))
            if self.mlflow is not None:
                from classwise.training.loggers.mlflow import MLflow

                logger = stack.enter_context(MLflow(self.mlflow, logger or listener))
            if self.wandb is not None:
                from classwise.training.loggers.wandb import WandB

                logger = stack.enter_context(WandB(self.wandb, logger or listener))
            yield logger
