"""Names for the parts that users choose: one line a part, and nothing imported until it is used."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from classwise.core import limits
from classwise.core.errors import ClasswiseError, unknown

T = TypeVar("T")


def load_object(path: str, kind: str = "object") -> Any:
    """The object that ``"package.module:name"`` stands for; the working folder is searched too.

    Raises:
        ClasswiseError: if the module or the name in it does not exist.
    """
    _calls_user_code = True  # the module's own statements
    module_name, _, attribute = path.partition(":")
    names = [*module_name.split("."), attribute]
    if len(path) > limits.NAME_LENGTH or not all(name.isidentifier() for name in names):
        raise ClasswiseError(f"{kind} {path!r} is not of the form package.module:name")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise ClasswiseError(f"{kind} {path!r}: there is no module {error.name!r}") from error
        raise
    except ClasswiseError:
        raise
    except (ValueError, TypeError) as error:
        raise ClasswiseError(f"{kind} {path!r} is not of the form package.module:name") from error
    finally:
        if added:
            sys.path.remove(here)
    if not attribute or not hasattr(module, attribute):
        known = [name for name in vars(module) if not name.startswith("_")]
        raise unknown(f"{kind} in module {module_name!r}:", attribute, known)
    return getattr(module, attribute)


class Registry(Mapping[str, str], Generic[T]):
    """A table from names to ``"module:Class"`` paths.

    A path may be given wherever a name may, so a part of a user's own needs no registration. Installed packages add
    names through entry points.

    Example:
        >>> import classwise as cw
        >>> "pgd" in cw.ATTACKS
        True
        >>> cw.ATTACKS.load("pgd")(steps=10).steps
        10
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        base: str | None = None,
        arguments: int = 0,
        instances: tuple[str, ...] = (),
        group: str = "",
    ) -> None:
        """Make the table; the rest says what an object behind a user's own path or in another package may be.

        Args:
            kind: what the parts are called in errors.
            entries: names to paths.
            base: the path of the class that parts are subclasses of.
            arguments: how many arguments a part that is a plain function takes; 0 where functions are no parts.
            instances: the paths of classes whose objects are parts.
            group: the group of entry points through which installed packages add parts; empty: they cannot.
        """
        self.kind = kind
        self._own = dict(entries)
        self._group = group
        self._base = base
        self._arguments = arguments
        self._instances = instances

    @functools.cached_property
    def _entries(self) -> dict[str, str]:
        """Every name and its path; those of installed packages are looked up once, where our own names do not do."""
        return {**self._own, **self._installed()}

    def _installed(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if not self._group:
            return found
        for entry in sorted(metadata.entry_points(group=self._group)):
            package = entry.dist.name if entry.dist is not None else "?"
            other = "classwise" if entry.name in self._own else found.get(entry.name, "").partition(":")[0]
            if other:
                raise ClasswiseError(f"{self.kind} {entry.name!r} of the package {package!r} is also one of {other!r}")
            if ":" not in entry.value:
                raise ClasswiseError(
                    f"{self.kind} {entry.name!r} of the package {package!r}: {entry.value!r} is not of the form "
                    "package.module:name"
                )
            found[entry.name] = entry.value
        return found

    def __getitem__(self, name: str) -> str:
        return self._own[name] if name in self._own else self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> type[T]:
        """Import the class (or the callable) of that name or path.

        Raises:
            ClasswiseError: if the name is not known, with the nearest known one; or for a path of something that is no
                such part, which is never called.
        """
        path = name if ":" in name else self.get(name)
        if path is None:
            raise unknown(self.kind, name, self)
        found: type[T] = load_object(path, self.kind)
        if name not in self._own:
            self._check(path, found)
        return found

    def _check(self, path: str, found: object) -> None:
        """See by its type alone that an object of the user's own is a part of this kind."""
        if self._base is None and not self._arguments:
            return  # model builders: whatever can be called and gives a module
        wanted = []
        if self._base is not None:
            if isinstance(found, type) and issubclass(found, load_object(self._base)) and not inspect.isabstract(found):
                return
            wanted.append(f"a subclass of {self._base.replace(':', '.')}")
        if self._arguments:
            if _takes(found, self._arguments) or isinstance(found, tuple(map(load_object, self._instances))):
                return
            if (
                isinstance(found, type)
                and dataclasses.is_dataclass(found)
                and _takes(found.__call__, self._arguments + 1)
            ):
                return
            wanted.append(f"a Python function of {self._arguments} arguments")
        raise ClasswiseError(f"{self.kind} {path!r} is {described(found)}; give {' or '.join(wanted)}")

    def name_of(self, cls: type) -> str:
        """The shortest name under which a recipe can ask for the class."""
        path = f"{cls.__module__}:{cls.__qualname__}"
        entries = self._own if cls.__module__.startswith("classwise.") else self._entries
        return next((name for name, known in entries.items() if known == path), path)


def described(found: object) -> str:
    """What an object is, in a few words: ``the class Popen``, ``a module``, ``a builtin_function_or_method``."""
    if isinstance(found, type):
        return f"the {'abstract ' if inspect.isabstract(found) else ''}class {found.__name__}"
    return f"a {type(found).__name__}"


def is_builtin(found: object) -> bool:
    """Whether it is a function or method in C; parts and model builders of a user's own are Python code."""
    kinds = (
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.MethodWrapperType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    )
    return isinstance(found, kinds)


def _takes(function: object, count: int) -> bool:
    """Whether it is a Python function of exactly so many positional arguments."""
    if not isinstance(function, types.FunctionType | functools.partial):
        return False
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return False
    return sum(each.kind is not each.KEYWORD_ONLY for each in parameters) == count
