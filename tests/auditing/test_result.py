"""Tables of an audit, compared with numbers computed by hand."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, recall_score

from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import CHECKSUMS
from classwise.stats.intervals import lowest_interval

NAMES = ["cat", "dog"]
LABELS = [0] * 10 + [1] * 40
CLEAN = [0] * 9 + [1] + [1] * 36 + [0] * 4
ATTACKED = [0] * 3 + [1] * 7 + [1] * 20 + [0] * 20


@pytest.fixture
def audit() -> Audit:
    return Audit(Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES))


def test_the_table_has_a_row_per_class(audit: Audit) -> None:
    table = audit.by_class
    assert list(table.columns) == [
        "n",
        *(name + end for name in ("clean", "pgd", "all") for end in ("", "_low", "_high")),
    ]
    assert table.index.tolist() == NAMES
    assert table.index.name == "class"
    assert table["n"].tolist() == [10, 40]
    assert table["pgd"].tolist() == [0.3, 0.5]
    # Clopper and Pearson for few images (n p q < 50): the ends where the binomial tails are 2.5 %.
    assert table[["pgd_low", "pgd_high"]].to_numpy()[0].tolist() == pytest.approx([0.06674, 0.65245], abs=1e-5)
    assert table[["pgd_low", "pgd_high"]].to_numpy()[1].tolist() == pytest.approx([0.33802, 0.66198], abs=1e-5)
    assert table["clean_low"]["dog"] > table["pgd_high"]["dog"]  # 36 of 40 without an attack


def test_the_summary_has_the_papers_metrics(audit: Audit) -> None:
    row = audit.by_attack.loc["pgd"].to_dict()
    assert row["n"] == 50
    assert row["overall"] == pytest.approx(23 / 50)
    assert row["macro"] == pytest.approx(0.4)
    assert (row["worst_class"], row["worst"], row["worst20"]) == ("cat", 0.3, 0.3)
    assert row["cv"] == pytest.approx(0.01)
    assert row["mcd"] == pytest.approx(0.2)
    assert row["nrr"] == pytest.approx(2 * 0.9 * 0.46 / (0.9 + 0.46))
    assert row["hmw"] == pytest.approx(2 * 0.46 * 0.3 / 0.76)
    assert audit.by_attack["overall"].dtype == np.float64


def test_without_clean_predictions_nrr_is_unknown() -> None:
    audit = Audit(Outcomes.from_predictions(LABELS, attacks={"pgd": ATTACKED}, class_names=NAMES))
    assert audit.by_attack["nrr"].isna().all()


def test_the_worst_class_has_the_interval_of_the_lowest_accuracy_and_candidates(audit: Audit) -> None:
    worst = audit.worst_class("pgd")
    assert (worst.name, worst.label, worst.count, worst.accuracy) == ("cat", 0, 10, 0.3)
    assert (worst.low, worst.high) == pytest.approx((0.06674, 0.68194), abs=1e-5)
    assert worst.possibly == ("cat", "dog")
    assert worst.minimum.plug_in == 0.3
    assert (worst.low, worst.high) == lowest_interval(audit.counts("pgd"))
    own = audit.intervals("pgd")
    assert worst.low == pytest.approx(own.low[0])  # its lower end needs no correction
    assert worst.high > own.high[0]  # the upper end is corrected for the two classes
    assert tuple(audit.by_attack.loc["pgd", ["worst", "worst_low", "worst_high"]]) == (0.3, worst.low, worst.high)
    assert worst.minimum.split > 0.3


def test_confusion_describes_its_images(audit: Audit) -> None:
    frame = audit.confusion("pgd")
    assert frame.to_numpy().tolist() == [[3, 7], [20, 20]]
    assert (frame.index.name, frame.columns.name) == ("truth", "prediction")
    assert frame.attrs["shows"] == "predictions made elsewhere"
    success = Audit(Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES, early_stop=True))
    assert "on adversarial examples" in success.confusion("pgd").attrs["shows"]
    assert success.confusion("clean").attrs["shows"] == "predictions on the clean images"


def test_tables_by_group_instead_of_class() -> None:
    outcomes = Outcomes.from_predictions(LABELS, CLEAN, {"pgd": ATTACKED}, NAMES)
    audit = Audit(outcomes.add_groups("site", [0, 1] * 25, ["north", "south"]), group="site")
    assert audit.by_class.index.tolist() == ["north", "south"]
    assert audit.by_class.index.name == "site"
    assert audit.by_attack["worst_class"]["pgd"] in ("north", "south")
    with pytest.raises(ClasswiseError, match="unknown grouping"):
        Audit(outcomes, group="site")


def test_saving_and_loading_preserves_the_audit(audit: Audit, tmp_path: Path) -> None:
    noted = Audit(
        audit.outcomes, (AuditWarning("train-mode", "It was.", 1.0), AuditWarning("x", "y", float("nan"))), name="mine"
    )
    assert noted.save(tmp_path / "audit") == tmp_path / "audit"
    again = Audit.load(tmp_path / "audit")
    pd.testing.assert_frame_equal(again.by_class, audit.by_class)
    assert again.warnings[0] == noted.warnings[0]
    assert np.isnan(again.warnings[1].value)
    assert again.name == "mine"
    with pytest.raises(ClasswiseError, match="already contains an audit"):
        noted.save(tmp_path / "audit")


def test_a_run_folder_keeps_its_audits_apart(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: at\n")
    with pytest.raises(ClasswiseError, match="a run without an audit"):
        Audit.load(tmp_path)
    assert audit.save(tmp_path) == tmp_path / "audits" / "audit"
    assert Audit.load(tmp_path).names == audit.names
    Audit(audit.outcomes, name="second").save(tmp_path)
    with pytest.raises(ClasswiseError, match="several audits"):
        Audit.load(tmp_path)


def test_a_newer_or_damaged_audit_is_refused(audit: Audit, tmp_path: Path) -> None:
    audit.save(tmp_path / "a")
    about = json.loads((tmp_path / "a" / ABOUT).read_text())
    (tmp_path / "a" / ABOUT).write_text(json.dumps({**about, "schema_version": 99}))
    (tmp_path / "a" / CHECKSUMS).unlink()
    with pytest.raises(ClasswiseError, match="schema_version 99 is newer"):
        Audit.load(tmp_path / "a")
    (tmp_path / "a" / ABOUT).write_text("{")
    with pytest.raises(ClasswiseError, match="is damaged"):
        Audit.load(tmp_path / "a")


def test_any_function_of_labels_and_predictions_is_a_metric_by_class_and_group() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 1, 2, 2, 0, 1])
    made = Outcomes.from_predictions(labels, labels, {"pgd": predicted}, ["cat", "dog", "owl", "yak"])
    audit = Audit(made.add_groups("half", [0, 1] * 4, ["even", "odd"]))
    recall = audit.metric(lambda true, found: recall_score(true, found, average="micro"), "pgd")
    assert recall.overall == pytest.approx(4 / 8)
    assert recall.by_group.to_dict() == pytest.approx({"cat": 2 / 3, "dog": 1 / 2, "owl": 1 / 3})
    assert recall.by_group.index.name == "class"
    assert (recall.group_min(), recall.group_max()) == pytest.approx((1 / 3, 2 / 3))
    assert (recall.difference(), recall.ratio()) == pytest.approx((1 / 3, 1 / 2))
    assert (recall.difference("to_overall"), recall.ratio("to_overall")) == pytest.approx((1 / 6, 2 / 3))
    halves = audit.metric(accuracy_score, "pgd", group="half")
    assert halves.by_group.to_dict() == {"even": 0.25, "odd": 0.75}
    assert audit.metric(f1_score_macro, "clean").by_group.tolist() == [1, 1, 1]
    assert audit.metric(accuracy_score).overall == audit.by_attack.loc["all", "overall"]


def test_an_audit_whose_metrics_were_computed_can_be_pickled(audit: Audit) -> None:
    table = audit.by_attack
    again = pickle.loads(pickle.dumps(audit))
    pd.testing.assert_frame_equal(again.by_attack, table)
    assert again.inputs("pgd").confusion().sum() == len(LABELS)


def test_a_metric_is_refused_in_one_line() -> None:
    made = Outcomes.from_predictions([0, 0, 1], [0, 0, 1], {"pgd": [0, 1, 1]})
    part = Audit(Outcomes(made.frame[:-1], made.meta))
    for name in ("all", "pgd", "clean"):
        with pytest.raises(IncompleteError, match="1 of 3 images are not judged") as refused:
            part.metric(accuracy_score, name)
        assert "\n" not in str(refused.value)
    for name, group, message in (("fgsm", None, "unknown attack"), ("pgd", "animal", "unknown grouping")):
        with pytest.raises(ClasswiseError, match=message):
            Audit(made).metric(accuracy_score, name, group)
    with pytest.raises(ClasswiseError, match="metric function returned a ndarray; return a number"):
        Audit(made).metric(lambda true, found: true == found)
    with pytest.raises(ClasswiseError, match="difference"):
        Audit(made).metric(accuracy_score).difference("within")  # type: ignore[arg-type]


def f1_score_macro(true: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    return float(f1_score(true, found, average="macro"))
