"""Predictions, confidences, names and settings that users give: what is wrong is one line, whatever it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import classwise as cw
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.inputs import grouped
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import CHECKSUMS
from classwise.data.images import Images

from . import toys

LABELS = [0, 0, 1, 1]
MASKED = np.ma.masked_array(np.array(LABELS), mask=np.array([True, False, False, False]))
PROBABILITIES = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
NAN = float("nan")


def made(**changes: Any) -> Outcomes:
    given: dict[str, Any] = {"labels": LABELS, "clean": LABELS, "attacks": {"pgd": [0, 1, 1, 0]}}
    return Outcomes.from_predictions(**given | {"class_names": ["cat", "dog"]} | changes)


NOT_LABELS: dict[str, Any] = {
    "NaN": [0.0, 0.0, 1.0, NAN],
    "floats": [0.0, 0.0, 1.0, 1.0],
    "text": ["0", "0", "1", "1"],
    "None": [0, 0, 1, None],
    "NA": pd.array([0, 0, 1, None], dtype="Int64"),
    "NA in a series": pd.Series([0, 0, 1, None], dtype="Int64"),
    "masked": MASKED,
    "booleans": [False, False, True, True],
    "negative": [0, 0, 1, -1],
    "no class": [0, 0, 1, 2],
    "2^40": [0, 0, 1, 2**40],
    "2^70": [0, 0, 1, 2**70],
    "unsigned 2^63": np.array([0, 0, 1, 2**63], dtype=np.uint64),
    "lists": [[0], [0], [1], [1]],
    "ragged lists": [[0], [0, 1], [1], [1]],
    "a number": 3,
    "nothing": None,
    "a mapping": {"a": 0},
    "a meta tensor": torch.zeros(4, dtype=torch.int64, device="meta"),
}


@pytest.mark.parametrize("what", NOT_LABELS)
@pytest.mark.filterwarnings("error")
def test_what_is_not_a_class_for_each_image_is_refused(what: str) -> None:
    values = NOT_LABELS[what]
    with pytest.raises(ClasswiseError, match="labels"):
        made(labels=values)
    with pytest.raises(ClasswiseError, match="predictions of 'pgd'"):
        made(attacks={"pgd": values})
    with pytest.raises(ClasswiseError, match="grouping 'site'"):
        made().add_groups("site", values, ["north", "south"])
    if what not in ("booleans", "a meta tensor"):  # torch's own checks
        with pytest.raises(ClasswiseError):
            Images(torch.zeros(4, 1, 2, 2), values, ["cat", "dog"])


@pytest.mark.parametrize(
    "values",
    [
        LABELS,
        np.array(LABELS, np.uint8),
        torch.tensor(LABELS),
        pd.Series(LABELS, dtype="Int64"),
        np.ma.masked_array(np.array(LABELS)),
    ],
    ids=["list", "uint8", "tensor", "nullable", "masked array without mask"],
)
def test_integers_of_any_library_are_labels(values: Any) -> None:
    assert made(labels=values, clean=values).labels.tolist() == LABELS


@pytest.mark.parametrize("large", [10**5, 10**9, 2**40, 2**62])
def test_a_huge_class_number_without_names_is_refused_at_once(large: int) -> None:
    for changes in ({"labels": [0, 0, 1, large]}, {"clean": [0, 0, 1, large]}, {"attacks": {"a": [large] * 4}}):
        with pytest.raises(ClasswiseError, match="classes for 4 images; the limit is"):
            made(class_names=None, **changes)


NOT_CONFIDENCES: dict[str, tuple[Any, str]] = {
    "another argmax": (PROBABILITIES[:, ::-1], "image 0 is predicted as class 0, but class 1 has the largest"),
    "NaN": (np.where(PROBABILITIES == 0.2, NAN, PROBABILITIES), "row of image 2 is not a probability"),
    "infinity": (np.where(PROBABILITIES == 0.2, np.inf, PROBABILITIES), "row of image 2 is not a probability"),
    "logits": (np.log(PROBABILITIES), "row of image 0 is not a probability"),
    "percent": (100 * PROBABILITIES, "its sum is 100"),
    "halves": (PROBABILITIES / 2, "its sum is 0.5"),
    "negative": ([[1.5, -0.5]] * 4, "its minimum -0.5"),
    "text": ([["a", "b"]] * 4, "expected numbers"),
    "masked": (np.ma.array(PROBABILITIES, mask=PROBABILITIES == 0.2), "masked"),
    "ragged": ([[0.1], [0.2, 0.8]], "expected numbers"),
    "too few": (PROBABILITIES[:3], r"expected \(4, 2\), got \(3, 2\)"),
}


@pytest.mark.parametrize("what", NOT_CONFIDENCES)
def test_confidences_that_contradict_the_predictions_are_refused(what: str) -> None:
    values, message = NOT_CONFIDENCES[what]
    with pytest.raises(ClasswiseError, match=f"confidences of 'clean': .*{message}"):
        made(confidences={"clean": values})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float64, np.float32, np.float16]))
def test_softmax_outputs_agree_with_their_argmax(seed: int, kind: Any) -> None:
    """Also rounded ones; the runner-up is another class than the predicted one, also of equal confidences."""
    random = np.random.default_rng(seed)
    logits = random.integers(0, 3, (5, 3)) if seed % 2 else random.normal(0, 5, (5, 3))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(kind)
    predicted = 2 - logits[:, ::-1].argmax(axis=1)  # the last of equal ones
    table = Outcomes.from_predictions([0, 1, 2, 0, 1], predicted, confidences={"clean": probabilities})
    rows = table.rows("clean")
    assert rows["p_predicted"].tolist() == probabilities.max(axis=1).tolist()
    assert (rows["runner_up"] != rows["prediction"]).all()


@pytest.mark.parametrize(
    "label", [None, 3, NAN, "", "  ", "\ud800", ("a",), "clean", "all ", "all", "n", "low", "high", "class"]
)
def test_labels_of_attacks_that_tables_cannot_show_are_refused(label: Any) -> None:
    for changes in ({}, {"clean": None}):
        with pytest.raises(ClasswiseError, match="attack label"):
            made(attacks={label: LABELS}, **changes)
    with pytest.raises(ClasswiseError, match="unknown attack of confidences"):
        made(confidences={"other" if label == "clean" else label: PROBABILITIES})


@pytest.mark.parametrize(
    "label", ["t-best", "t-union", "pgd_low", "pgd_high", "all_judged", "clean_cumulative", "pgd "]
)
def test_labels_of_attacks_that_another_name_has_are_refused(label: str) -> None:
    attacks = dict.fromkeys(("pgd", "t[2]", "t[5]", label), LABELS)
    with pytest.raises(ClasswiseError, match=r"is reserved|but for blanks"):
        made(attacks=attacks, families={"t": ("t[2]", "t[5]")})


NOT_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"bogus": 1}, "unknown field of the metadata 'bogus'"),
    "near": ({"treat": "Linf:1"}, "did you mean 'threat'"),
    "images": ({"images": 5}, "unknown field of the metadata 'images'"),
    "number as threat": ({"threat": 8}, "threat = 8: must be text"),
    "radius as threat": ({"threat": 8 / 255}, "threat = 0.03"),
    "threat without radius": ({"threat": "Linf"}, "has no radius"),
    "radius of text": ({"threat": "L2:abc"}, "radius must be a number"),
    "negative radius": ({"threat": "Linf:-1"}, "radius must be a number from 0"),
    "blank threat": ({"threat": " "}, "is blank"),
    "model": ({"model": 5}, "name of the model: 5 is not text"),
    "surrogate in the model": ({"model": "net\udc80"}, "name of the model: .* lone surrogate"),
    "surrogate in the data": ({"data": "\ud800"}, "name of the data: .* lone surrogate"),
    "seed": ({"seed": 1.5}, "seed = 1.5"),
    "early stop": ({"early_stop": "no"}, "early_stop = 'no'"),
    "cascade": ({"cascade": 2}, "cascade = 2"),
    "superclass out of range": ({"superclasses": [0, 2], "superclass_names": ["a", "b"]}, "superclasses: 2 is not one"),
    "superclasses without names": ({"superclasses": [0, 1]}, "superclasses: 0 is not one"),
    "superclass of NaN": (
        {"superclasses": [0, NAN], "superclass_names": ["a", "b"]},
        "superclasses: expected integers",
    ),
    "superclass names": (
        {"superclasses": [0, 1], "superclass_names": ["a", "a"]},
        "superclass names: 'a' .*occurs twice",
    ),
    "family of no attack": ({"families": {"t": ("pgd", "cw")}}, "unknown attack in the metadata: 'cw'"),
}


@pytest.mark.parametrize("what", NOT_FIELDS)
def test_fields_of_the_metadata_are_checked(what: str) -> None:
    changes, message = NOT_FIELDS[what]
    with pytest.raises(ClasswiseError, match=message):
        made(**changes)


NOT_NAMES: tuple[Any, ...] = (
    ["a", None],
    ["a", NAN],
    ["a", pd.NA],
    [1, 2],
    ["a", "a"],
    ["a", "a "],
    ["a", ""],
    ["\ud800", "a"],
    "ab",
    {"a": 0, "b": 1},
)


@pytest.mark.parametrize("names", NOT_NAMES)
def test_names_are_checked_wherever_they_enter(names: Any) -> None:
    """Classes, superclasses and groups, of predictions, of metadata and of images."""
    x, y = torch.zeros(4, 1, 2, 2), torch.tensor(LABELS)
    for enter in (
        lambda: made(class_names=names),
        lambda: made(superclasses=[0, 1], superclass_names=names),
        lambda: made().add_groups("site", LABELS, names),
        lambda: Meta(class_names=names, attacks={"clean": None}),
        lambda: Images(x, y, names),
        lambda: Images(x, y, superclasses=[0, 1], superclass_names=names),
        lambda: Images(x, y).with_column("site", y, names),
    ):
        with pytest.raises(
            ClasswiseError, match=r"is not text|is blank|occurs twice|but for blanks|surrogate|not a list"
        ):
            enter()


@pytest.mark.parametrize("name", [None, 3, "", "\ud800", "label", "attack", "class", "superclass", "n", "pgd", "all"])
def test_names_of_groupings_that_tables_use_are_refused(name: Any) -> None:
    with pytest.raises(ClasswiseError, match="grouping"):
        made().add_groups(name, LABELS, ["a", "b"])


MISSING: tuple[Any, ...] = ["u", None, "u", "v"], ["u", NAN, "u", "v"], [1.0, NAN, 1.0, 2.0], MASKED


@pytest.mark.parametrize("values", [*MISSING, [1, "1", 1, 2], ["u", " ", "u", "v"], ["u", "u ", "u", "v"]])
def test_values_of_a_grouping_are_checked(values: Any) -> None:
    images = Images(torch.zeros(4, 1, 2, 2), torch.tensor(LABELS))
    with pytest.raises(ClasswiseError, match=r"missing|different types|is blank|but for blanks"):
        grouped(images, values)


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a verdict that contradicts the prediction": ({"correct": [True] * 8}, "image 1 under 'pgd': correct is True, but"),
    "a verdict of text": ({"correct": ["False"] * 8}, "'correct' .* expected bool"),
    "a missing verdict": ({"correct": [None] * 8}, "'correct' .* expected bool"),
    "labels between classes": ({"label": [0.5] * 8}, "'label' .* expected int64"),
    "missing labels": ({"label": [NAN] * 8}, "'label' .* expected int64"),
    "predictions of no class": ({"prediction": [7] * 8}, "predictions: 7 is not one of the 2 classes"),
    "text as index": ({"index": list("abcdefgh")}, "'index' .* expected int64"),
    "no attack": ({"attack": [None] * 8}, "unknown attack in the table"),
    "another label": (
        {"label": [0, 0, 1, 1, 0, 0, 1, 0], "correct": [True] * 4 + [True, False, True, True]},
        "image 3 has label 1 in one row and 0 in another",
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_contradict_themselves_are_refused(what: str) -> None:
    changes, message = ROWS[what]
    table = made()
    with pytest.raises(ClasswiseError, match=message):
        Outcomes(table.frame.assign(**changes), table.meta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": ["cat", "cat"]}, "class names: 'cat' .* occurs twice"),
        ({"class_names": ["cat", None]}, "class names: None is not text"),
        ({"attacks": {"clean": None, "pgd": None, "all": None}}, "'all' is reserved"),
        ({"threat": 8}, "threat: 8 is not text"),
        ({"bogus": 1}, "metadata has no field 'bogus'"),
    ],
)
def test_files_with_such_faults_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    made().save(tmp_path)
    path = tmp_path / "part-00000.parquet"
    content = pq.read_table(path)
    about = json.loads(content.schema.metadata[b"classwise"]) | changes
    pq.write_table(content.replace_schema_metadata({b"classwise": json.dumps(about).encode()}), path)
    (tmp_path / CHECKSUMS).unlink()
    with pytest.raises(ClasswiseError, match=f"part-00000.parquet: .*{message}"):
        Outcomes.load(tmp_path)


GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2),
    max_leaves=8,
)
FIELDS = [field.name for field in dataclasses.fields(Meta)]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["labels", "clean", "attacks", "confidences", "class_names", *FIELDS]), GARBAGE)
@pytest.mark.filterwarnings("ignore")
def test_no_value_of_any_argument_gives_a_traceback(argument: str, value: Any) -> None:
    try:
        table = made(**{argument: value})
    except ClasswiseError:
        return
    assert len(set(table.names)) == len(table.names)
    assert len(set(table.class_names)) == table.num_classes
    assert Meta.from_json(table.meta.to_json(), "x") == table.meta


def test_columns_of_the_data_with_a_taken_name_are_no_groupings() -> None:
    """A data set may have a column ``index`` or ``label``; it must not replace that of the outcomes."""
    data = toys.images(16)
    for name in ("index", "label", "n", "site"):
        data = data.with_column(name, torch.arange(16) % 2, ["even", "odd"])
    audit = cw.audit(toys.model(), data, "Linf:0.1", ["fgsm"], group="site", guards="off", batch_size=32)
    assert [*audit.outcomes.meta.groups] == ["site"]
    assert audit.outcomes.index.tolist() == list(range(16))
    for group in ("index", "label", "n"):
        with pytest.raises(ClasswiseError, match=f"grouping '{group}': the name is taken"):
            cw.audit(toys.model(), data, "Linf:0.1", ["fgsm"], group=group)
