"""The messages of refused calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from classwise.core.errors import ClasswiseError


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The error message of a call, which is one line."""
    with pytest.raises(ClasswiseError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
