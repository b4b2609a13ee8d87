"""Names that users choose: text, not blank, distinct in print, and representable in files."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classwise.core.settings.names import checked_name, checked_names, checked_text, numbered_names
from tests.refusals import check_refused

PRINTED = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(str.strip)


def printed(name: str) -> str:
    """A name up to differences that print does not show."""
    return unicodedata.normalize("NFC", " ".join(name.split()))


@given(st.lists(PRINTED, min_size=1, max_size=6, unique_by=printed))
def test_distinct_names_are_returned_unchanged(names: list[str]) -> None:
    assert checked_names(names, "names") == tuple(names)
    assert checked_names(np.array(names, dtype=object), "names") == tuple(names)
    assert checked_names((name for name in names), "names") == tuple(names)


@given(st.lists(PRINTED, min_size=1, max_size=6, unique_by=printed), st.data())
def test_a_single_bad_name_is_refused(names: list[str], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(names))
    bad = [None, float("nan"), pd.NA, 3, b"cat", ("cat",), "", " \t", "\ud800", "cat\udfff", again, f" {again}"]
    place = data.draw(st.integers(0, len(names)))
    given_names: list[Any] = [*names[:place], data.draw(st.sampled_from(bad)), *names[place:]]
    check_refused(r"^class names: ", checked_names, given_names, "class names")


@pytest.mark.parametrize("names", ["ab", b"ab", {"a": 0, "b": 1}, {"a", "b"}, 5, None])
def test_text_mappings_and_sets_are_not_lists_of_names(names: Any) -> None:
    check_refused("is not a list of names", checked_names, names, "class names")


def test_what_is_wrong_with_a_name() -> None:
    for names, message in {
        ("cat", None): "class names: None is not text",
        ("cat", " "): "class names: the name ' ' is blank",
        ("cat", "dog", "cat"): r"'cat' \(position 2\) occurs twice \(position 0\)",
        ("caf\u00e9", "cafe\u0301"): "equals 'caf\u00e9' but for blanks or form",
        ("a", "\ud800b"): r"contains the lone surrogate '\\ud800', which UTF-8 cannot represent",
    }.items():
        check_refused(message, checked_names, names, "class names")


def test_a_text_may_be_empty_but_a_name_may_not() -> None:
    assert checked_text("", "split") == ""
    assert checked_name(np.str_("cat"), "name") == "cat"
    check_refused("blank", checked_name, "", "name")


def test_equal_names_are_numbered() -> None:
    assert numbered_names(["crane", "cat", "crane"]) == ("crane (0)", "cat", "crane (2)")
    assert checked_names(numbered_names(["crane"] * 3), "class names") == ("crane (0)", "crane (1)", "crane (2)")
