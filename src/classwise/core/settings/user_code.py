"""Attribution of an error to classwise, an installed package, or the user's own code."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType

USER_CODE_CALL = "_calls_user_code"
"""A local variable of this name marks a function that calls an object of the user: a model, an attack, a module.

The mark is needed for objects of installed packages; files outside of all packages are recognised by their path.
"""

Place = tuple[FrameType, int]
"""A frame and its current line."""


def user_code(error: BaseException) -> Place | None:
    """The innermost frame and line of the user's code in the traceback of an error; None if there is none.

    User code is every file outside of classwise, the standard library and installed packages, and all code called by
    a function with the mark `USER_CODE_CALL`. A TypeError raised in such a function itself counts as the user's: the
    object does not accept the call.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [place for place in frames if _is_users(place[0].f_code.co_filename)]
    if users:
        return users[-1]
    ours = [number for number, (frame, _) in enumerate(frames) if _is_ours(frame.f_code.co_filename)]
    if ours and USER_CODE_CALL in frames[ours[-1]][0].f_locals:
        called = ours[-1] < len(frames) - 1
        return frames[-1] if called or isinstance(error, TypeError) else None
    return None


def raised_within(error: BaseException, package: ModuleType) -> bool:
    """Whether the traceback of an error has only frames of a package, of classwise and of the standard library."""
    packages = {package.__name__, "classwise", *sys.stdlib_module_names}
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(name.partition(".")[0] in packages for name in names)


def _is_ours(file: str) -> bool:
    return _within(file, [str(Path(__file__).parents[2])])


def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    return _within(file, _installed())


def _is_users(file: str) -> bool:
    return not file.startswith("<") and not _is_ours(file) and not is_installed(file)


def _within(file: str, folders: list[str]) -> bool:
    paths = {file, os.path.realpath(file)}
    return any(path.startswith(folder + os.sep) for path in paths for folder in folders)


@cache
def _installed() -> list[str]:
    """The folders of the standard library and of installed packages, each also with its symbolic links resolved."""

    def folders() -> Iterator[str]:
        for name in ("stdlib", "platstdlib", "purelib", "platlib"):
            yield sysconfig.get_path(name)
        yield from site.getsitepackages()
        yield site.getusersitepackages()

    return sorted({path for folder in folders() for path in (folder, os.path.realpath(folder))})
