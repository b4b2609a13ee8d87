"""The section on the weakest class: its sentences, and where the page, the terminal and the viewer show them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classwise as cw
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import HalfRadius, Part, Weakness
from classwise.reporting.facts.weakness_sentences import (
    NOTE,
    failure_text,
    weakness_line,
    weakness_sentences,
    weakness_title,
)
from tests.auditing.test_guards import digits_network
from tests.auditing.test_weakness import outcomes_of

from .test_prose import counted

WASHER = cw.weakness(Audit(outcomes_of()))


def test_each_share_has_its_numbers() -> None:
    assert weakness_title(WASHER) == "Why is washer the weakest class?"
    margins = (
        "3 of 4 images of washer that are correct without an attack have a small margin there: one below 2.5, the "
        "lower quartile of the correct images of all classes (3 of 11)."
    )
    radius = "The radius at which half of the images of washer fail is not in this audit"
    assert weakness_sentences(WASHER) == [
        "4 of 5 images of washer fail, first misclassified as nut (3) and bolt (1).",
        "washer has few images (5), so each share is uncertain.",
        "1 of 4 failures is misclassified without an attack.",
        margins,
        f"{radius}; classwise curve computes it (median).",
    ]
    assert [failure_text(failure) for failure in WASHER.clearest] == [
        "image 9, clean margin 6.50, misclassified as nut",
        "image 8, clean margin 2.00, misclassified as nut",
        "image 10, clean margin 1.00, misclassified as nut",
    ]
    assert weakness_line(WASHER) == (
        "failures of washer: 4 of 5 images fail, first misclassified as nut (3) and bolt (1); 1 of 4 without an "
        "attack; clean margins below the lower quartile: 3 of 4 correct images, 3 of 11 of all classes"
    )


def test_one_other_class_is_named() -> None:
    predicted = [(name, 9 - place) for place, name in enumerate(("nut", "bolt", "gear", "pin", "rod"))]
    for number, ending in ((4, "gear (7) and pin (6)"), (5, "gear (7) and 2 other classes (11)")):
        facts = dataclasses.replace(WASHER, failures=Part(40, 50), predicted=tuple(predicted[:number]))
        assert f"first misclassified as nut (9), bolt (8), {ending}" in weakness_line(facts)


CASES: dict[str, dict[str, Any]] = {
    "2 classes tie for the lowest accuracy (washer and nut); this is about the first, washer.": {
        "tied": ("washer", "nut")
    },
    "50 of 1,000 training images are of washer, 0.20 times the mean of 4 classes.": {
        "training": Part(50, 1000),
        "training_classes": 4,
    },
    "Half of the images of washer fail within the Linf radius 0.0314, which is 8/255 (fab).": {
        "half_radius": HalfRadius(8 / 255, "Linf", "fab")
    },
    "Half of the images of washer fail within the L2 radius 0.5 (curve x).": {
        "half_radius": HalfRadius(0.5, "L2", "curve x")
    },
    "At least half of the images of washer fail without an attack.": {"half_radius": HalfRadius(0.0, "L2", "cw")},
    "Fewer than half of the images of washer fail within the radii of curve x.": {"too_short": "x"},
    "4 of 5 images of washer fail, first misclassified as nut (2), 2 of them without a prediction.": {
        "predicted": (("nut", 2),)
    },
    "4 of 5 images of washer fail, 4 of them without a prediction.": {"predicted": ()},
    "4 of 5 images of washer are misclassified without an attack, as nut (3) and bolt (1).": {"attacked": False},
}


@pytest.mark.parametrize("sentence", CASES)
def test_each_fact_has_a_sentence(sentence: str) -> None:
    assert sentence in weakness_sentences(dataclasses.replace(WASHER, **CASES[sentence]))


def test_headings_of_other_cases() -> None:
    def title(**changes: Any) -> str:
        return weakness_title(dataclasses.replace(WASHER, **changes))

    assert title(tied=("washer", "nut")) == "Why is washer among the weakest classes?"
    assert title(kind="light") == "Why is washer the weakest light group?"
    assert "classwise curve" not in " ".join(weakness_sentences(dataclasses.replace(WASHER, kind="light")))
    assert title(classes=1) == "How washer fails"
    assert title(failures=Part(0, 5)) == ""
    assert weakness_line(dataclasses.replace(WASHER, failures=Part(0, 5))) == ""


def test_the_terminal_and_the_page_name_the_commonest_confusion(tmp_path: Path) -> None:
    """Washer is misclassified as nut on 100 of 100 images, which is one cell of a matrix."""
    labels = np.repeat([0, 1, 2], 100)
    attacked = np.where(labels == 2, 1, labels)
    attacked[:3] = 1
    audit = Audit(Outcomes.from_predictions(labels, labels, {"pgd": attacked}, ["bolt", "nut", "washer"]))
    assert "commonest confusion of all classes: washer as nut, 100 of the 100 images of washer\n" in f"{audit}\n"
    page = cw.report(audit, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Commonest confusion of all classes: washer as nut, 100 of the 100 images of washer." in page
    assert "Why is washer the weakest class?" in page


def test_equally_common_confusions_are_counted() -> None:
    audit = counted(30, 30, 10)
    assert (
        "commonest confusion of all classes: bird as airplane, 30 of the 40 images of bird" in str(audit).splitlines()
    )
    assert "automobile as bird, 20 of the 40 images of automobile (1 other confusion has as many images)" in str(
        counted(30, 20, 20)
    )


def test_the_clearest_failures_are_shown_or_linked(tmp_path: Path) -> None:
    data = cw.load_data("digits", split="test", subset=40)
    audit = cw.audit(digits_network(), data, "Linf:0.3", "pgd:steps=3", out=tmp_path / "audit", guards="off")
    found = cw.weakness(audit)
    assert found.clearest
    images = [failure.image for failure in found.clearest]
    before = cw.report(audit, tmp_path / "audit" / "page.html").read_text(encoding="utf-8")
    section = before.partition('<ul class="clearest">')[2].partition("</ul>")[0]
    assert section.count("data:image/") == len(images)  # the examples of a small class are all saved
    assert "<a href" not in section
    cw.view(audit)
    after = (tmp_path / "audit" / "page.html").read_text(encoding="utf-8")
    for image in images:
        assert f'<a href="view/index.html#group={found.label}&amp;image={image}">' in after
    content = (tmp_path / "audit" / "view" / "data.js").read_text(encoding="utf-8")
    shown = json.loads(json.loads(content.removeprefix("const CONTENT = ").rstrip().removesuffix(";")))
    weakness = shown["audits"][0]["weakness"]
    assert weakness["title"] == weakness_title(found)
    assert weakness["sentences"] == weakness_sentences(found)
    assert [image for image, _ in weakness["clearest"]] == images


def test_printing_the_facts_shows_the_sentences() -> None:
    lines = str(WASHER).splitlines()
    assert lines[0] == weakness_sentences(WASHER)[0]
    assert lines[-1] == NOTE
    assert "  image 9, clean margin 6.50, misclassified as nut" in lines
    assert isinstance(WASHER, Weakness)
