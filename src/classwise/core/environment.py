"""What a result was made with: versions, machine, code."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("classwise", "torch", "numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "safetensors", "pillow")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions of the packages that decide numbers, the device, the thread count, and the state of the code."""
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


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the checkout that the package runs from, if it runs from one."""
    folder = Path(__file__).parent

    def ask(*words: str) -> str | None:
        try:
            answer = subprocess.run(  # noqa: S603  # fixed words, no user input
                ["git", "-C", str(folder), *words],  # noqa: S607  # whichever git the user has
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None or ask("ls-files", "--error-unmatch", str(folder / "__init__.py")) is None:
        return None
    return {"commit": commit, "modified": bool(ask("status", "--porcelain", "--untracked-files=no"))}
