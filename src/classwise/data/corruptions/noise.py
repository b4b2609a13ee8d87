"""Noise: Gaussian, shot, impulse and speckle (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.data.corruptions.base import Corruption


class GaussianNoise(Corruption):
    """Additive Gaussian noise."""

    cifar = (0.04, 0.06, 0.08, 0.09, 0.10)
    imagenet = (0.08, 0.12, 0.18, 0.26, 0.38)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """Add the noise; the level is its standard deviation."""
        return x + level * rng.normal(index, x.shape[1:])


class ShotNoise(Corruption):
    """Poisson noise of a small number of photons."""

    cifar = (500, 250, 100, 75, 50)
    imagenet = (60, 25, 12, 5, 3)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the noise; the level is the mean number of photons at white. Samples by inversion of the CDF."""
        from scipy.stats import poisson

        most = int(poisson.ppf(1 - 1e-9, level)) + 1
        table = poisson.cdf(np.arange(most)[None], np.arange(256)[:, None] / 255 * level)
        rows = torch.from_numpy(table).to(x.device).clamp_(max=1 - 1e-12) + torch.arange(256, device=x.device)[:, None]
        grey = x.mul(255).round().long()
        quantile = grey + rng.uniform(index, x.shape[1:]).double()  # row g of the table has the range [g, g + 1)
        return (torch.searchsorted(rows.flatten(), quantile, right=True) - grey * most).float() / level


class ImpulseNoise(Corruption):
    """Salt-and-pepper noise."""

    cifar = (0.01, 0.02, 0.03, 0.05, 0.07)
    imagenet = (0.03, 0.06, 0.09, 0.17, 0.27)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the noise; the level is the fraction of values set to 0 or 1, with equal probability."""
        u = rng.uniform(index, x.shape[1:])
        return torch.where(u < level, (u < level / 2).float(), x)


class SpeckleNoise(Corruption):
    """Multiplicative Gaussian noise."""

    cifar = (0.06, 0.1, 0.12, 0.16, 0.2)
    imagenet = (0.15, 0.2, 0.35, 0.45, 0.6)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the noise; the level is its standard deviation at white."""
        return x + level * x * rng.normal(index, x.shape[1:])
