"""Noise: Gaussian, shot, impulse and speckle (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classwise.core.rng import CounterRNG
from classwise.data.corruptions.base import Corruption


class GaussianNoise(Corruption):
    """Normal noise on every value."""

    cifar = (0.04, 0.06, 0.08, 0.09, 0.10)
    imagenet = (0.08, 0.12, 0.18, 0.26, 0.38)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """The deviation is the level."""
        return x + level * rng.normal(index, x.shape[1:])


class ShotNoise(Corruption):
    """Poisson noise, as of few photons."""

    cifar = (500, 250, 100, 75, 50)
    imagenet = (60, 25, 12, 5, 3)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the number of photons of a white value; counts by inverting each level's distribution."""
        from scipy.stats import poisson

        most = int(poisson.ppf(1 - 1e-9, level)) + 1
        table = poisson.cdf(np.arange(most)[None], np.arange(256)[:, None] / 255 * level)
        rows = torch.from_numpy(table).to(x.device).clamp_(max=1 - 1e-12) + torch.arange(256, device=x.device)[:, None]
        grey = x.mul(255).round().long()
        wanted = grey + rng.uniform(index, x.shape[1:]).double()  # row g of the table runs from g to g + 1
        return (torch.searchsorted(rows.flatten(), wanted, right=True) - grey * most).float() / level


class ImpulseNoise(Corruption):
    """Salt and pepper."""

    cifar = (0.01, 0.02, 0.03, 0.05, 0.07)
    imagenet = (0.03, 0.06, 0.09, 0.17, 0.27)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the share of values that become 0 or 1, as often the one as the other."""
        u = rng.uniform(index, x.shape[1:])
        return torch.where(u < level, (u < level / 2).float(), x)


class SpeckleNoise(Corruption):
    """Normal noise in proportion to the value."""

    cifar = (0.06, 0.1, 0.12, 0.16, 0.2)
    imagenet = (0.15, 0.2, 0.35, 0.45, 0.6)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the deviation at white."""
        return x + level * x * rng.normal(index, x.shape[1:])
