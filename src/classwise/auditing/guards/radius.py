"""Guards of the radius: zero, half, full and double, and so large that no model can be robust."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.guards.evidence import (
    Evidence,
    Guard,
    GuardWarning,
    Probe,
    needs_gradients,
    needs_model,
    percent,
)
from classwise.auditing.guards.significance import paired_excess, significant_class
from classwise.core.precision import Forward
from classwise.core.threat import Norm, Threat
from classwise.stats.counts import PairedCounts

STEPS = 20
"""Number of steps of the attacks of these guards."""


def grey_radius(norm: Norm, x: Tensor) -> float:
    """The smallest radius at which the ball of every image of this shape contains the grey image (all pixels 0.5)."""
    size = math.prod(x.shape[1:])
    return {"Linf": 0.5, "L2": 0.5 * math.sqrt(size), "L1": 0.5 * size}[norm]


class Shortened(Attack):
    """The first restart of an attack, limited to its first `STEPS` steps."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    @property
    def needs_reference(self) -> bool:
        """That of the attack."""
        return self.attack.needs_reference

    @property
    def length(self) -> int:
        """That of the attack, at most `STEPS`."""
        return min(self.attack.length, STEPS)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start the attack."""
        return self.attack.start(model, inputs)

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Step the attack; all rows are done after `length` steps."""
        state = self.attack.step(model, inputs, state)
        return {**state, "done": state["done"] | (state["iteration"] >= self.length)}


@needs_model
def zero_radius(evidence: Evidence, probe: Probe) -> GuardWarning | None:
    """An attack of radius 0 changes the accuracy."""
    for label, attack in {type(attack): (label, attack) for label, attack in evidence.attacks.items()}.values():
        extra = int((probe.misclassified(Shortened(attack), Threat(probe.threat.norm, 0.0)) & ~probe.wrong).sum())
        if extra:
            return GuardWarning(
                f"{label!r} at radius 0 succeeds on {extra} correctly classified images: the outputs are random.",
                float(extra),
            )
    return None


def outside_ball(evidence: Evidence) -> GuardWarning | None:
    """An adversarial image is farther away than the radius; possible for outcomes of other programs only."""
    frame = evidence.outcomes.frame
    excess = (frame["distance"] - frame["epsilon"]).fillna(0)
    far = excess > 1e-5 + 1e-4 * frame["epsilon"].fillna(0)
    if not far.any():
        return None
    label = str(frame["attack"].iloc[int(excess.to_numpy().argmax())])
    return GuardWarning(
        f"{int(far.sum())} images are outside the ball, the farthest under {label!r}.", float(excess.max())
    )


RISE_SHARE = 0.03
"""Threshold on the increase of the robust accuracy of a sample from a smaller to a larger radius."""


FACTORS = {"half the radius": 0.5, "the radius": 1.0, "double the radius": 2.0}


@needs_gradients
def not_falling(evidence: Evidence, probe: Probe) -> GuardWarning | None:
    """The robust accuracy rises with the radius, overall or in one class, although the balls are nested."""
    attack = PGD(steps=STEPS, step_size="0.1eps")
    balls = {name: probe.threat.with_epsilon(probe.threat.epsilon * factor) for name, factor in FACTORS.items()}
    survivors = {name: (~probe.misclassified(attack, ball)).numpy() for name, ball in balls.items()}
    for small, large in itertools.combinations(FACTORS, 2):
        rise = paired_excess(
            PairedCounts.from_labels(probe.labels.numpy(), survivors[large], survivors[small], probe.logits.shape[1])
        )
        if rise.extra <= RISE_SHARE * rise.images and rise.label is None:
            continue
        where = "" if rise.label is None else f"; it rises most in {evidence.name_of(rise.label)}"
        what = f"The robust accuracy of a sample is {percent(survivors[small].mean())} at {small}"
        what = f"{what} and {percent(survivors[large].mean())} at {large}{where}"
        return GuardWarning(f"{what}: masked gradients.", rise.extra / rise.images)
    return None


REACH_CLASS_SHARE = 0.5
"""Robust share of a class that 20 steps may leave, at a radius where 0 is possible."""


@needs_gradients
def large_radius(evidence: Evidence, probe: Probe) -> GuardWarning | None:
    """At a radius that reaches the grey image, the robust accuracy is higher than possible, overall or in one class.

    The Linf ball of radius 0.5 around every image contains the grey image, which is predicted as one class. So only the
    images of that class can be robust. The L2 and L1 balls of radius 0.5 sqrt(D) and 0.5 D contain that image, too.
    """
    x, y = probe.batch.x, probe.labels
    radius = grey_radius(probe.threat.norm, x)
    survivors = ~probe.misclassified(PGD(steps=STEPS, step_size="0.1eps"), Threat(probe.threat.norm, radius))
    grey = int(probe.logits_of(torch.full_like(x[:1], 0.5)).argmax())
    accuracy, share = float(survivors.float().mean()), float(torch.bincount(y).max()) / len(y)
    worst = significant_class(probe.by_class(survivors & (y != grey)), probe.images, REACH_CLASS_SHARE)
    if accuracy <= share + 3 * math.sqrt(share * (1 - share) / len(y)) and worst is None:
        return None
    what = f"At {probe.threat.norm} {radius:g} the robust accuracy of a sample is {percent(accuracy)}"
    where = "" if worst is None else f" (and 0 % in {evidence.name_of(worst)})"
    return GuardWarning(f"{what}, but at most {percent(share)} is possible{where}: the attack is too weak.", accuracy)


def huge_radius(evidence: Evidence) -> GuardWarning | None:
    """The radius of the audit itself reaches the grey image, as 8 instead of 8/255 does."""
    if evidence.probe is None:
        return None
    norm, x = evidence.probe.threat.norm, evidence.probe.batch.x
    largest = float(torch.as_tensor(evidence.probe.threat.epsilon).max())
    if largest < grey_radius(norm, x):
        return None
    what = f"At {norm} {largest:g} the ball of every image contains the grey image, so no model can be robust"
    return GuardWarning(f"{what}; pixels are in [0, 1], so write 8/255 for 8 of 255.", largest)


GUARDS: dict[str, Guard] = {
    "zero-radius": zero_radius,
    "outside-ball": outside_ball,
    "not-falling": not_falling,
    "large-radius": large_radius,
    "huge-radius": huge_radius,
}
