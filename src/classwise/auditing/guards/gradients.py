"""Guards of the gradients: whether they are there, point the right way, and were followed to the end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.gradient.ascent import FGSM
from classwise.attacks.losses import margin
from classwise.auditing.guards.chance import excessive, stronger
from classwise.auditing.guards.evidence import Evidence, Found, Guard, Probe, on_gradients, percent, quoted
from classwise.auditing.guards.radius import reach
from classwise.auditing.suite import attack_length

ZERO_SHARE, ZERO_CLASS_SHARE = 0.05, 0.1
"""Zero gradients above these shares, overall or in one class, hide the true robustness."""


def no_gradient(evidence: Evidence) -> Found | None:
    """The model has no gradient with respect to its input, so attacks that need one cannot be applied."""
    if not evidence.no_gradient:
        return None
    left, applied = evidence.outcomes.meta.not_applicable, tuple(evidence.attacks)
    what = f"The model has no gradient: {evidence.no_gradient}"
    if not applied:
        verdict = f"no attack is applicable (asked for: {quoted(left)}), so no robustness was evaluated; add 'square'"
    elif left:
        verdict = f"not applicable and without a verdict: {quoted(left)}; the results are of {quoted(applied)} alone"
    else:
        verdict = f"the results are of attacks without gradients ({quoted(applied)}) alone"
    return Found(f"{what}; {verdict}.", float(len(left)))


def zero_gradients(evidence: Evidence) -> Found | None:
    """Many gradients are zero everywhere: the attack has nothing to follow, perhaps in one class alone."""
    frame = evidence.outcomes.frame
    reported = frame[frame["zero_gradients"].notna() & (frame["backwards"].fillna(0) > 0) & (frame["status"] != "nan")]
    for label in evidence.outcomes.attacks:
        rows = reported[reported["attack"] == label]
        if not len(rows):
            continue
        share = float(rows["zero_gradients"].sum() / rows["backwards"].sum())
        sums = rows.groupby("label")[["zero_gradients", "backwards"]].sum()
        by_class = (sums["zero_gradients"] / sums["backwards"]).reindex(range(evidence.outcomes.num_classes))
        shares = by_class.astype(float).fillna(0.0).to_numpy()
        worst = int(shares.argmax())
        if share > ZERO_SHARE or shares[worst] > ZERO_CLASS_SHARE:
            part = f"{percent(shares[worst])} in {evidence.name_of(worst)}"
            where = f"{percent(share)} of the gradients of {label!r} are zero ({part})"
            return Found(f"{where}; robustness may only be hidden.", share)
    return None


MISLED_SHARE = 0.1
"""The share of images, overall or in a class, whose margin may fail to fall along its own gradient."""
SMALL_STEP = 0.1
"""The length of that step, in radii."""


@on_gradients
def misleading_gradients(evidence: Evidence, probe: Probe) -> Found | None:
    """A small step along the gradient does not lower the margin: the gradient is of another function."""
    x, gradient = probe.batch.x, probe.margin_gradient
    # Each pixel moves by little, in every norm: a tenth of the radius, spread over the image.
    step = SMALL_STEP * 0.5 / reach(probe.threat.norm, x) * probe.threat.radius(x)
    moved = (x + step * gradient.sign()).clamp(0, 1)
    before, logits = margin(probe.logits, probe.labels), probe.logits_of(moved)
    # Logits that are not finite count as misclassified, however large the label's.
    after = torch.where(logits.isfinite().all(1), margin(logits, probe.labels), -torch.inf)
    tried = ~probe.wrong & (step.expand(len(x), 1, 1, 1).flatten().cpu() > 0)
    misled = tried & ~(after < before)
    if not tried.any():
        return None
    share = int(misled.sum()) / int(tried.sum())
    worst = excessive(probe.by_class(misled), probe.by_class(tried), MISLED_SHARE)
    if share <= MISLED_SHARE and worst is None:
        return None
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"A small step along the gradient fails to lower the margin of {percent(share)} of a sample{where}"
    return Found(f"{what}: gradients mislead the attacks.", share)


STRONGER_SHARE = 0.03
"""What a trifle (one step, or noise) may break of a sample that stood against a whole suite."""


def single_step(evidence: Evidence) -> Found | None:
    """A single step breaks images that many steps left standing, overall or in one class."""
    short = tuple(label for label, attack in evidence.attacks.items() if attack_length(attack) == 1)
    if len(short) == len(evidence.attacks):
        return None
    long = tuple(label for label in evidence.attacks if label not in short and label not in evidence.black_box)
    if short and long and {*short, *long} <= {*evidence.outcomes.frame["attack"]}:
        found = stronger(evidence.outcomes, short, long)
        if found.label is not None or found.extra > STRONGER_SHARE * found.images:
            where = "" if found.label is None else f", {percent(found.share)} of {evidence.name_of(found.label)}"
            what = f"{quoted(short)} breaks {found.extra} images more than all attacks of many steps{where}"
            return Found(f"{what}: masked gradients.", found.extra / found.images)
    if evidence.probe is None or not evidence.probe.gradients:
        return None
    return beyond_suite(evidence, evidence.probe, evidence.probe.found_by(evidence.survivors, FGSM()), "One step")


def beyond_suite(evidence: Evidence, probe: Probe, misclassified: Tensor, what: str) -> Found | None:
    """What a trifle breaks of the sample's images that stood against the suite, overall or in one class."""
    extra, count = int(misclassified.sum()), len(evidence.survivors)
    worst = excessive(probe.by_class(misclassified), probe.images, STRONGER_SHARE)
    if extra <= STRONGER_SHARE * count and worst is None:
        return None
    where = "" if worst is None else f", most in {evidence.name_of(worst)}"
    what = f"{what} breaks {percent(extra / count)} of a sample that stood against the suite{where}"
    return Found(f"{what}: masked gradients.", extra / count)


LATE_SHARE, LATE_CLASS_SHARE = 0.02, 0.05
"""What may fall in the last quarter of an attack's steps, of all images and of those of one class, but for chance."""


def not_converged(evidence: Evidence) -> Found | None:
    """Images still fall in the last quarter of an attack's steps, overall or in one class."""
    outcomes = evidence.outcomes
    if not outcomes.meta.early_stop:
        return None
    for label, attack in evidence.attacks.items():
        if attack.length < 4:
            continue
        rows = outcomes.frame[outcomes.frame["attack"] == label]
        rows = rows[rows["backwards"].fillna(0) > 0]
        if not len(rows):
            continue
        late = (~rows["correct"] & (rows["iterations"] > 0.75 * attack.length).fillna(False)).to_numpy(dtype=np.bool_)
        labels, classes = rows["label"].to_numpy(dtype=np.int64), outcomes.num_classes
        hits, images = (np.bincount(labels[which], minlength=classes) for which in (late, np.ones_like(late)))
        worst = excessive(hits, images, LATE_CLASS_SHARE)
        share, overall = float(late.mean()), excessive(hits.sum(keepdims=True), images.sum(keepdims=True), LATE_SHARE)
        if overall is not None or worst is not None:
            where = "" if worst is None else f" ({percent(hits[worst] / images[worst])} of {evidence.name_of(worst)})"
            what = f"{percent(share)} of the images{where} fall in the last quarter of {label!r}"
            return Found(f"{what}: take more steps.", share)
    return None


DLR_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}
"""The attacks whose loss is always a difference of logits ratio, and the classes that it needs."""


def few_classes(evidence: Evidence) -> Found | None:
    """The difference of logits ratio is used with fewer classes than it needs: three, or four if it is targeted."""
    classes = evidence.outcomes.num_classes
    needed = {label: _needed(attack) for label, attack in evidence.attacks.items()}
    labels = tuple(label for label, least in needed.items() if classes < least)
    if not labels:
        return None
    least = max(needed[label] for label in labels)
    what = f"{quoted(labels)}: the difference of logits ratio needs {least} classes and there are {classes}"
    return Found(f"{what}, so that another loss takes its place; the suite varies less.", float(classes))


def _needed(attack: Attack) -> int:
    """The classes that an attack's loss needs: 4 for the targeted ratio, 3 for the plain one, else 2."""
    losses = [getattr(attack, name, None) for name in ("objective", "loss")]
    return DLR_CLASSES.get(ATTACKS.name_of(type(attack)) or "", 3 if "dlr" in losses else 2)


GUARDS: dict[str, Guard] = {
    "no-gradient": no_gradient,
    "zero-gradients": zero_gradients,
    "misleading-gradients": misleading_gradients,
    "single-step": single_step,
    "not-converged": not_converged,
    "few-classes": few_classes,
}
