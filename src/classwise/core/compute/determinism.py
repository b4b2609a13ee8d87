"""Deterministic algorithms on a GPU: equal bits for equal inputs, shapes and software on one machine.

Without them some kernels of torch, cuDNN and cuBLAS add numbers in an order that differs from call to call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from classwise.core.errors import ClasswiseError
from classwise.core.settings.shared_context import SharedContext

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The environment variable that torch and cuBLAS read at the first matrix product on a GPU."""
WORKSPACES = (":4096:8", ":16:8")
"""Its values with which matrix products are deterministic."""

_MEMORY: Any = torch.utils.deterministic  # its attribute is set by its class, which torch does not annotate
_ALERT = re.compile(r"(\S+) does not have a deterministic implementation")


@contextmanager
def deterministic_algorithms(*, enabled: bool = True) -> Iterator[None]:
    """Context in which torch uses deterministic algorithms only, and does not choose those of cuDNN by measurements.

    The settings are those of the process, and are restored when the last of several threads leaves the context. The
    environment variable `WORKSPACE` is set if
    it is not, and remains. Uninitialised memory is not filled, since no result depends on it.

    Args:
        enabled: False: nothing changes.

    Raises:
        ClasswiseError: if an operation has no deterministic implementation, or a matrix product was computed on a GPU
            before the environment variable was set.
    """
    if not enabled:
        yield
        return
    os.environ.setdefault(WORKSPACE, WORKSPACES[0])
    try:
        with _shared:
            yield
    except RuntimeError as error:
        reason = _reason(str(error))
        if not reason:
            raise
        raise ClasswiseError(f"precision.deterministic = true: {reason}") from error


@contextmanager
def _deterministic() -> Iterator[None]:
    cudnn, memory = torch.backends.cudnn, _MEMORY
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill, benchmark = memory.fill_uninitialized_memory, cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory, cudnn.benchmark = False, False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory, cudnn.benchmark = fill, benchmark


_shared = SharedContext(_deterministic)


def is_refusal(error: Exception) -> bool:
    """Whether torch refused an operation because deterministic algorithms are required."""
    return torch.are_deterministic_algorithms_enabled() and bool(_reason(str(error)))


def _reason(message: str) -> str:
    """What an error of torch in deterministic mode means; empty for other errors."""
    if WORKSPACE in message:
        values = " or ".join(WORKSPACES)
        return f"a matrix product ran on the GPU without {WORKSPACE}={values}; set it before this process starts"
    found = _ALERT.search(message)
    advice = "use another attack or model, or set it to false"
    return f"{found[1]} has no deterministic implementation; {advice}" if found else ""
