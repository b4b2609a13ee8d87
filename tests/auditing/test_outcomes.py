"""The outcomes table: counts, predictions, files, joins, and whatever users may give for it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
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
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import CHECKSUMS
from classwise.data.images import Images
from tests.auditing import toys
from tests.refusals import check_refused

LABELS = [0, 0, 1, 1, 2, 2]
CLEAN = [0, 0, 1, 1, 2, 0]
ATTACK_A = [0, 1, 1, 2, 2, 0]
ATTACK_B = [1, 0, 1, 1, 2, 2]
NAMES = ["cat", "dog", "elk"]


@pytest.fixture
def table() -> Outcomes:
    return Outcomes.from_predictions(LABELS, CLEAN, {"a": ATTACK_A, "b": ATTACK_B}, NAMES)


def test_clean_is_an_attack_and_all_is_the_and(table: Outcomes) -> None:
    assert table.attacks == ("clean", "a", "b")
    assert table.names == ("clean", "a", "b", "all")
    assert table.correct("clean").tolist() == [True, True, True, True, True, False]
    assert table.correct("b").tolist() == [False, True, True, True, True, True]
    assert table.correct("all").tolist() == [False, False, True, False, True, False]
    assert table.counts("all").correct.tolist() == [0, 1, 1]


def test_a_row_names_the_first_attack_that_succeeded(table: Outcomes) -> None:
    successes = table.rows("a").set_index("index")["first_success"]
    assert successes[1] == "a"
    assert successes[5] == "clean"
    assert pd.isna(successes[0])


def test_confusion_counts_truth_by_prediction(table: Outcomes) -> None:
    assert table.confusion("a").tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    check_refused("'all' combines several attacks; choose one of clean, a, b", table.rows, "all")


def test_confidences_fill_their_columns() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.5, 0.1, 0.4]])
    table = Outcomes.from_predictions([0, 1], [0, 0], class_names=NAMES, confidences={"clean": probabilities})
    rows = table.rows("clean")
    assert rows["p_label"].tolist() == [0.7, 0.1]
    assert rows["p_predicted"].tolist() == [0.7, 0.5]
    assert rows["runner_up"].tolist() == [1, 2]
    assert rows["confidence_variance"].tolist() == pytest.approx(probabilities.var(axis=1).tolist())


def test_class_names_default_to_numbers() -> None:
    assert Outcomes.from_predictions([0, 2], attacks={"a": [3, 2]}).class_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 1], "clean": [0]}, "1 predictions of 'clean' for 2 labels"),
        ({"labels": [0, 5], "clean": [0, 1], "class_names": NAMES}, "labels: 5 is not one of the 3 classes"),
        ({"labels": [0, 1], "clean": [0, -1], "class_names": NAMES}, "predictions of 'clean': -1 is not one"),
        ({"labels": [0, 1]}, "no predictions"),
        ({"labels": [0], "clean": [0], "confidences": {"clean": [[1.0]]}, "class_names": NAMES}, "expected .1, 3."),
    ],
)
def test_bad_predictions_are_one_line(arguments: dict[str, object], message: str) -> None:
    check_refused(message, Outcomes.from_predictions, **arguments)


def test_unknown_attack_names_the_nearest(table: Outcomes) -> None:
    check_refused("did you mean 'clean'", table.correct, "claen")


def test_saved_and_loaded_it_is_the_same(table: Outcomes, tmp_path: Path) -> None:
    grouped = table.add_groups("site", [0, 0, 1, 1, 0, 1], ["north", "south"])
    grouped.save(tmp_path / "outcomes")
    for place in (tmp_path, tmp_path / "outcomes", tmp_path / "outcomes" / "part-00000.parquet"):
        again = Outcomes.load(place)
        pd.testing.assert_frame_equal(again.frame, grouped.frame)
        assert again.meta == grouped.meta
    check_refused("already contains outcomes", table.save, tmp_path / "outcomes")


def test_a_newer_schema_is_refused_by_name(table: Outcomes, tmp_path: Path) -> None:
    table.save(tmp_path)
    path = tmp_path / "part-00000.parquet"
    content = pq.read_table(path)
    about = json.loads(content.schema.metadata[b"classwise"])
    about["schema_version"] = SCHEMA_VERSIONS["outcomes"] + 1
    pq.write_table(content.replace_schema_metadata({b"classwise": json.dumps(about).encode()}), path)
    (tmp_path / CHECKSUMS).unlink()
    check_refused(f"schema_version {SCHEMA_VERSIONS['outcomes'] + 1} is newer", Outcomes.load, tmp_path)


def test_damaged_invalid_and_missing_files_are_one_line(table: Outcomes, tmp_path: Path) -> None:
    check_refused(r"contains no outcomes; .* classwise audit MODEL --data DATA --out", Outcomes.load, tmp_path)
    (tmp_path / "curve").mkdir()
    (tmp_path / "curve" / "search.json").write_text("{}")
    check_refused(
        r"is the folder of a curve or of a worst-class search; expected an audit", Outcomes.load, tmp_path / "curve"
    )
    table.save(tmp_path)
    path = tmp_path / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:200])
    check_refused(r"part-00000\.parquet is damaged: its SHA-256", Outcomes.load, tmp_path)
    (tmp_path / CHECKSUMS).unlink()
    check_refused("not a valid Parquet file; give the folder of an audit", Outcomes.load, tmp_path)
    (tmp_path / "outcomes").mkdir()
    (tmp_path / "outcomes" / path.name).write_bytes(path.read_bytes())
    check_refused("remove it and resume the audit", Outcomes.load, tmp_path)
    (tmp_path / "outcomes" / path.name).unlink()
    (tmp_path / "outcomes").rmdir()
    notes = tmp_path / "notes.txt"
    notes.write_text("nothing that can be made again")
    check_refused("give the folder of an audit, a run with one audit, or a file of outcomes", Outcomes.load, notes)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    check_refused("not a file of outcomes written by classwise", Outcomes.load, tmp_path)


def test_tables_of_the_same_images_join() -> None:
    mine = Outcomes.from_predictions(LABELS, CLEAN, {"a": ATTACK_A}, NAMES).add_groups(
        "half", [0, 0, 0, 1, 1, 1], ["x", "y"]
    )
    joined = mine.join(Outcomes.from_predictions(LABELS, CLEAN, {"b": ATTACK_B}, NAMES))
    assert joined.attacks == ("clean", "a", "b")
    assert joined.correct("all").tolist() == [False, False, True, False, True, False]
    assert joined.counts("b", "half").correct.tolist() == [2, 3]


def test_groups_replace_classes(table: Outcomes) -> None:
    grouped = table.add_groups("site", [0, 1, 0, 1, 0, 1], ["north", "south"])
    assert grouped.counts("all", "site").correct.tolist() == [2, 0]
    check_refused("name is taken", grouped.add_groups, "site", [0] * 6, ["x"])
    check_refused("3 ids for 6 images", table.add_groups, "other", [0, 0, 0], ["x"])
    check_refused("unknown grouping", table.counts, "all", "sight")


def test_superclasses_are_a_grouping() -> None:
    table = Outcomes.from_predictions(
        LABELS, CLEAN, class_names=NAMES, superclasses=(0, 0, 1), superclass_names=("pets", "wild")
    )
    assert table.counts("clean", "superclass").count.tolist() == [4, 2]


def test_a_family_has_its_best_and_its_union() -> None:
    table = Outcomes.from_predictions(
        LABELS, CLEAN, {"t[2]": ATTACK_A, "t[5]": ATTACK_B}, NAMES, families={"t": ("t[2]", "t[5]")}
    )
    assert table.names == ("clean", "t[2]", "t[5]", "t-best", "t-union", "all")
    assert table.best("t") == "t[2]"  # 3 of 6 are robust, against 5 of 6
    assert table.correct("t-best").tolist() == table.correct("t[2]").tolist()
    assert table.correct("t-union").tolist() == [False, False, True, False, True, False]
    assert table.confusion("t-best").tolist() == table.confusion("t[2]").tolist()


def test_rows_must_be_unique(table: Outcomes) -> None:
    check_refused(
        "image index 0 occurs twice under 'clean'", Outcomes, pd.concat([table.frame, table.frame.head(1)]), table.meta
    )


def test_missing_rows_are_reported(table: Outcomes) -> None:
    part = Outcomes(table.frame[(table.frame["attack"] != "b") | (table.frame["index"] < 2)], table.meta)
    assert part.missing == {"b": 4}
    assert part.correct("a").tolist() == table.correct("a").tolist()
    # Images 3 and 5 are misclassified under an attack that did judge them.
    assert part.verdicts("all").tolist() == [0, 0, -1, 0, -1, 0]
    for ask in (part.correct, part.counts, part.rows):
        with pytest.raises(IncompleteError, match=r"4 of 6 images are not judged by every attack \(not judged: b 4\)"):
            ask("b")


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30), st.randoms())
def test_counts_do_not_depend_on_the_order_of_rows(triples: list[tuple[int, int, int]], random: object) -> None:
    labels, one, two = zip(*triples, strict=True)
    table = Outcomes.from_predictions(labels, one, {"a": two}, list("abcd"))
    shuffled = Outcomes(table.frame.sample(frac=1, random_state=len(triples)), table.meta)
    pd.testing.assert_frame_equal(shuffled.frame, table.frame)
    survivors = [label for label, first, second in triples if label == first == second]
    assert table.counts("all").correct.tolist() == [survivors.count(label) for label in range(4)]


SIX_LABELS = [0, 0, 0, 1, 1, 2]
SIX_CLEAN = [0, 1, 0, 1, 1, 2]
FIRST = [2, 2, 0, 1, 0, 2]
SECOND = [1, 2, 1, 1, 2, 2]
PETS = ["cat", "dog", "owl"]


def outcomes(**meta: Any) -> Outcomes:
    return Outcomes.from_predictions(SIX_LABELS, SIX_CLEAN, {"a": FIRST, "b": SECOND}, PETS, **meta)


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
    assert list(made["y_true"]) == SIX_LABELS
    assert list(made["y_pred"]) == [2, 1, 1, 1, 0, 2]
    assert list(made["sensitive_features"]) == ["cat", "cat", "cat", "dog", "dog", "owl"]
    assert made["sensitive_features"].name == "class"
    assert made["metrics"]["accuracy"](made["y_true"], made["y_pred"]) == pytest.approx(2 / 6)
    superclass = outcomes(superclasses=(0, 0, 1), superclass_names=("pet", "wild"))
    made = superclass.to_metricframe("a", group="superclass", metrics={"n": len})
    assert list(made["sensitive_features"]) == ["pet"] * 5 + ["wild"]
    assert list(made["y_pred"]) == FIRST
    assert made["metrics"] == {"n": len}


@pytest.mark.usefixtures("fairlearn")
def test_images_that_a_cascade_skipped_have_the_earlier_prediction() -> None:
    table = outcomes(cascade=True)
    skipped = (table.frame["attack"] == "b") & table.frame["index"].isin([0, 1, 4])
    table.frame.loc[skipped, "prediction"] = pd.NA
    table.frame.loc[skipped, "correct"] = False
    assert list(table.to_metricframe("b")["y_pred"]) == [2, 1, 1, 1, 0, 2]
    assert table.confusion("b").tolist() == [[0, 2, 1], [1, 1, 0], [0, 0, 1]]
    assert table.confusion("b").diagonal().tolist() == table.counts("b").correct.tolist(), "both are cumulative"


@pytest.mark.usefixtures("fairlearn")
def test_an_image_without_a_prediction() -> None:
    table = outcomes()
    table.frame.loc[(table.frame["attack"] == "a") & (table.frame["index"] == 4), "prediction"] = pd.NA
    assert list(table.to_metricframe("a")["y_pred"]) == [2, 2, 0, 1, -1, 2]
    assert table.confusion("a").sum() == 5


def test_fairlearn_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairlearn", None)
    check_refused("fairlearn is not installed; run pip install 'fairlearn>=", outcomes().to_metricframe)


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


JOINED_LABELS = [0, 0, 0, 1, 1, 1]
JOINED_CLEAN = [0, 0, 1, 1, 1, 1]
PGD_FOUND, CW_FOUND = [0, 1, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0]
HASH = "ab" * 32


def joinable(attack: str = "pgd", predicted: list[int] | None = None, **changes: Any) -> Outcomes:
    given = {
        "labels": JOINED_LABELS,
        "clean": JOINED_CLEAN,
        "attacks": {attack: PGD_FOUND if predicted is None else predicted},
        "class_names": ["cat", "dog"],
        "threat": "Linf:8/255",
    }
    return Outcomes.from_predictions(**given | changes)


def other(**changes: Any) -> Outcomes:
    return joinable("cw", CW_FOUND, **changes)


def with_radii(outcomes: Outcomes, radii: list[float]) -> Outcomes:
    radius = outcomes.frame["index"].map(dict(enumerate(radii)))
    frame = outcomes.frame.assign(epsilon=radius.where(outcomes.frame["attack"] != "clean", 0.0))
    return Outcomes(frame, dataclasses.replace(outcomes.meta, threat="Linf:per-image", norm="Linf"))


RADII = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
DIFFERENT: dict[str, Callable[[], tuple[Outcomes, Outcomes, str]]] = {
    "radius": lambda: (joinable(), other(threat="Linf:4/255"), "differ in threat: Linf:8/255 and Linf:4/255"),
    "norm": lambda: (joinable(), other(threat="L2:1"), "differ in threat: Linf:8/255 and L2:1"),
    "threat in words": lambda: (
        joinable(),
        other(threat="patch of 5x5"),
        "differ in threat: Linf:8/255 and patch of 5x5",
    ),
    "one threat": lambda: (joinable(), other(threat=None), "differ in threat: Linf:8/255 and not stated"),
    "radii of images": lambda: (
        with_radii(joinable(), RADII),
        with_radii(other(), RADII[::-1]),
        "differ in threat: .*per-image",
    ),
    "radius of one image": lambda: (
        with_radii(joinable(), RADII),
        with_radii(other(), [*RADII[:5], 0.07]),
        "differ in threat",
    ),
    "clean predictions": lambda: (
        joinable(),
        other(clean=JOINED_LABELS),
        r"clean predictions of 1 of 6 images \(image 2\).*: 1 and 0",
    ),
    "all clean": lambda: (
        joinable(),
        other(clean=[1 - label for label in JOINED_CLEAN]),
        "clean predictions of 6 of 6 images",
    ),
    "cascade": lambda: (joinable(), other(cascade=True), "cascade"),
    "cascade first": lambda: (joinable(cascade=True), other(), "cascade"),
    "two cascades": lambda: (joinable(cascade=True), other(cascade=True), "cascade"),
    "early stop": lambda: (
        joinable(early_stop=True),
        other(early_stop=False),
        "differ in early stop: an attack stops at its first success and an attack runs all its steps",
    ),
    "model": lambda: (joinable(model="a"), other(model="b"), "differ in model: 'a' and 'b'"),
    "model hash": lambda: (joinable(model_hash=HASH), other(model_hash="cd" * 32), "differ in model hash"),
    "data": lambda: (joinable(data="a"), other(data="b"), "differ in data: 'a' and 'b'"),
    "split": lambda: (joinable(split="train"), other(split="test"), "differ in split"),
    "class order": lambda: (
        joinable(),
        other(class_names=["dog", "cat"]),
        "differ in class names: cat, dog and dog, cat",
    ),
    "labels": lambda: (joinable(), other(labels=[1, *JOINED_LABELS[1:]]), "different images or labels"),
    "attack": lambda: (joinable(), joinable(), "attack 'pgd' is in both"),
    "blank": lambda: (joinable(), joinable("pgd "), "but for blanks"),
    "family": lambda: (
        joinable(attacks={"a": PGD_FOUND, "b": PGD_FOUND}, families={"t": ("a", "b")}),
        joinable(attacks={"c": PGD_FOUND, "d": PGD_FOUND}, families={"t": ("c", "d")}),
        "family of attacks 't' is in both",
    ),
    "derived name": lambda: (
        joinable(attacks={"a": PGD_FOUND, "b": PGD_FOUND}, families={"t": ("a", "b")}),
        joinable("t-union"),
        "'t-union' is reserved",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_tables_that_contradict_each_other_do_not_join(what: str) -> None:
    first, second, message = DIFFERENT[what]()
    check_refused(message, first.join, second)
    check_refused(r"cannot be joined|is in both|is reserved|but for blanks", second.join, first)


EQUAL: dict[str, Callable[[], tuple[Outcomes, Outcomes]]] = {
    "nothing stated": lambda: (joinable(threat=None), other(threat=None)),
    "threat in another form": lambda: (joinable(threat="linf:8/255"), other(threat="cifar10")),
    "radii of images": lambda: (with_radii(joinable(), RADII), with_radii(other(), RADII)),
    "one clean pass": lambda: (joinable(), other(clean=None)),
    "one model name": lambda: (joinable(model="net"), other()),
    "two paths of one model": lambda: (joinable(model="a", model_hash=HASH), other(model="b", model_hash=HASH)),
    "one early stop": lambda: (joinable(early_stop=True), other()),
}


@pytest.mark.parametrize("what", EQUAL)
def test_tables_that_agree_join(what: str) -> None:
    first, second = EQUAL[what]()
    for left, right in ((first, second), (second, first)):
        joined = left.join(right)
        assert joined.names[0] == "clean"
        assert {*joined.names} == {"clean", "pgd", "cw", "all"}
        np.testing.assert_array_equal(joined.correct("all"), left.correct("all") & right.correct("all"))


def test_settings_that_differ_by_attack_are_unknown_in_the_result() -> None:
    first = joinable(seed=1, batch_size=64, precision={"compute": "float32"}, early_stop=True, notes=("a",))
    joined = first.join(other(seed=2, batch_size=64, precision={"compute": "bfloat16"}, notes=("b", "a"))).meta
    assert (joined.seed, joined.batch_size, joined.precision, joined.early_stop) == (None, 64, {}, None)
    assert joined.notes == ("a", "b")
    assert joined.threat == "Linf:8/255"


def test_the_settings_of_a_clean_pass_do_not_count() -> None:
    """A table without attacks has no threat, and joins a cascade."""
    clean = joinable(attacks={}, threat="Linf:0", seed=5)
    attacked = other(cascade=True, early_stop=True, seed=3)
    for joined in (clean.join(attacked), attacked.join(clean)):
        assert joined.meta == attacked.meta
        pd.testing.assert_frame_equal(joined.frame, attacked.frame)


def test_an_attack_that_one_table_ran_is_applicable() -> None:
    lacking = joinable(attacks={"pgd": PGD_FOUND})
    meta = dataclasses.replace(lacking.meta, attacks={**lacking.meta.attacks, "cw": None}, not_applicable=("cw",))
    joined = Outcomes(lacking.frame, meta).join(other())
    assert joined.meta.not_applicable == ()
    assert joined.attacks == ("clean", "pgd", "cw")


def test_a_table_of_attacks_within_different_balls_is_refused() -> None:
    one, two = with_radii(joinable(), RADII), with_radii(other(), [*RADII[:5], 0.07])
    frame = pd.concat([one.frame, two.frame[two.frame["attack"] == "cw"]])
    meta = dataclasses.replace(one.meta, attacks={**one.meta.attacks, "cw": None})
    check_refused(r"image 5 has the radius 0\.06 under one attack and 0\.07 under another", Outcomes, frame, meta)


def test_rounding_may_change_a_clean_prediction_of_one_model() -> None:
    """On a GPU, one of two hundred; more, or any of models that are not known to be one, are other models."""
    labels = np.arange(200) % 2

    def audited(attack: str, changed: int, digest: str) -> Outcomes:
        clean = np.where(np.arange(200) < changed, 1 - labels, labels)
        return Outcomes.from_predictions(
            labels, clean, {attack: labels}, ["cat", "dog"], threat="Linf:8/255", model_hash=digest
        )

    joined = audited("pgd", 0, HASH).join(audited("cw", 2, HASH))
    assert joined.counts("clean").correct.tolist() == [100, 100]
    for changed, digest in ((3, HASH), (1, "")):
        check_refused(
            f"clean predictions of {changed} of 200 images",
            audited("pgd", 0, digest).join,
            audited("cw", changed, digest),
        )


FOUR_LABELS = [0, 0, 1, 1]
MASKED = np.ma.masked_array(np.array(FOUR_LABELS), mask=np.array([True, False, False, False]))
PROBABILITIES = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
NAN = float("nan")


def made(**changes: Any) -> Outcomes:
    given: dict[str, Any] = {"labels": FOUR_LABELS, "clean": FOUR_LABELS, "attacks": {"pgd": [0, 1, 1, 0]}}
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
    check_refused("labels", made, labels=values)
    check_refused("predictions of 'pgd'", made, attacks={"pgd": values})
    check_refused("grouping 'site'", made().add_groups, "site", values, ["north", "south"])
    if what not in ("booleans", "a meta tensor"):  # torch's own checks
        with pytest.raises(ClasswiseError):
            Images(torch.zeros(4, 1, 2, 2), values, ["cat", "dog"])


@pytest.mark.parametrize(
    "values",
    [
        FOUR_LABELS,
        np.array(FOUR_LABELS, np.uint8),
        torch.tensor(FOUR_LABELS),
        pd.Series(FOUR_LABELS, dtype="Int64"),
        np.ma.masked_array(np.array(FOUR_LABELS)),
    ],
    ids=["list", "uint8", "tensor", "nullable", "masked array without mask"],
)
def test_integers_of_any_library_are_labels(values: Any) -> None:
    assert made(labels=values, clean=values).labels.tolist() == FOUR_LABELS


@pytest.mark.parametrize("large", [10**5, 10**9, 2**40, 2**62])
def test_a_huge_class_number_without_names_is_refused_at_once(large: int) -> None:
    for changes in ({"labels": [0, 0, 1, large]}, {"clean": [0, 0, 1, large]}, {"attacks": {"a": [large] * 4}}):
        check_refused("classes for 4 images; the limit is", made, class_names=None, **changes)


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
    check_refused(f"confidences of 'clean': .*{message}", made, confidences={"clean": values})


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
        check_refused("attack label", made, attacks={label: FOUR_LABELS}, **changes)
    check_refused(
        "unknown attack of confidences", made, confidences={"other" if label == "clean" else label: PROBABILITIES}
    )


@pytest.mark.parametrize(
    "label", ["t-best", "t-union", "pgd_low", "pgd_high", "all_judged", "clean_cumulative", "pgd "]
)
def test_labels_of_attacks_that_another_name_has_are_refused(label: str) -> None:
    attacks = dict.fromkeys(("pgd", "t[2]", "t[5]", label), FOUR_LABELS)
    check_refused(r"is reserved|but for blanks", made, attacks=attacks, families={"t": ("t[2]", "t[5]")})


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
    check_refused(message, made, **changes)


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
    x, y = torch.zeros(4, 1, 2, 2), torch.tensor(FOUR_LABELS)
    for enter in (
        lambda: made(class_names=names),
        lambda: made(superclasses=[0, 1], superclass_names=names),
        lambda: made().add_groups("site", FOUR_LABELS, names),
        lambda: Meta(class_names=names, attacks={"clean": None}),
        lambda: Images(x, y, names),
        lambda: Images(x, y, superclasses=[0, 1], superclass_names=names),
        lambda: Images(x, y).with_column("site", y, names),
    ):
        check_refused(r"is not text|is blank|occurs twice|but for blanks|surrogate|not a list", enter)


@pytest.mark.parametrize("name", [None, 3, "", "\ud800", "label", "attack", "class", "superclass", "n", "pgd", "all"])
def test_names_of_groupings_that_tables_use_are_refused(name: Any) -> None:
    check_refused("grouping", made().add_groups, name, FOUR_LABELS, ["a", "b"])


MISSING: tuple[Any, ...] = ["u", None, "u", "v"], ["u", NAN, "u", "v"], [1.0, NAN, 1.0, 2.0], MASKED


@pytest.mark.parametrize("values", [*MISSING, [1, "1", 1, 2], ["u", " ", "u", "v"], ["u", "u ", "u", "v"]])
def test_values_of_a_grouping_are_checked(values: Any) -> None:
    images = Images(torch.zeros(4, 1, 2, 2), torch.tensor(FOUR_LABELS))
    check_refused(r"missing|different types|is blank|but for blanks", grouped, images, values)


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
    check_refused(message, Outcomes, table.frame.assign(**changes), table.meta)


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
    check_refused(f"part-00000.parquet: .*{message}", Outcomes.load, tmp_path)


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
        check_refused(
            f"grouping '{group}': the name is taken", cw.audit, toys.model(), data, "Linf:0.1", ["fgsm"], group=group
        )
