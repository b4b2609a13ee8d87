"""True float32 and TF32 are set within their contexts only, whichever of torch's two interfaces the user has used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import backends

from classwise.core.compute.float32 import tf32, true_float32

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
        backends.fp32_precision = "none"  # type: ignore[attr-defined]
        backends.cudnn.conv.fp32_precision = backends.cudnn.rnn.fp32_precision = "tf32"  # type: ignore[attr-defined]
        backends.cuda.matmul.fp32_precision = backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]


def older_and_newer() -> None:
    older()
    newer()


def on_top() -> None:
    """For all libraries at once; it does not reach what has a setting of its own."""
    backends.fp32_precision = "tf32"  # type: ignore[attr-defined]


def without_convolutions() -> None:
    backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def products_only() -> None:
    backends.cuda.matmul.fp32_precision = "tf32"


def in_the_newer_interface(chosen: Callable[[], None]) -> Any:
    return pytest.param(chosen, marks=pytest.mark.skipif(not NEWER, reason="older torch"), id=chosen.__name__)


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(lambda: None, id="default"),
        older,
        exact,
        pytest.param(lambda: torch.set_float32_matmul_precision("high"), id="high"),
        pytest.param(lambda: torch.set_float32_matmul_precision("medium"), id="medium"),
        *map(in_the_newer_interface, (newer, older_and_newer, on_top, without_convolutions, products_only)),
    ],
)
def test_the_settings_hold_within_and_are_restored(chosen: Callable[[], None]) -> None:
    chosen()
    before = settings()
    within: list[list[bool]] = []

    def note() -> None:
        within.append([convolves_in_tf32(), multiplies_in_tf32()])
        assert None not in settings()  # every getter can be read

    def fail() -> None:
        with tf32(GPU):
            note()
            with true_float32(GPU), tf32(GPU):
                note()
            note()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert within == [[True, True], [False, False], [True, True]]
    assert settings() == before


@pytest.mark.parametrize("level", ["high", "medium"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_cpu_computes_in_true_float32_whatever_the_user_allows(level: str, threads: int) -> None:
    torch.set_float32_matmul_precision(level)
    before, contexts = settings(), [true_float32(torch.device("cpu")) for _ in range(threads)]
    for context in contexts:
        context.__enter__()
    for context in contexts:
        if NEWER:
            assert backends.mkldnn.matmul.fp32_precision == "ieee"  # type: ignore[attr-defined]
        else:
            assert torch.get_float32_matmul_precision() == "high"
        assert multiplies_in_tf32()  # a GPU
        context.__exit__(None, None, None)
    assert settings() == before


def test_other_devices_keep_their_settings() -> None:
    older()
    with true_float32(torch.device("cpu")), tf32(torch.device("cpu")):
        assert convolves_in_tf32()
        assert multiplies_in_tf32()


@pytest.mark.parametrize(("outer", "inner"), [(true_float32, true_float32), (true_float32, tf32), (tf32, true_float32)])
def test_threads_share_the_settings(outer: Callable[..., Any], inner: Callable[..., Any]) -> None:
    """A thread that needs true float32 has it; the last one to leave restores the settings."""
    older()
    before, entered, leave = settings(), threading.Event(), threading.Event()

    def other() -> None:
        with inner(GPU):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with outer(GPU):
        assert convolves_in_tf32() == (outer is tf32)
        thread.start()
        assert entered.wait(10)
        assert not convolves_in_tf32()
    assert convolves_in_tf32() == (inner is tf32)
    leave.set()
    thread.join()
    assert settings() == before
