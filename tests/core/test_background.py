"""Writes in the background: of copies, in order, nothing after an error, and complete at the end of the block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from classwise.core.errors import ClasswiseError
from classwise.training.background import BackgroundWriter
from tests.refusals import check_refused

from ..pretend_cuda import PretendCuda

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def test_a_gpu_goes_on_while_copies_are_written() -> None:
    may_write, written = threading.Event(), list[Any]()

    def write(content: Any) -> None:
        assert may_write.wait(10)
        written.append((content, threading.current_thread() is threading.main_thread()))

    with PretendCuda() as gpu, BackgroundWriter(GPU) as writer:
        on_gpu, on_cpu = torch.arange(4.0, device="cuda"), torch.arange(3)
        with gpu.counted() as counted:
            for count in range(2):
                writer.write({"a": on_gpu, "b": [on_cpu, {"c": (on_gpu, count)}], "d": "text"}, write)
                on_gpu += 10
                on_cpu += 10
        assert not written
        may_write.set()
        writer.wait()
        assert counted.synchronisations == []
        assert not any(gpu.holds(content["a"]) for content, _ in written)
    assert [on_main for _, on_main in written] == [False, False]
    for count, (content, _) in enumerate(written):
        assert content["a"].tolist() == [10 * count + value for value in range(4)]
        assert content["b"][0].tolist() == [10 * count + value for value in range(3)]
        assert content["b"][1]["c"][0].tolist() == content["a"].tolist()
        assert (content["b"][1]["c"][1], content["d"]) == (count, "text")


def test_the_memory_format_is_that_of_the_tensor() -> None:
    strides = list[Any]()
    with PretendCuda(), BackgroundWriter(GPU) as writer:
        weight = torch.zeros(2, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        writer.write(weight, lambda copied: strides.append(copied.stride()))
        writer.wait()
        assert strides == [weight.stride()]


def fail(content: Any) -> None:
    raise ClasswiseError(f"no space for {content}")


def interrupt(writer: BackgroundWriter, write: Callable[[Any], None]) -> None:
    with writer:
        writer.write("e", write)
        raise KeyboardInterrupt


def test_nothing_is_written_after_an_error() -> None:
    written = list[Any]()
    with PretendCuda():
        with BackgroundWriter(GPU) as writer:
            writer.write("a", fail)
            writer.write("b", written.append)
            check_refused("no space for a", writer.wait)
            writer.write("c", written.append)
        with pytest.raises(ClasswiseError, match="no space for d"), BackgroundWriter(GPU) as writer:
            writer.write("d", fail)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            interrupt(BackgroundWriter(GPU), fail)
    assert interrupted.value.__notes__ == ["no space for e"]
    assert written == []


def test_a_cpu_writes_at_once_without_a_copy() -> None:
    content, written = {"a": torch.zeros(2)}, list[Any]()
    with BackgroundWriter(CPU) as writer:
        writer.write(content, written.append)
        assert written == [content]
        assert written[0]["a"] is content["a"]
        check_refused("no space", writer.write, content, fail)
