from __future__ import annotations

import numpy as np
import pytest

from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.reporting import sentences
from classwise.reporting.audit_tables import attack_frame, attack_table, class_frame, class_table
from classwise.reporting.findings import Findings, first_confusion
from classwise.reporting.provenance import settings_of, spec_text

from .conftest import SUPERCLASSES, MakeAudit

ACCURACY = (0.6, 0.7, 0.3, 0.1)


@pytest.fixture
def findings(make_audit: MakeAudit) -> Findings:
    return Findings.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES))


def test_the_worst_class_and_its_interval_are_those_of_the_audit(make_audit: MakeAudit) -> None:
    audit = make_audit(accuracy=ACCURACY)
    findings, worst = Findings.of(audit), audit.worst_class()
    assert findings.names[findings.worst] == worst.name == "cat"
    assert findings.reading(findings.worst) == pytest.approx((0.1, worst.low, worst.high))
    assert tuple(findings.names[label] for label in sorted(findings.suspects)) == worst.possibly
    assert findings.order == [3, 2, 0, 1]


def test_the_first_confusion_has_the_accuracy_under_all_on_its_diagonal(make_audit: MakeAudit) -> None:
    audit = make_audit(accuracy=ACCURACY)
    matrix = first_confusion(audit.outcomes)
    assert isinstance(matrix, np.ndarray)
    assert np.diag(matrix).tolist() == [60, 70, 30, 10]
    assert matrix.sum(axis=1).tolist() == [100] * 4
    assert matrix[3, 0] == 90


def test_an_image_counts_for_what_it_was_taken_for_first() -> None:
    labels = np.array([0, 0, 0, 1, 2])
    outcomes = Outcomes.from_predictions(
        labels, np.array([0, 1, 0, 1, 2]), {"a": np.array([2, 2, 0, 1, 2]), "b": np.array([1, 2, 1, 1, 0])}
    )
    matrix = first_confusion(outcomes)
    assert isinstance(matrix, np.ndarray)
    assert matrix.tolist() == [[0, 2, 1], [0, 1, 0], [1, 0, 0]]


def test_the_strongest_attack_has_the_lowest_accuracy(findings: Findings) -> None:
    assert findings.strongest == "cw"


def test_families_are_shown_by_their_best_member() -> None:
    labels = np.tile([0, 1], 50)
    right, half = labels, np.where(np.arange(100) < 50, labels, 1 - labels)
    attacks = {"pgd": right, "t[2]": right, "t[5]": half}
    outcomes = Outcomes.from_predictions(labels, right, attacks, ["a", "b"], families={"t": ("t[2]", "t[5]")})
    findings = Findings.of(Audit(outcomes))
    assert findings.main == ["clean", "pgd", "t-best", "all"]
    assert findings.members == ["t[2]", "t[5]", "t-union"]


def test_numbers_in_the_tables_by_hand(findings: Findings) -> None:
    classes = class_frame(findings).set_index("class")
    assert classes.loc["cat", "all"] == 0.1
    assert classes.loc["cat", "clean"] == 0.95
    assert classes["possibly_worst"].tolist() == [False, False, False, True]
    attacks = attack_frame(findings).set_index("attack")
    assert attacks.loc["all", "overall"] == pytest.approx(0.425)
    assert attacks.loc["all", "worst_class"] == "cat"
    assert attacks.loc["all", "mcd"] == pytest.approx(0.6)
    assert attacks.loc["all", "cv"] == pytest.approx(np.var(ACCURACY))
    assert attacks.loc["all", "nrr"] == pytest.approx(2 * 0.425 * 0.95 / (0.425 + 0.95))
    assert attacks["nrr"].isna().tolist() == [True, False, False, False]


def test_every_number_of_the_tables_has_its_interval(findings: Findings) -> None:
    for row in class_table(findings).rows:
        assert all(cell.span for cell in row.cells[1:])
    for row in attack_table(findings).rows:
        assert all(cell.span or cell.text == "–" for cell in row.cells)
    assert [row.name for row in class_table(findings).rows if row.weak] == ["cat"]


def test_sentences_state_the_counts(findings: Findings) -> None:
    assert sentences.lead(findings) == "Of its 100 images, 10 are still classified correctly against every attack."
    which, size = sentences.certainty(findings)
    assert which == (
        "On new images the weakest class is cat (95\u00a0% confidence). Each of the other 3 is significantly above it."
    )
    assert size.startswith("As the lowest of 4 estimates, 10.0\u00a0% tends to be too low.")
    taken, leaked = sentences.mistakes(findings)
    assert taken.startswith("Of its 100 images, cat is first taken for airplane (90.0\u00a0%")
    # 40 airplanes become automobiles and 70 birds cats, of 230 errors; 1 of 3 other classes is in the superclass.
    assert leaked.startswith(
        "Of 230 errors of all classes, 47.8\u00a0% stay inside the superclass (95\u00a0% interval 4"
    )
    assert leaked.endswith("33.3\u00a0% would.")


def test_several_suspects_are_named(make_audit: MakeAudit) -> None:
    which, _ = sentences.certainty(Findings.of(make_audit(accuracy=(0.6, 0.7, 0.1, 0.12))))
    assert "may be any of 2 (95\u00a0% confidence): bird and cat. Each of the other 2" in which


def test_groups_stand_in_for_classes(make_audit: MakeAudit) -> None:
    findings = Findings.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES, group="superclass"))
    assert findings.names == ("vehicles", "animals")
    assert findings.reading(1).value == pytest.approx(0.2)
    assert class_table(findings).heads[0] == "superclass"
    assert all("taken for" not in sentence for sentence in sentences.mistakes(findings))


def test_a_table_of_attacks_without_clean_images_has_no_nrr() -> None:
    labels = np.tile([0, 1], 50)
    outcomes = Outcomes.from_predictions(labels, attacks={"pgd": np.zeros(100, np.int64)})
    findings = Findings.of(Audit(outcomes))
    assert "nrr" not in attack_frame(findings)
    assert [cell.text for cell in attack_table(findings).rows[0].cells][-2] == "–"


def test_provenance_lists_what_is_known_and_nothing_else(make_audit: MakeAudit) -> None:
    audit = make_audit(environment={"python": "3.11", "git": {"commit": "abc", "modified": False}, "gpu": None})
    found = dict(settings_of(audit))
    assert found["Data"] == "toy test: 400 images, 4 classes"
    assert found["Threat"] == "Linf:8/255"
    assert found["Git"] == "commit abc, modified False"
    assert "Gpu" not in found
    assert "Predictions" not in found


def test_a_spec_reads_as_on_the_command_line() -> None:
    spec = {"name": "pgd", "steps": 20, "step_size": "0.1eps", "targets": None}
    assert spec_text(spec) == "pgd:steps=20,step_size=0.1eps"
    assert spec_text({"name": "fgsm"}) == "fgsm"
    nested = {"name": "transfer", "surrogate": "runs/a", "attack": {"name": "pgd", "steps": 3}}
    assert spec_text(nested) == "transfer:surrogate=runs/a,attack=pgd,attack.steps=3"
