"""Small modules that differ in what a fused copy must respect, real images, and the errors of logits and gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.precision import Forward, Precision
from tests.models.samples import trained

EXACT = Precision(channels_last=True)
"""The precision of attacks that compute in float32."""


@cache
def digits(count: int = 8) -> Tensor:
    """Real images, (N, 3, 16, 16): handwritten digits, their three channels of different brightness."""
    gray = torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)[:, None]
    return F.interpolate(gray, scale_factor=2) * torch.tensor([1, 0.8, 0.6]).view(1, 3, 1, 1)


def both(forward: Forward, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    logits = forward(leaf)
    (gradient,) = torch.autograd.grad((logits * torch.arange(1, logits.shape[1] + 1)).sum(), leaf)
    return logits.detach(), gradient


def error(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def variant(case: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return trained(case())


class Case(nn.Module):
    """Two convolutions, each with normalisation, and a linear layer; the variants below differ in one respect."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.linear = nn.Linear(64, 5)

    def first(self, x: Tensor) -> Tensor:
        return F.relu(self.norm1(self.conv1(x)))

    def second(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(x)))

    def forward(self, x: Tensor) -> Tensor:
        features = F.adaptive_avg_pool2d(self.second(self.first(x)), 4)
        logits: Tensor = self.linear(features.flatten(1))
        return logits


class SharedLayers(Case):
    def second(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm2(self.conv2(x))))))


class SharedConvolution(Case):
    """One convolution, normalised by one of two layers."""

    def second(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(x)) + self.conv2(x))


class SharedNorm(Case):
    def second(self, x: Tensor) -> Tensor:
        return F.relu(self.norm1(self.conv2(x)))


class TwoUsers(Case):
    def second(self, x: Tensor) -> Tensor:
        out = self.conv2(x)
        return F.relu(self.norm2(out) + out)


class WeightRead(Case):
    def second(self, x: Tensor) -> Tensor:
        out: Tensor = super().second(x) * self.conv2.weight.norm()
        return out


class TiedWeights(Case):
    def __init__(self) -> None:
        super().__init__()
        self.conv3 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.conv3.weight = self.conv2.weight

    def second(self, x: Tensor) -> Tensor:
        return F.relu(self.conv3(super().second(x)))


class ControlFlow(Case):
    """Control flow that depends on the input around a block that can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def second(self, x: Tensor) -> Tensor:
        if x.shape[-1] < 4 or len(x) < 1:
            raise ValueError(x.shape)
        return F.relu(self.block(super().second(x)))


class DefaultArguments(Case):
    def forward(self, x: Tensor, features: bool = False) -> Tensor:
        return self.first(x) if features else super().forward(x)


class Functional(Case):
    def second(self, x: Tensor) -> Tensor:
        norm = self.norm2
        x = F.conv2d(x, self.conv2.weight, padding=1)
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


class NoStatistics(Case):
    def __init__(self) -> None:
        super().__init__()
        self.norm2 = nn.BatchNorm2d(4, track_running_stats=False)


class NotAffine(Case):
    def __init__(self) -> None:
        super().__init__()
        self.norm2 = nn.BatchNorm2d(4, affine=False)


class OwnNorm(Case):
    def __init__(self) -> None:
        class Doubled(nn.BatchNorm2d):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        super().__init__()
        self.norm2 = Doubled(4)


class OtherDimensions(Case):
    """Normalisation of vectors, sequences and volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2, self.norm2 = nn.Conv3d(2, 6, 1), nn.BatchNorm3d(6)  # type: ignore[assignment]
        self.conv3, self.norm3 = nn.Conv1d(6, 4, 1), nn.BatchNorm1d(4)
        self.positions, self.norm4 = nn.Linear(256, 8), nn.BatchNorm1d(4)
        self.hidden, self.norm5 = nn.Linear(32, 4), nn.BatchNorm1d(4)

    def second(self, x: Tensor) -> Tensor:
        x = torch.unflatten(x, 1, (2, 2))
        x = self.norm2(self.conv2(x)).mean(2)
        x = self.norm4(self.positions(self.norm3(self.conv3(x.flatten(2)))))
        return self.norm5(self.hidden(x.flatten(1)))[:, :, None, None]  # type: ignore[no-any-return]


class Parametrized(Case):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.conv2)
        nn.utils.parametrizations.spectral_norm(self.linear)


class Rounded(torch.autograd.Function):
    """Rounding whose gradient is that of the identity (straight-through estimator)."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return (10 * x).round() / 10

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class StraightThrough(Case):
    def first(self, x: Tensor) -> Tensor:
        return super().first(Rounded.apply(x))  # type: ignore[no-untyped-call]


class WithoutGradient(Case):
    def second(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            side = super().second(x)
        return side + x


class Random(Case):
    """Fresh noise in every pass, also in evaluation mode."""

    def second(self, x: Tensor) -> Tensor:
        return F.dropout(super().second(x + 0.1 * torch.randn(x.shape)), 0.5)


class Recomputes(Case):
    """Assigns the same number to an attribute in every pass."""

    scale: float

    def second(self, x: Tensor) -> Tensor:
        self.scale = 0.1 * self.norm2.num_features
        return super().second(x) * self.scale


class Stores(Case):
    """Stores what it computes once."""

    grid: Tensor | None = None

    def second(self, x: Tensor) -> Tensor:
        if self.grid is None:
            self.grid = torch.linspace(0, 1, 16).expand(16, 16).clone()
        return super().second(x * self.grid)


class Counting(Case):
    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def first(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().first(x)


class Statistics(Case):
    """Updates a buffer in evaluation mode, as test-time adaptation does."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def first(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().first(x)


class CopiesOtherwise(Case):
    """A copy computes other logits."""

    factor = 1.0

    def __deepcopy__(self, memo: object) -> CopiesOtherwise:
        made = CopiesOtherwise()
        made.factor = 1.0001
        return made.eval()

    def second(self, x: Tensor) -> Tensor:
        return self.factor * super().second(x)


class CopiesDetached(Case):
    """A copy has other gradients, of the same logits."""

    detached = False

    def __deepcopy__(self, memo: object) -> CopiesDetached:
        made = CopiesDetached()
        made.detached = True
        return made.eval()

    def second(self, x: Tensor) -> Tensor:
        out = super().second(x)
        return out.detach() + x - x.detach() if self.detached else out


class NoCopies(Case):
    def __deepcopy__(self, memo: object) -> NoCopies:
        raise TypeError("not to be copied")


class Infinite(Case):
    def second(self, x: Tensor) -> Tensor:
        return super().second(x) / 0


class RequiresFloat32(Case):
    def second(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.relu(self.norm2(self.conv2(x.float())))
