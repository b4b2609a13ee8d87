"""Run and print Markdown: ``python -m benchmarks [--quick] [NAME...]``; without a name, all but `comparison`."""

from __future__ import annotations

import sys

from benchmarks import (
    attacks,
    autoattack,
    comparison,
    evaluation,
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
}
LONG = {"comparison": comparison.run}
"""Hours or days, so by name only."""
REPORTS = {"comparison": comparison.report}
"""What ``--report`` calls instead: the page of what is finished."""


def main() -> None:
    quick = "--quick" in sys.argv
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(ALL)
    known = REPORTS if "--report" in sys.argv else ALL | LONG
    unknown = set(chosen) - set(known)
    if unknown:
        sys.exit(f"unknown benchmark {min(unknown)!r}; known: {', '.join(known)}")
    print(f"{evaluation.threads()}\n")
    for name in chosen:
        print(known[name](quick=quick), flush=True)


if __name__ == "__main__":
    main()
