"""The identity of user code: digests of the Python files that define objects, recorded with results and compared.

A record has for each object, such as ``model`` or ``schedules.0``, the SHA-256 of every Python file that defines it or
that these files import, by module; files of installed packages, of the standard library and of classwise are left out.
The digest is that of the bytes of a file, so a changed comment is a change too. A file is read when its code is first
identified in a process, which should be soon after its import.

Code of ``__main__`` (a script or a notebook) is identified by the functions and classes that the object uses, and the
constants that these name, since the rest of a script also says how it runs. Code without a file is identified by its
source if Python has it, else by its bytecode, which differs between versions of Python.

Not covered: data that code reads at run time, attributes set on objects, modules that are imported by computed names,
compiled extensions, files inside archives, and the versions of installed packages.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from classwise.core.errors import ClasswiseError
from classwise.core.settings.user_code import is_installed

CodeRecord = Mapping[str, Mapping[str, str]]
"""Digests by object, then by module."""

MOST_OBJECTS, MOST_MODULES = 50_000, 500
"""The largest number of objects and of modules that are followed; nearer ones are followed first."""
MAIN = "__main__"
STRUCTURE = "printed structure"
"""The entry of a model with the digest of its printed structure (`classwise.models.structure`), beside modules."""
_OURS = Path(__file__).parents[2]
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_PATH = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
"""The path of an object, as `classwise.core.settings.registry.load_object` reads it."""


def identity(objects: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """The digests of the user's code that defines objects.

    Args:
        objects: instances, classes or functions, by the names that messages use; of instances of classwise, of modules
            of torch and of the user, the attributes are followed, and text that is the path of an object.

    Returns:
        For each name the SHA-256 (hexadecimal) by module; empty for an object without code of the user.

    Example:
        >>> from classwise.attacks.gradient.ascent import PGD
        >>> identity({"attack": PGD()})
        {'attack': {}}
    """
    return {name: _Found().digests(value) for name, value in objects.items()}


def without_empty(record: CodeRecord) -> dict[str, dict[str, str]]:
    """A record without the objects that have no code of the user, which are not stored."""
    return {name: dict(digests) for name, digests in record.items() if digests}


def changes(before: CodeRecord, now: CodeRecord) -> list[str]:
    """What differs in the code of the objects of ``now`` from an earlier record, a phrase for each module of an object.

    Example:
        >>> changes({"model": {"nets": "1f"}}, {"model": {"nets": "2e", "layers": "3d"}})
        ['the code of model: layers is new', 'the code of model: nets has changed']
    """
    phrases = []
    for name, digests in now.items():
        earlier = before.get(name, {})
        for module in sorted(earlier.keys() | digests.keys()):
            if earlier.get(module) == digests.get(module):
                continue
            change = "has changed" if module in earlier and module in digests else "is new"
            change = change if module in digests else "is no longer used"
            phrases.append(f"the code of {name}: {module}{_place(module)} {change}")
    return phrases


def check_unchanged(before: CodeRecord | None, now: CodeRecord, where: object, *, finished: bool) -> str:
    """Compare the code of a result in a folder with the present code.

    Args:
        before: the record of the result; None if it has none, as of earlier versions.
        now: the present record.
        where: the folder, for messages.
        finished: whether nothing of the result is left to compute.

    Returns:
        A warning; empty if the code is the same, or there is none of the user.

    Raises:
        ClasswiseError: if the code has changed, and the result is not finished.
    """
    if before is None:
        if not any(_of_user(digests) for digests in now.values()):
            return ""
        return f"{where} does not record the code of your own that it used, so a change of it would not be noticed"
    found = changes(before, now)
    if not found:
        return ""
    text = "; ".join(found)
    if finished:
        return f"{where} was computed with other code: {text}; the saved result is of the earlier code"
    raise ClasswiseError(
        f"{where} was started with other code: {text}; restore it to continue, or give another folder to start again "
        "(a changed comment counts as a change)"
    )


def compared_here(record: CodeRecord) -> list[str]:
    """Compare a record with the files that would be imported from the working directory; nothing is imported.

    Returns:
        Phrases on the modules whose files are the same, whose files differ, and that are not found.
    """
    found: dict[str, dict[str, None]] = {"is unchanged": {}, "has changed": {}, "is not found here": {}}
    for digests in record.values():
        for module, digest in digests.items():
            if module == STRUCTURE:
                continue
            file = None if module == MAIN else _file_of(module, (str(Path.cwd()),))
            if file is None:
                found["is not found here"][module] = None
            else:
                same = hashlib.sha256(file.read_bytes()).hexdigest() == digest
                found["is unchanged" if same else "has changed"][f"{module} ({file})"] = None
    return [f"the code of {', '.join(modules)} {state}" for state, modules in found.items() if modules]


class _Import(NamedTuple):
    """An import statement: its level, module and names."""

    level: int
    module: str
    names: tuple[str, ...]


class _Found:
    """The user's code that an object uses: files by module, and texts of definitions without a file by module."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self._texts: dict[str, dict[str, str]] = {}
        self._seen: dict[int, object] = {}  # with the objects, so that ids are not reused

    def digests(self, value: object) -> dict[str, str]:
        pending = [value]
        while pending and len(self._seen) < MOST_OBJECTS:
            level, pending = pending, []
            for item in level:
                pending += self._visit(item)
        found = self._followed()
        for module, texts in self._texts.items():
            text = "\n".join(f"{name}\n{texts[name]}" for name in sorted(texts))
            found[module] = hashlib.sha256(text.encode()).hexdigest()
        return dict(sorted(found.items()))

    def _visit(self, value: Any) -> Iterable[object]:
        """Note the code of a value; returns the values that it refers to."""
        kind = type(value)
        if kind in _PLAIN:
            path = _PATH.fullmatch(value) if kind is str and len(value) < 500 else None
            return () if path is None or path[1] not in sys.modules else self._module(sys.modules[path[1]])
        if id(value) in self._seen:
            return ()
        self._seen[id(value)] = value
        for collection in (dict, list, tuple, set, frozenset):  # whose methods a subclass of the user may replace
            if issubclass(kind, collection):
                return [kind, *(dict.values(value) if collection is dict else collection.__iter__(value))]
        if issubclass(kind, types.FunctionType):
            return self._function(value)
        if issubclass(kind, type):
            return self._class(value)
        if issubclass(kind, types.MethodType):
            return value.__func__, value.__self__
        if issubclass(kind, functools.partial):
            return value.func, value.args, value.keywords
        if issubclass(kind, property | staticmethod | classmethod):
            return [getattr(value, name, None) for name in ("fget", "__func__")]
        if issubclass(kind, types.ModuleType):
            return self._module(value)
        names = [str(base.__module__) for base in kind.__mro__]
        # Of objects of other libraries, such as loggers, what they refer to depends on the state of the process.
        followed = any(name.startswith("classwise.") for name in names) or "torch.nn.modules.module" in names
        followed |= any(_is_users(name) for name in names)
        return (kind, _attributes(value)) if followed else ()

    def _module(self, module: types.ModuleType) -> Iterable[object]:
        if (file := _users_file(getattr(module, "__file__", None))) is not None and module.__name__ != MAIN:
            self._files.setdefault(module.__name__, file)
        return ()

    def _class(self, kind: type) -> Iterable[object]:
        for base in kind.__mro__:
            if not _is_users(str(base.__module__)):
                continue
            functions = [value for value in vars(base).values() if isinstance(value, types.FunctionType)]
            if not self._noted(base, functions[0].__code__.co_filename if functions else None):
                self._text(base)
            yield from vars(base).values()

    def _function(self, function: types.FunctionType) -> Iterable[object]:
        yield from vars(function).values()
        yield function.__defaults__
        yield function.__kwdefaults__
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty until it is assigned
                continue
        if not _is_users(str(function.__module__)):
            return
        if self._noted(function, function.__code__.co_filename):
            return
        self._text(function)
        for used in dict.fromkeys(names_in(function.__code__)):
            value = function.__globals__.get(used)
            if type(value) in _PLAIN and used in function.__globals__:
                self._texts[_module_name(function)][used] = repr(value)
            elif value is not None:
                yield value

    def _noted(self, definition: Any, filename: str | None) -> bool:
        """Note the file of a function or a class; whether it has one."""
        name = _module_name(definition)
        if name == MAIN:
            return False
        module = sys.modules.get(name)
        file = _users_file(getattr(module, "__file__", None) or filename)
        if file is not None:
            self._files.setdefault(name, file)
        return file is not None

    def _text(self, definition: Any) -> None:
        if definition not in _read:
            _read[definition] = _text_of(definition)
        self._texts.setdefault(_module_name(definition), {})[definition.__qualname__] = _read[definition]

    def _followed(self) -> dict[str, str]:
        """The digests of the files, and of those of the user's modules that they import."""
        pending, digests = [*self._files.items()], dict[str, str]()
        known = {*self._files}
        while pending and len(digests) < MOST_MODULES:
            name, file = pending.pop(0)
            try:
                content = _content(name, file)
            except OSError:  # removed after its import
                continue
            digests[name] = hashlib.sha256(content).hexdigest()
            for imported in _imported(name, file, content):
                if imported not in known and (found := _file_of(imported, (_root(name, file),))) is not None:
                    known.add(imported)
                    pending.append((imported, found))
        return digests


_read: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The texts of definitions when they were read first, since a later change of their file has no effect."""
_loaded: dict[str, tuple[object, bytes]] = {}
"""The spec of each module, which another import replaces, and the content of its file when it was read first."""


def _content(name: str, file: Path) -> bytes:
    """The content of a file; of an imported module, as it was read first, since a later change has no effect."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None and name in _loaded and _loaded[name][0] is spec:
        return _loaded[name][1]
    content = file.read_bytes()
    if spec is not None:
        _loaded[name] = spec, content
    return content


def _imported(name: str, file: Path, content: bytes) -> Iterator[str]:
    """The modules that a file may import, with the packages that contain them and itself."""
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    yield from _with_packages(package)
    for statement in _imports(content):
        parts = package.split(".") if package else []
        above = parts[: len(parts) - statement.level + 1] if statement.level else []
        module = ".".join([*above, *filter(None, [statement.module])])
        yield from _with_packages(module)
        for imported in statement.names:
            yield f"{module}.{imported}" if module else imported


def _with_packages(module: str) -> Iterator[str]:
    """A module and the packages that contain it."""
    while module:
        yield module
        module = module.rpartition(".")[0]


@functools.lru_cache(maxsize=1024)
def _imports(content: bytes) -> tuple[_Import, ...]:
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError, RecursionError):  # not imported yet, or not Python
        return ()
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [_Import(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(_Import(node.level, node.module or "", tuple(alias.name for alias in node.names)))
    return tuple(dict.fromkeys(found))


def _root(name: str, file: Path) -> str:
    """The folder that a module is imported from."""
    above = name.count(".") + (file.stem == "__init__")
    return str(file.parents[min(above, len(file.parents) - 1)])


def _file_of(module: str, folders: tuple[str, ...]) -> Path | None:
    """The file of a module of the user, imported or not; None for other modules. Nothing is imported."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    if (loaded := sys.modules.get(module)) is not None:
        return _users_file(getattr(loaded, "__file__", None))
    above, _, last = module.rpartition(".")
    if not above:
        spec = PathFinder.find_spec(last, [*folders, *sys.path])
    elif above in sys.modules:
        paths = getattr(sys.modules[above], "__path__", None) if _is_users(above) else None
        spec = None if paths is None else PathFinder.find_spec(module, [*paths])
    else:
        spec = _spec_within(module, folders)
    return None if spec is None else _users_file(spec.origin)


def _spec_within(module: str, folders: tuple[str, ...]) -> ModuleSpec | None:
    """The spec of a module in packages that are not imported."""
    parts, paths, spec = module.split("."), [*folders, *sys.path], None
    for length in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:length]), paths)
        if spec is None or (spec.submodule_search_locations is None and length < len(parts)):
            return None
        paths = [*(spec.submodule_search_locations or ())]
    return spec


def _module_name(definition: Any) -> str:
    name = str(definition.__module__)
    return MAIN if name == "__mp_main__" else name  # of the script in a process that it has started


def _is_users(module: str) -> bool:
    """Whether a module, by its name, is code of the user; also one without a file."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return False
    if module in (MAIN, "__mp_main__"):
        return True
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (module, top))
    file = next(filter(None, files), None)
    return file is None or _users_file(file) is not None


@functools.lru_cache(maxsize=4096)
def _users_file(file: str | None) -> Path | None:
    """The file if it is a Python file of the user."""
    if file is None or not file.endswith(".py") or is_installed(file):
        return None
    path = Path(file)
    return path if path.is_file() and not path.is_relative_to(_OURS) else None


def _attributes(value: object) -> object:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _source(definition: Any) -> str:
    """The source of a function or a class; empty if Python does not have it."""
    try:
        return inspect.getsource(definition)
    except Exception:  # noqa: BLE001  # objects of the user may raise any error
        return ""


def _text_of(definition: Any) -> str:
    """The source of a function or a class; without source, bytecode, and of a class its names and constants."""
    if source := _source(definition):
        return source
    if isinstance(definition, types.FunctionType):
        return bytecode(definition.__code__)
    kind, parts = definition, list[str]()
    for name, value in sorted(vars(kind).items(), key=lambda item: str(item[0])):
        if isinstance(value, types.FunctionType):
            parts.append(f"{name} {_source(value) or bytecode(value.__code__)}")
        elif type(value) in _PLAIN and not name.startswith("__"):
            parts.append(f"{name} {value!r}")
    return "\n".join(parts)


def bytecode(code: types.CodeType) -> str:
    """A digest of the instructions, names and constants of code, without its place in a file."""
    digest = hashlib.sha256(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            digest.update(bytecode(constant).encode())
        else:  # the order of a set of strings differs between processes
            parts = sorted(map(repr, constant)) if isinstance(constant, frozenset) else [repr(constant)]
            digest.update("\n".join(parts).encode())
    return digest.hexdigest()


def names_in(code: types.CodeType) -> Iterable[str]:
    """The global names that code uses, those of inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def _of_user(digests: Mapping[str, str]) -> bool:
    """Whether one of the digests is that of a module."""
    return any(module != STRUCTURE for module in digests)


def _place(module: str) -> str:
    """The file of a module that is imported, in parentheses."""
    file = _users_file(getattr(sys.modules.get(module), "__file__", None)) if module != MAIN else None
    return "" if file is None else f" ({file})"
