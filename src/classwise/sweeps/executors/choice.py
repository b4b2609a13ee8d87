"""`executor_of`: the executor that the options of a command select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.sweeps.executors import EXECUTORS

if TYPE_CHECKING:
    from classwise.sweeps.executors.base import Executor

OPTIONS = {
    "workers": "--workers",
    "threads": "--threads",
    "address": "--ray-address",
    "settings": "--slurm",
}
"""Options of the command line that not every executor takes, by the fields of executors."""


@checked
def executor_of(
    on: str = "local",
    workers: int | None = None,
    gpus: int = 0,
    threads: int | None = None,
    ray_address: str | None = None,
    slurm: Mapping[str, str] | None = None,
) -> Executor:
    """Build the executor of these options.

    Args:
        on: a name in `classwise.sweeps.executors.EXECUTORS`.
        workers: number of tasks that run at once; None: the default of the executor.
        gpus: GPUs of each task.
        threads: threads of each task on this machine; None: the default of the executor.
        ray_address: address of a Ray cluster; None: the default of the executor.
        slurm: settings of a Slurm queue, such as ``{"partition": "gpu"}``.

    Raises:
        ClasswiseError: for an unknown executor, an option that it does not take, or an invalid value.

    Example:
        >>> executor_of("local", workers=2)
        Local(workers=2, gpus=0, threads=None)
    """
    executor: Any = EXECUTORS.load(on)
    values: dict[str, Any] = {"workers": workers, "gpus": gpus, "address": ray_address, "settings": slurm}
    given = {name: value for name, value in values.items() if value}
    given |= {name: value for name, value in {"workers": workers, "threads": threads}.items() if value is not None}
    known = {field.name for field in fields(executor)}
    for name in given:
        if name not in known:
            accepted = " and ".join(option for field, option in OPTIONS.items() if field in known)
            raise ClasswiseError(f"{OPTIONS[name]} does not apply to --on {on}, which takes {accepted}")
    built: Executor = executor(**given)
    return built
