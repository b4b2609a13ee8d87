"""The arithmetic of float32: true float32 for the passes that decide success, TF32 for some that search on a GPU.

By default cuDNN computes float32 convolutions in TF32, whose numbers have 10 bits of mantissa instead of 23. Logits
then err by about 1e-3, and predictions near the decision boundary are those of another function. A CPU computes in less
than float32 only if the user allows it, and never in public functions (`classwise.core.settings.ambient_state`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal, NamedTuple

import torch

from classwise.core.settings.ambient_state import float32_on_cpu

Float32 = Literal["float32", "tf32"]
"""How a GPU computes convolutions and matrix products of float32 numbers."""


class _Setting(NamedTuple):
    """A process-wide setting of torch, and its values for true float32 and for TF32."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    values: dict[Float32, Any]


def _attribute(owner: object, name: str, values: dict[Float32, Any]) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), values)


def _settings() -> list[_Setting]:
    """The settings in the order in which they are set: each may change those after it, not those before it.

    torch has two interfaces for one setting and raises an error where they disagree, so both are set.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    level: dict[Float32, Any] = {"float32": "highest", "tf32": "high"}
    allowed: dict[Float32, Any] = {"float32": False, "tf32": True}
    newer: dict[Float32, Any] = {"float32": "ieee", "tf32": "tf32"}
    settings = [
        _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, level),
        _attribute(cudnn, "allow_tf32", allowed),
    ]
    owners = [(getattr(cudnn, "conv", None), newer), (getattr(cudnn, "rnn", None), newer), (matmul, newer)]
    # The first setting changes that of matrix products on a CPU, which never need TF32.
    owners.append((getattr(torch.backends.mkldnn, "matmul", None), {"float32": "ieee", "tf32": "ieee"}))
    present = [pair for pair in owners if getattr(pair[0], "fp32_precision", None) is not None]  # since torch 2.9
    return settings + [_attribute(owner, "fp32_precision", values) for owner, values in present]


_lock = threading.Lock()
_depth = Counter[Float32]()
_before: list[Any] = []


def true_float32(device: torch.device) -> AbstractContextManager[None]:
    """Context in which convolutions and matrix products on a device are computed in float32, not in TF32 or bfloat16.

    The settings are those of the process, for one kind of device. They are restored when the last of several threads
    leaves the context. Until then, other threads compute in true float32, too: slower, and never less exactly.
    """
    if device.type == "cuda":
        return _computed_in("float32")
    return float32_on_cpu() if device.type == "cpu" else nullcontext()


def tf32(device: torch.device) -> AbstractContextManager[None]:
    """Context with TF32 in convolutions and matrix products on a GPU, except within `true_float32` of any thread.

    Nothing changes on other devices, nor, on a GPU without TF32, in the results.
    """
    return _computed_in("tf32") if device.type == "cuda" else nullcontext()


@contextmanager
def _computed_in(arithmetic: Float32) -> Iterator[None]:
    _enter(arithmetic, 1)
    try:
        yield
    finally:
        _enter(arithmetic, -1)


def _enter(arithmetic: Float32, change: int) -> None:
    """Enter a context (1) or leave it (-1), and set what the contexts of all threads then ask for."""
    with _lock:
        before = _asked()
        if before is None:
            _before[:] = [_known(setting) for setting in _settings()]
        _depth[arithmetic] += change
        after = _asked()
        if after == before:
            return
        for setting, value in zip(_settings(), _before, strict=True):
            known = after is None and value is not None
            setting.set(value if known else setting.values[after or "float32"])


def _asked() -> Float32 | None:
    """The arithmetic that the contexts of all threads ask for: true float32 if any does; None outside of all."""
    return next((arithmetic for arithmetic in ("float32", "tf32") if _depth[arithmetic]), None)


def _known(setting: _Setting) -> Any:
    """The value of a setting; None if torch cannot read it, since the user set it through the other interface."""
    with suppress(RuntimeError):
        return setting.get()
    return None
