"""Writing of files in a background thread, while a GPU and the thread that feeds it go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from classwise.core.compute.transfers import HostCopy


class BackgroundWriter:
    """Write tensors to files: at once on a CPU, in a background thread from a GPU.

    The tensors are copied to pinned memory without waiting for the GPU, and the thread writes the copies in order.
    After an error it writes nothing more. The caller calls `wait` before it adds further writes, so that errors are
    raised there and copies do not accumulate.

    As a context manager, it waits for the writes at the end of the block, and raises their error or adds it as a note
    to the exception that ends the block.

    Args:
        device: the device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, "writer") if device.type == "cuda" else None
        self._writes: list[Future[None]] = []
        self._failed = False

    def write(self, content: Any, write: Callable[[Any], None]) -> None:
        """Write some content.

        Args:
            content: tensors, and mappings and sequences of them; other values in it must not be modified later.
            write: writes the content, with all tensors on the CPU if this is in the background.
        """
        if self._thread is None:
            write(content)
            return
        self._writes.append(self._thread.submit(functools.partial(self._write, HostCopy(content, cloned=True), write)))

    def _write(self, copied: HostCopy, write: Callable[[Any], None]) -> None:
        if self._failed:
            return
        try:
            write(copied.content())
        except BaseException:
            self._failed = True
            raise

    def wait(self) -> None:
        """Wait for all writes; raise the error of the first that failed."""
        writes, self._writes = self._writes, []
        for write in writes:
            write.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        finally:
            if self._thread is not None:
                self._thread.shutdown()
