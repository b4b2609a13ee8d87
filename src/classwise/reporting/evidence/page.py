"""The page of an evidence report, rendered from its JSON content only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from classwise.reporting import formatting
from classwise.reporting.evidence.facts import AuditFacts, CriterionFacts, EvidenceFacts, Proportion
from classwise.reporting.facts.provenance import code_settings
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import render

VERDICTS = {"passed": "All criteria passed", "failed": "A criterion failed", "undecided": "A criterion is undecided"}
SUPPORT = (
    "Sections of this report may support the topics below. The report does not state that a requirement is met. Where "
    "the text of a document is not public, its topics are those of a public notice."
)
"""What the table of standards means."""
BUDGETS = (
    "Passes are of single images, in total. In a cascade an attack runs on the images that survive the earlier ones, "
    "and images are correct if they survive all attacks so far."
)
"""What the table of attacks means."""


def evidence_page(facts: EvidenceFacts) -> str:
    """Render the page.

    Args:
        facts: the content of ``evidence.json``.
    """
    policy = facts["policy"]
    threat, model, data, validity = (policy[name] for name in ("threat_model", "model", "data", "validity"))
    context = {
        "version": facts["classwise"],
        "title": f"{policy['title']}: robustness evidence",
        "over": ["classwise evidence", *dict.fromkeys(str(audit["threat"]) for audit in facts["audits"])],
        "headline": policy["title"],
        "lead": f"{VERDICTS[facts['verdict']]}. {facts['criteria_sentence']}",
        "population": "Intervals are for new images of the same classes, with the model fixed.",
        "facts": facts,
        "use": [("Intended use", policy["intended_use"]), ("Operating domain", policy["operating_domain"])],
        "threat": [
            ("Goal", threat["goal"]),
            ("Knowledge", threat["knowledge"]),
            ("Capability", threat["capability"]),
            ("Radius", threat["radius"]),
            ("Why this radius", threat["why"]),
        ],
        "model": [(name.capitalize(), model[name]) for name in ("architecture", "size", "provenance")],
        "data": [(name.capitalize(), data[name]) for name in ("source", "licence", "sampling")],
        "audits": [_audit(audit) for audit in facts["audits"]],
        "limits": policy["limits"],
        "validity": [("Valid until", validity["until"]), ("Test again if", "; ".join(validity["retest_if"]))],
        "standards": _standards(facts["standards"]),
        "support": f"{SUPPORT} As of {facts['standards_date']}.",
    }
    return render("evidence.html", context)


def _audit(audit: AuditFacts) -> dict[str, Any]:
    """The parts of the page on one audit."""
    record = [("Data", f"{audit['data']} {audit['split']}".strip()), ("Data SHA-256", audit["data_sha256"])]
    model = [("Model", audit["model"]), ("Model SHA-256", audit["model_sha256"])]
    model += code_settings(audit.get("code"))
    if isinstance(network := audit["environment"].get("network"), str):
        model.append(("Network as loaded", network))
    return {
        "name": audit["name"],
        "model": model,
        "data": [(name, text) for name, text in record if text],
        "criteria": _criteria(audit["criteria"]),
        "classes": _classes(audit),
        "worst": _worst(audit),
        "confusion": _confusion(audit),
        "attacks": _attacks(audit),
        "warnings": [
            {"sentence": row["detail"], "name": row["name"]} for row in audit["guards"] if row["result"] == "warning"
        ],
        "guards": _guards(audit),
        "caveats": audit["caveats"],
        "settings": audit["settings"],
    }


def _criteria(criteria: Sequence[CriterionFacts]) -> Table:
    rows = []
    for row in criteria:
        counts = formatting.NONE if row["correct"] is None else f"{row['correct']:,} of {row['n']:,}"
        rows.append(
            Row(
                row["fails_if"],
                [Cell(row["status"]), Cell(counts), Cell(row["detail"])],
                weak=row["status"] == "failed",
            )
        )
    heads = ["fails if", "result", "correct images", "measured"]
    return Table("Acceptance criteria, conditions that must be false", heads, rows)


def _proportion(found: Proportion | None) -> Cell:
    if found is None or not found["n"]:
        return Cell(formatting.NONE)
    low, high = (math.nan if end is None else end for end in (found["low"], found["high"]))
    span, counts = formatting.span(low, high), f"{formatting.count(found['count'])} of {formatting.count(found['n'])}"
    if found["accuracy"] is None:
        return Cell(span, f"bounds; {counts} so far")
    return Cell(formatting.bare_percent(found["accuracy"]), f"{span}; {counts}")


def _classes(audit: AuditFacts) -> Table:
    rows = []
    listed = sorted(audit["classes"], key=lambda row: row["robust"]["accuracy"] or 0.0)
    for row in [audit["overall"], *(row for row in listed if row["robust"]["n"])]:
        suspect = {None: "", True: "yes", False: "no"}[row["possibly_worst"]]
        cells = [Cell(formatting.count(row["robust"]["n"]))]
        cells += [_proportion(row["clean"]), _proportion(row["robust"]), _proportion(row["drop"]), Cell(suspect)]
        rows.append(Row(row["name"], cells, weak=bool(row["possibly_worst"])))
    level = formatting.level(1 - audit["confidence"])
    kind = audit["group"] or "class"
    caption = f"Accuracy per {kind}, percent [{level} interval; counts]"
    note = (
        f"In each column the intervals of all classes hold simultaneously with {level} confidence. Drop: images that "
        "are correct without attack and misclassified under attack, of all images of the class. May be the worst: the "
        "classes that cannot be excluded as the worst at this confidence. The row of all images has its own interval."
    )
    if audit["group"]:
        note = f"The rows are groups of images by {kind}; so are the classes in this note. {note}"
    absent = [row["name"] for row in audit["classes"] if not row["robust"]["n"]]
    note += f" Without images: {formatting.listed(absent)}." if absent else ""
    return Table(caption, [kind, "n", "clean", "robust", "drop", "may be the worst"], rows, note)


def _worst(audit: AuditFacts) -> str:
    names = [row["name"] for row in audit["classes"] if row["possibly_worst"]]
    if not audit["complete"]:
        gaps = ", ".join(f"{count} under {name}" for name, count in audit["not_judged"].items() if count)
        return f"Images are not evaluated: {gaps}. The table has bounds, for all possible results on these images."
    return f"{'Groups' if audit['group'] else 'Classes'} that may be the worst: {formatting.listed(names)}."


def _confusion(audit: AuditFacts) -> Table | None:
    if audit["confusion"] is None:
        return None
    rows = [
        Row(row["name"], [Cell(formatting.count(row["errors"])), Cell(_counts(row["absorbed_by"]))])
        for row in sorted(audit["confusion"], key=lambda row: -row["errors"])
    ]
    absorbed = audit["absorbed"] or {}
    most = {name: absorbed[name] for name in [*absorbed][:3]}
    note = f"Most misclassified images are absorbed by: {_counts(most)}." if most else ""
    note += " An image counts by its first incorrect prediction, in the order of the attacks."
    return Table("Misclassified images under attack", ["class", "misclassified", "predicted most often"], rows, note)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {formatting.count(count)}" for name, count in counts.items()) or formatting.NONE


def _attacks(audit: AuditFacts) -> Table:
    rows = []
    for attack in audit["attacks"]:
        settings = attack["settings"] if attack["applicable"] else f"{attack['settings']} (not applicable)"
        numbers = (attack[name] for name in ("images", "correct", "forwards", "backwards"))
        rows.append(Row(attack["name"], [Cell(settings), *(Cell(formatting.count(number)) for number in numbers)]))
    heads = ["attack", "settings", "images attacked", "correct images", "forward passes", "backward passes"]
    return Table("Attacks, their settings and budgets", heads, rows, BUDGETS)


def _guards(audit: AuditFacts) -> Table:
    """The details of warnings are above the table."""
    details = ("" if row["result"] == "warning" else row["detail"] for row in audit["guards"])
    rows = [
        Row(row["name"], [Cell(row["result"]), Cell(row["problem"], detail)])
        for row, detail in zip(audit["guards"], details, strict=True)
    ]
    return Table("Guards", ["guard", "result", "problem that it looks for"], rows)


def _standards(entries: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for entry in entries:
        topics = "; ".join(f"{topic['ref']}: {topic['about']}" for topic in entry["topics"])
        applies = "; ".join(f"{name}: {date}" for name, date in entry.get("applies", {}).items())
        cells = (entry["seen"], topics, applies or formatting.NONE, ", ".join(entry["sections"]))
        rows.append(Row(entry["title"], [*map(Cell, cells)]))
    heads = ["document", "seen", "topics", "applies from", "sections that may support them"]
    return Table("Standards", heads, rows)
