"""The environment of a result: package versions, machine, commit of classwise, and command line."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import pydantic
import torch
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.settings.command_line import recorded_command

PACKAGES = ("classwise", "torch", "numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "safetensors", "pillow")

PHASES = "seconds_by_phase"
"""The entry of an audit's environment with the seconds of each phase."""

Seconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class Environment(TypedDict, total=False):
    """The entries of an environment that the package reads again; the others are shown only."""

    command: str
    date: str
    processor: str
    seconds: Seconds
    seconds_by_phase: dict[str, Seconds]
    earlier_runs: list[dict[str, Any]]
    packages: dict[str, str | None]
    network: str | None


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The command, when it began, versions that affect numbers, the machine, threads, and the commit of classwise."""
    device = torch.device(device)
    return {
        "command": recorded_command(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": _processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "classwise_commit": _git(),
    }


def continued(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of work that an earlier run has begun and this one has continued.

    Args:
        before: the environment of the earlier run; empty if there was none.
        now: that of this run.

    Returns:
        The environment of this run, with the seconds of all runs, also by phase (``seconds_by_phase``), and in
        ``earlier_runs`` what was different in each.

    Example:
        >>> continued({"command": "audit x", "seconds": 2.0}, {"command": "audit x --resume", "seconds": 1.5})
        {'command': 'audit x --resume', 'seconds': 3.5, 'earlier_runs': [{'command': 'audit x'}]}
    """
    if not before:
        return dict(now)
    whole = {**before, **now}
    if "seconds" in now:
        whole["seconds"] = round(float(before.get("seconds") or 0.0) + now["seconds"], 3)
    if PHASES in now:
        phases = [before.get(PHASES) or {}, now[PHASES]]
        whole[PHASES] = {name: round(sum(run.get(name, 0.0) for run in phases), 3) for name in phases[0] | phases[1]}
    summed = ("seconds", PHASES)
    differing = {key: before[key] for key in now if key not in summed and key in before and before[key] != now[key]}
    earlier = [*before.get("earlier_runs", ()), *([differing] if differing else [])]
    return whole | ({"earlier_runs": earlier} if earlier else {})


@functools.cache
def _processor() -> str:
    """The name of the processor; of its architecture where the system does not tell it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
