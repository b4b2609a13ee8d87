"""What is removed or replaced while a command runs is bad input in one line, not an internal error."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from classwise.cli import installation
from classwise.cli.exit_status import ExitStatus
from classwise.cli.failures import failure
from classwise.cli.installation import changed_package
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.settings import user_code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that this process has loaded; its module ``lazy`` is not."""
    folder = tmp_path / "site" / "installed_package"
    folder.mkdir(parents=True)
    for name in ("__init__", "lazy"):
        (folder / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(user_code, "_installed", lambda: [str(folder.parent)])
    importlib.import_module("installed_package")
    monkeypatch.setattr(installation, "_STARTED", time.time() + 1)
    yield folder
    for name in [name for name in sys.modules if name.startswith("installed_package")]:
        del sys.modules[name]


def lazy_import(name: str = "installed_package.lazy") -> ImportError:
    importlib.invalidate_caches()
    with pytest.raises(ImportError) as caught:
        importlib.import_module(name)
    return caught.value.with_traceback(None)  # without this file, which is a user's


def replace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install another version of the package."""
    monkeypatch.setattr(installation, "_STARTED", time.time() - 60)
    (folder / "__init__.py").write_text("version = 2")


@pytest.mark.parametrize("own", [True, False])
def test_a_removed_package_is_named(package: Path, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setattr(installation, "OWN", package.name)
    assert changed_package(ImportError("no", name="installed_package.lazy")) is None
    shutil.rmtree(package)
    for error in (lazy_import(), lazy_import("a_module_that_was_beside_it"), ImportError("without a name")):
        if not own and error.name is None:
            continue
        found = failure(error)
        assert found.status == ExitStatus.BAD_INPUT
        assert found.line.startswith(f"the package installed_package was removed from {package.parent} while the comma")
        assert str(error) in found.line
        assert found.line.endswith("install it again and repeat the command; --resume continues what is saved")


def test_a_missing_data_file_of_a_removed_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "OWN", package.name)
    shutil.rmtree(package)
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", str(package / "page.css"))
    for error in (missing, ClasswiseError("unknown recipe 'at'; known: none"), KeyError("at")):
        assert failure(error).status == ExitStatus.BAD_INPUT
        assert "installed_package was removed" in failure(error).line


def test_a_replaced_package_explains_internal_errors_only(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "OWN", package.name)
    assert failure(AttributeError("x")).status == ExitStatus.INTERNAL_ERROR
    replace(package, monkeypatch)
    found = failure(AttributeError("x"))
    assert found.status == ExitStatus.BAD_INPUT
    assert found.line.startswith(
        f"the package installed_package was replaced in {package.parent} while the command ran"
    )
    assert "(AttributeError: x)" in found.line
    for error, status in ((ClasswiseError("no"), 2), (IncompleteError("no"), 3), (KeyboardInterrupt(), 130)):
        assert failure(error).status == status
        assert "replaced" not in failure(error).line


def test_a_removed_part_of_the_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "OWN", package.name)
    importlib.import_module("installed_package.lazy")
    (package / "lazy.py").unlink()
    assert "installed_package was replaced in" in failure(RuntimeError("x")).line


def test_an_import_that_fails_for_another_reason_is_an_internal_error(package: Path) -> None:
    del package
    assert failure(lazy_import("installed_package.never")).status == ExitStatus.INTERNAL_ERROR


def test_modules_of_the_user_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_user.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("of_a_user")
    (tmp_path / "of_a_user.py").unlink()
    assert changed_package(ImportError("no", name="of_a_user.part")) is None
    del sys.modules["of_a_user"]


def test_a_removed_file_is_named() -> None:
    for number in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        found = failure(OSError(number, os.strerror(number), "photos/cat/1.png"))
        assert found == (2, f"photos/cat/1.png: {os.strerror(number)}; was it removed while the command ran?")


def test_a_removed_working_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        Path.cwd()
    found = failure(caught.value.with_traceback(None))
    assert found == (2, "the current folder was removed; change to another folder and run the command again")


def test_a_missing_folder_for_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.mkdtemp()
    found = failure(caught.value.with_traceback(None))
    assert found.status == ExitStatus.BAD_INPUT
    assert (
        "no folder for temporary files can be written; free some space, or name such a folder in TMPDIR" in found.line
    )
