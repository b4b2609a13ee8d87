"""The state of torch in which public functions compute, whatever state the program that calls them is in.

Gradients are recorded, not in inference mode, without autocast and anomaly detection, in float32 by default, which a
CPU computes exactly, and on the CPU by default. The state of the caller comes back afterwards. Passes of models keep
the caller's default device, since the code of a model may make constants there: ``torch.set_default_device("cuda")``
moves every tensor without a stated device to the GPU, also indices, masks and tables, which belong on the CPU.

Deterministic algorithms of the caller remain: they do not change numbers on a CPU, and the caller wants them on a GPU.
TF32 of a GPU is left for passes that must be exact (`classwise.core.compute.float32`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

from classwise.core.settings.shared_context import SharedContext

P = ParamSpec("P")
T = TypeVar("T")

_users = threading.local()
_UNCHANGED = nullcontext()
_AUTOCAST = ("cpu", "cuda")
"""The types of devices whose autocast a caller may have enabled."""


def known_state() -> AbstractContextManager[None]:
    """Context in the known state of torch; the default device of the caller is noted for `default_of_user`.

    The default data type and anomaly detection are settings of the process: while one thread is in this context, all
    threads have the known ones.

    Example:
        >>> import torch
        >>> from classwise.core.settings.ambient_state import known_state
        >>> with torch.no_grad(), known_state():
        ...     torch.is_grad_enabled()
        True
    """
    torch: Any = sys.modules.get("torch")  # not imported yet: there is no other state
    if torch is None:
        return _UNCHANGED
    contexts = _changes(torch)
    return _entered(contexts) if contexts else _UNCHANGED


def in_known_state(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function run in `known_state`."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        with known_state():
            return function(*args, **options)

    return call


def restores_state(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function restore the default data type and the recording of gradients, which code of a user may change."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        import torch

        dtype, recorded = torch.get_default_dtype(), torch.is_grad_enabled()
        try:
            return function(*args, **options)
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(recorded)

    return call


def default_of_user() -> AbstractContextManager[Any]:
    """Context with the default device of the user, within `known_state`."""
    return getattr(_users, "device", None) or nullcontext()


def float32_on_cpu() -> AbstractContextManager[Any]:
    """Context in which a CPU computes float32 exactly, if ``torch.set_float32_matmul_precision("medium")`` allows less.

    Processors with AMX then multiply in bfloat16. The settings are those of the process, for CPUs only.

    Example:
        >>> import torch
        >>> from classwise.core.settings.ambient_state import float32_on_cpu
        >>> with float32_on_cpu():
        ...     total = torch.ones(2, 2) @ torch.ones(2, 2)
    """
    return _exact if _is_needed(_exact, _is_reduced_on_cpu) else _UNCHANGED


def _changes(torch: Any) -> list[AbstractContextManager[Any]]:
    """The contexts that change the present state into the known one."""
    contexts: list[AbstractContextManager[Any]] = []
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        contexts.append(torch.inference_mode(mode=False))  # which also records gradients
    contexts += [torch.autocast(kind, enabled=False) for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    if _is_needed(_float32, lambda: torch.get_default_dtype() != torch.float32):
        contexts.append(_float32)
    if _is_needed(_no_anomalies, torch.is_anomaly_enabled):
        contexts.append(_no_anomalies)
    if (exact := float32_on_cpu()) is not _UNCHANGED:
        contexts.append(exact)
    device = torch.get_default_device()
    if device.type not in ("cpu", "meta"):
        contexts += [_noted(device), torch.device("cpu")]
    return contexts


def _is_needed(context: SharedContext, differs: Callable[[], bool]) -> bool:
    """Whether a setting of the process differs from the known one, or would without the context of another thread.

    The setting is read again, since that thread may have left the context in between.
    """
    return differs() or context.entered or differs()


@contextmanager
def _entered(contexts: list[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def _noted(device: Any) -> Iterator[None]:
    before, _users.device = getattr(_users, "device", None), device
    try:
        yield
    finally:
        _users.device = before


@contextmanager
def _default_dtype() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _without_anomaly_detection() -> Iterator[None]:
    import torch

    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(*before)


@contextmanager
def _float32_on_cpu() -> Iterator[None]:
    """Set the settings of a CPU, and not those of a GPU."""
    import torch

    owners = _owners_on_cpu()
    before = [owner.fp32_precision for owner in owners]
    level = torch.get_float32_matmul_precision() if not owners else ""
    try:
        for owner in owners:
            owner.fp32_precision = "ieee"
        if level:
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            owner.fp32_precision = value
        if level:
            torch.set_float32_matmul_precision(level)


def _owners_on_cpu() -> list[Any]:
    """What has settings of a CPU: since torch 2.9."""
    import torch

    owners = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]
    return [owner for owner in owners if getattr(owner, "fp32_precision", None) is not None]


def _is_reduced_on_cpu() -> bool:
    """Whether the user allows a CPU to compute in less than float32."""
    import torch

    owners = _owners_on_cpu()
    if not owners:
        return torch.get_float32_matmul_precision() == "medium"
    return any(owner.fp32_precision not in ("none", "ieee") for owner in owners)


_float32 = SharedContext(_default_dtype)
_exact = SharedContext(_float32_on_cpu)
_no_anomalies = SharedContext(_without_anomaly_detection)
