"""What every test shares: repeatable examples, one torch thread and files that are not synced."""

from __future__ import annotations

import gc
import os

import hypothesis
import torch

hypothesis.settings.register_profile("same-examples", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same-examples")

torch.set_num_threads(1)

# No test has a power failure; those of full disks replace it again.
os.fsync = lambda fd: None


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which would otherwise visit them again and again."""
    gc.collect()
    gc.freeze()
