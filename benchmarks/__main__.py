"""Run benchmarks and print Markdown: ``python -m benchmarks [--quick] [NAME...]``; by default all but `comparison`."""

from __future__ import annotations

import sys

from benchmarks import (
    attacks,
    autoattack,
    comparison,
    evaluation,
    interval_coverage,
    methods,
    scaling,
    strength,
    training_step,
    worst_class,
)

ALL = {
    "training_step": training_step.run,
    "methods": methods.run,
    "evaluation": evaluation.run,
    "strength": strength.run,
    "attacks": attacks.run,
    "autoattack": autoattack.run,
    "worst-class": worst_class.run,
    "scaling": scaling.run,
    "interval-coverage": interval_coverage.run,
}
LONG = {"comparison": comparison.run}
"""Benchmarks of hours or days, which run only if named."""
REPORTS = {"comparison": comparison.report}
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
