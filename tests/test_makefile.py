"""The Makefile reports an unsuitable Python in one line with the fix."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def fake_python(folder: Path, lacking: str) -> Path:
    """A fake Python that fails for commands containing ``lacking``."""
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\ncase "$*" in *"{lacking}"*) exit 1;; esac\nexit 0\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["demo", "test", "bench", "lint"])
@pytest.mark.parametrize(
    ("lacking", "line"), [("ensurepip", "apt install python3-venv"), ("version_info", "Python 3.11 or later")]
)
def test_an_unsuitable_python(tmp_path: Path, target: str, lacking: str, line: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--silent", target, f"PYTHON={fake_python(tmp_path, lacking)}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    output = (done.stdout + done.stderr).splitlines()
    assert len(output) == 1
    assert line in output[0]
    assert not (tmp_path / ".venv").exists()
