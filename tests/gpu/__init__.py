"""Tests that need a CUDA device.

``PRETEND_CUDA=1 pytest tests/gpu`` runs them on the pretended one, to find errors of the tests themselves.
"""

import os

import pytest
import torch

from classwise.core.compute.determinism import WORKSPACE, WORKSPACES

PRETENDED = os.environ.get("PRETEND_CUDA") == "1"
MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not PRETENDED and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
os.environ.setdefault(WORKSPACE, WORKSPACES[0])  # before the first matrix product of any test
