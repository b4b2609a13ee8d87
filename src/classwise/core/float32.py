"""True float32 on a GPU: TF32 off for the passes that decide success.

By default cuDNN computes float32 convolutions in TF32, whose numbers have 10 bits of mantissa instead of 23. Logits
then err by about 1e-3, and predictions near the decision boundary are those of another function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch


class _Setting(NamedTuple):
    """A process-wide setting of torch, and its value for true float32."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    exact: Any


def _attribute(owner: object, name: str, exact: object) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), exact)


def _settings() -> list[_Setting]:
    """The settings in the order in which they are set: each may change those after it, not those before it.

    torch has two interfaces for one setting and raises an error where they disagree, so both are set.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    settings = [
        _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        _attribute(cudnn, "allow_tf32", exact=False),
    ]
    owners = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
    owners.append(getattr(torch.backends.mkldnn, "matmul", None))  # the first setting changes it
    newer = [owner for owner in owners if getattr(owner, "fp32_precision", None) is not None]  # since torch 2.9
    return settings + [_attribute(owner, "fp32_precision", "ieee") for owner in newer]


_lock = threading.Lock()
_depth = 0
_before: list[Any] = []


def true_float32(device: torch.device) -> AbstractContextManager[None]:
    """Context without TF32 in convolutions and matrix products on a GPU; nothing changes on other devices.

    The settings are those of the process. They are restored when the last of several threads leaves the context. Until
    then, other threads compute in true float32, too: slower, and never less exactly.
    """
    return _without_tf32() if device.type == "cuda" else nullcontext()


@contextmanager
def _without_tf32() -> Iterator[None]:
    global _depth  # noqa: PLW0603  # the settings are global, too
    with _lock:
        if not _depth:
            _before[:] = [_known(setting) for setting in _settings()]
            for setting in _settings():
                setting.set(setting.exact)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                for setting, value in zip(_settings(), _before, strict=True):
                    if value is not None:
                        setting.set(value)


def _known(setting: _Setting) -> Any:
    """The value of a setting; None if torch refuses to read it, where the user has set it by the other interface."""
    with suppress(RuntimeError):
        return setting.get()
    return None
