from __future__ import annotations

import re
from html.parser import HTMLParser
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

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Checks that every element is closed; collects texts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in {"src", "href", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def visible(path: Path) -> str:
    """The text of the body, its tags removed and its white space made simple."""
    body = path.read_text(encoding="utf-8").partition("<body>")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_headline_is_the_worst_class_with_its_interval(make_audit: MakeAudit, tmp_path: Path) -> None:
    audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1), meta=SUPERCLASSES)
    path = report(audit, tmp_path / "a.html")
    text, worst = visible(path), audit.worst_class()
    assert "42.5 % robust accuracy overall, 10.0 % on the worst class ( cat )" in text
    name = "95 % interval of the lowest class accuracy, whichever class it is"
    assert f"{name}: {100 * worst.low:.1f}–{100 * worst.high:.1f} %" in text
    assert "No evaluation guard" not in text


def test_the_page_is_one_well_formed_file_without_outside_addresses(make_audit: MakeAudit, tmp_path: Path) -> None:
    text = report(make_audit(meta=SUPERCLASSES), tmp_path / "a.html").read_text(encoding="utf-8")
    parsed = Page(text)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert all(address == "#content" or address.startswith("data:") for address in parsed.addresses)
    assert not re.search(r"url\(|@import|https?://", text)


def test_the_same_audit_gives_the_same_bytes(make_audit: MakeAudit, tmp_path: Path) -> None:
    one, two = (report(make_audit(), tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert one == two


@pytest.mark.parametrize("classes", [2, 4, 100, 1000])
def test_a_page_stays_small_for_any_number_of_classes(make_audit: MakeAudit, tmp_path: Path, classes: int) -> None:
    path = report(make_audit(classes, 20), tmp_path / "a.html")
    assert path.stat().st_size < MAX_BYTES
    Page(path.read_text(encoding="utf-8"))


def test_warnings_are_read_before_the_numbers(make_audit: MakeAudit, tmp_path: Path) -> None:
    warning = AuditWarning("zero-gradients", "Half of the gradients are zero.", 0.5)
    text = visible(report(make_audit(warnings=(warning,)), tmp_path / "a.html"))
    assert text.index("Half of the gradients are zero.") < text.index("Accuracy per class and attack")
    assert "No evaluation guard" not in text


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


def test_user_supplied_names_are_escaped(make_audit: MakeAudit, tmp_path: Path) -> None:
    bad = ("<script>alert(1)</script>", 'a"b', "c&d", "'e'")
    text = report(make_audit(names=bad, accuracy=(0.1, 0.5, 0.5, 0.5)), tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<script" not in text
    Page(text)


def test_the_page_of_an_incomplete_audit_reports_bounds(make_audit: MakeAudit, tmp_path: Path) -> None:
    whole = make_audit().outcomes
    frame = whole.frame[~((whole.frame["attack"] == "cw") & (whole.frame["index"] >= 300))]
    guards = GuardReport("auto", not_run=("zero-radius",), reason="time")
    text = visible(report(Audit(Outcomes(frame, whole.meta), guards=guards), tmp_path / "a.html"))
    assert "Guards that were not run because of the time limit: zero-radius." in text
    assert "Incomplete audit: 100 of 400 images are not judged under every attack" in text
    assert "on the worst class" not in text


def test_a_page_from_clean_predictions_only(tmp_path: Path) -> None:
    outcomes = Outcomes.from_predictions([0, 0, 1, 1], [0, 1, 1, 1], class_names=["a", "b"])
    assert "75.0 % clean accuracy overall, 50.0 % on the worst class ( a )" in visible(
        report(Audit(outcomes), tmp_path / "a.html")
    )


def saved_examples(number: int = 4) -> Artifacts:
    """Clean and pgd images from 300 on (of the worst class)."""
    artifacts, index = Artifacts(), np.arange(300, 300 + number)
    images = np.random.default_rng(0).random((number, 3, 8, 8)).astype(np.float16)
    examples = np.clip(images + np.float16(8 / 255), 0, 1)
    artifacts.add("examples", "pgd", index, np.stack([images, examples], axis=1))
    return artifacts


def test_examples_of_the_worst_class_show_misclassified_images_first(make_audit: MakeAudit, tmp_path: Path) -> None:
    plain = make_audit(accuracy=(0.6, 0.7, 0.3, 0.02))
    audit = Audit(plain.outcomes, artifacts=saved_examples())
    path = report(audit, tmp_path / "a.html")
    addresses = Page(path.read_text(encoding="utf-8")).addresses
    assert len([address for address in addresses if address.startswith("data:")]) == 12
    text = visible(path)
    assert text.index("Image 302, pgd: misclassified as airplane") < text.index(
        "Image 300, pgd: correctly classified as cat"
    )
    assert "amplified 16 times" in text
    many = Audit(plain.outcomes, artifacts=saved_examples(MAX_EXAMPLES + 3))
    assert visible(report(many, tmp_path / "b.html")).count("pgd: misclassified as airplane") == MAX_EXAMPLES


def test_without_saved_examples_there_is_no_such_section(make_audit: MakeAudit, tmp_path: Path) -> None:
    assert "Example images" not in visible(report(make_audit(), tmp_path / "a.html"))


def test_a_comparison_names_a_best_method_only_if_it_is_significant(make_audit: MakeAudit, tmp_path: Path) -> None:
    low = make_audit(per_class=400, accuracy=(0.6, 0.6, 0.3, 0.1))
    high = make_audit(per_class=400, accuracy=(0.7, 0.7, 0.5, 0.4))
    near = make_audit(per_class=400, accuracy=(0.6, 0.6, 0.3, 0.11))
    clear = visible(report(compare({"old": low, "new": high}), tmp_path / "a.html"))
    assert "new has the highest worst-class accuracy: 40.0 % (cat)" in clear
    unclear = visible(report(compare({"old": low, "new": near}), tmp_path / "b.html"))
    assert "No significant difference in worst-class accuracy; the highest is 11.0 % with new" in unclear


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
    path = report(compare(audits), tmp_path / "a.html")
    text = path.read_text(encoding="utf-8")
    Page(text)
    assert len(text.encode()) < MAX_BYTES
    assert text.count("Half of the gradients are zero.") == 1


def test_several_seeds_show_mean_and_deviation(make_audit: MakeAudit, tmp_path: Path) -> None:
    values = ((0.6, 0.6, 0.3, 0.1), (0.6, 0.6, 0.3, 0.2))
    seeds = [make_audit(accuracy=value, meta={"model_hash": str(number)}) for number, value in enumerate(values)]
    path = report(compare({"a": seeds, "b": [*reversed(seeds)]}), tmp_path / "a.html")
    text = visible(path)
    assert "15.0 ± 7.1" in text  # the worst class: mean and deviation of 10 and 20 %
    assert "new training seeds" in text
