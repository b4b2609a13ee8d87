"""The summaries of the papers' claims in README.md and docs/results/README.md, from the committed results.

python -m tools.papers_summary      # write it again
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.reference import table

from classwise.papers import catalogue
from classwise.papers.page import MARKS
from classwise.papers.result import Result, stored_results
from classwise.papers.scales import CIFAR
from classwise.papers.store import Store
from classwise.papers.tables import (
    OPEN,
    Overview,
    estimate_text,
    findings_sentence,
    images_to_decide,
    overviews,
)
from classwise.reporting.escape import markdown_text
from classwise.reporting.formatting import NONE

RESULTS = Path(__file__).parents[1] / "docs/results"
README = RESULTS / "README.md"
FRONT = RESULTS.parents[1] / "README.md"
WIDEST = 200
"""Characters of a line."""
HEADS = ("claim, item", "verdict", "ours", "scale", "what is missing")
SUBJECTS = {
    "kdd21": "classes differ in robustness",
    "iclr21": "its first version",
    "benz20": "adversarial training is unequal",
    "cfa23": "calibrated training helps the weakest class",
}
"""What each paper is about."""
BLOCK = re.compile(r"(<!-- generated: papers -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)
"""The generated part of the file."""


def papers() -> str:
    """Every paper: the sentence on it, and a table with a row for each claim."""
    results = stored_results(Store(RESULTS / "papers"))
    return "\n\n".join(_paper(name, results) for name in catalogue.OWN)


def findings() -> str:
    """A line for each paper: what it is about, and how many of its statements are decided in which way."""
    results = stored_results(Store(RESULTS / "papers"))
    return "\n".join(f"- {name}, {SUBJECTS[name]}: {_counts(overviews(name, results))}" for name in catalogue.OWN)


def _counts(found: Sequence[Overview]) -> str:
    tested = [one for one in found if one.whole != OPEN]
    count = Counter(one.whole for one in tested)
    computed = sum(
        one.whole == "supported" and one.shown is not None and one.shown[1].basis != "experiment" for one in tested
    )
    note = f" ({computed} by exact computation)" if computed else ""
    return f"{count['supported']} of {len(tested)} supported{note}, {count['not observed']} not observed"


def _paper(name: str, results: Mapping[str, Sequence[Result]]) -> str:
    rows = [
        (
            f"{_claim_and_item(one, name)}: {markdown_text(one.claim.title)}",
            ", ".join(filter(None, (f"{MARKS[one.whole]} {one.whole}", one.remark))),
            _estimate(one) if one.shown else NONE,
            ", ".join(filter(None, (one.scales, one.data if one.data != CIFAR else ""))) or NONE,
            _missing(one) or NONE,
        )
        for one in overviews(name, results)
    ]
    sentence = textwrap.fill(findings_sentence(name, results), WIDEST)
    page = f"[Page (in the repository: data as JSON)](papers/results/{name})."
    return "\n\n".join([f"### {name}", f"{sentence}\n{page}", table(HEADS, rows)])


def _claim_and_item(one: Overview, name: str) -> str:
    """The claim and the item whose test the row shows, without the name of the paper where it is that of the table."""
    claim = one.claim.id.partition("/")[2]
    return f"{claim}, {one.shown[0].item.removeprefix(f'{name}/')}" if one.shown else claim


def _estimate(one: Overview) -> str:
    """The estimate with its interval in brackets, as on the other pages, after the part of a claim that it decides.

    The level is omitted, which is 95 % for all tests of a paper together.
    """
    assert one.shown is not None
    value, span = estimate_text(one.shown[1])
    bracketed = re.sub(r"^(\S+) to (\S+)(?:\s\([\d.]+\s%\))?", r"[\1, \2]", span)
    text = value if not span else f"{value} {bracketed}" if bracketed != span else f"{value}, {span}"
    part = ", ".join(one.shown[1].covers)
    return f"{part}: {text}" if part and one.whole == "not observed" else text


def _missing(one: Overview) -> str:
    """The test images that would decide a claim, or why it is not tested; and what no training can test."""
    needed = images_to_decide(one.shown[1], one.shown[0].evidence).removeprefix("about ") if one.shown else ""
    why = needed or (one.why.partition("; ")[0] if one.whole in ("inconclusive", "not tested") else "")
    never = f"cannot be tested: {', '.join(one.claim.untestable)}" if one.claim.untestable else ""
    return "; ".join(text for text in (why, never) if text)


def main() -> None:
    """Write the generated parts of the files."""
    for file, block in ((README, papers()), (FRONT, findings())):
        text = file.read_text(encoding="utf-8")
        file.write_text(BLOCK.sub(lambda found, block=block: found[1] + block + found[3], text), encoding="utf-8")  # type: ignore[misc]


if __name__ == "__main__":
    main()
