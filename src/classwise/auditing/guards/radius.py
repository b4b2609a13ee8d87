"""Guards of the ball: none, some, double, and so large that nothing can stand."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.guards.chance import excess, excessive
from classwise.auditing.guards.evidence import Evidence, Found, Guard, Probe, on_gradients, on_sample, percent
from classwise.core.precision import Forward
from classwise.core.threat import Norm, Threat
from classwise.stats.counts import PairedCounts

STEPS = 20
"""Steps of the attacks that these guards make."""


def reach(norm: Norm, x: Tensor) -> float:
    """The radius at which every image of this shape can become the grey one."""
    size = math.prod(x.shape[1:])
    return {"Linf": 0.5, "L2": 0.5 * math.sqrt(size), "L1": 0.5 * size}[norm]


class Shortened(Attack):
    """The first steps of an attack's first start."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    @property
    def needs_reference(self) -> bool:
        """As the attack."""
        return self.attack.needs_reference

    @property
    def length(self) -> int:
        """At most `STEPS`."""
        return min(self.attack.length, STEPS)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """As the attack."""
        return self.attack.start(model, inputs)

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """As the attack, and done after a few."""
        state = self.attack.step(model, inputs, state)
        return {**state, "done": state["done"] | (state["iteration"] >= self.length)}


@on_sample
def zero_radius(evidence: Evidence, probe: Probe) -> Found | None:
    """An attack of radius 0 changes the accuracy."""
    for label, attack in {type(attack): (label, attack) for label, attack in evidence.attacks.items()}.values():
        extra = int((probe.misclassified(Shortened(attack), Threat(probe.threat.norm, 0.0)) & ~probe.wrong).sum())
        if extra:
            return Found(
                f"{label!r} with radius 0 breaks {extra} right images; the model answers differently each time.",
                float(extra),
            )
    return None


def outside_ball(evidence: Evidence) -> Found | None:
    """A kept image is farther away than the radius allows; only outcomes made elsewhere can say so."""
    frame = evidence.outcomes.frame
    excess = (frame["distance"] - frame["epsilon"]).fillna(0)
    far = excess > 1e-5 + 1e-4 * frame["epsilon"].fillna(0)
    if not far.any():
        return None
    label = str(frame["attack"].iloc[int(excess.to_numpy().argmax())])
    return Found(f"{int(far.sum())} images lie outside the ball, most under {label!r}.", float(excess.max()))


RISE_SHARE = 0.03
"""What may stand of a sample at a larger radius in excess of what stands at a smaller one."""


FACTORS = {"half the radius": 0.5, "the radius": 1.0, "double the radius": 2.0}


@on_gradients
def not_falling(evidence: Evidence, probe: Probe) -> Found | None:
    """More images stand at a larger radius, overall or in one class, though it holds the smaller ball."""
    attack = PGD(steps=STEPS, step_size="0.1eps")
    balls = {name: probe.threat.with_epsilon(probe.threat.epsilon * factor) for name, factor in FACTORS.items()}
    survivors = {name: (~probe.misclassified(attack, ball)).numpy() for name, ball in balls.items()}
    for small, large in itertools.combinations(FACTORS, 2):
        rise = excess(
            PairedCounts.from_labels(probe.labels.numpy(), survivors[large], survivors[small], probe.logits.shape[1])
        )
        if rise.extra <= RISE_SHARE * rise.images and rise.label is None:
            continue
        where = "" if rise.label is None else f", most in {evidence.name_of(rise.label)}"
        what = f"At {small} {percent(survivors[small].mean())} of a sample stand, at {large}"
        what = f"{what} {percent(survivors[large].mean())}{where}"
        return Found(f"{what}: masked gradients.", rise.extra / rise.images)
    return None


REACH_CLASS_SHARE = 0.5
"""What may stand in a class at a radius where nothing of it can, since 20 steps are few."""


@on_gradients
def large_radius(evidence: Evidence, probe: Probe) -> Found | None:
    """At a radius that reaches the grey image, more is left than is possible, overall or in one class.

    At Linf 0.5 every image can become the grey one, which is of one class; so at most the images of that class stand.
    L2 and L1 balls of radius 0.5 sqrt(D) and 0.5 D hold that image too.
    """
    x, y = probe.batch.x, probe.labels
    radius = reach(probe.threat.norm, x)
    survivors = ~probe.misclassified(PGD(steps=STEPS, step_size="0.1eps"), Threat(probe.threat.norm, radius))
    grey = int(probe.logits_of(torch.full_like(x[:1], 0.5)).argmax())
    left, share = float(survivors.float().mean()), float(torch.bincount(y).max()) / len(y)
    worst = excessive(probe.by_class(survivors & (y != grey)), probe.images, REACH_CLASS_SHARE)
    if left <= share + 3 * math.sqrt(share * (1 - share) / len(y)) and worst is None:
        return None
    what = f"At {probe.threat.norm} {radius:g} the accuracy of a sample is still {percent(left)}"
    where = "" if worst is None else f" (and nothing of {evidence.name_of(worst)})"
    return Found(f"{what}, where {percent(share)} is possible{where}: the attack is too weak.", left)


def huge_radius(evidence: Evidence) -> Found | None:
    """The radius of the audit itself reaches the grey image, as 8 in place of 8/255 does."""
    if evidence.probe is None:
        return None
    norm, x = evidence.probe.threat.norm, evidence.probe.batch.x
    largest = float(torch.as_tensor(evidence.probe.threat.epsilon).max())
    if largest < reach(norm, x):
        return None
    what = f"At {norm} {largest:g} every image can become the grey one, so that no model is robust"
    return Found(f"{what}; pixels are in [0, 1], where 8 of 255 is 8/255.", largest)


GUARDS: dict[str, Guard] = {
    "zero-radius": zero_radius,
    "outside-ball": outside_ball,
    "not-falling": not_falling,
    "large-radius": large_radius,
    "huge-radius": huge_radius,
}
