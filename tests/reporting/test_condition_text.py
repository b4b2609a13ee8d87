"""Results of conditions: the same words on the terminal, in JUnit and SARIF files and in tests."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer

import classwise as cw
from classwise.auditing.compare.thresholds import ChangeThreshold, Threshold
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.audit import _conclude
from classwise.reporting.builds import checks_of, write_junit, write_sarif
from classwise.reporting.condition_text import change_text, result_text
from classwise.testing.robustness import _message


def audit(robust: tuple[int, ...] = (30, 10, 20), name: str = "mine") -> Audit:
    """An audit of 40 images of each class, of which these numbers are robust."""
    labels = [label for label in range(len(robust)) for _ in range(40)]
    attacked = [label if place < robust[label] else (label + 1) % 3 for label in range(3) for place in range(40)]
    return Audit(Outcomes.from_predictions(labels, labels, {"pgd": attacked}, ["cat", "dog", "owl"]), name=name)


@pytest.mark.parametrize("measure", [*Threshold.measures(), "dog"])
def test_every_measure_has_its_value_its_images_and_its_interval(measure: str) -> None:
    name, _, end = measure.partition(".")
    condition = Threshold.parse(f"{name}(pgd){'.' if end else ''}{end} <= 100%")
    value = condition.bounds(audit()).low
    text = result_text(audit(), condition)
    factor, unit = (1e4, "percent squared") if measure == "cv" else (100, "%")
    subject = "accuracy of dog" if measure == "dog" else measure
    assert text.startswith(f"{subject} under pgd is {factor * value:.1f} {unit} (")
    images = {"dog": "40 images;", "worst": "40 images of dog;"}.get(name, "120 images;")
    assert f"({images} 95 % interval" in text
    low, high = re.findall(r"interval .*?([\d.]+)–([\d.]+) (?:%|percent squared)\); required", text)[0]
    assert float(low) <= round(factor * value, 1) <= float(high)
    assert text.endswith(f"; required: more than {10_000 if measure == 'cv' else 100} {unit}")
    assert "\N{NO-BREAK SPACE}" not in text


@pytest.mark.parametrize(
    ("comparison", "words"), [("<", "at least"), ("<=", "more than"), (">", "at most"), (">=", "less than")]
)
def test_the_requirement_is_the_negated_comparison(comparison: str, words: str) -> None:
    assert result_text(audit(), Threshold.parse(f"overall(all) {comparison} 1/3")).endswith(
        f"; required: {words} 33.3333 %"
    )


def test_all_outputs_have_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    condition = Threshold.parse("overall(all) < 0.9")
    words = result_text(audit(), condition)
    assert words == "overall under all is 50.0 % (120 images; 95 % interval 41.2–58.8 %); required: at least 90 %"
    checks = checks_of(audit(), {str(condition): condition})
    write_junit(tmp_path / "junit.xml", checks, "mine")
    (failure,) = ET.parse(tmp_path / "junit.xml").getroot().iter("failure")
    assert failure.attrib["message"] == words
    write_sarif(tmp_path / "a.sarif", checks, tmp_path / "page.html")
    assert words in (tmp_path / "a.sarif").read_text(encoding="utf-8")
    assert _message(audit(), [condition]).splitlines()[1] == f"  {words}"
    with pytest.raises(typer.Exit):
        _conclude(audit(), {str(condition): condition}, tmp_path, tmp_path / "page.html", json=False)
    assert f"failed: overall(all) < 0.9: {words}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            "overall(pgd) < 0",
            r"-16\.7 points; 120 images; 95 % interval −\d+\.\d to −\d+\.\d points; required: at least 0",
        ),
        ("worst(pgd) <= -5%", r"-12\.5 points; 120 images; 95 % interval .* points; required: more than -5 points$"),
        (
            "cat(pgd).high < 0.2",
            r"[+-]\d+\.\d points; 40 images; 95 % interval .* points; required: at least 20 points$",
        ),
        ("mcd(pgd) > -1", r"-12\.5 points; 120 images; required: at most -100 points$"),
        ("cv(pgd) > -1", r"[+-]\d+\.\d percent squared; 120 images; required: at most -10000 percent squared$"),
    ],
)
def test_changes_are_in_points(condition: str, words: str) -> None:
    comparison = cw.compare({"first": audit(), "second": audit((15, 5, 20))}, attack="pgd")
    text = change_text(comparison, "second", ChangeThreshold.parse(condition))
    assert re.match(words, text), text
