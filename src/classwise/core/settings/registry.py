"""Registries: names of the parts that users can choose, each imported on first use."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.user_code import call_user_code

T = TypeVar("T")
_MISSING = object()


def load_object(path: str, kind: str = "object") -> Any:
    """Import the object of a path ``"package.module:name"`` or ``"package.module:Class.method"``.

    The working directory is searched too.

    Args:
        path: the path of the object.
        kind: the kind of the object, for error messages.

    Raises:
        ClasswiseError: if the path is malformed, or the module or the name in it does not exist.
    """
    module_name, _, attribute = path.partition(":")
    names = [*module_name.split("."), *attribute.split(".")]
    if len(path) > limits.NAME_LENGTH or not all(name.isidentifier() for name in names):
        raise ClasswiseError(f"{kind} {path!r} is not of the form package.module:name")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = call_user_code(importlib.import_module, module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            places = f"installed or in the working directory {here}"
            raise ClasswiseError(f"{kind} {path!r}: there is no module {error.name!r} {places}") from error
        raise
    except ClasswiseError:
        raise
    except (ValueError, TypeError) as error:
        raise ClasswiseError(f"{kind} {path!r} is not of the form package.module:name") from error
    finally:
        if added:
            sys.path.remove(here)
    value: Any = module
    where = f"module {module_name!r}"
    for name in attribute.split("."):
        found = call_user_code(getattr, value, name, _MISSING)
        if found is _MISSING:
            public = [attribute for attribute in dir(value) if not attribute.startswith("_")]
            known = [attribute for attribute in public if not inspect.ismodule(getattr(value, attribute, None))]
            raise unknown(f"{kind} in {where}:", name, known)
        value, where = found, f"{module_name}:{name}"
    return value


def yaml_files(folder: Traversable) -> dict[str, Traversable]:
    """The YAML files in a folder by their names without the suffix."""
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


def with_installed(kind: str, own: Mapping[str, Traversable], group: str) -> dict[str, Traversable]:
    """YAML files of this package and of installed packages, by name.

    Args:
        kind: kind of the files, for error messages.
        own: files of this package by name.
        group: entry-point group; the value of an entry point is a package that contains YAML files.

    Raises:
        ClasswiseError: if an installed package has no such files, or two packages have a file of the same name.
    """
    files = dict(own)
    for entry in sorted(metadata.entry_points(group=group)):
        try:
            added = yaml_files(resources.files(entry.value))
        except (ModuleNotFoundError, OSError, TypeError) as error:
            raise ClasswiseError(
                f"{kind}s {entry.name!r}: {entry.value!r} is not a package with YAML files; correct its entry point"
            ) from error
        if both := sorted(files.keys() & added.keys()):
            raise ClasswiseError(
                f"{kind} {both[0]!r} of the package {entry.value!r} has the name of another {kind}; uninstall it"
            )
        files |= added
    return files


class Registry(Mapping[str, str], Generic[T]):
    """A mapping from names to ``"module:Class"`` paths.

    A path is accepted wherever a name is, so custom parts need no registration. Installed packages add names
    through entry points.

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
        functions: str = "",
    ) -> None:
        """Create a registry. ``base``, ``arguments`` and ``instances`` define which custom parts are accepted.

        Args:
            kind: the name of the kind of part, for error messages.
            entries: paths by name.
            base: the path of the base class of parts.
            arguments: the number of arguments of a part that is a plain function; 0: functions are refused.
            instances: the paths of classes whose instances are accepted.
            group: the entry-point group through which installed packages add parts; empty: none.
            functions: how a function is named that is no part itself, for an error message: ``external:attack={path}``.
        """
        self.kind = kind
        self._own = dict(entries)
        self._group = group
        self._base = base
        self._arguments = arguments
        self._instances = instances
        self._functions = functions

    @functools.cached_property
    def _entries(self) -> dict[str, str]:
        """Paths by name, including those of installed packages, which are looked up once and only when needed."""
        return {**self._own, **self._installed()}

    def _installed(self) -> dict[str, str]:
        paths: dict[str, str] = {}
        if not self._group:
            return paths
        for entry in sorted(metadata.entry_points(group=self._group)):
            package = entry.dist.name if entry.dist is not None else "?"
            other = "classwise" if entry.name in self._own else paths.get(entry.name, "").partition(":")[0]
            if other:
                raise ClasswiseError(
                    f"{self.kind} {entry.name!r} of the package {package!r} is also one of {other!r}; "
                    "uninstall one of the packages"
                )
            if ":" not in entry.value:
                raise ClasswiseError(
                    f"{self.kind} {entry.name!r} of the package {package!r}: {entry.value!r} is not of the form "
                    "package.module:name"
                )
            paths[entry.name] = entry.value
        return paths

    def __getitem__(self, name: str) -> str:
        return self._own[name] if name in self._own else self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> type[T]:
        """Import the class or the callable of a name or path.

        Raises:
            ClasswiseError: for an unknown name (the message suggests the nearest known one), or a path of an object
                that is not such a part; that object is never called.
        """
        path = name if ":" in name else self.get(name)
        if path is None:
            raise unknown(self.kind, name, self)
        part: type[T] = load_object(path, self.kind)
        if name not in self._own:
            self._check(path, part)
        return part

    def _check(self, path: str, value: object) -> None:
        """Check by its type, without calling it, that a custom object is a part of this kind.

        Raises:
            ClasswiseError: if it is not.
        """
        if self._base is None and not self._arguments:
            return  # model builders: any callable that returns a module
        accepted = []
        if self._base is not None:
            if isinstance(value, type) and issubclass(value, load_object(self._base)) and not inspect.isabstract(value):
                return
            accepted.append(f"a subclass of {self._base.replace(':', '.')}")
        if self._arguments:
            if _takes(value, self._arguments) or isinstance(value, tuple(map(load_object, self._instances))):
                return
            if (
                isinstance(value, type)
                and dataclasses.is_dataclass(value)
                and _takes(value.__call__, self._arguments + 1)
            ):
                return
            accepted.append(f"a Python function of {self._arguments} arguments")
        if self._functions and isinstance(value, types.FunctionType):
            accepted.append(f"the function as {self._functions.format(path=path)}")
        raise ClasswiseError(f"{self.kind} {path!r} is {kind_text(value)}; give {' or '.join(accepted)}")

    def name_of(self, cls: type) -> str:
        """The registered name of a class, or its path if it has none."""
        path = f"{cls.__module__}:{cls.__qualname__}"
        entries = self._own if cls.__module__.startswith("classwise.") else self._entries
        return next((name for name, known in entries.items() if known == path), path)


def kind_text(value: object) -> str:
    """Describe an object for an error message: ``the class Popen``, ``a module``, ``a builtin_function_or_method``."""
    if isinstance(value, type):
        return f"the {'abstract ' if inspect.isabstract(value) else ''}class {value.__name__}"
    return f"a {type(value).__name__}"


def is_builtin(value: object) -> bool:
    """Whether an object is a function or method in C; custom parts and model builders are Python code."""
    kinds = (
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.MethodWrapperType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    )
    return isinstance(value, kinds)


def _takes(function: object, count: int) -> bool:
    """Whether an object is a Python function of exactly ``count`` positional arguments."""
    if not isinstance(function, types.FunctionType | functools.partial):
        return False
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return False
    return sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters) == count
