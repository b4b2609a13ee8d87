"""Guards: what can be wrong with an evaluation of robustness, each a function with a name.

After Carlini et al. (2019), "On evaluating adversarial robustness", and Athalye, Carlini and Wagner (2018). A guard
that finds something says so in one sentence; it never changes a number. Images outside [0, 1] are refused by the data
layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from classwise.attacks.ascent import FGSM, PGD
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.auditing.outcomes import ALL, Outcomes
from classwise.auditing.result import Caution
from classwise.auditing.suite import attack_length
from classwise.compute import EXACT, Compute
from classwise.data.images import Batch
from classwise.stats.counts import IntArray
from classwise.stats.worst import minimum, possibly_worst
from classwise.threat import Threat

SAMPLE = 128
"""Guards that need passes of the model look at so many images, classes in turn."""


@dataclass(frozen=True)
class Probe:
    """A model and a few images on which guards may spend passes.

    Args:
        engine: with the audit's settings; its model returns logits.
        batch: the images.
        threat: the ball of each of them.
        compute: how gradients are computed.
    """

    engine: Engine
    batch: Batch
    threat: Threat
    compute: Compute = EXACT

    def logits_of(self, x: Tensor) -> Tensor:
        """Float32 logits (N, C) of one pass."""
        (logits,) = self.engine.predict([x])
        return logits.cpu()

    @cached_property
    def logits(self) -> Tensor:
        """Float32 logits of the sample."""
        return self.logits_of(self.batch.x)

    @cached_property
    def wrong(self) -> Tensor:
        """Which images of the sample are misclassified as they are."""
        return self.logits.argmax(1) != self.batch.y.cpu()

    def broken(self, attack: Attack, threat: Threat) -> Tensor:
        """Which images of the sample an attack breaks, or were wrong before."""
        columns = {"epsilon": threat.epsilon} if isinstance(threat.epsilon, Tensor) else {}
        engine = Engine(self.engine.model, compute=self.compute, batch=self.engine.batch, seed=self.engine.seed)
        broken = self.wrong.clone()
        for done in engine.attack(attack, threat, [Job(*self.batch, columns)]):
            broken[done.row.cpu()] |= done.broken.cpu()
        return broken


@dataclass(frozen=True)
class Evidence:
    """What guards look at.

    Args:
        outcomes: the finished rows.
        attacks: the attacks by label, where they are known.
        was_training: whether a part of the model was in training mode when it was given.
        training_attack: the attack of the model's training, where it is known.
        probe: the model and a sample; None where there is no model, or no time.
    """

    outcomes: Outcomes
    attacks: Mapping[str, Attack] = dataclasses.field(default_factory=dict)
    was_training: bool = False
    training_attack: Attack | None = None
    probe: Probe | None = None


class Found(NamedTuple):
    """What a guard found: a sentence, and the number behind it."""

    sentence: str
    value: float = math.nan


Guard = Callable[[Evidence], Found | None]
GUARDS: dict[str, Guard] = {}
"""Every guard by its name, in the order in which they report."""


def guard(name: str) -> Callable[[Guard], Guard]:
    """Put a function into `GUARDS`."""

    def register(function: Guard) -> Guard:
        GUARDS[name] = function
        return function

    return register


def _on_sample(function: Callable[[Evidence, Probe], Found | None]) -> Guard:
    """A guard that needs a model: it finds nothing where there is none."""

    def run(evidence: Evidence) -> Found | None:
        return None if evidence.probe is None else function(evidence, evidence.probe)

    run.__doc__ = function.__doc__
    return run


def run_guards(evidence: Evidence) -> tuple[Caution, ...]:
    """What every guard has to say."""
    found = {name: check(evidence) for name, check in GUARDS.items()}
    return tuple(Caution(name, *each) for name, each in found.items() if each is not None)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@guard("train-mode")
def train_mode(evidence: Evidence) -> Found | None:
    """The model was given in training mode."""
    if not evidence.was_training:
        return None
    return Found("The model was given in training mode; it was evaluated in evaluation mode and then put back.", 1.0)


@guard("nan-logits")
def nan_logits(evidence: Evidence) -> Found | None:
    """Some logits are not finite; such rows count as misclassified."""
    count = int((evidence.outcomes.frame["status"] == "nan").sum())
    if not count:
        return None
    return Found(f"{count} rows have logits that are not finite; they count as misclassified.", float(count))


@guard("softmax-outputs")
@_on_sample
def softmax_outputs(_: Evidence, probe: Probe) -> Found | None:
    """The outputs are probabilities, whose gradients vanish where the model is sure."""
    logits = probe.logits
    distance = float((logits.sum(1) - 1).abs().max())
    if logits.shape[1] < 2 or not (bool((logits >= 0).all()) and distance < 1e-3):
        return None
    return Found("The outputs look like softmax probabilities; give logits, or gradients vanish.", distance)


@guard("logit-range")
@_on_sample
def logit_range(_: Evidence, probe: Probe) -> Found | None:
    """The logits span so little that a cross-entropy attack is weak, as with cosines (HE)."""
    span = float((probe.logits.amax(1) - probe.logits.amin(1)).max())
    if not span < 2:
        return None
    return Found(f"The logits span {span:.2g} at most, as cosines do; trust attacks on a margin or a large 1/T.", span)


_NOISE = 1e-4
"""Relative differences of logits below this are rounding."""


def _difference(one: Tensor, two: Tensor) -> float:
    """The largest difference of two sets of logits, relative to their size."""
    return float((one - two).abs().max() / (1 + one.abs().max()))


@guard("nondeterministic")
@_on_sample
def nondeterministic(_: Evidence, probe: Probe) -> Found | None:
    """The same images give other logits the second time."""
    change = _difference(probe.logits, probe.logits_of(probe.batch.x))
    if change <= _NOISE:
        return None
    return Found("The same batch gives other outputs each time; attack the expectation over the randomness.", change)


@guard("batch-dependence")
@_on_sample
def batch_dependence(_: Evidence, probe: Probe) -> Found | None:
    """An image's logits depend on its neighbours in the batch."""
    order = torch.argsort(probe.batch.y.cpu(), stable=True)
    halves = [probe.logits_of(probe.batch.x[part.to(probe.batch.x.device)]) for part in order.chunk(2)]
    again = probe.logits_of(probe.batch.x)
    change = _difference(again[order], torch.cat(halves))
    if change <= _NOISE or _difference(probe.logits, again) > _NOISE:  # the second is the guard above
        return None
    return Found("An image's outputs depend on the other images of its batch; results hold for these batches.", change)


@guard("zero-radius")
@_on_sample
def zero_radius(evidence: Evidence, probe: Probe) -> Found | None:
    """An attack of radius 0 changes the accuracy."""
    for label, attack in {type(attack): (label, attack) for label, attack in evidence.attacks.items()}.values():
        extra = int((probe.broken(attack, Threat(probe.threat.norm, 0.0)) & ~probe.wrong).sum())
        if extra:
            return Found(
                f"{label!r} with radius 0 breaks {extra} right images; the model answers differently each time.",
                float(extra),
            )
    return None


@guard("outside-ball")
def outside_ball(evidence: Evidence) -> Found | None:
    """A kept image is farther away than the radius allows; only outcomes made elsewhere can say so."""
    frame = evidence.outcomes.frame
    excess = (frame["distance"] - frame["epsilon"]).fillna(0)
    far = excess > 1e-5 + 1e-4 * frame["epsilon"].fillna(0)
    if not far.any():
        return None
    label = str(frame["attack"].iloc[int(excess.to_numpy().argmax())])
    return Found(f"{int(far.sum())} images lie outside the ball, most under {label!r}.", float(excess.max()))


ZERO_SHARE, ZERO_CLASS_SHARE = 0.05, 0.1
"""Zero gradients above these shares, overall or in one class, hide the true robustness."""


@guard("zero-gradients")
def zero_gradients(evidence: Evidence) -> Found | None:
    """Many gradients are zero everywhere: the attack has nothing to follow, perhaps in one class alone."""
    frame = evidence.outcomes.frame
    told = frame[frame["zero_gradients"].notna() & (frame["backwards"].fillna(0) > 0)]
    for label in evidence.outcomes.attacks:
        rows = told[told["attack"] == label]
        if not len(rows):
            continue
        share = float(rows["zero_gradients"].sum() / rows["backwards"].sum())
        sums = rows.groupby("label")[["zero_gradients", "backwards"]].sum()
        by_class = (sums["zero_gradients"] / sums["backwards"]).reindex(range(evidence.outcomes.num_classes))
        shares = by_class.astype(float).fillna(0.0).to_numpy()
        worst = int(shares.argmax())
        if share > ZERO_SHARE or shares[worst] > ZERO_CLASS_SHARE:
            part = f"{_percent(shares[worst])} in {evidence.outcomes.class_names[worst]!r}"
            where = f"{_percent(share)} of the gradients of {label!r} are zero ({part})"
            return Found(f"{where}; robustness may only be hidden.", share)
    return None


STRONGER_SHARE = 0.03


@guard("single-step")
@_on_sample
def single_step(evidence: Evidence, probe: Probe) -> Found | None:
    """A single step breaks images that the whole suite left standing."""
    if all(attack_length(attack) == 1 for attack in evidence.attacks.values()):
        return None
    judged = evidence.outcomes.judged(ALL)
    standing = torch.isin(probe.batch.index.cpu(), torch.from_numpy(judged.image[judged.correct]))
    if not standing.any():
        return None
    extra = int((probe.broken(FGSM(), probe.threat) & standing).sum())
    if extra <= STRONGER_SHARE * len(standing):
        return None
    share = extra / len(standing)
    return Found(
        f"One step breaks {_percent(share)} of a sample that stood against the suite: masked gradients.", share
    )


@guard("large-radius")
@_on_sample
def large_radius(_: Evidence, probe: Probe) -> Found | None:
    """At a radius that reaches the grey image, more is left than guessing one class could leave.

    At Linf 0.5 every image can become the grey one, so that accuracy is at most the share of the largest class; L2 and
    L1 balls of radius 0.5 sqrt(D) and 0.5 D hold that image too.
    """
    x, y = probe.batch.x, probe.batch.y
    size = math.prod(x.shape[1:])
    reach = {"Linf": 0.5, "L2": 0.5 * math.sqrt(size), "L1": 0.5 * size}[probe.threat.norm]
    broken = probe.broken(PGD(steps=20, step_size="0.1eps"), Threat(probe.threat.norm, reach))
    standing, share = 1 - float(broken.float().mean()), float(torch.bincount(y).max()) / len(y)
    if standing <= share + 3 * math.sqrt(share * (1 - share) / len(y)):
        return None
    what = f"At {probe.threat.norm} {reach:g} the accuracy of a sample is still {_percent(standing)}"
    return Found(f"{what}, where {_percent(share)} is possible: the attack is too weak.", standing)


LATE_SHARE = 0.02


@guard("not-converged")
def not_converged(evidence: Evidence) -> Found | None:
    """Images still fall in the last quarter of an attack's steps."""
    if evidence.outcomes.meta.stop != "broken":
        return None
    for label, attack in evidence.attacks.items():
        if attack.length < 4 or label not in evidence.outcomes.attacks:
            continue
        rows = evidence.outcomes.rows(label)
        rows = rows[rows["backwards"].fillna(0) > 0]
        late = ~rows["correct"] & (rows["iterations"] > 0.75 * attack.length).fillna(False)
        share = float(late.mean()) if len(rows) else 0.0
        if share > LATE_SHARE:
            return Found(
                f"{_percent(share)} of the images fall in the last quarter of {label!r}: take more steps.", share
            )
    return None


@guard("training-attack")
def training_attack(evidence: Evidence) -> Found | None:
    """The only attacks are the one that the model was trained against, or the usual training attack."""
    attacks = list(evidence.attacks.values())
    if not attacks:
        return None
    if evidence.training_attack is not None and all(attack == evidence.training_attack for attack in attacks):
        return Found("The only attack is the one that the model was trained against; add others.")
    if all(_is_usual_training(attack) for attack in attacks):
        return Found("The only attack is one that models are usually trained against; add others.")
    return None


def _is_usual_training(attack: Attack) -> bool:
    few = attack_length(attack) <= 10
    return few and (isinstance(attack, FGSM) or (isinstance(attack, PGD) and attack.objective != "margin"))


@guard("training-images")
def training_images(evidence: Evidence) -> Found | None:
    """The images are those of a split that training or selection has seen."""
    split = evidence.outcomes.meta.split
    if split not in ("train", "valid"):
        return None
    return Found(f"The images are of the {split!r} split, which training has seen; audit on test images.")


SELECTION_BIAS = 0.005
"""Half a point: below it the choice of the worst class does not show."""


@guard("same-images")
def same_images(evidence: Evidence) -> Found | None:
    """The worst class is chosen and measured on the same images, and another class might be the worst."""
    counts = evidence.outcomes.counts(ALL)
    suspects: IntArray = possibly_worst(counts).nonzero()[0]
    if len(suspects) < 2:
        return None
    least = minimum(counts)
    if least.split - least.plug_in < SELECTION_BIAS:
        return None
    name = evidence.outcomes.class_names[least.label]
    what = f"{len(suspects)} classes may be the worst; {name!r} ({_percent(least.plug_in)}) was chosen on these images"
    if math.isnan(least.split):
        return Found(f"{what}, which is too low on average.")
    return Found(
        f"{what}, which is too low on average; chosen on one half and measured on the other: {_percent(least.split)}.",
        least.split - least.plug_in,
    )


@guard("incomplete")
def incomplete(evidence: Evidence) -> Found | None:
    """The audit was stopped before every attack had judged every image."""
    missing = evidence.outcomes.missing
    if not missing:
        return None
    left = ", ".join(f"{label} {count}" for label, count in missing.items())
    return Found(f"The audit was stopped; images not judged: {left}.", float(sum(missing.values())))


@guard("not-repeatable")
def not_repeatable(evidence: Evidence) -> Found | None:
    """Something voids the promise of the same bits."""
    notes = evidence.outcomes.meta.notes
    return Found(f"Another run may differ in the last bits: {'; '.join(notes)}.", float(len(notes))) if notes else None
