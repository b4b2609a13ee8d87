"""Run benchmarks and print Markdown: ``python -m benchmarks [--quick] [NAME...]``; without a name, all of them."""

from __future__ import annotations

import sys

from benchmarks import attacks, autoattack, evaluation, methods, racing, scaling, strength, training_step

ALL = {
    "training_step": training_step.run,
    "methods": methods.run,
    "evaluation": evaluation.run,
    "strength": strength.run,
    "attacks": attacks.run,
    "autoattack": autoattack.run,
    "racing": racing.run,
    "scaling": scaling.run,
}


def main() -> None:
    quick = "--quick" in sys.argv
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(ALL)
    unknown = set(chosen) - set(ALL)
    if unknown:
        sys.exit(f"unknown benchmark {min(unknown)!r}; known: {', '.join(ALL)}")
    print(f"{evaluation.threads()}\n")
    for name in chosen:
        print(ALL[name](quick=quick), flush=True)


if __name__ == "__main__":
    main()
