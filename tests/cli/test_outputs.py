"""Outputs that cannot be written are refused before the work, and outputs that are no regular files are written to."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from classwise.attacks.engine import Engine
from classwise.core.files.storage import check_writable
from classwise.papers.store import Store
from classwise.reporting import pages
from classwise.training.folder import Run
from classwise.training.setup import check_folder
from classwise.training.trainer import Trainer
from tests.refusals import check_refused

from .conftest import QUICK, Classwise

REFUSING = Path("/proc/classwise")
"""A place where nobody can create a file, the superuser neither."""


@pytest.fixture
def audited(run_folder: Path, tmp_path: Path, classwise: Classwise) -> Path:
    folder = tmp_path / "audited"
    assert classwise("audit", run_folder, "--subset=40", "--attack=fgsm", f"--out={folder}").status == 0
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_every_command_refuses_before_the_work(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, run_folder: Path, audited: Path
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    for owner, name in ((Trainer, "__init__"), (Engine, "attack"), (Engine, "predict"), (pages, "report")):
        monkeypatch.setattr(owner, name, work)
    monkeypatch.setattr(Store, "__init__", work)
    audit = ["audit", run_folder, "--subset=40", "--attack=fgsm"]
    for words in (
        ["train", "at", "--budget=short", "--data=digits", *QUICK, f"--out={REFUSING}"],
        [*audit, f"--out={REFUSING}"],
        [*audit, f"--html={REFUSING}/page.html"],
        ["curve", *audit[1:], f"--out={REFUSING}"],
        ["worst-class", *audit[1:], f"--out={REFUSING}"],
        ["compare", audited, audited, f"--out={REFUSING}/page.html"],
        ["report", audited, f"--out={REFUSING}/page.html"],
        ["report", audited, "--export=csv", f"--files={REFUSING}"],
        ["interpolate-weights", run_folder, f"--start={run_folder}", f"--out={REFUSING}/x.safetensors"],
        ["adjust-logits", run_folder, f"--out={REFUSING}/x.safetensors"],
        ["papers", "run", "cfa23/F1", f"--store={REFUSING}"],
        ["demo", f"--out={REFUSING}"],
    ):
        assert f"cannot write {REFUSING}" in classwise(*words).refusal


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process, for now without the superuser's rights, may read only."""
    folder = Path(tempfile.mkdtemp())
    (folder / "checkpoints").mkdir()
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_noticed_by_its_owner_too(read_only: Path) -> None:
    check_refused("Permission denied", check_writable, read_only / "page.html")
    check_refused("Permission denied", check_folder, Run(read_only / "new"), resume=False)
    assert os.listdir(read_only) == ["checkpoints"]  # noqa: PTH208


@pytest.mark.slow
def test_a_page_onto_a_device_or_a_link(classwise: Classwise, audited: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("target.html")
    assert classwise("report", audited, f"--out={tmp_path / 'link.html'}").status == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "target.html").read_text(encoding="utf-8").startswith("<!")
    said = classwise("report", audited, "--out=/dev/full")
    assert said.status == 2
    assert said.err == "classwise: no space left on the disk while writing /dev/full; free some and run again\n"
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--data=digits", "--set=data.name=cifar10"], "--data digits and --set data.name=cifar10 differ"),
        (["--data=digits", "--epochs=3"], "--epochs 3 and --set epochs=2 differ"),
        (["--data=digits", "--seed=1", "--set=seed=2"], "--seed 1 and --set seed=2 differ"),
        (
            ["--data=digits", "--data-set=size=8", "--set=data.options.size=9"],
            "--data-set size=8 and --set data.options.size=9 differ",
        ),
    ],
)
def test_an_option_and_another_value_by_set_are_refused(
    classwise: Classwise, tmp_path: Path, words: list[str], line: str
) -> None:
    quick = ["--set=epochs=2", *QUICK[1:]]
    assert (
        classwise("train", "at", "--budget=short", *quick, *words, f"--out={tmp_path / 'run'}").refusal
        == f"classwise: {line}; give one of them"
    )
    assert not (tmp_path / "run").exists()


def test_an_option_and_the_same_value_by_set_are_allowed(classwise: Classwise, tmp_path: Path) -> None:
    words = ["--data=digits", "--set=data.name=digits", "--set=epochs=1", "--epochs=1"]
    assert classwise("train", "at", "--budget=short", *QUICK[1:], *words, f"--out={tmp_path / 'run'}").status == 0
