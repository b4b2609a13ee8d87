"""Filters of warnings of one thread: others keep theirs, and the filters are those of before afterwards."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest

from classwise.core.settings.thread_warnings import warnings_filtered


def warned() -> str:
    """What becomes of a warning: raised, shown, or dropped."""
    shown: list[str] = []
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_: shown.append(str(message))
    try:
        warnings.warn("old format", UserWarning, stacklevel=1)
    except UserWarning:
        return "raised"
    finally:
        warnings.showwarning = before
    return "shown" if shown else "dropped"


def in_a_thread(work: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "filters", [("always", None, Warning, None, 0)])


def test_a_filter_applies_to_its_thread_message_and_category() -> None:
    with warnings_filtered("error", "OLD", UserWarning):
        assert warned() == "raised"
        assert in_a_thread(warned) == "shown"
        with warnings_filtered("ignore"):
            assert warned() == "dropped"
            assert in_a_thread(warned) == "shown"
        assert warned() == "raised"
    with warnings_filtered("error", "new"), warnings_filtered("error", "", DeprecationWarning):
        assert warned() == "shown"
    assert warned() == "shown"


@pytest.mark.parametrize("first", [0, 1])
def test_filters_are_restored_in_any_order(first: int) -> None:
    before = list(warnings.filters)
    contexts = [warnings_filtered("ignore") for _ in range(2)]
    for context in contexts:
        in_a_thread(context.__enter__)
    in_a_thread(lambda: contexts[first].__exit__(None, None, None))
    in_a_thread(lambda: contexts[1 - first].__exit__(None, None, None))
    assert warnings.filters == before


def test_filters_that_others_set_meanwhile_remain() -> None:
    with warnings_filtered("error"):
        warnings.simplefilter("ignore", ResourceWarning)
    assert [entry[0] for entry in warnings.filters] == ["ignore", "always"]
