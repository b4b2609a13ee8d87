"""The summaries of the papers' claims in README.md and docs/results/README.md, from the committed results.

python -m tools.papers_summary      # write it again
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.reference import table

from classwise.papers import catalogue
from classwise.papers.claims import IMAGES, Verdict
from classwise.papers.result import Evidence, Result, stored_results, verdict_text
from classwise.papers.runner import TRAININGS
from classwise.papers.store import Store
from classwise.papers.tables import claim_verdict, estimate_text
from classwise.papers.tables import findings as claims_by_finding
from classwise.reporting.escape import markdown_text

RESULTS = Path(__file__).parents[1] / "docs/results"
README = RESULTS / "README.md"
FRONT = RESULTS.parents[1] / "README.md"
HEADS = ("claim", "what is estimated", "estimate", "verdict", "attack", "items")
BLOCK = re.compile(r"(<!-- generated: papers -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)
"""The generated part of the file."""
ANSWERS = ("supported", "contradicted", "inconclusive")


def papers() -> str:
    """Every paper: a table of the conclusive verdicts, and the inconclusive, untested and open claims."""
    found = {item: results[0] for item, results in stored_results(Store(RESULTS / "papers")).items() if results}
    return "\n\n".join(_paper(name, found) for name in catalogue.OWN)


def findings() -> str:
    """A line for each paper: how many of its claims are supported, not observed, inconclusive or untested."""
    results = stored_results(Store(RESULTS / "papers"))
    lines = []
    for name in catalogue.OWN:
        kinds: Counter[str] = Counter()
        for kind, claims in claims_by_finding(name, results).items():
            kinds[kind.replace(" at reduced scale", "")] += len(claims)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines.append(f"- {name}, {kinds.total()} claims: {counts}")
    return "\n".join(lines)


def _paper(name: str, found: Mapping[str, Result]) -> str:
    everything = [claim.id for claim in catalogue.paper(name).claims]
    claims = [claim.id for claim in catalogue.paper(name).claims if not claim.question]
    verdicts = [(item, verdict) for item, result in found.items() for verdict in result.verdicts]
    summaries = [claim_verdict(claim, verdicts) for claim in claims]
    tests: dict[str, list[tuple[Verdict, Evidence, list[str]]]] = {answer: [] for answer in ANSWERS}
    for items, verdict in _without_repeats(verdicts, everything):
        tests[verdict.answer].append((verdict, found[items[0]].evidence, items))
    conclusive = [
        (
            _claim(verdict),
            markdown_text(verdict.estimand),
            estimate(verdict),
            verdict_text(verdict, evidence),
            ", ".join(evidence.attacks) if verdict.basis == "experiment" else "",
            ", ".join(items),
        )
        for answer in ANSWERS[:2]
        for verdict, evidence, items in tests[answer]
    ]
    populations = {TRAININGS if verdict.trainings > 1 else IMAGES for group in tests.values() for verdict, *_ in group}
    measured = Counter(measurement.question for result in found.values() for measurement in result.measurements)
    lines = {
        "Inconclusive": [
            f"{_claim(verdict)} {estimate(verdict)}, {', '.join(items)}" for verdict, _, items in tests["inconclusive"]
        ],
        "Without a verdict as a whole, since these parts are not tested": [
            f"{_number(summary.claim)} ({markdown_text(', '.join(summary.untested))})"
            for summary in summaries
            if summary.partial
        ],
        "Not tested": [_number(summary.claim) for summary in summaries if not summary.tested],
        "Equivalent to claims of another paper": [
            f"{_number(claim)} ({', '.join(others)})"
            for claim in claims
            if (others := catalogue.same_claims(claim)[1:])
        ],
        "Open questions, without verdicts": [
            f"{_number(claim)} ({measured[claim]} measurements)" for claim in everything if claim not in claims
        ],
    }
    listed = [f"- {about}: {'; '.join(texts)}." for about, texts in lines.items() if texts]
    count = sum(map(len, tests.values()))
    intro = f"[Page](papers/{name}.html): {count} tests. Intervals are for {' or '.join(sorted(populations))}."
    return "\n\n".join([f"### {name}", intro, table(HEADS, conclusive), "\n".join(listed)])


def estimate(one: Verdict) -> str:
    """Text of the estimate of a verdict and its interval, at its level after the correction."""
    value, span = estimate_text(one)
    ends, _, level = span.partition(" (")
    return f"{value} [{ends.replace(' to ', ', ')}] ({level}" if level else f"{value}, {span or 'exact'}"


def _without_repeats(verdicts: Iterable[tuple[str, Verdict]], claims: Sequence[str]) -> list[tuple[list[str], Verdict]]:
    """The tests of claims in the order of the claims; a test that several items repeat has their names."""
    found: dict[str, tuple[list[str], Verdict]] = {}
    for item, verdict in verdicts:
        if verdict.estimand and verdict.claim in claims:
            found.setdefault(repr(verdict), ([], verdict))[0].append(item)
    return sorted(found.values(), key=lambda pair: claims.index(pair[1].claim))


def _claim(one: Verdict) -> str:
    return _number(one.claim) + (f" ({markdown_text(', '.join(one.covers))})" if one.covers else "")


def _number(claim: str) -> str:
    return claim.partition("/")[2]


def main() -> None:
    """Write the generated parts of the files."""
    for file, block in ((README, papers()), (FRONT, findings())):
        text = file.read_text(encoding="utf-8")
        file.write_text(BLOCK.sub(lambda found, block=block: found[1] + block + found[3], text), encoding="utf-8")  # type: ignore[misc]


if __name__ == "__main__":
    main()
