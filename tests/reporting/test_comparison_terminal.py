"""Every line of a comparison on the terminal, recomputed from the raw outcomes."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given

from classwise.cli.console import show_result

from .comparison_statements import PAIR, QUICK, check, conditions, how_tested, level, lowest_name, narrowing, near, runs
from .comparisons import Compared, comparisons

INTERVAL = r"\[([\d.]+|–), ([\d.]+|–)\]"
SIGNED_INTERVAL = r"\[([+-][\d.]+|–), ([+-][\d.]+|–)\]"
ROW = re.compile(
    rf"(\w+) +(\d) +(\d+) +([\d.]+|–) +([\d.]+) +{INTERVAL} +([\d.]+) +{INTERVAL} +(\w+) +([\d.]+) +([\d.]+) +([\d.]+)"
)


@pytest.mark.slow
@QUICK
@given(comparisons())
def test_every_line_of_the_terminal_follows_from_the_answers(
    capsys: pytest.CaptureFixture[str], made: Compared
) -> None:
    capsys.readouterr()
    show_result(made.comparison)
    start, *blocks = capsys.readouterr().out.rstrip("\n").split("\n\n")
    title, heads, *lines = start.splitlines()
    assert title == f"accuracy in percent {conditions(made)}"
    percents, several = f"{level(made)} %", any(len(right) > 1 for right in made.correct.values())
    assert re.split(r"  +", heads) == [
        "method", "seeds", "n", "clean", "overall", percents, "worst", percents, "worst class", "worst 20 %", "CV",
        "MCD",
    ]  # fmt: skip
    for line, name in zip(lines, made.correct, strict=False):
        _terminal_row(made, name, line)
    explained, people, *notes = lines[len(made.correct) :]
    equal = any(len(made.lowest(name)) > 1 for name in made.correct)
    lowest = lowest_name(made.alpha, made.comparison.group)
    assert explained == (
        f"{percents}: interval of the preceding number; beside worst, the {lowest}"
        + "; of several seeds the means, and worst class is that of the lowest mean" * several
        + "; of equally low classes the first" * equal
    )
    PAIR[0] = 0
    assert check(made, f"{people[0].upper()}{people[1:]}.") == {"about"}
    for note in notes:
        assert check(made, note.removeprefix("note: ")) <= {"unchecked", "note_on_width"}
    assert len(blocks) == len(made.correct) - 1
    for place, block in enumerate(blocks, 1):
        PAIR[0] = place
        _terminal_pair(made, made.comparison.names[place], block)


def _terminal_row(made: Compared, name: str, line: str) -> None:
    found, row = ROW.fullmatch(line), made.rows[name]
    assert found is not None, line
    assert found.groups()[:3] == (name, str(runs(made, name)), str(len(made.ids)))
    assert found[11] == made.lowest(name)[0]
    expected = [row["clean"].value, *row["overall"], row["worst"].value, row["worst"].low]
    for text, value in zip(found.groups()[3:9], expected, strict=True):
        assert near(text, 100 * value)
    for place, head, scale in ((10, "worst", 0), (12, "worst 20 %", 100), (13, "CV", 1e4), (14, "MCD", 100)):
        assert near(found[place], 100 * row["worst"].high if not scale else scale * row[head].value)


def _terminal_pair(made: Compared, first: str, block: str) -> None:
    second = made.comparison.names[0]
    title, overall, worst, classes, people = block.splitlines()
    assert title == f"{first} minus {second}, in points, on the same images ({level(made)} %):"
    difference, least = made.difference(first, second), made.minima(first, second, made.alpha)
    found = re.fullmatch(
        rf"  overall      ([+-][\d.]+) {SIGNED_INTERVAL}, p = (\S+) \((.+), not adjusted for other comparisons\)",
        overall,
    )
    assert found is not None, overall
    for text, value in zip(found.groups()[:3], difference[:3], strict=True):
        assert near(text, 100 * value)
    assert found[4] == "–" if math.isnan(difference.p) else float(found[4]) == pytest.approx(difference.p, rel=0.0501)
    assert found[5] == how_tested(made, first, second)
    found = re.fullmatch(rf"  worst class  ([+-][\d.]+) {SIGNED_INTERVAL}(; .+)?", worst)
    assert found is not None, worst
    assert found[4] == narrowing(made, first, second)
    for text, value in zip(found.groups()[:3], least, strict=True):
        assert near(text, 100 * value)
    differences = made.differences(first, second)
    tested = sum(not math.isnan(each.p) for each in differences.values())
    kinds = "classes" if made.kind == "class" else "groups"
    start = f"  {kinds} that differ (p below {made.alpha:g}, adjusted for {tested} {kinds}): "
    assert classes.startswith(start)
    listed = classes.removeprefix(start)
    named = {} if listed == "none" else dict(each.rsplit(" ", 1) for each in listed.split(", "))
    assert list(named) == [unit for unit, each in differences.items() if each.p < made.alpha]
    for unit, text in named.items():
        assert near(text, 100 * differences[unit].value)
    assert check(made, f"{people.strip()[0].upper()}{people.strip()[1:]}.") == {"about"}
