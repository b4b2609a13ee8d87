"""Options that select where tasks run: this machine, Ray or Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from classwise.cli.help import CLUSTER
from classwise.cli.options import pairs

if TYPE_CHECKING:
    from classwise.sweeps.executors.base import Executor


@dataclass(frozen=True)
class ClusterOptions:
    """Where tasks run.

    Raises:
        ClasswiseError: for a malformed ``--slurm``.
    """

    panel: ClassVar[str] = CLUSTER

    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="local|ray|slurm",
            help="Where to run tasks; --shards without it runs none, and merges.",
            show_default="sweep run: local",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Number of tasks at once.",
            show_default="sweep run: 1 on this machine; else by the cluster",
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="Threads of each task on this machine.",
            show_default="OMP_NUM_THREADS, else the CPUs divided by the workers",
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address", metavar="ADDRESS", help="A Ray cluster, or auto.", show_default="one on this machine"
        ),
    ] = None
    slurm: Annotated[
        str | None,
        typer.Option(
            "--slurm",
            metavar="KEY=VALUE,...",
            help="Settings of the Slurm jobs, such as partition=gpu,timeout_min=600.",
        ),
    ] = None

    def __post_init__(self) -> None:
        _ = self.slurm_settings

    @property
    def slurm_settings(self) -> dict[str, str] | None:
        """``--slurm`` by key."""
        return None if self.slurm is None else pairs(self.slurm.split(","), "--slurm")

    @property
    def given(self) -> dict[str, Any]:
        """The given options, as arguments of `classwise.sweeps.executors.choice.executor_of`."""
        values: dict[str, Any] = {
            "on": self.on,
            "workers": self.workers,
            "threads": self.threads,
            "ray_address": self.ray_address,
        }
        values["slurm"] = self.slurm_settings
        return {name: value for name, value in values.items() if value is not None}

    def executor(self, gpus: int = 0) -> Executor:
        """Build the executor.

        Raises:
            ClasswiseError: for an unknown executor, or an option that it does not take.
        """
        from classwise.sweeps.executors.choice import executor_of

        return executor_of(**self.given, gpus=gpus)
