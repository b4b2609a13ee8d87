"""Guards of the gradients: whether they exist, point in the right direction, and find more than other attacks do.

Attacks without gradients should not find more than those with them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import FGSM
from classwise.attacks.losses import margin
from classwise.auditing.guards.evidence import (
    NOT_APPLICABLE,
    Evidence,
    Probe,
    Reads,
    Result,
    Undecided,
    guard,
    percent,
    quoted,
    undecided,
)
from classwise.auditing.guards.model import is_random
from classwise.auditing.guards.significance import attack_excess, significant_class
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.models.logits import are_valid, raised
from classwise.threat.ball import grey_radius

ZERO_SHARE, ZERO_CLASS_SHARE = 0.05, 0.1
"""Thresholds on the share of zero gradients, overall and in one class."""


@guard()
def no_gradient(evidence: Evidence) -> Result:
    """The model has no gradient with respect to its input, so attacks that need one cannot be applied."""
    if not evidence.no_gradient:
        return None
    skipped, applied = evidence.outcomes.meta.not_applicable, tuple(evidence.attacks)
    what = f"The model has no gradient: {evidence.no_gradient}"
    if not applied:
        detail = "no attack was requested, so robustness was not evaluated; use --attack square"
    elif skipped:
        detail = f"not applicable: {quoted(skipped)}; the results are based on {quoted(applied)} only"
    else:
        detail = f"the results are based on gradient-free attacks ({quoted(applied)}) only"
    return f"{what}; {detail}.", float(len(skipped))


@guard()
def zero_gradients(evidence: Evidence) -> Result:
    """Many gradients are entirely zero, so that attacks cannot make progress; possibly in one class only."""
    frame = evidence.outcomes.frame
    reported = frame[frame["zero_gradients"].notna() & (frame["backwards"].fillna(0) > 0) & (frame["status"] != "nan")]
    if not len(reported):
        return NOT_APPLICABLE
    for label in evidence.outcomes.attacks:
        rows = reported[reported["attack"] == label]
        if not len(rows):
            continue
        # The steps of a cycle that was recognised count, but take no passes.
        rows = rows.assign(zero_gradients=rows["zero_gradients"].clip(upper=rows["backwards"]))
        share = float(rows["zero_gradients"].sum() / rows["backwards"].sum())
        sums = rows.groupby("label")[["zero_gradients", "backwards"]].sum()
        by_class = (sums["zero_gradients"] / sums["backwards"]).reindex(range(evidence.outcomes.num_classes))
        shares = by_class.astype(float).fillna(0.0).to_numpy()
        worst = int(shares.argmax())
        if share > ZERO_SHARE or shares[worst] > ZERO_CLASS_SHARE:
            part = f"{percent(shares[worst])} in {evidence.name_of(worst)}"
            where = f"{percent(share)} of the gradients of {label!r} are zero ({part})"
            return f"{where}; gradient masking may inflate the robust accuracy.", share
    return None


MISLED_SHARE = 0.1
"""Threshold on the share of images, overall or in a class, whose margin does not decrease along its own gradient."""
SMALL_STEP = 0.1
"""Length of that step as a fraction of the radius."""


def _small_step(probe: Probe) -> Tensor:
    """The step of each image, (N, 1, 1, 1): in every norm a tenth of the radius, spread over the image."""
    x = probe.batch.x
    step = SMALL_STEP * 0.5 / grey_radius(probe.threat.norm, x.shape[1:]) * probe.threat.radius(x)
    return step.expand(len(x), 1, 1, 1)


def _with_step(evidence: Evidence, probe: Probe) -> Tensor:
    """The images that are moved, bool (N,): those that are classified correctly and have a radius above 0."""
    return evidence.clean & (_small_step(probe).flatten().cpu() > 0)


@guard(
    reads="gradients",
    passes=lambda evidence, probe: 3 * int(_with_step(evidence, probe).sum()),  # a gradient and a pass of each image
    most=3,
    pixelwise=True,
)
def misleading_gradients(evidence: Evidence, probe: Probe) -> Result:
    """A small step along the gradient does not decrease the margin: the gradient is that of another function."""
    tried = _with_step(evidence, probe)
    if not tried.any():
        return NOT_APPLICABLE
    if is_random(probe):
        return Undecided("the outputs vary between passes, more than a small step changes them")
    x, y, step = probe.rows(tried).x, probe.labels[tried], _small_step(probe)[tried.to(probe.batch.x.device)]
    logits = probe.logits_of((x + step * probe.margin_gradient(tried).sign()).clamp(0, 1))
    # Rows without a prediction count as misclassified, also if the label's logit is the largest.
    after = torch.where(are_valid(logits), margin(raised(logits), y), -torch.inf)
    misled = torch.zeros_like(tried)
    misled[tried] = ~(after < margin(raised(probe.logits[tried]), y))
    share = int(misled.sum()) / int(tried.sum())
    worst = significant_class(probe.by_class(misled), probe.by_class(tried), MISLED_SHARE)
    if share <= MISLED_SHARE and worst is None:
        return None
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"A small step along the gradient does not decrease the margin of {percent(share)} of a sample{where}"
    return f"{what}: misleading gradients.", share


WEAK_OR_MASKED = "weak attacks or masked gradients"
"""What it means that an attack without the gradient at each step finds more."""
WEAK_SHARE = 0.03
"""Threshold on the share of images on which a weak attack (one step, or noise) succeeds and the suite does not."""


def _by_length(evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of the single-step attacks, and those of the multi-step attacks that use gradients.

    External attacks are neither: the steps inside of them are not known.
    """
    known = {label: attack for label, attack in evidence.attacks.items() if not isinstance(attack, ExternalAttack)}
    short = tuple(label for label, attack in known.items() if attack.total_length == 1)
    return short, tuple(label for label in known if label not in {*short, *evidence.black_box})


def _read_by_single_step(evidence: Evidence) -> Reads:
    """The outcomes, if they compare single-step with multi-step attacks; else FGSM is run on the sample."""
    short, long = _by_length(evidence)
    compared = bool(short and long) and {*short, *long} <= {*evidence.outcomes.passes}
    return "outcomes" if compared else "gradients"


def _has_steps(evidence: Evidence) -> bool:
    """Whether an attack is known to have several steps."""
    return any(attack.total_length > 1 for attack in evidence.attacks.values())


def _single_step_cost(evidence: Evidence, probe: Probe) -> int:
    """One step and its verification for each survivor."""
    if not _has_steps(evidence):
        return 0
    return (2 + probe.verification) * int(evidence.survivors.sum())


@guard(reads=_read_by_single_step, passes=_single_step_cost, most=3, priority=3, pixelwise=True)
def single_step(evidence: Evidence, probe: Probe | None = None) -> Result:
    """A single-step attack succeeds on images that are robust to multi-step attacks, overall or in one class."""
    short, long = _by_length(evidence)
    if probe is not None:
        if not _has_steps(evidence) or not evidence.survivors.any():
            return NOT_APPLICABLE
        return weak_attack_warning(evidence, probe, probe.succeeds_on(evidence.survivors, FGSM()), "a single step")
    order = evidence.outcomes.attacks
    if evidence.outcomes.meta.cascade and order.index(short[0]) < order.index(long[0]):
        return Undecided("in the cascade, multi-step attacks get no image on which a single step succeeds")
    found = attack_excess(evidence.outcomes, short, long)
    if found.label is None and found.extra <= WEAK_SHARE * found.images:
        return None
    where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
    what = f"Single-step attacks ({quoted(short)}) succeed on {found.extra} more images than multi-step attacks"
    return f"{what}{where}: {WEAK_OR_MASKED}.", found.extra / found.images


def weak_attack_warning(evidence: Evidence, probe: Probe, success: Tensor, attack: str) -> Result:
    """Warn if a weak attack succeeds on survivors of the suite, overall or in one class.

    Args:
        evidence: the audit.
        probe: its model and sample.
        success: the images of the sample that survive the suite but not the weak attack, bool (N,).
        attack: the name of the weak attack in the sentence.
    """
    if is_random(probe):
        return Undecided("the outputs vary between passes, so that weak attacks also succeed by chance")
    extra, count = int(success.sum()), len(evidence.survivors)
    worst = significant_class(probe.by_class(success), probe.images, WEAK_SHARE)
    if extra <= WEAK_SHARE * count and worst is None:
        return None
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"{percent(extra / count)} of a sample survive the suite but not {attack}{where}"
    return f"{what}: {WEAK_OR_MASKED}.", extra / count


LATE_SHARE, LATE_CLASS_SHARE = 0.02, 0.05
"""Shares of late successes under the null hypothesis, of all images and of the images of one class."""


@guard()
def not_converged(evidence: Evidence) -> Result:
    """An attack still succeeds on many images in the last quarter of its steps, overall or in one class."""
    outcomes = evidence.outcomes
    if not outcomes.meta.early_stop:
        return NOT_APPLICABLE
    result: Result = NOT_APPLICABLE
    for label, attack in evidence.attacks.items():
        if attack.length < 4:
            continue
        rows = outcomes.frame[outcomes.frame["attack"] == label]
        rows = rows[rows["backwards"].fillna(0) > 0]
        if not len(rows):
            continue
        result = None
        late = (~rows["correct"] & (rows["iterations"] > 0.75 * attack.length).fillna(False)).to_numpy(dtype=np.bool_)
        labels, classes = rows["label"].to_numpy(dtype=np.int64), outcomes.num_classes
        hits, images = (np.bincount(labels[which], minlength=classes) for which in (late, np.ones_like(late)))
        worst = significant_class(hits, images, LATE_CLASS_SHARE)
        share, overall = (
            float(late.mean()),
            significant_class(hits.sum(keepdims=True), images.sum(keepdims=True), LATE_SHARE),
        )
        if overall is not None or worst is not None:
            where = "" if worst is None else f" ({percent(hits[worst] / images[worst])} of {evidence.name_of(worst)})"
            what = f"{label!r} succeeds on {percent(share)} of its images{where} in the last quarter of its steps"
            return f"{what}: use more steps.", share
    return result


DLR_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}
"""Attacks that always use the difference of logits ratio (DLR) loss, and the number of classes that it needs."""


@guard()
def few_classes(evidence: Evidence) -> Result:
    """The difference of logits ratio is used with fewer classes than it needs: three, or four if it is targeted."""
    classes = evidence.outcomes.num_classes
    needed = {label: _classes_needed(attack) for label, attack in evidence.attacks.items()}
    if max(needed.values(), default=2) == 2:
        return NOT_APPLICABLE
    labels = tuple(label for label, least in needed.items() if classes < least)
    if not labels:
        return None
    least = max(needed[label] for label in labels)
    what = f"{quoted(labels)}: the difference of logits ratio needs {least} classes and there are {classes}"
    return f"{what}; another loss is used instead, so the suite is less diverse.", float(classes)


def _classes_needed(attack: Attack) -> int:
    """The number of classes that an attack's loss needs: 4 for the targeted ratio, 3 for the plain one, else 2."""
    losses = [getattr(attack, name, None) for name in ("objective", "loss")]
    return DLR_CLASSES.get(ATTACKS.name_of(type(attack)) or "", 3 if "dlr" in losses else 2)


NOISES = 10
"""Number of noise samples for each image."""


@guard(
    reads="sample",
    passes=lambda evidence, probe: (
        NOISES * probe.verification * int(evidence.survivors.sum()) if evidence.attacks else 0
    ),
    most=NOISES,
    priority=4,
    pixelwise=True,
)
def random_noise(evidence: Evidence, probe: Probe) -> Result:
    """Random noise of the full radius succeeds on images that are robust to the suite, overall or in one class."""
    success = evidence.survivors
    if not (evidence.attacks and success.any()):
        return NOT_APPLICABLE
    rng, found = CounterRNG(probe.engine.seed, "guards/noise"), torch.zeros_like(success)
    robust = success.nonzero().squeeze(1)
    samples = torch.cartesian_prod(torch.arange(NOISES), robust)
    for counter, rows in (block.T for block in torch.split(samples, probe.engine.batch_size)):
        (index, x, y), threat = probe.at(rows), probe.threat.of(rows)
        noise = rng.normal(index, tuple(x.shape[1:]), counter.to(index.device))
        noisy = threat.project(x + threat.steepest(noise, x) * threat.radius(x), x)
        found[rows[~probe.correct_at(noisy, x, y, threat)]] = True
    return weak_attack_warning(evidence, probe, found, "random noise of the full radius")


BLACK_BOX_SHARE, BLACK_BOX_IMAGES = 0.002, 2
"""Thresholds on the additional successes of gradient-free attacks: a share, and a least number of images."""


@guard(pixelwise=True)
def black_box_stronger(evidence: Evidence) -> Result:
    """Gradient-free attacks succeed on more images than gradient-based ones, overall or in one class."""
    black = evidence.black_box
    white = tuple(label for label in evidence.attacked if label not in black)
    if not (black and white):
        return NOT_APPLICABLE
    found = attack_excess(evidence.outcomes, black, white)
    many = found.extra >= BLACK_BOX_IMAGES and found.extra > BLACK_BOX_SHARE * found.images
    if not many and (found.label is None or found.share <= BLACK_BOX_SHARE):
        return _undecided(found.extra, found.correct, found.images)
    where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
    count = f"{found.extra} more images ({percent(found.extra / found.images)}{where})"
    external = any(isinstance(evidence.attacks.get(label), ExternalAttack) for label in black)
    kind = "Attacks without gradients of this model" if external else "Gradient-free attacks"
    what = f"{kind} ({quoted(black)}) succeed on {count} than gradient-based ones"
    return f"{what}: {WEAK_OR_MASKED}.", found.extra / found.images


def _undecided(extra: int, robust: int, images: int) -> Result:
    """The result for fewer additional successes than the least number: whether more were possible.

    Args:
        extra: number of additional successes.
        robust: number of images on which there could have been one.
        images: number of all images.
    """
    if extra < 1 or robust >= BLACK_BOX_IMAGES:
        return None
    return undecided(BLACK_BOX_IMAGES * images / robust, images)


QUERIES, MOST_QUERIES = 100, 1000
"""Minimal and maximal number of queries per image of the search."""
QUERY_SHARE = 0.05
"""Between these limits, the search uses this fraction of the passes of the attacks."""


def _short_search(evidence: Evidence, probe: Probe) -> Attack | None:
    """Square with few queries; None if it is not needed, not registered, or does not support the norm."""
    robust = int(evidence.survivors.sum())
    searched = any(_queries(evidence, label) >= QUERIES for label in evidence.black_box)
    if searched or not evidence.attacked or not robust or "square" not in ATTACKS:
        return None
    queries = int(QUERY_SHARE * evidence.attack_passes / robust)
    attack: Attack = make(ATTACKS, {"name": "square", "steps": min(max(queries, QUERIES), MOST_QUERIES)})
    return attack if probe.threat.norm in attack.norms else None


def _queries(evidence: Evidence, label: str) -> float:
    """The mean number of queries of an attack on the images that stay robust to it, which take all of its steps."""
    frame = evidence.outcomes.frame
    rows = frame[frame["attack"] == label]
    queries = rows["forwards"][rows["correct"] & (rows["forwards"] > 0)]
    return float(queries.mean()) if len(queries) else 0.0


def _search_cost(evidence: Evidence, probe: Probe) -> int:
    """The queries of each survivor and its verification."""
    attack = _short_search(evidence, probe)
    return 0 if attack is None else (attack.length + probe.verification) * int(evidence.survivors.sum())


@guard(reads="sample", passes=_search_cost, most=QUERIES + 2, priority=6, pixelwise=True)
def no_black_box(evidence: Evidence, probe: Probe) -> Result:
    """The suite has no gradient-free attack of 100 queries, and such a one succeeds on images robust to the suite."""
    attack = _short_search(evidence, probe)
    if attack is None:
        return NOT_APPLICABLE
    misclassified = probe.succeeds_on(evidence.survivors, attack)
    extra, share = int(misclassified.sum()), float(misclassified.float().mean())
    if extra < BLACK_BOX_IMAGES or share <= BLACK_BOX_SHARE:
        return _undecided(extra, int(evidence.survivors.sum()), len(probe))
    worst = significant_class(probe.by_class(misclassified), probe.images, BLACK_BOX_SHARE)
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    suite = f"The suite has no gradient-free attack of {QUERIES} queries"
    what = f"{suite}, and {percent(share)} of a sample survive it but not a short Square attack"
    return f"{what}{where}: add --attack square to those of the audit.", share
