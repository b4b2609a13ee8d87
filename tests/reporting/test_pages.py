from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classwise.auditing.compare.compare import compare
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting import report
from classwise.reporting.facts.examples import MAX_EXAMPLES
from classwise.reporting.pages.audit import MAX_BYTES

from .conftest import SUPERCLASSES, MakeAudit
from .markup import addresses, parsed, tags, visible


def test_the_page_is_one_well_formed_file_without_outside_addresses(make_audit: MakeAudit, tmp_path: Path) -> None:
    text = report(make_audit(meta=SUPERCLASSES), tmp_path / "a.html").read_text(encoding="utf-8")
    page = parsed(text)
    assert not {"script", "link"} & {*tags(page)}
    assert all(address == "#content" or address.startswith("data:") for address in addresses(page))
    assert not re.search(r"url\(|@import|https?://", text)


@pytest.mark.parametrize("classes", [2, 4, 100, 1000])
def test_a_page_stays_small_for_any_number_of_classes(make_audit: MakeAudit, tmp_path: Path, classes: int) -> None:
    path = report(make_audit(classes, 20), tmp_path / "a.html")
    assert path.stat().st_size < MAX_BYTES
    parsed(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("reason", ["budget", "time"])
def test_guards_that_were_not_run_are_named(make_audit: MakeAudit, tmp_path: Path, reason: Any) -> None:
    report_of_guards = GuardReport("auto", 32, 1000, 1100, ("no-black-box", "not-falling"), reason)
    text = visible(report(make_audit(guards=report_of_guards), tmp_path / "a.html"))
    assert report_of_guards.sentence in text
    assert "no-black-box, not-falling" in text
    assert text.index("not-falling") < text.index("Accuracy per class and attack")
    assert "auto: 32 images, 1,000 passes of a budget of 1,100" in text


def test_the_page_of_an_audit_without_guards(make_audit: MakeAudit, tmp_path: Path) -> None:
    text = visible(report(make_audit(guards=GuardReport("off", reason="off")), tmp_path / "a.html"))
    assert "No evaluation guard was run: the guards are off." in text


def test_the_page_of_imported_predictions_mentions_no_guards(make_audit: MakeAudit, tmp_path: Path) -> None:
    text = visible(report(make_audit(meta={"model_hash": ""}), tmp_path / "a.html"))
    assert "No evaluation guard" not in text
    assert "imported, not computed by classwise" in text


def test_the_page_of_an_incomplete_audit_reports_bounds(make_audit: MakeAudit, tmp_path: Path) -> None:
    whole = make_audit().outcomes
    frame = whole.frame[~((whole.frame["attack"] == "cw") & (whole.frame["index"] >= 300))]
    guards = GuardReport("auto", not_run=("zero-radius",), reason="time")
    text = visible(report(Audit(Outcomes(frame, whole.meta), guards=guards), tmp_path / "a.html"))
    assert "Guards that were not run because of the time limit: zero-radius." in text
    assert "Incomplete audit: 100 of 400 images are not judged under every attack" in text
    assert "on the worst class" not in text


def saved_examples(number: int = 4) -> Artifacts:
    """Clean and pgd images from 300 on (of the worst class)."""
    artifacts, index = Artifacts(), np.arange(300, 300 + number)
    images = np.random.default_rng(0).random((number, 3, 8, 8)).astype(np.float16)
    examples = np.clip(images + np.float16(8 / 255), 0, 1)
    artifacts.add("examples", "pgd", index, np.stack([images, examples], axis=1))
    return artifacts


def test_examples_of_the_worst_class_show_misclassified_images_first(make_audit: MakeAudit, tmp_path: Path) -> None:
    plain = make_audit(accuracy=(0.6, 0.7, 0.3, 0.02))
    path = report(Audit(plain.outcomes, artifacts=saved_examples()), tmp_path / "a.html")
    shown = addresses(parsed(path.read_text(encoding="utf-8")))
    assert len([address for address in shown if address.startswith("data:")]) == 12
    text = visible(path)
    assert text.index("Image 302, pgd: misclassified as airplane") < text.index(
        "Image 300, pgd: correctly classified as cat"
    )
    assert "amplified 16 times" in text
    names = {302: "cat/<b>\u202e.png", 300: f"{'x' * 99}/a.png"}
    frame = plain.outcomes.frame.assign(name=plain.outcomes.frame["index"].map(names))
    named = Audit(Outcomes(frame, plain.outcomes.meta), artifacts=saved_examples())
    text = visible(report(named, tmp_path / "named.html"))
    assert "Image 302 (cat/<b>⟨U+202E⟩.png), pgd: misclassified as airplane" in text
    assert f"Image 300 (…{'x' * 53}/a.png), pgd: correctly classified as cat" in text
    assert "Image 301, pgd" in text
    many = Audit(plain.outcomes, artifacts=saved_examples(MAX_EXAMPLES + 3))
    assert visible(report(many, tmp_path / "b.html")).count("pgd: misclassified as airplane") == MAX_EXAMPLES


def test_each_colour_is_one_method(make_audit: MakeAudit, tmp_path: Path) -> None:
    """With more methods than colours, each has a row of its own, named at its left."""
    audits = {f"method {place}": make_audit(seed=place) for place in range(6)}
    page_of_six = report(compare(audits), tmp_path / "six.html").read_text(encoding="utf-8")
    del audits["method 5"]
    page_of_five = report(compare(audits), tmp_path / "five.html").read_text(encoding="utf-8")
    legend = "Accuracy per class under every attack together, percent"
    assert legend in page_of_five
    assert legend not in page_of_six
    reading = "method 1, Worst class: "
    assert reading in page_of_six
    assert reading not in page_of_five
    assert "Worst class, method 1: " in page_of_five


def test_a_comparison_page_is_well_formed_and_small(make_audit: MakeAudit, tmp_path: Path) -> None:
    warning = AuditWarning("zero-gradients", "Half of the gradients are zero.", 0.5)
    audits = {
        f"method {seed}": make_audit(classes=100, per_class=20, seed=seed, warnings=(warning,)) for seed in range(3)
    }
    text = report(compare(audits), tmp_path / "a.html").read_text(encoding="utf-8")
    parsed(text)
    assert len(text.encode()) < MAX_BYTES
    assert text.count("Half of the gradients are zero.") == 1
