"""Which layers of a model are fused, and which models are used themselves, with the reason."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.precision import FAST, Precision
from classwise.models.folding import foldable
from classwise.models.fusion import Fusion, Snapshot
from tests.models.samples import trained
from tests.models.variants import (
    EXACT,
    Case,
    ControlFlow,
    CopiesDetached,
    CopiesOtherwise,
    Counting,
    DefaultArguments,
    Functional,
    Infinite,
    NoCopies,
    NoStatistics,
    NotAffine,
    OtherDimensions,
    OwnNorm,
    Parametrized,
    Random,
    Recomputes,
    RequiresFloat32,
    SharedConvolution,
    SharedLayers,
    SharedNorm,
    Statistics,
    Stores,
    StraightThrough,
    TiedWeights,
    TwoUsers,
    WeightRead,
    WithoutGradient,
    both,
    digits,
    error,
    variant,
)

VARIANTS: dict[type[Case], set[str]] = {
    Case: {"norm1", "norm2"},
    SharedLayers: {"norm1", "norm2"},
    SharedConvolution: {"norm1"},
    SharedNorm: set(),
    TwoUsers: {"norm1"},
    WeightRead: {"norm1"},
    TiedWeights: {"norm1", "norm2"},
    ControlFlow: {"block.1"},
    DefaultArguments: {"norm1", "norm2"},
    Functional: {"norm1"},
    NoStatistics: {"norm1"},
    NotAffine: {"norm1", "norm2"},
    OwnNorm: {"norm1"},
    OtherDimensions: {"norm1", "norm2", "norm3", "norm5"},
    Parametrized: {"norm1"},
    StraightThrough: {"norm1", "norm2"},
    WithoutGradient: {"norm1", "norm2"},
    Random: {"norm1", "norm2"},
    Recomputes: {"norm1", "norm2"},
}
"""Variants that are fused, and their folded layers."""


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: case.__name__)
def test_a_variant_is_fused(case: type[Case]) -> None:
    model = variant(case)
    assert set(foldable(model)) == VARIANTS[case]
    torch.manual_seed(1)
    exact = both(EXACT.forward(model), digits())
    fusion = Fusion(model)
    for precision, tolerance in ((EXACT, 1e-5), (FAST, 0.2)):
        with fusion.forward(precision, digits()) as forward:
            assert fusion.unfused == ""
            torch.manual_seed(1)
            for found, expected in zip(both(forward, digits()), exact, strict=True):
                assert error(found, expected) < tolerance
            if case is Random:
                assert error(forward(digits()), forward(digits())) > 0.01
    torch.manual_seed(1)
    assert all(
        torch.equal(found, expected)
        for found, expected in zip(both(EXACT.forward(model), digits()), exact, strict=True)
    )


def test_what_a_model_stores_is_no_symbolic_value() -> None:
    """It changes an attribute in its first pass, and in no later one."""
    model = variant(Stores)
    fusion = Fusion(model)
    with fusion.forward(EXACT, digits()):
        assert fusion.unfused == "its forward pass modifies its attributes"
    assert isinstance(model.grid, Tensor)
    with fusion.forward(EXACT, digits()) as forward:
        assert fusion.unfused == ""
        assert error(forward(digits()), model(digits())) < 1e-5


def hooked(model: Case) -> nn.Module:
    model.conv2.register_forward_hook(lambda *_: None)
    return model


def watched(model: Case) -> nn.Module:
    model.register_full_backward_hook(lambda *_: None)
    return model


def replaced(model: Case) -> nn.Module:
    model.norm1.forward = F.relu  # type: ignore[method-assign]
    return model


FALLBACKS: dict[str, tuple[nn.Module, str]] = {
    "forward hook": (hooked(Case()), "its layer 'conv2' has hooks"),
    "backward hook": (watched(Case()), "it has hooks"),
    "pre-hook": (nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 5, 3)), nn.AvgPool2d(14), nn.Flatten()), "hooks"),
    "replaced": (replaced(Case()), "its layer 'norm1' has a forward pass that was replaced"),
    "wrapped": (nn.DataParallel(Case()), "it is a DataParallel"),
    "float64": (Case().double(), "it has weights in float64"),
    "counts": (Counting(), "its forward pass modifies its attributes"),
    "adapts": (Statistics(), "its forward pass modifies its attributes"),
    "copies otherwise": (CopiesOtherwise(), r"its copy's logits differ by \d\.\de-0[45] of the largest"),
    "copies detached": (CopiesDetached(), r"its copy's gradient differs by \d\.\de[+-]0\d of its norm"),
    "no copies": (NoCopies(), r"its copy fails \(TypeError: not to be copied\)"),
    "infinite": (Infinite(), "its copy's logits differ by nan of the largest"),
    "requires float32": (RequiresFloat32(), r"its copy fails \(RuntimeError: .*BFloat16"),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_model_that_cannot_be_fused_is_used_itself(name: str) -> None:
    model, reason = FALLBACKS[name]
    model = trained(model)
    images = digits().to(next(model.parameters()).dtype)
    before = Snapshot(model)
    usual = Precision(dtype="bfloat16").forward(model)(images)
    fusion = Fusion(model)
    with torch.no_grad(), fusion.forward(FAST, images) as forward:
        found = forward(images)
    assert re.search(reason, fusion.unfused), fusion.unfused
    assert name in {"counts", "infinite"} or error(found, usual) < 0.05
    assert name in {"counts", "pre-hook"} or Snapshot(model) == before
