"""Attacks on few images: with and without smaller batches, and with later starts of an image beside earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from benchmarks.evaluation import CHECKPOINTS
from benchmarks.pairing import paired
from benchmarks.tables import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job, queue
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

ATTACKED = ("pgd:steps=20", "apgd-ce:steps=100", "fab-t:steps=10,targets=2", "square:steps=300")
"""Specs; FAB and Square run in float32."""
COUNTS = (64, 182)
ROUNDS = 3


STARTS = ("apgd-t:steps=50", "fab-t:steps=20")
"""Specs of nine starts for each image."""
FEW = (16, 64)
"""Numbers of images: in slots that other starts fill, and more than those."""

WITHOUT = {
    "smaller batches": (queue, "_LONG", 1 << 30),  # no attack is long enough for a trial
    "starts side by side": (queue.Queue, "_early", lambda *_: None),  # no start enters before its turn
}
"""Replacements in the queue that turn something off."""


def attack(spec: str, data: Images) -> int:
    """Number of images misclassified under an attack of a new engine; it begins with full batches of 128."""
    model = load_model(CHECKPOINTS / "cifar10-at.safetensors")
    engine = Engine(model, precision=fastest(device_of(model)))
    jobs = (Job(batch.index, batch.x, batch.y) for batch in data.batches(128))
    blocks = engine.attack(make(ATTACKS, spec), Threat("Linf", 8 / 255), jobs, images=len(data))
    return sum(int(done.success.sum()) for done in blocks)


def _variants(spec: str, data: Images, subject: str) -> dict[str, Callable[[], int]]:
    def without() -> int:
        with mock.patch.object(*WITHOUT[subject]):
            return attack(spec, data)

    return {"with": lambda: attack(spec, data), "without": without}


def run(*, quick: bool) -> str:
    """Seconds of each attack, and the ratios with their spread over the rounds."""
    try:
        data = load_data("cifar10", split="test", subset=2 * max(COUNTS), download=False)
    except ClasswiseError as error:
        return f"smaller batches were not timed: {error}\n"
    model = load_model(CHECKPOINTS / "cifar10-at.safetensors")
    correct = torch.cat(list(Engine(model).predict(batch.x for batch in data.batches(128)))).argmax(1) == data.y
    images = data.take(correct.nonzero().squeeze(1))

    def timed(subject: str, specs: tuple[str, ...], counts: tuple[int, ...]) -> list[list[str]]:
        rows = []
        for spec in specs[:1] if quick else specs:
            for count in counts:
                chosen = images.take(range(min(count, len(images))))
                timing = paired(_variants(spec, chosen, subject), 1 if quick else ROUNDS)
                seconds = [f"{timing.median(name):.2f} s" for name in ("with", "without")]
                rows.append(
                    [
                        spec,
                        f"{len(chosen)}",
                        *seconds,
                        str(timing.ratio("without", "with", f"{spec}, {len(chosen)} images")),
                    ]
                )
        return rows

    ratio = "ratio (lowest to highest)"
    smaller = table(
        "Attacks whose last images need no full batch, cifar10-at.safetensors",
        ["attack", "images", "smaller batches", "always 128", ratio],
        timed("smaller batches", ATTACKED, COUNTS),
    )
    starts = table(
        "Starts of an image side by side in unused slots, cifar10-at.safetensors",
        ["attack", "images", "side by side", "in sequence", ratio],
        timed("starts side by side", STARTS, FEW),
    )
    return smaller + starts
