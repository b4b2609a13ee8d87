"""The executors: where the tasks of a sweep or of a sharded audit run.

An executor is one class (`classwise.sweeps.executors.base.Executor`) and one line in `EXECUTORS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.sweeps.executors.base import Executor

EXECUTORS: Registry[Executor] = Registry(
    "executor",
    {
        "local": "classwise.sweeps.executors.local:Local",
        "ray": "classwise.sweeps.executors.ray:Ray",
        "slurm": "classwise.sweeps.executors.slurm:Slurm",
    },
    base="classwise.sweeps.executors.base:Executor",
)
"""Executors by the names that ``--on`` accepts."""
