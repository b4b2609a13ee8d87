"""Which code raised an error: classwise, an installed package, or the user's own."""

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

It matters where such an object is installed as a package: files outside of all packages are recognised by their path.
"""

Place = tuple[FrameType, int]
"""A frame and its current line."""


def user_code(error: BaseException) -> Place | None:
    """The frame and line of the user's code that an error came through, the innermost; None if there is none.

    User code is every file outside of classwise, the standard library and installed packages, and whatever a function
    with the mark `USER_CODE_CALL` called. A TypeError of such a function itself is a call that the object refuses.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    found = [place for place in frames if _belongs_to_user(place[0].f_code.co_filename)]
    if found:
        return found[-1]
    ours = [number for number, (frame, _) in enumerate(frames) if _is_ours(frame.f_code.co_filename)]
    if ours and USER_CODE_CALL in frames[ours[-1]][0].f_locals:
        called = ours[-1] < len(frames) - 1
        return frames[-1] if called or isinstance(error, TypeError) else None
    return None


def raised_within(error: BaseException, package: ModuleType) -> bool:
    """Whether an error came through no other code than that of a package, of classwise and of the standard library."""
    known = {package.__name__, "classwise", *sys.stdlib_module_names}
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(name.partition(".")[0] in known for name in names)


def _is_ours(file: str) -> bool:
    return _within(file, [str(Path(__file__).parents[1])])


def _belongs_to_user(file: str) -> bool:
    return not file.startswith("<") and not _is_ours(file) and not _within(file, _installed())


def _within(file: str, folders: list[str]) -> bool:
    places = {file, os.path.realpath(file)}
    return any(place.startswith(folder + os.sep) for place in places for folder in folders)


@cache
def _installed() -> list[str]:
    """The folders of the standard library and of installed packages, with links and without."""

    def folders() -> Iterator[str]:
        for name in ("stdlib", "platstdlib", "purelib", "platlib"):
            yield sysconfig.get_path(name)
        yield from site.getsitepackages()
        yield site.getusersitepackages()

    return sorted({place for folder in folders() for place in (folder, os.path.realpath(folder))})
