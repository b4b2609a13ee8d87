"""What the Makefile says where it cannot go on: one line that names the remedy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def a_python(folder: Path, lacking: str) -> Path:
    """A stand-in for Python that fails whatever speaks of what it lacks."""
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\ncase "$*" in *"{lacking}"*) exit 1;; esac\nexit 0\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["demo", "test", "bench", "lint"])
@pytest.mark.parametrize(
    ("lacking", "line"), [("ensurepip", "apt install python3-venv"), ("version_info", "Python 3.11 or later")]
)
def test_a_python_that_will_not_do(tmp_path: Path, target: str, lacking: str, line: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    words = ["make", "--silent", target, f"PYTHON={a_python(tmp_path, lacking)}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = (done.stdout + done.stderr).splitlines()
    assert len(said) == 1
    assert line in said[0]
    assert not (tmp_path / ".venv").exists()
