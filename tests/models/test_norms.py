"""Normalisation as a multiply-add: the same function in mixed precision, and not a bit of difference in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from classwise.models import build_model
from classwise.models.norms import affine_norms


class Own(nn.BatchNorm2d):
    """A user's own normalisation."""


def trained(model: nn.Module) -> nn.Module:
    """The model with statistics, scales and shifts that are not those of a fresh one."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                module.weight.data.uniform_(-1, 2, generator=generator)
                module.bias.data.normal_(generator=generator)
    return model.eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
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
        with affine_norms(norm) as changed:
            assert changed == 1
            exact, mixed = both(layout), both(layout.bfloat16())
        for one, other, close in zip(exact, expected, mixed, strict=True):
            assert torch.equal(one, other)  # float32 is as it was
            assert torch.allclose(close, other, rtol=0.02, atol=0.05)


def test_a_whole_network_and_its_gradient() -> None:
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def gradient() -> Tensor:
        leaf = x.to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(leaf)
        return torch.autograd.grad(logits.float()[:, 0].sum(), leaf)[0]

    usual = gradient()
    with affine_norms(model) as changed:
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
        with affine_norms(model), affine_norms(model) as again:
            assert again == 0
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert "forward" not in layer.__dict__


def test_other_layers_are_left_alone() -> None:
    learning = nn.BatchNorm2d(3)
    batchwise = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with affine_norms(nn.Sequential(learning, batchwise, Own(3).eval(), nn.GroupNorm(1, 3))) as changed:
        assert changed == 0
