"""Attacks on few images, whose last survivors leave most of a batch unused: with and without smaller batches."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from benchmarks.evaluation import CHECKPOINTS
from benchmarks.pairing import paired
from benchmarks.tables import table
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job, queue
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.precision import fastest
from classwise.core.threat import Threat
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.base import device_of

ATTACKED = ("pgd:steps=20", "apgd-ce:steps=100", "fab-t:steps=10,targets=2", "square:steps=300")
"""Specs; FAB and Square run in float32."""
COUNTS = (64, 182)
ROUNDS = 3


def attack(spec: str, data: Images, *, smaller: bool) -> int:
    """Number of images misclassified under an attack of a new engine; it begins with full batches of 128."""
    model = load_model(CHECKPOINTS / "cifar10-at.safetensors")
    engine = Engine(model, precision=fastest(device_of(model)))
    jobs = (Job(batch.index, batch.x, batch.y) for batch in data.batches(128))
    least = queue._LONG if smaller else 1 << 30  # no attack is long enough for a trial
    with mock.patch.object(queue, "_LONG", least):
        return sum(
            int(done.success.sum()) for done in engine.attack(make(ATTACKS, spec), Threat("Linf", 8 / 255), jobs)
        )


def _variants(spec: str, data: Images) -> dict[str, Callable[[], int]]:
    return {
        "with": lambda: attack(spec, data, smaller=True),
        "without": lambda: attack(spec, data, smaller=False),
    }


def run(*, quick: bool) -> str:
    """Seconds of each attack, and the ratio with its spread over the rounds."""
    try:
        data = load_data("cifar10", split="test", subset=2 * max(COUNTS), download=False)
    except ClasswiseError as error:
        return f"smaller batches were not timed: {error}\n"
    model = load_model(CHECKPOINTS / "cifar10-at.safetensors")
    correct = torch.cat(list(Engine(model).predict(batch.x for batch in data.batches(128)))).argmax(1) == data.y
    rows = []
    for spec in ATTACKED[:1] if quick else ATTACKED:
        for count in COUNTS:
            chosen = data.take(correct.nonzero().squeeze(1)[:count])
            timing = paired(_variants(spec, chosen), 1 if quick else ROUNDS)
            seconds = [f"{timing.median(name):.2f} s" for name in ("with", "without")]
            ratio = timing.ratio("without", "with", f"{spec}, {len(chosen)} images")
            rows.append([spec, f"{len(chosen)}", *seconds, str(ratio)])
    header = ["attack", "images", "smaller batches", "always 128", "ratio (lowest to highest)"]
    return table("Attacks whose last images need no full batch, cifar10-at.safetensors", header, rows)
