"""Networks, images and predictions of the recorded parts, and what they use beside the public names of the package."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tools.values.readings import NOT_RESULTS
from torch import Tensor, nn
from torch.nn import functional

import classwise as cw

Cases = Mapping[str, Callable[[], object]]
"""The cases of a part, in the order in which they run, in one folder."""

INTERNAL = {
    "main": "cli:main",
    "audit_corruptions": "auditing.run.corruptions:audit_corruptions",
    "audit_seeds": "auditing.run.seeds:audit_seeds",
    "adjust_logits": "posthoc.logit_adjustment:adjust_logits",
    "interpolate_weights": "posthoc.weight_interpolation:interpolate_weights",
}
"""Functions that are not public, and their places: edit those that move. A public name of `classwise` comes first."""


def function(name: str) -> Any:
    """A public function of the package, one of `INTERNAL`, or ``module:name`` below the package."""
    module, _, attribute = INTERNAL.get(name, name).rpartition(":")
    if name in cw.__all__ or module == "metrics":
        return getattr(cw.metrics if module == "metrics" else cw, attribute)
    return getattr(importlib.import_module(f"classwise.{module}"), attribute)


def command(*words: object, without: tuple[str, ...] = ()) -> dict[str, object]:
    """The exit status of a command, and its JSON output without `NOT_RESULTS` and further entries.

    Raises:
        RuntimeError: for a status other than 0, 1 (a condition is true) and 3 (incomplete).
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = function("main")([*map(str, words), "--json"])
    if status not in (0, 1, 3):
        raise RuntimeError(f"status {status}: {err.getvalue().strip()[-300:]}")
    return {"status": status, "output": _without(json.loads(out.getvalue()), NOT_RESULTS.union(without))}


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(part, names) for key, part in value.items() if key not in names}
    return [_without(part, names) for part in value] if isinstance(value, list) else value


@functools.cache
def images(count: int = 48) -> cw.Images:
    """The embedded digits."""
    return cw.load_data("digits", subset=count)


@functools.cache
def network(name: str = "preactresnet18", width: float = 0.0625) -> nn.Module:
    """A network that classifies most digits correctly, trained without the package's training."""
    torch.manual_seed(0)
    data = cw.load_data("digits", split="train", subset=400)
    model = cw.load_model(name, data=data, width=width).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        loss = functional.cross_entropy(model(data.pixels()), data.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


class Changed(nn.Module):
    """The network with changed images or logits."""

    def __init__(
        self, logits: Callable[..., Tensor] = torch.clone, pixels: Callable[..., Tensor] = torch.clone
    ) -> None:
        super().__init__()
        self.inner, self.logits, self.pixels = network(), logits, pixels
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        return self.logits(self.inner(self.pixels(x)))


def sign_step(x: Tensor, y: Tensor) -> Tensor:
    """A step of an attack of another library."""
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(functional.cross_entropy(network()(x), y, reduction="sum"), x)
    return (x + 0.04 * gradient.sign()).clamp(0, 1).detach()


def predictions(seed: int, accuracy: float = 0.6, sizes: tuple[int, ...] = (40, 30, 50, 20, 60)) -> cw.Outcomes:
    """Outcomes with random predictions, in which every class is less accurate than the one before it."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    right = rng.random((3, len(labels))) < np.linspace(accuracy + 0.2, accuracy - 0.2, len(sizes))[labels]
    wrong = (labels + rng.integers(1, len(sizes), (3, len(labels)))) % len(sizes)
    clean, first, second = np.where(right, labels, wrong)
    attacks = {"first": np.where(clean == labels, first, clean), "second": np.where(clean == labels, second, clean)}
    return cw.Outcomes.from_predictions(labels, clean=clean, attacks=attacks, threat="Linf:8/255")
