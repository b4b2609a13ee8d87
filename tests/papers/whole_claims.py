"""Expected verdicts on whole claims, from those of the items that test them."""

from __future__ import annotations

from collections.abc import Iterable

from .statements import Paper, Shown, is_question, parts_of


def tests_of(paper: Paper, claim: str) -> list[tuple[str, Shown]]:
    """The tests of a claim or of its parts, each with its item."""
    related = {claim, *(one for one, _ in parts_of(claim))}
    return [(item, one) for item, some, _ in paper.newest() for one in some if one.raw.claim in related]


def whole(paper: Paper, claim: str, *, short: bool = False) -> tuple[str, str, str]:
    """Verdict on a whole claim, its small print, and the CSS class of its row; ``short`` as on a page."""
    if is_question(claim):
        where = ", ".join(item for item, asked in paper.measured() if claim in asked)
        return (
            ("open question: see the measurements" if where else "open question, not measured yet"),
            (f"measured by {where}" if where else ""),
            "",
        )
    parts = parts_of(claim)
    related = {claim, *(one for one, _ in parts)}
    tests = tests_of(paper, claim)
    reasons = [
        (reason, item) for item, _, untested in paper.newest() for one, reason in untested.items() if one in related
    ]
    covered = {(one.raw.claim, part) for _, one in tests for part in one.raw.covers or ("",)}
    missing = [pair for pair in parts if pair not in covered]
    if tests and missing:
        names = [_part(claim, pair) for pair in parts if pair in covered]
        names += [_part(claim, pair) for pair in sorted(covered) if pair not in parts]
        lacking = ", ".join(_part(claim, pair) for pair in missing)
        text = f"partly tested: {', '.join(names)}; not tested: {lacking}"
        return text, _items_of((one.covered(short=short), item) for item, one in tests), ""
    if not tests:
        return ("not tested", _items_of(reasons), "") if reasons else ("not tested yet", "", "")
    items = {item for item, _ in tests}
    texts, named, texts_of_all, marks = [], [], dict[str, None](), set()
    for item, some, untested in paper.newest():
        if item in items:
            own = [one for one in some if one.raw.claim in related]
            others = [("not tested", item) for one in untested if one in related]
            texts += [(one.text(short=short), item) for one in own] + others
            named += [(one.covered(short=short), item) for one in own] + others
            texts_of_all |= dict.fromkeys(one.text(short=True) for one in own)
            marks |= {one.mark for one in own}
            if any(one in related for one in untested):
                texts_of_all["not tested"] = None
                marks.add("")
    mark = marks.pop() if len(marks) == 1 else ""
    if len({text for text, _ in texts}) == 1:
        return texts[0][0], ", ".join(dict.fromkeys(item for _, item in texts)), mark
    return "; ".join(texts_of_all), _items_of(named), mark


def _items_of(pairs: Iterable[tuple[str, str]]) -> str:
    found: dict[str, list[str]] = {}
    for text, item in pairs:
        found.setdefault(text, []).append(item)
    return "; ".join(f"{text}: {', '.join(dict.fromkeys(where))}" for text, where in found.items())


def all_texts(paper: Paper, claim: str) -> str:
    """Text of the verdicts on a claim in the terminal, with the settings of each."""
    text, small, _ = whole(paper, claim)
    if text.startswith("partly tested") or ": " not in small:
        return text
    texts = (one.rpartition(": ")[0].rpartition(": ")[2] for one in small.split("; "))
    return "; ".join(dict.fromkeys(texts))


def _part(claim: str, pair: tuple[str, str]) -> str:
    one, part = pair
    return (part or "the claim") if one == claim else (f"{one}: {part}" if part else one)
