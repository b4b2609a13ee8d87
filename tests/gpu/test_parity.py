"""A CUDA device computes what the CPU computes. `make gpu` runs these tests, and the benchmarks after them."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu import parity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CHECKS = parity.checks(parity.Size())


@pytest.mark.parametrize("name", CHECKS)
def test_parity_with_the_cpu(name: str) -> None:
    result = CHECKS[name]("cuda")
    assert result["passed"], result["measured"]
