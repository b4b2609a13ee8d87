"""The environment of a result: package versions, machine, and commit."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("classwise", "torch", "numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "safetensors", "pillow")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions of the packages that affect numbers, the device, the number of threads, and the git commit."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "git": _git(),
    }


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache  # the sources that this process has imported do not change
def _git() -> dict[str, Any] | None:
    """The commit of the git checkout that the package runs from; None outside of a checkout."""
    folder = Path(__file__).parent

    def output_of(*arguments: str) -> str | None:
        try:
            process = subprocess.run(  # noqa: S603  # fixed arguments, no user input
                ["git", "-C", str(folder), *arguments],  # noqa: S607  # the git on the user's PATH
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    commit = output_of("rev-parse", "HEAD")
    if commit is None or output_of("ls-files", "--error-unmatch", str(folder / "__init__.py")) is None:
        return None
    return {"commit": commit, "modified": bool(output_of("status", "--porcelain", "--untracked-files=no"))}
