"""`Policy`: what an audit is for, what it must consist of, and its criteria, in a YAML file written before it."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.evaluation.evaluation import STORED
from classwise.auditing.evaluation.option import COMPARED
from classwise.core.compute.precision import Dtype
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import build, configurable, read_yaml
from classwise.threat.text import check_stated

MASKED_GRADIENTS = (
    "zero-gradients",
    "misleading-gradients",
    "single-step",
    "random-noise",
    "black-box-stronger",
    "no-black-box",
)
"""The guards that look for gradients that mislead attacks."""
DEFAULT_GUARDS = (*MASKED_GRADIENTS, "training-images", "class-order")
"""The guards whose warnings forbid a pass, of a policy with ``guards: default``."""
NEVER = (("<", Fraction(0)), (">", Fraction(1)))
"""Comparisons and limits that no fraction meets."""
OPTIONS = tuple(name for name, option in STORED.items() if option.decides in COMPARED and name != "cascade")
"""The options of an audit that decide verdicts; a cascade gives the same ones."""

Text = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]
Texts = Annotated[tuple[Text, ...], pydantic.Field(min_length=1, max_length=100)]


@configurable
class ThreatModel:
    """The attacker that is assumed, in the terms of NIST AI 100-2, and the radius of the audit.

    Attributes:
        goal: such as misclassification as any other class.
        knowledge: such as white-box.
        capability: what the attacker can change.
        radius: the threat of the audit, such as ``"Linf:8/255"``.
        why: the reason for this radius.
    """

    goal: Text
    knowledge: Text
    capability: Text
    radius: Text
    why: Text

    def __post_init__(self) -> None:
        check_stated(self.radius)


@configurable
class ModelStatement:
    """What is stated of the model: its architecture, its size, where it comes from, and optionally its licence."""

    architecture: Text
    size: Text
    provenance: Text
    licence: Text | None = None


@configurable
class DataStatement:
    """What is stated of the images, and what is required of them.

    Attributes:
        source: where they come from.
        licence: under which they are used.
        sampling: how they were sampled.
        split: the split that must be audited; ``"any"``: it is not fixed.
        digest: their SHA-256, as ``classwise data DATA --digest`` prints it; ``"any"``: it is not fixed.
        images: the smallest number of images.
        images_per_class: the smallest number of images of each class.
    """

    source: Text
    licence: Text
    sampling: Text
    split: Text
    digest: Annotated[str, pydantic.StringConstraints(pattern="^([0-9a-f]{64}|any)$")]
    images: Annotated[int, pydantic.Field(ge=1)]
    images_per_class: Annotated[int, pydantic.Field(ge=0)]


@configurable
class Validity:
    """The last day on which the evidence is valid, such as 2027-12-31, and the events that require a new test."""

    until: dt.date
    retest_if: Texts


@configurable
class Policy:
    """The intended use of a classifier, the threat model, what its audit must consist of, and the criteria.

    Attributes:
        title: of the report.
        intended_use: what the classifier is used for.
        operating_domain: under which conditions.
        threat_model: the attacker that is assumed.
        model: what is stated of the model.
        data: what is stated and required of the images.
        attacks: specs of attacks and suites, such as ``autoattack``. The audit must have each of them, with these
            settings or more steps, restarts and the like (`classwise.auditing.run.requirements`).
        guards: names of the guards that must have run without a warning; ``"default"``, alone or in the list:
            `DEFAULT_GUARDS`.
        precision: of the gradients, ``"float32"`` or ``"bfloat16"``; ``"any"``: it is not fixed.
        fail_if: the criteria, conditions as of ``classwise audit --fail-if`` that must be false.
        limits: what the audit does not show.
        validity: until when the evidence is valid.
        options: values that options of `OPTIONS` must have, such as ``{grid: 8bit}``; the others have their defaults.
        digest: SHA-256 of the file; empty for a policy that was not read from one.

    Raises:
        ClasswiseError: for a missing or unknown field, an empty text, an invalid threat, an unknown option or a
            malformed condition.
    """

    title: Text
    intended_use: Text
    operating_domain: Text
    threat_model: ThreatModel
    model: ModelStatement
    data: DataStatement
    attacks: Texts
    guards: Annotated[tuple[Text, ...], pydantic.Field(max_length=100)] | Literal["default"]
    precision: Dtype | Literal["any"]
    fail_if: Texts
    limits: Texts
    validity: Validity
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    def __post_init__(self) -> None:
        if len(set(self.fail_if)) < len(self.fail_if):
            raise ClasswiseError("fail_if: a condition occurs twice; state each once")
        for text, threshold in self.thresholds.items():
            if (threshold.comparison, threshold.limit) in NEVER and threshold.is_fraction:
                raise ClasswiseError(f"fail_if: {text!r} is true for no model, so it cannot fail; give another limit")
        for name in self.options:
            if name not in OPTIONS:
                raise unknown("options: unknown option", name, OPTIONS)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Policy:
        """Read a YAML file.

        Raises:
            ClasswiseError: if it cannot be read, or is no policy.
        """
        try:
            content = Path(path).read_bytes()
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ClasswiseError(f"policy {str(path)!r} cannot be read ({reason}); give a YAML file") from error
        where = f"policy {str(path)!r}"
        values: Any = read_yaml(text, where)
        if not isinstance(values, dict):
            raise ClasswiseError(f"{where}: must be a mapping of names to values")
        if "digest" in values:
            raise ClasswiseError(f"{where}: unknown field 'digest'; it is computed from the file")
        return build(Policy, {**values, "digest": hashlib.sha256(content).hexdigest()}, where)

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """The criteria by their text."""
        return {text: Threshold.parse(text) for text in self.fail_if}

    @property
    def required_guards(self) -> tuple[str, ...]:
        """Names of the guards that must have run without a warning."""
        names = (self.guards,) if isinstance(self.guards, str) else self.guards
        return tuple(dict.fromkeys(one for name in names for one in (DEFAULT_GUARDS if name == "default" else (name,))))

    @property
    def required_options(self) -> dict[str, Any]:
        """The value that each option of `OPTIONS` must have."""
        return {name: self.options.get(name, STORED[name].default) for name in OPTIONS}
