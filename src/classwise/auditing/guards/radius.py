"""Guards of the radius: zero, half, full and double, and so large or so small that it hides differences."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.guards.evidence import (
    NOT_APPLICABLE,
    Evidence,
    Probe,
    Reads,
    Result,
    guard,
    percent,
    undecided,
)
from classwise.auditing.guards.significance import LEVEL, paired_excess, significant_class
from classwise.auditing.outcomes.table import ALL, CLEAN, Outcomes
from classwise.stats.counts import BoolArray, PairedCounts
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
    repeats = probe.engine.passes.repeats.count
    cause = "the outputs are random"
    if repeats > 1:
        cause = f"the outputs are random, and decisions over {repeats} passes vary; use more (--repeats {4 * repeats})"
    return f"An attack of radius 0 succeeds on {extra} correctly classified images: {cause}.", float(extra)


@guard()
def outside_ball(evidence: Evidence) -> Result:
    """An adversarial image is farther away than the radius; possible for outcomes of other programs only."""
    frame = evidence.outcomes.frame
    excess = (frame["distance"] - frame["epsilon"]).fillna(0)
    if frame["distance"].isna().all():
        return NOT_APPLICABLE
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
    if not right.any():
        return NOT_APPLICABLE
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
    if not attacked.any():
        return NOT_APPLICABLE
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


SEARCH = PGD(steps=5, step_size="0.25eps")
"""The attack that searches for another radius."""
ROUNDS = 5
"""Number of radii of the search."""
RATIO = 1024
"""Ratio of the largest and the smallest radius of the search, at most."""
SAME_SHARE = 0.01
"""The share of images that are robust, or that are lost under attack, up to which a radius has the same effect on all
classes; of all images and of each class, where the share is not significantly above this one.
"""
NEAR = 0.1
"""The share of successes of the named radius, and of failures, is at least this one."""
Fault = Literal["large", "small"]


def _comparable(outcomes: Outcomes) -> bool:
    """Whether an audit has the complete outcomes of at least two classes, without attack and under attack."""
    attacked = CLEAN in outcomes.attacks and len(outcomes.attacks) > 1
    return bool(outcomes.complete and attacked and outcomes.meta.threat) and len(np.unique(outcomes.labels)) > 1


def _fault(evidence: Evidence) -> Fault | None:
    """Whether the radius is too large (hardly any image of any class is robust) or too small (hardly any is lost)."""
    outcomes = evidence.outcomes
    if not _comparable(outcomes):
        return None
    labels, classes = outcomes.labels, outcomes.num_classes
    clean, robust = outcomes.correct(CLEAN), outcomes.correct(ALL)
    images = np.bincount(labels, minlength=classes)
    found: list[Fault] = []
    cases: tuple[tuple[Fault, BoolArray], ...] = (("large", robust), ("small", clean & ~robust))
    for fault, selected in cases:
        hits = np.bincount(labels[selected], minlength=classes)
        counts = (hits, images), (hits.sum(keepdims=True), images.sum(keepdims=True))
        if all(significant_class(part, whole, SAME_SHARE) is None for part, whole in counts):
            found.append(fault)
    return found[0] if len(found) == 1 else None


def _read_by_search(evidence: Evidence) -> Reads:
    """The outcomes; also the gradients where another radius is searched for, or the outcomes are not yet known."""
    searches = evidence.probe is not None and evidence.probe.gradients and _fault(evidence) is not None
    return "gradients" if searches or not evidence.outcomes.complete else "outcomes"


def _search_passes(evidence: Evidence, probe: Probe) -> int:
    """The passes of the search on the images of the sample that are classified correctly."""
    fault = _fault(evidence)
    if fault is None or _unsolved(evidence, fault):
        return 0
    return ROUNDS * (2 * SEARCH.steps + probe.verification) * int(evidence.clean.sum())


OTHER_CAUSES = ("nan-logits", "untrained", "normalised-outside", "class-order", "zero-radius", "huge-radius")
"""Guards whose problem may be why no image is robust, or none is lost, at any radius."""
MASKED = (
    *("softmax-outputs", "zero-gradients", "misleading-gradients", "single-step", "random-noise"),
    *("black-box-stronger", "no-black-box", "not-falling", "large-radius"),
)
"""Guards whose problem may be why attacks succeed on no image."""


FEW = 10
"""Correctly classified images of the sample, below which a search that finds no radius is no evidence."""


def _unsolved(evidence: Evidence, fault: Fault) -> str:
    """What to do before the radius is judged; empty if nothing else explains the accuracies."""
    others = evidence.unsolved(OTHER_CAUSES + MASKED if fault == "small" else OTHER_CAUSES)
    if others or evidence.chance is None:
        return others
    return f"first reach a clean accuracy significantly above chance ({percent(evidence.chance.accuracy)} is not)"


@guard(
    reads=_read_by_search,
    passes=_search_passes,
    most=ROUNDS * (2 * SEARCH.steps + 1),
    presumes=OTHER_CAUSES + MASKED,
    pixelwise=True,
)
def uninformative_radius(evidence: Evidence, probe: Probe | None = None) -> Result:
    """All classes have a robust accuracy of about 0, or all about their clean accuracy: the radius hides differences.

    Another radius, at which a short attack succeeds on nearly half of a sample, is searched for and named, unless the
    clean accuracy is that of chance, or another guard has found a problem that explains the accuracies.
    """
    if not _comparable(evidence.outcomes):
        return NOT_APPLICABLE
    fault = _fault(evidence)
    if fault is None:
        return None
    what = "is robust" if fault == "large" else "is misclassified under attack only"
    what = f"Hardly any image of any class {what}"
    if first := _unsolved(evidence, fault):
        return f"{what}: {first}, and then judge the radius.", math.nan
    reason = f"{what}, so the radius is too {fault} to compare classes"
    if probe is None or not evidence.clean.any():
        return f"{reason}.", math.nan
    images, found = int(evidence.clean.sum()), _searched_radius(evidence.clean, probe, fault)
    if found is None and fault == "large":
        return f"{reason}, and a short search did not find another one.", math.nan
    if found is None:  # too small a radius is no explanation, since the attacks are weak or gradients masked
        return None if images >= FEW else undecided(FEW, images)
    radius, success = found
    threat = f"{probe.threat.norm}:{radius:g}"
    share = f"PGD of {SEARCH.steps} steps succeeds on {success} of the {images} correctly classified images in a sample"
    if fault == "small" and radius <= _largest(probe):
        return f"{what}, but at this radius {share} of {len(probe)}: the attacks are too weak.", math.nan
    what = f"{reason}; at about {threat} {share} of {len(probe)}"
    return f"{what}: repeat the audit with --threat {threat} and another --out.", radius


def _largest(probe: Probe) -> float:
    """The radius of the audit, of several the largest."""
    return float(torch.as_tensor(probe.threat.epsilon).max())


def _one_digit(radius: float) -> float:
    return float(f"{radius:.1g}")


def _searched_radius(clean: Tensor, probe: Probe, fault: Fault) -> tuple[float, int] | None:
    """Search for a radius at which a short attack succeeds on about half of the correctly classified images.

    Args:
        clean: the images to attack, bool (N,).
        probe: the model and the sample.
        fault: what is wrong with the radius of the audit.

    Returns:
        The radius and the number of successes: of the radii that may be the one of half the images, one with one digit,
        if there is one, else two. That of the audit if it seems too small and the attack succeeds there. None if the
        range of the search has no radius with successes on about half of the images.
    """
    norm, epsilon = probe.threat.norm, _largest(probe)
    grey, images = grey_radius(norm, probe.batch.x.shape[1:]), int(clean.sum())

    def successes(radius: float) -> int:
        return int(probe.succeeds_on(clean, SEARCH, Threat(norm, radius)).sum())

    rounds = ROUNDS
    if fault == "small":
        rounds -= 1
        if significant_class(np.array([(success := successes(epsilon))]), np.array([images]), SAME_SHARE) is not None:
            return epsilon, success
    most = min(epsilon, grey) if fault == "large" else grey
    least = most / RATIO if fault == "large" else max(epsilon, most / RATIO)
    low, high, tried = least, most, []
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        radius = _one_digit(middle) if low < _one_digit(middle) < high else float(f"{middle:.2g}")
        tried.append((radius, successes(radius)))
        low, high = (radius, high) if 2 * tried[-1][1] < images else (low, radius)

    def rank(pair: tuple[float, int]) -> tuple[float, bool, int]:
        off = abs(2 * pair[1] - images)
        return max(off, 2 * math.sqrt(images)), pair[0] != _one_digit(pair[0]), off  # two standard errors are none

    nearest = min(tried, key=rank)
    unbracketed = low == least if fault == "large" else high == most
    return None if unbracketed or not NEAR * images <= nearest[1] <= (1 - NEAR) * images else nearest
