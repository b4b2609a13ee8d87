"""`Policy`: what an audit is for, and the criteria that it must meet, in a YAML file written before the audit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import pydantic

from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.outcomes.meta import Meta, stated_threat
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import build, configurable, read_yaml
from classwise.threat.text import check_stated

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
    """What is stated of the model: its architecture, its size and where it comes from."""

    architecture: Text
    size: Text
    provenance: Text


@configurable
class DataStatement:
    """What is stated of the images: their source, their licence and how they were sampled."""

    source: Text
    licence: Text
    sampling: Text


@configurable
class Validity:
    """Until when the evidence is valid, and the events that require a new test."""

    until: Text
    retest_if: Texts


@configurable
class Policy:
    """The intended use of a classifier, the threat model, and the criteria of its audit.

    Attributes:
        title: of the report.
        intended_use: what the classifier is used for.
        operating_domain: under which conditions.
        threat_model: the attacker that is assumed.
        model: what is stated of the model.
        data: what is stated of the images.
        fail_if: the criteria, conditions as of ``classwise audit --fail-if`` that must be false.
        limits: what the audit does not show.
        validity: until when the evidence is valid.
        digest: SHA-256 of the file; empty for a policy that was not read from one.

    Raises:
        ClasswiseError: for a missing or unknown field, an empty text, an invalid threat or a malformed condition.
    """

    title: Text
    intended_use: Text
    operating_domain: Text
    threat_model: ThreatModel
    model: ModelStatement
    data: DataStatement
    fail_if: Texts
    limits: Texts
    validity: Validity
    digest: str = ""

    def __post_init__(self) -> None:
        if len(set(self.fail_if)) < len(self.fail_if):
            raise ClasswiseError("fail_if: a condition occurs twice; state each once")
        for text in self.fail_if:
            Threshold.parse(text)

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


def checked_policy(path: str | os.PathLike[str], meta: Meta, group: str | None = None) -> Policy:
    """Read a policy, and check that it fits an audit.

    Args:
        path: the file.
        meta: the metadata of the audit.
        group: the grouping that the audit reports by; None: the class.

    Raises:
        ClasswiseError: as `Policy.read`; for another threat than the audit's, or a criterion on an attack, a class or
            a group that the audit does not have.
    """
    policy = Policy.read(path)
    stated, found = (stated_threat(text) for text in (policy.threat_model.radius, meta.threat))
    if stated.key != found.key:
        raise ClasswiseError(f"policy {str(path)!r} states the threat {stated.text}, and the audit has {found.text}")
    names = meta.class_names if group is None else {"superclass": meta.superclass_names, **meta.groups}.get(group, ())
    for text, threshold in policy.thresholds.items():
        if threshold.attack not in (*meta.names, *meta.not_applicable):
            raise unknown(f"attack in condition {text!r}:", threshold.attack, meta.names)
        threshold.check_group(names)
    return policy
