"""Every analysis is registered under the name of its module, with its result type and the figure of the result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classwise.analysis import ANALYSES
from classwise.analysis.ablation import ablation
from classwise.analysis.base import AnalysisResult
from classwise.analysis.confusion import confused
from classwise.analysis.consistency import ranked_alike
from classwise.analysis.drop import drop
from classwise.analysis.extremes import extremes
from classwise.analysis.gap import gap
from classwise.analysis.norm_link import norm_link
from classwise.analysis.pairs import pairs
from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import smoothness
from classwise.analysis.spread import spread
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.images import Images
from classwise.reporting.svg import Drawing, Image
from tests.analysis.tables import CLASSES, NAMES, outcomes
from tests.refusals import check_refused


@pytest.mark.parametrize("name", ANALYSES)
def test_each_module_has_docstring_computation_result_and_figure(name: str) -> None:
    analysis: Any = ANALYSES.load(name)
    returned = typing.get_type_hints(analysis)["return"]
    assert issubclass(returned, AnalysisResult)
    assert not inspect.isabstract(returned), f"{returned.__name__} lacks a table or a figure"
    expected = f"classwise.analysis.{name.replace('-', '_')}"
    assert {analysis.__module__, returned.__module__} == {expected}
    assert any(paper in str(inspect.getmodule(analysis).__doc__) for paper in ("kdd21", "iclr21", "benz20", "cfa23"))
    assert "Raises:" in str(analysis.__doc__) or name == "spread"


def test_an_attack_that_all_rankings_share_is_in_the_title_only() -> None:
    one, other = outcomes(), outcomes(seed=5)
    ranked = functools.partial(ranked_alike, {"SGD": one, "Adam": other}, permutations=20)
    figure = ranked(attacks={"strong": "PGD"}).figure().svg()
    assert "Rank correlation of the class accuracies, PGD" in figure
    assert "SGD, PGD" not in figure
    assert "SGD, weak" in ranked().figure().svg()


@functools.cache
def results() -> list[AnalysisResult]:
    table = outcomes()
    family = Outcomes.from_predictions(
        table.labels,
        attacks={name: table.rows(at)["prediction"].to_numpy(int) for name, at in (("pgd", "weak"), ("t", "strong"))},
        class_names=NAMES,
    )
    specs = {"pgd": None, "t": {"inverse_temperature": 5.0}}
    family = Outcomes(family.frame, dataclasses.replace(family.meta, attacks=specs))
    return [
        confused(table, "strong"),
        ranked_alike({"m": table}, permutations=20),
        drop(table, "weak", "strong"),
        spread(table, "weak"),
        gap(table, table, "strong"),
        norm_link(table, "weak", range(CLASSES)),
        smoothness({"one": table, "two": outcomes(seed=5)}, "strong"),
        ablation({"m": family}, family="t"),
        extremes(table, "strong", 0),
        pairs(table.confusion("strong"), NAMES),
        sensitivity(table, "weak", "strong"),
    ]


@pytest.mark.slow
def test_figures_are_complete_and_reproducible(tmp_path: Path) -> None:
    for result in results():
        drawing, name = result.figure(), type(result).__name__
        assert isinstance(drawing, Drawing), name
        text = drawing.svg()
        assert "nan" not in text, name
        assert text == result.figure().svg(), name
        assert not result.table.empty, name
        drawing.save(tmp_path / "x.png")


def test_standalone_files_hide_hover_targets() -> None:
    text = results()[3].figure().standalone()
    assert 'class="hit"' in text
    assert ".hit { fill: transparent; }" in text


@pytest.mark.slow
def test_the_gallery_of_the_most_and_least_robust_images(tmp_path: Path) -> None:
    table = outcomes()
    result = extremes(table, "strong", 0, count=3)
    pixels = np.random.default_rng(0).random((len(table), 1, 5, 5))
    images = Images(pixels[::-1].astype(np.float32), table.labels[::-1], NAMES, index=np.arange(len(table))[::-1])
    drawing = result.gallery(images)
    shown = [mark.pixels for mark in drawing.marks if isinstance(mark, Image)]
    assert np.stack(shown) == pytest.approx(pixels[[*result.most, *result.least]], abs=1e-6)
    assert drawing.svg().count("<image ") == 6
    drawing.save(tmp_path / "ends.png")
    check_refused(
        f"image {result.most[0]} is not in images", result.gallery, images.take(images.index != int(result.most[0]))
    )
