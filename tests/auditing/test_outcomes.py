"""The outcomes table: counts, joins, files, and invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import CHECKSUMS

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
    with pytest.raises(ClasswiseError, match="'all' combines several attacks; choose one of clean, a, b"):
        table.rows("all")


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
    with pytest.raises(ClasswiseError, match=message):
        Outcomes.from_predictions(**arguments)  # type: ignore[arg-type]


def test_unknown_attack_names_the_nearest(table: Outcomes) -> None:
    with pytest.raises(ClasswiseError, match="did you mean 'clean'"):
        table.correct("claen")


def test_saved_and_loaded_it_is_the_same(table: Outcomes, tmp_path: Path) -> None:
    grouped = table.add_groups("site", [0, 0, 1, 1, 0, 1], ["north", "south"])
    grouped.save(tmp_path / "outcomes")
    for place in (tmp_path, tmp_path / "outcomes", tmp_path / "outcomes" / "part-00000.parquet"):
        again = Outcomes.load(place)
        pd.testing.assert_frame_equal(again.frame, grouped.frame)
        assert again.meta == grouped.meta
    with pytest.raises(ClasswiseError, match="already contains outcomes"):
        table.save(tmp_path / "outcomes")


def test_a_newer_schema_is_refused_by_name(table: Outcomes, tmp_path: Path) -> None:
    table.save(tmp_path)
    path = tmp_path / "part-00000.parquet"
    content = pq.read_table(path)
    about = json.loads(content.schema.metadata[b"classwise"])
    about["schema_version"] = SCHEMA_VERSIONS["outcomes"] + 1
    pq.write_table(content.replace_schema_metadata({b"classwise": json.dumps(about).encode()}), path)
    (tmp_path / CHECKSUMS).unlink()
    with pytest.raises(ClasswiseError, match=f"schema_version {SCHEMA_VERSIONS['outcomes'] + 1} is newer"):
        Outcomes.load(tmp_path)


def test_damaged_invalid_and_missing_files_are_one_line(table: Outcomes, tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match=r"contains no outcomes; .* classwise audit MODEL --data DATA --out"):
        Outcomes.load(tmp_path)
    (tmp_path / "curve").mkdir()
    (tmp_path / "curve" / "search.json").write_text("{}")
    with pytest.raises(ClasswiseError, match=r"is the folder of a curve or of a worst-class search; expected an audit"):
        Outcomes.load(tmp_path / "curve")
    table.save(tmp_path)
    path = tmp_path / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ClasswiseError, match=r"part-00000\.parquet is damaged: its SHA-256"):
        Outcomes.load(tmp_path)
    (tmp_path / CHECKSUMS).unlink()
    with pytest.raises(ClasswiseError, match="not a valid Parquet file; give the folder of an audit"):
        Outcomes.load(tmp_path)
    (tmp_path / "outcomes").mkdir()
    (tmp_path / "outcomes" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ClasswiseError, match="remove it and resume the audit"):
        Outcomes.load(tmp_path)
    (tmp_path / "outcomes" / path.name).unlink()
    (tmp_path / "outcomes").rmdir()
    notes = tmp_path / "notes.txt"
    notes.write_text("nothing that can be made again")
    with pytest.raises(
        ClasswiseError, match="give the folder of an audit, a run with one audit, or a file of outcomes"
    ):
        Outcomes.load(notes)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(ClasswiseError, match="not a file of outcomes written by classwise"):
        Outcomes.load(tmp_path)


def test_tables_of_the_same_images_join() -> None:
    mine = Outcomes.from_predictions(LABELS, CLEAN, {"a": ATTACK_A}, NAMES).add_groups(
        "half", [0, 0, 0, 1, 1, 1], ["x", "y"]
    )
    joined = mine.join(Outcomes.from_predictions(LABELS, CLEAN, {"b": ATTACK_B}, NAMES))
    assert joined.attacks == ("clean", "a", "b")
    assert joined.correct("all").tolist() == [False, False, True, False, True, False]
    assert joined.counts("b", "half").correct.tolist() == [2, 3]
    with pytest.raises(ClasswiseError, match="'a' is in both"):
        mine.join(mine)
    with pytest.raises(ClasswiseError, match="different images or labels"):
        mine.join(Outcomes.from_predictions([1, *LABELS[1:]], attacks={"b": ATTACK_B}, class_names=NAMES))
    with pytest.raises(ClasswiseError, match="differ in class names"):
        mine.join(Outcomes.from_predictions(LABELS, attacks={"b": ATTACK_B}, class_names=["x", "y", "z"]))


def test_groups_replace_classes(table: Outcomes) -> None:
    grouped = table.add_groups("site", [0, 1, 0, 1, 0, 1], ["north", "south"])
    assert grouped.counts("all", "site").correct.tolist() == [2, 0]
    with pytest.raises(ClasswiseError, match="name is taken"):
        grouped.add_groups("site", [0] * 6, ["x"])
    with pytest.raises(ClasswiseError, match="3 ids for 6 images"):
        table.add_groups("other", [0, 0, 0], ["x"])
    with pytest.raises(ClasswiseError, match="unknown grouping"):
        table.counts("all", "sight")


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
    with pytest.raises(ClasswiseError, match="image index 0 occurs twice under 'clean'"):
        Outcomes(pd.concat([table.frame, table.frame.head(1)]), table.meta)


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
