"""Loggers as listeners: what each sends, and the error if its package is not installed (the tests need none)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from classwise.training.loggers.base import RUNS, Logger
from classwise.training.loggers.mlflow import MLflow
from classwise.training.loggers.tensorboard import TensorBoard
from classwise.training.loggers.wandb import WandB
from classwise.training.train import train

from ..auditing.toys import Listener
from ..refusals import refused
from .test_trainer import SMALL, contents


class Writer:
    """Replaces the SummaryWriter of torch."""

    scalars: ClassVar[dict[tuple[str, int], float]] = {}
    texts: ClassVar[dict[str, str]] = {}
    closed: ClassVar[list[str]] = []

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.scalars[name, epoch] = value

    def add_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        self.closed.append(self.folder)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Writer, "scalars", {})
    monkeypatch.setattr(Writer, "texts", {})
    monkeypatch.setattr(Writer, "closed", [])


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_it_writes_the_measurements_and_forwards_all_calls(tmp_path: Path) -> None:
    notes = Listener()
    with TensorBoard(tmp_path / "board", notes) as board:
        heard = train(
            "at-ema", budget="short", out=tmp_path / "a", data="digits", overrides=SMALL | {"epochs": 2}, progress=board
        )
    assert Writer.closed == [str(tmp_path / "board")]
    assert "    epochs: 2\n" in Writer.texts["recipe"]
    assert notes.done["training"] == 8
    assert len([line for line in notes.lines if "epoch" in line]) == 2
    rows = heard.epochs.query("epoch == 1 and split == 'valid'").set_index("class")["robust"]
    for name, value in rows.items():
        assert Writer.scalars[f"valid/robust/{name}", 1] == pytest.approx(value)
    assert Writer.scalars["train/epsilon/3", 0] == pytest.approx(0.1)
    assert 0 < Writer.scalars["learning rate", 1] < 0.2
    assert ("valid/epsilon/3", 0) not in Writer.scalars
    plain = train("at-ema", budget="short", out=tmp_path / "b", data="digits", overrides=SMALL | {"epochs": 2})
    assert contents(plain) == contents(heard)  # logging changes no result


@pytest.mark.parametrize(
    ("logger", "package"),
    [(TensorBoard, "tensorboard"), (MLflow, "mlflow"), (WandB, "wandb")],
)
def test_a_missing_package_raises_an_error(logger: type[Logger], package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name, _, command = refused(logger, "target").partition(" is not installed; run ")
    page = Path(__file__).parents[2] / "docs" / "how-to" / "trackers.md"
    assert name == package
    assert f'".[{logger.kind}]"' in page.read_text(encoding="utf-8")
    assert command.startswith(f"pip install '{package}>=")


class Recorder(Logger):
    """A logger that records its calls."""

    kind = "recorder"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: list[Any] = []

    def open(self, folder: Path) -> None:
        self.calls.append(("open", folder))

    def write_recipe(self, recipe: str) -> None:
        self.calls.append(recipe)

    def write_metrics(self, epoch: int, values: Any) -> None:
        self.calls.append((epoch, values))

    def write_audit(self, name: str, values: Any, files: Any) -> None:
        self.calls.append((name, values, files))

    def close(self, *, failed: bool = False) -> None:
        self.calls.append(failed)


def test_loggers_forward_to_each_other() -> None:
    notes, folder = Listener(), Path("run")
    inner = Recorder(notes)
    outer = Recorder(inner)
    outer.start("training", 3)
    outer.advance(2)
    outer.log("line")
    outer.log_recipe(folder, "epochs: 1")
    outer.log_metrics(0, {"a": 1.0})
    outer.log_audit(folder, "digits", {"all/cat": 0.5}, [])
    assert (notes.done["training"], notes.lines) == (2, ["line"])
    expected: list[Any] = [
        ("open", folder),
        "epochs: 1",
        (0, {"a": 1.0}),
        ("open", folder),
        ("digits", {"all/cat": 0.5}, []),
    ]
    assert inner.calls == outer.calls == expected
    with pytest.raises(RuntimeError), outer:
        raise RuntimeError
    assert outer.calls[-1] is True


class Tracker:
    """Replaces MLflow's client: a list of the requests."""

    requests: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> None:
        self.requests.append(("experiment", name))

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.requests.append(("create", (experiment, run_name)))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def update_run(self, run: str, status: str) -> None:
        self.requests.append(("continue", run))

    def get_run(self, run: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params={"epochs": "2"}))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        self.requests.append(("batch", (run, *metrics, *params)))

    def log_text(self, run: str, text: str, file: str) -> None:
        self.requests.append((file, text))

    def log_artifact(self, run: str, file: str, folder: str) -> None:
        self.requests.append((folder, Path(file).name))

    def set_terminated(self, run: str, status: str) -> None:
        self.requests.append((status, run))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    module: Any = ModuleType("mlflow")
    module.MlflowClient = Tracker
    module.exceptions = SimpleNamespace(MlflowException=OSError)
    module.entities = SimpleNamespace(
        Metric=lambda name, value, _, step: (name, value, step), Param=lambda key, value: (key, value)
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr(Tracker, "requests", [])
    return Tracker.requests


def test_mlflow(tmp_path: Path, requests: list[tuple[str, Any]]) -> None:
    with MLflow("http://tracker") as logger:
        logger.log_recipe(tmp_path, "epochs: 2\nthreat: Linf:8/255\n")
        logger.log_metrics(1, {"valid/robust/c<a>t": 0.5})
        logger.log_audit(tmp_path, "digits", {"all/cat": 0.25}, [tmp_path / "page.html"])
    assert requests == [
        ("experiment", "classwise"),
        ("create", ("7", tmp_path.name)),
        ("batch", ("r1", ("threat", "Linf:8/255"))),  # a parameter that is known is not sent again
        ("recipe.yaml", "epochs: 2\nthreat: Linf:8/255\n"),
        ("batch", ("r1", ("valid/robust/c_a_t", 0.5, 1))),
        ("batch", ("r1", ("audits/digits/all/cat", 0.25, 0))),
        ("audits/digits", "page.html"),
        ("FINISHED", "r1"),
    ]
    logger = MLflow("http://tracker")
    logger.log_recipe(tmp_path, "epochs: 2")
    logger.close(failed=True)
    assert requests[9:10] == [("continue", "r1")]
    assert requests[-1] == ("FAILED", "r1")


def test_an_error_of_mlflow_names_the_server(requests: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(Tracker, "get_experiment_by_name", refuse)
    assert "MLflow at http://tracker: no route" in refused(MLflow, "http://tracker")
    assert not requests


def test_a_request_has_at_most_as_many_metrics_as_mlflow_accepts(
    tmp_path: Path, requests: list[tuple[str, Any]]
) -> None:
    logger = MLflow("http://tracker")
    logger.open(tmp_path)
    logger.log_metrics(0, {str(number): 0.0 for number in range(1_200)})
    assert [len(sent) - 1 for kind, sent in requests if kind == "batch"] == [1_000, 200]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Artifact(list[str]):
        def __init__(self, name: str, type: str) -> None:  # noqa: A002  # the parameter of wandb
            super().__init__([name, type])

        def add_file(self, path: str, name: str) -> None:
            self.append(name)

    def init(**given: Any) -> Any:
        calls.append(given)
        return SimpleNamespace(
            id=given["id"],
            config=SimpleNamespace(update=lambda values, **_: calls.append(values)),
            summary={},
            log=lambda values, step: calls.append((step, values)),
            log_artifact=calls.append,
            finish=lambda **given: calls.append(given["exit_code"]),
        )

    module: Any = ModuleType("wandb")
    module.init, module.Artifact, module.Error = init, Artifact, OSError
    monkeypatch.setitem(sys.modules, "wandb", module)
    with WandB("project") as logger:
        logger.log_recipe(tmp_path, "epochs: 2")
        logger.log_metrics(1, {"a": 0.5})
        logger.log_audit(tmp_path, "digits", {"all/cat": 0.25}, [tmp_path / "page.html"])
        assert logger.run.summary == {"audits/digits/all/cat": 0.25}
    first = calls[0]
    assert (first["project"], first["name"], first["resume"]) == ("project", tmp_path.name, "allow")
    assert calls[1:] == [{"epochs": 2}, (1, {"a": 0.5}), [f"digits-{first['id']}", "audit", "page.html"], 0]
    WandB("project").open(tmp_path)
    assert calls[-1]["id"] == first["id"]  # the same run
    WandB("other").open(tmp_path)
    assert calls[-1]["id"] != first["id"]
    (tmp_path / RUNS).write_text("[", encoding="utf-8")
    assert "tracking.json is damaged" in refused(WandB("project").open, tmp_path)
