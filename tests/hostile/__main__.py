"""Run hostile cases, each in a process forked from this one: ``python -m tests.hostile [--only TEXT] [--jobs N]``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.hostile.case import CLEAN_AUDIT, Case, Shared
from tests.hostile.harness import SEED, generate, numbers, prepare, run_forked


def main() -> int:
    """Run the cases; print a JSON line per failure and a summary; 1 if there is a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--category", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="a line per case")
    asked = parser.parse_args()
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as on a terminal, also under nohup
    cases = [
        (category, case)
        for category, found in generate(asked.seed).items()
        for case in found
        if asked.only in case.name and asked.category in category
    ]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HOME"] = str(folder / "home")
        shared = prepare(folder / "shared")
        before = control(shared, folder)
        workers = [
            multiprocessing.get_context("fork").Process(
                target=work, args=(cases[number :: asked.jobs], shared, folder / f"job-{number}", asked.verbose)
            )
            for number in range(asked.jobs)
        ]
        sys.stdout.flush()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        failed = [
            json.loads(line)
            for number in range(asked.jobs)
            for line in (folder / f"job-{number}" / "failures").read_text().splitlines()
        ]
        same = numbers(control(shared, folder)) == numbers(before)
    counts = Counter(category for category, _ in cases)
    success = Counter(failure["category"] for failure in failed)
    for category, count in counts.items():
        print(f"{category}: {count} cases, {success[category]} failures")
    lost = sum(worker.exitcode != 0 for worker in workers)
    print(f"{len(cases)} cases, {len(failed)} failures, {time.monotonic() - start:.0f} s")
    if lost:
        print(f"{lost} of {len(workers)} processes ended before their last case")
    if not same:
        print("the control audit gives other numbers after the cases")
    return 1 if failed or lost or not same else 0


def control(shared: Shared, folder: Path) -> str:
    """What a clean audit prints."""
    result = run_forked(Case("control", (*CLEAN_AUDIT, "--out=out"), {}, frozenset({0})), shared, folder / "control")
    assert not result.problems, result
    return result.out


def work(cases: list[tuple[str, Case]], shared: Shared, place: Path, verbose: bool) -> None:
    """Run some of the cases one after the other; a JSON line per failure goes to stdout and into a file."""
    place.mkdir()
    with (place / "failures").open("w") as failures:
        for category, case in cases:
            begun = time.monotonic()
            result = run_forked(case, shared, place)
            if verbose:
                last = result.err.strip().splitlines()[-1:] or [""]
                print(
                    f"{time.monotonic() - begun:6.2f} s {result.mebibytes:5.0f} MiB {result.status} {case.name}: {last[0][:200]}",
                    flush=True,
                )
            if result.problems:
                words = [word if len(word) < 200 else f"{word[:100]}...({len(word)})" for word in case.words]
                about = {"category": category, "case": case.name, "problems": result.problems, "words": words}
                line = json.dumps(about | {"err": result.err[-3000:]})
                print(line, file=failures, flush=True)
                print(f"FAILED [{category}] {case.name!a}: {'; '.join(result.problems)[:400]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
