"""The Makefile reports an unsuitable Python in one line with the fix, and a GPU that is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


LACKING = "import sys; sys.modules['{}'] = None; import benchmarks.gpu.__main__ as main; sys.exit(main.main())"


def make_gpu(python: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--silent", "-C", str(ROOT), "gpu", f"PYTHON={python}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_gpu_one_line_reports_what_is_skipped(tmp_path: Path) -> None:
    for module, status in (("torch", 0), ("pydantic", 2)):
        python = tmp_path / "python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{LACKING.format(module)}"\n')
        python.chmod(0o755)
        done = make_gpu(python)
        assert done.returncode == status
        line = done.stdout if module == "torch" else done.stderr.splitlines(keepends=True)[0]
        assert f"has no {module}" in line
        assert line.count("\n") == 1
        assert "Traceback" not in done.stderr


def test_packages_brought_along_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "/wheels")
    assert set(make_gpu(python).stdout.split()) == {f"{ROOT}/src:/wheels"}
    monkeypatch.delenv("PYTHONPATH")
    assert set(make_gpu(python).stdout.split()) == {f"{ROOT}/src"}


@pytest.mark.parametrize("status", [0, 1, 3])
def test_the_options_and_the_status_of_the_command_are_passed_on(tmp_path: Path, status: int) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\necho "$*"\nexit {status}\n')
    python.chmod(0o755)
    done = make_gpu(python, "GPU=--minutes 8 --from a.json --out build/gpu")
    assert done.stdout == "-m benchmarks.gpu --minutes 8 --from a.json --out build/gpu\n"
    assert (done.returncode == 0) == (status == 0)


def test_tests_that_are_skipped_without_other_libraries_run_with_them() -> None:
    """``make test`` installs none of these, so ``make test-peers`` runs their files, too."""
    files = [file.relative_to(ROOT) for file in (ROOT / "tests").rglob("*.py")]
    skipping = [file for file in files if "importorskip(" in (ROOT / file).read_text(encoding="utf-8")]
    needed = {str(file) for file in skipping if file.parts[1] not in ("integrations", "cluster", "test_makefile.py")}
    command = ["make", "--dry-run", "-C", str(ROOT), "test-peers", f"PYTHON={sys.executable}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert needed
    assert [file for file in needed if file not in lines] == []
