from __future__ import annotations

import numpy as np
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.settings.config import spec_text
from classwise.reporting.facts import sentences
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.audit_tables import attack_frame, attack_table, class_frame, class_table
from classwise.reporting.facts.provenance import settings_of

from .conftest import SUPERCLASSES, MakeAudit

ACCURACY = (0.6, 0.7, 0.3, 0.1)


@pytest.fixture
def summary(make_audit: MakeAudit) -> AuditSummary:
    return AuditSummary.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES))


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


def test_groups_replace_classes(make_audit: MakeAudit) -> None:
    summary = AuditSummary.of(make_audit(accuracy=ACCURACY, meta=SUPERCLASSES, group="superclass"))
    assert summary.names == ("vehicles", "animals")
    assert summary.minimum.plug_in == pytest.approx(0.2)
    assert class_table(summary).heads[0] == "superclass"
    assert all("First" not in sentence for sentence in sentences.confusion_sentences(sentences.AuditFacts.of(summary)))


def test_a_table_of_attacks_without_clean_images_has_no_nrr() -> None:
    outcomes = Outcomes.from_predictions(np.tile([0, 1], 50), attacks={"pgd": np.zeros(100, np.int64)})
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
