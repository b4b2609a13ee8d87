"""A cache of audits: the folder of an audit is named by a hash of the model, the data and the settings."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import torch

from classwise.attacks.base import Attack
from classwise.attacks.external import ExternalAttack
from classwise.auditing.run.preparation import Inputs
from classwise.auditing.run.suite import Suite
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT
from classwise.core.version import __version__
from classwise.data.images import Images
from classwise.models.modes import evaluating

logger = logging.getLogger(__name__)

IMAGES = 64
"""Images whose logits are part of the hash, so that a change of a model beside its files is noticed too."""
VARIABLE = "CLASSWISE_CACHE"
"""The environment variable that names the folder of the cache, for ``classwise audit`` and `assert_robust`."""


def environment_cache() -> Path | None:
    """The folder of the cache that the environment names; None if it names none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def cached_folder(cache: Path, ready: Inputs, suite: Suite) -> Path | None:
    """The folder of a prepared audit in a cache, which names it by a hash of the model, the data and the settings.

    Args:
        cache: the folder of the cache.
        ready: the audit.
        suite: its attacks, also those that are not applicable.

    Returns:
        The folder; None if the audit cannot be cached: for attacks of the user, whose code may read what no digest
        covers, and for streams.
    """
    if all(map(_of_this_package, suite.attacks.values())) and isinstance(ready.source, Images):
        return cache / _hash(ready, ready.source)
    logger.warning("the audit is not cached: attacks of your own and streamed data have no hash")
    return None


def _of_this_package(attack: Attack) -> bool:
    return type(attack).__module__.startswith("classwise.") and not isinstance(attack, ExternalAttack)


def _hash(ready: Inputs, source: Images) -> str:
    """Hash of the model (parameters, code, logits), the data, the settings and the version of classwise."""
    settings = ready.settings | {"guards": ready.plan.asked["guards"], "settle": ready.meta.settle, "code": ready.code}
    digest = hashlib.sha256(f"{__version__} {json.dumps(settings, sort_keys=True)}".encode())
    device = next((parameter.device for parameter in ready.model.parameters()), torch.device("cpu"))
    pixels = source.pixels(torch.arange(min(IMAGES, len(source)))).to(device)
    with evaluating(ready.model), torch.no_grad(), true_float32(device):
        logits = EXACT.forward(ready.model)(pixels).cpu()
    digest.update(logits.numpy().tobytes())
    return digest.hexdigest()[:24]
