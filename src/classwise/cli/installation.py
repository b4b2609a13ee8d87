"""Whether the installed packages are those that this process has loaded.

Many modules and data files are read on first use. If a package is removed or installed again while a command runs, such
a read fails with an error that looks like one of the code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from classwise.core.settings.user_code import is_installed

OWN = __name__.partition(".")[0]
_STARTED = time.time()


class Change(NamedTuple):
    """A change of a package since this process has loaded it.

    Args:
        package: its name.
        folder: the folder that contains or contained it.
        removed: whether it was removed; else it was replaced.
    """

    package: str
    folder: Path
    removed: bool

    def __str__(self) -> str:
        return f"the package {self.package} was {'removed from' if self.removed else 'replaced in'} {self.folder}"


def changed_package(error: BaseException) -> Change | None:
    """A change of this package, or of an installed one after a failed import, as the likely cause of an error."""
    failed = list(_imports(error))
    loaded = {name for name in list(sys.modules) if failed and "." not in name and name != OWN}
    for name in (OWN, *sorted(loaded)):
        file = _source(sys.modules[name]) if name in sys.modules else None
        if file is not None and not file.exists() and (name == OWN or is_installed(str(file))):
            return Change(name, file.parents[1], removed=True)
    for name in dict.fromkeys((OWN, *failed)):
        files = list(_loaded(name))
        if any(_is_newer(file) for file in files) and (name == OWN or is_installed(str(files[0]))):
            return Change(name, _folder(name), removed=False)
    return None


def _imports(error: BaseException) -> Iterator[str]:
    """The packages of which an import failed in an error or its causes."""
    each: BaseException | None = error
    for _ in range(100):  # causes may be circular
        if each is None:
            return
        if isinstance(each, ImportError) and each.name:
            yield each.name.partition(".")[0]
        each = each.__cause__ or each.__context__


def _folder(name: str) -> Path:
    """The folder that contains a loaded package."""
    return Path(str(sys.modules[name].__file__)).parents[1]


def _loaded(name: str) -> Iterator[Path]:
    """The source files of the loaded modules of a package."""
    for module, content in list(sys.modules.items()):
        if module.partition(".")[0] == name and (file := _source(content)) is not None:
            yield file


def _source(module: ModuleType) -> Path | None:
    """The source file of a module; None for one that is not loaded from a file, such as one of a zip archive."""
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(getattr(spec, "loader", None), SourceFileLoader) and file else None


def _is_newer(file: Path) -> bool:
    """Whether a file was written or removed since this process started."""
    return not file.exists() or file.stat().st_ctime > _STARTED
