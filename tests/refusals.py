"""Calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from classwise.core.errors import ClasswiseError


def check_refused(message: str, call: Callable[..., object], /, *arguments: Any, **options: Any) -> None:
    """Check that a call is refused, in one line that matches the pattern ``message``."""
    with pytest.raises(ClasswiseError, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)


def refused(call: Callable[..., object], /, *arguments: Any, **options: Any) -> str:
    """The error message of a call, which is one line."""
    with pytest.raises(ClasswiseError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
