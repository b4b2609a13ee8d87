"""How far classwise is from loops that do nothing but the attack or the training, on this processor.

Whole calls, in turn in one process. Of PGD-20 the others are torchattacks, the same loop in bfloat16 (``plain``), and
``early``: images leave the batch once their success is confirmed in float32. Of AutoAttack it is pyautoattack, of
training a loop without schedules, files and measurements. bfloat16 is used only where it is fast (`fastest`).

Environment variable ``ONLY``: parts of names of rows, separated by commas; others are not measured.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.evaluation import BATCH, CHECKPOINTS, torchattacks_pgd
from benchmarks.pairing import Timing, paired
from benchmarks.tables import table
from classwise.auditing.run.audit import audit
from classwise.core.compute.precision import FAST, FLOAT32, Precision, fastest
from classwise.core.errors import ClasswiseError
from classwise.data import Images, load_data
from classwise.models import build_model, load_model
from classwise.threat.ball import Threat
from classwise.training.train import train

STEPS = 20
OURS = "classwise"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A model and images.

    Args:
        name: name of the row.
        model: the model, in evaluation mode.
        data: the images.
        epsilon: radius of the Linf ball.
        rounds: number of rounds.
    """

    name: str
    model: nn.Module
    data: Images
    epsilon: float
    rounds: int


class Block(nn.Module):
    """A block of a vision transformer, as in public code."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.proj(attended.transpose(1, 2).reshape(count, tokens, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class SmallViT(nn.Module):
    """A vision transformer for 32 x 32 pixels: patches of 4 x 4, six blocks of width 192."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, 3) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]


def digits_mlp() -> tuple[nn.Module, Images]:
    """A perceptron of two hidden layers that classifies scikit-learn's digits, and their test images."""
    torch.manual_seed(0)
    data, test = load_data("digits", split="train"), load_data("digits", split="test")
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, data.num_classes)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(10):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for rows in torch.split(order, 64):
            batch = data.batch(rows)
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x), batch.y).backward()
            optimizer.step()
    return model.eval(), test


def random_images(model: nn.Module, count: int, side: int) -> Images:
    """Random images, labelled by the model; its logits are scaled so that it predicts several classes."""
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()
    with torch.no_grad():
        logits = model(pixels / 255)
        head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        scale = 3 / logits.std(0)
        head.weight.mul_(scale[:, None])
        head.bias.sub_(logits.mean(0)).mul_(scale)
        labels = model(pixels / 255).argmax(1)
    names = tuple(f"class {number}" for number in range(logits.shape[1]))
    return Images(pixels, labels, names, "random", "test")


def cases(*, quick: bool) -> list[Case]:
    """The rows of the table; those of CIFAR-10 are omitted where it is missing."""
    found, rounds = list[Case](), 1 if quick else 5
    with contextlib.suppress(ClasswiseError):
        data = load_data("cifar10", split="test", subset=512, download=False)
        model = load_model(CHECKPOINTS / "cifar10-at.safetensors").eval()
        counts = (32,) if quick else (512, 128)
        name = "PreActResNet-18 at width 0.25, {} images of CIFAR-10"
        found += [
            Case(name.format(count), model, data.take(slice(0, count)), 8 / 255, rounds if count > 128 else 2 * rounds)
            for count in counts
        ]
    mlp, digits = digits_mlp()
    found.append(Case(f"MLP, {len(digits)} images of digits", mlp, digits, 0.1, 4 * rounds))
    torch.manual_seed(0)
    vit = SmallViT().eval()
    count = 32 if quick else 128
    found.append(Case(f"small ViT, {count} images", vit, random_images(vit, count, 32), 1 / 255, rounds))
    if not quick:
        resnet = build_model("resnet50", num_classes=10, in_channels=3, stem="7x7").eval()
        found.append(Case("ResNet-50, 32 images of 224 pixels", resnet, random_images(resnet, 32, 224), 0.5 / 255, 3))
    return found


def gradient(model: nn.Module, x: Tensor, y: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of the summed cross-entropy."""
    leaf = x.clone().requires_grad_()
    inputs = leaf.contiguous(memory_format=torch.channels_last) if precision.channels_last and x.ndim == 4 else leaf
    with torch.autocast("cpu", torch.bfloat16, enabled=precision.dtype == "bfloat16"):
        logits = model(inputs).float()
    (slope,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), leaf)
    return logits.detach(), slope


def wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images are misclassified in float32."""
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(x, BATCH)]).argmax(1) != y


def plain(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, step: float, precision: Precision) -> float:
    """Robust accuracy under PGD-20 of all images, each for all steps."""
    robust = 0
    for clean, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
        low, high = (clean - epsilon).clamp_min(0), (clean + epsilon).clamp_max(1)
        attacked = torch.empty_like(clean).uniform_(-epsilon, epsilon).add_(clean).clamp_(0, 1)
        for _ in range(STEPS):
            _, slope = gradient(model, attacked, labels, precision)
            attacked = torch.clamp(attacked + step * slope.sign(), low, high)
        robust += int((~wrong(model, attacked, labels)).sum())
    return robust / len(x)


def early(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, step: float, precision: Precision) -> float:
    """Robust accuracy under PGD-20, whose images leave as soon as their success is confirmed in float32."""
    rows = (~wrong(model, x, y)).nonzero().squeeze(1)
    low, high = (x - epsilon).clamp_min(0), (x + epsilon).clamp_max(1)
    attacked = torch.empty_like(x).uniform_(-epsilon, epsilon).add_(x).clamp_(0, 1)
    for _ in range(STEPS):
        left = []
        for part in torch.split(rows, BATCH):
            logits, slope = gradient(model, attacked[part], y[part], precision)
            hit = part[logits.argmax(1) != y[part]]
            broken = hit[wrong(model, attacked[hit], y[hit])] if len(hit) else hit
            attacked[part] = torch.clamp(attacked[part] + step * slope.sign(), low[part], high[part])
            left.append(part[~torch.isin(part, broken)])
        rows = torch.cat(left) if left else rows
    return float((~wrong(model, attacked[rows], y[rows])).sum()) / len(x) if len(rows) else 0.0


def audits(case: Case) -> tuple[Timing, Mapping[str, float]]:
    """Times of PGD-20 of each contender, and the robust accuracy that it measures."""
    robust: dict[str, float] = {}
    batch = case.data.batch(slice(0, len(case.data)))
    step, precision = case.epsilon / 4, fastest(CPU)
    case.model.requires_grad_(requires_grad=False)
    if precision.channels_last:
        case.model.to(memory_format=torch.channels_last)

    def ours() -> float:
        spec = {"name": "pgd", "steps": STEPS, "step_size": step}
        result = audit(case.model, case.data, Threat("Linf", case.epsilon), [spec])
        return float(result.by_attack["overall"].iloc[-1])

    def theirs() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attack = torchattacks_pgd(case.model, case.epsilon, step, case.data)
        parts = [attack(part, labels) for part, labels in zip(batch.x.split(BATCH), batch.y.split(BATCH), strict=True)]
        return 1 - float(wrong(case.model, torch.cat(parts), batch.y).float().mean())

    loop = (case.model, batch.x, batch.y, case.epsilon, step, precision)
    contenders: dict[str, Callable[[], float]] = {
        OURS: ours,
        "torchattacks": theirs,
        f"plain {precision.dtype}": partial(plain, *loop),
        "early": partial(early, *loop),
    }
    timing = paired(
        {name: partial(_kept, robust, name, contender) for name, contender in contenders.items()}, case.rounds
    )
    return timing, robust


def _kept(found: dict[str, float], name: str, contender: Callable[[], float]) -> None:
    found[name] = contender()


def autoattack(model: nn.Module, data: Images, precision: Precision) -> tuple[Timing, Mapping[str, float]]:
    """Times of AutoAttack at Linf 8/255, and the robust accuracies."""
    from pyautoattack import AutoAttack

    batch, robust = data.batch(slice(0, len(data))), dict[str, float]()

    def ours() -> float:
        options: dict[str, Any] = {"precision": precision, "cascade": True}
        return float(audit(model, data, "Linf:8/255", "autoattack", **options).by_class["robust"].mean())

    def theirs() -> float:
        suite = AutoAttack(model, norm="Linf", eps=8 / 255, version="standard", seed=0, device="cpu")
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            attacked, _ = suite.run_standard_evaluation(batch.x, batch.y, batch_size=BATCH)
        return 1 - float(wrong(model, attacked, batch.y).float().mean())

    contenders = {OURS: ours, "pyautoattack": theirs}
    timing = paired(
        {name: partial(_kept, robust, name, contender) for name, contender in contenders.items()}, 1, warm_up=0
    )
    return timing, robust


def epoch(data: Images, precision: Precision, rounds: int) -> Timing:
    """Times of one epoch of AT (PGD-10) at quarter width: `train`, and a loop over the same batches."""
    fields = {"model.width": 0.25, "epochs": 1, "precision": _fields(precision), "data.validation": 0.02}

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train({"base": "at", **fields}, data=data, out=Path(folder) / "run")

    def loop() -> None:
        torch.manual_seed(0)
        model = build_model("preactresnet18", num_classes=data.num_classes, in_channels=3, width=0.25)
        model.train().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        for rows in torch.split(torch.randperm(len(data)), BATCH):
            batch = data.batch(rows)
            padded, size = F.pad(batch.x, (4, 4, 4, 4)), batch.x.shape[-1]
            top, left = torch.randint(0, 9, (2,)).tolist()
            x = padded[..., top : top + size, left : left + size]
            low, high = (x - 8 / 255).clamp_min(0), (x + 8 / 255).clamp_max(1)
            attacked = torch.empty_like(x).uniform_(-8 / 255, 8 / 255).add_(x).clamp_(0, 1)
            model.eval().requires_grad_(requires_grad=False)
            for _ in range(10):
                _, slope = gradient(model, attacked, batch.y, precision)
                attacked = torch.clamp(attacked + 2 / 255 * slope.sign(), low, high)
            model.train().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision.dtype == "bfloat16"):
                logits = model(attacked.contiguous(memory_format=torch.channels_last))
            optimizer.zero_grad()
            F.cross_entropy(logits.float(), batch.y).backward()
            optimizer.step()

    return paired({OURS: ours, "loop": loop}, rounds, warm_up=0)


def _fields(precision: Precision) -> dict[str, Any]:
    return {"dtype": precision.dtype, "channels_last": precision.channels_last}


def _wanted(name: str) -> bool:
    only = os.environ.get("ONLY", "")
    return not only or any(part.strip() in name for part in only.split(","))


def run(*, quick: bool) -> str:
    """The tables of audits, AutoAttack and training."""
    precisions = [FLOAT32] if fastest(CPU) == FLOAT32 else [FAST, FLOAT32]
    rows = []
    for case in cases(quick=quick):
        if _wanted(case.name):
            timing, robust = audits(case)
            others = [name for name in timing.seconds if name != OURS]
            rows.append([case.name, f"{timing.median(OURS):.2f}"])
            rows[-1] += [str(timing.ratio(name, OURS, case.name)) for name in others]
            rows[-1].append(", ".join(f"{robust[name]:.1%}" for name in timing.seconds))
            print(" | ".join(rows[-1]), flush=True)
    fast = f"plain {precisions[0].dtype}"
    header = ["PGD-20", f"{OURS}, s", "torchattacks", fast, "early", "robust accuracy of each"]
    title = "Seconds of the other over those of classwise, whole audits with guards"
    parts = [table(title, header, rows)] if rows else []
    try:
        data = load_data("cifar10", split="test", subset=512, download=False)
    except ClasswiseError as error:
        return "\n".join([*parts, f"AutoAttack and training were not timed: {error}\n"])
    rows, model = [], load_model(CHECKPOINTS / "cifar10-at.safetensors").eval()
    for count in (32,) if quick else (64, 128, 512):
        for precision in precisions:
            name = f"AutoAttack, {count} images, {precision.dtype}"
            if _wanted(name):
                timing, robust = autoattack(model, data.take(slice(0, count)), precision)
                seconds = [f"{timing.median(each):.1f}" for each in timing.seconds]
                rows.append([name, *seconds, str(timing.ratio("pyautoattack", OURS, name))])
                rows[-1].append(", ".join(f"{value:.1%}" for value in robust.values()))
                print(" | ".join(rows[-1]), flush=True)
    header = ["suite", f"{OURS}, s", "pyautoattack, s", "ratio", "robust accuracy of each"]
    parts += [table("AutoAttack, whole audits with guards", header, rows)] if rows else []
    rows, count = [], 256 if quick else 4_900
    for precision in precisions:
        name = f"AT, an epoch of {count:,} images, {precision.dtype}"
        if _wanted(name):
            images = load_data("cifar10", split="train", subset=math.ceil(count / 0.98), download=False)
            timing = epoch(images, precision, 1 if quick else 3)
            seconds = [f"{timing.median(each):.1f}" for each in timing.seconds]
            rows.append([name, *seconds, str(timing.ratio("loop", OURS, name))])
            print(" | ".join(rows[-1]), flush=True)
    header = ["training", f"{OURS}, s", "loop, s", "ratio"]
    return "\n".join(parts + ([table("A training from the call to its end", header, rows)] if rows else []))
