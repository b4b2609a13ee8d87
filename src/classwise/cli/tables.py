"""Audit results as JSON-compatible data."""

from __future__ import annotations

import dataclasses
from typing import Any

import classwise as cw
from classwise.reporting import formatting


def audit_facts(result: cw.Audit) -> dict[str, Any]:
    """Results of an audit as JSON-compatible data, accuracies as fractions; bounds only for an incomplete audit."""
    from classwise.reporting.facts.audit_summary import shown_warnings
    from classwise.reporting.facts.incomplete import report_of
    from classwise.reporting.facts.repeats import repeats_facts
    from classwise.reporting.facts.sentences import caveats

    worst = None
    if result.complete:
        found = result.worst_class()
        worst = {
            "class": found.name,
            "n": found.count,
            "accuracy": found.accuracy,
            "low": found.low,
            "high": found.high,
            "interval": formatting.lowest_interval_name(result.alpha, result.group),
            "possibly": list(found.possibly),
        }
    return {
        "name": result.name,
        "threat": result.outcomes.meta.threat,
        "complete": result.complete,
        "not_applicable": list(result.outcomes.meta.not_applicable),
        "robustness_evaluated": result.outcomes.meta.robustness_evaluated,
        "not_judged": result.outcomes.unjudged,
        "classes": result.by_class.to_dict("index"),
        "summary": result.by_attack.to_dict("index"),
        "worst": worst,
        "estimate": None if result.complete else report_of(result).facts,
        "warnings": [warning._asdict() for warning in shown_warnings(result, result.group)],
        "caveats": caveats(result),
        "guards": None if result.guards is None else dataclasses.asdict(result.guards),
        "repeats": repeats_facts(result),
        "grid": result.outcomes.meta.grid,
        "environment": result.environment,
    }
