"""Commands in an interpreter that removes assertions (``python -O``) and docstrings (``python -OO``)."""

from __future__ import annotations

from random import Random

from tests.hostile.case import ATTACK, AUDIT, CLEAN_AUDIT, Case, audit

DONE = frozenset({0})
TEXTS: tuple[tuple[str, ...], ...] = (
    ("audit", "--help"), ("sweep", "run", "--help"), ("attacks", "pgd"), ("cite", "cfa-trades"),
)  # fmt: skip
AUDITS: tuple[tuple[str, ...], ...] = (
    CLEAN_AUDIT,
    (*AUDIT, "--attack=pgd:steps=3", "--attack=square:steps=5"),
    (*AUDIT, ATTACK, "--guards=full"),
)


def cases(random: Random) -> list[Case]:
    """Every command at both levels; audits give the numbers that they give without."""
    del random
    found = []
    for level in (1, 2):
        option = f"python -{'O' * level}"
        found += [Case(f"{option}: {' '.join(words)}", words, {}, DONE, optimise=level) for words in TEXTS]
        found += [
            Case(f"{option}: {' '.join(words)}", (*words, "--out=out"), {}, DONE, words, optimise=level)
            for words in AUDITS
        ]
        found += [
            Case(f"{option}: the report", ("report", "@audit", "--out=out/page.html"), {}, DONE, optimise=level),
            Case(f"{option}: the check", ("report", "@audit", "--check"), {}, DONE, optimise=level),
            Case(f"{option}: no such attack", audit("--attack=pgdd"), {}, optimise=level),
        ]
    return found
