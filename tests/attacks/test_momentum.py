"""Momentum and input diversity against the papers' arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it

import classwise as cw
from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.ascent import PGD
from classwise.attacks.gradient.momentum import DIFGSM, MIFGSM, resampling
from classwise.threat.ball import Threat

from .models import Small, images, labelled


def test_the_momentum_adds_gradients_of_unit_l1_norm() -> None:
    """Dong et al., eq. 6: g1 = (3, -1)/4; g2 = decay g1 + (-1, -1)/2; a gradient of zero adds nothing."""
    attack = MIFGSM(decay=0.5)
    state = {"momentum": torch.zeros(1, 1, 1, 2)}
    expected = [(0.75, -0.25), (-0.125, -0.625), (-0.0625, -0.3125)]
    for gradient, momentum in zip([(3.0, -1.0), (-1.0, -1.0), (0.0, 0.0)], expected, strict=True):
        direction, state = attack._direction(torch.tensor(gradient).view(1, 1, 1, 2), state)
        assert direction.flatten().tolist() == pytest.approx(momentum)
        assert torch.equal(direction, state["momentum"])


def test_without_decay_it_is_pgd_from_the_image() -> None:
    model, x, y = labelled(Small(5).eval(), images(24))
    pgd = cw.attack(model, x, y, PGD(step_size="0.1eps", random_init="none"), threat="Linf:0.1", early_stop=False)
    assert torch.equal(cw.attack(model, x, y, MIFGSM(decay=0), threat="Linf:0.1", early_stop=False), pgd)
    assert not torch.equal(cw.attack(model, x, y, MIFGSM(), threat="Linf:0.1", early_stop=False), pgd)
    plain = cw.attack(model, x, y, DIFGSM(diversity_prob=0), threat="Linf:0.1", early_stop=False)
    assert float((plain - pgd).abs().max()) < 1e-6


@pytest.mark.parametrize(("side", "share"), [(10, 0.5), (32, 0.9), (3, 0.9), (1, 0.9), (7, 0.0)])
def test_copies_are_bilinear_and_lie_in_zeros(side: int, share: float) -> None:
    uniform = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
    x = images(1, 2, side)[0]
    lowest, lengths = max(int(side * share), 1), set()
    for matrix, size, place in zip(resampling(side, share, *uniform), *uniform, strict=True):
        length = min(lowest, max(side - 1, 1)) + math.floor(size * max(side - lowest, 1))
        first = math.floor(place * (side - length))
        small = F.interpolate(x[None], size=(length, length), mode="bilinear", align_corners=False)[0]
        rest = side - length - first
        assert torch.allclose(matrix @ x @ matrix.T, F.pad(small, (first, rest, first, rest)), atol=1e-5)
        lengths.add(length)
    assert lengths == set(range(min(lowest, max(side - 1, 1)), max(side, 2)))


def test_what_the_model_says_of_a_copy_is_no_hit() -> None:
    """With a copy at each step only the last image is judged; without, most fall on the way."""
    model, x, y = labelled(Small(5).eval(), images(32))
    taken = {}
    for probability in (0.0, 1.0):
        attack = DIFGSM(diversity_prob=probability)
        (done,) = Engine(model, batch_size=32).attack(attack, Threat("Linf", 0.2), [Job(torch.arange(32), x, y)])
        assert torch.equal(done.success, model(done.x).argmax(1) != done.y)
        assert bool(done.success.any())
        taken[probability] = done.iterations
    assert bool((taken[1.0] == 10).all())
    assert float(taken[0.0].float().mean()) < 10


def test_each_image_and_step_has_its_own_copy() -> None:
    """A diverse image differs from its neighbour's copy: the same image twice goes two ways, under one name one."""
    model, x, y = labelled(Small(5).eval(), images(1, side=8).expand(32, -1, -1, -1))
    attack = DIFGSM(diversity_prob=1, resize_rate=0.5)
    apart = cw.attack(model, x, y, attack, threat="Linf:0.1", early_stop=False)
    alike = cw.attack(
        model, x, y, attack, threat="Linf:0.1", early_stop=False, index=torch.zeros(32, dtype=torch.int64)
    )
    assert len(torch.unique(apart, dim=0)) > 16
    assert len(torch.unique(alike, dim=0)) == 1
