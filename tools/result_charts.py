"""The charts of docs/results/README.md, drawn from the committed data beside it.

python -m tools.result_charts      # draw them again
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from classwise.papers import catalogue
from classwise.papers.result import stored_results
from classwise.papers.store import Store
from classwise.papers.tables import DECIDED, overviews
from classwise.reporting.figures.columns import Panel, column_panels
from classwise.reporting.figures.dots import Value, dot_rows
from classwise.reporting.svg import Drawing

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CHARTS = RESULTS / "charts"
OURS = "classwise"


def speed() -> Drawing:
    """Times as fast as torchattacks' loop, by number of images and processor, from ``audit-calls.md``."""
    parts = re.split(r"^### ", (RESULTS / "audit-calls.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    panels, names = [], []
    for part in parts:
        rows = [line.strip("|").split("|") for line in part.splitlines() if re.match(r"\| \d", line)]
        names = [row[0].strip() for row in rows]
        ratios = [re.findall(r"[\d.]+", row[4].partition(":")[2]) for row in rows]  # guards=auto, the default
        ends = [ratio[1:] or (math.nan, math.nan) for ratio in ratios]  # a single round has no range
        values, low, high = [float(ratio[0]) for ratio in ratios], *([float(end[at]) for end in ends] for at in (0, 1))
        kind = re.findall(r"gradients in (\w+)", part)[0]
        panels.append(Panel(f"in {kind}", values, low, high))
    return column_panels("Times as fast as torchattacks, PGD-20", names, panels, text=lambda value: f"{value:.2g}")


def strength() -> Drawing:
    """Robust accuracy of classwise minus that of the library with the lowest one, by attack, from ``strength.csv``."""
    with (RESULTS / "strength.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["library"] != OURS]
    strongest: dict[str, dict[str, str]] = {}
    for row in rows:
        best = strongest.setdefault(row["attack"], row)
        if _percent(row["robust accuracy"]) < _percent(best["robust accuracy"]):
            strongest[row["attack"]] = row
    values = []
    for row in strongest.values():
        difference, half = (float(part) / 100 for part in row["ours minus theirs, points"].split(" ± "))
        images = int(row["images x seeds"].partition(" x ")[0].replace(",", ""))
        values.append([Value(difference, difference - half, difference + half, images)])
    title = "Robust accuracy, classwise minus the strongest other library, points"
    return dot_rows(title, [*strongest], ["difference"], values, difference=True, width=400)


def coverage() -> Drawing:
    """Number of intervals and tests by their least coverage in percent, from ``interval-coverage.csv``."""
    with (RESULTS / "interval-coverage.csv").open(encoding="utf-8", newline="") as file:
        shares = [round(100 * float(row["coverage"]), 1) for row in csv.DictReader(file)]  # as on the page
    bins = Counter(min(math.floor(share), 99) for share in shares)
    levels = range(min(bins), 100)
    panel = Panel(f"{len(shares)} intervals and tests", [bins[level] for level in levels])
    title = "Least coverage in percent, nominal level 95 %"
    return column_panels(title, [f"{level} to {level + 1}" for level in levels], [panel])


def claims() -> Drawing:
    """Number of the claims of each paper by what became of them, from the stored verdicts."""
    results = stored_results(Store(RESULTS / "papers"))
    panels = []
    for name in catalogue.OWN:
        count = Counter(one.whole for one in overviews(name, results))
        panels.append(Panel(name, [count[kind] for kind in DECIDED]))
    return column_panels("Statements of each paper, by verdict", DECIDED, panels, across=2)


def _percent(text: str) -> float:
    return float(text.removesuffix("%"))


DRAWN: Mapping[str, Callable[[], Drawing]] = {
    "speed": speed,
    "strength": strength,
    "coverage": coverage,
    "claims": claims,
}
"""The functions that draw the charts, by the names of their files."""


def main(names: Sequence[str] = tuple(DRAWN)) -> None:
    """Draw the charts."""
    CHARTS.mkdir(exist_ok=True)
    for name in names:
        DRAWN[name]().save(CHARTS / f"{name}.svg")


if __name__ == "__main__":
    main()
