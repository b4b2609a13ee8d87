"""The content of ``evidence.json``: a policy, audits of models, and the verdict on the criteria.

The types below are also its JSON Schema, ``schema.json`` in this package. Accuracies are fractions. The content depends
on the policy and the folders of the audits only, so that it can be computed again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import math
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, cast

import numpy as np
import pydantic
import yaml
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.criteria.policy import Policy
from classwise.auditing.criteria.thresholds import ENDS, Threshold
from classwise.auditing.guards.budget import GUARDS
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.audit_folder import ABOUT, read_about
from classwise.auditing.run.requirements import lacking, lacking_guards
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.json_values import json_value
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.settings.config import spec_text
from classwise.core.settings.docstrings import docstring
from classwise.core.version import __version__
from classwise.reporting import formatting
from classwise.reporting.evidence.supplements import Supplement
from classwise.reporting.exports.builds import Status, check_of, withheld
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.condition_text import measured
from classwise.reporting.facts.provenance import settings_of
from classwise.reporting.facts.sentences import caveats
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals

BEFORE = "Criteria recorded before this run; earlier runs cannot be excluded."
AFTER = "Criteria stated after the run."
NONE_RECORDED = (
    "Audit {name} has recorded no policy: it was begun without one, or after an audit of this model and these images "
    "without this policy."
)
OTHER_RECORDED = "Audit {name} has recorded another policy, or another version of this file."
OTHER_OUTCOMES = "Audit {name} has outcomes that were computed without this policy."
"""Why an audit has not recorded the policy."""
WITHOUT: Literal["without a record of this policy"] = "without a record of this policy"
"""The result of an audit beside another one that has not recorded the policy."""
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
    "Dates that were changed; they are those of the clock of the machine.",
)
"""What no guard can exclude."""
MOST_CROSSED = 200
"""Maximum number of classes within groups that are listed."""
ABSORBING = 3
"""Maximum number of classes listed that absorb the misclassifications of a class."""

RECORD = ("name", "model", "environment", "settings", "others", "criteria_recorded")
"""The entries of an audit that a repetition of it may change."""
ALPHA = 0.05
"""A policy requires intervals of at least this confidence, 1 minus it."""
COLUMNS = ("attack", "index", "label", "prediction", "correct", "status")
"""The columns of the outcomes that decide."""

Json = dict[str, Any]
Verdict = Literal["passed", "failed", "undecided", "not as required"]
"""That of an audit, and of a report: the first of `VERDICTS` that holds for one of its audits."""
VERDICTS: tuple[Verdict, ...] = ("failed", "not as required", "undecided", "passed")
Excluded = Literal["checked", "not applicable", "no finding", "warning", "undecided", "not run"]


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
    """The images of a class that at least one attack misclassifies, and the classes that absorb most of them."""

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
    """A criterion, a condition that must be false: ``passed``, ``failed`` or ``undecided``.

    One of an audit that is not as required is not passed.

    ``on_estimate``: it is on the measured value, and not on an end of its interval, ``low`` or ``high``; ``at_end`` is
    then its status at the end that decides against it, null without an interval.
    """

    fails_if: str
    status: Status
    on_estimate: bool
    at_end: Status | None
    low: float | None
    high: float | None
    n: int | None
    correct: int | None
    detail: str


class OtherFacts(TypedDict):
    """Another audit with the same policy, or of the same model and images, in a folder beside that of an audit.

    ``date``: when it began; ``result``: its verdict, if it has recorded the policy; ``overall`` and ``worst``: its
    accuracies under all attacks together, overall and of the worst class, null if it is incomplete.
    """

    name: str
    date: str
    result: Verdict | Literal["cannot be read", "without a record of this policy"]
    threat: str | None
    overall: float | None
    worst: float | None


class AuditFacts(TypedDict):
    """An audit of one model; with a ``group``, ``classes`` are its groups, and ``crossed`` the classes in each of them.

    ``outcomes_sha256`` is the digest of what decides (`outcomes_digest`).
    """

    name: str
    verdict: Verdict
    not_as_required: list[str]
    others: list[OtherFacts]
    outcomes_sha256: str
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
    crossed: list[ClassFacts] | None
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
    number: str
    date: str
    policy: dict[str, Any]
    criteria_recorded: bool
    criteria_sentence: str
    verdict: Verdict
    meaning: str
    not_excluded: list[str]
    audits: list[AuditFacts]
    supplements: list[Supplement]
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


def evidence_facts(
    audits: Sequence[Audit], policy: Policy, date: dt.datetime, supplements: Sequence[Supplement] = ()
) -> EvidenceFacts:
    """Compute the content of ``evidence.json``.

    Args:
        audits: audits that are in folders.
        policy: the policy.
        date: of the report.
        supplements: further results on the audited models.

    Raises:
        ClasswiseError: if the outcomes of an audit are of another model or other images than its record, or a further
            result is of a model that is not audited.
    """
    models = {audit.outcomes.meta.model_hash for audit in audits}
    for supplement in supplements:
        if supplement["model_sha256"] not in models:
            name = f"{supplement['kind']} {supplement['name']}"
            raise ClasswiseError(f"the {name} is of a model that no audit of the report has; omit it")
    about = [_audit_facts(audit, policy, date) for audit in audits]
    folders = {audit.path.resolve() for audit in audits if audit.path is not None}
    missing = list[str]()
    for facts, audit in zip(about, audits, strict=True):
        facts["others"] = _others(audit, policy, date, folders)
        reason = _unrecorded(audit, policy)
        facts["criteria_recorded"] = not reason
        missing += [reason.format(name=facts["name"])] if reason else []
    identity = (
        f"{policy.digest}{'' if missing else 'before'}"
        + "".join(facts["outcomes_sha256"] for facts in about)
        + json.dumps([*supplements])
    )
    found: EvidenceFacts = {
        "schema_version": SCHEMA_VERSIONS["evidence"],
        "kind": "evidence",
        "classwise": __version__,
        "number": f"{date:%Y%m%d}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}",
        "date": date.isoformat(timespec="seconds"),
        "policy": dataclasses.asdict(policy),
        "criteria_recorded": not missing,
        "criteria_sentence": " ".join([AFTER, *missing]) if missing else BEFORE,
        "verdict": min((facts["verdict"] for facts in about), key=VERDICTS.index),
        "meaning": MEANING,
        "not_excluded": [*NOT_EXCLUDED],
        "audits": about,
        "supplements": [*supplements],
        "standards_date": standards()["date"],
        "standards": standards()["standards"],
    }
    return cast("EvidenceFacts", json.loads(json.dumps(found, default=str)))


def outcomes_digest(audit: Audit) -> str:
    """SHA-256 of what decides: the outcomes, the settings, the guards, and the identity of model and images.

    It is that of JSON text with sorted keys and without spaces, and does not depend on files, dates and durations: an
    audit that is repeated bit for bit has the same.
    """
    meta = audit.outcomes.meta
    frame = audit.outcomes.frame[[*COLUMNS]].sort_values([*COLUMNS[:2]])
    columns = {name: frame[name].astype(str).tolist() for name in COLUMNS}
    stated = json.loads(meta.to_json())
    kept = {key: value for key, value in stated.items() if key not in ("notes", "model", "policy")}
    guards = {
        "warnings": sorted(warning.name for warning in audit.warnings),
        "without_result": [] if audit.guards is None else sorted(audit.guards.without_result),
        "mode": None if audit.guards is None else audit.guards.mode,
    }
    content = {"meta": kept, "alpha": audit.alpha, "group": audit.group, "guards": guards, "outcomes": columns}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def not_as_required(audit: Audit, policy: Policy, date: dt.datetime) -> list[str]:
    """What an audit lacks of a policy, a sentence for each; empty if it is as required.

    Args:
        audit: the audit.
        policy: the policy.
        date: of the report, by which the policy must be valid.
    """
    counts = audit.outcomes.bounds(ALL).count
    found = lacking(policy, audit.outcomes.meta, counts) + lacking_guards(policy, audit.warnings, audit.guards)
    if audit.alpha > ALPHA:
        level, least = (formatting.level(value) for value in (audit.alpha, ALPHA))
        found.append(f"Intervals hold with {level} confidence, and must with at least {least}.")
    if date.date() > policy.validity.until:
        found.append(f"The policy was valid until {policy.validity.until}, and the report is of {date:%Y-%m-%d}.")
    return found


def _verdict(criteria: Sequence[CriterionFacts], lacks: Sequence[str]) -> Verdict:
    found: set[Verdict] = {row["status"] for row in criteria}
    return min(found | ({"not as required"} if lacks else set()), key=VERDICTS.index)


def _others(audit: Audit, policy: Policy, date: dt.datetime, known: Collection[Path]) -> list[OtherFacts]:
    """The audits beside an audit with the same policy, or of the same model and images, whatever their result is."""
    assert audit.path is not None
    meta, rows = audit.outcomes.meta, list[OtherFacts]()
    subject = {"model_hash": meta.model_hash, "data_hash": meta.data_hash}
    for marker in sorted(audit.path.resolve().parent.glob(f"*/{ABOUT}")):
        row: OtherFacts = {
            "name": marker.parent.name,
            "date": "",
            "result": "cannot be read",
            "threat": None,
            "overall": None,
            "worst": None,
        }
        try:
            about = read_about(marker.parent)
            recorded = about.get("policy") == policy.digest
            same = bool(meta.model_hash) and all(about["settings"].get(key) == value for key, value in subject.items())
            if marker.parent in known or not (recorded or same):
                continue
            row["date"] = about.get("environment", {}).get("date", "")
            other = Audit.load(marker.parent)
            row["threat"] = other.outcomes.meta.threat
            if other.complete:
                counts = other.counts(ALL)
                row["overall"] = int(counts.correct.sum()) / int(counts.count.sum())
                row["worst"] = float(np.nanmin(counts.accuracy))
            lacks = not_as_required(other, policy, date) if recorded else []
            decided = [_criterion(other, text, lacks) for text in policy.fail_if] if recorded else []
            row["result"] = _verdict(decided, lacks) if recorded else WITHOUT
        except IncompleteError:
            row["result"] = "undecided"
        except ClasswiseError:
            pass
        rows.append(row)
    return rows


def other_text(row: OtherFacts) -> str:
    """The result of an audit beside another one, its threat, its accuracies and when it began."""
    shares = {"robust overall": row["overall"], "worst class": row["worst"]}
    known = [f"{name} {formatting.percent(share)}" for name, share in shares.items() if share is not None]
    under = [f"under {row['threat']}"] if known and row["threat"] else []
    return ", ".join([row["result"], *known, *under, *([f"begun {row['date']}"] if row["date"] else [])])


def _audit_facts(audit: Audit, policy: Policy, date: dt.datetime) -> AuditFacts:
    lacks = not_as_required(audit, policy, date)
    criteria = [_criterion(audit, text, lacks) for text in policy.fail_if]
    meta, complete = audit.outcomes.meta, audit.complete
    summary = AuditSummary.of(audit) if complete else None
    clean = audit.bounds(CLEAN) if CLEAN in audit.names else None
    robust = audit.bounds(ALL)
    possibly = None if summary is None else summary.worst_candidates
    return {
        "name": audit.name,
        "verdict": _verdict(criteria, lacks),
        "not_as_required": lacks,
        "others": [],
        "outcomes_sha256": outcomes_digest(audit),
        "model": meta.model,
        "model_sha256": meta.model_hash,
        **cast("AuditFacts", {} if meta.code is None else {"code": meta.code}),
        "data": meta.data,
        "split": meta.split,
        "data_sha256": meta.data_hash,
        "threat": meta.threat,
        "complete": complete,
        "not_judged": {name: int(count) for name, count in audit.outcomes.missing.items()},
        "criteria_recorded": False,
        "confidence": 1 - audit.alpha,
        "group": audit.group,
        "overall": _rows(["all images"], _total(clean), _total(robust), audit.alpha, None, simultaneous=False)[0],
        "classes": _rows(audit.group_names, clean, robust, audit.alpha, possibly),
        "crossed": _crossed(audit) if complete and audit.group is not None else None,
        "confusion": None if summary is None else _confusion(summary),
        "absorbed": None if summary is None else _absorbed(summary),
        "attacks": _attacks(audit),
        "warnings": [warning.sentence for warning in audit.warnings],
        "caveats": caveats(audit),
        "guards": _guards(audit),
        "criteria": criteria,
        "settings": [[name, text] for name, text in settings_of(audit)],
        "environment": dict(audit.environment),
    }


def _unrecorded(audit: Audit, policy: Policy) -> str:
    """Why the audit has not recorded the policy before its first attack, for `str.format` with its name.

    Empty if its record and every file of outcomes have the policy.

    Raises:
        ClasswiseError: if a file of outcomes is of another model, other images or other settings than the record.
    """
    assert audit.path is not None
    about = read_about(audit.path)
    settings, recorded, digests = about["settings"], about.get("policy"), set[str | None]()
    for file in outcome_files.listed(audit.path / "outcomes"):
        meta = outcome_files.read_meta(file)
        digests.add(meta.policy)
        if "code" in about and about["code"] != meta.code:
            raise ClasswiseError(f"{file} belongs to another audit: its code differs; run the audit again")
        for key in ("model_hash", "data_hash", "threat", "attacks", "seed", "batch_size", "early_stop", "cascade"):
            if settings and settings.get(key) != getattr(meta, key):
                raise ClasswiseError(f"{file} belongs to another audit: its {key} differs; run the audit again")
    if recorded != policy.digest:
        return NONE_RECORDED if recorded is None else OTHER_RECORDED
    return OTHER_OUTCOMES if digests - {policy.digest} else ""


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
    *,
    simultaneous: bool = True,
) -> list[ClassFacts]:
    def _of(counts: BoundedCounts) -> list[Proportion]:
        return _proportions(counts, alpha, simultaneous=simultaneous)

    assert robust is not None
    proportions = [None if counts is None else _of(counts) for counts in (clean, robust)]
    drops = None
    if clean is not None and clean.complete and robust.complete and (clean.count == robust.count).all():
        drops = _of(BoundedCounts(robust.count, robust.count, clean.correct - robust.correct))
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


def _crossed(audit: Audit) -> list[ClassFacts] | None:
    """The rows of the classes within each group; None if there are more than `MOST_CROSSED`."""
    outcomes = audit.outcomes
    classes, groups = outcomes.grouping(None), outcomes.grouping(audit.group)
    cells, inverse = np.unique(np.stack([groups.ids, classes.ids]), axis=1, return_inverse=True)
    if cells.shape[1] > MOST_CROSSED:
        return None
    names = [f"{groups.names[group]}: {classes.names[label]}" for group, label in cells.T.tolist()]

    def counted(name: str) -> BoundedCounts:
        return BoundedCounts.of(ClassCounts.from_labels(inverse.reshape(-1), outcomes.correct(name), len(names)))

    return _rows(names, counted(CLEAN) if CLEAN in audit.names else None, counted(ALL), audit.alpha, None)


def _proportions(counts: BoundedCounts, alpha: float, *, simultaneous: bool) -> list[Proportion]:
    """Accuracies with their intervals; bounds where images are not judged."""
    low, high = class_intervals(ClassCounts(counts.count, counts.correct), alpha, simultaneous=simultaneous)
    rows: list[Proportion] = []
    for label, images in enumerate(counts.count):
        n, judged, correct = int(images), int(counts.judged[label]), int(counts.correct[label])
        if not counts.complete:
            ends = (correct / n, (n - judged + correct) / n) if n else (None, None)
            rows.append({"n": n, "count": correct, "accuracy": None, "low": ends[0], "high": ends[1]})
            continue
        accuracy, (least, most) = correct / n if n else None, (json_value(end[label]) for end in (low, high))
        rows.append({"n": n, "count": correct, "accuracy": accuracy, "low": least, "high": most})
    return rows


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
        result: Excluded = "checked"
        detail = ""
        if name in warnings:
            result, detail = "warning", warnings[name]
        elif report is None or name in report.not_run:
            result = "not run"
        elif name in report.undecided:
            result, detail = "undecided", report.undecided[name]
        elif report.not_applicable is None:  # an audit of an earlier version
            result = "no finding"
        elif name in report.not_applicable:
            result = "not applicable"
        problem = docstring(guard.function).partition("\n")[0].replace("``", "")
        rows.append({"name": name, "problem": problem, "result": result, "detail": detail})
    return rows


def _criterion(audit: Audit, text: str, lacks: Sequence[str]) -> CriterionFacts:
    """Decide a criterion; an audit that ``lacks`` something of the policy passes none."""
    threshold = Threshold.parse(text)
    estimate = threshold.measure.partition(".")[2] not in ENDS
    try:
        check = check_of(audit, text, threshold)
        check = withheld(check) if lacks else check
        basis = measured(audit, threshold)
        end = basis.low if threshold.comparison.startswith("<") else basis.high
    except ClasswiseError as error:  # not applicable, or undefined for these images
        nothing = dict.fromkeys(("low", "high", "n", "correct"))
        stated = {
            "fails_if": text,
            "status": "undecided",
            "on_estimate": estimate,
            "at_end": None,
            "detail": str(error),
        }
        return cast("CriterionFacts", stated | nothing)
    at_end: Status = "failed" if threshold.met_by(end) else "undecided" if lacks else "passed"
    return {
        "fails_if": text,
        "status": check.status,
        "on_estimate": estimate,
        "at_end": None if math.isnan(end) else at_end,
        "low": json_value(basis.low),
        "high": json_value(basis.high),
        "n": basis.images,
        "correct": basis.correct,
        "detail": check.message,
    }
