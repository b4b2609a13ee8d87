"""One training step of AT + CFA: classwise against a common implementation; and the cost of class-wise settings."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.pairing import paired
from benchmarks.tables import table
from classwise.core.progress.listener import NullProgress
from classwise.data import Images
from classwise.models import build_model
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.trainer import Trainer

BATCH = 128
FAST: dict[str, Any] = {"dtype": "bfloat16", "channels_last": True}


def images(count: int) -> Images:
    """Random images of CIFAR's shape; the speed does not depend on the contents."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    return Images(x, torch.arange(count) % len(names), names, "random", "train")


def prepared_trainer(recipe: str, width: float, data: Images, device: str = "cpu", **overrides: Any) -> Trainer:
    """A trainer after one epoch of simulated accuracies, so that the radii of the classes differ."""
    fields = {"model.width": width, "precision": FAST, "data.validation": 0.1, **overrides}
    plan = Recipe.read(recipe, fields)
    trainer = Trainer(plan, data, Run(Path(tempfile.mkdtemp())), device, NullProgress())
    signals = {"train.robust": torch.linspace(0.1, 0.9, data.num_classes, device=device)}
    trainer.state.schedules = [
        schedule.after_epoch(state, signals, 0)
        for schedule, state in zip(trainer.parts.schedules, trainer.state.schedules, strict=True)
    ]
    return trainer


def network(width: float, classes: int = 10) -> nn.Module:
    """A PreActResNet-18 with random weights."""
    torch.manual_seed(0)
    return build_model(
        "preactresnet18",
        num_classes=classes,
        in_channels=3,
        width=width,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2471, 0.2435, 0.2616),
    )


class PlainStep:
    """AT as commonly implemented: float32, NCHW, ``loss.backward()`` in the attack; without augmentation."""

    def __init__(self, width: float, data: Images, device: str = "cpu", steps: int = 10) -> None:
        self.steps = steps
        self.model = network(width, data.num_classes).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.criterion = nn.CrossEntropyLoss()

    def __call__(self, pixels: Tensor, y: Tensor) -> None:
        self.update(pixels.float() / 255, y, 8 / 255)

    def update(self, x: Tensor, y: Tensor, epsilon: Tensor | float) -> Tensor:
        """Attack the images and update the weights; return the logits of the attacked images."""
        self.model.eval()
        attacked = (x + (2 * torch.rand_like(x) - 1) * epsilon).clamp(0, 1)
        for _ in range(self.steps):
            attacked.requires_grad_(True)
            self.model.zero_grad()
            self.criterion(self.model(attacked), y).backward()
            assert attacked.grad is not None
            moved = attacked.detach() + 2 / 255 * attacked.grad.sign()
            attacked = torch.min(torch.max(moved, x - epsilon), x + epsilon).clamp(0, 1)
        self.model.train()
        self.optimizer.zero_grad()
        logits: Tensor = self.model(attacked)
        self.criterion(logits, y).backward()
        self.optimizer.step()
        return logits


class BaselineStep(PlainStep):
    """The same with CCM, augmentation and sums over classes, in loops over images."""

    def __init__(self, width: float, data: Images, device: str = "cpu") -> None:
        super().__init__(width, data, device)
        self.radius = (0.5 + torch.linspace(0.1, 0.9, data.num_classes, device=device)) * 8 / 255
        self.correct = torch.zeros(data.num_classes, device=device)
        self.count = torch.zeros(data.num_classes, device=device)

    def crop_and_flip(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (4, 4, 4, 4), mode="reflect")
        result = torch.empty_like(x)
        for i in range(len(x)):
            top, left = (int(value) for value in torch.randint(0, 9, (2,)))
            window = padded[i, :, top : top + 32, left : left + 32]
            result[i] = window.flip(2) if torch.rand(()) < 0.5 else window
        return result

    def __call__(self, pixels: Tensor, y: Tensor) -> None:
        x = self.crop_and_flip(pixels.float() / 255)
        epsilon = torch.zeros(len(x), 1, 1, 1, device=x.device)
        for i in range(len(x)):
            epsilon[i] = self.radius[y[i]]
        prediction = self.update(x, y, epsilon).argmax(1)
        for i, label in enumerate(y):
            self.count[label] += 1
            self.correct[label] += float(prediction[i] == label)


def step_against_baseline(width: float, rounds: int, device: str) -> str:
    data = images(2 * BATCH)
    ours = prepared_trainer("cfa-at", width, data, device)
    baseline = BaselineStep(width, data, device)
    rows, settings = torch.arange(BATCH, device=device), ours.class_settings()
    x, y = ours.train.x[rows], ours.train.y[rows]
    steps = {"baseline": lambda: baseline(x, y), "ours": lambda: ours.train_step(rows, settings)}
    timing = paired(steps, rounds, device=device)
    return table(
        f"One step of AT + CFA, PreActResNet-18 at width {width:g}, batch {BATCH}",
        ["step", "seconds (median)", "ratio (lowest to highest)"],
        [
            ["common implementation", f"{timing.median('baseline'):.3f}", "1"],
            [
                "classwise",
                f"{timing.median('ours'):.3f}",
                str(timing.ratio("baseline", "ours", f"AT + CFA, width {width:g}")),
            ],
        ],
    )


def class_wise_overhead(width: float, rounds: int, device: str) -> str:
    """Plain AT and TRADES against CFA, the same with per-class radii and weights."""
    data = images(2 * BATCH)
    rows = torch.arange(BATCH, device=device)
    lines = []
    for plain, fair in (("at", "cfa-at"), ("trades", "cfa-trades")):
        first, second = prepared_trainer(plain, width, data, device), prepared_trainer(fair, width, data, device)
        before, after = first.class_settings(), second.class_settings()
        timing = paired(
            {
                plain: functools.partial(first.train_step, rows, before),
                fair: functools.partial(second.train_step, rows, after),
            },
            rounds,
            device=device,
        )
        ratio = timing.ratio(fair, plain)
        lines.append(
            [
                f"{fair} over {plain}",
                f"{timing.median(plain):.3f}",
                f"{timing.median(fair):.3f}",
                f"{ratio.median - 1:+.2%} ({min(ratio.values) - 1:+.1%} to {max(ratio.values) - 1:+.1%})",
            ]
        )
    return table(
        f"Overhead of class-wise settings, one step, width {width:g}, batch {BATCH}",
        ["pair", "plain (s)", "class-wise (s)", "extra (lowest to highest)"],
        lines,
    )


def run(*, quick: bool, device: str = "cpu") -> str:
    width = 0.25 if quick else 1.0
    parts = [
        step_against_baseline(width, 3 if quick else 5, device),
        class_wise_overhead(0.25, 5 if quick else 15, device),
    ]
    return "\n".join(parts)
