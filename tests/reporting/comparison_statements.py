"""The statements of the page of a comparison, each with a function that checks it against the raw outcomes.

A text must consist of statements of this list; one that matches none fails the test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from hypothesis import HealthCheck, Phase, settings

from .comparisons import WARNINGS, Compared, Ends
from .statements import check_statements, join_names, percent

Check = Callable[[Compared, re.Match[str]], None]
STATEMENTS: list[tuple[re.Pattern[str], Check]] = []
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?|–"
SHARE = r"(?:[<>] )?\d+\.\d %"
SPAN = r"\d+\.\d–\d+\.\d %|no interval"
SIGNED = r"[+−]?\d+\.\d to [+−]?\d+\.\d|–"
NAME = r"[\w-]+"
QUICK = settings(max_examples=25, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))


def statement(pattern: str) -> Callable[[Check], Check]:
    """Register the check of every text that matches the pattern."""

    def add(check: Check) -> Check:
        STATEMENTS.append((re.compile(pattern), check))
        return check

    return add


def check(made: Compared, text: str) -> set[str]:
    """Parse a text into consecutive statements, check each, and return their names."""
    return check_statements(STATEMENTS, made, text)


def lowest_name(alpha: float, group: str | None) -> str:
    """Name of the interval of the lowest accuracy."""
    noun = f"{group} group" if group else "class"
    return f"{100 - 100 * alpha:g} % interval of the lowest {noun} accuracy, whichever {noun} it is"


def near(text: str, value: float, digits: int = 1) -> bool:
    """Whether a text is the rounded value; ties may be rounded either way."""
    if math.isnan(value) or text == "–":
        return math.isnan(value) and text == "–"
    text = text.replace("−", "-").replace(",", "")
    assert len(text.partition(".")[2]) == digits
    return bool(abs(float(text) - value) <= 10.0**-digits / 2 + 1e-6)


def is_share(text: str, share: float) -> bool:
    """Whether a text is a share in percent, with ``<`` and ``>`` for what is neither 0 nor 1."""
    return text == percent(share) or near(text.removesuffix(" %"), 100 * share)


def is_span(text: str, found: Ends | tuple[float, ...]) -> bool:
    """Whether a text is an interval in percent."""
    low, high = found[-2:]
    if text in {"–", "no interval"} or math.isnan(low):
        return text in {"–", "no interval"} and math.isnan(low) and math.isnan(high)
    one, other = text.removesuffix(" %").split("–")
    return near(one, 100 * low) and near(other, 100 * high)


def is_signed(text: str, low: float, high: float) -> bool:
    """Whether a text is an interval of a difference, in percentage points."""
    if text == "–" or math.isnan(low):
        return text == "–" and math.isnan(low) and math.isnan(high)
    one, other = text.split(" to ")
    return near(one, 100 * low) and near(other, 100 * high)


def is_p(text: str, value: float) -> bool:
    """Whether a text is a p-value."""
    return value < 0.001 + 1e-9 if text == "< 0.001" else near(text, value, 3)


def level(made: Compared) -> str:
    return f"{100 - 100 * made.alpha:g}"


def conditions(made: Compared) -> str:
    if not made.attacked:
        return "on clean images"
    if made.attack == "all":
        return "under every attack together"
    return f"under {made.attack}" + ", counts cumulative over the cascade" * made.cascade


def runs(made: Compared, name: str) -> int:
    return len(made.correct[name])


def claims_best(made: Compared) -> bool:
    """Whether the worst class of one method is significantly above that of every other, Bonferroni-corrected."""
    others = [name for name in made.correct if name != made.best[0]]
    return all(made.minima(made.best[0], name, made.alpha / len(others)).low > 1e-9 for name in others)


@statement(rf"({NAME}) has the highest worst-class accuracy: ({SHARE}) \((?:mean over (\d) seeds|(.+?))\)$")
def headline_best(made: Compared, found: re.Match[str]) -> None:
    name, share, seeds, classes = found.groups()
    assert len(made.correct) > 1
    assert [name] == made.best
    assert claims_best(made)
    assert is_share(share, float(made.worst[name]))
    assert (int(seeds) if seeds else 1) == runs(made, name)
    assert classes == (join_names(made.lowest(name)) if seeds is None else None)


@statement(
    r"(No significant difference in worst-class accuracy|No worst-class accuracy is significantly above all others); "
    rf"the highest is ({SHARE}) with (.+)$"
)
def headline_not_significant(made: Compared, found: re.Match[str]) -> None:
    unclear, share, names = found.groups()
    assert len(made.best) < len(made.correct)
    assert ("difference" in unclear) == (len(made.correct) == 2)
    assert not claims_best(made)
    assert is_share(share, float(max(made.worst.values())))
    assert names == join_names(
        [name + f" (mean over {runs(made, name)} seeds)" * (runs(made, name) > 1) for name in made.best]
    )


@statement(rf"Equal worst-class accuracies on these images: ({SHARE}) with (.+)$")
def headline_equal(made: Compared, found: re.Match[str]) -> None:
    share, names = found.groups()
    assert made.best == list(made.correct)
    assert is_share(share, float(max(made.worst.values())))
    assert names == join_names(
        [name + f" (mean over {runs(made, name)} seeds)" * (runs(made, name) > 1) for name in made.best]
    )


@statement(rf"Worst-class accuracy: ({SHARE}) \((?:mean over (\d) seeds|(.+?))\)$")
def headline_of_one_method(made: Compared, found: re.Match[str]) -> None:
    share, seeds, classes = found.groups()
    (name,) = made.correct
    assert is_share(share, float(made.worst[name]))
    if runs(made, name) > 1:
        assert (classes, seeds) == (None, str(runs(made, name)))
    else:
        assert (classes, seeds) == (join_names(made.lowest(name)), None)


@statement(
    rf"({NAME}) \(one training run\): worst-class accuracy ({SHARE}) \((.+?); (?:([\d.]+) % interval )?({SPAN})\), "
    rf"overall accuracy ({SHARE}) \(({SPAN})\)\."
)
def method_of_one_run(made: Compared, found: re.Match[str]) -> None:
    name, worst, classes, percents, ends, overall, overall_ends = found.groups()
    row = made.rows[name]
    assert runs(made, name) == 1
    assert classes == join_names(made.lowest(name))
    assert percents == level(made)
    assert is_share(worst, row["worst"].value)
    assert is_span(ends, row["worst"])
    assert is_share(overall, row["overall"].value)
    assert is_span(overall_ends, row["overall"])


@statement(
    rf"({NAME}) \(mean over (\d) seeds\): worst-class accuracy ({SHARE}) \((?:([\d.]+) % interval )?({SPAN})\), "
    rf"overall accuracy ({SHARE}) \(({SPAN})\); (.+?) (has|have) the lowest mean\."
)
def method_of_seeds(made: Compared, found: re.Match[str]) -> None:
    name, seeds, worst, percents, ends, overall, overall_ends, classes, verb = found.groups()
    row = made.rows[name]
    assert int(seeds) == runs(made, name) > 1
    assert classes == join_names(made.lowest(name))
    assert (verb == "has") == (len(made.lowest(name)) == 1)
    assert percents == level(made)
    assert is_share(worst, float(made.worst[name]))
    assert is_span(ends, row["worst"])
    assert is_share(overall, row["overall"].value)
    assert is_span(overall_ends, row["overall"])


@statement(
    rf"Difference in worst-class accuracy: ({NUMBER}) percentage points \(([\d.]+) % interval ({SIGNED})(; .+?)?\)\. "
    rf"Difference in overall accuracy: ({NUMBER}) percentage points \(({SIGNED}); p (–|< 0\.001|\d\.\d+), "
    r"(.+?), not adjusted for other comparisons\), on ([\d,]+) (images?)\."
)
def pair_overall(made: Compared, found: re.Match[str]) -> None:
    worst, percents, worst_ends, advice, overall, ends, p, test, images, noun = found.groups()
    first, second = made.comparison.names[PAIR[0]], made.comparison.names[0]
    least, difference = made.minima(first, second, made.alpha), made.difference(first, second)
    assert near(worst, 100 * least.value)
    assert near(worst, 100 * float(made.worst[first] - made.worst[second]))
    assert is_signed(worst_ends, least.low, least.high)
    assert advice == narrowing(made, first, second)
    assert percents == level(made)
    assert near(overall, 100 * difference.value)
    assert is_signed(ends, difference.low, difference.high)
    assert is_p(p, difference.p)
    assert test == how_tested(made, first, second)
    assert (int(images.replace(",", "")), noun == "image") == (len(made.ids), len(made.ids) == 1)


def narrowing(made: Compared, first: str, second: str) -> str | None:
    """What would narrow the interval of the difference of worst classes over runs."""
    numbers = {runs(made, first), runs(made, second)}
    if numbers == {1}:
        return None
    if 2 in numbers:
        return "; with two runs it is valid but wide; three or more are needed"
    narrower = made.comparison.pair(first, second).narrower
    return f"; more {narrower} would narrow it most"


@statement(rf"Worst-class interval of ({NAME}(?:, {NAME})*): (.+?)\.")
def note_on_width(made: Compared, found: re.Match[str]) -> None:
    """What would narrow the worst-class intervals of methods; said if a method has several runs."""
    names, advice = found.groups()
    assert max(runs(made, name) for name in made.correct) > 1
    for name in names.split(", "):
        number, narrower = runs(made, name), made.comparison.table["worst_narrower"][name]
        assert advice == {
            1: "more images would narrow it; new training seeds are not covered",
            2: "with two runs it is valid but wide; three or more are needed",
        }.get(number, f"more {narrower} would narrow it most")


def how_tested(made: Compared, first: str, second: str) -> str:
    """How the p-values of two methods are computed."""
    if runs(made, first) == runs(made, second) == 1:
        return "McNemar test"
    return f"t test over seeds and images, {'paired by seed' if made.paired(first, second)[2] else 'not paired'}"


@statement(
    r"(Groups|Classes) with a significant difference \(p < ([\d.]+), adjusted for (\d+) tests\): "
    r"(.+?)\.$"
)
def pair_classes(made: Compared, found: re.Match[str]) -> None:
    what, threshold, tested, names = found.groups()
    differences = made.differences(made.comparison.names[PAIR[0]], made.comparison.names[0])
    assert what == ("Classes" if made.kind == "class" else "Groups")
    assert float(threshold) == made.alpha
    assert int(tested) == sum(not math.isnan(each.p) for each in differences.values())
    assert names == (join_names([unit for unit, each in differences.items() if each.p < made.alpha]) or "none")


@statement(
    r"One training run( of each method)?: intervals cover new images, not new training seeds\.|"
    r"Intervals cover new images and new training seeds"
    r"(?: of (.+?); (.+?) (is one training|are one training each))?\."
)
def about(made: Compared, found: re.Match[str]) -> None:
    each, several, single, verb = found.groups()
    names = list(made.correct) if PAIR[0] == 0 else [made.comparison.names[PAIR[0]], made.comparison.names[0]]
    ones = [name for name in names if runs(made, name) == 1]
    if found[0].startswith("One"):
        assert ones == names
        assert (each is not None) == (len(names) > 1)
    elif single is None:
        assert not ones
    else:
        assert single == " and ".join(ones)
        assert several == " and ".join(name for name in names if name not in ones)
        assert verb == ("is one training" if len(ones) == 1 else "are one training each")


@statement(r"Worst class: (.+? it is); of several seeds, of the mean over the seeds\.")
def lowest_interval(made: Compared, found: re.Match[str]) -> None:
    assert found[1] == lowest_name(made.alpha, made.comparison.group)


@statement(
    r"Beside worst: (.+? it is)\. "
    r"Worst 20 %: mean over the 20 % of classes with the lowest accuracy\. MCD: maximum class discrepancy, highest "
    r"minus lowest class accuracy, in percentage points\. CV: class-wise variance of the accuracy, in percent "
    r"squared\. NRR: harmonic mean of clean and robust accuracy\. HMW: harmonic mean of overall and worst-class "
    r"accuracy\. With several seeds: mean ± standard deviation over seeds; the worst class is the class with the "
    r"lowest mean \(the first one if several are equal\)\."
)
def columns(made: Compared, found: re.Match[str]) -> None:
    assert found[1] == lowest_name(made.alpha, made.comparison.group)  # the cells are recomputed by these definitions


@statement(r"The highest worst-class accuracy is in bold, whether or not the difference is significant\.")
def in_bold(made: Compared, found: re.Match[str]) -> None:
    del found
    assert len(made.correct) > 1


@statement(r"No audit records these fields, so their agreement was not checked: (.+?)\.(?= |$)")
def unchecked(made: Compared, found: re.Match[str]) -> None:
    meta = next(iter(made.comparison.audits.values()))[0].outcomes.meta
    stated = {"threat": meta.threat, "early stop": meta.early_stop} if made.attack != "clean" else {}
    expected = ["data hash", *(field for field, value in stated.items() if value is None)]
    expected += ["attacks"] * (made.attacked and made.attack != "clean")
    assert found[1] == ", ".join(expected)
    assert sum(len(right) for right in made.correct.values()) > 1


@statement(r"p: (.+?); intervals and p-values are simultaneous over the (classes|groups); (.+)$")
def pair_note(made: Compared, found: re.Match[str]) -> None:
    assert found[1] == how_tested(made, made.comparison.names[PAIR[0]], made.comparison.names[0])
    assert found[2] == ("classes" if made.kind == "class" else "groups")
    check(made, found[3][0].upper() + found[3][1:])


@statement(r"With several seeds: mean ± standard deviation over seeds\.")
def several_seeds(made: Compared, found: re.Match[str]) -> None:
    del found
    assert any(len(right) > 1 for right in made.correct.values())


@statement(r"Generated by classwise [\w.+]+\.")
def foot(made: Compared, found: re.Match[str]) -> None:
    del made, found


@statement(r"Accuracies are in percent, class-wise variances in percent squared\. Hover over a mark for its values\.$")
def units(made: Compared, found: re.Match[str]) -> None:
    del made, found


@statement(
    rf"({NAME}(?: class)?), ({NAME}): (?:({SHARE}) of ([\d,]+)|([+−]?\d+\.\d) percentage points on ([\d,]+) (images?)) "
    rf"\((?:([\d.]+) % interval )?({SPAN}|{SIGNED})\)$"
)
def mark(made: Compared, found: re.Match[str]) -> None:
    """Hover text of a dot: a method overall or on its worst class, a class, or a difference on a class."""
    row, name, share, images, points, paired_images, noun, percents, ends = found.groups()
    assert percents == (None if ends == "no interval" else level(made))
    if points is not None:
        difference = made.differences(name, made.comparison.names[0])[row]
        assert near(points, 100 * difference.value)
        assert ends == "no interval" if math.isnan(difference.low) else is_signed(ends, difference.low, difference.high)
        assert (int(paired_images), noun == "image") == (made.images(row), made.images(row) == 1)
        return
    measure = {"Overall": "overall", "Worst class": "worst"}.get(row)
    value = made.of_class(name, row) if measure is None else made.rows[name][measure]
    assert int(images.replace(",", "")) == (len(made.ids) if measure else made.images(row))
    assert is_share(share, value.value)
    assert is_span(ends, value)


@statement(
    rf"({NAME}): overall accuracy ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN})\), "
    rf"worst-class accuracy ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN})\)$"
)
def point(made: Compared, found: re.Match[str]) -> None:
    """Hover text of a dot of both accuracies."""
    name, *texts = found.groups()
    assert len(made.correct) >= 3
    for measure, (share, images, percents, ends) in (("overall", texts[:4]), ("worst", texts[4:])):
        value = made.rows[name][measure]
        assert int(images.replace(",", "")) == len(made.ids)
        assert percents == level(made)
        assert is_share(share, value.value)
        assert is_span(ends, value)


@statement(
    r"Dark: no other method is higher in both accuracies on these images, whether or not the differences are "
    r"significant\."
)
def dark(made: Compared, found: re.Match[str]) -> None:
    del found
    assert len(made.correct) >= 3


@statement(r"(.*?) ?(Half of the gradients are zero|A class has 3 images)\. (zero-gradients|few-images)$")
def warning(made: Compared, found: re.Match[str]) -> None:
    start, sentence, name = found.groups()
    assert {each.name: each.sentence for each in WARNINGS}[name] == f"{sentence}."
    names = []
    for method, raised in made.warnings.items():
        which = [number for number, each in enumerate(raised) if name in each]
        whole = [method] if len(which) == len(raised) else []
        names += whole or [f"{method}, run {number + 1} of {len(raised)}" for number in which]
    everywhere = all(name in each for raised in made.warnings.values() for each in raised)
    assert start == ("" if everywhere else f"{join_names(names)}:")


PAIR = [0]
"""Index of the first method of the pair whose section is parsed; 0 outside of these sections."""
SEEN: set[str] = set()


def sections(page: str) -> Iterator[tuple[int, str]]:
    """Sections of a page, each with the index of its pair."""
    start, *pairs = re.split(r"(?=<h2>\w+ minus \w+</h2>)", page)
    yield 0, start
    for place, part in enumerate(pairs, 1):
        pair, every, end = part.partition("<h2>Results per class</h2>")
        yield place, pair
        if every:
            yield 0, every + end
