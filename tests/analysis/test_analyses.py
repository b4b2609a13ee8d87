"""Every analysis is registered, returns a finding, and its finding has a figure."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from pathlib import Path

import numpy as np
import pytest

from classwise.analysis import ANALYSES
from classwise.analysis.base import Finding
from classwise.analysis.confusion import confused
from classwise.analysis.consistency import ranked_alike
from classwise.analysis.extremes import extremes
from classwise.analysis.gap import gap
from classwise.analysis.norms import norm_link
from classwise.analysis.pairs import pairs
from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import smoothness
from classwise.analysis.spread import spread
from classwise.analysis.strength import drop
from classwise.analysis.temperatures import ablation
from classwise.auditing.outcomes import Outcomes
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.report.analyses import extreme_pictures, figure
from classwise.report.drawing import Drawing, Picture
from tests.analysis.tables import CLASSES, NAMES, outcomes


@pytest.mark.parametrize("name", ANALYSES)
def test_each_has_a_docstring_a_finding_and_a_figure(name: str) -> None:
    analysis = ANALYSES.load(name)
    returned = typing.get_type_hints(analysis)["return"]
    assert issubclass(returned, Finding)
    assert figure.dispatch(returned) is not figure.dispatch(object), f"register a figure for {returned.__name__}"
    assert any(paper in str(inspect.getmodule(analysis).__doc__) for paper in ("kdd21", "iclr21", "benz20", "cfa23"))
    assert "Raises:" in str(analysis.__doc__) or name == "spread"


def test_what_all_rankings_share_is_told_once() -> None:
    one, other = outcomes(), outcomes(seed=5)
    ranked = functools.partial(ranked_alike, {"SGD": one, "Adam": other}, resamples=20, permutations=20)
    alike = figure(ranked(attacks={"strong": "PGD"})).svg()
    assert "Rank correlation of the class accuracies, PGD" in alike
    assert "SGD, PGD" not in alike
    assert "SGD, weak" in figure(ranked()).svg()


def findings() -> list[Finding]:
    table = outcomes()
    family = Outcomes.from_predictions(
        table.labels,
        attacks={name: table.rows(at)["prediction"].to_numpy(int) for name, at in (("pgd", "weak"), ("t", "strong"))},
        class_names=NAMES,
    )
    specs = {"pgd": None, "t": {"inverse_temperature": 5.0}}
    family = Outcomes(family.frame, dataclasses.replace(family.meta, attacks=specs))
    return [
        confused(table, "strong", resamples=20),
        ranked_alike({"m": table}, resamples=20, permutations=20),
        drop(table, "weak", "strong"),
        spread(table, "weak", resamples=20),
        gap(table, table, "strong", resamples=20),
        norm_link(table, "weak", range(CLASSES), resamples=20),
        smoothness({"one": table, "two": outcomes(seed=5)}, "strong"),
        ablation({"m": family}, family="t"),
        extremes(table, "strong", 0),
        pairs(table.confusion("strong"), NAMES),
        sensitivity(table, "weak", "strong", resamples=20),
    ]


@pytest.mark.parametrize("finding", findings(), ids=lambda finding: type(finding).__name__)
def test_figures_are_whole_and_repeat(finding: Finding, tmp_path: Path) -> None:
    drawing = figure(finding)
    assert isinstance(drawing, Drawing)
    text = drawing.svg()
    assert "nan" not in text
    assert text == figure(finding).svg()
    assert not finding.table.empty
    drawing.save(tmp_path / "x.png")


def test_standalone_files_hide_what_only_answers_to_the_pointer() -> None:
    text = figure(findings()[3]).standalone()
    assert 'class="hit"' in text
    assert ".hit { fill: transparent; }" in text


def test_a_finding_without_a_figure_is_said() -> None:
    with pytest.raises(UserError, match="no figure is known for int"):
        figure(3)  # type: ignore[arg-type]


def test_the_ends_of_a_class_as_pictures(tmp_path: Path) -> None:
    table = outcomes()
    finding = extremes(table, "strong", 0, count=3)
    pixels = np.random.default_rng(0).random((len(table), 1, 5, 5))
    images = Images(pixels[::-1].astype(np.float32), table.labels[::-1], NAMES, index=np.arange(len(table))[::-1])
    drawing = extreme_pictures(finding, images)
    shown = [mark.pixels for mark in drawing.marks if isinstance(mark, Picture)]
    assert np.stack(shown) == pytest.approx(pixels[[*finding.most, *finding.least]], abs=1e-6)
    assert drawing.svg().count("<image ") == 6
    drawing.save(tmp_path / "ends.png")
    with pytest.raises(UserError, match=f"image {finding.most[0]} is not in images"):
        extreme_pictures(finding, images.take(images.index != int(finding.most[0])))
