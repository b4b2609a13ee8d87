"""Import of optional packages, each of which belongs to an extra of classwise."""

from __future__ import annotations

import importlib
from typing import Any

from classwise.core.errors import ClasswiseError


def require(module: str, extra: str, package: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
        module: the module, such as ``"timm"`` or ``"torchvision.models"``.
        extra: the extra of classwise that installs the package.
        package: the package that must be installed; None: the first part of ``module``.

    Raises:
        ClasswiseError: if the package is not installed, or cannot be imported.
    """
    package = package or module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ClasswiseError(f'{package} is not installed; run pip install "classwise[{extra}]"') from error
        raise _unusable(package, error) from error
    except Exception as error:  # such as a build of torchvision for another torch, which raises a RuntimeError
        raise _unusable(package, error) from error


def _unusable(package: str, error: Exception) -> ClasswiseError:
    fix = "install the version that matches torch"
    if isinstance(error, ModuleNotFoundError):
        fix = f"install the package of {error.name}"
    return ClasswiseError(f"{package} is installed and cannot be imported ({reason(error)}); {fix}")


def reason(error: BaseException) -> str:
    """The first line of an error's message with its type; of its innermost cause, if it has one."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
