"""Check that each extra can be installed beside the installed torch: print what pip would install for it.

    python -m tools.check_extras [--out FILE] [EXTRA ...]

For each extra, pip resolves ``.[EXTRA]`` with the versions of ``constraints.txt``, in the environment of this Python
and without installing anything; where these conflict, with the version of torch alone. The exit status is 1 if pip
finds no versions, or would install torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "install", "--dry-run", "--report")
HEAD = """# Extras

`pip install -c constraints.txt ".[EXTRA]"`, in a clone, adds an optional package and what it requires.
Written by `make test-extras`: whether pip finds versions that agree with `constraints.txt`, with
Python {python} and torch {torch}.

Where a row names a conflict, leave out the constraints: `pip install ".[EXTRA]" torch=={public}`.

| extra | for | result | packages |
| --- | --- | --- | --- |
"""
PURPOSES = {
    "tensorboard": "[trackers](../how-to/trackers.md) of trainings",
    "mlflow": "[trackers](../how-to/trackers.md) of trainings",
    "wandb": "[trackers](../how-to/trackers.md) of trainings",
    "masks": "masks of the foreground by OpenCV, for experiments on backgrounds",
    "fairlearn": "`Outcomes.to_metricframe`",
    "datasets": "[data sets of Hugging Face](data.md) that your code loads; their saved folders need no package",
    "hf": "models of the Hugging Face Hub, [`hf:`](models.md)",
    "timm": "models of timm, [`timm:`](models.md)",
    "torchvision": "models of torchvision, [`torchvision:`](models.md)",
    "robustbench": "models of RobustBench, [`robustbench:`](../how-to/robustbench.md)",
    "onnx": "[ONNX files](models.md) as models",
    "maite": "[protocols of MAITE](../how-to/maite.md)",
    "ray": "[sweeps and shards on Ray](../how-to/executors.md)",
    "slurm": "[sweeps and shards on Slurm](../how-to/executors.md)",
}


@dataclass(frozen=True)
class Resolution:
    """What pip would install for an extra.

    Args:
        added: version by name of the packages that are not installed.
        replaced: the same for packages that are installed in another version.
        conflict: why the versions of ``constraints.txt`` cannot be used; empty if they can.
        resolved: whether pip found versions.
    """

    added: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    conflict: str = ""
    resolved: bool = True

    @property
    def passed(self) -> bool:
        """Whether pip found versions, and torch is not among what it would install."""
        return self.resolved and "torch" not in {**self.added, **self.replaced}

    def row(self, extra: str) -> str:
        """The row of the table."""
        result = "resolves" if self.resolved else "does not resolve"
        if self.replaced:
            result += f", replaces {', '.join(self.replaced)}"
        reason = f" ({self.conflict})" if self.conflict else ""
        return f"| `{extra}` | {PURPOSES[extra]} | {result}{reason} | {len({**self.added, **self.replaced})} |\n"


def extras() -> list[str]:
    """The names of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["project"]["optional-dependencies"])


def resolve(extra: str) -> Resolution:
    """Ask pip what it would install for an extra."""
    conflict = ""
    for pins in (["--constraint", "constraints.txt"], [f"torch=={public(metadata.version('torch'))}"]):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [*PIP, str(report), f".[{extra}]", *pins]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
            if not done.returncode:
                found = of_report(json.loads(report.read_text(encoding="utf-8")))
                return dataclasses.replace(found, conflict=conflict)
        conflict = conflict or failure(done.stdout + done.stderr)
    return Resolution(conflict=conflict, resolved=False)


def public(version: str) -> str:
    """A version without its local part: 2.13.0 for 2.13.0+cpu."""
    return version.partition("+")[0]


def of_report(report: Mapping[str, Any]) -> Resolution:
    """The packages of a report of pip, other than classwise."""
    wanted = {_name(package["metadata"]["name"]): package["metadata"]["version"] for package in report["install"]}
    wanted.pop("classwise", None)
    installed = {_name(distribution.name) for distribution in metadata.distributions()}
    added = {name: version for name, version in wanted.items() if name not in installed}
    return Resolution(added, {name: version for name, version in wanted.items() if name in installed})


def failure(output: str) -> str:
    """The requirements that conflict, or the first error, from the output of pip, in one line."""
    lines = [line.strip() for line in output.splitlines()]
    conflicts = [line for line in lines if re.match(r"(?!classwise)\S+ \S+ depends on|The user requested", line)]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "; ".join(conflicts or errors[:1] or ["pip failed"]).replace("|", "/")


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.check_extras", description="Resolve each extra with pip.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(extras())}; by default all")
    parser.add_argument("--out", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    if unknown := set(options.extras) - set(extras()):
        parser.error(f"unknown extra {min(unknown)!r}; known: {', '.join(extras())}")
    version = metadata.version("torch")
    torch = {"torch": version, "public": public(version)}
    text = HEAD.format(python="{}.{}.{}".format(*sys.version_info), **torch)
    print(text, end="", flush=True)
    passed = True
    for extra in options.extras or extras():
        resolution = resolve(extra)
        passed &= resolution.passed
        row = resolution.row(extra)
        print(row, end="", flush=True)
        text += row
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
