"""Passes of networks as users write them: by themselves and fused, and a PreActResNet-18 beside that of the zoo."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from tests.models.networks import NETWORKS
from torch import Tensor, nn

from benchmarks.pairing import paired
from benchmarks.tables import table
from classwise.attacks.engine.passes import value_and_gradient
from classwise.core.compute.precision import FAST, Forward, Precision, fastest
from classwise.models import build_model
from classwise.models.affine import AffineNorms
from classwise.models.fused_copy import fine_logits
from classwise.models.fusion import Fusion
from classwise.models.modes import evaluating, frozen

BATCH = 128
WIDTH = 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


class UsersBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(F.relu(self.bn2(self.conv1(out))))
        out += shortcut
        return out  # type: ignore[no-any-return]


class UsersNetwork(nn.Module):
    """PreActResNet-18 that normalises its input, as in public code; nothing of classwise in it."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: float) -> None:
        super().__init__()
        planes = [round(64 * width * 2**stage) for stage in range(4)]
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, planes[0], kernel_size=3, stride=1, padding=1, bias=False)
        self.layer1 = nn.Sequential(UsersBlock(planes[0], planes[0], 1), UsersBlock(planes[0], planes[0], 1))
        self.layer2 = nn.Sequential(UsersBlock(planes[0], planes[1], 2), UsersBlock(planes[1], planes[1], 1))
        self.layer3 = nn.Sequential(UsersBlock(planes[1], planes[2], 2), UsersBlock(planes[2], planes[2], 1))
        self.layer4 = nn.Sequential(UsersBlock(planes[2], planes[3], 2), UsersBlock(planes[3], planes[3], 1))
        self.bn = nn.BatchNorm2d(planes[-1])
        self.linear = nn.Linear(planes[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1((x - self.mean) / self.std)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        out = F.avg_pool2d(F.relu(self.bn(out)), 4)
        logits: Tensor = self.linear(out.view(out.size(0), -1))
        return logits


def own_network(zoo: nn.Module) -> UsersNetwork:
    """The network of a user in evaluation mode, with weights and normalisation of a PreActResNet-18 of the zoo."""
    weights = {name.removeprefix("model."): value for name, value in zoo.state_dict().items()}
    mean, std = weights.pop("mean"), weights.pop("std")
    users = UsersNetwork(len(weights["conv1.weight"]) / 64)
    users.load_state_dict(weights)
    users.mean, users.std = mean, std
    return users.eval()


def networks(width: float, device: str) -> tuple[nn.Module, nn.Module]:
    """The network of a user and that of the zoo, with the same weights."""
    torch.manual_seed(0)
    zoo = build_model("preactresnet18", num_classes=10, in_channels=3, width=width, mean=MEAN, std=STD)
    return own_network(zoo).to(device), zoo.to(device)


def forward_pass(forward: Forward, x: Tensor) -> None:
    with torch.no_grad():
        forward(x)


def gradient_pass(forward: Forward, x: Tensor) -> None:
    value_and_gradient(forward, x, lambda logits: logits.logsumexp(1))


def run(*, quick: bool, device: str = "cpu") -> str:
    """Both tables."""
    return _beside_the_zoo(quick=quick, device=device) + "\n" + _other_networks(quick=quick, device=device)


def _other_networks(*, quick: bool, device: str) -> str:
    """Gradients of small networks of other architectures, in the precision that is fastest for the device."""
    x = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    precision, rows = fastest(torch.device(device)), []
    for name, network in NETWORKS.items():
        torch.manual_seed(0)
        users = network(classes=10, width=WIDTH).to(device).eval()
        fusion = Fusion(users)
        with frozen(users), fusion.forward(precision, x) as fused:
            assert not fusion.unfused, fusion.unfused
            timing = paired(
                {
                    "plain float32": functools.partial(gradient_pass, users, x),
                    "fused": functools.partial(gradient_pass, fused, x),
                },
                rounds=5 if quick else 30,
                warm_up=2,
                device=device,
            )
        speeds = [f"{BATCH / timing.median(variant):.0f}" for variant in ("plain float32", "fused")]
        rows.append([name, *speeds, str(timing.ratio("plain float32", "fused", name))])
    heads = ["network", "plain float32", "fused", "fused / plain float32"]
    title = (
        f"Images per second, forward and backward, {precision.dtype}, first layer of {WIDTH} channels, batch {BATCH}"
    )
    return table(f"{title}, {device}", heads, rows)


def _beside_the_zoo(*, quick: bool, device: str) -> str:
    users, zoo = networks(0.25, device)
    x = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    kinds: dict[str, Callable[[Forward, Tensor], None]] = {"forward": forward_pass, "forward and back": gradient_pass}
    rows = []
    for precision in (FAST, Precision(channels_last=True)):
        with contextlib.ExitStack() as stack:
            for model in (users, zoo):
                stack.enter_context(evaluating(model))
                stack.enter_context(frozen(model))
            forwards: dict[str, Forward] = {"plain float32": users}
            for name, model in (("fused", users), ("zoo", zoo)):
                fusion = Fusion(model)
                forwards[name] = stack.enter_context(fusion.forward(precision, x))
                assert not fusion.unfused, fusion.unfused
            unfused = precision.forward(users)
            for kind, a_pass in kinds.items():

                def not_fused(a_pass: Callable[[Forward, Tensor], None] = a_pass, unfused: Forward = unfused) -> None:
                    with AffineNorms(users).replaced(), fine_logits(users):
                        a_pass(unfused, x)

                timing = paired(
                    {
                        "not fused": not_fused,
                        **{name: functools.partial(a_pass, forward, x) for name, forward in forwards.items()},
                    },
                    rounds=5 if quick else 30,
                    warm_up=2,
                    device=device,
                )
                rows.append(
                    [f"{kind}, {precision.dtype}", *(f"{BATCH / timing.median(name):.0f}" for name in VARIANTS)]
                )
                for slow, fast in RATIOS:
                    rows[-1].append(str(timing.ratio(slow, fast, rows[-1][0])))
    heads = ["pass", *VARIANTS, *(f"{fast} / {slow}" for slow, fast in RATIOS)]
    return table(f"Images per second, PreActResNet-18 at width 0.25, batch {BATCH}, {device}", heads, rows)


VARIANTS = ("plain float32", "not fused", "fused", "zoo")
"""The user's network by itself, in the engine's precision, and fused; the zoo's, fused."""
RATIOS = (("plain float32", "fused"), ("not fused", "fused"), ("fused", "zoo"))
