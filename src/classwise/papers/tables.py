"""Tables of the papers: as printed, measured accuracies next to the printed ones, and verdicts on claims."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from classwise.core.rounding import rounded
from classwise.papers import catalogue
from classwise.papers.catalogue import Claim
from classwise.papers.claims import ALPHA, Measurement, Test, Verdict
from classwise.papers.interval_estimators import IntervalEstimator
from classwise.papers.result import (
    EXACT,
    NO_EVIDENCE,
    NOT_TESTED,
    ClaimSummary,
    Evidence,
    Result,
    conclusive,
    number_of_trainings,
    summarise_claim,
    verdict_text,
)
from classwise.papers.scales import NAMES as SCALES
from classwise.papers.settings import measured_otherwise, printed_under
from classwise.reporting import formatting
from classwise.reporting.formatting import NONE, level, probability
from classwise.reporting.tables import Cell, Row, Table, share_cell
from classwise.stats import metrics
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics import averages, discrepancy, lowest, variance
from classwise.stats.power import images_to_exclude
from classwise.stats.stratified import class_mean

PRINTED = "printed"
"""Part of the name of a column or row with numbers of the paper, such as ``printed, clean`` or ``Madry, printed``."""
NAMES = ("defence", "method", "attack", "test_set", "line")
"""Keys that form the name of a row, in this order."""
_CV_ROUNDING, _MCD_ROUNDING, _TOTAL_ROUNDING = 0.15, 0.1, 0.1
"""Tolerances between recomputed and printed metrics: the papers truncate to one decimal, in float32."""
_FLOAT = 1e-6
PAIR = 2


class Recomputed(NamedTuple):
    """Metrics recomputed from the printed class accuracies of a row.

    Attributes:
        total: mean over classes, percent.
        cv: variance over classes, percent squared.
        mcd: highest minus lowest class, points.
        agrees: whether all printed metrics agree up to the rounding of the papers.
    """

    total: float
    cv: float
    mcd: float
    agrees: bool


def recompute(row: Mapping[str, Any]) -> Recomputed | None:
    """Recompute the metrics of a row with printed class accuracies (percent); None for other rows."""
    if "per_class" not in row:
        return None
    a = np.array(row["per_class"], dtype=np.float64) / 100
    total, cv, mcd = (
        100 * metrics.overall_macro(a),
        1e4 * metrics.class_variance(a),
        100 * metrics.max_class_discrepancy(a),
    )
    compared = [(total, row.get("tot", row.get("adv")), _TOTAL_ROUNDING), (cv, row.get("cv"), _CV_ROUNDING)]
    compared.append((mcd, row.get("mcd"), _MCD_ROUNDING))
    agrees = all(value is None or abs(ours - value) <= within + _FLOAT for ours, value, within in compared)
    return Recomputed(total, cv, mcd, agrees)


def row_name(row: Mapping[str, Any]) -> str:
    """Name of a printed row, such as ``Madry, PGD`` or ``HE, 1/T = 50``."""
    parts = [str(row[key]) for key in NAMES if key in row]
    if "inv_T" in row:
        parts.append(f"1/T = {row['inv_T']}")
    return ", ".join(parts)


def printed_table(item: str) -> Table | None:
    """Table of the printed rows of an item; None for an item without printed rows.

    Total, CV and MCD of rows with class accuracies are recomputed; rows that disagree are highlighted.
    """
    rows, facts = catalogue.printed_rows(item), catalogue.printed(item)
    if not rows:
        return None
    caption = f"{item} as printed: {facts.get('caption', '')}".rstrip(": ")
    if all("per_class" in row for row in rows):
        return _of_classes(caption, rows)
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in (*NAMES, "inv_T")]
    cells = [Row(row_name(row), [Cell(_text(row.get(key))) for key in keys]) for row in rows]
    lists = {key for row in rows for key in row if isinstance(row[key], list)}
    heads = [f"{key.replace('_', ' ')}{_labels(facts) if key in lists else ''}" for key in keys]
    return Table(caption, ("row", *heads), cells)


def _labels(facts: Mapping[str, Any]) -> str:
    """What the numbers of a cell are, in their order: those of a pair, temperatures, or classes from 0."""
    if pair := re.match(r"\[(.*?)\]", facts.get("row_keys", "")):
        return f", {' / '.join(pair[1].split(', '))}"
    return f", 1/T = {', '.join(map(str, columns))}" if (columns := facts.get("columns_inv_T")) else ", class 0 to 9"


def _of_classes(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    classes = len(rows[0]["per_class"])
    table_rows = []
    for row in rows:
        metrics_of_row = recompute(row)
        assert metrics_of_row is not None
        cells = [Cell(_text(row.get("tot", row.get("adv"))), f"{metrics_of_row.total:.2f}")]
        cells += [Cell(f"{value:.1f}") for value in row["per_class"]]
        cells += [
            Cell(_text(row.get("cv")), f"{metrics_of_row.cv:.2f}"),
            Cell(_text(row.get("mcd")), f"{metrics_of_row.mcd:.1f}"),
        ]
        table_rows.append(Row(row_name(row), cells, weak=not metrics_of_row.agrees))
    wrong = sum(row.weak for row in table_rows)
    note = "The second number of total, CV and MCD is recomputed from the class accuracies."
    note += f" Highlighted: {wrong} of {len(table_rows)} rows that disagree; see the notes." if wrong else ""
    return Table(caption, ("row", "total", *map(str, range(classes)), "CV", "MCD"), table_rows, note)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return (" / " if len(value) == PAIR else " ").join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class Printed(NamedTuple):
    """The printed numbers of a table of results.

    Attributes:
        columns: column, from 0 for that of the row names, to what its numbers were measured on.
        rows: the same by the name of the row.
        differs: the conditions that differ from those of the measured numbers; empty if they are equal.
    """

    columns: Mapping[int, str]
    rows: Mapping[str, str]
    differs: str

    def notes(self) -> list[str]:
        """Lines that state what the numbers were measured on, and what differs."""
        sources = dict.fromkeys([*self.columns.values(), *self.rows.values()])
        lines = [f"{PRINTED}: {source}" for source in sources if source]
        return [*lines, *([f"other than measured: {self.differs}"] if lines and self.differs else [])]


def printed_parts(table: Table, item: str, scale: str) -> Printed:
    """Columns and rows of a table of results with printed numbers: those with `PRINTED` as a part of their name.

    The name of such a column or row has ``clean`` or ``natural`` as a further part if its numbers are without attack.

    Args:
        table: table of a result.
        item: item of the result.
        scale: scale of the result.
    """

    def source(name: str) -> str | None:
        parts = name.split(", ")
        if PRINTED not in parts:
            return None
        images, attack = printed_under(item)
        return images if {"clean", "natural"} & set(parts) else f"{images}, {attack}".strip(", ")

    columns = {place: found for place, head in enumerate(table.heads) if (found := source(head)) is not None}
    rows = {row.name: found for row in table.rows if (found := source(row.name)) is not None}
    return Printed(columns, rows, measured_otherwise(item, scale) if columns or rows else "")


def summary_table(
    caption: str, ours: Mapping[str, ClassCounts], printed: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Table:
    """Table of total, CV, MCD, lowest and highest class, with 95 % intervals and the printed numbers.

    All classes that tie for the lowest or the highest accuracy are listed.

    Args:
        caption: caption of the table.
        ours: measured counts by the name of the row.
        printed: printed rows; those with another `row_name` are not shown.
        names: class names.
    """
    rows, by_name = [], {row_name(row): row for row in printed}
    for name, counts in ours.items():
        reported = by_name.get(name, {})
        classes = np.array(reported["per_class"], dtype=np.float64) if "per_class" in reported else None
        overall, cv, mcd = (
            averages.overall_estimate(counts),
            variance.cv_estimate(counts),
            discrepancy.mcd_estimate(counts),
        )
        low, high = float(np.nanmin(counts.accuracy)), float(np.nanmax(counts.accuracy))
        cells = [
            share_cell(*overall),
            Cell(_printed(reported.get("tot"))),
            Cell(formatting.squared_percent(cv.value), formatting.squared_span(cv.low, cv.high)),
            Cell(_printed(reported.get("cv"))),
            share_cell(*mcd),
            Cell(_printed(reported.get("mcd"))),
            Cell(
                formatting.listed([names[label] for label in _at(counts.accuracy, low)]), formatting.bare_percent(low)
            ),
            Cell(formatting.NONE) if classes is None else _printed_classes(classes, classes.min()),
            Cell(
                formatting.listed([names[label] for label in _at(counts.accuracy, high)]), formatting.bare_percent(high)
            ),
            Cell(formatting.NONE) if classes is None else _printed_classes(classes, classes.max()),
        ]
        rows.append(Row(name, cells))
    kinds = ("total", "CV", "MCD", "lowest", "highest")
    heads = [head for kind in kinds for head in (kind, "printed")]
    note = (
        "95 % confidence intervals for new images of the same classes with the models fixed; under a class name, its "
        "accuracy. Printed classes are CIFAR-10 labels, from 0: 1 is automobile, 3 is cat."
    )
    return Table(caption, ("row", *heads), rows, note)


def class_table(caption: str, ours: Mapping[str, ClassCounts], names: Sequence[str]) -> Table:
    """Table of class accuracies with 95 % intervals: a row for each name, a column for each class."""
    rows = []
    for name, counts in ours.items():
        ends = zip(counts.accuracy.tolist(), *(end.tolist() for end in class_intervals(counts)), strict=True)
        rows.append(Row(name, [share_cell(*one) for one in ends]))
    note = "95 % confidence intervals for new images of the class with the model fixed."
    return Table(caption, ("row", *names), rows, note)


TINY = 1e-9
"""The relative and absolute difference below which two estimates are equal."""


def estimate_cell(
    one: Estimate, scale: float = 100, digits: int = 1, *, sign: str = "", tests: Sequence[Test] = ()
) -> Cell:
    """Cell of an estimate with its interval in small print, times ``scale``; a dash for NaN.

    An estimate has one interval: if a claim tests it, the small print names the claim, whose verdict has the interval.
    A test is recognised by its estimate, and one of zero, which is frequent, also by its interval of 95 %.

    Args:
        one: estimate with its 95 % interval.
        scale: factor of the numbers.
        digits: number of decimals.
        sign: ``+`` to print the sign of positive numbers.
        tests: tests of the item.
    """
    if math.isnan(one.value):
        return Cell(formatting.NONE)
    value, low, high = (f"{rounded(scale * end):{sign}z.{digits}f}" for end in one)
    identifying = slice(None) if abs(scale * one.value) < TINY else slice(1)
    own = scale * np.array(one[identifying])
    for test in tests:
        found = [np.array(part(ALPHA)[identifying]) for part in test.estimators]
        if any(np.allclose(own, tested, rtol=TINY, atol=TINY, equal_nan=True) for tested in found):
            return Cell(value, f"tested by {test.claim.partition('/')[2]}")
    known = not (math.isnan(one.low) or math.isnan(one.high))
    return Cell(value, f"{low} to {high}" if known else "")


def elsewhere(claim: str, *estimators: IntervalEstimator) -> Test:
    """A claim that another item tests by these estimators, for `estimate_cell`."""
    return Test(claim=claim, estimand="tested by another item", estimators=estimators)


METRICS = (class_mean, lowest.worst_estimate, discrepancy.mcd_estimate)
"""Average, worst class and MCD, the metrics of most tables."""


def metric_cells(counts: ClassCounts, tests: Sequence[Test] = ()) -> list[Cell]:
    """Cells of `METRICS`, in percent and points; the tests are those of the MCD."""
    return [estimate_cell(of(counts), tests=tests if of is METRICS[-1] else ()) for of in METRICS]


HEADS_OF_BOTH = ("clean: average", "worst class", "MCD", "PGD: average", "worst class", "MCD")
"""Heads of `metric_cells` on clean images and under PGD."""


def skipped_table(absent: Mapping[str, str]) -> list[Table]:
    """A table of skipped data sets with the reasons, in a list; an empty list if none was skipped."""
    rows = [Row(data, [Cell(reason)]) for data, reason in absent.items()]
    return [Table("Skipped data sets", ("data set", "reason"), rows)] if rows else []


def _at(accuracies: FloatArray, value: float) -> list[int]:
    """Labels of the classes with exactly this accuracy."""
    return [int(label) for label in np.flatnonzero(accuracies == value)]


def _printed_classes(printed: FloatArray, value: float) -> Cell:
    """Cell of the labels of the classes with a printed accuracy, and that accuracy in small print."""
    labels = [str(label) for label in _at(printed, value)]
    return Cell(f"{'class' if len(labels) == 1 else 'classes'} {formatting.listed(labels)}", f"{value:g}")


def _printed(value: float | None) -> str:
    return formatting.NONE if value is None else f"{value:g}"


PARTLY = "partly tested"
OPEN: Final = "open question"


def verdict_table(verdicts: Sequence[Verdict], evidence: Evidence) -> Table:
    """Table with a row for each verdict: claim, verdict, estimate with its adjusted interval, adjusted p-value.

    The verdicts omit the settings, which `Evidence.settings` states once for the result.
    """
    rows = [
        Row(
            verdict.claim.partition("/")[2],
            [
                Cell(catalogue.claim(verdict.claim).title, verdict.estimand),
                Cell(answer_text(verdict, evidence, short=True), _remark(verdict, evidence)),
                Cell(*estimate_text(verdict)),
                Cell("exact" if verdict.exact else probability(verdict.adjusted).replace(" ", "\N{NO-BREAK SPACE}")),
            ],
            weak=conclusive(verdict, evidence) == "contradicted",
            good=conclusive(verdict, evidence) == "supported",
        )
        for verdict in verdicts
    ]
    return Table("Claims", ("claim", "statement", "verdict", "estimate", "adjusted p"), rows)


def _remark(one: Verdict, evidence: Evidence) -> str:
    """The note of a verdict, and what would decide it."""
    needed = images_to_decide(one, evidence)
    return "; ".join(filter(None, (one.note, f"{needed} would decide" if needed else "")))


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """Table with a row for each measurement: question or claim, quantity, estimate with its interval, population."""
    rows = [
        Row(
            measurement.question.partition("/")[2],
            [
                Cell(catalogue.claim(measurement.question).title),
                Cell(
                    measurement.quantity,
                    f"interval for {measurement.population}" if measurement_text(measurement)[1] else "",
                ),
                Cell(*measurement_text(measurement)),
            ],
        )
        for measurement in measurements
    ]
    note = "Measurements have no verdict; their 95 % intervals are not corrected for multiple testing."
    return Table("Measurements", ("claim", "statement", "quantity", "estimate"), rows, note)


Whole = Literal["supported", "not observed", "inconclusive", "not tested", "open question"]
"""What became of a claim as a whole."""
DECIDED: Sequence[Whole] = ("supported", "not observed", "inconclusive", "not tested")


class Overview(NamedTuple):
    """A claim of a paper in one row, for the first screen of its page and the summaries of this repository.

    Attributes:
        claim: the claim.
        summary: the verdicts on it, each of the largest scale at which its part was tested.
        whole: what became of it.
        shown: the test with the result that decides, or the weakest one if it is supported; None without a test.
        remark: what belongs to the answer: how many parts are supported where it is not the whole claim, or that it
            follows by computation or by construction; empty otherwise.
        why: the reason in a few words.
        scales: the scale of the shown test, then those of others with trained models, as in ``small + reduced``.
        data: the name of the data set of the shown test, or of two.
    """

    claim: Claim
    summary: ClaimSummary
    whole: Whole
    shown: tuple[Result, Verdict] | None
    remark: str
    why: str
    scales: str
    data: str


def overviews(name: str, results_by_item: Mapping[str, Sequence[Result]]) -> list[Overview]:
    """What became of each claim of a paper.

    A claim is supported if every part of it is, and not observed if some part is not; other parts do not change that.

    Args:
        name: name of the paper.
        results_by_item: results by item. A claim shared with another paper also uses the items of that paper.
    """
    verdicts, found = deciding(results_by_item), []
    for claim in catalogue.paper(name).claims:
        summary = claim_verdict(claim.id, verdicts)
        whole: Whole = OPEN if claim.question else whole_answer(summary)
        shown = None if claim.question else _shown(summary, whole)
        tests = ([shown] if shown else []) + summary.tests
        scales = [*dict.fromkeys(result.scale for result, verdict in tests if verdict.basis == "experiment")]
        found.append(
            Overview(
                claim,
                summary,
                whole,
                shown,
                remark=_remark_on(claim.id, summary, whole, shown),
                why=_why(claim, summary, whole, shown),
                scales=" + ".join(scales),
                data=_data(*shown) if shown else "",
            )
        )
    return found


def _remark_on(claim: str, summary: ClaimSummary, whole: Whole, shown: tuple[Result, Verdict] | None) -> str:
    """The remark of an overview."""
    supported, parts = parts_supported(claim, summary.tests)
    if supported and whole in ("not observed", "inconclusive"):
        return f"{supported} of {parts} parts supported"
    if shown is None:
        return ""
    return EXACT.get(shown[1].basis, "by construction" if by_construction(shown[1]) else "")


def _data(result: Result, verdict: Verdict) -> str:
    """The data sets of a test: those of its parts, else those of its item; empty for more than two."""
    sets = result.evidence.data if verdict.basis == "experiment" else ()
    own = [name for name in sets if any(part.partition(":")[0] == name for part in verdict.covers)]
    return " and ".join(own or sets) if len(own or sets) < 3 else ""


def parts_supported(claim: str, tests: Sequence[tuple[Result, Verdict]]) -> tuple[int, int]:
    """How many parts of a claim are supported by every test at the largest scale that has one, and how many it has.

    Args:
        claim: claim id.
        tests: the pairs of a result and the verdict of a test on the claim or on an equivalent one.
    """
    of: dict[tuple[str, str], list[tuple[int, str]]] = {part: [] for part in catalogue.claim_parts(claim)}
    for result, verdict in tests:
        for part in verdict.covers or ("",):
            answer = conclusive(verdict, result.evidence)
            of.setdefault((verdict.claim, part), []).append((SCALES.index(result.scale), answer))
    last = [{answer for scale, answer in found if scale == max(found)[0]} for found in of.values()]
    return last.count({"supported"}), len(of)


def deciding(results_by_item: Mapping[str, Sequence[Result]]) -> list[tuple[Result, Verdict]]:
    """The verdicts of the largest scale at which a part of a claim was tested, each with its result.

    Parts of a claim may have verdicts of different scales. A reason why a claim is not tested is that of the largest
    scale that has one.
    """
    pairs = [(result, one) for results in results_by_item.values() for result in results for one in result.verdicts]
    largest: dict[tuple[str, str | None], int] = {}
    for result, verdict in pairs:
        for part in _parts(verdict):
            largest[part] = max(largest.get(part, 0), SCALES.index(result.scale))
    return [
        (result, verdict)
        for result, verdict in pairs
        if any(largest[part] == SCALES.index(result.scale) for part in _parts(verdict))
    ]


def _parts(one: Verdict) -> list[tuple[str, str | None]]:
    """The claim with each part of it that a verdict is on; None for the part of a verdict without a test."""
    return [(one.claim, part) for part in one.covers or ("",)] if one.estimand else [(one.claim, None)]


def whole_answer(summary: ClaimSummary) -> Whole:
    """What became of a claim as a whole: a part that is not observed decides, and so do all parts if supported."""
    if not summary.tested:
        return "not tested"
    answers = {conclusive(verdict, result.evidence) for result, verdict in summary.verdicts}
    if "contradicted" in answers:
        return "not observed"
    return "supported" if answers == {"supported"} and not summary.untested else "inconclusive"


def _shown(summary: ClaimSummary, whole: Whole) -> tuple[Result, Verdict] | None:
    """The contradicted test with the smallest p-value, else the inconclusive or supported one with the largest."""

    def p_value(pair: tuple[Result, Verdict]) -> float:
        return 0.0 if pair[1].exact else pair[1].adjusted

    of: dict[str, list[tuple[Result, Verdict]]] = {}
    for result, verdict in summary.tests:
        of.setdefault(conclusive(verdict, result.evidence), []).append((result, verdict))
    if whole == "not observed":
        return min(of["contradicted"], key=p_value)
    return max(of.get("inconclusive", of.get("supported", [])), key=p_value, default=None)


def _why(claim: Claim, summary: ClaimSummary, whole: Whole, shown: tuple[Result, Verdict] | None) -> str:
    """Why a claim is supported, not observed or inconclusive, or not tested, in a few words."""
    if shown is None:
        notes = [verdict.note for _, verdict in summary.verdicts if verdict.note]
        if notes or whole == OPEN:
            return notes[0] if notes else ""
        return f"needs {claim.missing}" if claim.missing else "not run yet"
    never = f"cannot be tested: {', '.join(claim.untestable)}" if claim.untestable else ""
    return "; ".join(filter(None, (_reason(summary, whole, *shown), never)))


def _reason(summary: ClaimSummary, whole: Whole, result: Result, verdict: Verdict) -> str:
    """What the shown test says, or does not, of a claim."""
    answer = conclusive(verdict, result.evidence)
    if whole == "inconclusive" and answer == "supported":
        return f"not tested: {', '.join(summary.untested)}" if summary.untested else "one of its items did not test it"
    if verdict.basis in EXACT:
        return EXACT[verdict.basis]
    if result.scale == "smoke":
        return NO_EVIDENCE
    side = {"supported": "is above zero", "contradicted": "is below zero"}.get(answer, "includes zero")
    reason = f"interval {side}" if answer != "inconclusive" or verdict.low <= 0 <= verdict.high else _adjusted(verdict)
    if verdict.covers and answer != "supported":
        parts = formatting.listed([f"“{part}”" for part in verdict.covers])
        reason = f"part{'s' if len(verdict.covers) > 1 else ''} {parts}: {reason}"
    needed = images_to_decide(verdict, result.evidence)
    return f"{reason}; {needed} would decide" if needed else reason


def images_to_decide(verdict: Verdict, evidence: Evidence) -> str:
    """The test images that would decide an inconclusive test of fixed models, if the estimate is the true value.

    With so many images its interval excludes zero with a probability of 80 % (`classwise.stats.power`).

    Args:
        verdict: a verdict.
        evidence: the level of its result.

    Returns:
        The number in words, as a multiple of the test images of the result; empty where more images do not decide, or
        the end of the interval towards zero is that of the estimate's range.

    Example:
        >>> from classwise.papers.claims import Verdict
        >>> from classwise.papers.result import Evidence
        >>> evidence = Evidence(scale="small", trainings=1, data=["cifar10"], test_images=[1000])
        >>> unclear = Verdict(claim="kdd21/C19", answer="inconclusive", estimand="gain", value=2.0, low=-1.0, high=5.0)
        >>> images_to_decide(unclear, evidence)
        'about 4.6 times its 1,000 test images'
    """
    unclear = verdict.answer == "inconclusive" and verdict.basis == "experiment" and verdict.trainings == 1
    if not unclear or evidence.scale == "smoke" or not evidence.test_images or not verdict.value:
        return ""
    end = verdict.low if verdict.value > 0 else verdict.high
    if math.isnan(end) or (verdict.limits is not None and end in verdict.limits):
        return ""
    images = max(evidence.test_images)
    alpha = verdict.level / verdict.shares
    number = images_to_exclude(images, verdict.value, abs(verdict.value - end), alpha=alpha)
    assert number is not None
    factor = number / images
    if factor <= 1:  # more tests than this one widen the interval
        return ""
    several = len(evidence.test_images) > 1 or len(evidence.data) > 1
    return f"about {factor:,.{int(factor < 10)}f} times its {'' if several else f'{images:,} '}test images"


def _adjusted(one: Verdict) -> str:
    """Why a test is inconclusive whose interval is unknown or excludes zero."""
    return "no interval" if math.isnan(one.low) else f"adjusted p {probability(one.adjusted)}"


def claims_table(name: str, results_by_item: Mapping[str, Sequence[Result]]) -> Table:
    """Details of the claims of a paper: statement, the paper's figure, ours, scale, and the verdicts with their items.

    Args:
        name: name of the paper.
        results_by_item: results by item, largest scale first. Verdicts are those of `deciding`, measurements those of
            the largest scale. A claim shared with another paper also uses the items of that paper.
    """
    measured: dict[str, list[tuple[Result, Measurement]]] = {}
    for result in (results[0] for results in results_by_item.values() if results):
        for measurement in result.measurements:
            measured.setdefault(measurement.question, []).append((result, measurement))
    rows = []
    for claim, summary, whole, *_ in overviews(name, results_by_item):
        never = "; ".join(f"{part} cannot be tested: {reason}" for part, reason in claim.untestable.items())
        stated, number = [Cell(claim.claim, never), Cell(claim.paper)], claim.id.partition("/")[2]
        if claim.question:
            pairs = measured.get(claim.id, ())
            scales = ", ".join(dict.fromkeys(result.scale for result, _ in pairs))
            ours = _ours_cell(
                _Ours("", measurement.quantity, *measurement_text(measurement)) for _, measurement in pairs
            )
            cell = question_cell([result.item for result, _ in pairs])
            rows.append(Row(number, [*stated, ours, Cell(scales or NONE), cell]))
            continue
        ours = _ours_cell(
            _Ours(", ".join(verdict.covers), verdict.estimand, *estimate_text(verdict)) for _, verdict in summary.tests
        )
        rows.append(
            Row(
                number,
                [*stated, ours, _scale_cell(summary.tests), _summary_cell(summary)],
                weak=whole == "not observed",
                good=whole == "supported",
            )
        )
    note = (
        "The p-values of the items are corrected by Holm's procedure over all tests of the paper at the same scale; "
        "each interval is at the corresponding level."
    )
    heads = ("claim", "statement", "paper", "ours", "scale", "verdict")
    return Table("Claims of the paper and verdicts of these runs", heads, rows, note)


def findings_sentence(name: str, results_by_item: Mapping[str, Sequence[Result]]) -> str:
    """Sentences on a paper: its main statements, if it names any, and how many are supported or not, at which scale.

    Args:
        name: name of the paper.
        results_by_item: as in `overviews`.
    """
    everything = overviews(name, results_by_item)
    found = [one for one in everything if one.whole != OPEN]
    statements = "; ".join(f"“{one.claim.title}”: {one.whole}" for one in everything if one.claim.main)
    main = f"Main statements: {statements}. " if statements else ""
    count = Counter(one.whole for one in found)
    bases = Counter(one.remark for one in found if one.whole == "supported")
    exact = [f"{bases[words]} {words}" for words in EXACT.values() if bases[words]]
    kinds = [f"{count[kind]} {kind}" for kind in DECIDED if count[kind]]
    if exact and count["supported"]:
        kinds[0] += f" ({formatting.listed(exact)})"
    questions = len(everything) - len(found)
    asks = f"; {questions} open question{'s' if questions > 1 else ''}" if questions else ""
    of = f"Of {len(found)} statement{'s' if len(found) != 1 else ''}"
    return f"{main}{of}{_evidence(found)}: {formatting.listed(kinds)}{asks}."


def _evidence(found: Sequence[Overview]) -> str:
    """The scales of the tests and the trainings of each model, after a comma; empty without trained models."""
    tests = [pair for one in found for pair in one.summary.tests if pair[1].basis == "experiment"]
    if not tests:
        return ""
    scales = {result.scale for result, _ in tests}
    numbers = sorted({verdict.trainings for _, verdict in tests})
    trainings = number_of_trainings(numbers[-1])
    trainings = trainings if len(numbers) == 1 else f"{numbers[0]} to {trainings}"
    return (
        f", at {formatting.listed([scale for scale in SCALES if scale in scales])} scale with {trainings} of each model"
    )


def claim_verdict(claim: str, verdicts: Sequence[tuple[Result, Verdict]]) -> ClaimSummary:
    """Summarise the verdicts on a claim; it is "partly tested" if only some of its parts were tested."""
    return summarise_claim(claim, catalogue.claim_parts(claim), verdicts)


def by_construction(one: Verdict) -> bool:
    """Whether an experiment has an answer that is the same for any trained models, as its note states."""
    return one.answer != "inconclusive" and one.basis == "experiment" and "by construction" in one.note


def summary_text(one: Verdict, evidence: Evidence, *, short: bool = False) -> str:
    """`verdict_text`, which also states if a verdict is `by_construction`."""
    text = verdict_text(one, evidence, short=short)
    return f"{text}, by construction" if by_construction(one) else text


def claim_text(summary: ClaimSummary) -> str:
    """Text of the verdicts on a claim as a whole; if it is partly tested, of its tested and untested parts.

    A part that is not observed decides the claim, whatever was not tested.
    """
    decide = [pair for pair in summary.verdicts if conclusive(pair[1], pair[0].evidence) == "contradicted"]
    if summary.partial and not decide:
        return partly_text(summary)
    text = answer_text if summary.partial else summary_text
    whole = "; ".join(dict.fromkeys(text(verdict, result.evidence) for result, verdict in decide or summary.verdicts))
    return f"{whole}; not tested: {', '.join(summary.untested)}" if summary.partial else whole


def partly_text(summary: ClaimSummary) -> str:
    """Text that lists the tested and the untested parts of a claim."""
    return f"{PARTLY}: {', '.join(summary.tested)}; not tested: {', '.join(summary.untested)}"


def answer_text(one: Verdict, evidence: Evidence, *, short: bool = False) -> str:
    """Text of a verdict, preceded by the parts of the claim that the test covers."""
    text = summary_text(one, evidence, short=short)
    return f"{', '.join(one.covers)}: {text}" if one.covers else text


def estimate_text(one: Verdict) -> tuple[str, str]:
    """Texts of an estimate and of its interval, with the adjusted p-value if only that makes it inconclusive.

    The estimate of a computation in all cases of a theorem has no unit: it is true in all of them or not.
    """
    if math.isnan(one.value):  # nothing was estimated
        return NONE, ""
    if one.basis == "computation" and not one.unit:
        return "true in every case" if one.value > 0 else "not true in every case", ""
    value = f"{one.value:+z.2f} {one.unit}".strip()
    if math.isnan(one.low):
        return value, "" if one.exact else "no interval: all resamples are equal"
    if one.exact:
        return value, ""
    span = f"{one.low:+z.2f} to {one.high:+z.2f} ({level(one.level / one.shares)})"
    unclear = one.answer == "inconclusive" and not one.low <= 0 <= one.high
    return value, f"{span}; {_adjusted(one)}" if unclear else span


def measurement_text(one: Measurement) -> tuple[str, str]:
    """Texts of a measured value and of its 95 % interval."""
    if math.isnan(one.value):
        return NONE, ""
    return f"{one.value:z.2f} {one.unit}".strip(), "" if math.isnan(one.low) else f"{one.low:z.2f} to {one.high:z.2f}"


def question_cell(items: Sequence[str]) -> Cell:
    """Cell of an open question, with the items that measure it."""
    if not items:
        return Cell(f"{OPEN}, not measured yet")
    return Cell(f"{OPEN}: see the measurements", f"measured by {_listed(items)}")


class _Ours(NamedTuple):
    """An estimate in the summary: the tested parts of the claim, what is estimated, the value and its interval."""

    parts: str
    what: str
    value: str
    interval: str


def _ours_cell(estimates: Iterable[_Ours]) -> Cell:
    """Cell of estimates without repeats; below them, what they estimate, with their intervals."""
    known = list(dict.fromkeys(estimates))
    intervals: dict[str, list[str]] = {}
    for estimate in known:
        intervals.setdefault(estimate.what, []).extend([estimate.interval] if estimate.interval else [])
    values = (f"{estimate.parts}: {estimate.value}" if estimate.parts else estimate.value for estimate in known)
    details = (f"{what}: {', '.join(ends)}" if ends else what for what, ends in intervals.items())
    return Cell("; ".join(values) or NONE, "; ".join(details))


def _scale_cell(tests: Sequence[tuple[Result, Verdict]]) -> Cell:
    """Cell of the scales of the models behind the verdicts on a claim, and their settings; a dash without models."""
    settings: dict[str, dict[str, None]] = {}
    for result, verdict in tests:
        if verdict.basis == "experiment":
            settings.setdefault(result.scale, {})[result.evidence.details(verdict).strip(" ()")] = None
    lines = (
        f"{scale}: {'; '.join(about)}" if len(settings) > 1 else "; ".join(about) for scale, about in settings.items()
    )
    return Cell(", ".join(settings) or NONE, ". ".join(filter(None, lines)))


def _summary_cell(summary: ClaimSummary) -> Cell:
    """Cell of the verdicts on a claim, each with the items that gave it."""
    if not summary.verdicts:
        return Cell("not tested yet")
    if not summary.tested:
        return Cell(NOT_TESTED, _by_text((verdict.note, result.item) for result, verdict in summary.verdicts))
    shown = summary.tests if summary.partial else summary.verdicts
    by_text = _by_text((answer_text(verdict, result.evidence, short=True), result.item) for result, verdict in shown)
    if summary.partial:
        return Cell(partly_text(summary), by_text)
    texts = dict.fromkeys(summary_text(verdict, result.evidence, short=True) for result, verdict in summary.verdicts)
    if len(texts) == 1:
        return Cell(next(iter(texts)), _listed(result.item for result, _ in summary.verdicts))
    return Cell("; ".join(texts), by_text)


def _by_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Distinct texts, each with its items."""
    items: dict[str, list[str]] = {}
    for text, item in pairs:
        items.setdefault(text, []).append(item)
    return "; ".join(f"{text}: {_listed(where)}" for text, where in items.items())


def _listed(items: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(items))
