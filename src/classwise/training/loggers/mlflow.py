"""Logging to MLflow, which needs the extra ``mlflow``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml

from classwise.core.errors import ClasswiseError
from classwise.core.progress.listener import Progress
from classwise.core.settings.config import flat_options
from classwise.core.settings.extras import require
from classwise.training.loggers.base import Logger, joined_run

EXPERIMENT = "classwise"
"""The experiment that runs belong to."""
METRICS, PARAMETERS, LENGTH = 1_000, 100, 6_000
"""MLflow's limits of one request: metrics, parameters, characters of a parameter's value."""


class MLflow(Logger):
    """Log metrics, the recipe, and the files of audits to an MLflow tracking server.

    Each run folder has one run of MLflow, which a resumed training and its audits continue. Characters of names that
    MLflow does not accept are replaced by ``_``.

    Args:
        uri: the tracking URI, such as ``http://localhost:5000`` or ``sqlite:///mlflow.db``.
        listener: the listener to forward to.
        experiment: name of the experiment, which is created if it does not exist.

    Raises:
        ClasswiseError: if MLflow is not installed, or the server rejects a request.
    """

    kind: ClassVar[str] = "mlflow"

    def __init__(self, uri: str, listener: Progress | None = None, experiment: str = EXPERIMENT) -> None:
        super().__init__(listener)
        self._mlflow = require("mlflow", "mlflow")
        self.uri, self.run = uri, ""
        with self._errors():
            self.client: Any = self._mlflow.MlflowClient(tracking_uri=uri)
            found = self.client.get_experiment_by_name(experiment)
            self._experiment = self.client.create_experiment(experiment) if found is None else found.experiment_id

    def open(self, folder: Path) -> None:
        """Continue the run of the folder, or create one."""

        def start(saved: str | None) -> str:
            with self._errors():
                if saved is None:
                    self.run = self.client.create_run(self._experiment, run_name=folder.name).info.run_id
                else:
                    self.run = saved
                    self.client.update_run(saved, status="RUNNING")
            return self.run

        if not self.run:
            joined_run(folder, f"{self.kind} {self.uri}", start)

    def write_recipe(self, recipe: str) -> None:
        """Log the fields as parameters, and the file ``recipe.yaml``."""
        entities = self._mlflow.entities
        with self._errors():
            known = self.client.get_run(self.run).data.params
            fields = {_name(key): str(value)[:LENGTH] for key, value in flat_options(yaml.safe_load(recipe)).items()}
            new = [entities.Param(key, value) for key, value in fields.items() if key not in known]
            for first in range(0, len(new), PARAMETERS):
                self.client.log_batch(self.run, params=new[first : first + PARAMETERS])
            self.client.log_text(self.run, recipe, "recipe.yaml")

    def write_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics with the epoch as step."""
        now = int(1000 * time.time())
        metrics = [self._mlflow.entities.Metric(_name(name), value, now, epoch) for name, value in values.items()]
        with self._errors():
            for first in range(0, len(metrics), METRICS):
                self.client.log_batch(self.run, metrics=metrics[first : first + METRICS])

    def write_audit(self, name: str, values: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the accuracies as metrics, and the files as artifacts in ``audits/<name>``."""
        self.write_metrics(0, {f"audits/{name}/{key}": value for key, value in values.items()})
        with self._errors():
            for file in files:
                self.client.log_artifact(self.run, str(file), f"audits/{_name(name)}")

    def close(self, *, failed: bool = False) -> None:
        """End the run."""
        if self.run:
            with self._errors():
                self.client.set_terminated(self.run, status="FAILED" if failed else "FINISHED")
            self.run = ""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the server in errors of MLflow."""
        try:
            yield
        except self._mlflow.exceptions.MlflowException as error:
            raise ClasswiseError(f"MLflow at {self.uri}: {error}") from error


def _name(text: str) -> str:
    """A name that MLflow accepts: letters, digits, and ``_ - . / `` and blanks."""
    return re.sub(r"[^\w\-./ ]", "_", text, flags=re.ASCII)
