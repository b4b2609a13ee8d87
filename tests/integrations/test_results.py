"""Results in fairlearn, DuckDB, MLflow, Weights & Biases and TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting import report
from classwise.reporting.tracking import log_audit
from classwise.training.loggers.base import RUNS

Compatibility = Callable[[str, str, str], None]
REASON = "{} is not installed; run make test-integrations"
RECIPE = "epochs: 2\noptimizer:\n  lr: 0.1\n"
METRICS = {"valid/robust/cat": 0.25, "valid/robust/dog & owl": 0.5}


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    labels = np.arange(60) % 2
    attacked = np.where(np.arange(60) < 20, 1 - labels, labels)
    outcomes = Outcomes.from_predictions(labels, labels, {"pgd": attacked}, ["cat", "dog & owl"])
    made = Audit.load(Audit(outcomes).save(tmp_path / "audit"))
    report(made, tmp_path / "audit" / "page.html")
    return made


def test_fairlearn(audit: Audit, compatibility: Compatibility) -> None:
    pytest.importorskip("fairlearn", reason=REASON.format("fairlearn"))
    frame = audit.outcomes.to_metricframe("all")
    assert frame.by_group["accuracy"].to_dict() == pytest.approx(audit.by_class["all"].to_dict())
    assert frame.by_group["count"].tolist() == [30, 30]
    assert frame.overall["accuracy"] == pytest.approx(40 / 60)
    compatibility("results", "`Outcomes.to_metricframe`", "fairlearn")


def test_duckdb_and_arrow(audit: Audit, compatibility: Compatibility) -> None:
    duckdb = pytest.importorskip("duckdb", reason=REASON.format("duckdb"))
    assert audit.path is not None
    files = f"{audit.path}/outcomes/*.parquet"
    query = f"select label, avg(correct::int) from '{files}' where attack = 'pgd' group by label order by label"
    assert [row[1] for row in duckdb.sql(query).fetchall()] == pytest.approx(audit.by_class["pgd"].tolist())
    table = ds.dataset(audit.path / "outcomes", format="parquet", exclude_invalid_files=True).to_table()
    assert table.num_rows == 120
    compatibility("results", "outcomes by SQL", "duckdb")


@pytest.mark.filterwarnings("ignore")  # of the packages that MLflow imports
def test_mlflow(audit: Audit, tmp_path: Path, compatibility: Compatibility) -> None:
    mlflow = pytest.importorskip("mlflow", reason=REASON.format("mlflow"))
    from classwise.training.loggers.mlflow import MLflow

    run, uri = tmp_path / "run", f"sqlite:///{tmp_path}/mlflow.db"
    run.mkdir()
    client = mlflow.MlflowClient(tracking_uri=uri)
    client.create_experiment("classwise", artifact_location=(tmp_path / "artifacts").as_uri())
    for epoch in range(2):  # the second time as a resumed training
        with MLflow(uri) as logger:
            logger.log_recipe(run, RECIPE)
            logger.log_metrics(epoch, METRICS)
    with MLflow(uri) as logger:
        log_audit(audit, logger)
    stored = json.loads((run / RUNS).read_text(encoding="utf-8"))
    found = client.get_run(stored[f"mlflow {uri}"])
    assert (found.info.status, found.data.params) == ("FINISHED", {"epochs": "2", "optimizer.lr": "0.1"})
    steps = client.get_metric_history(found.info.run_id, "valid/robust/dog _ owl")
    assert [(point.step, point.value) for point in steps] == [(0, 0.5), (1, 0.5)]
    assert audit.path is not None
    audited = json.loads((audit.path / RUNS).read_text(encoding="utf-8"))[f"mlflow {uri}"]
    assert client.get_run(audited).data.metrics["audits/audit/all/cat"] == pytest.approx(20 / 30)
    names = {Path(file.path).name for file in client.list_artifacts(audited, "audits/audit")}
    assert names == {"audit.json", "page.html", "part-00000.parquet"}
    compatibility("trackers", "`--mlflow`", "mlflow")


def test_wandb_offline(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compatibility: Compatibility
) -> None:
    pytest.importorskip("wandb", reason=REASON.format("wandb"))
    from classwise.training.loggers.wandb import WandB

    run = tmp_path / "run"
    run.mkdir()
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    with WandB("classwise") as logger:
        logger.log_recipe(run, RECIPE)
        logger.log_metrics(0, METRICS)
        log_audit(audit, logger)
        name = logger.run.id
        assert logger.run.config["optimizer"] == {"lr": 0.1}
        assert logger.run.summary["audits/audit/all/cat"] == pytest.approx(20 / 30)
    (file,) = (tmp_path / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb")
    deadline = time.monotonic() + 30  # finish() returns before the service of wandb has written the file
    while not all(name in file.read_bytes() for name in (b"valid/robust/cat", b"page.html")):
        assert time.monotonic() < deadline, f"{file} has {file.stat().st_size} bytes, and lacks a metric or the page"
        time.sleep(0.1)
    compatibility("trackers", "`--wandb`, offline", "wandb")


def test_tensorboard(audit: Audit, tmp_path: Path, compatibility: Compatibility) -> None:
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=REASON.format("tensorboard")
    )
    from classwise.training.loggers.tensorboard import TensorBoard

    with TensorBoard(tmp_path / "board") as logger:
        logger.log_recipe(tmp_path, RECIPE)
        logger.log_metrics(1, METRICS)
        log_audit(audit, logger)
    events = module.EventAccumulator(str(tmp_path / "board")).Reload()
    (point,) = events.Scalars("valid/robust/cat")
    assert (point.step, point.value) == (1, 0.25)
    assert events.Scalars("audits/audit/all/cat")[0].value == pytest.approx(20 / 30)
    assert "recipe/text_summary" in events.Tags()["tensors"]
    compatibility("trackers", "`--tensorboard`", "tensorboard")
