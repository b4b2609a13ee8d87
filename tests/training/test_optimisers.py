"""Adam's first steps by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.training.optimisers import Adam
from classwise.training.recipe import Recipe


@pytest.mark.parametrize("decoupled", [False, True])
def test_adams_first_two_steps_by_hand(decoupled: bool) -> None:
    lr, decay, first, second = 0.1, 0.2, 0.8, 0.9
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = Adam(lr=lr, betas=(first, second), weight_decay=decay, decoupled_weight_decay=decoupled).build(model)
    weight, mean, square = 2.0, 0.0, 0.0
    for step, gradient in enumerate((3.0, -1.0), start=1):
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        seen = gradient if decoupled else gradient + decay * weight
        weight *= 1 - lr * decay if decoupled else 1
        mean, square = first * mean + (1 - first) * seen, second * square + (1 - second) * seen**2
        weight -= lr * (mean / (1 - first**step)) / (square / (1 - second**step)) ** 0.5
        assert float(model.weight.detach()) == pytest.approx(weight, abs=1e-6)


def test_an_invalid_beta_is_named() -> None:
    with pytest.raises(ClasswiseError, match=r"betas.1 = 2"):
        Recipe.read("at-adam", {"optimizer.betas": [0.9, 2]})
