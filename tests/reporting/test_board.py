"""Leaderboards: tables by conditions, rows from audits and JSON files, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classwise as cw
from classwise.attacks import suites
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY, parse_attacks
from classwise.core.errors import IncompleteError
from classwise.reporting.board import sources
from classwise.reporting.board.entries import Conditions
from classwise.reporting.exports.robustbench import write_robustbench
from classwise.reporting.text.result import text as result_text
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import clopper_pearson, lowest_interval
from tests.refusals import check_refused

NAMES = ("cat", "dog")
LABELS = np.arange(400) % 2
HALF = np.arange(400) // 2
"""The position of an image in its class: the classes alternate."""


def audit_of(model: str, worst: float, *, known: bool = True, attack: str = "pgd", **changes: Any) -> Audit:
    """An audit of 200 cats, of which the first are correct under attack, and of 200 dogs, 90 % of which are."""
    robust = np.where(LABELS == 0, round(200 * worst) > HALF, HALF < 180)
    about: dict[str, Any] = {
        "data": "toy",
        "split": "test",
        "threat": "Linf:8/255",
        "model_hash": (model.encode().hex() * 64)[:64] if known else "",
        "data_hash": "ab" * 32,
        "early_stop": True,
    }
    attacked = np.where(robust, LABELS, 1 - LABELS)
    outcomes = Outcomes.from_predictions(LABELS, LABELS, {attack: attacked}, NAMES, **about | changes)
    return Audit(outcomes, name=model, environment={"network": "small-cnn", "packages": {"classwise": "9.9"}})


def with_meta(audit: Audit, **changes: Any) -> Audit:
    meta = Meta.of(**vars(audit.outcomes.meta) | changes)
    return dataclasses.replace(audit, outcomes=Outcomes(audit.outcomes.frame, meta))


def ranked(board: cw.Board) -> list[list[tuple[int, str]]]:
    return [[(row["rank"], row["model"]) for row in table.frame.to_dict("records")] for table in board.tables]


def test_an_audit_given_twice_is_one_row(tmp_path: Path) -> None:
    """Also without the hash of the model: by its outcomes, or by its folder."""
    unknown = audit_of("at", 0.2, known=False)
    folder = audit_of("cfa", 0.6, known=False).save(tmp_path / "cfa")
    board = cw.board([unknown, unknown, folder, folder, tmp_path / "." / "cfa", audit_of("at", 0.2, known=False)])
    assert [name for _, name in ranked(board)[0]] == ["cfa", "at", "at-2"]


def test_models_are_ranked_by_their_worst_class() -> None:
    board = cw.board([audit_of("at", 0.2), audit_of("cfa", 0.6), audit_of("dafa", 0.61), audit_of("faal", 0.4)])
    assert ranked(board) == [[(1, "dafa"), (1, "cfa"), (3, "faal"), (4, "at")]]
    row = board.table.iloc[2]
    assert (row["rank"], row["rank_high"], row["n"], row["worst_class"]) == (3, 3, 400, "cat")
    assert (row["worst"], row["overall"], row["clean"], row["mcd"]) == pytest.approx((0.4, 0.65, 1.0, 0.5))
    assert (row["worst20"], row["cv"]) == pytest.approx((0.4, 0.0625))
    estimate = audit_of("faal", 0.4).worst_class()
    assert (row["worst_low"], row["worst_high"]) == (estimate.minimum.low, estimate.minimum.high)
    assert row["may_be_worst"] == "cat"
    assert (row["network"], row["version"], row["model_sha256"]) == ("small-cnn", "9.9", "6661616c" * 8)
    assert "dafa is the first of 4 in rank, selected on these images: worst class [" in result_text(board)


Change = Callable[[Audit], Audit]
CHANGES: dict[str, Change] = {
    "data hash": lambda audit: with_meta(audit, data_hash="cd" * 32),
    "split": lambda audit: with_meta(audit, split="validation"),
    "class names": lambda audit: with_meta(audit, class_names=("cow", "dog")),
    "threat": lambda audit: with_meta(audit, threat="Linf:4/255"),
    "norm": lambda audit: with_meta(audit, threat="L2:8/255"),
    "attack settings": lambda audit: with_meta(
        audit, attacks={"clean": None, "pgd": {"name": "pgd", "steps": 20}}
    ),
    "early stop": lambda audit: with_meta(audit, early_stop=False),
    "cascade": lambda audit: with_meta(audit, cascade=True),
    "code of an attack": lambda audit: with_meta(audit, code={"attack pgd": {"mine": "cd" * 32}}),
}  # fmt: skip


@pytest.mark.parametrize("field", CHANGES)
def test_other_conditions_are_another_table(field: str) -> None:
    other = CHANGES[field](audit_of("strong", 0.9))
    board = cw.board([audit_of("weak", 0.1), audit_of("middle", 0.5), other])
    assert ranked(board) == [[(1, "middle"), (2, "weak")], [(1, "strong")]]
    assert len({table.conditions.key for table in board.tables}) == 2


def test_other_numbers_of_images_and_other_attacks_are_other_tables() -> None:
    first = audit_of("at", 0.1)
    frame = first.outcomes.frame[first.outcomes.frame["index"] < 200]
    meta = dataclasses.replace(first.outcomes.meta, images=200, sizes={})
    fewer = dataclasses.replace(first, outcomes=Outcomes(frame, meta), name="fewer")
    board = cw.board([first, fewer, audit_of("cw", 0.3, attack="cw")])
    assert [[name for _, name in rows] for rows in ranked(board)] == [["at"], ["fewer"], ["cw"]]


def test_the_order_of_attacks_counts_in_a_cascade_only() -> None:
    conditions = Conditions.of(audit_of("at", 0.1))
    turned = dataclasses.replace(conditions, attacks=conditions.attacks[::-1])
    assert turned.key == conditions.key
    assert dataclasses.replace(turned, cascade=True).key != dataclasses.replace(conditions, cascade=True).key


def test_the_same_radius_is_one_threat() -> None:
    decimal = with_meta(audit_of("cfa", 0.5), threat="Linf:0.0313725")
    assert len(cw.board([audit_of("at", 0.1), decimal]).tables) == 1


def test_without_attacks_only_the_data_count() -> None:
    audits = []
    for name, threat in (("first", "Linf:8/255"), ("second", None)):
        outcomes = Outcomes.from_predictions(LABELS, LABELS, {}, NAMES, data_hash="ab" * 32, threat=threat)
        audits.append(Audit(outcomes, name=name))
    board = cw.board(audits)
    assert ranked(board) == [[(1, "first"), (1, "second")]]
    assert board.table["attacks"].tolist() == ["clean", "clean"]


def test_data_without_a_hash_must_have_equal_labels() -> None:
    first = with_meta(audit_of("at", 0.1), data_hash="")
    other = with_meta(audit_of("cfa", 0.1), data_hash="")
    frame = other.outcomes.frame.assign(**{name: 1 - other.outcomes.frame[name] for name in ("label", "prediction")})
    turned = dataclasses.replace(other, outcomes=Outcomes(frame, other.outcomes.meta))
    check_refused(r"^at and cfa differ in labels: image 0 is 'cat' and image 0 is 'dog'", cw.board, [first, turned])


def test_a_file_gives_the_same_board_without_pairing(tmp_path: Path) -> None:
    audits = [audit_of("at", 0.2), audit_of("cfa", 0.6), audit_of("dafa", 0.65)]
    board = cw.board([*audits, with_meta(audit_of("l2", 0.5), threat="L2:0.5")], extra_data={"cfa": True})
    files = board.save(tmp_path / "board")
    assert [file.name for file in files] == ["board.json", "board.csv"]
    read = cw.board(files[0])
    assert [table.conditions for table in read.tables] == [table.conditions for table in board.tables]
    assert {*read.tables[0].entries} == {*board.tables[0].entries}
    measures = ["model", "worst", "worst_low", "overall_high", "cv", "clean_low", "may_be_worst", "extra_data"]
    assert read.table[measures].equals(board.table[measures])
    assert ranked(board)[0] == [(1, "dafa"), (2, "cfa"), (3, "at")]
    assert ranked(read)[0] == [(1, "dafa"), (1, "cfa"), (3, "at")]
    assert (board.tables[0].paired, read.tables[0].paired) == ("all", "none")
    assert read.tables[0].selected == board.tables[0].selected
    both = cw.board([files[0], *audits[:2]])
    assert [len(table.entries) for table in both.tables] == [3, 1]
    assert both.tables[0].paired == "some"


def test_an_audit_in_place_of_a_row_keeps_what_is_stated_of_its_training(tmp_path: Path) -> None:
    cw.board([audit_of("at", 0.2)], extra_data={"at": True}).save(tmp_path)
    board = cw.board([tmp_path / "board.json", audit_of("at", 0.2)])
    assert board.tables[0].paired == "all"
    assert board.table["extra_data"].tolist() == [True]
    assert cw.board([audit_of("at", 0.2), tmp_path / "board.json"]).table["extra_data"].tolist() == [True]


def test_a_name_and_what_is_stated_of_it_apply_to_an_audit_given_twice() -> None:
    one = audit_of("at", 0.2)
    for given in ([one, {"ours": one}], [{"ours": one}, one]):
        board = cw.board(given, extra_data={"ours": True})  # type: ignore[arg-type]
        assert board.table[["model", "extra_data"]].values.tolist() == [["ours", True]]
    again = dataclasses.replace(audit_of("cfa", 0.6), name="at")
    numbered = cw.board([one, again], extra_data={"at-2": True}).table
    assert dict(numbered[["model", "extra_data"]].values.tolist()) == {"at": None, "at-2": True}


def test_the_json_file_has_every_number(tmp_path: Path) -> None:
    board = cw.board([audit_of("at", 0.2), audit_of("cfa", 0.6)])
    content = json.loads(board.save(tmp_path)[0].read_text(encoding="utf-8"))
    assert (content["schema_version"], content["unit"], content["confidence"]) == (1, "fraction", 0.95)
    first, second = content["tables"][0]["rows"]
    assert (first["entry"]["name"], first["entry"]["correct"]) == ("cfa", [120, 180])
    assert second["results"]["rank"] == [2, 2]
    assert second["results"]["better"] == ["cfa"]
    assert second["results"]["worst"]["value"] == 0.2
    selected, counts = content["tables"][0]["selected"], ClassCounts(np.array([200, 200]), np.array([120, 180]))
    assert (selected["name"], selected["models"], selected["by"]) == ("cfa", 2, "worst")
    assert selected["worst"] == first["results"]["worst"] | {"low": lowest_interval(counts, 0.025)[0]}
    assert [selected["overall"][end] for end in ("low", "high")] == [*clopper_pearson(300, 400, 0.025)]


def test_one_model_is_not_selected() -> None:
    board = cw.board(audit_of("at", 0.2))
    assert board.tables[0].selected is None
    assert board.to_dict()["tables"][0]["selected"] is None


def test_the_csv_file_is_safe_for_spreadsheets(tmp_path: Path) -> None:
    board = cw.board({"=1+1": audit_of("at", 0.2), "b": audit_of("cfa", 0.6)})
    with board.save(tmp_path)[1].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["b", "'=1+1"]
    assert (rows[0]["rank"], rows[0]["worst"], rows[0]["attacks"]) == ("1", "0.6", "pgd")


def test_an_audit_below_the_root_of_the_file_system_has_the_name_of_its_folder() -> None:
    assert sources._name(Path("/audit"), Path("/")) == "audit"


def test_folders_of_audits_and_names(tmp_path: Path) -> None:
    for name, worst in (("at", 0.2), ("cfa", 0.6)):
        audit_of(name, worst).save(tmp_path / "audits" / name)
    assert ranked(cw.board(tmp_path / "audits")) == [[(1, "cfa"), (2, "at")]]
    named = cw.board({"mine": tmp_path / "audits" / "at", "other": str(tmp_path / "audits" / "cfa")})
    assert ranked(named) == [[(1, "other"), (2, "mine")]]
    check_refused(
        r"^mine=.* contains 2 rows; a name applies to one row: give one audit$", cw.board, {"mine": tmp_path / "audits"}
    )
    at, cfa = ({"mine": tmp_path / "audits" / name} for name in ("at", "cfa"))
    check_refused("'mine' names 2 sources; give each a name of its own", cw.board, [at, cfa])


def test_a_model_is_one_row() -> None:
    first, again = audit_of("at", 0.2), dataclasses.replace(audit_of("at", 0.2), name="again")
    assert ranked(cw.board([first, again])) == [[(1, "at")]]
    other = with_meta(audit_of("cfa", 0.3), model_hash=first.outcomes.meta.model_hash)
    check_refused(r"^'at' and 'cfa' are audits of the same model \(SHA-256 617461746174\)", cw.board, [first, other])
    frame = first.outcomes.frame.copy()  # a cat is a dog without an attack, in place of one that is a dog under it
    lost = (frame["attack"] == "clean") & (frame["index"] == frame.loc[~frame["correct"], "index"].min())
    frame.loc[lost, ["prediction", "correct"]] = 1, False
    clean = dataclasses.replace(first, name="clean", outcomes=Outcomes(frame, first.outcomes.meta))
    check_refused(r"^'at' and 'clean' are audits of the same model", cw.board, [first, clean])
    code = [{"model": {"two:Defence": digest}} for digest in ("ab", "ab", "cd")]
    defended = [with_meta(audit_of("at", 0.2), code=each) for each in code]
    assert ranked(cw.board(defended)) == [[(1, "at"), (1, "at-2")]]  # other code with equal weights is another model
    unknown = [audit_of("at", 0.2, known=False), audit_of("at", 0.2, known=False)]
    assert ranked(cw.board(unknown)) == [[(1, "at"), (1, "at-2")]]


def test_warnings_and_guards_are_listed(tmp_path: Path) -> None:
    warned = dataclasses.replace(
        audit_of("at", 0.2),
        warnings=(AuditWarning("not-converged", "It has not.", 1.0),),
        guards=GuardReport("auto", not_run=("no-black-box",), reason="budget"),
    )
    board = cw.board([warned, audit_of("cfa", 0.6)])
    assert board.table["warnings"].tolist() == ["", "not-converged"]
    entry = cw.board(board.save(tmp_path)[0]).tables[0].entries[1]
    assert (entry.warnings[0].sentence, entry.guards, entry.guards_not_run) == (
        "It has not.",
        "auto",
        ("no-black-box",),
    )
    off = dataclasses.replace(audit_of("off", 0.4), guards=GuardReport("off"))
    rows = result_text(cw.board([warned, off])).splitlines()
    assert [next(row for row in rows if f" {name} " in row).split()[-1] for name in ("at", "off")] == [
        "not-converged",
        "off",
    ]


def test_incomplete_audits_are_refused() -> None:
    whole = audit_of("at", 0.2)
    part = dataclasses.replace(whole, outcomes=Outcomes(whole.outcomes.frame.iloc[:-3], whole.outcomes.meta))
    with pytest.raises(IncompleteError, match=r"^at is incomplete, and a leaderboard needs all verdicts"):
        cw.board([part])
    with pytest.raises(IncompleteError, match=r"^at is an estimate from a sample \(settle 0.01\)"):
        cw.board([with_meta(part, settle=0.01)])


def test_an_own_robustbench_file_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": ("fgsm",)})
    specs = {"clean": None, **parse_attacks("autoattack").specs()}
    audits = [
        with_meta(audit_of(name, worst, attack="fgsm"), attacks=specs, data="cifar10", cascade=True)
        for name, worst in (("at", 0.2), ("cfa", 0.6))
    ]
    file = tmp_path / "At2026.json"
    audits[0] = dataclasses.replace(audits[0], guards=GuardReport("full"))
    write_robustbench(audits[0], file, {"architecture": "WRN-34-10", "additional_data": "true"})
    board = cw.board([file, audits[1]])
    assert ranked(board) == [[(1, "cfa"), (2, "At2026")]]
    assert f"note: {CROSS_ENTROPY}" in str(board).splitlines()
    entry = board.tables[0].entries[0]
    assert (entry.correct, entry.clean_correct) == ((40, 180), (200, 200))
    assert (entry.network, entry.extra_data, entry.model_sha256) == ("WRN-34-10", True, "6174" * 16)
    assert entry.guards == "full"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["classwise"]["settings"]["threat"]
    file.write_text(json.dumps(content), encoding="utf-8")
    check_refused("settings have no threat; write the file again", cw.board, [file])


def published(folder: Path, **changes: Any) -> Path:
    content = {
        "link": "https://example.org/abs/1", "name": "A paper", "authors": "A. Author", "additional_data": False,
        "number_forward_passes": 1, "dataset": "cifar10", "venue": "ICML 2020", "architecture": "WideResNet-34-20",
        "eps": "8/255", "clean_acc": "85.34", "reported": "58", "autoattack_acc": "53.42",
    }  # fmt: skip
    file = folder / "cifar10" / "Linf" / "Author2020Paper.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | changes), encoding="utf-8")
    return file


def test_published_accuracies_are_listed_apart(tmp_path: Path) -> None:
    board = cw.board([published(tmp_path), audit_of("at", 0.2)])
    assert ranked(board) == [[(1, "at")]]
    (found,) = board.published
    assert (found.name, found.file) == ("Author2020Paper", "cifar10/Linf/Author2020Paper.json")
    assert (found.data, found.threat, found.overall, found.clean) == ("cifar10", "Linf:8/255", 0.5342, 0.8534)
    assert (found.network, found.extra_data, found.venue) == ("WideResNet-34-20", False, "ICML 2020")
    assert cw.board(board.save(tmp_path / "board")[0]).published == board.published
    other = published(
        tmp_path, additional_data="?", clean_acc=None, external="51.2", unreliable=True, footnote="Another radius."
    )
    (found,) = cw.board([other]).published
    assert (found.clean, found.extra_data, found.external) == (None, None, 0.512)
    assert found.note == "Marked as unreliable. Another radius."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoattack_acc": None}, "autoattack_acc is null"),
        ({"autoattack_acc": "high"}, "autoattack_acc is 'high', expected a percentage from 0 to 100"),
        ({"clean_acc": 185.0}, r"clean_acc is 185\.0, expected a percentage from 0 to 100"),
        ({"clean_acc": True}, "clean_acc is True, expected a percentage from 0 to 100"),
    ],
)
def test_invalid_published_accuracies(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    check_refused(message, cw.board, [published(tmp_path, **changes)])


Damage = Callable[[dict[str, Any]], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "version": (lambda board: board.update(schema_version=2), "schema_version 2 is newer than the 1 supported here"),
    "no version": (lambda board: board.pop("schema_version"), "schema_version is None, expected a number"),
    "tables": (lambda board: board.update(tables={}), "tables is missing or is not a list"),
    "conditions": (lambda board: board["tables"][0].pop("conditions"), "table 1: conditions is missing"),
    "threat": (lambda board: board["tables"][0]["conditions"].update(threat=8), "table 1: conditions: threat = 8"),
    "classes": (lambda board: conditions_in(board).update(classes=["a"]), "conditions: 1 classes and 2 numbers"),
    "no image": (lambda board: conditions_in(board).update(class_images=[0, 0]), r"class_images \[0, 0\]: expected"),
    "rows": (lambda board: board["tables"][0].pop("rows"), "table 1: rows is missing"),
    "entry": (lambda board: entry_in(board).update(weights=1), "row 1 has no field 'weights'"),
    "count": (lambda board: entry_in(board).update(correct=[900, 1]), "'at': correct of class 'cat' is 900, expected"),
    "more than clean": (
        lambda board: entry_in(board).update(correct=[90, 80], clean_correct=[95, 79]),
        "'at': correct of class 'dog' is 80, more than its clean_correct, 79",
    ),
    "number": (lambda board: entry_in(board).update(correct=[1]), "correct has 1 numbers, expected 2, one for each"),
    "clean": (lambda board: entry_in(board).update(clean_correct=[-1, 1]), "clean_correct of class 'cat' is -1"),
    "fraction": (lambda board: entry_in(board).update(correct=[0.5, 0.5]), "correct.0 = 0.5: .*integer"),
    "published": (lambda board: board.update(published=[{"name": "a"}]), "is missing"),
}  # fmt: skip


def conditions_in(board: dict[str, Any]) -> Any:
    return board["tables"][0]["conditions"]


def entry_in(board: dict[str, Any]) -> Any:
    return board["tables"][0]["rows"][0]["entry"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_invalid_files(damage: str, tmp_path: Path) -> None:
    file = cw.board([audit_of("at", 0.2)]).save(tmp_path)[0]
    content = json.loads(file.read_text(encoding="utf-8"))
    change, message = DAMAGES[damage]
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    check_refused(message, cw.board, [file])


def test_what_is_no_source(tmp_path: Path) -> None:
    check_refused(r"gone does not exist; expected an audit, a run", cw.board, [tmp_path / "gone"])
    check_refused("contains no audit; expected", cw.board, [tmp_path])
    for text, message in (
        ("{", "is not JSON; give"),
        ('"\\ud800"', "is not JSON; give"),
        ("[NaN]", "is not JSON; give"),
        ("[]", "is not a leaderboard"),
        ('{"a": 1}', "is not a leaderboard"),
    ):
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        check_refused(message, cw.board, tmp_path / "a.json")
    check_refused("nothing to rank: give at least one audit", cw.board, [])
    check_refused(
        re.escape("unknown row 'cfaa'; did you mean 'cfa'"), cw.board, [audit_of("cfa", 0.2)], extra_data={"cfaa": True}
    )


def test_a_board_in_a_notebook() -> None:
    board = cw.board([audit_of("at", 0.2), audit_of("<cfa>", 0.6)])
    assert repr(board) == "<Board: 2 models in 1 tables; 0 published accuracies>"
    html = board._repr_html_()
    assert "1. &lt;cfa&gt;: 60.0 %; 2. at: 20.0 %" in html
    assert "data:image/svg+xml;base64," in html
