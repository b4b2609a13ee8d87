from __future__ import annotations

import numpy as np
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting.facts import sentences
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.audit_tables import attack_frame, attack_table, class_frame, class_table
from classwise.reporting.facts.provenance import settings_of, spec_text
from classwise.stats.intervals import lowest_interval

from .conftest import SUPERCLASSES, MakeAudit

ACCURACY = (0.6, 0.7, 0.3, 0.1)


@pytest.fixture
def summary(make_audit: MakeAudit) -> AuditSummary:
    return AuditSummary.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES))


def test_the_worst_class_and_its_interval_are_those_of_the_audit(make_audit: MakeAudit) -> None:
    audit = make_audit(accuracy=ACCURACY)
    summary, worst = AuditSummary.of(audit), audit.worst_class()
    assert summary.names[summary.worst] == worst.name == "cat"
    assert summary.minimum[-2:] == (worst.low, worst.high) == lowest_interval(audit.counts())
    assert tuple(summary.names[label] for label in sorted(summary.worst_candidates)) == worst.possibly
    assert summary.order == [3, 2, 0, 1]


def test_the_first_confusion_has_the_accuracy_under_all_on_its_diagonal(make_audit: MakeAudit) -> None:
    audit = make_audit(accuracy=ACCURACY)
    matrix = audit.outcomes.confusion("all")
    assert isinstance(matrix, np.ndarray)
    assert np.diag(matrix).tolist() == [60, 70, 30, 10]
    assert matrix.sum(axis=1).tolist() == [100] * 4
    assert matrix[3, 0] == 90


def test_an_image_is_counted_by_its_first_misclassification() -> None:
    labels = np.array([0, 0, 0, 1, 2])
    outcomes = Outcomes.from_predictions(
        labels, np.array([0, 1, 0, 1, 2]), {"a": np.array([2, 2, 0, 1, 2]), "b": np.array([1, 2, 1, 1, 0])}
    )
    matrix = outcomes.confusion("all")
    assert isinstance(matrix, np.ndarray)
    assert matrix.tolist() == [[0, 2, 1], [0, 1, 0], [1, 0, 0]]


def test_the_strongest_attack_has_the_lowest_accuracy(summary: AuditSummary) -> None:
    assert summary.strongest == "cw"


def test_families_are_shown_by_their_best_member() -> None:
    labels = np.tile([0, 1], 50)
    right, half = labels, np.where(np.arange(100) < 50, labels, 1 - labels)
    attacks = {"pgd": right, "t[2]": right, "t[5]": half}
    outcomes = Outcomes.from_predictions(labels, right, attacks, ["a", "b"], families={"t": ("t[2]", "t[5]")})
    summary = AuditSummary.of(Audit(outcomes))
    assert summary.main == ["clean", "pgd", "t-best", "all"]
    assert summary.members == ["t[2]", "t[5]", "t-union"]


def test_tables_against_numbers_by_hand(summary: AuditSummary) -> None:
    classes = class_frame(summary).set_index("class")
    assert classes.loc["cat", "all"] == 0.1
    assert classes.loc["cat", "clean"] == 0.95
    assert classes["possibly_worst"].tolist() == [False, False, False, True]
    attacks = attack_frame(summary).set_index("attack")
    assert attacks.loc["all", "overall"] == pytest.approx(0.425)
    assert attacks.loc["all", "worst_class"] == "cat"
    assert attacks.loc["all", "mcd"] == pytest.approx(0.6)
    assert attacks.loc["all", "cv"] == pytest.approx(np.var(ACCURACY))
    assert attacks.loc["all", "nrr"] == pytest.approx(2 * 0.425 * 0.95 / (0.425 + 0.95))
    assert attacks["nrr"].isna().tolist() == [True, False, False, False]


def test_every_number_of_the_tables_has_its_interval(summary: AuditSummary) -> None:
    for row in class_table(summary).rows:
        assert all(cell.span for cell in row.cells[1:])
    for row in attack_table(summary).rows:
        assert all(cell.span or cell.text == "–" for cell in row.cells)
    assert [row.name for row in class_table(summary).rows if row.weak] == ["cat"]


def test_sentences_state_the_counts(summary: AuditSummary) -> None:
    facts = sentences.AuditFacts.of(summary)
    assert sentences.lead(facts) == ("Of the 100 images of this class, 10 are classified correctly under every attack.")
    which, size = sentences.uncertainty(facts)
    assert which == (
        "With 95\u00a0% confidence, the worst class on new images is cat. Each of the other 3 is significantly more "
        "accurate than it."
    )
    assert size.startswith(
        "The plug-in estimate, 10.0\u00a0%, is the minimum of 4 estimates and therefore biased downwards."
    )
    misclassified, within, asymmetry, targets = sentences.confusion_sentences(facts)
    assert misclassified.startswith("First misclassifications of the 100 images of cat: airplane (90.0\u00a0%")
    # 40 airplanes become automobiles and 70 birds cats, of 230 errors; 1 of 3 other classes is in the superclass.
    assert within.startswith(
        "Of 230 errors over all classes, 47.8\u00a0% are within the true superclass (95\u00a0% interval 4"
    )
    assert within.endswith("uniform over the other classes: 33.3\u00a0%.")
    # 90 of 100 cats become airplanes, and no airplane a cat; 90 of 230 errors are into airplane, the most.
    assert asymmetry.startswith(
        "Largest asymmetry: 90.0\u00a0% of cat are misclassified as airplane, 0.0\u00a0% of airplane as cat, a "
        "difference of 90.0 points (95\u00a0% interval "
    )
    assert targets.startswith(
        "Class that absorbs the most misclassifications: airplane, 39.1\u00a0% of the 230 errors ("
    )


def test_all_candidates_for_the_worst_class_are_named(make_audit: MakeAudit) -> None:
    which, _ = sentences.uncertainty(
        sentences.AuditFacts.of(AuditSummary.of(make_audit(accuracy=(0.6, 0.7, 0.1, 0.12))))
    )
    assert "the worst class on new images is one of 2: bird and cat. Each of the other 2" in which


def test_groups_replace_classes(make_audit: MakeAudit) -> None:
    summary = AuditSummary.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES, group="superclass"))
    assert summary.names == ("vehicles", "animals")
    assert summary.minimum.plug_in == pytest.approx(0.2)
    assert class_table(summary).heads[0] == "superclass"
    assert all("First" not in sentence for sentence in sentences.confusion_sentences(sentences.AuditFacts.of(summary)))


def test_a_table_of_attacks_without_clean_images_has_no_nrr() -> None:
    labels = np.tile([0, 1], 50)
    outcomes = Outcomes.from_predictions(labels, attacks={"pgd": np.zeros(100, np.int64)})
    summary = AuditSummary.of(Audit(outcomes))
    assert "nrr" not in attack_frame(summary)
    table = attack_table(summary)
    assert table.rows[0].cells[table.heads.index("NRR") - 1].text == "–"


def test_provenance_lists_only_known_settings(make_audit: MakeAudit) -> None:
    audit = make_audit(environment={"python": "3.11", "git": {"commit": "abc", "modified": False}, "gpu": None})
    found = dict(settings_of(audit))
    assert found["Data"] == "toy test: 400 images, 4 classes"
    assert found["Threat"] == "Linf:8/255"
    assert found["classwise commit"] == "commit abc, modified False"
    assert "Gpu" not in found
    assert "Predictions" not in found


def test_a_spec_is_printed_in_command_line_syntax() -> None:
    spec = {"name": "pgd", "steps": 20, "step_size": "0.1eps", "targets": None}
    assert spec_text(spec) == "pgd:steps=20,step_size=0.1eps"
    assert spec_text({"name": "fgsm"}) == "fgsm"
    nested = {"name": "transfer", "surrogate": "runs/a", "attack": {"name": "pgd", "steps": 3}}
    assert spec_text(nested) == "transfer:surrogate=runs/a,attack=pgd,attack.steps=3"
