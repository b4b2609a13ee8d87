"""What every test shares: repeatable examples and random numbers, one torch thread, no synced files.

pytest --hypothesis-profile=many-examples tries more examples of every property.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.forkserver import Server

gc.set_threshold(5_000, 20, 20)  # by default, collections take a twentieth of the time of the tests

hypothesis.settings.register_profile("same-examples", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.register_profile("many-examples", deadline=None, max_examples=1_000)
hypothesis.settings.load_profile("same-examples")

# By default, examples are also the constants of the modules imported so far: they depend on which tests ran before.
setattr(providers, "_get_local_constants", Constants)  # noqa: B010

torch.set_num_threads(1)

# As on a terminal, also under nohup, whose processes ignore it.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test has a power failure; those of full disks replace it again.
os.fsync = lambda fd: None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed what a test draws without a seed of its own, such as new weights, whichever tests ran before it.

    NumPy's legacy state included: other libraries draw from it.
    """
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which would otherwise visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    """Forks the Python processes that are started within its method ``serving``."""
    with Server() as server:
        yield server


@pytest.fixture
def forked(fork_server: Server) -> Iterator[None]:
    """Fork the Python processes of a test from one that has imported the package (`tests.forkserver`)."""
    with fork_server.serving():
        yield
