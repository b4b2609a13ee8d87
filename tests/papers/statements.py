"""Random results of a paper's items as raw numbers, and their verdicts computed independently of the package."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from classwise.papers.claims import Basis, Test, evaluate, not_tested
from classwise.papers.interval_estimators import IntervalEstimator, exactly
from classwise.papers.result import Figure, Result
from classwise.papers.scales import Name
from classwise.papers.tables import Key, class_table, estimate_cell, summary_table
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Row, Table
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate

from .raw_evidence import RawEvidence, RawMeasurement

SOURCE = Path(__file__).parents[2] / "src" / "classwise" / "papers"
PAPERS = ("kdd21", "iclr21", "benz20", "cfa23")
SIZES: tuple[Name, ...] = ("full", "reduced", "smoke")
"""Scales, largest first, as on a page."""
ALPHA = 0.05
VERSION = "9.8.7"
CAPTIONS = ("Attacked, in percent", "Per <class> & more", "Changes, in points")


@functools.cache
def facts(paper: str) -> Any:
    text = (SOURCE / f"{paper}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # safe loaders


def rows_of(paper: str) -> list[dict[str, Any]]:
    """The items of a paper, in order."""
    return list(facts(paper)["items"])


def notes_of(item: str) -> list[dict[str, Any]]:
    known = [note for paper in PAPERS for note in facts(paper).get("notes", ()) if item in note["items"]]
    return sorted(known, key=lambda note: [(len(part), part) for part in note["id"].split(".")])


def words_of(claim: str) -> dict[str, Any]:
    (found,) = (one for one in facts(claim.partition("/")[0])["claims"] if one["id"] == claim)
    return dict(found)


def parts_of(claim: str) -> list[tuple[str, str]]:
    """Parts required for a verdict on a claim: its own, and those of the equivalent claims."""
    words = words_of(claim)
    own = [(claim, part) for part in words.get("parts", ())]
    for other in words.get("same_as", ()):
        name, _, only = other.partition(": ")
        own += [(name, only)] if only else parts_of(name)
    return own or [(claim, "")]


def is_question(claim: str) -> bool:
    return "question" in words_of(claim)


@dataclass(frozen=True)
class RawTest:
    """A test of a claim with normal estimates (value, standard error): error 0 if exact, NaN without interval."""

    claim: str
    parts: tuple[tuple[float, float], ...]
    unit: str
    note: str
    covers: tuple[str, ...]
    limits: tuple[float, float] | None
    basis: Basis = "experiment"
    trainings: int = 1

    @property
    def exact(self) -> bool:
        return self.parts[0][1] == 0

    @property
    def estimand(self) -> str:
        return f"estimand of {self.claim}"

    def test(self) -> Test:
        return Test(
            claim=self.claim,
            estimand=self.estimand,
            estimators=[exactly(value) if self.exact else _normal(value, error) for value, error in self.parts],
            unit=self.unit,
            exact=self.exact,
            limits=self.limits,
            note=self.note,
            covers=self.covers,
            basis=self.basis,
            trainings=self.trainings,
        )

    @property
    def p_value(self) -> float:
        """Smallest level at which all estimates are above zero, or one is below at its share of the level."""
        tails = [2 * stats.norm.sf(abs(value / error)) if error == error else math.nan for value, error in self.parts]
        if any(tail != tail for tail in tails):
            return 1.0
        if all(value > 0 for value, _ in self.parts):
            return float(max(tails))
        share = min(tail for tail, (value, _) in zip(tails, self.parts, strict=True) if value <= 0) * len(tails)
        return float(min(share, 1.0))

    def seen(self, level: float) -> tuple[str, float, float, int]:
        """Decide at a level: answer, value and error of the deciding estimate, number of estimates that share it."""
        number = len(self.parts)
        unknown = [part for part in self.parts if part[1] != part[1]]
        if unknown:
            return "inconclusive", *unknown[0], 1
        reach, shared = z_of(level), z_of(level / number)
        least = min(self.parts, key=lambda part: part[0] - reach * part[1])
        most = min(self.parts, key=lambda part: part[0] + shared * part[1])
        if least[0] - reach * least[1] > 0:
            return "supported", *least, 1
        if most[0] + shared * most[1] < 0 or self.exact:
            return "contradicted", *most, number
        above = least[0] + reach * least[1] >= 0
        return ("inconclusive", *least, 1) if above else ("inconclusive", *most, number)


def z_of(level: float) -> float:
    return float(stats.norm.isf(level / 2))


def _normal(value: float, error: float) -> IntervalEstimator:
    return lambda level: Estimate(value, value - z_of(level) * error, value + z_of(level) * error)


@dataclass(frozen=True)
class RawTable:
    """Correct predictions and images of each class, by row; ``form`` selects the function that builds the table."""

    form: str
    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    printed: tuple[tuple[float, ...] | None, ...]
    estimates: tuple[tuple[float, float, float], ...]

    def table(self) -> Table:
        counts: dict[Key, ClassCounts] = {
            (name, "PGD"): ClassCounts(np.array(images), np.array(right)) for name, right, images in self.rows
        }
        if self.form == "class":
            return class_table(self.caption, counts, self.names)
        if self.form == "summary":
            known: dict[Key, dict[str, Any]] = {
                (row[0], "PGD"): {"per_class": list(values), "tot": values[0], "mcd": 30.25}
                for row, values in zip(self.rows, self.printed, strict=True)
                if values is not None
            }
            return summary_table(self.caption, counts, known, self.names)
        rows = [Row(f"row {place}", [estimate_cell(Estimate(*one))]) for place, one in enumerate(self.estimates)]
        return Table(self.caption, ("row", "change"), rows)


@dataclass(frozen=True)
class RawResult:
    item: str
    evidence: RawEvidence
    setting: str
    tests: tuple[RawTest, ...]
    untested: dict[str, str]
    tables: tuple[RawTable, ...]
    figures: tuple[str, ...]
    trainings: int
    own: float
    work: dict[str, float | None] | None
    measurements: tuple[RawMeasurement, ...] = ()

    @property
    def scale(self) -> Name:
        return self.evidence.scale

    @property
    def seconds(self) -> float:
        return self.own + math.fsum(one for one in (self.work or {}).values() if one is not None)

    def result(self) -> Result:
        return Result(
            item=self.item,
            evidence=self.evidence.evidence(),
            setting=self.setting,
            tables=tuple(one.table() for one in self.tables),
            figures=tuple(Figure(svg=Drawing(40, 20, text).svg(), caption=text) for text in self.figures),
            verdicts=(
                *evaluate([one.test() for one in self.tests]),
                *(not_tested(claim, reason) for claim, reason in self.untested.items()),
            ),
            measurements=tuple(one.measurement() for one in self.measurements),
            runs={f"key {number}": "at" for number in range(self.trainings)},
            seconds=self.seconds,
            work=self.work,
            version=VERSION,
        )


@dataclass(frozen=True)
class Shown:
    """Expected answer and numbers of one test on a page, computed from the raw estimates."""

    raw: RawTest
    evidence: RawEvidence
    answer: str
    value: float
    error: float
    shares: int
    levels: tuple[float, ...]
    adjusted: float

    def text(self, *, short: bool = False) -> str:
        return self.evidence.text(self.answer, self.raw.basis, self.raw.trainings, short=short)

    def covered(self, *, short: bool = False) -> str:
        return (f"{', '.join(self.raw.covers)}: " if self.raw.covers else "") + self.text(short=short)

    @property
    def mark(self) -> str:
        """CSS class of the row; none for a smoke run, which is no evidence."""
        if self.evidence.scale == "smoke" and self.raw.basis == "experiment":
            return ""
        return {"supported": "good", "contradicted": "weak", "inconclusive": ""}[self.answer]


_ITEM_ORDER = [row["id"] for name in PAPERS for row in rows_of(name)]


@dataclass(frozen=True)
class Paper:
    name: str
    results: tuple[RawResult, ...]

    def of(self, item: str) -> list[RawResult]:
        return [one for scale in SIZES for one in self.results if one.item == item and one.scale == scale]

    @property
    def own_results(self) -> list[RawResult]:
        return [one for one in self.results if one.item.startswith(f"{self.name}/")]

    def first_with_figure(self, caption: str) -> str:
        """The first item of the page with a figure; figures with equal captions are equal."""
        items: list[str] = [row["id"] for row in rows_of(self.name)]
        return next(item for item in items for one in self.of(item) if caption in one.figures)

    def first_with_table(self, table: RawTable) -> str:
        """The first item of the page with a table; equal tables have equal texts."""
        items: list[str] = [row["id"] for row in rows_of(self.name)]
        text = repr(table.table())
        return next(
            item for item in items for one in self.of(item) for each in one.tables if repr(each.table()) == text
        )

    def shown(self, result: RawResult) -> list[Shown]:
        """Tests of a result, corrected over all results of its paper at its scale."""
        family = [
            one
            for one in self.results
            if one.scale == result.scale and one.item.partition("/")[0] == result.item.partition("/")[0]
        ]
        return shown(result, family)

    def measured(self) -> Iterable[tuple[str, set[str]]]:
        """For each item with results: the open questions that its largest scale measures."""
        for item in _ITEM_ORDER:
            for result in self.of(item)[:1]:
                yield item, {one.question for one in result.measurements}

    def newest(self) -> Iterable[tuple[str, Sequence[Shown], dict[str, str]]]:
        """For each item with results: the tests of its largest scale, and the claims not tested at that scale."""
        for item in _ITEM_ORDER:
            for result in self.of(item)[:1]:
                yield item, self.shown(result), result.untested


def shown(result: RawResult, family: Sequence[RawResult]) -> list[Shown]:
    sampled = [test.p_value for one in family for test in one.tests if not test.exact]
    order = sorted(sampled)
    adjusted = np.minimum(np.maximum.accumulate(np.array(order) * np.arange(len(order), 0, -1)), 1.0)
    rejected = int((adjusted <= ALPHA).sum())
    found = []
    own = own_levels(result)
    for test, level in zip(result.tests, own, strict=True):
        answer, value, error, shares = test.seen(level)
        if test.exact:
            found.append(Shown(test, result.evidence, answer, value, error, shares, (ALPHA,), math.nan))
            continue
        p = test.p_value
        ranks = [place for place, one in enumerate(order) if math.isclose(one, p, rel_tol=1e-9)]
        levels = tuple(ALPHA / (len(order) - min(rank, rejected)) for rank in ranks)
        adjusted_p = float(adjusted[ranks[-1]])
        # an estimate that is conclusive at the level of its item may be inconclusive at that of the paper
        clear = abs(value) > z_of(levels[0] / shares) * error
        found.append(
            Shown(
                test,
                result.evidence,
                answer if adjusted_p <= ALPHA and clear else "inconclusive",
                value,
                error,
                shares,
                levels,
                adjusted_p,
            )
        )
    return found


def own_levels(result: RawResult) -> list[float]:
    """Level of each test of one item: Holm over that item, up to the first inconclusive test."""
    places = [place for place, test in enumerate(result.tests) if not test.exact]
    levels, level, stopped = [ALPHA] * len(result.tests), ALPHA, False
    for rank, place in enumerate(sorted(places, key=lambda place: result.tests[place].p_value)):
        level = level if stopped else ALPHA / (len(places) - rank)
        levels[place], stopped = level, stopped or result.tests[place].p_value > level
    return levels


def shows(text: str, value: float, digits: int, *, sign: bool = False) -> None:
    """Check that a text is the value rounded to ``digits`` digits, with a sign if required, never a negative zero."""
    found = re.fullmatch(r"([+-]?)(\d+)(?:\.(\d+))?", text)
    assert found is not None, text
    assert len(found[3] or "") == digits, (text, value)
    assert abs(float(text) - value) <= 0.5 * 10.0**-digits + 1e-9 * max(1, abs(value)), (text, value)
    assert found[1] != "-" or float(text) < 0, text
    assert not sign or found[1], text


def interval_of(right: int, images: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Wilson's interval, or Clopper and Pearson's where n p (1 - p) is below 10."""
    share = right / images
    if images * share * (1 - share) < 10:
        low = 0.0 if right == 0 else float(stats.beta.ppf(alpha / 2, right, images - right + 1))
        high = 1.0 if right == images else float(stats.beta.ppf(1 - alpha / 2, right + 1, images - right))
        return low, high
    return wilson_of(right, images, alpha)


def wilson_of(right: int, images: int, alpha: float = ALPHA) -> tuple[float, float]:
    found = stats.binomtest(right, images).proportion_ci(1 - alpha, method="wilson")
    return float(found.low), float(found.high)


def listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def variance_bounds(low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """Minimum and maximum variance of numbers within bounds, by all corners and a grid of common values."""
    corners = np.array(np.meshgrid(*zip(low, high, strict=True))).reshape(len(low), -1)
    grid = np.linspace(0, 1, 4001)[:, None]
    distance = np.maximum(np.maximum(low - grid, grid - high), 0)
    return float((distance**2).mean(axis=1).min()), float(corners.var(axis=0).max())
