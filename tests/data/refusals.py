"""What `load_data` refuses."""

from __future__ import annotations

from typing import Any

import pytest

from classwise.core.errors import ClasswiseError
from classwise.data import load_data


def refused(message: str, source: Any, **options: Any) -> None:
    """Check that `load_data` refuses data, in one line that matches the pattern ``message``."""
    with pytest.raises(ClasswiseError, match=message) as caught:
        load_data(source, **options)
    assert "\n" not in str(caught.value)
