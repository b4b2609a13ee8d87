"""The page of an evidence report, rendered from its JSON content only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from classwise.auditing.criteria.policy import DEFAULT_GUARDS
from classwise.auditing.criteria.thresholds import ENDS, NEGATED, Threshold
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.requirements import EFFORT
from classwise.reporting import formatting
from classwise.reporting.evidence.facts import (
    AuditFacts,
    CriterionFacts,
    EvidenceFacts,
    Proportion,
    Verdict,
    other_text,
)
from classwise.reporting.evidence.supplements import Supplement, SupplementRow
from classwise.reporting.facts.provenance import code_settings
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import render

VERDICTS: Mapping[Verdict, str] = {
    "passed": "All criteria passed",
    "failed": "A criterion failed",
    "undecided": "A criterion is undecided",
    "not as required": "Not passed: the audit is not as the policy requires",
}
BOUND = "Robust accuracy is an upper bound, since other attacks may succeed."
"""The first limit of every report."""
CRITERIA = (
    "A criterion has the interval of the one number that the policy named before the run: the accuracy on all images, "
    "of one class, or of the worst class, whichever class it is. It is usually narrower than those of the table of "
    "accuracies: they hold for all classes at once, so that a reader may choose a class after the run."
)
"""How the intervals of criteria and of classes differ."""
SUPPORT = (
    "Criteria and sections of this report may support the topics below. The report does not state that a requirement "
    "is met. Where the text of a document is not public, its topics are those of a public notice."
)
"""What the tables of standards mean."""
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
    guards = policy["guards"]
    context = {
        "version": facts["classwise"],
        "title": f"{policy['title']}: robustness evidence",
        "over": [
            f"classwise evidence {facts['number']}",
            *dict.fromkeys(str(audit["threat"]) for audit in facts["audits"]),
        ],
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
        "model": [
            (key.capitalize(), model[key])
            for key in ("architecture", "size", "provenance", "licence")
            if model.get(key)
        ],
        "data": [(name.capitalize(), data[name]) for name in ("source", "licence", "sampling")],
        "audits": [_audit(audit, facts) for audit in facts["audits"]],
        "supplements": [supplement_table(found) for found in facts["supplements"]],
        "limits": policy["limits"],
        "required": [
            ("Attacks", ", ".join(policy["attacks"])),
            ("Guards", guards if isinstance(guards, str) else ", ".join(guards) or "none"),
            ("Precision", policy["precision"]),
            ("Images", f"at least {data['images']:,}, and {data['images_per_class']:,} of each class"),
            ("Images SHA-256", data["digest"]),
            ("Split", data["split"]),
            ("Options", ", ".join(f"{name} {value}" for name, value in policy["options"].items()) or "the defaults"),
        ],
        "validity": [("Valid until", validity["until"]), ("Test again if", "; ".join(validity["retest_if"]))],
        "criteria_note": CRITERIA,
        "clauses": _clauses(facts),
        "standards": _standards(facts["standards"]),
        "support": f"{SUPPORT} As of {facts['standards_date']}.",
    }
    return render("evidence.html", context)


def _audit(audit: AuditFacts, facts: EvidenceFacts) -> dict[str, Any]:
    """The parts of the page on one audit."""
    policy = facts["policy"]
    machine = [audit["environment"].get(name) for name in ("date", "device", "processor")]
    record = [("Data", f"{audit['data']} {audit['split']}".strip()), ("Data SHA-256", audit["data_sha256"])]
    model = [("Model", audit["model"]), ("Model SHA-256", audit["model_sha256"])]
    model += code_settings(audit.get("code"))
    if isinstance(network := audit["environment"].get("network"), str):
        model.append(("Network as loaded", network))
    return {
        "name": audit["name"],
        "result": [
            ("Verdict", VERDICTS[audit["verdict"]]),
            ("Weakest class", _weakest(audit)),
            ("Threat", str(audit["threat"])),
            ("Images", f"{audit['overall']['robust']['n']:,} of {formatting.data_name(audit['data'], audit['split'])}"),
            ("Attacks", _efforts(audit)),
            ("Guards", _warned(audit, policy)),
            ("Limits", " ".join((BOUND, *policy["limits"]))),
            ("Valid until", policy["validity"]["until"]),
            ("Report", f"{facts['number']}, {facts['date']}"),
            ("Audited", ", ".join(str(fact) for fact in machine if fact)),
            ("Policy SHA-256", policy["digest"]),
        ],
        "not_as_required": audit["not_as_required"],
        "others": [(row["name"], other_text(row)) for row in audit["others"]],
        "model": model,
        "data": [(name, text) for name, text in record if text],
        "criteria": _criteria(audit["criteria"]),
        "classes": classes_table(audit),
        "crossed": _crossed(audit),
        "worst": _worst(audit),
        "confusion": _confusion(audit),
        "attacks": attacks_table(audit),
        "warnings": [
            {"sentence": row["detail"], "name": row["name"]} for row in audit["guards"] if row["result"] == "warning"
        ],
        "guards": _guards(audit),
        "caveats": audit["caveats"],
        "settings": audit["settings"],
    }


def _efforts(audit: AuditFacts) -> str:
    """The attacks with the settings of their effort: ``pgd (steps 20)``."""
    found = []
    for row in audit["attacks"]:
        stated = dict(part.split("=", 1) for part in row["settings"].partition(":")[2].split(",") if "=" in part)
        efforts = [f"{name} {stated[name]}" for name in EFFORT if name in stated and stated[name] != "1"]
        if row["applicable"] and row["name"] != CLEAN:
            found.append(f"{row['name']} ({', '.join(efforts)})" if efforts else row["name"])
    return ", ".join(found) or "none"


def _warned(audit: AuditFacts, policy: Mapping[str, Any]) -> str:
    """The guards that warn, those that the policy does not require among them, and how many did not run."""
    names = {kind: [row["name"] for row in audit["guards"] if row["result"] == kind] for kind in ("warning", "not run")}
    listed = [policy["guards"]] if isinstance(policy["guards"], str) else policy["guards"]
    required = {*listed, *(DEFAULT_GUARDS if "default" in listed else ())}
    warnings = [name if name in required else f"{name} (not required by the policy)" for name in names["warning"]]
    warned = f"warnings of {formatting.listed(warnings)}" if warnings else "no warning"
    return f"{warned}; {len(names['not run'])} did not run" if names["not run"] else warned


def _weakest(audit: AuditFacts) -> str:
    """The class of the lowest robust accuracy, with its interval and those that cannot be excluded as the worst."""
    rows = [row for row in audit["classes"] if row["robust"]["accuracy"] is not None]
    if not rows:
        return formatting.NONE
    lowest = min(rows, key=lambda row: row["robust"]["accuracy"] or 0.0)
    robust, clean = lowest["robust"], lowest["clean"]
    low, high = (math.nan if end is None else end for end in (robust["low"], robust["high"]))
    before = "" if clean["accuracy"] is None else f", without attack {formatting.bare_percent(clean['accuracy'])} %"
    others = [row["name"] for row in rows if row["possibly_worst"] and row is not lowest]
    also = f"; other candidates: {formatting.listed(others)}" if others else ""
    accuracy = formatting.bare_percent(robust["accuracy"] or 0.0)
    counts = f"{formatting.count(robust['count'])} of {formatting.count(robust['n'])} images"
    interval = f"interval of all classes at once {formatting.span(low, high)} %"
    return f"{lowest['name']}: {accuracy} % under attack ({counts}; {interval}){before}{also}"


def _criteria(criteria: Sequence[CriterionFacts]) -> Table:
    rows = []
    for row in criteria:
        counts = formatting.NONE if row["correct"] is None else f"{row['correct']:,} of {row['n']:,}"
        rows.append(
            Row(
                _required(row["fails_if"]),
                [Cell(row["status"]), Cell(counts), Cell(_measured(row), _at_end(row))],
                weak=row["status"] == "failed",
            )
        )
    return Table("Acceptance criteria", ["required", "result", "correct images", "measured"], rows)


def _required(fails_if: str) -> str:
    """What a criterion requires, the opposite of the condition that fails it: ``worst(all) >= 0.2``."""
    condition = Threshold.parse(fails_if)
    return str(dataclasses.replace(condition, comparison=NEGATED[condition.comparison]))


def _at_end(criterion: CriterionFacts) -> str:
    """What a criterion on the measured value is at the end of its interval; empty for one on an end."""
    if not criterion["on_estimate"]:
        return ""
    if criterion["at_end"] is None:
        return "decided on the measured value"
    passes = {"passed": "it passes, too", "failed": "it fails", "undecided": "it would pass, too"}[criterion["at_end"]]
    return f"decided on the measured value; at the {_end(criterion)} of its own interval {passes}"


def _end(criterion: CriterionFacts) -> str:
    """The end of the interval of a criterion that decides against it, in words."""
    threshold = Threshold.parse(criterion["fails_if"])
    side, end = ("lower", criterion["low"]) if threshold.comparison[0] == "<" else ("upper", criterion["high"])
    shown = f", {formatting.bare_percent(end)} %," if end is not None and threshold.is_fraction else ""
    return f"{side} end{shown}"


def _measured(criterion: CriterionFacts) -> str:
    """What was measured and is required, without an interval: the table of accuracies has one of each class."""
    if criterion["correct"] is None or not criterion["n"]:
        return criterion["detail"]
    accuracy = f"{formatting.bare_percent(criterion['correct'] / criterion['n'])} %"
    at_end = "" if criterion["on_estimate"] else f", at the {_end(criterion)} of its own interval"
    return f"{accuracy}{at_end}; required: {criterion['detail'].partition('; required: ')[2]}"


def _proportion(found: Proportion | None) -> Cell:
    if found is None or not found["n"]:
        return Cell(formatting.NONE)
    low, high = (math.nan if end is None else end for end in (found["low"], found["high"]))
    span, counts = formatting.span(low, high), f"{formatting.count(found['count'])} of {formatting.count(found['n'])}"
    if found["accuracy"] is None:
        return Cell(span, f"bounds; {counts} so far")
    return Cell(formatting.bare_percent(found["accuracy"]), f"{span}; {counts}")


def classes_table(audit: AuditFacts) -> Table:
    """The accuracies of each class, with intervals."""
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
    simultaneous = (
        f"In each column the intervals of all classes hold simultaneously with {level} confidence."
        if audit["complete"]
        else "Bounds hold for every possible result on the images that are not evaluated, so for all classes; they "
        "are for these images, not for new ones."
    )
    note = (
        f"{simultaneous} Drop: images that "
        "are correct without attack and misclassified under attack, of all images of the class. May be the worst: the "
        "classes that cannot be excluded as the worst at this confidence. The row of all images has its own interval."
    )
    if audit["group"]:
        note = f"The rows are groups of images by {kind}; so are the classes in this note. {note}"
    absent = [row["name"] for row in audit["classes"] if not row["robust"]["n"]]
    note += f" Without images: {formatting.listed(absent)}." if absent else ""
    return Table(caption, [kind, "n", "clean", "robust", "drop", "may be the worst"], rows, note)


def _crossed(audit: AuditFacts) -> Table | None:
    """The classes within each group, the lowest accuracy first."""
    if not audit["crossed"]:
        return None
    listed = sorted(audit["crossed"], key=lambda row: row["robust"]["accuracy"] or 0.0)
    rows = [
        Row(row["name"], [Cell(formatting.count(row["robust"]["n"])), *map(_proportion, (row["clean"], row["robust"]))])
        for row in listed
    ]
    note = "In each column the intervals of all rows hold simultaneously."
    heads = ["group: class", "n", "clean", "robust"]
    return Table(f"Accuracy per class within each {audit['group']}", heads, rows, note)


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


def attacks_table(audit: AuditFacts) -> Table:
    """The attacks, their settings and passes."""
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
        Row(row["name"], [Cell(row["problem"], detail), Cell(row["result"])])
        for row, detail in zip(audit["guards"], details, strict=True)
    ]
    return Table("Guards", ["guard", "problem that it looks for", "result"], rows)


def supplement_table(found: Supplement) -> Table:
    """A further result: a row for each class or corruption."""
    percent = found["unit"] == "fraction"

    def shown(value: float | None) -> str:
        return formatting.NONE if value is None else formatting.bare_percent(value) if percent else f"{value:.4g}"

    def cells(row: SupplementRow) -> list[Cell]:
        ends = f"{shown(row['low'])}\N{EN DASH}{shown(row['high'])}"
        return [Cell(formatting.count(row["n"])), Cell(shown(row["value"]), ends)]

    about = ", ".join(filter(None, (found["data"], found["threat"])))
    caption = f"{found['kind'].capitalize()} {found['name']}: {about}"
    intervals = {
        "curve": "Each interval is for its row alone",
        "worst-class search": "Intervals are simultaneous, for these images",
        "corruptions": "Beside a lowest class is the interval of the lowest accuracy, whichever class has it",
    }[found["kind"]]
    note = f"{found['sentence']} {intervals}; no criterion is decided on this table.".strip()
    kind = "corruption" if found["kind"] == "corruptions" else "class"
    rows = [Row(row["name"], cells(row)) for row in found["rows"]]
    return Table(caption, [kind, "n", found["measure"]], rows, note)


def _clauses(facts: EvidenceFacts) -> Table:
    """The topics of documents that are about the measure of each criterion."""
    rows = []
    for text in dict.fromkeys(row["fails_if"] for audit in facts["audits"] for row in audit["criteria"]):
        condition = Threshold.parse(text)
        name, _, end = condition.measure.partition(".")
        kinds = {"clean" if condition.attack == CLEAN else "attack"}
        kinds |= {"interval"} if end in ENDS else set()
        kinds |= {"class"} if name != "overall" else set()
        found = (
            (entry["title"].partition(",")[0], [t["ref"] for t in entry["topics"] if kinds & {*t.get("criteria", ())}])
            for entry in facts["standards"]
        )
        clauses = "; ".join(f"{title}: {', '.join(topics)}" for title, topics in found if topics)
        rows.append(Row(text, [Cell(clauses or formatting.NONE)]))
    return Table("Criteria", ["criterion: fails if", "topics that it may support"], rows)


def _standards(entries: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for entry in entries:
        topics = "; ".join(f"{topic['ref']}: {topic['about']}" for topic in entry["topics"])
        applies = "; ".join(f"{name}: {date}" for name, date in entry.get("applies", {}).items())
        cells = (entry["basis"], topics, applies or formatting.NONE, ", ".join(entry["sections"]))
        rows.append(Row(entry["title"], [*map(Cell, cells)]))
    heads = ["document", "written from", "topics", "applies from", "sections that may support them"]
    return Table("Standards", heads, rows)
