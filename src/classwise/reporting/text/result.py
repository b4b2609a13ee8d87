"""The text of each result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.result import WorstClass
from classwise.reporting.board.result import Board
from classwise.reporting.text.audit import audit_parts
from classwise.reporting.text.board import board_parts
from classwise.reporting.text.comparison import comparison_parts
from classwise.reporting.text.curve import curve_parts
from classwise.reporting.text.layout import TextTable, joined
from classwise.reporting.text.worst_class import worst_class_parts

Result = Audit | Board | Comparison | Crossing | Curve | WorstClass
_PARTS: dict[type, Any] = {
    Audit: audit_parts,
    Board: board_parts,
    Comparison: comparison_parts,
    Crossing: comparison_parts,
    Curve: curve_parts,
    WorstClass: worst_class_parts,
}


def parts_of(result: Result) -> Iterator[str | TextTable]:
    """The lines and tables that describe a result."""
    parts: Iterator[str | TextTable] = _PARTS[type(result)](result)
    return parts


def text(result: Result) -> str:
    """A result as text, as the command that computes it prints it."""
    return joined(parts_of(result))
