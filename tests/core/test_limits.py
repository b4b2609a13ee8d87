"""Limits: declared sizes are checked before allocation, and the types of parts before a call."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from classwise.attacks import ATTACKS
from classwise.core.errors import LONGEST, one_line
from classwise.core.settings import limits
from classwise.core.settings.config import number, parse_spec, read_yaml
from classwise.core.settings.registry import Registry
from classwise.data import DATA
from classwise.models.loading.sources import SOURCES
from classwise.threat.ball import Threat
from classwise.training import AVERAGERS, OBJECTIVES, REDUCTIONS, SCHEDULES, SELECTIONS
from tests.refusals import check_refused


def test_small_sizes_pass_and_bombs_do_not() -> None:
    limits.check_size(limits.FREE_BYTES, "x", stored=1)
    limits.check_size(limits.FREE_BYTES + 1, "x", stored=limits.FREE_BYTES // 4)
    check_refused(
        r"x expands to 64.0 MiB from 1 bytes, more than 200 times",
        limits.check_size,
        limits.FREE_BYTES + 1,
        "x",
        stored=1,
    )


def test_more_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda: 3 << 30)
    limits.check_size(3 << 30, "x")
    check_refused(r"x needs 4.0 GiB of memory and 3.0 GiB are free", limits.check_size, 4 << 30, "x")


def test_free_memory_is_that_of_this_machine() -> None:
    assert 0 < limits.free_bytes() <= 2**62


def test_classes_are_bounded_by_the_images() -> None:
    limits.check_classes(limits.CLASSES, 10, "x")
    limits.check_classes(10**6, 10**6, "x")
    check_refused("x: 1000000 classes for 10 images", limits.check_classes, 10**6, 10, "x")


@pytest.mark.parametrize("registry", [ATTACKS, DATA, OBJECTIVES, SCHEDULES, AVERAGERS, REDUCTIONS, SELECTIONS])
@pytest.mark.parametrize(
    "path", ["os:system", "builtins:eval", "subprocess:run", "subprocess:Popen", "os:sep", "builtins:dict"]
)
def test_other_objects_are_refused_and_not_called(
    registry: Registry[object], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*_: object, **__: object) -> None:
        pytest.fail(f"{path} was called")

    monkeypatch.setattr(subprocess.Popen, "__init__", called)
    check_refused(rf"{registry.kind} '{path}' is (a|the class) \w+; give a", registry.load, path)


MALFORMED = [":", "os:", ":x", "..a:b", "a b:c", "os:a..b", "\0:x", "x" * 300 + ":y"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((path, "is not of the form package") for path in MALFORMED),
        ("classwise.attacks.base:Attack", "is the abstract class Attack"),
    ],
)
def test_malformed_paths_and_abstract_classes_are_refused(path: str, message: str) -> None:
    check_refused(message, ATTACKS.load, path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), (" 1 / 3 ", 1 / 3), ("1e-3", 1e-3), (".5", 0.5), ("-2", -2.0), ("0.1", 0.1), ("5.", 5.0)],
)
def test_numbers(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["1e400", "nan", "inf", "8/0", "1e999999999", "9" * 5000, "1_0", "٣", "0x1", "", "1/2/3"]
)
def test_text_that_is_no_number(text: str) -> None:
    assert number(text) == text
    check_refused("radius must be a number such as 8/255", Threat.parse, f"Linf:{text}")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "more than 10000 values with its aliases expanded"),
        ("&a [*a]", "refers to a value that contains it"),
        ("[" * 100_000, "more than 32 nested collections"),
        ("!!python/object/apply:os.system ['false']", "not YAML of plain data"),
        ("!!binary aGVsbG8=", "not YAML of plain data"),
        ("!!int abc", "a value does not match its YAML tag"),
        ("1" + "0" * 5000, "a value does not match its YAML tag"),
        ("0x1" + "0" * 5000, "integers may have at most 64"),
        ("1" + "0" * 30, "integers may have at most 64"),
        ("null: 1", "the key None should be a name"),
        ("<<: 5", "not YAML of plain data"),
    ],
)
def test_yaml_that_is_refused(text: str, says: str) -> None:
    check_refused(says, read_yaml, text, "here")


def test_plain_yaml() -> None:
    text = "{a: &x [1, 2.5, true, null, word], b: *x, c: 2001-01-01, 3: {d: '8/255'}}"
    plain = [1, 2.5, True, None, "word"]
    assert read_yaml(text, "here") == {"a": plain, "b": plain, "c": "2001-01-01", 3: {"d": "8/255"}}


def test_specs_are_bounded() -> None:
    check_refused("has 100004 characters", parse_spec, "pgd:" + "x" * 100_000)
    check_refused("more than 8 nested parts", parse_spec, "pgd:" + "a." * 500 + "b=1")


def test_messages_are_one_short_printable_line() -> None:
    assert one_line("a\nb\0c\x1b[31m\u202ed") == "a b\\x00c\\x1b[31m\\u202ed"
    assert len(one_line("x" * 10**6)) <= LONGEST


def test_all_registered_parts_load() -> None:
    for registry in (ATTACKS, DATA, OBJECTIVES, SCHEDULES, AVERAGERS, REDUCTIONS, SELECTIONS):
        for name, path in registry.items():
            assert registry.load(path) is registry.load(name)


def test_security_names_each_limit() -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    for value in (limits.YAML_VALUES, limits.COUNT, limits.SPEC_LENGTH, limits.CLASSES, limits.IMAGE_PIXELS,
                  limits.FOLDER_ENTRIES, limits.TENSORS, limits.RADIUS, limits.MODEL_DEPTH):  # fmt: skip
        assert f"{value:,}" in text, value
    assert f"{limits.EXPANSION} times" in text


def test_security_names_each_source_of_models() -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert [source for source in SOURCES if f"`{source}:`" not in text and f".{source}`" not in text] == []
