"""Networks of other libraries are fused like our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.nn import functional as F  # noqa: N812

from classwise.models.fused_copy import foldable
from classwise.models.fusion import Fusion
from tests.models.samples import trained
from tests.models.variants import EXACT, both, digits, error


@pytest.mark.parametrize(("name", "count"), [("resnet18", 20), ("convnext_atto", 0)])
def test_a_network_of_timm(name: str, count: int, compatibility: Callable[[str, str, str], None]) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed; run make test-integrations")
    model = trained(timm.create_model(name, num_classes=5))
    images = F.interpolate(digits(), size=64)
    exact = both(model, images)
    fusion = Fusion(model)
    with fusion.forward(EXACT, images) as forward:
        found = both(forward, images)
    assert fusion.unfused == ""
    assert len(foldable(model)) == count
    assert error(found[0], exact[0]) < 1e-5
    assert error(found[1], exact[1]) < 1e-2
    compatibility("models", f"`{name}`, fused", "timm")
