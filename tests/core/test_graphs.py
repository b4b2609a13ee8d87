"""Streams and errors around the capture of a CUDA graph, on a pretended GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from classwise.core.compute.graphs import Captured, SideStream, first_line

from ..pretend_cuda import PretendCuda
from ..pretend_streams import Stream


def side_stream() -> SideStream:
    return SideStream(torch.empty(0, device="cuda").device)


def test_a_side_stream_waits_for_earlier_work_and_later_work_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error, so that memory of the work under way is not used again too early."""
    events: list[Any] = []
    current = Stream()

    def fail() -> None:
        events.append("work")
        raise ValueError("failed")

    with PretendCuda():
        side = side_stream()
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
        monkeypatch.setattr(Stream, "wait_stream", lambda self, other: events.append((self, other)))
        with pytest.raises(ValueError, match=r"^failed$"), side.used():
            fail()
    assert events == [(side.stream, current), "work", (current, side.stream)]


def test_the_stream_is_restored_after_a_capture_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[Stream] = []
    current = Stream()

    def fail() -> None:
        raise ValueError("not in a capture")

    with PretendCuda():
        side = side_stream()
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
        monkeypatch.setattr(torch.cuda, "set_stream", restored.append)
        with pytest.raises(ValueError, match=r"^not in a capture$"):
            Captured(fail, side)
        assert restored == [current]
        assert Captured(lambda: 1, side).result == 1
        assert len(restored) == 1


def test_the_first_error_of_a_capture_is_named() -> None:
    """The end of a capture that has failed fails with another error."""
    last = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    last.__context__ = ValueError("a reason\nmore")
    assert first_line(last) == "ValueError: a reason"
    last.__context__ = None
    assert first_line(last).startswith("RuntimeError: CUDA error")
