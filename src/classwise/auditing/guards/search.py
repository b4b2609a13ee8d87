"""Guards that search without gradients: what they find, an attack with gradients should have found."""

from __future__ import annotations

import torch

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.auditing.guards.chance import excessive, stronger
from classwise.auditing.guards.evidence import Evidence, Found, Guard, Probe, on_sample, percent, quoted
from classwise.auditing.guards.gradients import beyond_suite
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG

NOISES = 10
"""How many draws of noise each image of the sample is given."""


@on_sample
def random_noise(evidence: Evidence, probe: Probe) -> Found | None:
    """Noise of the whole radius breaks images that the suite left standing, overall or in one class."""
    batch, rng = probe.batch, CounterRNG(probe.engine.seed, "guards/noise")
    misclassified = torch.zeros_like(probe.wrong)
    for counter in range(NOISES if evidence.attacks and evidence.survivors.any() else 0):
        ray = probe.threat.steepest(rng.normal(batch.index, tuple(batch.x.shape[1:]), counter))
        noisy = probe.threat.project(batch.x + ray * probe.threat.radius(batch.x), batch.x)
        misclassified |= ~probe.right(probe.logits_of(noisy))
    return beyond_suite(evidence, probe, misclassified & evidence.survivors, "Noise of the whole radius")


BLACK_BOX_SHARE, BLACK_BOX_IMAGES = 0.002, 2
"""What attacks without gradients may break in excess; a single image is chance."""


def black_box_stronger(evidence: Evidence) -> Found | None:
    """Attacks without gradients break more than those with, overall or in one class."""
    black = evidence.black_box
    white = tuple(label for label in evidence.attacked if label not in black)
    if not (black and white):
        return None
    found = stronger(evidence.outcomes, black, white)
    many = found.extra >= BLACK_BOX_IMAGES and found.extra > BLACK_BOX_SHARE * found.images
    if not many and (found.label is None or found.share <= BLACK_BOX_SHARE):
        return None
    where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
    what = f"{quoted(black)} breaks {found.extra} images ({percent(found.extra / found.images)}{where})"
    return Found(f"{what} more than the attacks with gradients: masked gradients.", found.extra / found.images)


QUERIES, MOST_QUERIES = 100, 1000
"""Queries of the probe for an image: at least and at most."""
QUERY_SHARE = 0.05
"""Between the two, the probe takes so much of the passes that the audit has spent."""


@on_sample
def no_black_box(evidence: Evidence, probe: Probe) -> Found | None:
    """The suite has no attack without gradients, and a short one breaks what the suite left standing."""
    attack = _short_search(evidence)
    if evidence.black_box or attack is None or not evidence.attacked or not evidence.survivors.any():
        return None
    try:
        misclassified = probe.found_by(evidence.survivors, attack)
    except ClasswiseError:  # it has no form for this norm
        return None
    extra, share = int(misclassified.sum()), float(misclassified.float().mean())
    if extra < BLACK_BOX_IMAGES or share <= BLACK_BOX_SHARE:
        return None
    worst = excessive(probe.by_class(misclassified), probe.images, BLACK_BOX_SHARE)
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"No attack works without gradients, and a short search breaks {percent(share)} of a sample{where}"
    return Found(f"{what} that stood against the suite: add 'square'.", share)


def _short_search(evidence: Evidence) -> Attack | None:
    """Square with a few queries; None where it is not there."""
    if "square" not in ATTACKS:
        return None
    spent = evidence.outcomes.frame[["forwards", "backwards"]].fillna(0).to_numpy().sum()
    queries = int(QUERY_SHARE * spent / max(int(evidence.survivors.sum()), 1))
    return make(ATTACKS, {"name": "square", "proposals": min(max(queries, QUERIES), MOST_QUERIES)})


GUARDS: dict[str, Guard] = {
    "random-noise": random_noise,
    "black-box-stronger": black_box_stronger,
    "no-black-box": no_black_box,
}
