"""Every sentence and number of a page, recomputed from the raw rows of random outcomes.

The HTML of a page is parsed. Each text must consist of statements of the list below, each with a function that checks
its numbers and its claim against the rows. A text that matches no statement fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from classwise.auditing.run.result import Audit
from classwise.cli.console import show_result
from classwise.reporting import sentences
from classwise.reporting.audit_summary import AuditSummary
from classwise.reporting.audit_tables import attack_frame, class_frame
from classwise.reporting.pages.audit import audit_context
from classwise.reporting.templating import render
from classwise.stats.worst_class import minimum

from .statements import (
    CLASSES,
    Case,
    cases,
    check_statements,
    join_names,
    lowest_ends,
    pairs_inside,
    percent,
    span,
    usual,
    wilson,
)

Check = Callable[[Case, re.Match[str]], None]
STATEMENTS: list[tuple[re.Pattern[str], Check]] = []
NUMBER = r"(?:[<>] )?\d[\d,]*(?:\.\d+)?"
SHARE = rf"{NUMBER} %"
SPAN = r"[\d.]+–[\d.]+"


def statement(pattern: str) -> Callable[[Check], Check]:
    """Register the check of every text that matches the pattern."""

    def add(check: Check) -> Check:
        STATEMENTS.append((re.compile(pattern), check))
        return check

    return add


def kinds(case: Case) -> tuple[str, str]:
    return ("class", "classes") if case.kind == "class" else (f"{case.kind} group", f"{case.kind} groups")


def whole(text: str) -> int:
    return int(text.replace(",", ""))


@statement(
    rf"(?:({SHARE}) (robust|clean) accuracy overall, )?({SHARE})(?: (robust|clean) accuracy)? on (.+?) \((.+?)\)"
    rf"(?:, whose clean accuracy is ({SHARE}))?$"
)
def headline(case: Case, found: re.Match[str]) -> None:
    overall, kind, share, kind_of_all, what, names, clean = found.groups()
    assert [kind, kind_of_all].count(None) == 1
    assert (kind or kind_of_all) == ("robust" if case.attacked else "clean")
    one, many = kinds(case)
    assert names == join_names(case.lowest)
    assert share == percent(min(case.shares.values()))
    wins, number = case.wins("all").values(), len(case.lowest)
    assert overall == (None if number == len(case.shares) else percent(sum(wins) / len(wins)))
    if len(case.shares) == 1:
        assert what == f"the only {one} with images"
    elif number == len(case.shares):
        assert what == f"each of {number} {many}"
    elif number > 1:
        assert what == f"each of the {number} worst {many}"
    else:
        assert what == f"the worst {one}"
    errors = {image for image, good in case.wins("all").items() if not good and case.unit[image] in case.lowest}
    already = {image for image in errors if "clean" in case.right and not case.right["clean"][image]}
    if case.attacked and errors and 2 * len(already) >= len(errors):
        images = sum(unit in case.lowest for unit in case.unit.values())
        assert clean == percent(1 - len(already) / images)
    else:
        assert clean is None


@statement(
    r"Of the ([\d,]+) (images?) of (this|these) (.+?), ([\d,]+) (is|are) classified correctly "
    r"(under every attack|\(no attack was run\))\. "
)
def lead(case: Case, found: re.Match[str]) -> None:
    images, noun, which, what, right, verb, condition = found.groups()
    cells = [case.cells()[unit] for unit in case.lowest]
    assert whole(right) == sum(cell[0] for cell in cells)
    assert whole(images) == sum(cell[1] for cell in cells)
    assert (which, what) == (("this", kinds(case)[0]) if len(cells) == 1 else ("these", kinds(case)[1]))
    assert (noun == "image") == (whole(images) == 1)
    assert (verb == "is") == (whole(right) == 1)
    assert condition == ("under every attack" if case.attacked else "(no attack was run)")


@statement(rf"([\d.]+) % interval of the lowest (.*?) accuracy, whichever (.*?) it is: ({SPAN}) %\.$")
def lead_interval(case: Case, found: re.Match[str]) -> None:
    assert found[1] == f"{100 - 100 * case.alpha:g}"
    assert found[2] == found[3] == kinds(case)[0]
    assert found[4] == span(*lowest_ends(case.cells().values(), case.alpha))


@statement(r"Only one (.*?) has images, so no (.*?) are compared\.")
def single(case: Case, found: re.Match[str]) -> None:
    assert len(case.shares) == 1
    assert (found[1], found[2]) == kinds(case)


@statement(
    r"With ([\d.]+) % confidence, the worst (.*?) on new images is (?:one of (\d+): )?([^:]+?)\. "
    r"(?:(No difference between two of them is significant)|"
    r"(The other (.*?)|Each of the other (\d+)) is significantly more accurate than "
    r"(it|at least one of these|at least one (.*?) of lower accuracy))\."
)
def worst_candidates(case: Case, found: re.Match[str]) -> None:
    level, what, many, names, none, _, other, others, target, lower = found.groups()
    candidates = sorted(case.candidates, key=lambda unit: (case.shares[unit], case.units.index(unit)))
    rest = [unit for unit in case.shares if unit not in candidates]
    assert what == kinds(case)[0]
    assert level == f"{100 - 100 * case.alpha:g}"
    assert (many, names) == (str(len(candidates)) if len(candidates) > 1 else None, join_names(candidates))
    above = {(one, other) for one in case.shares for other in case.shares if case.above(one, other)}
    if none is not None:
        assert not rest
        assert not above
        return
    assert len(rest) == (int(others) if others else 1)
    assert other in {None, kinds(case)[0]}
    assert rest
    if lower is None:
        assert (target == "it") == (len(candidates) == 1)
        assert all(any((one, candidate) in above for candidate in candidates) for one in rest)
    else:
        assert lower == kinds(case)[0]
        assert all(any(pair[0] == one for pair in above) for one in rest)
    assert case.lowest[0] in candidates


@statement(
    rf"The plug-in estimate, ({SHARE}), is the minimum of ([\d,]+) estimates and therefore biased downwards\."
    rf"(?: Sample splitting \((.*?) chosen on one half of the images, accuracy measured on the other half\) gives "
    rf"({SHARE}), which is biased upwards\.)? The ([\d.]+) % interval of the lowest (.*?) accuracy, whichever (.*?) it "
    rf"is, is ({SPAN}) %; its upper end is corrected for ([\d,]+) (.*?)\."
)
def worst_accuracy(case: Case, found: re.Match[str]) -> None:
    share, number, split_kind, split, level, kind, whichever, ends, covered, many = found.groups()
    assert whole(number) == whole(covered) == len(case.shares) > 1
    assert (kind, many) == kinds(case)
    assert whichever == kind
    assert split_kind in {None, kind}
    assert share == percent(min(case.shares.values()))
    assert ends == span(*lowest_ends(case.cells().values(), case.alpha))
    assert level == f"{100 - 100 * case.alpha:g}"
    estimate = minimum(case.audit.counts("all"), case.alpha).split
    if split is None:
        assert np.isnan(estimate) or estimate <= min(case.shares.values())
    else:
        assert split == percent(estimate)
        assert min(case.shares.values()) < estimate


@statement(r"(First|Most frequent first) misclassifications of the ([\d,]+) (images?) of (\w+): (.+?)\.(?= |$)(?!\d)")
def misclassifications(case: Case, found: re.Match[str]) -> None:
    start, images, noun, name, listed = found.groups()
    assert name == case.lowest[0]
    assert case.kind == "class"
    assert whole(images) == case.cells()[name][1]
    assert (noun == "image") == (whole(images) == 1)
    row = case.first_wrong(case.truth)[name]
    order = sorted(row, key=lambda other: (-row[other], CLASSES.index(other)))
    assert (start == "Most frequent first") == (len(order) > 3)
    parts = [
        f"{other} ({percent(row[other] / whole(images))}, {span(*wilson(row[other], whole(images), case.alpha))})"
        for other in order[:3]
    ]
    assert listed == join_names(parts)


@statement(
    rf"Of ([\d,]+) (errors?) over all classes, ({SHARE}) (is|are) within the true superclass \(([\d.]+) % interval "
    rf"({SPAN}) %\); expected if errors were uniform over the other classes: ({SHARE})\."
)
def within_superclass(case: Case, found: re.Match[str]) -> None:
    wrong, noun, share, verb, level, ends, chance = found.groups()
    total, inside, expected = pairs_inside(case.first_wrong(case.truth), case.audit.outcomes.class_names)
    assert whole(wrong) == total
    assert (noun == "error") == (total == 1)
    assert (verb == "is") == (inside == 1)
    assert share == percent(inside / total)
    assert ends == span(*wilson(inside, total, case.alpha))
    assert level == f"{100 - 100 * case.alpha:g}"
    assert chance == percent(expected)


@statement(
    r"([\d,]+) misclassified images? (has|have) no prediction \(non-finite logits\) and (is|are) not counted in the "
    r"matrices\."
)
def blanks(case: Case, found: re.Match[str]) -> None:
    assert whole(found[1]) == case.blank > 0
    assert (found[2], found[3]) == (("has", "is") if case.blank == 1 else ("have", "are"))


@statement(r"No image is misclassified\.")
def no_errors(case: Case, found: re.Match[str]) -> None:
    del found
    assert all(case.wins("all").values())


@statement(
    r"Lines on the bars are ([\d.]+) % intervals; the dashed line is the overall accuracy\. The worst "
    r"(.*?) of each panel is highlighted \(the first of equal ones\)\."
)
def bars(case: Case, found: re.Match[str]) -> None:
    assert found[1] == f"{100 - 100 * case.alpha:g}"
    assert found[2] == kinds(case)[0]


@statement(r"Each interval is of one (.*?), not corrected for the selection of the worst or the best (.*?)\.")
def own_intervals(case: Case, found: re.Match[str]) -> None:
    assert found[1] == found[2] == kinds(case)[0]
    assert len(case.shares) > 1


@statement(r"Coloured names: (.*?) that may be the worst\.")
def coloured(case: Case, found: re.Match[str]) -> None:
    assert found[1] == kinds(case)[1]
    assert len(case.candidates) > 1


@statement(
    r"The attacks are a cascade, so their counts are cumulative: an image counts as correct under an attack if it "
    r"survives this attack and all earlier ones\."
)
def cumulative(case: Case, found: re.Match[str]) -> None:
    del found
    assert case.audit.outcomes.meta.cascade
    for image in case.truth:
        survives = True
        for attack in case.attacks:
            assert case.right[attack][image] <= survives
            survives = case.right[attack][image]


@statement(r"Without images: (.+?)\.(?= |$)")
def absent(case: Case, found: re.Match[str]) -> None:
    assert found[1] == join_names([unit for unit in case.units if unit not in case.shares])


@statement(
    r"Each image is counted by its first incorrect prediction, in the order (.+?); the diagonal counts images that are "
    r"classified correctly under all of them\."
)
def in_order(case: Case, found: re.Match[str]) -> None:
    assert found[1] == join_names(case.attacks)
    assert case.attacked


@statement(r"Predictions on clean images\.")
def clean_predictions(case: Case, found: re.Match[str]) -> None:
    del found
    assert not case.attacked


@statement(r"Shown: predictions (on the clean images|made elsewhere)\.")
def shown(case: Case, found: re.Match[str]) -> None:
    del found
    assert not case.audit.outcomes.meta.cascade


@statement(r"Frames mark superclasses\.")
def frames(case: Case, found: re.Match[str]) -> None:
    del found
    assert case.audit.outcomes.meta.superclasses is not None


@statement(
    r"On ([\d,]+) (images?)\. Overall: mean over images\. Class mean: mean over classes\. Worst: accuracy of the worst "
    r"(.*?), with the ([\d.]+) % interval of the lowest (.*?) accuracy, whichever (.*?) it is\. Worst 20 %: mean over "
    r"the 20 % of classes with the lowest accuracy\. MCD: maximum class discrepancy, highest minus lowest class "
    r"accuracy, in percentage points\. CV: class-wise variance of the accuracy, in percent squared\. NRR: harmonic "
    r"mean of clean and robust accuracy\. HMW: harmonic mean of overall and worst-class accuracy\. The intervals of "
    r"MCD and CV are derived from simultaneous intervals of all classes\. Of those of worst, worst 20 % and HMW, only "
    r"the upper ends are corrected for all classes\."
)
def columns(case: Case, found: re.Match[str]) -> None:
    assert whole(found[1]) == len(case.truth)
    assert (found[2] == "image") == (len(case.truth) == 1)
    assert found[3] == found[5] == found[6] == kinds(case)[0]
    assert found[4] == f"{100 - 100 * case.alpha:g}"


@statement(
    r"Generated by classwise [\w.+]+\. Intervals are ([\d.]+) % confidence intervals for new images of the same "
    r"classes, with the model fixed\. Accuracies are in percent, class-wise variances in percent squared\. Hover over "
    r"a mark for its values\.$"
)
def foot(case: Case, found: re.Match[str]) -> None:
    assert found[1] == f"{100 - 100 * case.alpha:g}"


@statement(rf"([\w-]+), ([\w\[\]-]+)( \(cumulative\))?: ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN}) %\)$")
def bar(case: Case, found: re.Match[str]) -> None:
    unit, attack, adds, share, images, level, ends = found.groups()
    right, number = case.cells(attack)[unit]
    assert (adds is not None) == (case.audit.outcomes.meta.cascade and attack not in {"clean", "all"})
    assert (share, whole(images)) == (percent(right / number), number)
    assert (level, ends) == (f"{100 - 100 * case.alpha:g}", span(*usual(right, number, case.alpha)))


@statement(rf"([\w-]+): ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN}) %\)$")
def tick(case: Case, found: re.Match[str]) -> None:
    right, number = case.cells()[found[1]]
    assert (found[2], whole(found[3])) == (percent(right / number), number)
    assert found[5] == span(*usual(right, number, case.alpha))
    assert found[1] != case.lowest[0]


@statement(
    rf"([\w-]+): ({SHARE}) of ([\d,]+); ([\d.]+) % interval of the lowest (.*?) accuracy, whichever (.*?) it is: "
    rf"({SPAN}) %$"
)
def worst_tick(case: Case, found: re.Match[str]) -> None:
    right, number = case.cells()[found[1]]
    assert found[1] == case.lowest[0]
    assert (found[2], whole(found[3])) == (percent(right / number), number)
    assert found[4] == f"{100 - 100 * case.alpha:g}"
    assert found[5] == found[6] == kinds(case)[0]
    assert found[7] == span(*lowest_ends(case.cells().values(), case.alpha))


CELL = re.compile(rf"(\w+): ([\d,]+) of ([\d,]+) \(({SHARE})\) (classified correctly|misclassified as (\w+))$")


class Texts(HTMLParser):
    """The texts of a page by element: headings, paragraphs, captions, hover texts, table rows."""

    WANTED = frozenset({"h1", "h2", "h3", "p", "figcaption", "title", "li", "tr", "summary", "dt", "dd", "text"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.rows: list[list[list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.rows.append([])
        elif tag == "tr":
            self.rows[-1].append([])
        elif tag in {"th", "td"}:
            self.rows[-1][-1].append("")
        elif tag == "small":
            self.rows[-1][-1][-1] += "|"
        if tag in self.WANTED:
            self.open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.found.append((tag, re.sub(r"\s+", " ", "".join(self.open.pop()[1])).strip()))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][1].append(data)
        if self.open and self.open[-1][0] == "tr" and self.rows[-1][-1]:
            self.rows[-1][-1][-1] += data.replace("\u00a0", " ").strip()

    def of(self, *tags: str) -> Iterator[str]:
        return (text for tag, text in self.found if tag in tags and text)


def check(case: Case, text: str) -> set[str]:
    """Parse a text into consecutive statements, check each, and return their names."""
    return check_statements(STATEMENTS, case, text)


def page_of(case: Case) -> str:
    return render("audit.html", audit_context(case.audit, AuditSummary.of(case.audit)))


def bare(share: float) -> str:
    return f"{100 * share:.1f}"


SEEN: set[str] = set()


@pytest.mark.slow
@settings(max_examples=40, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_sentence_of_an_audit_s_page_follows_from_its_rows(case: Case) -> None:
    page = Texts(page_of(case))
    for text in page.of("h1", "p", "figcaption", "li"):
        if not text.startswith("classwise audit"):  # the line above the headline: names and hashes only
            SEEN.update(check(case, text))
    matrices = 0
    for text in page.of("title"):
        cell = CELL.match(text.replace("\u00a0", " "))
        if cell is not None:
            _cell_of_a_matrix(case, cell)
            matrices += 1
        elif not text.startswith("net: "):  # the page's own title is the headline after the model's name
            SEEN.update(check(case, text))
        else:
            check(case, text.removeprefix("net: "))
    if all(case.wins("all").values()):
        assert "No image is misclassified." in list(page.of("p"))
    _tables(case, page)
    _facts(case, page)


def _facts(case: Case, page: Texts) -> None:
    """The key metrics: name, value, unit and interval with the number of images."""
    found = {text.replace("\u00a0", " ") for tag, text in page.found if tag == "dt"}
    kind = "Robust accuracy" if case.attacked else "Clean accuracy"
    shares, images = case.shares, len(case.truth)
    highest = [unit for unit in case.shares if shares[unit] == max(shares.values())]
    names = [f"{kind}, overall", f"{kind}, worst 20 %", "Class discrepancy (MCD)", "Class-wise variance (CV)"]
    names += ["Clean accuracy, overall"] if "clean" in case.right and case.attacked else []
    start = f"Highest {kinds(case)[0]} accuracy: "
    best = next(text for text in found if text.startswith(start))
    name, _, more = best.removeprefix(start).partition(" (and ")
    assert name in highest
    assert more == (f"{len(highest) - 1} more)" if len(highest) > 1 else "")
    assert found >= {*names, best}
    numbers = dict(zip((text for tag, text in page.found if tag == "dt"), page.of("dd"), strict=False))
    right = sum(case.wins("all").values())
    assert numbers[names[0]] == f"{bare(right / images)}%{span(*wilson(right, images, case.alpha))}, n {images:,}"
    low, high = lowest_ends(((n - right, n) for right, n in case.cells().values()), case.alpha)  # of the error rates
    assert numbers[best] == f"{bare(max(shares.values()))}%{span(1 - high, 1 - low)}, n {case.cells()[name][1]:,}"
    assert numbers["Class discrepancy (MCD)"].startswith(f"{bare(max(shares.values()) - min(shares.values()))}points")


def test_the_page_made_every_kind_of_sentence() -> None:
    """The random outcomes reach every statement of the list (run after the property above)."""
    if not SEEN:
        pytest.skip("needs the property test of this file in the same process")
    assert {checked.__name__ for _, checked in STATEMENTS} - SEEN == set()


def _cell_of_a_matrix(case: Case, cell: re.Match[str]) -> None:
    """A cell of the matrix under all attacks, or of one of the single attacks that the page shows."""
    truth, count, images, share, what, other = cell.groups()
    possible = []
    wins, wrong = case.wins("all"), case.first_wrong(case.truth)[truth]
    members = [image for image, name in case.truth.items() if name == truth]
    possible.append(wrong.get(other, 0) if other else sum(wins[image] for image in members))
    possible += [sum(case.predicted[attack][image] == (other or truth) for image in members) for attack in case.attacks]
    assert whole(images) == len(members)
    assert whole(count) in possible
    assert share == percent(whole(count) / whole(images))
    assert (other is None) == (what == "classified correctly")


def _tables(case: Case, page: Texts) -> None:
    by_class, by_attack = page.rows
    names = [re.sub(r" \(cumulative\)$", "", head) for head in by_class[0][2:]]
    assert names == list(case.audit.names)
    cascade = case.audit.outcomes.meta.cascade
    for head, name in zip(by_class[0][2:], names, strict=True):
        assert head.endswith("(cumulative)") == (cascade and name not in {"clean", "all"})
    shown = [row[0] for row in by_class[1:]]
    assert shown == sorted(case.shares, key=lambda unit: (case.shares[unit], case.units.index(unit)))
    for unit, images, *cells in by_class[1:]:
        assert whole(images) == case.cells()[unit][1]
        for name, cell in zip(names, cells, strict=True):
            right, number = case.cells(name)[unit]
            assert cell == f"{bare(right / number)}|{span(*usual(right, number, case.alpha))}"
    for row in by_attack[1:]:
        name = row[0].removesuffix(" (cumulative)")
        assert row[0].endswith("(cumulative)") == (cascade and name not in {"clean", "all"})
        counted = list(case.cells(name).values())
        shares = [right / images for right, images in counted]
        good, total = sum(cell[0] for cell in counted), sum(cell[1] for cell in counted)
        overall, lowest = good / total, min(shares)
        fifth = float(np.mean(sorted(shares)[: -(-len(shares) // 5)]))
        variance = 1e4 * float(np.var(shares))
        weakest = next(unit for unit, share in zip(case.cells(name), shares, strict=True) if share == lowest)
        clean = sum(case.right["clean"].values()) / total if "clean" in case.right and name != "clean" else None
        assert row[1] == f"{bare(overall)}|{span(*wilson(good, total, case.alpha))}"
        assert row[2].split("|")[0] == bare(float(np.mean(shares)))
        assert row[3] == f"{weakest}|n {case.cells(name)[weakest][1]}"
        assert row[4] == f"{bare(lowest)}|{span(*lowest_ends(counted, case.alpha))}"
        assert row[5].split("|")[0] == bare(fifth)
        assert row[6].split("|")[0] == bare(max(shares) - lowest)
        assert row[7].split("|")[0] == (f"{variance:.0f}" if variance >= 100 else f"{variance:.1f}")
        assert row[8].split("|")[0] == ("–" if clean is None else bare(_harmonic(clean, overall)))
        assert row[9].split("|")[0] == bare(_harmonic(overall, lowest))


def _harmonic(one: float, other: float) -> float:
    return 2 * one * other / (one + other) if one + other else 0.0


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_exported_tables_follow_from_the_rows(case: Case) -> None:
    summary = AuditSummary.of(case.audit)
    classes, attacks = class_frame(summary).set_index(case.kind), attack_frame(summary).set_index("attack")
    cascade = case.audit.outcomes.meta.cascade
    for name in case.audit.names:
        adds = cascade and name not in {"clean", "all"}
        column = f"{name}_cumulative" if adds else name
        assert f"{name}_cumulative" not in classes or adds
        for unit, (right, images) in case.cells(name).items():
            assert classes.loc[unit, column] == right / images
            ends = tuple(float(classes[f"{column}_{end}"].to_dict()[unit]) for end in ("low", "high"))
            assert ends == pytest.approx(usual(right, images, case.alpha), abs=1e-9)
        assert attacks.loc[name, "overall"] == sum(case.wins(name).values()) / len(case.truth)
        if cascade:
            assert bool(attacks.loc[name, "cumulative"]) == adds
    assert classes.index[classes["possibly_worst"].to_numpy(dtype=bool)].tolist() == case.candidates
    assert pd.isna(classes.loc[[unit for unit in case.units if unit not in case.shares], "all"]).all()


WORST = re.compile(
    r"worst class: (\w+), ([\d.]+) % \[([\d.]+), ([\d.]+)\] of ([\d,]+) (images?)(?:; tied with (.+?))?"
    r"(?:; clean accuracy( of these classes)? ([\d.]+) %)?(?:; other candidates: (.+?))?"
)


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_terminal_output_follows_from_the_rows(capsys: pytest.CaptureFixture[str], case: Case) -> None:
    show_result(case.audit)
    lines = capsys.readouterr().out.splitlines()
    cascade = case.audit.outcomes.meta.cascade
    assert sum("cumulative" in line for line in lines[1:2]) == cascade
    assert any(line.startswith("The attacks are a cascade") for line in lines) == cascade
    found = WORST.fullmatch(next(line for line in lines if line.startswith("worst class")))
    assert found is not None
    name, share, low, high, images, noun, equal, of_ties, clean, others = found.groups()
    right, number = case.cells()[name]
    assert name == case.lowest[0]
    assert (share, whole(images), noun == "image") == (bare(right / number), number, number == 1)
    assert [low, high] == span(*lowest_ends(case.cells().values(), case.alpha)).split("–")
    level, one = f"{100 - 100 * case.alpha:g} %", kinds(case)[0]
    name = f"{level} interval of the lowest {one} accuracy, whichever {one} it is"
    assert f"in brackets: {name}, for new images" in lines
    assert equal == (join_names(case.lowest[1:]) if len(case.lowest) > 1 else None)
    rest = [unit for unit in case.candidates if unit not in case.lowest]
    assert others == (join_names(rest) if rest else None)
    sentence = sentences.dominant_clean_accuracy(AuditSummary.of(case.audit))
    assert clean == (None if sentence is None else bare(sentence))
    assert bool(of_ties) == (clean is not None and equal is not None)
    assert lines[1].replace("\u00a0", " ").endswith(f"all, {level}")


def test_the_headline_reports_clean_accuracy_if_clean_errors_dominate(make_audit: Any, tmp_path: Path) -> None:
    audit: Audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.03))
    frame = audit.outcomes.frame.copy()
    cats = (frame["label"] == 3) & (frame["attack"] == "clean") & (frame["index"] >= 312)
    frame.loc[cats, ["correct", "prediction"]] = [False, 0]
    changed = Audit(type(audit.outcomes)(frame, audit.outcomes.meta))
    assert "".join(sentences.headline(AuditSummary.of(changed))) == (
        "40.8\u00a0% robust accuracy overall, 3.0\u00a0% on the worst class (cat), whose clean accuracy is 12.0\u00a0%"
    )
    assert "".join(sentences.headline(AuditSummary.of(audit))) == (
        "40.8\u00a0% robust accuracy overall, 3.0\u00a0% on the worst class (cat)"
    )
