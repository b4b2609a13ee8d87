"""Results of conditions: the same words on the terminal, in JUnit and SARIF files and in tests."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import typer

import classwise as cw
from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.audit import _conclude
from classwise.reporting.exports.builds import checks_of, write_junit, write_sarif
from classwise.reporting.facts.condition_size import size_before
from classwise.reporting.facts.condition_text import change_text, result_text
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
    images = "120 images;" if measure == "worst.split" else images
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


@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        # 0.025^(1/n) is the lower end if all n images are correct
        ("worst(all).low < 95%", "with 40 images a class the lower end is 91.2 % even if all are correct; at least 72"),
        ("overall(all).low < 98%", "with 120 images the lower end is 97.0 % even if all are correct; at least 183"),
        ("cat(all).high > 5%", "with 40 images the upper end is 8.8 % even if all are misclassified; at least 72"),
        ("worst(all).low < 0.2", "at this accuracy, about 580 images a class pass with a power of 80 %"),
        ("cat(all).low < 70%", "at this accuracy, about 670 images a class pass with a power of 80 %"),
        ("worst(all).low < 0.3", ""),  # the accuracy is 25 %
        ("worst(all).low > 0.1", ""),  # it is too high
        ("overall(all) < 0.9", ""),
    ],
)  # fmt: skip
def test_a_condition_that_few_images_cannot_pass_names_how_many_would(condition: str, advice: str) -> None:
    threshold = Threshold.parse(condition)
    assert threshold.holds(audit())
    _, _, after = result_text(audit(), threshold).partition("; required: ")
    assert re.sub(r" images( a class)? are required$", "", after.partition("; ")[2]) == advice


def test_before_an_audit_the_accuracy_is_named_that_its_images_can_show() -> None:
    """The least accuracy with a power of 80 %, or that there is none."""
    count, names = np.array([100, 200]), ("cat", "dog")
    about = "pass with a power of 80 % if the true accuracy is at"
    assert size_before(Threshold.parse("worst(all).low < 20%"), count, names) == (
        "100 images a class pass with a power of 80 % if the true accuracy of the worst class is at least 32.5 % and "
        "no other class is near it"
    )
    assert size_before(Threshold.parse("dog(all).high > 80%"), count, names) == f"200 images {about} most 71.6 %"
    assert "at least 3,688 images a class" in size_before(Threshold.parse("worst(all).low < 99.9%"), count, names)
    assert not size_before(Threshold.parse("worst(all) < 20%"), count, names)


def test_all_outputs_have_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    condition = Threshold.parse("overall(all) < 0.9")
    words = result_text(audit(), condition)
    assert words == "overall under all is 50.0 % (120 images; 95 % interval 40.7–59.3 %); required: at least 90 %"
    checks = checks_of(audit(), {str(condition): condition})
    write_junit(tmp_path / "junit.xml", checks, "mine")
    (failure,) = ET.parse(tmp_path / "junit.xml").getroot().iter("failure")
    assert failure.attrib["message"] == words
    write_sarif(tmp_path / "a.sarif", checks, tmp_path / "page.html")
    assert words in (tmp_path / "a.sarif").read_text(encoding="utf-8")
    assert _message(audit(), [condition]).splitlines()[1] == f"  {words}"
    with pytest.raises(typer.Exit):
        _conclude(audit(), {str(condition): condition}, None, [], tmp_path, tmp_path / "page.html", json=False)
    assert f"failed: fails if overall(all) < 0.9, which is true: {words}\n" in capsys.readouterr().err


def test_a_condition_that_is_not_met_is_stated_as_false(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not as if the accuracy were below the limit: ``passed: worst(all) < 0.1``."""
    conditions = Threshold.parse_all(["overall(all) < 0.1"], ["overall(all) >= 10%"])
    _conclude(audit(), conditions, None, [], tmp_path, tmp_path / "page.html", json=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("passed: ")]
    words = result_text(audit(), conditions["overall(all) < 0.1"])
    assert lines == [
        f"passed: fails if overall(all) < 0.1, which is false: {words}",
        f"passed: requires overall(all) >= 10%, which is true: {words}",
    ]
    failing = Threshold.parse_all([], ["overall(all) > 0.99"])
    with pytest.raises(typer.Exit):
        _conclude(audit(), failing, None, [], tmp_path, tmp_path / "page.html", json=False)
    assert "failed: requires overall(all) > 0.99, which is false: overall under all is " in capsys.readouterr().err


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
            r"upper end [+-]\d+\.\d points; 40 images; 95 % interval .* around a change of \S+; required: at least 20",
        ),
        ("mcd(pgd) > -1", r"-12\.5 points; 120 images; required: at most -100 points$"),
        ("cv(pgd) > -1", r"[+-]\d+\.\d percent squared; 120 images; required: at most -10000 percent squared$"),
    ],
)
def test_changes_are_in_points(condition: str, words: str) -> None:
    comparison = cw.compare({"first": audit(), "second": audit((15, 5, 20))}, attack="pgd")
    text = change_text(comparison, "second", ChangeThreshold.parse(condition))
    assert re.match(words, text), text


PASS = "would pass in 80 % of cases if nothing changes"


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("any(pgd).high < -30%", "smallest loss in one class that could have failed this: 55.0 points"),
        ("overall(pgd).high < -30%", "smallest loss overall that could have failed this: 40.0 points"),
        ("worst(pgd).high < -1%", "smallest loss of the worst class that could have failed this: 15.0 points"),
        ("dog(pgd).high < -90%", "no loss of dog could have failed this with these images"),
        (
            "any(pgd).low < -1%",
            f"with these images it also fails without any change; about 28,000 images a class {PASS}",
        ),
        ("overall(pgd).low < -10%", f"about 170 images {PASS}"),
        ("dog(pgd).low < -10%", f"with these images it also fails without any change; about 220 images of dog {PASS}"),
        ("overall(pgd).low < -99%", ""),  # it is not met
        ("worst(pgd).low < -10%", ""),
        ("any(pgd).high < 0", ""),  # it is met
        ("any(pgd) < -99%", ""),
    ],
)
def test_a_change_names_the_loss_that_could_have_failed(condition: str, words: str) -> None:
    comparison = cw.compare({"first": audit(), "second": audit((15, 5, 20))}, attack="pgd")
    threshold = ChangeThreshold.parse(condition)
    text = change_text(comparison, "second", threshold, threshold.smallest_losses(comparison, "second"))
    assert text.partition("; required: ")[2].partition("; ")[2] == words
