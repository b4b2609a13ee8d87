"""Optional packages: imported where they are used, and named with their extra where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from classwise.core.errors import ClasswiseError


def import_extra(module: str, extra: str, package: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
        module: the module, such as ``"fairlearn.metrics"``.
        extra: the extra of classwise that installs the package.
        package: its name in the error message; None: the first part of ``module``.

    Raises:
        ClasswiseError: if it cannot be imported; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        missing = "" if isinstance(error, ModuleNotFoundError) and _is_part(error.name, module) else f" ({error})"
        raise ClasswiseError(
            f'{name} is not installed{missing}; install it with: pip install "classwise[{extra}]"'
        ) from error


def _is_part(name: str | None, module: str) -> bool:
    """Whether a module is ``module`` or one of its packages."""
    return name is not None and f"{module}.".startswith(f"{name}.")
