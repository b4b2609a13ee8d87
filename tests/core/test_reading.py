"""Reading of files that others may have damaged or replaced."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

from classwise.core.files import reading
from classwise.core.files.json_values import NOT_FINITE, json_text
from classwise.core.files.numbers import Number
from classwise.core.files.reading import fitting, open_regular, parse_json, read_bytes, read_lines, read_text
from classwise.core.files.storage import read_json, write_json
from classwise.core.settings import limits
from tests.refusals import check_refused, refused


class Score(TypedDict):
    name: str
    value: Number


class Scores(TypedDict):
    a: list[Score]


def in_place_of_a_file(path: Path) -> Mapping[str, Callable[[], object]]:
    return {
        "FIFO": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "socket": lambda: bind(path),
    }


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))


@pytest.mark.parametrize("kind", in_place_of_a_file(Path()))
def test_regular_files_only(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    file = Path("a.json")
    in_place_of_a_file(file)[kind]()
    says = "is a folder; give a file" if kind == "folder" else "is not a regular file; give a file"
    for read in (open_regular, read_bytes, read_text, read_json, reading.check_regular):
        check_refused(says, read, file)
    assert says in read_lines(file, Score).problems[0]


def test_missing_and_large_files(tmp_path: Path) -> None:
    file = tmp_path / "a"
    reading.check_regular(file)
    assert read_lines(file, Score) == ([], [])
    check_refused("cannot read .*: No such file", read_bytes, file)
    file.touch()
    os.truncate(file, limits.TEXT_BYTES + 1)
    for read in (read_bytes, read_text, read_json):
        check_refused("is larger than 16 MiB", read, file)
    check_refused("is larger than 4 KiB", read_bytes, file, 4096)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1] 2", "[" * 100_000, "[" * 40 + "]" * 40, '"\\ud800"', "1" + "0" * 5000, str(2**64), "nan", "\xff"],
)
def test_what_is_not_read_as_json(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    assert "is damaged (not JSON); make it again" in refused(read_json, tmp_path / "a.json", "make it again")


@pytest.mark.parametrize("text", ["[[" * 16 + "]]" * 16, '"\\ud83d\\ude00"', str(2**63 - 1), "[0.1234567890123456789]"])
def test_what_is_read_as_json(text: str) -> None:
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


def test_a_record_of_other_types_names_the_key(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content, says in (
        ({"name": "a"}, "value is missing"),
        ({"name": 3, "value": 0.5}, "name = 3: Input should be a valid string"),
        ({"name": "a", "value": True}, "value = True: Input should be a valid number"),
        ({"name": "a", "value": "0.5"}, "value = '0.5': Input should be a valid number"),
        ({"name": "a", "value": None}, "value = None: Input should be a valid number"),
    ):
        file.write_text(json.dumps(content))
        line = refused(read_json, file, kind=Score)
        assert line == f"{file} is damaged ({says}); restore it from a copy"
    check_refused("not a JSON object", fitting_list, file)


def fitting_list(file: Path) -> None:
    file.write_text("[]")
    read_json(file, kind=Score)


def test_further_keys_are_kept(tmp_path: Path) -> None:
    content = {"a": [{"name": "x", "value": 1, "more": [1, {"b": 2}]}], "more": {}}
    assert fitting(Scores, content, "x") == content


def test_not_finite_numbers_are_read_back(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    file = tmp_path / "a.json"
    for text, number in NOT_FINITE.items():
        write_json(file, {"name": text, "value": number})
        assert json.loads(file.read_text(), parse_constant=refuse) == {"name": text, "value": text}
        for content in (file.read_text(), f'{{"name": "{text}", "value": {text}}}'):  # also as of earlier versions
            file.write_text(content)
            found = read_json(file, kind=Score)
            assert found["name"] == text
            assert repr(found["value"]) == repr(number)


def test_only_a_text_of_a_number_is_one() -> None:
    check_refused("value = 'nan'", fitting, Score, {"name": "a", "value": "nan"}, "x")


def test_the_encoder_keeps_finite_values() -> None:
    value: Any = {"a": [1, 0.1, None, True, "é"], "b": (math.nan, {"c": -math.inf})}
    assert json.loads(json_text(value)) == {"a": [1, 0.1, None, True, "é"], "b": ["NaN", {"c": "-Infinity"}]}
    assert json_text({"a": [1]}, compact=True) == '{"a":[1]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(value, allow_nan=False)
    with pytest.raises(TypeError):
        json_text({"a": object()})


def test_damaged_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = ['{"name": "a", "value": 1}', "{", '{"name": "b"}', "", "\xff", '{"name": "c", "value": "NaN"}', '{"nam']
    file.write_text("\n".join(lines), encoding="latin-1")
    records, problems = read_lines(file, Score)
    assert [record["name"] for record in records] == ["a", "c"]
    assert problems == [
        f"{file}, line 2, is damaged (not JSON); restore it from a copy",
        f"{file}, line 3, is damaged (value is missing); restore it from a copy",
        f"{file}, line 4, is damaged (not JSON); restore it from a copy",
        f"{file}, line 5, is damaged (not JSON); restore it from a copy",
    ]
