"""Coverage of every printed interval, and level of every printed test; see `benchmarks.coverage`."""

from __future__ import annotations

from benchmarks.coverage.census import PAGE, measure, page, read, write
from benchmarks.coverage.entries import CENSUS

QUICK = 20
"""Repetitions of a quick run."""


def run(*, quick: bool) -> str:
    """Simulate all entries of the census, write the page, and return it; quick: in few repetitions, not written."""
    found = {} if quick else read()
    for entry in CENSUS:
        least = measure(entry, QUICK if quick else None)
        found[least.simulation] = least
        if not quick:
            write(found)
    text = page(CENSUS, found)
    if not quick:
        PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")
    return text
