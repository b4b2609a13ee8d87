"""Import of optional packages, each of which belongs to an extra of classwise."""

from __future__ import annotations

import importlib
import re
import shlex
import traceback
from importlib import metadata
from typing import Any

from classwise.core.errors import ClasswiseError

WITH_TORCH = ("timm", "torchvision", "robustbench")
"""Extras with torchvision, for which pip may replace torch."""


def require(module: str, extra: str, package: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
        module: the module, such as ``"timm"`` or ``"torchvision.models"``.
        extra: the extra of classwise that installs the package.
        package: the package that must be installed; None: the first part of ``module``.

    Raises:
        ClasswiseError: if the package is not installed, or cannot be imported; with the command that repairs it.
    """
    package = package or module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ClasswiseError(f"{package} is not installed; run {install_command(extra)}") from error
        raise _unusable(package, error) from error
    except Exception as error:  # such as a build of torchvision for another torch, which raises a RuntimeError
        raise _unusable(package, error) from error


def install_command(extra: str) -> str:
    """The command that installs the requirements of an extra beside the installed torch, also before a release.

    Example:
        >>> install_command("hf")
        "pip install 'transformers>=4.45'"
    """
    requirements = [
        requirement.partition(";")[0].strip()
        for requirement in metadata.requires("classwise") or ()
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
    ]
    torch = [f"torch=={metadata.version('torch').partition('+')[0]}"] if extra in WITH_TORCH else []
    return shlex.join(["pip", "install", *requirements, *torch])


def _unusable(package: str, error: Exception) -> ClasswiseError:
    if isinstance(error, ModuleNotFoundError):
        fix = f"install the package of {error.name}"
    elif metadata.version("torch").startswith("2.") and any(
        "torchvision" in frame.filename for frame in traceback.extract_tb(error.__traceback__)
    ):
        fix = f"torchvision must be built for torch {metadata.version('torch')}: run {torchvision_command()}"
    else:
        fix = "install the version that matches torch"
    return ClasswiseError(f"{package} is installed and cannot be imported ({reason(error)}); {fix}")


def torchvision_command(torch: str | None = None) -> str:
    """The command that installs the torchvision that was built with a torch: 0.(N + 15) with 2.N.

    Args:
        torch: its version, with the local part of builds for a processor, such as ``2.13.0+cpu``; None: the installed
            one.

    Example:
        >>> torchvision_command("2.13.0")
        "pip install --force-reinstall --no-deps 'torchvision==0.28.*'"
    """
    release, _, build = (torch or metadata.version("torch")).partition("+")
    words = ["pip", "install", "--force-reinstall", "--no-deps", f"torchvision==0.{int(release.split('.')[1]) + 15}.*"]
    return shlex.join([*words, *(["--index-url", f"https://download.pytorch.org/whl/{build}"] if build else [])])


def reason(error: BaseException) -> str:
    """The first line of an error's message with its type; of its innermost cause, if it has one."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
