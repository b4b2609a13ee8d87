"""Every error message of the package states what is wrong and what is accepted, in one form."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tools.check_errors import Message, faults, messages, messages_of
from tools.check_language import PHRASES

WORD = next(iter(PHRASES))


@functools.cache
def all_messages() -> list[Message]:
    return list(messages())


def test_messages_are_collected() -> None:
    assert len(all_messages()) > 500
    assert {message.file.parts[1] for message in all_messages()} >= {
        "attacks",
        "auditing",
        "cli",
        "data",
        "models",
        "training",
    }


def test_every_message_has_the_form() -> None:
    assert [f"{message} -> {found}" for message in all_messages() if (found := faults(message.text))] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("radius {radius}: must be above 0.", "a period at the end"),
        ("radius {radius} is wrong", "nothing about what is accepted"),
        ("Radius of {radius} is wrong; give another", "a capital at the start"),
        ("radius {radius}: must be above 0\nand below 1", "more than one line"),
        ("radius: wrong. Give another. Or a third", "more than two sentences"),
        ("radius: wrong!", "an exclamation mark"),
        (f"image {{index}} is {WORD}; give another", f"the word {WORD!r}"),
        ("radius  {radius}; give another", "spacing"),
    ],
)
def test_faults_are_found(text: str, fault: str) -> None:
    assert fault in faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "radius {radius}: must be above 0",
        "MLflow at {uri}: {error}",
        "unknown attack {name}; did you mean {near}?",
        "there is no {path}; give a folder, such as a/b ...",
    ],
)
def test_messages_of_the_form_have_no_fault(text: str) -> None:
    assert faults(text) == []


def test_strings_of_every_kind_are_collected() -> None:
    source = """
raise ClasswiseError("plain")
raise errors.IncompleteError(f"{a!r}: " "joined" + f" and {b:.1f}")
raise unknown("attack", name, known)
raise ClasswiseError(computed)
raise ValueError("other")
"""
    texts = [message.text for message in messages_of(Path("x.py"), source)]
    assert texts == ["plain", "{a}: joined and {b}", "unknown attack {name}; did you mean {near}?"]
