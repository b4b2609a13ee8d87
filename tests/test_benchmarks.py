"""The passes counted by the benchmark of methods equal those of its page; intervals over seeds of the comparison."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.comparison.page import over_seeds
from benchmarks.methods import counted, methods, trainer_in_last_epoch

from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names

PAGE = Path(__file__).parents[1] / "docs" / "results" / "methods.md"
BATCH = 4


def page_rows() -> dict[str, list[str]]:
    """The cells of each row by the row's first recipe."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "| `" in line]
    return {re.findall(r"`([^`]+)`", cells[0])[0]: cells for cells in rows}


def test_every_recipe_is_in_one_row() -> None:
    listed = [name for cells in page_rows().values() for name in re.findall(r"`([^`]+)`", cells[0])]
    assert sorted(listed) == recipe_names()
    assert set(page_rows()) == set(methods())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods()))
def test_the_page_has_the_passes_of_a_step(name: str) -> None:
    passes = counted(trainer_in_last_epoch(name, 0.0625, BATCH), BATCH)
    assert passes == Recipe.read(name).parts.passes * BATCH
    counts = [passes.forward, passes.to_image, passes.to_weights, passes.equivalents]
    assert [float(cell) for cell in page_rows()[name][1:5]] == [count / BATCH for count in counts]


def test_a_mean_over_seeds_has_student_s_interval() -> None:
    """For 1, 2 and 3 the half-width is 4.303 standard errors of 1 / sqrt(3)."""
    assert over_seeds([1, 2, 3]) == "+2.0 [-0.5, 4.5]"
    assert over_seeds([-0.5, -0.5, -0.5]) == "-0.5 [-0.5, -0.5]"
