"""Run benchmarks and print Markdown: ``python -m benchmarks [--quick] [NAME...]``; by default all but `LONG`."""

from __future__ import annotations

import sys

from benchmarks import (
    ablation,
    attacks,
    audit_calls,
    autoattack,
    comparison,
    evaluation,
    fusion,
    interval_coverage,
    methods,
    scaling,
    strength,
    training_length,
    training_step,
    two_phase,
    worst_class,
)

ALL = {
    "training_step": training_step.run,
    "methods": methods.run,
    "evaluation": evaluation.run,
    "audit-calls": audit_calls.run,
    "fusion": fusion.run,
    "strength": strength.run,
    "attacks": attacks.run,
    "autoattack": autoattack.run,
    "worst-class": worst_class.run,
    "two-phase": two_phase.run,
    "scaling": scaling.run,
    "interval-coverage": interval_coverage.run,
}
STUDIES = {study.name: study for study in (ablation.STUDY, training_length.STUDY)}
LONG = {"comparison": comparison.run, **{name: study.run for name, study in STUDIES.items()}}
"""Benchmarks of hours or days, which run only if named."""
REPORTS = {"comparison": comparison.report, **{name: study.report for name, study in STUDIES.items()}}
"""Functions that ``--report`` calls instead: they write the page of the finished runs."""


def main() -> None:
    quick = "--quick" in sys.argv
    selected = [name for name in sys.argv[1:] if not name.startswith("-")] or list(ALL)
    known = REPORTS if "--report" in sys.argv else ALL | LONG
    unknown = set(selected) - set(known)
    if unknown:
        sys.exit(f"unknown benchmark {min(unknown)!r}; known: {', '.join(known)}")
    print(f"{evaluation.threads()}\n")
    for name in selected:
        print(known[name](quick=quick), flush=True)


if __name__ == "__main__":
    main()
