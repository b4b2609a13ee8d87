"""What every test shares: repeatable examples and one torch thread."""

from __future__ import annotations

import gc

import hypothesis
import torch

hypothesis.settings.register_profile("same-examples", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same-examples")

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which would otherwise visit them again and again."""
    gc.collect()
    gc.freeze()
