"""Recorded command lines contain no secret and no control character, and a shell reads them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classwise.core.compute.environment import continued, environment
from classwise.core.settings.command_line import FROM_PYTHON, LONGEST, command_text, recorded, recorded_command

SECRET = "Tr0ub4dor3xyz"


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-token", SECRET],
        ["--token=" + SECRET],
        ["--set", f"wandb.api_key={SECRET}"],
        ["--password", SECRET],
        [f"https://me:{SECRET}@host/x.zip"],
        [f"s3://{SECRET}@host"],
        [f"https://host/x?size=2&access_token={SECRET}&k=1"],
        [f"https://host/x?key={SECRET}"],
        [f"https://host/x?X-Amz-Signature={SECRET}"],
        [f"postgres://user:p@{SECRET}@host/db"],
        [f"hf_{SECRET}"],
        [f"prefix:ghp_{SECRET}"],
        [f"Authorization: Bearer {SECRET}"],
        ["--Client-Secret", SECRET],
    ],
)
def test_secrets_are_left_out(words: list[str]) -> None:
    text = command_text(["classwise", *words, "end"])
    assert SECRET not in text
    assert "***" in text
    assert text.endswith(" end")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=5))
def test_a_shell_reads_the_words(words: list[str]) -> None:
    text = command_text(words)
    assert text.isprintable() or any(letter.isspace() for letter in text)
    assert len(text.splitlines()) <= 1
    if all(word.isprintable() and "token" not in word for word in words):
        assert shlex.split(text) == words


@pytest.mark.parametrize(
    "word", ["model.token_size=4", "authors=A", "--state-dict-key=net", "accuracy[key](pgd) < 0.5", "a@b", "sketch"]
)
def test_ordinary_words_are_unchanged(word: str) -> None:
    assert shlex.split(command_text([word, "end"])) == [word, "end"]


def test_very_long_words_are_cut() -> None:
    assert len(command_text(["a" * 10**6])) < LONGEST + 10


def test_the_command_of_a_block() -> None:
    assert recorded_command() == environment()["command"] == FROM_PYTHON
    with recorded(["audit", "my model"]):
        assert environment()["command"] == "classwise audit 'my model'"
    assert recorded_command() == FROM_PYTHON


def test_a_continued_environment_keeps_what_differed() -> None:
    first = {"command": "a", "device": "cpu", "seconds": 2.0, "not_fused": "why"}
    second = continued(first, {"command": "a --resume", "device": "gpu", "seconds": 1.0})
    third = continued(second, {"command": "a --resume", "device": "gpu", "seconds": 0.5})
    assert third["seconds"] == 3.5
    assert third["earlier_runs"] == [{"command": "a", "device": "cpu"}]
    assert third["not_fused"] == "why"
    assert continued({}, {"seconds": 1.0}) == {"seconds": 1.0}
    phases = continued({"seconds_by_phase": {"pgd": 1.0, "clean": 2.0}}, {"seconds_by_phase": {"clean": 0.5}})
    assert phases == {"seconds_by_phase": {"pgd": 1.0, "clean": 2.5}}
