"""Predictions of outcomes: confusion under several attacks, named rows, fairlearn's frame, and short texts."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError

LABELS = [0, 0, 0, 1, 1, 2]
CLEAN = [0, 1, 0, 1, 1, 2]
A = [2, 2, 0, 1, 0, 2]
B = [1, 2, 1, 1, 2, 2]
NAMES = ["cat", "dog", "owl"]


def outcomes(**meta: Any) -> Outcomes:
    return Outcomes.from_predictions(LABELS, CLEAN, {"a": A, "b": B}, NAMES, **meta)


@pytest.fixture
def fairlearn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the package: its frame is the keyword arguments that it receives."""
    module: Any = ModuleType("fairlearn.metrics")
    module.MetricFrame = dict
    module.count = len
    monkeypatch.setitem(sys.modules, "fairlearn", ModuleType("fairlearn"))
    monkeypatch.setitem(sys.modules, "fairlearn.metrics", module)


def test_under_all_attacks_the_first_incorrect_prediction_counts() -> None:
    audit = Audit(outcomes())
    frame = audit.confusion("all")
    assert frame.to_numpy().tolist() == [[0, 2, 1], [1, 1, 0], [0, 0, 1]]
    assert frame.equals(audit.confusion())
    assert frame.attrs["shows"] == "the first incorrect prediction of each image, in the order of the attacks"
    assert np.diag(frame).tolist() == audit.counts("all").correct.tolist()


def test_under_a_family_only_its_members_count() -> None:
    table = outcomes(families={"f": ("a", "b")})
    assert table.confusion("f-union").tolist() == [[0, 1, 2], [1, 1, 0], [0, 0, 1]]
    assert table.confusion("f-best").tolist() == table.confusion("b").tolist()


def test_confusion_of_an_incomplete_table_is_refused() -> None:
    table = outcomes()
    cut = Outcomes(table.frame[(table.frame["attack"] != "b") | (table.frame["index"] != 5)], table.meta)
    for name in ("b", "all"):
        with pytest.raises(IncompleteError):
            cut.confusion(name)


def test_rows_with_names() -> None:
    frame = Audit(outcomes()).to_pandas()
    assert len(frame) == 18
    row = frame[(frame["attack"] == "a") & (frame["index"] == 0)].iloc[0]
    assert (row["class"], row["predicted"], row["correct"]) == ("cat", "owl", False)
    table = outcomes()
    table.frame.loc[0, "prediction"] = pd.NA
    assert Audit(table).to_pandas()["predicted"].isna().sum() == 1


@pytest.mark.usefixtures("fairlearn")
def test_a_frame_of_fairlearn() -> None:
    made = outcomes().to_metricframe("all")
    assert list(made["y_true"]) == LABELS
    assert list(made["y_pred"]) == [2, 1, 1, 1, 0, 2]
    assert list(made["sensitive_features"]) == ["cat", "cat", "cat", "dog", "dog", "owl"]
    assert made["sensitive_features"].name == "class"
    assert made["metrics"]["accuracy"](made["y_true"], made["y_pred"]) == pytest.approx(2 / 6)
    superclass = outcomes(superclasses=(0, 0, 1), superclass_names=("pet", "wild"))
    made = superclass.to_metricframe("a", group="superclass", metrics={"n": len})
    assert list(made["sensitive_features"]) == ["pet"] * 5 + ["wild"]
    assert list(made["y_pred"]) == A
    assert made["metrics"] == {"n": len}


@pytest.mark.usefixtures("fairlearn")
def test_images_that_a_cascade_skipped_have_the_earlier_prediction() -> None:
    table = outcomes(cascade=True)
    skipped = (table.frame["attack"] == "b") & table.frame["index"].isin([0, 1, 4])
    table.frame.loc[skipped, "prediction"] = pd.NA
    table.frame.loc[skipped, "correct"] = False
    assert list(table.to_metricframe("b")["y_pred"]) == [2, 1, 1, 1, 0, 2]
    assert table.confusion("b").tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1]]  # only images that were attacked


@pytest.mark.usefixtures("fairlearn")
def test_an_image_without_a_prediction() -> None:
    table = outcomes()
    table.frame.loc[(table.frame["attack"] == "a") & (table.frame["index"] == 4), "prediction"] = pd.NA
    assert list(table.to_metricframe("a")["y_pred"]) == [2, 2, 0, 1, -1, 2]
    assert table.confusion("a").sum() == 5


def test_fairlearn_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairlearn", None)
    with pytest.raises(ClasswiseError, match=r'fairlearn is not installed.*pip install "classwise\[fairlearn\]"'):
        outcomes().to_metricframe()


def test_texts_are_short() -> None:
    audit = Audit(outcomes(model="net", threat="Linf:8/255"), name="mine")
    text = repr(audit)
    assert text == (
        "<Audit 'mine': net; Linf:8/255; 6 images; clean, a, b; accuracy under all 33.3 %, worst cat 0.0 %; 0 warnings>"
    )
    assert repr(audit.outcomes) == "<Outcomes: 6 images, 3 classes, clean, a, b>"
    cut = Outcomes(audit.outcomes.frame.iloc[:-1], audit.outcomes.meta)
    assert repr(cut).endswith(", incomplete>")
    assert "incomplete: 1 of 6 images not judged" in repr(Audit(cut))
