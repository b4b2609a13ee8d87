"""Names for the parts that users choose: one line a part, and nothing imported until it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from classwise.errors import UserError, unknown

T = TypeVar("T")


def load_object(path: str, kind: str = "object") -> Any:
    """The object that ``"package.module:name"`` stands for; the working folder is searched too.

    Raises:
        UserError: if the module or the name in it does not exist.
    """
    _calls_user_code = True  # the module's own statements
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UserError(f"{kind} {path!r}: there is no module {error.name!r}") from error
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{kind} {path!r} is not of the form package.module:name") from error
    finally:
        if added:
            sys.path.remove(here)
    if not attribute or not hasattr(module, attribute):
        known = [name for name in vars(module) if not name.startswith("_")]
        raise unknown(f"{kind} in module {module_name!r}:", attribute, known)
    return getattr(module, attribute)


class Registry(Mapping[str, str], Generic[T]):
    """A table from names to ``"module:Class"`` paths.

    A path may be given wherever a name may, so a part of a user's own needs no registration.
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> type[T]:
        """Import the class (or the callable) of that name or path.

        Raises:
            UserError: if the name is not known, with the nearest known one.
        """
        path = self._entries.get(name, name if ":" in name else None)
        if path is None:
            raise unknown(self.kind, name, self._entries)
        found: type[T] = load_object(path, self.kind)
        return found

    def name_of(self, cls: type) -> str:
        """The shortest name under which a recipe can ask for the class."""
        path = f"{cls.__module__}:{cls.__qualname__}"
        return next((name for name, known in self._entries.items() if known == path), path)
