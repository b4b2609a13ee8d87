"""Guards of how the numbers may be read: which attacks, which images, and which class of them."""

from __future__ import annotations

import math

from classwise.attacks.base import Attack
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.guards.evidence import Evidence, Found, Guard, percent
from classwise.auditing.outcomes import ALL
from classwise.auditing.suite import attack_length
from classwise.stats.counts import IntArray
from classwise.stats.worst_class import minimum, possibly_worst


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


def training_images(evidence: Evidence) -> Found | None:
    """The images are those of a split that training or selection has seen."""
    split = evidence.outcomes.meta.split
    if split not in ("train", "valid"):
        return None
    return Found(f"The images are of the {split!r} split, which training has seen; audit on test images.")


BOUNDS_ONLY = "Accuracies are bounds until --resume completes it."
SELECTION_BIAS = 0.005
"""Half a point: below it the choice of the worst class does not show."""


def same_images(evidence: Evidence) -> Found | None:
    """The worst class is chosen and measured on the same images, and another class might be the worst."""
    if not evidence.outcomes.complete:  # then there is no estimate that could be biased
        return None
    counts = evidence.outcomes.counts(ALL)
    suspects: IntArray = possibly_worst(counts).nonzero()[0]
    if len(suspects) < 2:
        return None
    least = minimum(counts)
    if least.split - least.plug_in < SELECTION_BIAS:
        return None
    name = evidence.outcomes.class_names[least.label]
    what = f"{len(suspects)} classes may be the worst; {name!r} ({percent(least.plug_in)}) was chosen on these images"
    if math.isnan(least.split):
        return Found(f"{what}, which is too low on average.")
    return Found(
        f"{what}, which is too low on average; chosen on one half and measured on the other: {percent(least.split)}.",
        least.split - least.plug_in,
    )


def incomplete(evidence: Evidence) -> Found | None:
    """The audit was stopped before every attack had judged every image."""
    outcomes = evidence.outcomes
    if outcomes.complete:
        return None
    return Found(f"{outcomes.gap.capitalize()}. {BOUNDS_ONLY}", float(sum(outcomes.missing.values())))


def not_repeatable(evidence: Evidence) -> Found | None:
    """Something voids the promise of the same bits."""
    notes = evidence.outcomes.meta.notes
    return Found(f"Another run may differ in the last bits: {'; '.join(notes)}.", float(len(notes))) if notes else None


GUARDS: dict[str, Guard] = {
    "training-attack": training_attack,
    "training-images": training_images,
    "same-images": same_images,
    "incomplete": incomplete,
    "not-repeatable": not_repeatable,
}
