"""How far classwise is from loops that do nothing but the attack or the training, on this processor.

Whole calls, in turn in one process. Of PGD-20 the others are torchattacks, the same loop in bfloat16 (``plain``), and
``early``: images leave the batch once their success is confirmed in float32. Of AutoAttack's APGD it is pyautoattack,
of training a loop without schedules, files and measurements. bfloat16 is used only where it is fast (`fastest`). A last
table has gradient passes in both precisions, compiled by Inductor or not.

Environment variable ``ONLY``: parts of names of rows, separated by "; "; others are not measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tests.models.networks import NETWORKS
from torch import Tensor, nn

from benchmarks.evaluation import BATCH, CHECKPOINTS, torchattacks_pgd
from benchmarks.pairing import Timing, paired
from benchmarks.tables import table
from classwise.attacks.engine import Engine, value_and_gradient
from classwise.auditing.run.audit import audit
from classwise.core.compute.precision import FAST, FLOAT32, Precision, fastest
from classwise.core.errors import ClasswiseError
from classwise.data import Images, load_data
from classwise.models import build_model, load_model
from classwise.threat.ball import Threat
from classwise.training.train import train

ONLY = os.environ.get("ONLY", "")
STEPS = 20
APGD = ("apgd-ce", "apgd-t")
"""The first two attacks of AutoAttack; the others, FAB-T and Square, compute in float32 in both libraries."""
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
            F.cross_entropy(model(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]  # as in torch
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
    found.append(Case(f"small ViT, {count} images", vit, random_images(vit, count, 32), 0.7 / 255, min(rounds, 3)))
    if not quick:
        resnet = build_model("resnet50", num_classes=10, in_channels=3, stem="7x7").eval()
        found.append(Case("ResNet-50, 32 images of 224 pixels", resnet, random_images(resnet, 32, 224), 0.5 / 255, 2))
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
        case.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch annotates one overload

    def ours() -> float:
        spec = {"name": "pgd", "steps": STEPS, "step_size": step}
        result = audit(case.model, case.data, Threat("Linf", case.epsilon), [spec])
        return float(result.by_attack["overall"].iloc[-1])

    def theirs() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attack = torchattacks_pgd(case.model, case.epsilon, step, case.data)
        parts = [
            attack(part, labels)
            for part, labels in zip(torch.split(batch.x, BATCH), torch.split(batch.y, BATCH), strict=True)
        ]
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
    """Times of the attacks of AutoAttack that may search in bfloat16, at Linf 8/255, and the robust accuracies."""
    from pyautoattack import AutoAttack

    batch, robust = data.batch(slice(0, len(data))), dict[str, float]()

    def ours() -> float:
        options: dict[str, Any] = {"precision": precision, "cascade": True}
        result = audit(model, data, "Linf:8/255", list(APGD), **options)
        return float(result.by_attack["overall"].iloc[-1])

    def theirs() -> float:
        suite = AutoAttack(model, norm="Linf", eps=8 / 255, version="standard", seed=0, device="cpu")
        suite.attacks_to_run = list(APGD)
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
    settings = {"dtype": precision.dtype, "channels_last": precision.channels_last}
    fields = {"model.width": 0.25, "precision": settings, "data.validation": 0.02}

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train("at", data=data, out=Path(folder) / "run", overrides=fields, epochs=1)

    def loop() -> None:
        torch.manual_seed(0)
        model = build_model("preactresnet18", num_classes=data.num_classes, in_channels=3, width=0.25)
        model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch annotates one overload
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
            F.cross_entropy(logits.float(), batch.y).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimizer.step()

    return paired({OURS: ours, "loop": loop}, rounds, warm_up=0)


def passes(model: nn.Module, x: Tensor, rounds: int) -> list[str]:
    """Milliseconds of a gradient pass in each precision, compiled or not, and the seconds until it is compiled."""
    cells = []
    model.requires_grad_(requires_grad=False)
    for precision in (FLOAT32, FAST):
        compiled = dataclasses.replace(precision, compile="on")
        with contextlib.ExitStack() as stack:
            functions, warm_up = dict[str, Callable[[], object]](), 0.0
            for name, settings in (("plain", precision), ("compiled", compiled)):
                engine = Engine(model, precision=settings, batch_size=len(x))
                compiling = settings.compiling(CPU, len(x), math.inf)
                forward = stack.enter_context(engine.passes.for_gradients(x, precise=False, compiling=compiling))
                stack.enter_context(forward.arithmetic())
                functions[name] = partial(value_and_gradient, forward, x, lambda logits: logits.logsumexp(1))
                begun = time.perf_counter()
                functions[name]()
                warm_up = time.perf_counter() - begun
            timing = paired(functions, rounds)
        cells += [f"{1000 * timing.median('plain'):.1f}", str(timing.ratio("plain", "compiled", precision.dtype))]
        cells.append(f"{warm_up:.0f}")
    return cells


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """Networks of several kinds, and images of which gradients are timed."""
    torch.manual_seed(0)
    mlp, _ = digits_mlp()
    small, large = torch.rand(64, 3, 32, 32), torch.rand(16, 3, 224, 224)
    options: dict[str, Any] = {"num_classes": 10, "in_channels": 3}
    return {
        "PreActResNet-18 at width 0.25": (build_model("preactresnet18", width=0.25, **options).eval(), small),
        "PreActResNet-18": (build_model("preactresnet18", **options).eval(), small),
        "ResNet-50, 224 pixels, 16 images": (build_model("resnet50", stem="7x7", **options).eval(), large),
        "small ViT": (SmallViT().eval(), small),
        "small MobileNet": (NETWORKS["mobilenet"](classes=10, width=32).eval(), small),
        "MLP": (mlp, torch.rand(64, 1, 8, 8)),
    }


def _fields(precision: Precision) -> dict[str, Any]:
    return {"dtype": precision.dtype, "channels_last": precision.channels_last}


def _rows(names: Iterable[str], measured: Callable[[str], list[str]]) -> list[list[str]]:
    """The rows of those that are wanted (``ONLY``), each printed at once."""
    rows = []
    for name in names:
        if not ONLY or any(part in name for part in ONLY.split("; ")):
            rows.append([name, *measured(name)])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def audit_table(*, quick: bool) -> str:
    by_name = {case.name: case for case in cases(quick=quick)}

    def measured(name: str) -> list[str]:
        timing, robust = audits(by_name[name])
        others = [str(timing.ratio(other, OURS, name)) for other in timing.seconds if other != OURS]
        accuracies = ", ".join(f"{robust[contender]:.1%}" for contender in timing.seconds)
        return [f"{timing.median(OURS):.2f}", *others, accuracies]

    header = ["PGD-20", f"{OURS}, s", "torchattacks", f"plain {fastest(CPU).dtype}", "early", "robust accuracies"]
    title = "Seconds of the other over those of classwise, whole audits with guards"
    return table(title, header, _rows(by_name, measured))


def autoattack_table(*, quick: bool) -> str:
    model, counts = load_model(CHECKPOINTS / "cifar10-at.safetensors").eval(), (32,) if quick else (64, 128, 512)
    data = load_data("cifar10", split="test", subset=max(counts), download=False)
    pairs = [(count, precision) for count in counts for precision in _precisions()[: 1 if count > 128 else 2]]
    of = {f"APGD-CE + APGD-T, {count} images, {precision.dtype}": (count, precision) for count, precision in pairs}

    def measured(name: str) -> list[str]:
        count, precision = of[name]
        timing, robust = autoattack(model, data.take(slice(0, count)), precision)
        seconds = [f"{timing.median(contender):.1f}" for contender in timing.seconds]
        ratio = str(timing.ratio("pyautoattack", OURS, name))
        return [*seconds, ratio, ", ".join(f"{value:.1%}" for value in robust.values())]

    header = ["suite", f"{OURS}, s", "pyautoattack, s", "ratio", "robust accuracies"]
    return table("APGD-CE + APGD-T of AutoAttack, whole audits with guards", header, _rows(of, measured))


def training_table(*, quick: bool) -> str:
    count = 256 if quick else 4_900
    data = load_data("cifar10", split="train", subset=math.ceil(count / 0.98), download=False)
    of = {f"AT, an epoch of {count:,} images, {precision.dtype}": precision for precision in _precisions()}

    def measured(name: str) -> list[str]:
        timing = epoch(data, of[name], 1 if quick else 2)
        return [*(f"{timing.median(each):.1f}" for each in timing.seconds), str(timing.ratio("loop", OURS, name))]

    header = ["training", f"{OURS}, s", "loop, s", "ratio"]
    return table("A training from the call to its end", header, _rows(of, measured))


def passes_table(*, quick: bool) -> str:
    of = networks()
    header = ["gradients of 64 images"]
    for dtype in ("float32", "bfloat16"):
        header += [f"{dtype}, ms", "plain / compiled", "until compiled, s"]
    names = list(of)[-1:] if quick else of
    return table(
        "Passes of fused copies, compiled by Inductor or not", header, _rows(names, lambda name: passes(*of[name], 5))
    )


def _precisions() -> list[Precision]:
    return [FLOAT32] if fastest(CPU) == FLOAT32 else [FAST, FLOAT32]


def run(*, quick: bool) -> str:
    """The tables of audits, AutoAttack, training and passes."""
    parts = []
    for measured in (audit_table, autoattack_table, training_table, passes_table):
        try:
            parts.append(measured(quick=quick))
        except (ClasswiseError, ImportError) as error:
            parts.append(f"{measured.__name__} was skipped: {error}\n")
    return "\n".join(parts)
