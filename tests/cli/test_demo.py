from __future__ import annotations

from pathlib import Path

import pytest

from classwise.cli import demo
from classwise.training.folder import Run

from .conftest import Classwise

QUICK = {"epochs": "1", "data.subset": "120", "model.width": "0.1", "attack.steps": "2", "validation_attack.steps": "2"}


@pytest.mark.slow
def test_the_whole_way(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SMALL", {**demo.SMALL, **QUICK})
    printed = classwise("demo", "--out", tmp_path / "demo").printed
    for recipe in ("at", "cfa-at"):
        assert Run.open(tmp_path / "demo" / recipe).complete
        assert (tmp_path / "demo" / f"{recipe}.html").stat().st_size < 500_000
    assert printed.splitlines()[-1] == f"page: {tmp_path / 'demo' / 'compare.html'}"
    assert (tmp_path / "demo" / "compare.html").is_file()
    assert "CFA-AT minus AT" in printed
    assert "[" in printed

    made = [*(tmp_path / "demo").glob("*/checkpoints/*"), *(tmp_path / "demo").glob("*/audits/*/outcomes/*")]
    before = {path: path.stat().st_mtime_ns for path in made}
    again = classwise("demo", "--out", tmp_path / "demo")
    assert (again.status, again.out) == (0, printed)
    assert {path: path.stat().st_mtime_ns for path in made} == before


def test_a_file_in_the_way(classwise: Classwise, tmp_path: Path) -> None:
    (tmp_path / "demo").touch()
    assert classwise("demo", "--out", tmp_path / "demo").status == 2
