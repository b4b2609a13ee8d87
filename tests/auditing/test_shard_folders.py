"""Folders of shards that were copied, swapped, damaged or taken from elsewhere: one line that names the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classwise.auditing.curve.result import RADII
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit import audit
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.partition import Shard
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import CHECKSUMS
from tests.auditing import toys

DATA, NET = toys.images(30, classes=3), toys.model(3)
OPTIONS: dict[str, Any] = {"precision": EXACT, "batch_size": 32}
AUDIT: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm"]}
CURVE: dict[str, Any] = {**OPTIONS, "highest": 0.1, "rounds": 2, "attacks": "fgsm"}
FIRST, SECOND = "001-of-002", "002-of-002"

Change = Callable[[Path, Path], object]
"""Changes the folder of shards; the other folder has further evaluations."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of an audit and of a curve, and in ``other`` shards of another count and evaluations of all images."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in Shard.all(2):
        audit(NET, DATA, shard=shard, out=shard_folder(folder / "audit", shard), **AUDIT)
        robustness_curve(NET, DATA, shard=shard, out=shard_folder(folder / "curve", shard), **CURVE)
    audit(NET, DATA, shard="2/3", out=folder / "other" / "audit-third", **AUDIT)
    audit(NET, DATA, out=folder / "other" / "audit-all", **AUDIT)
    robustness_curve(NET, DATA, shard="2/3", out=folder / "other" / "curve-third", **CURVE)
    robustness_curve(NET, DATA, out=folder / "other" / "curve-all", **CURVE)
    return folder


def replaced(path: Path, source: Path) -> None:
    """Put a copy of a file or folder in the place of another."""
    removed(path)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def emptied(folder: Path) -> None:
    removed(folder)
    folder.mkdir()


def made_a_file(folder: Path) -> None:
    removed(folder)
    folder.touch()


def swapped(shards: Path) -> None:
    (shards / FIRST).rename(shards / "kept")
    (shards / SECOND).rename(shards / FIRST)
    (shards / "kept").rename(shards / SECOND)


def linked(shards: Path) -> None:
    removed(shards / SECOND)
    (shards / SECOND).symlink_to(shards / FIRST)


def unverified(shards: Path, name: str) -> None:
    """Replace a file by that of the other shard, and remove the checksums that would tell."""
    replaced(shards / SECOND / name, shards / FIRST / name)
    removed((shards / SECOND / name).parent / CHECKSUMS)


def changed(file: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


OTHER = r"002-of-002 contains {}, not shard 2/2; remove that folder, and run the shard again with --shard 2/2$"
BOTH: dict[str, tuple[Change, str]] = {
    "copied": (lambda here, _: replaced(here / SECOND, here / FIRST), OTHER.format("shard 1/2")),
    "swapped": (lambda here, _: swapped(here), r"001-of-002 contains shard 2/2, not shard 1/2; remove that folder"),
    "linked": (lambda here, _: linked(here), OTHER.format("shard 1/2")),
    "missing": (lambda here, _: removed(here / SECOND), "1 of 2 shards are not finished: 2; run them with --shard"),
    "empty": (lambda here, _: emptied(here / SECOND), "not finished: 2"),
    "a file": (lambda here, _: made_a_file(here / SECOND), "not finished: 2"),
}
AUDITS: dict[str, tuple[Change, str]] = {
    **BOTH,
    "of another count": (lambda here, far: replaced(here / SECOND, far / "audit-third"), OTHER.format("shard 2/3")),
    "of all images": (
        lambda here, far: replaced(here / SECOND, far / "audit-all"),
        OTHER.format("results of all images"),
    ),
    "of a curve": (lambda here, far: replaced(here / SECOND, far / "curve-third"), "not finished: 2"),
    "another name": (lambda here, _: (here / SECOND).rename(here / "002-of-003"), "not finished: 2"),
    "outcomes copied": (
        lambda here, _: replaced(here / SECOND / "outcomes", here / FIRST / "outcomes"),
        "002-of-002 has results of image 0, which are in another file already; remove that folder",
    ),
    "a file copied": (
        lambda here, _: unverified(here, f"outcomes/{outcome_files.name(1)}"),
        "002-of-002 has rows of other images under fgsm than under clean; remove that folder",
    ),
    "a file damaged": (
        lambda here, _: changed(here / SECOND / "outcomes" / outcome_files.name(0)),
        r"part-00000.parquet is damaged: its SHA-256 is not in checksums.txt|not finished: 2",
    ),
    "its record damaged": (lambda here, _: changed(here / SECOND / "audit.json"), "audit.json is damaged"),
    "its record copied": (
        lambda here, _: replaced(here / SECOND / "audit.json", here / FIRST / "audit.json"),
        "002-of-002/audit.json is damaged",
    ),
}
CURVES: dict[str, tuple[Change, str]] = {
    **BOTH,
    "of another count": (lambda here, far: replaced(here / SECOND, far / "curve-third"), OTHER.format("shard 2/3")),
    "of all images": (
        lambda here, far: replaced(here / SECOND, far / "curve-all"),
        OTHER.format("results of all images"),
    ),
    "of an audit": (lambda here, far: replaced(here / SECOND, far / "audit-third"), "not finished: 2"),
    "radii copied": (
        lambda here, _: unverified(here, RADII),
        "002-of-002 has results of image 0, which are in another file already",
    ),
    "radii damaged": (lambda here, _: changed(here / SECOND / RADII), "radii.parquet is damaged"),
}


@pytest.mark.parametrize("case", AUDITS)
def test_shards_of_an_audit(made: Path, tmp_path: Path, case: str) -> None:
    refused(
        made / "audit",
        tmp_path,
        *AUDITS[case],
        made / "other",
        lambda: audit(NET, DATA, shards=2, out=tmp_path / "x", **AUDIT),
    )


@pytest.mark.parametrize("case", CURVES)
def test_shards_of_a_curve(made: Path, tmp_path: Path, case: str) -> None:
    refused(
        made / "curve",
        tmp_path,
        *CURVES[case],
        made / "other",
        lambda: robustness_curve(NET, DATA, shards=2, out=tmp_path / "x", **CURVE),
    )


def refused(source: Path, place: Path, change: Change, said: str, other: Path, merge: Callable[[], object]) -> None:
    shutil.copytree(source, place / "x")
    change(place / "x" / "shards", other)
    with pytest.raises(ClasswiseError, match=said) as found:
        merge()
    assert isinstance(found.value, IncompleteError) == ("not finished" in str(found.value))


def test_a_link_to_the_right_shard_is_merged(made: Path, tmp_path: Path) -> None:
    for number in (FIRST, SECOND):
        (tmp_path / "shards").mkdir(exist_ok=True)
        (tmp_path / "shards" / number).symlink_to(made / "audit" / "shards" / number)
    assert audit(NET, DATA, shards=2, out=tmp_path, **AUDIT).complete
