"""Attack losses against torch's own, and against each other where mathematics says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from classwise.attacks import losses


def some(classes: int, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(20, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (20,), generator=generator)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_margin_is_negative_exactly_where_the_prediction_is_wrong(classes: int) -> None:
    logits, y = some(classes)
    assert torch.equal(losses.margin(logits, y) < 0, logits.argmax(1) != y)
    by_sorting = logits.clone()
    by_sorting[torch.arange(20), y] = -1e9
    expected = logits[torch.arange(20), y] - by_sorting.sort(1).values[:, -1]
    assert torch.equal(losses.margin(logits, y), expected)


def test_the_divergence_is_torchs() -> None:
    (first, _), (second, _) = some(5), some(5, seed=1)
    expected = F.kl_div(F.log_softmax(second, 1), F.softmax(first, 1), reduction="none").sum(1)
    assert torch.allclose(losses.divergence(first, second), expected)
    assert torch.allclose(losses.divergence(first, first), torch.zeros(20, dtype=torch.float64))


@given(classes=st.sampled_from([2, 3, 10]), seed=st.integers(0, 100), inverse_t=st.floats(0.5, 3))
def test_the_stable_loss_ascends_in_the_direction_of_the_cross_entropy(
    classes: int, seed: int, inverse_t: float
) -> None:
    logits, y = some(classes, seed, scale=1.0)
    logits.requires_grad_(True)
    stable = torch.autograd.grad(losses.others_against_label(logits * inverse_t, y).sum(), logits)[0]
    plain = torch.autograd.grad(losses.cross_entropy(logits * inverse_t, y).sum(), logits)[0]
    assert torch.allclose(F.normalize(stable, dim=1), F.normalize(plain, dim=1), atol=1e-9)


def test_the_stable_loss_is_the_log_odds_of_the_cross_entropy() -> None:
    logits, y = some(4)
    assert torch.allclose(F.softplus(losses.others_against_label(logits, y)), losses.cross_entropy(logits, y))


def test_at_a_steep_temperature_the_stable_loss_is_the_negative_margin() -> None:
    logits, y = some(10)
    steep = losses.others_against_label(logits * 1000, y) / 1000
    assert torch.allclose(steep, losses.negative_margin(logits, y), atol=1e-2)


def test_the_ratio_does_not_change_with_scale_and_shift() -> None:
    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(50) % 6
    target = (y + 1) % 6
    assert torch.allclose(losses.dlr(7 * logits - 3, y), losses.dlr(logits, y))
    assert torch.allclose(losses.targeted_dlr(7 * logits - 3, y, target), losses.targeted_dlr(logits, y, target))


def test_the_probability_margin_in_double_precision_and_where_the_softmax_is_saturated() -> None:
    logits = 3 * torch.randn(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(50) % 5
    p = logits.softmax(1)
    plain = p.scatter(1, y[:, None], -1).amax(1) - p.gather(1, y[:, None]).squeeze(1)
    assert torch.allclose(losses.probability_margin(logits, y), torch.log1p(plain))
    steep = torch.tensor([[400.0, 100.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.probability_margin(steep, torch.tensor([0])).sum(), steep)
    assert gradient[0].tolist() == pytest.approx([-1, 1, 0])


def test_the_other_classes_in_order() -> None:
    logits, y = torch.tensor([[1.0, 9.0, 5.0, 7.0]]).expand(3, -1), torch.tensor([1, 0, 1])
    assert losses.nth_other(logits, y, torch.tensor([0, 0, 2])).tolist() == [3, 1, 0]
