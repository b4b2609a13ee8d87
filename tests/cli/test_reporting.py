from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit

from .conftest import Classwise

LABELS = np.arange(60) % 3


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    attacked = np.where(np.arange(60) % 4 == 0, (LABELS + 1) % 3, LABELS)
    outcomes = Outcomes.from_predictions(
        LABELS, clean=LABELS, attacks={"theirs": attacked}, class_names=["a", "b", "c"]
    )
    return Audit(outcomes, name="elsewhere").save(tmp_path / "audit")


def test_the_page_of_an_audit(classwise: Classwise, audit: Path) -> None:
    said = classwise("report", audit)
    assert (said.status, said.out) == (0, f"page: {audit / 'page.html'}\n")
    assert "theirs" in (audit / "page.html").read_text(encoding="utf-8")


def test_files_beside_a_page(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    said = classwise("report", audit, "--out", tmp_path / "new" / "page.html", "--export=csv,md,png")
    assert said.status == 0, said.err
    assert (tmp_path / "new" / "page.html").is_file()
    files = [Path(line.removeprefix("file: ")) for line in said.out.splitlines()[1:]]
    assert {file.suffix for file in files} == {".csv", ".md", ".png"}
    assert {file.parent for file in files} == {tmp_path / "new" / "files"}
    assert all(file.is_file() for file in files)


def test_an_unknown_form_leaves_nothing(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    said = classwise("report", audit, "--out", tmp_path / "new" / "page.html", "--export=csv,docx")
    assert (said.status, said.out) == (2, "")
    assert "docx" in said.err
    assert not (tmp_path / "new").exists()
