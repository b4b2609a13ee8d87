"""Images for the networks of `tests.models.networks`, and the settings of their audits."""

from __future__ import annotations

from typing import Any

import torch

from classwise.data.images import Images
from tests.models.networks import PUBLIC

SETTINGS: dict[str, Any] = {
    "threat": "Linf:0.004",
    "attacks": ["pgd:steps=2", "square:steps=4"],
    "batch_size": 32,
    "progress": False,
}


def images(name: str) -> Images:
    """Random images of a network; four of five labels are its predictions."""
    public = PUBLIC[name]
    x = torch.rand(40, *public.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = public.network()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 3
    return Images(x, y, ["a", "b", "c"], name="random")
