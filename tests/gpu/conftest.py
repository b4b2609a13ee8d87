"""The pretended device, if it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..pretend_cuda import PretendCuda
from . import PRETENDED


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Run the test on the pretended device where `PRETENDED`."""
    if not PRETENDED:
        yield
        return
    with PretendCuda():
        yield
