"""Guards of the model: its mode, its outputs, and what it expects of its inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from classwise.auditing.guards.evidence import Evidence, Found, Guard, Probe, Scale, on_sample, percent
from classwise.stats.paired import mcnemar


def train_mode(evidence: Evidence) -> Found | None:
    """The model was given in training mode."""
    if not evidence.was_training:
        return None
    return Found("The model was given in training mode; it was evaluated in evaluation mode and then put back.", 1.0)


def untrained(evidence: Evidence) -> Found | None:
    """The weights are random ones."""
    if not evidence.untrained:
        return None
    return Found("The network has the random weights it was built with; give trained ones, as --weights FILE.", 1.0)


def overwrites_input(evidence: Evidence) -> Found | None:
    """The model writes into its input, as ``x.clamp_()`` and ``x.sub_(mean)`` do."""
    if not evidence.overwrites:
        return None
    what = "The model changes the images that it is given in place; it was given a copy in every pass"
    return Found(f"{what}, but other code that calls it may lose its images.", 1.0)


def nan_logits(evidence: Evidence) -> Found | None:
    """Some logits are not finite; such rows count as misclassified."""
    frame = evidence.outcomes.frame
    labels = frame.loc[frame["status"] == "nan", "label"]
    if not len(labels):
        return None
    worst = int(labels.mode().iloc[0])
    what = f"{len(labels)} rows have logits that are not finite ({int((labels == worst).sum())} of them"
    return Found(f"{what} in {evidence.name_of(worst)}); they count as misclassified.", float(len(labels)))


@on_sample
def softmax_outputs(_: Evidence, probe: Probe) -> Found | None:
    """The outputs are probabilities, whose gradients vanish where the model is sure."""
    logits = probe.logits
    distance = float((logits.sum(1) - 1).abs().max())
    if logits.shape[1] < 2 or not (bool((logits >= 0).all()) and distance < 1e-3):
        return None
    return Found("The outputs look like softmax probabilities; give logits, or gradients vanish.", distance)


@on_sample
def logit_range(_: Evidence, probe: Probe) -> Found | None:
    """The logits span so little that a cross-entropy attack is weak, as with cosines (HE)."""
    span = float((probe.logits.amax(1) - probe.logits.amin(1)).max())
    if not span < 2:
        return None
    return Found(f"The logits span {span:.2g} at most, as cosines do; trust attacks on a margin or a large 1/T.", span)


_NOISE = 1e-4
"""Relative differences of logits below this are rounding."""


def _difference(one: Tensor, two: Tensor) -> float:
    """The largest difference of two sets of logits, relative to their size.

    Equal values that are not finite (a NaN equals a NaN) do not differ; a value that is not finite only once makes the
    difference infinite.
    """
    equal = (one == two) | (one.isnan() & two.isnan())
    change = torch.where(equal, 0.0, (one - two).abs().nan_to_num(torch.inf, torch.inf))
    return float(change.max() / (1 + one.nan_to_num(0.0, 0.0, 0.0).abs().max()))


@on_sample
def nondeterministic(_: Evidence, probe: Probe) -> Found | None:
    """The same images give other logits the second time."""
    change = _difference(probe.logits, probe.logits_of(probe.batch.x))
    if change <= _NOISE:
        return None
    return Found("The same batch gives other outputs each time; attack the expectation over the randomness.", change)


@on_sample
def batch_dependence(_: Evidence, probe: Probe) -> Found | None:
    """An image's logits depend on its neighbours in the batch."""
    order = torch.argsort(probe.labels, stable=True)
    halves = [probe.logits_of(probe.batch.x[part.to(probe.batch.x.device)]) for part in order.chunk(2)]
    again = probe.logits_of(probe.batch.x)
    change = _difference(again[order], torch.cat(halves))
    if change <= _NOISE or _difference(probe.logits, again) > _NOISE:  # the second is the guard above
        return None
    return Found("An image's outputs depend on the other images of its batch; results hold for these batches.", change)


RISE, RISE_LEVEL = 0.1, 0.001
"""A rise of the clean accuracy by more than this, with a p-value below this, is the work of another scale of pixels."""


@on_sample
def normalised_outside(_: Evidence, probe: Probe) -> Found | None:
    """The model knows its images better on another scale of pixels: it was trained on normalised ones."""
    right, found = ~probe.wrong, None
    before = float(right.float().mean())
    for name, pixels in _scaled(probe):
        now = probe.right(probe.logits_of(pixels))
        rise = float(now.float().mean()) - before
        chance = float(mcnemar(int((right & ~now).sum()), int((now & ~right).sum())))
        if rise > max(RISE, found.value if found else 0.0) and chance < RISE_LEVEL:
            what = f"The clean accuracy of a sample rises from {percent(before)} to {percent(before + rise)}"
            found = Found(f"{what} when its pixels are {name}: put the normalisation into the model.", rise)
    return found


IMAGENET = Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _scaled(probe: Probe) -> Iterator[tuple[str, Tensor]]:
    """The sample on the scales that models are trained on, each with its name."""
    x = probe.batch.x
    channels = x.shape[1]
    own = Scale(tuple(x.mean((0, 2, 3)).tolist()), tuple(x.std((0, 2, 3)).clamp_min(1e-3).tolist()))
    yield "standardised by the data's mean and deviation", _standardised(x, probe.scale or own)
    if channels == len(IMAGENET.mean):
        yield "standardised by ImageNet's mean and deviation", _standardised(x, IMAGENET)
    yield "moved to [-1, 1]", 2 * x - 1
    yield "moved to 0..255", 255 * x


def _standardised(x: Tensor, scale: Scale) -> Tensor:
    mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device).view(1, -1, 1, 1) for values in scale)
    return (x - mean) / std


GUARDS: dict[str, Guard] = {
    "nan-logits": nan_logits,
    "train-mode": train_mode,
    "untrained": untrained,
    "overwrites-input": overwrites_input,
    "softmax-outputs": softmax_outputs,
    "logit-range": logit_range,
    "nondeterministic": nondeterministic,
    "batch-dependence": batch_dependence,
    "normalised-outside": normalised_outside,
}
