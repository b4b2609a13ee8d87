"""Comparison of an audit with the model and the images it states, and its repetition on some of the images."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import nn

from classwise.auditing.evaluation.evaluation import STORED, GuardMode
from classwise.auditing.evaluation.option import Decides
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.audit import audit as run_audit
from classwise.auditing.run.preparation import model_identity
from classwise.auditing.run.result import Audit
from classwise.core.compute.environment import environment
from classwise.core.compute.precision import Precision
from classwise.core.errors import ClasswiseError
from classwise.core.settings.code_identity import STRUCTURE
from classwise.data.images import Images
from classwise.models.base import device_of
from classwise.models.provenance import model_facts
from classwise.threat.text import PER_IMAGE

AGREEMENT = 0.99
"""The least share of equal predictions on other hardware or another version of torch."""
SAME_MACHINE = ("processor", "device", "threads", "packages")
"""The entries of an environment that promise equal bits, if they are equal."""
MISSED = 0.05
"""The probability, at most, with which a sample has none of the changed images (`Repetition.detectable`)."""
REPEATED = ("prediction", "correct")
"""The columns of the outcomes that a repetition must have again."""


class Repetition(NamedTuple):
    """The outcome of attacking some images again.

    Attributes:
        images: number of images that were attacked again.
        outcomes: number of their outcomes, of all attacks, that the audit has, too.
        differing: number of these with another prediction or verdict.
        exact: whether the machine is that of the audit, so that all must be equal.
        available: number of images of the audit.
        warnings: names of guards that warn now and did not before, if all images were attacked again; else None.
    """

    images: int
    outcomes: int
    differing: int
    exact: bool
    available: int
    warnings: tuple[str, ...] | None = None

    @property
    def is_found(self) -> bool:
        """Whether the audit differs from its repetition by more than the machine explains."""
        return self.differing > self.allowed or (self.exact and bool(self.warnings))

    @property
    def allowed(self) -> int:
        """The number of outcomes that may differ."""
        return 0 if self.exact else max(1, math.floor((1 - AGREEMENT) * self.outcomes))

    @property
    def detectable(self) -> int:
        """The smallest number of changed images of which such a sample has one with a probability of 95 %."""
        changed = np.arange(1, self.available + 1)
        return int(changed[stats.hypergeom.pmf(0, self.available, changed, self.images) <= MISSED][0])

    def __str__(self) -> str:
        """The outcome in words."""
        may = f"at most {self.allowed} may, as hardware or versions differ"
        promise = "none may on this machine" if self.exact else may
        counts = f"{self.differing:,} of {self.outcomes:,} outcomes of {self.images:,} images"
        guards = "guards are repeated with all images only"
        if self.warnings is not None:
            guards = f"guards that warn only now: {', '.join(self.warnings) or 'none'}"
        changed = f"if the outcomes of {self.detectable:,} of all {self.available:,} images were changed"
        power = f"{changed}, such a sample would show it with a probability of at least 95 %"
        power = "" if self.warnings is not None or self.differing else f"; {power}"
        return f"{counts} differ from those of a repetition; {promise}{power}; {guards}"


def identity_differences(audit: Audit, model: nn.Module | None, images: Images | None) -> Iterator[str]:
    """A line for each difference of a model and of images from those of an audit.

    Args:
        audit: the audit.
        model: the model, as it would be audited; None: not compared.
        images: the images; None: not compared.
    """
    meta, name = audit.outcomes.meta, place_of(audit)
    if images is not None and (found := images.fingerprint()) != meta.data_hash:
        yield (
            f"{name}: the images have the SHA-256 {found}, and those of the audit {meta.data_hash or 'none'}: "
            f"{_why_other_images(meta, images)}"
        )
    if model is None:
        return
    (digest, code), here = model_identity(model), model_facts(model)
    same_file = "weights_sha256" in here and here["weights_sha256"] == audit.environment.get("weights_sha256")
    explained = False
    if digest != meta.model_hash:
        before, now = (facts.get("normalisation") for facts in (audit.environment, here))
        other_scale = before is not None and before != now
        explained = other_scale and same_file
        why = (
            "the weights, their names or the settings of the model differ, such as --outputs, --model-set, or "
            "cw.Normalized in place of --mean"
        )
        if other_scale:
            why = f"the audit has {_scale_text(before)}, and this model has {_scale_text(now)} (--mean, --std)"
        elif same_file:
            why = (
                "the file of weights is the same, and a setting of the model differs, such as --outputs or --model-set"
            )
        elif "weights_sha256" in here and (before_file := audit.environment.get("weights_sha256")):
            why = f"the file of weights has the SHA-256 {here['weights_sha256']}, and that of the audit {before_file}"
        about = "the model, with its normalisation,"
        yield f"{name}: {about} has the SHA-256 {digest}, and that of the audit {meta.model_hash or 'none'}: {why}"
    recorded = (meta.code or {}).get("model", {})
    for part in sorted({*recorded, *code}):
        # Which files a model records depends on whether a normalisation is in front of it.
        if recorded.get(part) != code.get(part) and not (explained and (part == STRUCTURE or part not in code)):
            yield f"{name}: the code of the model differs: {part}"


def place_of(audit: Audit) -> str:
    """The folder of an audit, which distinguishes audits of one name; its name if it is in none."""
    return audit.name if audit.path is None else os.path.normpath(audit.path)


def _scale_text(normalisation: Mapping[str, Sequence[float]] | str | None) -> str:
    """A normalisation of `classwise.models.provenance.model_facts` in words."""
    if isinstance(normalisation, Mapping):
        values = (f"{name} {','.join(f'{value:.7g}' for value in normalisation[name])}" for name in normalisation)
        return f"a normalisation with {' and '.join(values)}"
    return normalisation or "an unknown normalisation"


def _why_other_images(meta: Meta, images: Images) -> str:
    """The settings by which images differ from those of an audit; the usual ones if none is known."""
    found = []
    if meta.images and len(images) != meta.images:
        found.append(f"these are {len(images):,} images, and the audit has {meta.images:,} (--subset, --split)")
    if images.split and meta.split and images.split != meta.split:
        found.append(f"the split is {images.split}, and that of the audit {meta.split} (--split)")
    if images.class_names is not None and tuple(images.class_names) != meta.class_names:
        found.append("the names of the classes, or their order, differ (--data-set classes=...)")
    return "; ".join(found) or "pixels or labels differ, as with another setting of --data-set, such as size=64"


def repeat(audit: Audit, model: nn.Module, images: Images, number: int | None, seed: int) -> Repetition:
    """Attack images of an audit again with its settings, and compare the outcomes.

    Args:
        audit: the audit.
        model: its model.
        images: its images.
        number: how many images, a random sample; None: all.
        seed: seed of the sample.

    Raises:
        ClasswiseError: for outcomes that were not computed by classwise, or with a radius for each image.
    """
    meta = audit.outcomes.meta
    attacks = {label: spec for label, spec in meta.attacks.items() if label != CLEAN}
    if not meta.model_hash or meta.threat is None or None in attacks.values() or PER_IMAGE in meta.threat:
        raise ClasswiseError(
            f"{place_of(audit)}: its outcomes cannot be computed again: they were imported, or each image has a radius"
        )
    rows = torch.arange(len(images))
    if number is not None and number < len(images):
        chosen = np.random.default_rng(seed).choice(len(images), number, replace=False)
        rows = torch.from_numpy(np.sort(chosen))
    options: dict[str, Any] = {
        name: meta.settings[name]
        for name, option in STORED.items()
        if option.decides in (Decides.VERDICTS, Decides.ATTACKED, Decides.ROWS) and name in meta.settings
    }
    options["precision"] = Precision(**{"search": "float32", **options["precision"]})
    whole = len(rows) == len(images)
    mode: GuardMode = audit.guards.mode if whole and audit.guards is not None else "off"
    again = run_audit(model, images.take(rows), meta.threat, attacks or CLEAN, guards=mode, **options)
    keys = ["index", "attack"]
    both = again.outcomes.frame.merge(audit.outcomes.frame, on=keys, suffixes=("", "_before"))
    sampled: Sequence[str] = [] if meta.settle is None else [*attacks]  # of a sample, rows are missing on purpose
    missing = ~again.outcomes.frame.set_index(keys).index.isin(both.set_index(keys).index)
    missing &= ~again.outcomes.frame["attack"].isin(sampled).to_numpy()
    now, before = (both[[f"{name}{end}" for name in REPEATED]].to_numpy(object, na_value=-1) for end in ("", "_before"))
    differing = (now != before).any(axis=1)
    here = environment(device_of(model))
    exact = all(audit.environment.get(key) == here[key] for key in SAME_MACHINE)
    known = {warning.name for warning in audit.warnings}
    new = tuple(warning.name for warning in again.warnings if warning.name not in known) if whole else None
    outcomes, other = len(both) + int(missing.sum()), int(differing.sum() + missing.sum())
    return Repetition(len(rows), outcomes, other, exact, len(images), new)
