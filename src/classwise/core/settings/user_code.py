"""Attribution of an error to classwise, an installed package, or the user's own code."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import ParamSpec, TypeVar

Place = tuple[FrameType, int]
"""A frame and its current line."""

P = ParamSpec("P")
T = TypeVar("T")


def call_user_code(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Call an object of the user, such as a model or an attack, so that `user_code` attributes its errors to the user.

    Objects of installed packages need this; files outside of all packages are recognised by their path.

    Raises:
        RuntimeError: in place of StopIteration, which would end a loop of the caller without an error.
    """
    try:
        return function(*arguments, **options)
    except StopIteration as error:
        raise RuntimeError("StopIteration").with_traceback(error.__traceback__) from error


def user_code(error: BaseException) -> Place | None:
    """The innermost frame and line of the user's code in the traceback of an error; None if there is none.

    User code is every file outside of classwise, the standard library and installed packages, and all code called by
    `call_user_code`. A TypeError of the call itself counts as the user's: the object does not accept the call. Of a
    StopIteration that a generator has converted it is the place that raised it.
    """
    error = original(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [place for place in frames if _is_users(place[0].f_code.co_filename)]
    if users:
        return users[-1]
    ours = [number for number, (frame, _) in enumerate(frames) if _is_ours(frame.f_code.co_filename)]
    if not ours or frames[ours[-1]][0].f_code is not call_user_code.__code__:
        return None
    if ours[-1] < len(frames) - 1:
        return frames[-1]
    return frames[-2] if isinstance(error, TypeError) else None


def original(error: BaseException) -> BaseException:
    """The StopIteration that was converted to an error; any other error unchanged."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) else error


def raised_by_user_code(error: BaseException) -> bool:
    """Whether code that `call_user_code` called raised an error itself, and not classwise, called by that code."""
    frames = list(traceback.walk_tb(error.__traceback__))
    called = any(frame.f_code is call_user_code.__code__ for frame, _ in frames)
    return called and not _is_ours(frames[-1][0].f_code.co_filename)


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
