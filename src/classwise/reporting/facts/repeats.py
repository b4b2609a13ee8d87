"""Tables of audits in which several passes decide about each image: the probability of a correct pass."""

from __future__ import annotations

from typing import Any

from classwise.auditing.outcomes.table import ALL
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.facts.audit_summary import heading
from classwise.reporting.tables import Cell, Row, Table, share_cell


def repeats_note(audit: Audit) -> str:
    """What the values and the intervals of the table are, and how verdicts were made."""
    meta = audit.outcomes.meta
    return (
        f"Verdicts: an image counts as correct if {meta.decided_by} are correct. Here each image counts with the "
        "fraction of its passes that are correct on the image that the attack returned; under all, with its lowest "
        f"fraction, which is too low rather than too high. With a number: its "
        f"{formatting.level(audit.alpha)} interval for new images and new passes."
    )


def repeats_table(audit: Audit) -> Table:
    """The mean probability of a correct pass per class and over all images, percent, with intervals."""
    meta, names = audit.outcomes.meta, [*audit.outcomes.attacks, ALL]
    rows = []
    for frame in (audit.probabilities(), audit.probabilities(overall=True)):
        for name, row in frame.iterrows():
            shares = (share_cell(row[attack], row[f"{attack}_low"], row[f"{attack}_high"]) for attack in names)
            rows.append(Row(str(name), [Cell(formatting.count(int(row["n"]))), *shares]))
    kind = audit.group or "class"
    caption = f"Probability of a correct pass per {kind}, percent [{formatting.level(audit.alpha)} interval]"
    return Table(caption, [kind, "n", *(heading(meta, name) for name in names)], rows, repeats_note(audit))


def repeats_facts(audit: Audit) -> dict[str, Any] | None:
    """The rule of the verdicts and the probabilities as JSON-compatible data; None if one pass decides.

    An incomplete audit has no probabilities.
    """
    meta = audit.outcomes.meta
    if meta.repeats == 1:
        return None
    facts: dict[str, Any] = {"passes": meta.repeats, "rule": meta.repeat_rule}
    if not audit.complete:
        return facts | {"overall": None, "classes": None}
    (overall,) = audit.probabilities(overall=True).to_dict("records")
    return facts | {"overall": overall, "classes": audit.probabilities().to_dict("index")}
