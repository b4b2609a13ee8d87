"""The folder of a result: its marker, its settings, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from classwise.core.files.storage import CHECKSUMS, MARKERS, ResultFolder, matches, write_bytes
from tests.refusals import check_refused

SETTINGS = {"seed": 0, "attacks": {"pgd": {"steps": 5}}}


def claim(
    folder: ResultFolder, *, resume: bool = False, options: Mapping[str, str] | None = None, **settings: Any
) -> bool:
    with folder.claimed({**SETTINGS, **settings}, resume=resume, options=options or {}, name="a") as resumed:
        assert matches(folder.marker)
        return resumed


@pytest.mark.parametrize("kind", ["audit", "curve", "worst-class search"])
def test_a_folder_is_resumed_with_the_same_settings_only(kind: str, tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "new" / "folder", kind)
    assert not claim(folder)
    assert claim(folder, resume=True)
    assert {**folder.read(), "settings": None} == {"schema_version": 2, "kind": kind, "name": "a", "settings": None}
    check_refused(f"already contains this {kind} with these settings: add --resume", claim, folder)
    changed: tuple[tuple[dict[str, Any], str], ...] = (
        ({"seed": 1}, "seed was 0, now 1"),
        ({"attacks": {"pgd": {"steps": 9}}}, "attacks.pgd.steps was 5, now 9"),
        ({"attacks": {"fgsm": None}}, "attacks was pgd, now fgsm"),
    )
    for settings, differs in changed:
        options = {"seed": "--seed", "attacks": "--attack"}
        named = f"{differs} \\({options[next(iter(settings))]}\\)"
        check_refused(
            f"contains an? {kind} with other settings: {named}; give another",
            claim,
            folder,
            resume=True,
            options=options,
            **settings,
        )


@pytest.mark.parametrize("kind", MARKERS)
def test_other_contents_are_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("dear")
    check_refused(f"is not empty and contains no {kind}; give a new folder", claim, ResultFolder(tmp_path, kind))
    for check in (ResultFolder(file, kind).check, ResultFolder(file, kind).check_unused):
        check_refused(f"is a file; give a folder for the {kind}", check)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_curve_and_a_worst_class_search_do_not_share_a_folder(tmp_path: Path) -> None:
    claim(ResultFolder(tmp_path, "curve"))
    check_refused(
        "is the folder of a curve, not of a worst-class search; give another",
        claim,
        ResultFolder(tmp_path, "worst-class search"),
        resume=True,
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"schema_version": 2, "settings": SETTINGS}, ""),  # written before markers had a kind
        ({"schema_version": 99, "settings": SETTINGS}, "schema_version 99 is newer than the 2 supported here"),
        ({"schema_version": 1, "settings": SETTINGS}, "schema_version 1 is older than the 2 supported here"),
        (
            {"settings": SETTINGS},
            "search.json is damaged .schema_version is missing.; start the curve again in another",
        ),
        (
            {"schema_version": 2, "settings": []},
            "search.json is damaged .settings = .*Input should be an object.",
        ),
        ([], "search.json is damaged .not a JSON object."),
    ],
)
def test_markers_of_other_versions(content: Any, says: str, tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path, "curve")
    claim(folder)
    (tmp_path / CHECKSUMS).unlink()
    folder.marker.write_text(json.dumps(content))
    if not says:
        assert folder.read() == {"kind": "curve", **content}
        return
    check_refused(says, claim, folder, resume=True)


@pytest.mark.parametrize("damaged", [b"\x00\x01garbage", b"zz  w.bin\n", b"0123  w.bin\n", b"w.bin"])
def test_damaged_checksums_are_refused(damaged: bytes, tmp_path: Path) -> None:
    write_bytes(tmp_path / "w.bin", b"content", checksum=True)
    listed = (tmp_path / CHECKSUMS).read_bytes()
    for begun in (b"", listed[:30], listed[:65], listed[:70] + b"\n"):  # a process was killed while it wrote
        (tmp_path / CHECKSUMS).write_bytes(listed + begun)
        assert matches(tmp_path / "w.bin")
    (tmp_path / CHECKSUMS).write_bytes(listed + damaged)
    check_refused("checksums.txt is damaged: line 2 is not a SHA-256 and a file name", matches, tmp_path / "w.bin")
