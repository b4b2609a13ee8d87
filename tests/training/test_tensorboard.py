"""TensorBoard as a listener: its scalars, and the error if it is not installed (the tests do not need it)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.progress import MetricsListener, NullProgress
from classwise.training.tensorboard import TensorBoard
from classwise.training.train import train

from .test_trainer import SMALL, contents


class Writer:
    """Replaces the SummaryWriter of torch."""

    scalars: ClassVar[dict[tuple[str, int], float]] = {}
    closed: ClassVar[list[str]] = []

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.scalars[name, epoch] = value

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        self.closed.append(self.folder)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "scalars", {})
    monkeypatch.setattr(Writer, "closed", [])


class Notes(NullProgress):
    """Count steps and record log lines."""

    def __init__(self) -> None:
        self.steps = 0
        self.lines: list[str] = []

    def advance(self, amount: int) -> None:
        self.steps += amount

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_it_writes_the_measurements_and_forwards_all_calls(tmp_path: Path) -> None:
    notes = Notes()
    with TensorBoard(tmp_path / "board", notes) as board:
        assert isinstance(board, MetricsListener)
        assert not isinstance(notes, MetricsListener)
        heard = train(
            "at-ema", budget="short", out=tmp_path / "a", data="digits", overrides=SMALL | {"epochs": 2}, progress=board
        )
    assert Writer.closed == [str(tmp_path / "board")]
    assert notes.steps == 8
    assert len(notes.lines) == 2
    rows = heard.epochs.query("epoch == 1 and split == 'valid'").set_index("class")["robust"]
    for name, value in rows.items():
        assert Writer.scalars[f"valid/robust/{name}", 1] == pytest.approx(value)
    assert Writer.scalars["train/epsilon/3", 0] == pytest.approx(0.1)
    assert 0 < Writer.scalars["learning rate", 1] < 0.2
    assert ("valid/epsilon/3", 0) not in Writer.scalars
    plain = train("at-ema", budget="short", out=tmp_path / "b", data="digits", overrides=SMALL | {"epochs": 2})
    assert contents(plain) == contents(heard)  # logging changes no result


def test_a_missing_tensorboard_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ClasswiseError) as caught:
        TensorBoard(tmp_path)
    _, _, command = str(caught.value).partition("in the clone of classwise: ")
    page = Path(__file__).parents[2] / "docs" / "updates.md"
    assert command in page.read_text(encoding="utf-8")
    assert "[tensorboard]" in command
