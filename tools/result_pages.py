"""Pages of committed results, built with the documentation site from the data in ``docs/results``.

python -m tools.result_pages build/results     # write them all
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.real_size import STUDY
from benchmarks.studies import of_common_seeds

import classwise as cw
from classwise.cli.demo import RECIPES, SMALL
from classwise.papers import catalogue

TWO = Path("two/index.html")
"""The viewer of two audits, from that of one."""
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def paper(name: str, page: Path) -> None:
    """Write the page of a paper from its stored results."""
    cw.papers.write_pages([name], RESULTS / "papers", page.parent)


def recorded_board() -> cw.Board:
    """The leaderboard: its JSON file, and the recorded audits of the half-width models, which are paired by image."""
    file, named = RESULTS / "board" / "board.json", dict[str, Path]()
    known = {entry.name for table in cw.board([file]).tables for entry in table.entries}
    for audit in sorted((RESULTS / "real-size" / "seed-0").glob("*/audits/pgd")):
        name = f"{audit.parts[-3].lower().replace('+', '-')}-half-width"
        if name in known:
            named[name] = audit
    return cw.board([file, named], extra_data=dict.fromkeys(named, False))


def board(page: Path) -> None:
    """Write the page of the leaderboard."""
    cw.report(recorded_board(), page)


def real_size(page: Path) -> None:
    """Write the comparison of the models of the study at half width from their recorded audits."""
    comparison = STUDY.comparison(STUDY.root(quick=False), recorded=True)
    assert comparison is not None
    cw.report(of_common_seeds(comparison), page)


def viewer(page: Path) -> None:
    """Write the viewers of two short trainings on digits: of the first audit, and of both (`TWO`)."""
    with tempfile.TemporaryDirectory() as name:
        audits = {}
        for recipe in RECIPES.values():
            run = cw.train(recipe, budget="short", out=Path(name, recipe), overrides=SMALL, epochs=20)
            attacks = ["pgd:steps=10", "apgd-dlr:steps=10", "square:steps=100"]
            images = cw.load_data("digits", split="test")
            audit = cw.audit(str(run.path), images, SMALL["threat"], attacks, save="images")
            meta = dataclasses.replace(audit.outcomes.meta, model=f"{recipe}, 20 epochs")
            outcomes = cw.Outcomes(audit.outcomes.frame, meta)
            audits[recipe] = dataclasses.replace(audit, outcomes=outcomes, name=recipe)
    cw.view(audits[RECIPES["AT"]], page.parent)
    cw.view(audits, page.parent / TWO.parent)


PAGES: Mapping[str, Callable[[Path], object]] = {
    **{f"papers/{name}.html": functools.partial(paper, name) for name in catalogue.OWN},
    "board/index.html": board,
    "view/index.html": viewer,
    f"view/{TWO}": Path.exists,  # written with the first
    "real-size/compare.html": real_size,
}
"""The functions that write the pages, by their paths in ``docs/results``."""
DATA: Mapping[str, str] = {
    **{f"papers/results/{name}": f"papers/{name}.html" for name in catalogue.OWN},
    "real-size": "real-size/compare.html",
}
"""Folders of ``docs/results`` to the pages that show their data: in the documentation, links to them open the page."""


def write(folder: Path) -> None:
    """Write all pages below a folder."""
    for name, written in PAGES.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        written(page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.result_pages", description="Write the pages of results.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the pages")
    write(parser.parse_args().folder)
