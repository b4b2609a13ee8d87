"""Results of conditions for build servers: JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

import numpy as np

from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import NO_PREDICTION
from classwise.auditing.run.result import Audit
from classwise.core.files.storage import write_json, write_text
from classwise.core.version import __version__
from classwise.reporting.escape import visible
from classwise.reporting.facts.condition_text import case_name, change_text, measured, result_text

Status = Literal["passed", "failed", "undecided"]
SARIF_VERSION = "2.1.0"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
CONDITION, UNDECIDED, OBJECTIVE = "fail-if", "undecided", "cross-entropy"
"""Rule ids of SARIF for conditions that are met, for those that depend on images not evaluated, and for a caveat."""
MAX_IMAGES = 20
"""Number of misclassified images that a failed condition lists."""
AS_REQUIRED = "requires an audit as of the policy"
"""The name of the check that an audit lacks nothing of its policy."""
WITHHELD = "it would pass if the audit were as the policy requires"
"""What is said of a criterion of an audit that lacks something of its policy."""


@dataclass(frozen=True)
class Check:
    """The result of a condition, or of one class of it.

    Attributes:
        name: the condition; for one class with its name.
        status: ``failed`` if the condition is met.
        message: the measured value and the required one (`classwise.reporting.facts.condition_text.result_text`).
        images: the misclassified images of the class that fails, at most `MAX_IMAGES`, a line each.
    """

    name: str
    status: Status
    message: str
    images: tuple[str, ...] = ()


def checks_of(audit: Audit, thresholds: Mapping[str, Threshold]) -> list[Check]:
    """Decide each condition; a lower limit on the worst class, or its lower end, for each class with images.

    A failed lower limit on a class, or on another end of the interval of the worst one, lists images of this class.

    Args:
        audit: the audit.
        thresholds: the conditions by their text.

    Raises:
        ClasswiseError: see `Threshold.bounds`.
    """
    checks = []
    for text, threshold in thresholds.items():
        for name, part in threshold.parts(audit).items():
            check = check_of(audit, text if part is threshold else f"{text}: {name}", part)
            checks.append(dataclasses.replace(check, images=_failing(audit, check, part)))
    return checks


def policy_checks(audit: Audit, thresholds: Mapping[str, Threshold], lacks: Sequence[str]) -> list[Check]:
    """Decide the criteria of a policy as `checks_of`; if the audit lacks something, none is passed.

    Args:
        audit: the audit.
        thresholds: the criteria by their text.
        lacks: what the audit lacks of the policy (`classwise.reporting.evidence.facts.not_as_required`).

    Raises:
        ClasswiseError: see `Threshold.bounds`.
    """
    checks = checks_of(audit, thresholds)
    if not lacks:
        return checks
    return [Check(AS_REQUIRED, "undecided", " ".join(lacks)), *map(withheld, checks)]


def withheld(check: Check) -> Check:
    """The check of an audit that lacks something of its policy: one that would be passed is undecided."""
    if check.status != "passed":
        return check
    return dataclasses.replace(check, status="undecided", message=f"{check.message}; {WITHHELD}")


def change_checks(
    comparison: Comparison,
    thresholds: Mapping[str, ChangeThreshold],
    losses: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> list[Check]:
    """Decide each condition on a change for every method but the first; one on any class for each class with images.

    Args:
        comparison: of the methods.
        thresholds: the conditions by their text.
        losses: by text and method, see `classwise.reporting.facts.condition_text.change_text`.

    Raises:
        ClasswiseError: see `ChangeThreshold.value`.
    """
    checks = []
    for text, threshold in thresholds.items():
        for method in comparison.names[1:]:
            parts = threshold.parts(comparison.under(threshold.attack))
            for name, part in parts.items():
                status: Status = "failed" if part.holds(comparison, method) else "passed"
                smallest = {key: loss for key, loss in losses[text][method].items() if key == name}
                label = f"{text}: {method}" + (f": {name}" if part is not threshold else "")
                checks.append(Check(label, status, change_text(comparison, method, part, smallest)))
    return checks


def _failing(audit: Audit, check: Check, threshold: Threshold) -> tuple[str, ...]:
    """The misclassified images of the class of a failed lower limit, by name or index; empty for another condition."""
    if check.status != "failed" or threshold.comparison not in ("<", "<="):
        return ()
    group = threshold.group or measured(audit, threshold).group
    if group not in audit.group_names:
        return ()
    outcomes, member = audit.outcomes, audit.outcomes.grouping(audit.group).ids == audit.group_names.index(group)
    places = np.flatnonzero(member & (outcomes.verdicts(threshold.attack) == 0))
    images = [str(outcomes.image_names[place] or f"image {outcomes.index[place]}") for place in places[:MAX_IMAGES]]
    if outcomes.complete:
        predictions = outcomes.predicted(threshold.attack)["prediction"].to_numpy()[places]
        images = [
            f"{image} as {outcomes.class_names[number]}" if number != NO_PREDICTION else image
            for image, number in zip(images, predictions, strict=False)
        ]
    more = len(places) - len(images)
    return (*(f"misclassified: {image}" for image in images), *([f"and {more:,} more"] if more else []))


def check_of(audit: Audit, name: str, threshold: Threshold) -> Check:
    """Decide one condition. Raises as `Threshold.bounds`."""
    decided = threshold.decide(audit)
    status: Status = "undecided" if decided is None else "failed" if decided else "passed"
    return Check(name, status, result_text(audit, threshold))


def write_junit(path: str | os.PathLike[str], checks: Iterable[Check], name: str, caveat: str = "") -> None:
    """Write checks as JUnit XML, a test case each: undecided ones are errors.

    Args:
        path: the file.
        checks: the checks.
        name: name of the test suite, such as that of the audit.
        caveat: what is known about the attacks, the output of the test suite
            (`classwise.reporting.facts.sentences.objective_caveat`).

    Raises:
        ClasswiseError: if the file cannot be written.
    """
    cases = list(checks)
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.status == "failed" for case in cases)),
        "errors": str(sum(case.status == "undecided" for case in cases)),
    }
    root = ET.Element("testsuites", {"name": "classwise", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": visible(name), **counts})
    for case in cases:
        label = visible(case_name(case.name))
        element = ET.SubElement(suite, "testcase", classname=f"classwise.{visible(name)}", name=label)
        if case.status != "passed":
            kind = "failure" if case.status == "failed" else "error"
            lines = [label, *(visible(line) for line in (case.message, *case.images))]
            ET.SubElement(element, kind, message=lines[1]).text = "\n".join(lines)
        else:
            ET.SubElement(element, "system-out").text = visible(case.message)
    if caveat:
        ET.SubElement(suite, "system-out").text = visible(caveat)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    write_text(path, f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')


def write_sarif(
    path: str | os.PathLike[str],
    checks: Iterable[Check],
    artifact: Path,
    warnings: Sequence[AuditWarning] = (),
    caveat: str = "",
) -> None:
    """Write failed and undecided checks, the warnings of the guards and a caveat as SARIF 2.1.0.

    Args:
        path: the file.
        checks: the checks.
        artifact: the file that results refer to, such as the page; relative to the working directory if it is below.
        warnings: the warnings of the guards.
        caveat: what is known about the attacks, a note.

    Raises:
        ClasswiseError: if the file cannot be written.
    """
    rules = {
        CONDITION: "A condition of --fail-if or a criterion of the policy is true.",
        UNDECIDED: "A condition depends on images that are not evaluated, or the audit is not as its policy requires.",
        **({OBJECTIVE: "All attacks maximise the cross-entropy."} if caveat else {}),
        **{warning.name: f"The evaluation guard {warning.name} raised a warning." for warning in warnings},
    }
    levels = {CONDITION: "error", UNDECIDED: "warning"}
    results = [
        _result(rules, rule, levels[rule], [f"{check.name}: {check.message}", *check.images], check.name, artifact)
        for check in checks
        if check.status != "passed"
        for rule in [CONDITION if check.status == "failed" else UNDECIDED]
    ]
    results += [
        _result(rules, warning.name, "warning", [warning.sentence], warning.name, artifact) for warning in warnings
    ]
    results += [_result(rules, OBJECTIVE, "note", [caveat], OBJECTIVE, artifact)] if caveat else []
    driver = {
        "name": "classwise",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": text}} for rule, text in rules.items()],
    }
    log = {
        "$schema": SARIF_SCHEMA,
        "version": SARIF_VERSION,
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    write_json(path, log, indent=2, ensure_ascii=False)


def _result(
    rules: Mapping[str, str], rule: str, level: str, lines: Sequence[str], identity: str, artifact: Path
) -> dict[str, Any]:
    """A result with a message of these lines; its fingerprint depends on the rule and the condition, not on values."""
    digest = hashlib.sha256(f"{rule}\n{identity}".encode()).hexdigest()
    return {
        "ruleId": rule,
        "ruleIndex": list(rules).index(rule),
        "level": level,
        "message": {"text": "\n".join(map(visible, lines))},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(artifact)}}}],
        "partialFingerprints": {"condition/v1": digest},
    }


def _uri(path: Path) -> str:
    """A relative URI below the working directory, else an absolute one."""
    absolute = path.absolute()
    if absolute.is_relative_to(Path.cwd()):
        from urllib.parse import quote

        return quote(absolute.relative_to(Path.cwd()).as_posix())
    return absolute.as_uri()
