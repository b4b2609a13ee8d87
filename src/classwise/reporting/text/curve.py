"""A robustness curve as text."""

from __future__ import annotations

from collections.abc import Iterator

from classwise.auditing.curve.result import Curve
from classwise.reporting.pages.curve import radius_table
from classwise.reporting.text.layout import TextTable, spanned_rows


def curve_parts(found: Curve) -> Iterator[str | TextTable]:
    """A curve: per class the mean and median radius, weakest class first."""
    table = radius_table(found)
    yield TextTable(table.heads, spanned_rows(table), f"{found.meta.model or found.name}: {table.caption}")
    yield ""
    yield table.note
