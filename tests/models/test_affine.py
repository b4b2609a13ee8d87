"""Batch normalisation as a multiply-add: the same function, and the layers themselves again afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from classwise.models import build_model
from classwise.models.affine import AffineNorms
from tests.models.samples import trained


class Own(nn.BatchNorm2d):
    """A user's own normalisation."""


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (4, 6)),
        (nn.BatchNorm1d(6), (4, 6, 5)),
        (nn.BatchNorm2d(6), (4, 6, 5, 3)),
        (nn.BatchNorm2d(6, affine=False), (4, 6, 5, 3)),
        (nn.BatchNorm3d(6), (4, 6, 5, 3, 2)),
    ],
)
def test_values_and_gradients_are_those_of_the_layer(norm: nn.Module, shape: tuple[int, ...]) -> None:
    trained(norm)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        out = norm(leaf)
        (gradient,) = torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaf)
        return out.detach().float(), gradient.float()

    expected = both(x)
    for layout in (x, x.to(memory_format=torch.channels_last) if x.ndim == 4 else x):
        with AffineNorms(norm).replaced() as changed:
            assert changed == 1
            exact, mixed = both(layout), both(layout.bfloat16())
        for found, wanted, close in zip(exact, expected, mixed, strict=True):
            assert torch.equal(found, wanted)  # float32 is as it was
            assert torch.allclose(close, wanted, rtol=0.02, atol=0.05)


def test_a_whole_network_and_its_gradient() -> None:
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def gradient() -> Tensor:
        leaf = x.to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(leaf)
        return torch.autograd.grad(logits.float()[:, 0].sum(), leaf)[0]

    usual = gradient()
    with AffineNorms(model).replaced() as changed:
        assert changed == 17
        fast = gradient()
    assert not torch.equal(fast, usual)  # it was another computation
    assert float(torch.cosine_similarity(fast.flatten(), usual.flatten(), dim=0)) > 0.99
    assert torch.equal(gradient(), usual)  # and is gone


@pytest.mark.parametrize("fails", [False, True])
def test_the_layers_are_themselves_again(fails: bool) -> None:
    layer = nn.BatchNorm2d(3)
    model = trained(nn.Sequential(layer))
    try:
        with AffineNorms(model).replaced(), AffineNorms(model).replaced() as again:
            assert again == 0
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert "forward" not in layer.__dict__


def test_other_layers_are_left_alone() -> None:
    learning = nn.BatchNorm2d(3)
    batchwise = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with AffineNorms(nn.Sequential(learning, batchwise, Own(3).eval(), nn.GroupNorm(1, 3))).replaced() as changed:
        assert changed == 0


def test_later_uses_read_the_current_weights_into_the_same_tensors() -> None:
    """With the same bits as a first use, also after a change that autograd does not count."""
    model = trained(nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4, affine=False)))
    x = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    norms = AffineNorms(model)
    with norms.replaced():
        before = model(x)
    expanded = [layer._expanded for layer in norms._layers.values()]
    addresses = [tensor.data_ptr() for pairs in expanded for pair in pairs.values() for tensor in pair]
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.data.mul_(1.5).add_(0.1)
    with norms.replaced():
        refreshed = model(x)
    with AffineNorms(model).replaced():
        assert torch.equal(refreshed, model(x))
    assert not torch.equal(refreshed, before)
    assert addresses == [tensor.data_ptr() for pairs in expanded for pair in pairs.values() for tensor in pair]


def test_a_layer_that_trains_in_between_is_not_replaced() -> None:
    """The inner attack of some recipes runs in training mode."""
    layer = trained(nn.BatchNorm2d(3))
    norms = AffineNorms(layer)
    for training in (False, True, False):
        layer.train(training)
        with norms.replaced() as changed:
            assert changed == (not training)
