"""Specs, registries and file writes: errors are one line, with the nearest known name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from classwise.attacks import ATTACKS
from classwise.attacks.gradient.ascent import PGD
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import check_writable, replacing, write_text
from classwise.core.settings.config import Count, Number, Seed, Share, describe, flat_options, make, parse_spec
from classwise.core.settings.registry import Registry


def line_of(work: Callable[[], object]) -> str:
    with pytest.raises(ClasswiseError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("pgd", "pgd", {}),
        ("pgd:steps=20,step_size=2/255", "pgd", {"steps": "20", "step_size": "2/255"}),
        ("mine.attacks:Swap", "mine.attacks:Swap", {}),
        ("mine.attacks:Swap:times=3", "mine.attacks:Swap", {"times": "3"}),
    ],
)
def test_specs_are_split(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_spec(text) == (name, options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a:b=c,b.d=1,b.e=2", {"b": {"name": "c", "d": "1", "e": "2"}}),
        ("a:b.d=1,b=c", {"b": {"name": "c", "d": "1"}}),
        ("a:b.d=1", {"b": {"d": "1"}}),
        ("a:b=c:d=1,b.e=2", {"b": {"name": "c", "d": "1", "e": "2"}}),
        ("a:b=c,b.d=e,b.d.f=3", {"b": {"name": "c", "d": {"name": "e", "f": "3"}}}),
    ],
)
def test_options_of_a_nested_component_are_prefixed_by_its_field(text: str, options: dict[str, Any]) -> None:
    name, found = parse_spec(text)
    assert found == options
    written = ",".join(f"{key}={value}" for key, value in flat_options(found).items())
    assert parse_spec(f"{name}:{written}") == (name, found)


def test_a_spec_builds_the_component_with_its_numbers() -> None:
    assert make(ATTACKS, "pgd:steps=20,step_size=2/255") == PGD(steps=20, step_size=2 / 255)
    assert make(ATTACKS, {"name": "pgd", "step_size": "0.1eps"}) == PGD(step_size="0.1eps")


@pytest.mark.parametrize("name", list(ATTACKS))
def test_a_described_component_is_built_again(name: str) -> None:
    part = make(ATTACKS, name)
    assert make(ATTACKS, describe(ATTACKS, part)) == part


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("pgdd", "unknown attack 'pgdd'; did you mean 'pgd'?"),
        ("pgd:step=3", "attack 'pgd' has no field 'step'; did you mean 'steps'?"),
        ("pgd:steps=0", "steps = '0': Input should be greater than or equal to 1"),
        ("pgd:step_size=0", "step_size = '0'"),
        ("pgd:step_size=-1eps", "positive multiple of the radius"),
        ("pgd:steps", "'steps' should be key=value"),
        ("no.such.module:Thing", "there is no module 'no' installed or in the working directory "),
        ("classwise.attacks.gradient.ascent:PDG", "did you mean 'PGD'?"),
        ({"steps": 3}, "has no 'name'; state it beside the settings"),
    ],
)
def test_errors_are_one_line(spec: str | dict[str, object], says: str) -> None:
    assert says in line_of(lambda: make(ATTACKS, spec))


def test_a_component_built_in_python_is_validated() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        PGD(steps=0)


def test_a_registry_lists_without_importing() -> None:
    registry: Registry[object] = Registry("thing", {"far": "no.such.module:Thing"})
    assert list(registry) == ["far"]


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    write_text(target, "old")

    def interrupted() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert [file.name for file in target.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.EROFS])
def test_a_path_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    target = tmp_path / "new" / "file.txt"
    check_writable(target)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "mkdir", refused)
    monkeypatch.setattr(os, "open", refused)
    for write in (lambda: write_text(target, "new"), lambda: check_writable(target)):
        assert line_of(write) == f"cannot write {target}: {os.strerror(number)}; give another path"


def test_names_that_cannot_be_files_are_one_line(tmp_path: Path) -> None:
    assert "cannot write" in line_of(lambda: write_text(tmp_path, "over a folder"))
    target = tmp_path / ("x" * 300)
    assert "File name too long" in line_of(lambda: check_writable(target))
    assert "File name too long" in line_of(lambda: write_text(target, ""))


def test_a_full_disk_is_one_line_and_the_old_file_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "no space left" in line_of(lambda: write_text(target, "new"))
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("value", [True, False])
def test_booleans_are_not_numbers(value: bool) -> None:
    for kind in (Count, Seed, Number, Share):
        with pytest.raises(pydantic.ValidationError, match="a number, not true or false"):
            pydantic.TypeAdapter(kind).validate_python(value)
