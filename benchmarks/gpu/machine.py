"""The machine and the code of a result: device, driver, versions, commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import classwise
from classwise.core.compute.environment import environment

ROOT = Path(__file__).parents[2]
NOT_COMPARED = frozenset({"commit", "modified"})
"""Entries of `machine` that may differ between the cells of a page: `sources` is compared instead."""


def machine(device: str, commit: str | None = None) -> dict[str, Any]:
    """Device and versions.

    Args:
        device: such as ``"cuda"``.
        commit: the commit of the code; None: that of the git repository.
    """
    known = {"commit": commit, "modified": None}
    git = known if commit else environment(device)["classwise_commit"] or known
    return {
        "device": torch.cuda.get_device_name(device),
        "memory": f"{torch.cuda.get_device_properties(device).total_memory / 2**30:.0f} GiB",
        "driver": driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "torch": torch.__version__,
        "python": platform.python_version(),
        "classwise": classwise.__version__,
        "cores": os.cpu_count(),
        **git,
    }


def driver() -> str | None:
    """The version of the driver as nvidia-smi prints it; None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None


def sources(folders: Iterable[str], root: Path = ROOT) -> str:
    """A hash of the code and the checkpoints in some folders."""
    found = hashlib.sha256()
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".yaml", ".safetensors"):
                found.update(f"{file.relative_to(root)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:12]
