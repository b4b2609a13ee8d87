"""Guards that compare with gradient-free attacks, which should not find more than gradient-based ones."""

from __future__ import annotations

import torch

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.auditing.guards.evidence import Evidence, Guard, GuardWarning, Probe, needs_model, percent, quoted
from classwise.auditing.guards.gradients import weak_attack_warning
from classwise.auditing.guards.significance import attack_excess, significant_class
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG

NOISES = 10
"""Number of noise samples for each image."""


@needs_model
def random_noise(evidence: Evidence, probe: Probe) -> GuardWarning | None:
    """Random noise of the full radius succeeds on images that are robust to the suite, overall or in one class."""
    batch, rng = probe.batch, CounterRNG(probe.engine.seed, "guards/noise")
    misclassified = torch.zeros_like(probe.wrong)
    for counter in range(NOISES if evidence.attacks and evidence.survivors.any() else 0):
        ray = probe.threat.steepest(rng.normal(batch.index, tuple(batch.x.shape[1:]), counter))
        noisy = probe.threat.project(batch.x + ray * probe.threat.radius(batch.x), batch.x)
        misclassified |= ~probe.correct(probe.logits_of(noisy))
    success = misclassified & evidence.survivors
    return weak_attack_warning(evidence, probe, success, "random noise of the full radius")


BLACK_BOX_SHARE, BLACK_BOX_IMAGES = 0.002, 2
"""Thresholds on the additional successes of gradient-free attacks: a share, and a least number of images."""


def black_box_stronger(evidence: Evidence) -> GuardWarning | None:
    """Gradient-free attacks succeed on more images than gradient-based ones, overall or in one class."""
    black = evidence.black_box
    white = tuple(label for label in evidence.attacked if label not in black)
    if not (black and white):
        return None
    found = attack_excess(evidence.outcomes, black, white)
    many = found.extra >= BLACK_BOX_IMAGES and found.extra > BLACK_BOX_SHARE * found.images
    if not many and (found.label is None or found.share <= BLACK_BOX_SHARE):
        return None
    where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
    count = f"{found.extra} more images ({percent(found.extra / found.images)}{where})"
    what = f"Gradient-free attacks ({quoted(black)}) succeed on {count} than gradient-based ones"
    return GuardWarning(f"{what}: masked gradients.", found.extra / found.images)


QUERIES, MOST_QUERIES = 100, 1000
"""Minimal and maximal number of queries per image of the search."""
QUERY_SHARE = 0.05
"""Between these limits, the search uses this fraction of the passes of the audit."""


@needs_model
def no_black_box(evidence: Evidence, probe: Probe) -> GuardWarning | None:
    """The suite has no gradient-free attack, and a short one succeeds on images that are robust to the suite."""
    attack = _short_search(evidence)
    if evidence.black_box or attack is None or not evidence.attacked or not evidence.survivors.any():
        return None
    try:
        misclassified = probe.succeeds_on(evidence.survivors, attack)
    except ClasswiseError:  # Square does not support this norm
        return None
    extra, share = int(misclassified.sum()), float(misclassified.float().mean())
    if extra < BLACK_BOX_IMAGES or share <= BLACK_BOX_SHARE:
        return None
    worst = significant_class(probe.by_class(misclassified), probe.images, BLACK_BOX_SHARE)
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"The suite has no gradient-free attack, and {percent(share)} of a sample survive it but not a short one"
    return GuardWarning(f"{what}{where}: add 'square'.", share)


def _short_search(evidence: Evidence) -> Attack | None:
    """Square with few queries; None if it is not registered."""
    if "square" not in ATTACKS:
        return None
    spent = evidence.outcomes.frame[["forwards", "backwards"]].fillna(0).to_numpy().sum()
    queries = int(QUERY_SHARE * spent / max(int(evidence.survivors.sum()), 1))
    return make(ATTACKS, {"name": "square", "steps": min(max(queries, QUERIES), MOST_QUERIES)})


GUARDS: dict[str, Guard] = {
    "random-noise": random_noise,
    "black-box-stronger": black_box_stronger,
    "no-black-box": no_black_box,
}
