"""What a policy requires of an audit, and what of it an audit lacks."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from classwise.auditing.criteria.policy import Policy
from classwise.auditing.evaluation.evaluation import STORED, Evaluation, GuardMode
from classwise.auditing.guards.budget import GUARDS
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes.meta import Meta, stated_threat
from classwise.auditing.run.suite import Attacks, parse_attacks
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import spec_text
from classwise.stats.counts import IntArray
from classwise.threat.ball import ThreatLike

EFFORT = ("steps", "restarts", "targets", "samples", "eot_iter", "binary_search_steps")
"""The settings of an attack of which an audit may have more than the policy requires."""


def checked_policy(path: str | os.PathLike[str], meta: Meta, group: str | None = None) -> Policy:
    """Read a policy, and check that it fits an audit.

    Args:
        path: the file.
        meta: the metadata of the audit.
        group: the grouping that the audit reports by; None: the class.

    Raises:
        ClasswiseError: as `Policy.read`; for another threat than the audit's, an unknown guard or attack, or a
            criterion on an attack, a class or a group that the audit does not have.
    """
    policy = Policy.read(path)
    stated, found = (stated_threat(text) for text in (policy.threat_model.radius, meta.threat))
    if stated.key != found.key:
        raise ClasswiseError(f"policy {str(path)!r} states the threat {stated.text}, and the audit has {found.text}")
    _required_attacks(policy, meta)
    for name in policy.required_guards:
        if name not in GUARDS:
            raise unknown(f"policy {str(path)!r}: unknown guard", name, GUARDS)
    for text, threshold in policy.thresholds.items():
        if threshold.attack not in (*meta.names, *meta.not_applicable):
            raise unknown(f"attack in condition {text!r}:", threshold.attack, meta.names)
        threshold.check_group(meta.names_of(group))
    return policy


def asked_by(
    options: Evaluation, threat: ThreatLike | None, attacks: Attacks | None, *, resume: bool = False
) -> tuple[ThreatLike | None, Attacks | None, Evaluation]:
    """The threat, the attacks and the options of an audit: those that are given, or those of its policy.

    The precision is one of them, so that an audit of a policy is the same on every processor. A resumed audit keeps its
    own.

    Raises:
        ClasswiseError: as `Policy.read`.
    """
    policy = options.get("policy")
    if policy is None:
        return threat, attacks, options
    stated = Policy.read(policy)
    if options.get("precision") is None and stated.precision != "any" and not resume:
        options = {**options, "precision": stated.precision}
    threat = stated.threat_model.radius if threat is None else threat
    return threat, stated.attacks if attacks is None else attacks, options


def refuse_lacking(policy: Policy, meta: Meta, group: str | None, guards: GuardMode, where: str) -> None:
    """Refuse an audit that, before its first attack, is not as a policy requires, or cannot meet a criterion.

    Args:
        policy: the policy.
        meta: the metadata of the audit; sizes of classes that are not known yet are not judged.
        group: the grouping that the audit reports by; None: the class.
        guards: how many guards run.
        where: the file of the policy.

    Raises:
        ClasswiseError: with a sentence for each requirement that is not met.
    """
    found = lacking(policy, meta, meta.group_sizes())
    if (until := policy.validity.until) < dt.datetime.now(dt.UTC).date():
        found.append(f"The policy was valid until {until}; a report would not pass: renew it.")
    if guards == "off" and policy.required_guards:
        found.append("The guards are off.")
    counts = meta.group_sizes(group)
    if counts is not None:
        for text, threshold in policy.thresholds.items():
            if threshold.needs_images and threshold.met_by(end := threshold.best_end(counts, meta.names_of(group))):
                best = "correct" if threshold.measure.endswith("low") else "misclassified"
                least = threshold.least_images(counts, meta.names_of(group))
                needed = "" if least is None else f": at least {least[1]:,} are required in place of {least[0]:,}"
                found.append(
                    f"With these images the criterion {text} fails even if all are {best} (the end of the interval is "
                    f"{threshold.shown(end)}){needed}; classwise plan computes how many it needs at another accuracy."
                )
    if found:
        raise ClasswiseError(f"not as the policy {where!r} requires: {' '.join(found)}")


def lacking(policy: Policy, meta: Meta, counts: IntArray | None) -> list[str]:
    """What the settings and the images of an audit lack of a policy, a sentence for each.

    Args:
        policy: the policy.
        meta: the metadata of the audit.
        counts: (C,) images of each class; None: not known yet.

    Raises:
        ClasswiseError: for an unknown attack in the policy.
    """
    return [*_lacking_attacks(policy, meta), *_other_settings(policy, meta), *_lacking_images(policy, meta, counts)]


def lacking_guards(policy: Policy, warnings: Sequence[AuditWarning], report: GuardReport | None) -> list[str]:
    """The required guards that found their problem or did not run, a sentence for each.

    Args:
        policy: the policy.
        warnings: those of the audit.
        report: which guards ran; None: none.
    """
    warned = {warning.name for warning in warnings}
    missing = GUARDS if report is None else report.not_run
    found = [f"The guard {name} has a warning." for name in policy.required_guards if name in warned]
    absent = [name for name in policy.required_guards if name in missing]
    if absent:
        found.append(f"Guards did not run: {', '.join(absent)}; add them with --resume --guards full.")
    return found


def _required_attacks(policy: Policy, meta: Meta) -> list[dict[str, Any]]:
    """The complete specs of the attacks that a policy requires."""
    return [*parse_attacks(policy.attacks, meta.norm or "Linf").specs().values()]


def _lacking_attacks(policy: Policy, meta: Meta) -> Iterator[str]:
    ran = {label: meta.attacks[label] for label in meta.applicable if meta.attacks[label] is not None}
    for spec in _required_attacks(policy, meta):
        if not any(_covers(found, spec) for found in ran.values() if found is not None):
            more = " or ".join(_efforts(spec))
            yield f"Required, and not run: {spec_text(spec)}{more and f', or more {more}'}."


def _covers(found: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Whether an attack has the settings of another one, or more of `EFFORT`."""
    efforts = _efforts(required)
    return found.keys() == required.keys() and all(
        found[key] >= value if key in efforts else found[key] == value for key, value in required.items()
    )


def _efforts(spec: Mapping[str, Any]) -> list[str]:
    return [name for name in EFFORT if isinstance(spec.get(name), int)]


def _other_settings(policy: Policy, meta: Meta) -> Iterator[str]:
    for name, required in policy.required_options.items():
        option, found = STORED[name], meta.settings.get(name)
        if found != required:
            shown = "unknown" if found is None and option.default is not None else option.shown(found)
            yield f"{option.words.capitalize()}: {shown}; required: {option.shown(required)}."
    dtype = meta.precision.get("dtype", "unknown")
    if policy.precision not in ("any", dtype):
        yield f"The precision is {dtype}, and must be {policy.precision}: use --precision {policy.precision}."


def _lacking_images(policy: Policy, meta: Meta, counts: IntArray | None) -> Iterator[str]:
    required = policy.data
    if required.split not in ("any", meta.split):
        yield f"The split is {meta.split or 'unknown'}, and must be {required.split}."
    if meta.data_hash and required.digest not in ("any", meta.data_hash):
        yield (
            f"The images have the SHA-256 {meta.data_hash}, and must have {required.digest} (classwise data DATA "
            "--digest, with the --split, --subset and --data-set of the audit)."
        )
    if counts is None:
        return
    if not meta.data_hash and required.digest != "any":
        yield f"The SHA-256 of the images is not known, and must be {required.digest}."
    images, least = int(counts.sum()), int(np.argmin(counts))
    if images < required.images:
        yield f"There are {images:,} images, and at least {required.images:,} are required."
    if counts[least] < required.images_per_class:
        yield (
            f"The class {meta.class_names[least]} has {int(counts[least]):,} images, and at least "
            f"{required.images_per_class:,} are required."
        )
