"""A flipped bit in any file of a run or an audit is reported with the file name, or does not change the content."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import CHECKSUMS
from classwise.models import load_model
from classwise.models.weights import fingerprint
from classwise.training.folder import Run
from classwise.training.state import read_state

from .client import TRAIN, Runner

pytestmark = pytest.mark.slow


def flips(file: Path, count: int, seed: int) -> list[tuple[int, int]]:
    """Random positions in a file: byte and bit."""
    chance = random.Random(seed)
    return [(chance.randrange(file.stat().st_size), chance.randrange(8)) for _ in range(count)]


def detected(file: Path, places: list[tuple[int, int]], load: Callable[[], object]) -> int:
    """Count the flips that are reported with the file name; the others must not change the content.

    Args:
        file: the file, modified in place and restored.
        places: byte and bit of each flip.
        load: reads the file; its results are compared with ``==``.
    """
    content, refused = file.read_bytes(), 0
    expected = load()
    try:
        for byte, bit in places:
            flipped = bytearray(content)
            flipped[byte] ^= 1 << bit
            file.write_bytes(flipped)
            try:
                found = load()
            except ClasswiseError as error:
                assert file.name in str(error), (file, byte, bit, error)  # noqa: PT017
                refused += 1
            else:
                assert found == expected, (file, byte, bit)
    finally:
        file.write_bytes(content)
    return refused


def _rows(part: Path) -> Callable[[], object]:
    def load() -> object:
        frame, meta = outcome_files.read(part)
        return frame.to_json(double_precision=15), meta

    return load


def _state_of(folder: Path) -> Callable[[], object]:
    def load() -> object:
        file = Run(folder).state_file
        read_state(file)
        return file.read_bytes()

    return load


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy of the run."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def audit(audited: Path, tmp_path: Path) -> Path:
    """A copy of the audit."""
    return Path(shutil.copytree(audited, tmp_path / "audit"))


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.hostile)])
def test_flips_in_an_outcomes_part(audit: Path, count: int) -> None:
    part = outcome_files.listed(audit / "outcomes")[-1]
    assert detected(part, flips(part, count, seed=count), _rows(part)) == count


@pytest.mark.parametrize("count", [20, pytest.param(150, marks=pytest.mark.hostile)])
def test_flips_in_a_state(run: Run, count: int) -> None:
    file = run.state_file
    assert detected(file, flips(file, count, seed=count), _state_of(run.path)) == count


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.hostile)])
def test_flips_in_the_other_files(run: Run, audit: Path, count: int) -> None:
    """Weights, epochs, events, recipe, environment, audit.json and saved tensors."""
    loads: dict[Path, Callable[[], object]] = {
        run.weights_file("best"): lambda: fingerprint(load_model(run.weights_file("best"))),
        run.epochs_file: lambda: run.epochs.to_json(),  # noqa: PLW0108  # reads the file anew
        run.events_file: lambda: run.events,
        run.recipe_file: lambda: Run(run.path).recipe,
        run.environment_file: lambda: Run(run.path).environment,
        audit / "audit.json": lambda: Audit.load(audit).environment,
    }
    saved = sorted((audit / "artifacts" / "logits").iterdir())
    tensors = next(file for file in saved if file.name != CHECKSUMS)
    loads[tensors] = lambda: Audit.load(audit).artifacts.get("logits", "clean")[1].tolist()  # noqa: PLW0108
    for number, (file, load) in enumerate(loads.items()):
        assert detected(file, flips(file, count, seed=number), load) == count, file


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.hostile)])
def test_flips_in_the_checksums_never_change_a_number(audit: Path, count: int) -> None:
    part = outcome_files.listed(audit / "outcomes")[0]
    listed, content = part.with_name(CHECKSUMS), part.read_bytes()
    expected = _rows(part)()
    good = listed.read_bytes()
    for byte, bit in flips(listed, count, seed=3):
        flipped = bytearray(good)
        flipped[byte] ^= 1 << bit
        listed.write_bytes(flipped)
        try:
            assert _rows(part)() == expected
        except ClasswiseError as error:
            assert CHECKSUMS in str(error)  # noqa: PT017
    assert part.read_bytes() == content


@pytest.mark.parametrize("count", [20, pytest.param(150, marks=pytest.mark.hostile)])
def test_page_checksums_detect_flips_without_a_checksum_file(audit: Path, tmp_path: Path, count: int) -> None:
    """For a part without its checksum file, a flip in a page is reported; one in the footer may prevent reading."""
    part = Path(shutil.copy(outcome_files.listed(audit / "outcomes")[-1], tmp_path))
    content = part.read_bytes()
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    chance = random.Random(4)
    places = [(chance.randrange(4, pages), chance.randrange(8)) for _ in range(count)]
    assert detected(part, places, _rows(part)) > 0  # and no flip changes a number


@pytest.mark.parametrize("name", ["environment.json", "epochs.parquet", "events.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2]", b'{"a": 1}\n', b"null\n"])
def test_a_damaged_file_of_an_older_run_is_one_line(run: Run, name: str, content: bytes) -> None:
    """Runs without checksums: every readable file is validated when it is read."""
    for listed in run.path.rglob(CHECKSUMS):
        listed.unlink()
    (run.path / name).write_bytes(content)
    try:
        again = Run.open(run.path)
        read = [again.recipe, again.data, again.epochs_done, again.best_epoch(), again.default_weights()]
    except ClasswiseError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len(read) == 5
        assert (name, content) == ("events.jsonl", b"")


def test_a_folder_without_checksums_is_read_unverified(run: Run, audit: Path) -> None:
    for folder in (run.path, audit):
        for listed in folder.rglob(CHECKSUMS):
            listed.unlink()
    assert Audit.load(audit).complete
    assert fingerprint(run.model())


def test_check_names_the_damaged_files(runner: Runner, run: Run) -> None:
    assert runner.succeed(["report", run.path, "--check"], run.path).lines[-1].endswith("0 have no checksum")
    for file in (run.state_file, run.events_file):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    line = runner.run(["report", run.path, "--check"], run.path).refusal()
    assert "2 of 10 files with a checksum are damaged: checkpoints/state.pt, events.jsonl" in line
    run.events_file.unlink()
    line = runner.run(["report", run.path, "--check"], run.path).refusal()
    assert "are damaged: checkpoints/state.pt; 1 of 10 files with a checksum are missing: events.jsonl" in line


def test_a_damaged_state_is_not_resumed(runner: Runner, run: Run) -> None:
    content = bytearray(run.state_file.read_bytes())
    content[len(content) // 2] ^= 1
    run.state_file.write_bytes(content)
    line = runner.run([*TRAIN, "--out", run.path, "--resume"], run.path).refusal()
    assert "state.pt is damaged" in line
    assert json.loads(run.environment_file.read_text())
