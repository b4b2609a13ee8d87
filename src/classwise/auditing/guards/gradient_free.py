"""Guards that compare with gradient-free attacks, which should not find more than gradient-based ones."""

from __future__ import annotations

import torch

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.auditing.guards.evidence import (
    Evidence,
    Probe,
    Result,
    guard,
    percent,
    quoted,
    undecided,
)
from classwise.auditing.guards.gradients import weak_attack_warning
from classwise.auditing.guards.significance import attack_excess, significant_class
from classwise.core.config import make
from classwise.core.rng import CounterRNG

NOISES = 10
"""Number of noise samples for each image."""


def _noise_cost(evidence: Evidence, probe: Probe) -> int:
    """The verification of each survivor for each noise sample."""
    return NOISES * probe.verification * int(evidence.survivors.sum()) if evidence.attacks else 0


@guard(reads="sample", passes=_noise_cost, most=NOISES, priority=4, pixelwise=True)
def random_noise(evidence: Evidence, probe: Probe) -> Result:
    """Random noise of the full radius succeeds on images that are robust to the suite, overall or in one class."""
    success = evidence.survivors.clone()
    if not (evidence.attacks and success.any()):
        return None
    (index, x, y), threat = probe.rows(success), probe.threat_of(success)
    rng, found = CounterRNG(probe.engine.seed, "guards/noise"), torch.zeros(len(y), dtype=torch.bool)
    for counter in range(NOISES):
        ray = threat.steepest(rng.normal(index, tuple(x.shape[1:]), counter), x)
        found |= ~probe.correct_at(threat.project(x + ray * threat.radius(x), x), x, y, threat)
    success[success.clone()] = found
    return weak_attack_warning(evidence, probe, success, "random noise of the full radius")


BLACK_BOX_SHARE, BLACK_BOX_IMAGES = 0.002, 2
"""Thresholds on the additional successes of gradient-free attacks: a share, and a least number of images."""


@guard(pixelwise=True)
def black_box_stronger(evidence: Evidence) -> Result:
    """Gradient-free attacks succeed on more images than gradient-based ones, overall or in one class."""
    black = evidence.black_box
    white = tuple(label for label in evidence.attacked if label not in black)
    if not (black and white):
        return None
    found = attack_excess(evidence.outcomes, black, white)
    many = found.extra >= BLACK_BOX_IMAGES and found.extra > BLACK_BOX_SHARE * found.images
    if not many and (found.label is None or found.share <= BLACK_BOX_SHARE):
        return _undecided(found.extra, found.correct, found.images)
    where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
    count = f"{found.extra} more images ({percent(found.extra / found.images)}{where})"
    what = f"Gradient-free attacks ({quoted(black)}) succeed on {count} than gradient-based ones"
    return f"{what}: masked gradients.", found.extra / found.images


def _undecided(extra: int, robust: int, images: int) -> Result:
    """The result for fewer additional successes than the least number: whether more were possible.

    Args:
        extra: number of additional successes.
        robust: number of images on which there could have been one.
        images: number of all images.
    """
    if extra < 1 or robust >= BLACK_BOX_IMAGES:
        return None
    return undecided(BLACK_BOX_IMAGES * images / robust, images)


QUERIES, MOST_QUERIES = 100, 1000
"""Minimal and maximal number of queries per image of the search."""
QUERY_SHARE = 0.05
"""Between these limits, the search uses this fraction of the passes of the attacks."""


def _short_search(evidence: Evidence, probe: Probe) -> Attack | None:
    """Square with few queries; None if it is not needed, not registered, or does not support the norm."""
    robust = int(evidence.survivors.sum())
    if evidence.black_box or not evidence.attacked or not robust or "square" not in ATTACKS:
        return None
    queries = int(QUERY_SHARE * evidence.attack_passes / robust)
    attack: Attack = make(ATTACKS, {"name": "square", "steps": min(max(queries, QUERIES), MOST_QUERIES)})
    return attack if probe.threat.norm in attack.norms else None


def _search_cost(evidence: Evidence, probe: Probe) -> int:
    """The queries of each survivor and its verification."""
    attack = _short_search(evidence, probe)
    return 0 if attack is None else (attack.length + probe.verification) * int(evidence.survivors.sum())


@guard(reads="sample", passes=_search_cost, most=QUERIES + 2, priority=6, pixelwise=True)
def no_black_box(evidence: Evidence, probe: Probe) -> Result:
    """The suite has no gradient-free attack, and a short one succeeds on images that are robust to the suite."""
    attack = _short_search(evidence, probe)
    if attack is None:
        return None
    misclassified = probe.succeeds_on(evidence.survivors, attack)
    extra, share = int(misclassified.sum()), float(misclassified.float().mean())
    if extra < BLACK_BOX_IMAGES or share <= BLACK_BOX_SHARE:
        return _undecided(extra, int(evidence.survivors.sum()), len(probe))
    worst = significant_class(probe.by_class(misclassified), probe.images, BLACK_BOX_SHARE)
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"The suite has no gradient-free attack, and {percent(share)} of a sample survive it but not a short one"
    return f"{what}{where}: add 'square'.", share
