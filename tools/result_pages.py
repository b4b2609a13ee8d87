"""Pages of committed results, built with the documentation site from the data in ``docs/results``.

python -m tools.result_pages build/results     # write them all
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.real_size import STUDY
from benchmarks.studies import of_common_seeds

import classwise as cw
from classwise.papers import catalogue

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def paper(name: str, page: Path) -> None:
    """Write the page of a paper from its stored results."""
    cw.papers.write_pages([name], RESULTS / "papers", page.parent)


def board(page: Path) -> None:
    """Write the page of the leaderboard from its JSON file."""
    cw.report(cw.board([RESULTS / "board" / "board.json"]), page)


def real_size(page: Path) -> None:
    """Write the comparison of the models at half width from their recorded audits."""
    comparison = STUDY.comparison(STUDY.root(quick=False), recorded=True)
    assert comparison is not None
    cw.report(of_common_seeds(comparison), page)


PAGES: Mapping[str, Callable[[Path], None]] = {
    **{f"papers/{name}.html": functools.partial(paper, name) for name in catalogue.OWN},
    "board/index.html": board,
    "real-size/compare.html": real_size,
}
"""The functions that write the pages, by their paths in ``docs/results``."""


def write(folder: Path) -> None:
    """Write all pages below a folder."""
    for name, written in PAGES.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        written(page)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
