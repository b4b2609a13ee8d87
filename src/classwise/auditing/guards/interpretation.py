"""Guards of interpretation: which attacks ran, on which images, and how the worst class was selected."""

from __future__ import annotations

import math

import numpy as np

from classwise.attacks.base import Attack
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.guards.evidence import NOT_APPLICABLE, Evidence, Result, guard, percent
from classwise.auditing.outcomes.table import ALL
from classwise.stats.counts import IntArray
from classwise.stats.metrics.lowest import minimum
from classwise.stats.rational import difference
from classwise.stats.worst_class import possibly_worst

_OTHERS = "add others, such as --attack autoattack"


@guard(early=True)
def training_attack(evidence: Evidence) -> Result:
    """The only attacks are the training attack of the model, or usual training attacks."""
    attacks = list(evidence.attacks.values())
    if not attacks:
        return NOT_APPLICABLE
    trained = None if evidence.training is None else evidence.training.attack
    if trained is not None and all(attack == trained for attack in attacks):
        return f"The only attack is the one that the model was trained against; {_OTHERS}.", math.nan
    if all(_is_usual_training(attack) for attack in attacks):
        return f"All attacks are usual training attacks (FGSM, or PGD of at most 10 steps); {_OTHERS}.", math.nan
    return None


def _is_usual_training(attack: Attack) -> bool:
    """Whether an attack is FGSM or PGD of at most 10 steps, and not on the margin."""
    short = attack.total_length <= 10
    return short and (isinstance(attack, FGSM) or (isinstance(attack, PGD) and attack.objective != "margin"))


@guard(early=True)
def training_images(evidence: Evidence) -> Result:
    """The images are those of the training or of model selection, or a logit adjustment was fitted on them."""
    if evidence.fitted:
        what = f"The logit adjustment of the model was fitted on {evidence.fitted:,} of the images"
        return f"{what}, whose accuracies are too high; audit on other images.", float(evidence.fitted)
    meta = evidence.outcomes.meta
    if evidence.training is not None and meta.data_hash:
        used = {evidence.training.images: "training images", evidence.training.validation: "validation images"}
        if meta.data_hash in used:
            return f"The images are the {used[meta.data_hash]} of the model's run; audit on test images.", math.nan
    split = meta.split
    if not split:
        return NOT_APPLICABLE
    if split not in ("train", "valid"):
        return None
    return (
        f"The images are from the {split!r} split, which training or model selection uses; audit on test images.",
        math.nan,
    )


BOUNDS_ONLY = "Accuracies are bounds until --resume completes the audit."
SELECTION_BIAS = 0.005
"""Threshold on the bias from selecting the worst class on the same images (a fraction, half a point)."""


@guard()
def same_images(evidence: Evidence) -> Result:
    """The worst class is selected and measured on the same images, and another class might be the worst."""
    if not evidence.outcomes.complete:  # there are bounds and no estimates
        return NOT_APPLICABLE
    counts = evidence.outcomes.counts(ALL)
    suspects: IntArray = possibly_worst(counts).nonzero()[0]
    if len(suspects) < 2:
        return None
    least = minimum(counts)
    if difference(least.split - least.plug_in, SELECTION_BIAS) < 0:
        return None
    name = evidence.outcomes.class_names[least.label]
    what = (
        f"{len(suspects)} classes may be the worst; {name!r} ({percent(least.plug_in)}) was selected on the same images"
    )
    what = f"{what}, which biases its accuracy downwards"
    if math.isnan(least.split):
        return f"{what}.", math.nan
    return (
        f"{what}; selected on one half and measured on the other: {percent(least.split)}.",
        least.split - least.plug_in,
    )


EFFECTIVE = 0.9
"""Threshold on the effective share of the images, of all or of one class; at 0.9 intervals are 5 % too narrow."""


@guard()
def duplicates(evidence: Evidence) -> Result:
    """Some images occur several times, so that intervals for new images are too narrow."""
    found = evidence.duplicates
    if found is None or not found.distinct:
        return NOT_APPLICABLE
    images, effective = found.images, found.effective
    total, overall = int(images.sum()), found.effective_overall
    shares = np.divide(effective, images, out=np.ones_like(effective), where=images > 0)
    least = int(shares.argmin())
    if overall >= EFFECTIVE * total and shares[least] >= EFFECTIVE:
        return None
    what = f"{found.distinct:,} of {total:,} images are different, and the others are duplicates"
    part = f"of {evidence.name_of(least)} {images[least]:,} as many as {effective[least]:,.0f}"
    effect = f"intervals are too narrow, since they count as many as {overall:,.0f} different images ({part})"
    return f"{what}; {effect}: evaluate each image once, with --unique.", overall


@guard()
def incomplete(evidence: Evidence) -> Result:
    """The audit was stopped before every attack had run on every image, or on its sample."""
    outcomes = evidence.outcomes
    if outcomes.meta.sampled:  # an estimate says itself how far it got
        return NOT_APPLICABLE
    if outcomes.complete:
        return None
    return f"{outcomes.gap.capitalize()}. {BOUNDS_ONLY}", float(sum(outcomes.missing.values()))


@guard()
def not_repeatable(evidence: Evidence) -> Result:
    """The run chose a precision or a batch size that a repetition may not choose, so its rounding may differ."""
    notes = evidence.outcomes.meta.irreproducible
    if not notes:
        return None
    return f"The results may not be reproducible bit for bit: {'; '.join(notes)}.", float(len(notes))
