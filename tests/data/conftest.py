from __future__ import annotations

from pathlib import Path

import pytest

from classwise.data.sets import loading

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return SHARED


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory outside which no named set is found."""
    monkeypatch.delenv("CLASSWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(loading, "SYSTEM", tmp_path / "system")
    return tmp_path
