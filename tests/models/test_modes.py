"""Flags come back exactly, one by one, whatever happens in between."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from classwise.models import evaluating, frozen


class Stubborn(nn.Module):
    """A layer that refuses changes of its mode, as some frozen normalisation layers do."""

    def train(self, mode: bool = True) -> Stubborn:
        raise AssertionError(mode)


def mixed() -> nn.Sequential:
    """In training mode but for a frozen norm; the second linear layer's weight does not learn."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), Stubborn())
    model[1].training = False
    model.get_parameter("2.1.weight").requires_grad_(False)
    return model


def flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def learning(model: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in model.parameters()]


@pytest.mark.parametrize("fails", [False, True])
def test_evaluating(fails: bool) -> None:
    model = mixed()
    before = flags(model)
    try:
        with evaluating(model) as was_training:
            assert was_training
            assert not any(flags(model))
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert flags(model) == before
    assert len(set(before)) == 2


def test_a_model_in_evaluation_mode_needs_no_switch() -> None:
    with evaluating(nn.Sequential(nn.Dropout()).eval()) as was_training:
        assert not was_training


@pytest.mark.parametrize("fails", [False, True])
def test_frozen(fails: bool) -> None:
    model = mixed()
    before = learning(model)
    try:
        with frozen(model):
            assert not any(learning(model))
            x = torch.rand(3, 2, requires_grad=True)
            (gradient,) = torch.autograd.grad(model[0](x).sum(), x)
            assert gradient.abs().sum() > 0
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert learning(model) == before
    assert len(set(before)) == 2
    assert all(parameter.grad is None for parameter in model.parameters())
