"""What `load_data` refuses."""

from __future__ import annotations

from typing import Any

from classwise.data import load_data
from tests.refusals import check_refused


def refused(message: str, source: Any, **options: Any) -> None:
    """Check that `load_data` refuses data, in one line that matches the pattern ``message``."""
    check_refused(message, load_data, source, **options)
