"""Run the parts, each in a process of its own, write their values into a file, and compare two files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tools.values.plain import Plain, flat

ROOT = Path(__file__).parents[2]
MINUTES = 20
"""The time limit of a part."""
Results = dict[str, Any]
"""``machine``; by part, ``parts`` with its seconds and commit, and ``values`` by key."""


def machine() -> dict[str, str]:
    """What the numbers depend on beside the code: the processor and the versions."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    processor = f"{model or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
    packages = ("torch", "numpy", "scipy", "pandas", "scikit-learn")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"processor": processor, "system": platform.system(), "python": platform.python_version(), **versions}


def values_of_part(name: str) -> dict[str, Plain]:
    """The values of all cases of a part; what a case raises is the value of its key ``error``."""
    from tools.values.parts import PARTS
    from tools.values.readings import READINGS

    found: dict[str, Plain] = {}
    for case, compute in PARTS[name]().items():
        try:
            found |= {f"{case}/{key}".rstrip("/"): value for key, value in flat(compute(), READINGS).items()}
        except Exception as error:  # noqa: BLE001  # it is the result of the case
            found[f"{case}/error"] = f"error: {type(error).__name__}: {error}"[:500]
    return found


def record(file: Path, prefix: str, jobs: int) -> None:
    """Record parts into a file, which is written after each: those that it lacks, or those that a prefix selects.

    Raises:
        ValueError: if the file is from another machine, or there is nothing to record.
    """
    from tools.values.parts import PARTS

    known: Results = {"machine": machine(), "parts": {}, "values": {}}
    if file.is_file():
        saved = json.loads(file.read_text(encoding="utf-8"))
        check_same_machine(saved, known)
        known = saved
    chosen = {name: name.startswith(prefix) or f"{prefix}/".startswith(f"{name}/") for name in PARTS}
    names = [name for name in PARTS if (chosen[name] if prefix else name not in known["parts"])]
    if not names:
        raise ValueError(f"nothing to record: {file} has all parts, or none begins with {prefix!r}: {', '.join(PARTS)}")
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_in_process, name) for name in names]):
            name, values, seconds = done.result()
            known["values"][name], known["parts"][name] = values, {"seconds": round(seconds, 1), "commit": _commit()}
            file.with_suffix(".tmp").write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", encoding="utf-8")
            file.with_suffix(".tmp").replace(file)
            errors = sum(str(value).startswith("error: ") for value in values.values())
            print(f"{name}: {len(values):,} values, {errors} errors, {seconds:.0f} s", flush=True)


def _in_process(name: str) -> tuple[str, dict[str, Plain], float]:
    """The values of a part, computed by one thread in a folder of its own, and the seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result, work = Path(folder) / "values.json", Path(folder) / "work"
        work.mkdir()
        python_path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "tools.values", "part", name, str(result)]
        options: dict[str, Any] = {"cwd": work, "env": environment, "capture_output": True, "text": True}
        try:
            done = subprocess.run(words, timeout=60 * MINUTES, check=False, **options)  # noqa: S603
            error = f"error: status {done.returncode}: {done.stderr.strip()[-400:]}"
        except subprocess.TimeoutExpired:
            error = f"error: not finished after {MINUTES} minutes"
        values = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {"error": error}
    return name, values, time.monotonic() - started


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


def check_same_machine(first: Results, second: Results) -> None:
    """Check that two files were recorded on one processor with the same versions.

    Raises:
        ValueError: naming the first difference.
    """
    for name in sorted(first["machine"].keys() | second["machine"].keys()):
        before, after = (results["machine"].get(name) for results in (first, second))
        if before != after:
            raise ValueError(f"{name} differs: {before} and {after}; record both on one machine with the same versions")


def differences(first: Results, second: Results, prefix: str = "") -> Iterator[str]:
    """A line for each key with a prefix that was removed, added or changed."""
    before, after = (_values(results, prefix) for results in (first, second))
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if key not in after:
            yield f"removed {key} = {old!r}"
        elif key not in before:
            yield f"added {key} = {new!r}"
        elif old != new or isinstance(old, bool) != isinstance(new, bool):
            far = f" (by {new - old:.1e})" if isinstance(old, int | float) and isinstance(new, int | float) else ""
            yield f"changed {key}: {old!r} -> {new!r}{far}"


def _values(results: Results, prefix: str) -> dict[str, Plain]:
    keys = {f"{part}/{key}": value for part, values in results["values"].items() for key, value in values.items()}
    return {key: value for key, value in keys.items() if key.startswith(prefix)}
