"""A cache of audits: the folder of an audit is named by a hash of the model, the data and the settings."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch

from classwise.attacks.base import Attack
from classwise.attacks.external import ExternalAttack
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.plan import chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT
from classwise.core.version import __version__
from classwise.data.images import Images
from classwise.data.stream import as_data
from classwise.models.modes import evaluating
from classwise.threat.ball import ThreatLike

logger = logging.getLogger(__name__)

IMAGES = 64
"""Images whose logits are part of the hash, so that a change of the code of a model is noticed too."""
VARIABLE = "CLASSWISE_CACHE"
"""The environment variable that names the folder of the cache, for ``classwise audit`` and `assert_robust`."""


def cached_folder(
    cache: Path, model: Model, data: Any, threat: ThreatLike | None, attacks: Attacks | None, **options: Any
) -> Path | None:
    """The folder of an audit in a cache: write the audit there with ``resume``, which loads a finished one.

    Args:
        cache: the folder of the cache.
        model: as of `classwise.audit`, like the other arguments.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        **options: the options of `classwise.audit` that decide rows, ``group`` and ``guards``.

    Returns:
        The folder; None if the audit cannot be cached: for attacks of the user, whose code is not part of the hash, and
        for streams.

    Raises:
        ClasswiseError: as `classwise.audit`.
    """
    suite, source = parse_attacks(attacks, norm_of(threat)), as_data(data)
    if not (all(map(_of_this_package, suite.attacks.values())) and isinstance(source, Images)):
        logger.info("the audit is not cached: attacks of your own and streamed data have no hash")
        return None
    with chosen_arithmetic(options.get("precision")):
        ready = prepare(model, source, suite, threat, **options)
        return cache / _hash(ready, source)


def _of_this_package(attack: Attack) -> bool:
    return type(attack).__module__.startswith("classwise.") and not isinstance(attack, ExternalAttack)


def _hash(ready: Inputs, source: Images) -> str:
    """Hash of the model (parameters and logits), the data, the settings and the version of classwise."""
    settings = ready.settings | {"guards": ready.plan.guards, "settle": ready.meta.settle}
    digest = hashlib.sha256(f"{__version__} {json.dumps(settings, sort_keys=True)}".encode())
    device = next((parameter.device for parameter in ready.model.parameters()), torch.device("cpu"))
    pixels = source.pixels(torch.arange(min(IMAGES, len(source)))).to(device)
    with evaluating(ready.model), torch.no_grad(), true_float32(device):
        logits = EXACT.forward(ready.model)(pixels).cpu()
    digest.update(logits.numpy().tobytes())
    return digest.hexdigest()[:24]
