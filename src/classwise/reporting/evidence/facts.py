"""The content of ``evidence.json``: a policy, audits of models, and the verdict on the criteria.

The types below are also its JSON Schema, ``schema.json`` in this package. Accuracies are fractions. The content depends
on the policy and the folders of the audits only, so that it can be computed again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, cast

import numpy as np
import pydantic
import yaml
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.criteria.policy import Policy
from classwise.auditing.guards.budget import GUARDS
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.audit_folder import read_about
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.settings.docstrings import docstring
from classwise.core.version import __version__
from classwise.reporting.exports.builds import Status, check_of
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.condition_text import measured
from classwise.reporting.facts.provenance import settings_of, spec_text
from classwise.reporting.facts.sentences import caveats
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals

BEFORE = "Criteria recorded before this run; earlier runs cannot be excluded."
AFTER = "Criteria stated after the run."
MEANING = (
    "Robust accuracy is an upper bound: these attacks failed on the images counted as correct, and other attacks may "
    "succeed. It is measured on a sample of images and is no certificate of robustness."
)
NOT_EXCLUDED = (
    "A stronger attack than those that were run.",
    "Attacks outside the threat model, such as other norms, larger radii, physical changes or poisoned training data.",
    "Images from another distribution than that of the sample.",
    "Earlier runs whose results were not kept, and a policy written after them.",
    "Selection of this model from several by their accuracy on these images.",
    "Statements of the policy that are wrong; classwise copies them without a check.",
)
"""What no guard can exclude."""
ABSORBING = 3
"""Maximum number of classes listed that absorb the misclassifications of a class."""

Json = dict[str, Any]
Excluded = Literal["no finding", "warning", "undecided", "not run"]


class Proportion(TypedDict):
    """Correct predictions among images, and an interval.

    ``accuracy`` is null for an incomplete audit; ``low`` and ``high`` then are bounds for all possible verdicts.
    """

    n: int
    count: int
    accuracy: float | None
    low: float | None
    high: float | None


class ClassFacts(TypedDict):
    """A class: clean and robust accuracy, and the share of its images that are lost under attack."""

    name: str
    clean: Proportion
    robust: Proportion
    drop: Proportion | None
    possibly_worst: bool | None


class ConfusionFacts(TypedDict):
    """The misclassified images of a class under all attacks, and the classes that absorb most of them."""

    name: str
    errors: int
    absorbed_by: dict[str, int]


class AttackFacts(TypedDict):
    """An attack: its settings, passes of single images, and the images that are correct under it."""

    name: str
    settings: str
    applicable: bool
    images: int
    forwards: int
    backwards: int
    correct: int


class GuardFacts(TypedDict):
    """A guard: the problem that it looks for, and what it found."""

    name: str
    problem: str
    result: Excluded
    detail: str


class CriterionFacts(TypedDict):
    """A criterion, a condition that must be false: ``passed``, ``failed`` or ``undecided``."""

    fails_if: str
    status: Status
    low: float | None
    high: float | None
    n: int | None
    correct: int | None
    detail: str


class AuditFacts(TypedDict):
    """An audit of one model; with a ``group``, ``classes`` are its groups of images."""

    name: str
    model: str
    model_sha256: str
    code: NotRequired[dict[str, dict[str, str]]]
    data: str
    split: str
    data_sha256: str
    threat: str | None
    complete: bool
    not_judged: dict[str, int]
    criteria_recorded: bool
    confidence: float
    group: str | None
    overall: ClassFacts
    classes: list[ClassFacts]
    confusion: list[ConfusionFacts] | None
    absorbed: dict[str, int] | None
    attacks: list[AttackFacts]
    warnings: list[str]
    caveats: list[str]
    guards: list[GuardFacts]
    criteria: list[CriterionFacts]
    settings: list[list[str]]
    environment: dict[str, Any]


class EvidenceFacts(TypedDict):
    """The content of ``evidence.json``."""

    schema_version: int
    kind: Literal["evidence"]
    classwise: str
    policy: dict[str, Any]
    criteria_recorded: bool
    criteria_sentence: str
    verdict: Status
    meaning: str
    not_excluded: list[str]
    audits: list[AuditFacts]
    standards_date: str
    standards: list[dict[str, Any]]


def schema() -> Json:
    """The JSON Schema of ``evidence.json``."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "classwise evidence"}
    made = about | pydantic.TypeAdapter(EvidenceFacts).json_schema() | about
    for kind in (made, *made["$defs"].values()):
        kind["additionalProperties"] = False
    return made


@cache
def standards() -> Json:
    """The content of ``standards.yaml`` in this package: ``source``, ``date`` and the entries as ``standards``."""
    text = (Path(__file__).parent / "standards.yaml").read_text(encoding="utf-8")
    content: Json = yaml.safe_load(text)
    return content


def evidence_facts(audits: Sequence[Audit], policy: Policy) -> EvidenceFacts:
    """Compute the content of ``evidence.json``.

    Args:
        audits: audits that are in folders.
        policy: the policy.

    Raises:
        ClasswiseError: if the outcomes of an audit are of another model or other images than its record.
    """
    about = [_audit_facts(audit, policy) for audit in audits]
    statuses = {criterion["status"] for facts in about for criterion in facts["criteria"]}
    recorded = all(facts["criteria_recorded"] for facts in about)
    found: EvidenceFacts = {
        "schema_version": SCHEMA_VERSIONS["evidence"],
        "kind": "evidence",
        "classwise": __version__,
        "policy": dataclasses.asdict(policy),
        "criteria_recorded": recorded,
        "criteria_sentence": BEFORE if recorded else AFTER,
        "verdict": next((status for status in ("failed", "undecided") if status in statuses), "passed"),
        "meaning": MEANING,
        "not_excluded": [*NOT_EXCLUDED],
        "audits": about,
        "standards_date": standards()["date"],
        "standards": standards()["standards"],
    }
    return cast("EvidenceFacts", json.loads(json.dumps(found)))


def _audit_facts(audit: Audit, policy: Policy) -> AuditFacts:
    meta, complete = audit.outcomes.meta, audit.complete
    summary = AuditSummary.of(audit) if complete else None
    clean = audit.bounds(CLEAN) if CLEAN in audit.names else None
    robust = audit.bounds(ALL)
    possibly = None if summary is None else summary.worst_candidates
    return {
        "name": audit.name,
        "model": meta.model,
        "model_sha256": meta.model_hash,
        **cast("AuditFacts", {} if meta.code is None else {"code": meta.code}),
        "data": meta.data,
        "split": meta.split,
        "data_sha256": meta.data_hash,
        "threat": meta.threat,
        "complete": complete,
        "not_judged": {name: int(count) for name, count in audit.outcomes.missing.items()},
        "criteria_recorded": _is_recorded(audit, policy),
        "confidence": 1 - audit.alpha,
        "group": audit.group,
        "overall": _rows(["all images"], _total(clean), _total(robust), audit.alpha, None)[0],
        "classes": _rows(audit.group_names, clean, robust, audit.alpha, possibly),
        "confusion": None if summary is None else _confusion(summary),
        "absorbed": None if summary is None else _absorbed(summary),
        "attacks": _attacks(audit),
        "warnings": [warning.sentence for warning in audit.warnings],
        "caveats": caveats(audit),
        "guards": _guards(audit),
        "criteria": [_criterion(audit, text) for text in policy.fail_if],
        "settings": [[name, text] for name, text in settings_of(audit)],
        "environment": dict(audit.environment),
    }


def _is_recorded(audit: Audit, policy: Policy) -> bool:
    """Whether the audit has recorded the policy before its first attack: in its record and in every file of outcomes.

    Raises:
        ClasswiseError: if a file of outcomes is of another model or other images than the record.
    """
    assert audit.path is not None
    about = read_about(audit.path)
    settings, digests = about["settings"], {about.get("policy")}
    for file in outcome_files.listed(audit.path / "outcomes"):
        meta = outcome_files.read_meta(file)
        digests.add(meta.policy)
        if "code" in about and about["code"] != meta.code:
            raise ClasswiseError(f"{file} belongs to another audit: its code differs; run the audit again")
        for key in ("model_hash", "data_hash", "threat"):
            if settings and settings.get(key) != getattr(meta, key):
                raise ClasswiseError(f"{file} belongs to another audit: its {key} differs; run the audit again")
    return digests == {policy.digest}


def _total(counts: BoundedCounts | None) -> BoundedCounts | None:
    """The counts of all images as one class."""
    if counts is None:
        return None
    count, judged, correct = (np.array([values.sum()]) for values in (counts.count, counts.judged, counts.correct))
    return BoundedCounts(count, judged, correct)


def _rows(
    names: Sequence[str],
    clean: BoundedCounts | None,
    robust: BoundedCounts | None,
    alpha: float,
    possibly: Sequence[int] | None,
) -> list[ClassFacts]:
    assert robust is not None
    proportions = [None if counts is None else _proportions(counts, alpha) for counts in (clean, robust)]
    drops = None
    if clean is not None and clean.complete and robust.complete and (clean.count == robust.count).all():
        drops = _proportions(BoundedCounts(robust.count, robust.count, clean.correct - robust.correct), alpha)
    unknown: Proportion = {"n": 0, "count": 0, "accuracy": None, "low": None, "high": None}
    return [
        {
            "name": name,
            "clean": unknown if proportions[0] is None else proportions[0][label],
            "robust": cast("list[Proportion]", proportions[1])[label],
            "drop": None if drops is None else drops[label],
            "possibly_worst": None if possibly is None else label in possibly,
        }
        for label, name in enumerate(names)
    ]


def _proportions(counts: BoundedCounts, alpha: float) -> list[Proportion]:
    """Accuracies with simultaneous intervals; bounds where images are not judged."""
    low, high = class_intervals(ClassCounts(counts.count, counts.correct), alpha, simultaneous=True)
    rows: list[Proportion] = []
    for label, images in enumerate(counts.count):
        n, judged, correct = int(images), int(counts.judged[label]), int(counts.correct[label])
        if not counts.complete:
            ends = (correct / n, (n - judged + correct) / n) if n else (None, None)
            rows.append({"n": n, "count": correct, "accuracy": None, "low": ends[0], "high": ends[1]})
            continue
        accuracy, (least, most) = correct / n if n else None, (_number(end[label]) for end in (low, high))
        rows.append({"n": n, "count": correct, "accuracy": accuracy, "low": least, "high": most})
    return rows


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _confusion(summary: AuditSummary) -> list[ConfusionFacts]:
    confusion, rows = summary.confusions[ALL], list[ConfusionFacts]()
    for label, name in enumerate(confusion.names):
        row = np.array(confusion.row(label))
        images, right = int(confusion.images[label]), int(row[label])
        row[label] = 0
        most = [int(other) for other in np.argsort(-row, kind="stable")[:ABSORBING] if row[other]]
        absorbed = {confusion.names[other]: int(row[other]) for other in most}
        rows.append({"name": name, "errors": images - right, "absorbed_by": absorbed})
    return rows


def _absorbed(summary: AuditSummary) -> dict[str, int]:
    """The misclassified images that each class absorbs, most first; without classes that absorb none."""
    confusion = summary.confusions[ALL]
    sums = np.asarray(confusion.matrix.sum(axis=0)) - confusion.matrix.diagonal()
    return {confusion.names[label]: int(sums[label]) for label in np.argsort(-sums, kind="stable") if sums[label]}


def _attacks(audit: Audit) -> list[AttackFacts]:
    meta, frame = audit.outcomes.meta, audit.outcomes.frame
    rows: list[AttackFacts] = []
    for name, spec in meta.attacks.items():
        own = frame[frame["attack"] == name]
        ran = own[own["status"] != "skipped"]
        applicable = name not in meta.not_applicable
        rows.append(
            {
                "name": name,
                "settings": spec_text(spec) if spec else "no attack" if name == CLEAN else "unknown",
                "applicable": applicable,
                "images": len(ran),
                "forwards": int(ran["forwards"].sum()),
                "backwards": int(ran["backwards"].sum()),
                "correct": int(audit.bounds(name).correct.sum()) if applicable else 0,
            }
        )
    return rows


def _guards(audit: Audit) -> list[GuardFacts]:
    report, warnings = audit.guards, {warning.name: warning.sentence for warning in audit.warnings}
    rows: list[GuardFacts] = []
    for name, guard in GUARDS.items():
        result: Excluded = "no finding"
        detail = ""
        if name in warnings:
            result, detail = "warning", warnings[name]
        elif report is None or name in report.not_run:
            result = "not run"
        elif name in report.undecided:
            result, detail = "undecided", report.undecided[name]
        problem = docstring(guard.function).partition("\n")[0].replace("``", "")
        rows.append({"name": name, "problem": problem, "result": result, "detail": detail})
    return rows


def _criterion(audit: Audit, text: str) -> CriterionFacts:
    from classwise.auditing.criteria.thresholds import Threshold

    threshold = Threshold.parse(text)
    try:
        check = check_of(audit, text, threshold)
        basis = measured(audit, threshold)
    except ClasswiseError as error:  # not applicable, or undefined for these images
        nothing: Mapping[str, None] = dict.fromkeys(("low", "high", "n", "correct"))
        return cast("CriterionFacts", {"fails_if": text, "status": "undecided", **nothing, "detail": str(error)})
    return {
        "fails_if": text,
        "status": check.status,
        "low": _number(basis.low),
        "high": _number(basis.high),
        "n": basis.images,
        "correct": basis.correct,
        "detail": check.message,
    }
