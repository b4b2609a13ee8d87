"""True float32: TF32 is off within the context only, whichever of torch's two interfaces the user has used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import backends

from classwise.core.float32 import true_float32

from ..pretend_cuda import convolves_in_tf32, multiplies_in_tf32

GPU = torch.device("cuda")
NEWER = hasattr(backends.cudnn, "conv")


def readable(read: Callable[[], Any]) -> Any:
    """The value, or None where torch refuses to read a setting through one interface that was set by the other."""
    try:
        return read()
    except RuntimeError:
        return None


def settings() -> list[Any]:
    older: list[Callable[[], Any]] = [
        lambda: backends.cudnn.allow_tf32,
        lambda: backends.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision,
    ]
    owners = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.matmul] if NEWER else []  # type: ignore[attr-defined]
    return [readable(read) for read in older] + [owner.fp32_precision for owner in owners]


def older() -> None:
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = True


def newer() -> None:
    backends.cudnn.conv.fp32_precision = backends.cuda.matmul.fp32_precision = "tf32"  # type: ignore[attr-defined]


def exact() -> None:
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Restore torch's own settings after each test."""
    yield
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = True
    if NEWER:
        backends.cudnn.conv.fp32_precision = backends.cudnn.rnn.fp32_precision = "tf32"  # type: ignore[attr-defined]
        backends.cuda.matmul.fp32_precision = backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "chosen",
    [
        lambda: None,
        older,
        exact,
        pytest.param(newer, marks=pytest.mark.skipif(not NEWER, reason="older torch")),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("medium"),
    ],
    ids=["default", "older", "exact", "newer", "high", "medium"],
)
def test_the_settings_are_off_within_and_restored(chosen: Callable[[], None]) -> None:
    chosen()
    before = settings()
    within: list[list[Any]] = []

    def fail() -> None:
        with true_float32(GPU):
            with true_float32(GPU):
                pass
            within.append([convolves_in_tf32(), multiplies_in_tf32(), *settings()[:2]])  # both interfaces can be read
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert within == [[False] * 4]
    assert settings() == before


def test_other_devices_keep_their_settings() -> None:
    older()
    with true_float32(torch.device("cpu")):
        assert convolves_in_tf32()
        assert multiplies_in_tf32()


def test_the_last_thread_restores_the_settings() -> None:
    older()
    before, entered, leave = settings(), threading.Event(), threading.Event()

    def other() -> None:
        with true_float32(GPU):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with true_float32(GPU):
        thread.start()
        assert entered.wait(10)
    assert not convolves_in_tf32()
    leave.set()
    thread.join()
    assert settings() == before
