"""Audits compute gradients on a fused copy of the model where it has one, and record why where it has none."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.reporting.provenance import settings_of
from tests.auditing import toys
from tests.auditing.listening import Listener
from tests.models.networks import PreActResNet
from tests.models.samples import trained


def run(progress: Listener, *, hooked: bool, precision: Precision = FAST) -> Audit:
    torch.manual_seed(0)
    network = PreActResNet(3)
    network.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1, bias=False)
    model = trained(network)
    if hooked:
        network.bn.register_forward_hook(lambda *_: None)
    return audit(
        model,
        toys.images(40),
        threat="Linf:0.05",
        attacks=["pgd:steps=3", "fab:steps=2"],
        batch_size=32,
        precision=precision,
        progress=progress,
    )


@pytest.mark.slow
def test_a_model_that_is_not_fused_is_reported_once_with_the_reason() -> None:
    progress = Listener()
    result = run(progress, hooked=True)
    reason = "its layer 'bn' has hooks"
    assert result.environment["not_fused"] == reason
    assert [line for line in progress.lines if "fused" in line] == [
        f"the model is not fused, so gradients take longer: {reason}"
    ]
    assert ("Not fused", reason) in settings_of(result)
    assert result.outcomes.meta.notes == ()  # the bits can be repeated all the same


@pytest.mark.slow
@pytest.mark.parametrize("precision", [FAST, EXACT], ids=["bfloat16", "float32"])
def test_a_fused_model_needs_no_note(precision: Precision) -> None:
    progress = Listener()
    result = run(progress, hooked=False, precision=precision)
    assert "not_fused" not in result.environment
    assert not any("fused" in line for line in progress.lines)
    pd.testing.assert_frame_equal(
        result.outcomes.frame, run(Listener(), hooked=False, precision=precision).outcomes.frame
    )
