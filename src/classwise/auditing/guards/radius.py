"""Guards of the radius: zero, half, full and double, and so large that no model can be robust."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.guards.evidence import (
    Evidence,
    Probe,
    Result,
    guard,
    percent,
    undecided,
)
from classwise.auditing.guards.significance import LEVEL, paired_excess, significant_class
from classwise.stats.counts import PairedCounts
from classwise.threat.ball import Threat, grey_radius, large_radius_text

PROBE = PGD(steps=10, step_size="0.25eps")
"""The attack of these guards."""
MOST = 2 * PROBE.steps + 1
"""Its passes per image, with the verification."""


def _attack_passes(probe: Probe, images: Tensor) -> int:
    """The passes of the attack on these images, bool (N,)."""
    return (2 * PROBE.steps + probe.verification) * int(images.sum())


REPETITIONS = 3
"""Number of repeated passes over the clean images."""


@guard(reads="sample", passes=lambda _, probe: REPETITIONS * probe.verification * len(probe), most=REPETITIONS)
def zero_radius(_: Evidence, probe: Probe) -> Result:
    """An attack of radius 0, which can only evaluate the clean images repeatedly, changes the accuracy."""
    success = torch.zeros_like(probe.wrong)
    for _repetition in range(REPETITIONS):
        success |= ~probe.correct_at(probe.batch.x, probe.batch.x, probe.batch.y, probe.threat)
    extra = int((success & ~probe.wrong).sum())
    if not extra:
        return None
    return (
        f"An attack of radius 0 succeeds on {extra} correctly classified images: the outputs are random.",
        float(extra),
    )


@guard()
def outside_ball(evidence: Evidence) -> Result:
    """An adversarial image is farther away than the radius; possible for outcomes of other programs only."""
    frame = evidence.outcomes.frame
    excess = (frame["distance"] - frame["epsilon"]).fillna(0)
    far = excess > 1e-5 + 1e-4 * frame["epsilon"].fillna(0)
    if not far.any():
        return None
    label = str(frame["attack"].iloc[int(excess.to_numpy().argmax())])
    return (f"{int(far.sum())} images are outside the ball, the farthest under {label!r}.", float(excess.max()))


RISE_SHARE = 0.03
"""Threshold on the increase of the robust accuracy of a sample from a smaller to a larger radius."""


FACTORS = {"half the radius": 0.5, "the radius": 1.0, "double the radius": 2.0}


@guard(
    reads="gradients",
    passes=lambda evidence, probe: len(FACTORS) * _attack_passes(probe, evidence.clean),
    most=len(FACTORS) * MOST,
    priority=7,
    pixelwise=True,
)
def not_falling(evidence: Evidence, probe: Probe) -> Result:
    """The robust accuracy rises with the radius, overall or in one class, although the balls are nested."""
    balls = {name: probe.threat.with_epsilon(probe.threat.epsilon * factor) for name, factor in FACTORS.items()}
    right = evidence.clean
    survivors = {name: (right & ~probe.succeeds_on(right, PROBE, ball)).numpy() for name, ball in balls.items()}
    for small, large in itertools.combinations(FACTORS, 2):
        rise = paired_excess(
            PairedCounts.from_labels(probe.labels.numpy(), survivors[large], survivors[small], probe.logits.shape[1])
        )
        if rise.extra <= RISE_SHARE * rise.images and rise.label is None:
            continue
        where = "" if rise.label is None else f"; it rises most in {evidence.name_of(rise.label)}"
        what = f"The robust accuracy of a sample is {percent(survivors[small].mean())} at {small}"
        what = f"{what} and {percent(survivors[large].mean())} at {large}{where}"
        return f"{what}: masked gradients.", rise.extra / rise.images
    return None


REACH_SHARE = 0.5
"""Robust share of the attacked images, and of a class, that the attack may leave where 0 is possible."""
REACH_IMAGES = math.floor(math.log(LEVEL) / math.log(REACH_SHARE)) + 1
"""The fewest images whose robustness is significantly above this share."""


def _unreached(evidence: Evidence, probe: Probe) -> Tensor:
    """The images of the sample that may be robust at the large radius, bool (N,)."""
    largest = float(torch.as_tensor(probe.threat.epsilon).max())
    return evidence.survivors if largest <= grey_radius(probe.threat.norm, probe.batch.x.shape[1:]) else evidence.clean


@guard(
    reads="gradients",
    passes=lambda evidence, probe: _attack_passes(probe, _unreached(evidence, probe)) + 1,  # one for the grey image
    most=MOST,
    pixelwise=True,
)
def large_radius(evidence: Evidence, probe: Probe) -> Result:
    """At a radius that reaches the grey image, the robust accuracy is higher than possible, overall or in one class.

    The Linf ball of radius 0.5 around every image contains the grey image, which is predicted as one class. So only the
    images of that class can be robust. The L2 and L1 balls of radius 0.5 sqrt(D) and 0.5 D contain that image, too.
    Images on which the suite succeeded in a smaller ball are not attacked again.
    """
    x, y = probe.batch.x, probe.labels
    radius, attacked = grey_radius(probe.threat.norm, x.shape[1:]), _unreached(evidence, probe)
    survivors = attacked & ~probe.succeeds_on(attacked, PROBE, Threat(probe.threat.norm, radius))
    grey = int(probe.logits_of(torch.full_like(x[:1], 0.5)).argmax())
    accuracy, share = float(survivors.float().mean()), float(torch.bincount(y).max()) / len(y)
    impossible, tried = survivors & (y != grey), attacked & (y != grey)
    worst = significant_class(probe.by_class(impossible), probe.images, REACH_SHARE)
    misses, attempts = (mask.sum(0, keepdim=True).numpy() for mask in (impossible, tried))
    overall = significant_class(misses, attempts, REACH_SHARE)
    if accuracy <= share + 3 * math.sqrt(share * (1 - share) / len(y)) and worst is None and overall is None:
        count = int(tried.sum())
        too_few = count < REACH_IMAGES and bool(impossible.any())
        return undecided(REACH_IMAGES * len(y) / count, len(y)) if too_few else None
    what = f"At {probe.threat.norm} {radius:g} the robust accuracy of a sample is {percent(accuracy)}"
    others = "" if overall is None else f" (and 0 % in the classes other than {evidence.name_of(grey)})"
    where = others if worst is None else f" (and 0 % in {evidence.name_of(worst)})"
    return f"{what}, but at most {percent(share)} is possible{where}: the attack is too weak.", accuracy


@guard(reads="sample", pixelwise=True)
def huge_radius(_: Evidence, probe: Probe) -> Result:
    """The radius of the audit itself reaches the grey image, as 8 instead of 8/255 does."""
    threat, x = probe.threat, probe.batch.x
    text = large_radius_text(threat, x.shape[1:])
    return (f"A{text[1:]}.", float(torch.as_tensor(threat.epsilon).max())) if text else None
