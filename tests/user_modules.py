"""Modules of a user that a test writes, changes and imports again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


class UserModules:
    """A folder on the path of imports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def write(self, **texts: str) -> None:
        """Write modules, and forget all of them, as a new process does; ``__`` in a name is a dot."""
        for name, text in texts.items():
            file = self.folder / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            self.names |= {name.partition("__")[0]}
        self.forget()

    def forget(self) -> None:
        """Remove the modules from those that are imported."""
        for name in [*sys.modules]:
            if name.partition(".")[0] in self.names:
                del sys.modules[name]
        importlib.invalidate_caches()

    def load(self, name: str) -> ModuleType:
        """Import a module."""
        return importlib.import_module(name)


@pytest.fixture
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserModules]:
    """A folder for modules of a user."""
    folder = tmp_path / "of_user"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions may be of one size and one second
    modules = UserModules(folder)
    yield modules
    modules.forget()
