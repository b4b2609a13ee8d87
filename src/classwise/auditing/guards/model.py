"""Guards of the model: its mode, its outputs, the normalisation of its inputs, and the order of its classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from classwise.auditing.guards.evidence import (
    NOT_APPLICABLE,
    Evidence,
    Probe,
    Result,
    Undecided,
    guard,
    percent,
    undecided,
)
from classwise.auditing.outcomes.meta import CHANGED_NOTE
from classwise.data.labels import order_advice
from classwise.models.loading.loader import before_normalisation, normalization_layer
from classwise.models.normalization import InputScale, usual_scales
from classwise.stats.class_order import (
    MOST_CLASSES,
    ClassOrder,
    at_chance,
    below_chance,
    explains_best,
    images_needed,
    likely_order,
    occurring_classes,
)
from classwise.stats.paired import mcnemar
from classwise.stats.rational import difference


@guard(early=True)
def nan_logits(evidence: Evidence) -> Result:
    """Some logits are NaN or +inf, or all of an image are -inf; such rows count as misclassified."""
    frame = evidence.outcomes.frame
    labels = frame.loc[frame["status"] == "nan", "label"]
    if not len(labels):
        return None
    worst = int(labels.mode().iloc[0])
    what = f"{len(labels)} rows have no prediction, since logits are NaN or +inf, or all are -inf"
    part = f"{int((labels == worst).sum())} of them in {evidence.name_of(worst)}"
    return f"{what} ({part}); they count as misclassified.", float(len(labels))


@guard()
def train_mode(evidence: Evidence) -> Result:
    """The model was in training mode when it was passed to the audit."""
    if not evidence.was_training:
        return None
    return ("The model was in training mode; it was evaluated in evaluation mode and then switched back.", 1.0)


@guard(early=True)
def untrained(evidence: Evidence) -> Result:
    """The network has its random initial weights."""
    if evidence.untrained is None:
        return NOT_APPLICABLE
    if not evidence.untrained:
        return None
    return "The network has its random initial weights; load trained ones, e.g. with --weights FILE.", 1.0


@guard()
def overwrites_input(evidence: Evidence) -> Result:
    """The model writes into its input, as ``x.clamp_()`` and ``x.sub_(mean)`` do."""
    if not evidence.overwrites:
        return None
    what = "The model modifies its input in place; the audit passed it copies"
    return f"{what}, but other code that calls it may not.", 1.0


@guard()
def changed_model(evidence: Evidence) -> Result:
    """An attack changed the model, which was restored, or the model's own passes change its buffers."""
    notes = [note for note in evidence.outcomes.meta.notes if note.startswith(CHANGED_NOTE)]
    if not notes:
        return None
    causes = "; ".join(note.removeprefix(CHANGED_NOTE) for note in notes)
    return f"The model was changed {causes}.", float(len(notes))


@guard(reads="sample")
def softmax_outputs(_: Evidence, probe: Probe) -> Result:
    """The outputs are probabilities, whose gradients vanish where the model is confident."""
    logits = probe.logits
    if logits.shape[1] < 2:
        return NOT_APPLICABLE
    distance = float((logits.sum(1) - 1).abs().max())
    if not (bool((logits >= 0).all()) and distance < 1e-3):
        return None
    what = "The outputs look like softmax probabilities, whose gradients vanish"
    return f"{what}; return logits, or give --outputs probabilities.", distance


@guard(reads="sample", presumes=("untrained", "softmax-outputs", "normalised-outside"))
def logit_range(evidence: Evidence, probe: Probe) -> Result:
    """The range of the logits is so small that cross-entropy attacks are weak, as for cosines (HE)."""
    span = float((probe.logits.amax(1) - probe.logits.amin(1)).max())
    if not span < 2:
        return None
    margin, temperature = "--attack pgd:objective=margin", "--attack tpgd:inverse_temperature=50"
    usual = f"use attacks on the margin or with a large 1/T, such as {margin} and {temperature}"
    advice = evidence.unsolved(logit_range.presumes) or usual
    return f"The logits span at most {span:.2g}, as cosines do; {advice}.", span


_NOISE = 1e-4
"""Relative differences of logits up to this are attributed to rounding."""


def _difference(one: Tensor, two: Tensor) -> float:
    """The largest difference between two sets of logits, relative to their magnitude.

    Equal values that are not finite do not differ (a NaN equals a NaN). If a value is not finite in one set only, the
    difference is infinite.
    """
    equal = (one == two) | (one.isnan() & two.isnan())
    change = torch.where(equal, 0.0, (one - two).abs().nan_to_num(torch.inf, torch.inf))
    return float(change.max() / (1 + one.nan_to_num(0.0, 0.0, 0.0).abs().max()))


def is_random(probe: Probe) -> bool:
    """Whether an audit that decides over several passes has a model whose passes differ."""
    return probe.engine.passes.repeats.count > 1 and _difference(probe.logits, probe.again) > _NOISE


@guard(reads="sample", passes=lambda _, probe: len(probe), most=1)
def nondeterministic(evidence: Evidence, probe: Probe) -> Result:
    """Two passes of the same batch give different logits, and single passes decide about images or guide attacks."""
    change = _difference(probe.logits, probe.again)
    advice = []
    if probe.engine.passes.repeats.count == 1:
        advice.append("decide about images over several passes (--repeats 8)")
    if all(getattr(attack, "eot_iter", 1) == 1 for attack in evidence.attacks.values()) and evidence.attacks:
        advice.append("attack the expectation of the outputs (eot_iter, as in apgd-ce:eot_iter=20)")
    if change <= _NOISE:
        return None
    if not advice:  # the audit already averages over passes
        return NOT_APPLICABLE
    what = "The outputs of the same batch vary between passes"
    return f"{what}; {' and '.join(advice)}.", change


@guard(reads="sample", passes=lambda _, probe: 2 * len(probe) if len(probe) > 1 else 0, most=2, priority=5)
def batch_dependence(_: Evidence, probe: Probe) -> Result:
    """An image's logits depend on the other images of its batch."""
    if len(probe) < 2:
        return undecided(2, len(probe))
    order = torch.argsort(probe.labels, stable=True)
    halves = [probe.logits_of(probe.batch.x[part.to(probe.batch.x.device)]) for part in order.chunk(2)]
    again = probe.logits_of(probe.batch.x)
    change = _difference(again[order], torch.cat(halves))
    if change <= _NOISE or _difference(probe.logits, again) > _NOISE:  # the second case is nondeterminism
        return None
    return (
        "An image's outputs depend on the other images of its batch; the results apply to these batches only.",
        change,
    )


RISE, RISE_LEVEL = 0.1, 0.001
"""Thresholds on the increase of the clean accuracy on rescaled pixels (a fraction), and on its p-value."""
RISE_IMAGES = next(images for images in itertools.count(1) if mcnemar(0, images) < RISE_LEVEL)
"""The fewest images whose correction gives a p-value below the threshold."""


def _rescaling_cost(evidence: Evidence, probe: Probe) -> int:
    """A pass of the sample on each scale, unless the clean accuracy cannot rise, or not significantly."""
    wrong = int((~evidence.clean).sum())
    if wrong <= RISE * len(evidence.clean) or wrong < RISE_IMAGES:
        return 0
    return len(probe) * sum(1 for _ in _scaled(probe))


@guard(
    reads="sample",
    passes=_rescaling_cost,
    most=5,
    priority=2,
    symptom=lambda evidence: at_chance(*evidence.clean_predictions) is not None,
)
def normalised_outside(evidence: Evidence, probe: Probe) -> Result:
    """The clean accuracy is higher on rescaled pixels: the model lacks a normalisation, or has one too many."""
    right, found, largest = evidence.clean, None, RISE
    clean, wrong = float(right.float().mean()), int((~right).sum())
    if wrong <= RISE * len(right):  # it cannot rise by more
        return None
    if wrong < RISE_IMAGES:
        return undecided(RISE_IMAGES * len(right) / wrong, len(right))
    for name, pixels, advice in _scaled(probe):
        try:
            now = probe.correct(probe.logits_of(pixels))
        except Exception:  # noqa: BLE001, S112  # the model refuses pixels outside [0, 1], as one of MAITE may
            continue
        accuracy = float(now.float().mean())
        rise = accuracy - max(clean, 1 / probe.logits.shape[1])  # any pixels raise an accuracy below chance to chance
        p_value = float(mcnemar(int((right & ~now).sum()), int((now & ~right).sum())))
        if difference(rise, largest) > 0 and p_value < RISE_LEVEL:
            what = f"The clean accuracy of a sample rises from {percent(clean)} to {percent(accuracy)}"
            largest = rise
            found = f"{what} with pixels {name}: {advice}.", rise
    return found


def _scaled(probe: Probe) -> Iterator[tuple[str, Tensor, str]]:
    """Yield the sample on each scale that models are commonly trained on, with its name and what to do.

    A stated normalisation is cancelled, so that the network behind it sees the scale.
    """
    x, model = probe.batch.x, probe.engine.model
    what = "include the normalisation in the model"
    if normalization_layer(model) is not None:
        what = "correct the normalisation"
        name = "that cancel the normalisation in front of the network"
        advice = "omit it (--mean and --std) if the network has its own, else give the constants of the training code"
        yield name, before_normalisation(model, x), advice
    data = "standardised with the mean and deviation of the data"
    own = InputScale(tuple(x.mean((0, 2, 3)).tolist()), tuple(x.std((0, 2, 3)).clamp_min(1e-3).tolist()))
    scales = {data: probe.scale or own, **usual_scales(x.shape[1])}
    for name, scale in scales.items():
        origin = ", the constants of these data; prefer those of the training code" if name == data else ""
        yield name, before_normalisation(model, scale.standardise(x)), f"{what}, {scale.option}{origin}"


SHOWN = 3
"""Number of moved classes that the warning names."""


@guard(early=True)
def class_order(evidence: Evidence) -> Result:
    """The classes of the data and the outputs of the model are in different orders, or the model is below chance."""
    labels, predictions = evidence.clean_predictions
    labels, predictions = labels[predictions >= 0], predictions[predictions >= 0]
    if not len(labels):
        return NOT_APPLICABLE
    too_few = len(labels) < images_needed()
    found = likely_order(labels, predictions, evidence.outcomes.class_names)
    if found is not None:
        return _sentence(evidence, found), found.accuracy.value
    low = below_chance(labels, predictions)
    if low is not None:
        what = f"The clean accuracy ({percent(low.accuracy)}) is significantly below chance ({percent(low.expected)})"
        reason = "no other order of the classes explains the predictions far better"
        if too_few:
            reason = f"{images_needed()} images are needed to find the order of the classes"
        return f"{what}; {reason}: check labels, class names and preprocessing.", low.accuracy
    if occurring_classes(labels, predictions) > MOST_CLASSES:
        return Undecided(f"of more than {MOST_CLASSES:,} classes only usual orders are tested")
    if too_few and not explains_best(labels, predictions):
        return undecided(images_needed(), len(labels))
    return None


def _sentence(evidence: Evidence, found: ClassOrder) -> str:
    """The warning about another order: which, the accuracy in it, and what to do."""
    moved = np.flatnonzero(found.order != np.arange(len(found.order)))
    pairs = [
        f"{evidence.name_of(int(label))} -> {evidence.name_of(int(found.order[label]))}" for label in moved[:SHOWN]
    ]
    more = f" and {len(moved) - SHOWN:,} more" if len(moved) > SHOWN else ""
    which = f"{found.name}: {', '.join(pairs)}{more}".removeprefix(": ")
    accuracy, low, high = (percent(share) for share in found.accuracy)
    what = f"The classes of the data and the outputs of the model are in different orders, likely {which}"
    gain = f"with it the clean accuracy of {found.images:,} other images is {accuracy} (95 % interval {low} to {high})"
    labels = evidence.labels if evidence.labels is None or evidence.labels else evidence.outcomes.class_names
    how = order_advice(labels, found.order.tolist())
    return f"{what}; {gain} instead of {percent(found.present)}: {how}."
