"""The text of results: what a reader sees on the terminal and on the page, for results of each kind.

`test_audit_facts`, `test_comparison_facts` and `test_other_facts` check the numbers and the claims. After a change of
words, ``python -m tests.reporting.test_prose`` writes the snapshots; read the difference before you commit it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pandas as pd
import pytest

import classwise
from classwise.auditing.compare.compare import compare
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.builds import BuildOptions
from classwise.cli.compare import comparison_facts
from classwise.cli.tables import audit_facts
from classwise.reporting import formatting, report
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.sentences import AuditFacts, confusion_sentences, lead, uncertainty
from classwise.reporting.text.layout import TextTable
from classwise.reporting.text.result import Result, parts_of, text
from classwise.stats.intervals import Estimate

from .conftest import NAMES, SUPERCLASSES, audit_of
from .markup import parsed
from .sample_pages import sample_curve
from .test_worst_class import result_of

SNAPSHOTS = Path(__file__).with_name("snapshots")


WANTED = {"h1", "h2", "h3", "p", "figcaption", "li", "summary"}
"""Headings and paragraphs of a page, without its tables, figures and settings."""


def words(element: Element) -> str:
    """The text of an element; a bar stands before each span."""
    inside = (" | " * (part.tag == "span") + words(part) + (part.tail or "") for part in element)
    return (element.text or "") + "".join(inside)


def prose(result: Result) -> str:
    """A result on the terminal, and the headings and paragraphs of its page."""
    with tempfile.TemporaryDirectory() as folder:
        page = report(result, Path(folder) / "page.html").read_text(encoding="utf-8")
    shown = [element for element in parsed(page).iter() if element.tag in WANTED]
    marks = ["#" * int(element.tag[1]) if element.tag[0] == "h" else "" for element in shown]
    lines = [" ".join(f"{mark} {words(element)}".split()) for mark, element in zip(marks, shown, strict=True)]
    both = [text(result), "-" * 40, *filter(None, lines)]
    return "\n".join(both).replace("\u00a0", " ").replace(classwise.__version__, "VERSION") + "\n"


def counted(*correct: int, images: int = 40, clean: tuple[int, ...] | None = None, **more: Any) -> Audit:
    """An audit with this many images of each class, of which the first ones are correct."""
    labels, place = np.repeat(np.arange(len(correct)), images), np.tile(np.arange(images), len(correct))

    def predictions(counts: tuple[int, ...]) -> Any:
        return np.where(place < np.repeat(counts, images), labels, (labels + 1) % max(len(counts), 2))

    names = more.pop("names", (*NAMES, "deer", "dog", "frog", "horse", "ship", "truck"))[: max(len(correct), 2)]
    attacks = more.pop("attacks", {"pgd": predictions(correct)})
    first = predictions(correct if clean is None and not attacks else clean or (images,) * len(correct))
    about: dict[str, Any] = {"model": "tiny", "threat": "Linf:8/255" if attacks else None}
    group, warnings = more.pop("group", None), more.pop("warnings", ())
    return Audit(Outcomes.from_predictions(labels, first, attacks, names, **about | more), warnings, group=group)


def cascade() -> Audit:
    """A cascade over twelve classes, one of them without images; errors of many kinds, some without a prediction."""
    labels = np.repeat(np.arange(11), 30)
    random = np.random.default_rng(0)
    robust = random.random((2, 330)) < 0.35 + 0.05 * labels
    robust[1] &= robust[0]
    wrong = (labels + random.integers(1, 11, 330)) % 12
    names = (*NAMES, "deer", "dog", "frog", "horse", "ship", "truck", "fox", "owl")
    attacks = {name: np.where(right, labels, wrong) for name, right in zip(("pgd", "cw"), robust, strict=True)}
    made = Outcomes.from_predictions(labels, labels, attacks, names, threat="Linf:8/255", cascade=True)
    frame = made.frame.copy()
    lost = (frame["prediction"] != frame["label"]) & (frame["index"] % 50 == 0)
    frame.loc[lost, "prediction"] = pd.NA
    frame.loc[lost, "status"] = "nan"
    return Audit(Outcomes(frame, made.meta))


def incomplete() -> Audit:
    """An audit in which one attack has not run on a third of the images."""
    whole = audit_of(accuracy=(0.6, 0.7, 0.3, 0.1)).outcomes
    frame = whole.frame[~((whole.frame["attack"] == "cw") & (whole.frame["index"] % 3 == 0))]
    return Audit(Outcomes(frame, whole.meta))


def cross_entropy() -> Audit:
    """An audit whose only attack is PGD on the cross-entropy."""
    found = counted(4, 30, 12)
    meta = dataclasses.replace(found.outcomes.meta, attacks={"clean": None, "pgd": {"name": "pgd", "steps": 20}})
    return Audit(Outcomes(found.outcomes.frame, meta))


def seeded(*runs: tuple[int, int]) -> list[Audit]:
    """Audits of two classes, one per training run."""
    return [counted(*run) for run in runs]


WARNING = AuditWarning("zero-gradients", "Half of the gradients are zero.", 0.5)
SEARCHED = ("airplane", "bird", "cat", "deer")
RESULTS: dict[str, Callable[[], Result]] = {
    "audit": lambda: audit_of(accuracy=(0.6, 0.7, 0.3, 0.1), meta=SUPERCLASSES, warnings=(WARNING,)),
    "audit-groups": lambda: counted(20, 24, 9, 10, group="superclass", **SUPERCLASSES),
    "audit-tied": lambda: counted(4, 30, 4, clean=(8, 40, 8)),
    "audit-equal": lambda: counted(1, 1, images=2),
    "audit-one-class": lambda: counted(1, images=1),
    "audit-clean": lambda: counted(40, 40, 40, attacks={}),
    "audit-cascade": cascade,
    "audit-cross-entropy": cross_entropy,
    "audit-incomplete": incomplete,
    "comparison": lambda: compare({"at": counted(20, 2, 3), "cfa": counted(36, 38, 37, warnings=(WARNING,))}),
    "comparison-not-significant": lambda: compare({"at": counted(20, 10), "cfa": counted(21, 12)}),
    "comparison-equal": lambda: compare({name: counted(20, 20) for name in ("at", "cfa")}),
    "comparison-of-seeds": lambda: compare(
        {
            "at": seeded((20, 10), (22, 12)),
            "cfa": seeded((21, 19), (20, 25), (24, 20)),
            "dafa": counted(30, 11),
        },
        confidence=0.9,
    ),
    "comparison-of-many": lambda: compare(
        {name: counted(20 + place, 24 - place % 3) for place, name in enumerate("abcdef")}
    ),
    "comparison-across": lambda: compare(
        {"at": [counted(30, 20, threat="Linf:4/255"), counted(20, 10, threat="Linf:8/255")]}, across="threat"
    ),
    "comparison-incomplete": lambda: compare({"at": incomplete(), "cfa": incomplete()}, allow_incomplete=True),
    "curve": sample_curve,
    "worst-class": lambda: result_of(SEARCHED, [0.6, 0.3, 0.1, 0.5], set()),
    "worst-class-stopped": lambda: result_of(SEARCHED, [0.6, 0.3, 0.25, 0.5], {1}, settled=False),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_text_of_a_result(name: str) -> None:
    assert prose(RESULTS[name]()) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "headline"), [("audit", "worst class: "), ("comparison", "cfa against at: ")])
def test_warnings_are_directly_beside_the_headline(name: str, headline: str, tmp_path: Path) -> None:
    """A reader of the number sees what makes it unreliable: in the line above it, and below it on the page."""
    result = RESULTS[name]()
    lines = text(result).splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith(f"warning ({WARNING.name}): "))
    assert lines[place + 1].startswith(headline)
    page = report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    (main,) = (element for element in parsed(page).iter() if element.tag == "main")
    assert main[0].get("class") == "warnings"
    assert WARNING.sentence in words(main[0])


def test_a_page_by_groups_says_nothing_about_the_selection_of_classes(tmp_path: Path) -> None:
    warnings = (AuditWarning("same-images", "2 classes may be the worst.", 0.1),)
    by_class = counted(20, 24, 9, 10, warnings=warnings, **SUPERCLASSES)
    by_group = dataclasses.replace(by_class, group="superclass")
    for audit, said in ((by_class, True), (by_group, False)):
        page = report(audit, tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("2 classes may be the worst." in page) == ("2 classes may be the worst." in text(audit)) == said
        assert ("Accuracy per class under every attack" in page) == said
        assert len(audit_facts(audit)["warnings"]) == said
        comparison = compare({"a": by_class, "b": audit}, group=audit.group)
        assert ("2 classes may be the worst." in text(comparison)) == said
        assert len(comparison_facts(comparison)["warnings"]) == said
        compared = report(comparison, tmp_path / "page.html").read_text(encoding="utf-8").lower()
        others = compared.replace("harmonic mean of overall and worst-class accuracy", "")
        assert (("worst-class accuracy" in others), ("worst class" in others)) == (said, said)
        assert ("worst-group accuracy" in compared) == (not said)
        files = [tmp_path / name for name in ("a.sarif", "page.html")]
        BuildOptions(sarif=files[0]).write(audit, {}, files[1])
        assert ("2 classes may be the worst." in files[0].read_text(encoding="utf-8")) == said


def test_groups_without_a_name_are_called_groups() -> None:
    assert formatting.lowest_interval_name(0.05, "group").endswith("lowest group accuracy, whichever group it is")
    assert [formatting.plural(kind) for kind in (None, "group", "camera")] == ["classes", "groups", "camera groups"]


def test_a_narrow_terminal_drops_columns_of_an_incomplete_audit() -> None:
    classes, attacks = (part for part in parts_of(incomplete()) if isinstance(part, TextTable))
    assert {*classes.columns} - {*classes.optional} == {"class", "all"}
    assert [*attacks.optional] == [*reversed(attacks.columns[1:])]


def test_sentences_agree_with_rare_facts() -> None:
    """Singular forms, and classes that are above no candidate."""
    facts = AuditFacts.of(AuditSummary.of(audit_of(accuracy=(0.6, 0.7, 0.3, 0.1), meta=SUPERCLASSES)))
    assert "Each of the other 3 is significantly more accurate than it." in uncertainty(facts)[0]
    facts = dataclasses.replace(
        facts, images=1, correct=1, above_candidates=False, errors=1, within=Estimate(1.0, 0.2, 1.0), wrong=2
    )
    assert lead(facts) == "Of the 1 image of this class, 1 is classified correctly under every attack."
    assert uncertainty(facts)[0].endswith(
        "Each of the other 3 is significantly more accurate than at least one class of lower accuracy."
    )
    _, _, within, *_, blank = (sentence.replace("\u00a0", " ") for sentence in confusion_sentences(facts))
    assert within.startswith("Of 1 error over all classes, 100.0 % is within the true superclass (95 % interval 20.0–1")
    assert blank == ("1 misclassified image has no prediction (non-finite logits) and is not counted in the matrices.")


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for kind, make in RESULTS.items():
        (SNAPSHOTS / f"{kind}.txt").write_text(prose(make()), encoding="utf-8")
