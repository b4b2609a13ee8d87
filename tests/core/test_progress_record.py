"""The progress in the folder of a training or an audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import classwise as cw
from classwise.core.files.ownership import OWNER, owned
from classwise.core.progress import record as progress_record
from classwise.core.progress.listener import NullProgress
from classwise.core.progress.record import FILE, ProgressRecord, read_progress, recorded
from tests.auditing import toys
from tests.training.on_digits import TINY


class Listener(NullProgress):
    """Collects what the folder shows whenever it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[ProgressRecord | None] = []

    def start(self, task: str, total: int) -> None:
        del task, total
        self.seen.append(read_progress(self.folder))

    def advance(self, amount: int) -> None:
        del amount
        self.seen.append(read_progress(self.folder))


def test_the_start_the_first_units_and_intervals_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(tmp_path)
    with recorded(tmp_path, listener) as progress:
        progress.start("training", 100)
        progress.advance(40)  # done before a resume
        progress.advance(10)
        monkeypatch.setattr(progress_record, "SECONDS_BETWEEN_RECORDS", 0.0)
        progress.advance(10)
    *before, last = listener.seen
    resumed = ProgressRecord("training", 40, 100, None)
    assert before == [ProgressRecord("training", 0, 100, None), resumed, resumed]
    assert last is not None
    assert last.done == 60
    assert last.seconds_left is not None
    assert last.seconds_left >= 0
    assert list(tmp_path.iterdir()) == []


def test_a_training_and_an_audit_record_their_progress_while_they_run(tmp_path: Path) -> None:
    run, audit = Listener(tmp_path / "run"), Listener(tmp_path / "audit")
    cw.train("at", data="digits", out=run.folder, overrides=TINY, progress=run)
    assert run.seen[:2] == [ProgressRecord("training", 0, 6, None)] * 2
    cw.audit(toys.model(), toys.images(30), "Linf:0.02", "fgsm", guards="off", out=audit.folder, progress=audit)
    assert {record.task for record in audit.seen if record} == {"clean", "fgsm"}
    assert None not in audit.seen
    assert [file for file in tmp_path.rglob("*") if file.name == FILE] == []
    assert FILE not in (run.folder / "checksums.txt").read_text()


def test_a_process_that_has_lost_the_folder_records_nothing(tmp_path: Path) -> None:
    with owned(tmp_path), recorded(tmp_path, NullProgress()) as progress:
        (tmp_path / OWNER).write_text(json.dumps({"token": "of the replacement"}))
        progress.start("training", 100)
        assert read_progress(tmp_path) is None
        (tmp_path / FILE).write_text('{"task": "pgd", "done": 1, "total": 2, "seconds_left": null}')
    assert read_progress(tmp_path) == ProgressRecord("pgd", 1, 2, None)


@pytest.mark.parametrize("text", ["", '{"task": "pgd", "do', "[]", "1", '{"other": 1}'])
def test_a_partial_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_progress(tmp_path) is None


def test_a_record_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with recorded(tmp_path, NullProgress()) as progress:
        progress.start("training", 100)
    assert (tmp_path / FILE).is_dir()
    assert read_progress(tmp_path) is None
