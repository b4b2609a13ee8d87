"""Overrides that make each recipe a run of about a second on digits."""

from __future__ import annotations

from typing import Any

from torch import nn


def normalised(num_classes: int, in_channels: int, **_: Any) -> nn.Module:
    """A convolution with batch normalisation and a linear layer, which learn digits within a few epochs."""
    convolution = nn.Conv2d(in_channels, 8, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, num_classes))


NORMALISED: dict[str, object] = {"name": f"{__name__}:normalised"}
NETWORK: dict[str, object] = {"name": "small-cnn", "width": 0.125}
COSINE: dict[str, object] = {"model": NETWORK | {"options": {"head": "cosine"}}}
TINY: dict[str, object] = {
    "model": NETWORK,
    "data.subset": 160,
    "data.validation": 0.2,
    "data.augment": "none",
    "attack.steps": 2,
    "validation_attack": "pgd:steps=2,step_size=0.5eps",
    "threat": "Linf:0.1",
    "batch_size": 48,
    "epochs": 2,
}
METHODS: dict[str, dict[str, object]] = {
    "frl": {},
    "dafa": {"schedules.0.start_epoch": 1},
    "frontier": {},
    "frontier-finetune": {},
    "margins-smaller": {},
    "margins-larger": {},
    "faal": {},
    "cfol": {"schedules.0.rate": 0.01},
    "cfol-weights": {"schedules.0.rate": 0.01},
    "wat": {},
    "trix": {"schedules.0.start_epoch": 1},
    "wat-code": {},
    "fair-tat": {},
    "fair-tat-code": {"model": {"name": "preactresnet18", "width": 0.0625}},
    "effective-number": {},
    "ldam": {"schedules.0.start_epoch": 1},
    "robust-lt": {"schedules.0.epochs": 1},
    "at-bsl": {},
    "auto-beta": {"schedules.0.start_epoch": 1},
    "robust-error-sampling": {  # and the rest of the long tail
        "objective": {"name": "at", "criterion": {"name": "focal"}},
        "reduction": "logit-similarity",
        "schedules": [
            {"name": "class-weights", "kind": "robust-error", "mode": "sampling"},
            {"name": "critical-class", "critical": "1"},
            {"name": "towards-class", "target": "0"},
        ],
    },
    "he-lis": COSINE,
    "he-cmp": COSINE,
    "fast-at": {},
    "n-fgsm": {},
    "mart": {"model": NETWORK},
    "fat": {},
    "fat-trades": {},
    "cfa-fat": {},
    "he": COSINE,
    "he-trades": COSINE,
    "he-mart": COSINE,
    "codat": {},
    "csr": {},
    "bat": {},
    "sy-far": {},
    "nuat": {},
    "fgsm-pgi": {"data.augment": "crop"},
    "liet": {"objective.every": 2},
}
ELSEWHERE: dict[str, dict[str, object]] = {
    "bat-code": {},
    "he-wrn": COSINE,
    "madry-wrn": {},
    "mart-wrn": {"model": NETWORK},
    "trades-wrn": {},
    "cfa-trades": {},
    "trades-scaled": {},
    "cfa-code": {"model": {"name": "preactresnet18", "width": 0.0625}},
}
"""Methods whose resumption is tested elsewhere."""
