"""HTML of results for notebooks: one sentence, and the figure of the classes as an image."""

from __future__ import annotations

import base64
from pathlib import Path

from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.board.result import Board
from classwise.reporting.escape import markup_text
from classwise.reporting.facts.audit_summary import AuditSummary, shown_warnings
from classwise.reporting.facts.comparison_tables import class_dots
from classwise.reporting.facts.incomplete import report_of
from classwise.reporting.facts.sentences import AuditFacts, headline
from classwise.reporting.facts.untested import bounds_reason
from classwise.reporting.figures.radii import radius_curves
from classwise.reporting.links import viewer_link
from classwise.reporting.pages.board import board_dots
from classwise.reporting.pages.curve import CurveFacts, curve_headline
from classwise.reporting.svg import Drawing

Result = Audit | Board | Comparison | Curve


def html(result: Result) -> str:
    """Render a result for a notebook: its headline and the figure of its classes, independent of the page's styles."""
    sentence, note, drawing = _parts(result)
    lines = [f"<p><b>{markup_text(sentence)}</b></p>"]
    lines += [f"<p>{markup_text(note)}</p>"] if note else []
    lines += [image(drawing)] if drawing is not None else []
    viewer = viewer_link(result, Path.cwd()) if isinstance(result, Audit) else ""
    lines += [f'<p><a href="{markup_text(viewer)}">Look at the images in the viewer</a></p>'] if viewer else []
    return f"<div>{''.join(lines)}</div>"


def image(drawing: Drawing) -> str:
    """Render a drawing as an ``<img>`` with its own styles; it has no effect on the document around it."""
    data = base64.b64encode(drawing.standalone().encode()).decode()
    size = f'width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
    return f'<img {size} alt="{markup_text(drawing.label)}" src="data:image/svg+xml;base64,{data}">'


def _parts(result: Result) -> tuple[str, str, Drawing | None]:
    """Headline, note and figure."""
    if isinstance(result, Curve):
        return "".join(curve_headline(CurveFacts.of(result))), "", radius_curves(result)
    if isinstance(result, Board):
        rows = [
            f"{row['rank']}. {row['model']}: {formatting.bare_percent(row['worst'])} %"
            for _, row in result.table.head(10).iterrows()
        ]
        note = "Rank, model and worst-class accuracy; ranks of different tables are unrelated."
        return "; ".join(rows), note, board_dots(result.tables[0]) if result.tables else None
    if isinstance(result, Comparison):
        if not result.complete:
            return "; ".join(result.gaps), bounds_reason(result), None
        rows = [
            f"{name}: {formatting.bare_percent(row['overall'])} % overall, "
            f"{formatting.bare_percent(row['worst'])} % in the worst class"
            for name, row in result.table.iterrows()
        ]
        return "; ".join(rows), f"Accuracy {result.conditions}.", class_dots(result)
    if not result.complete:
        partial = report_of(result)
        return partial.headline, partial.note, partial.drawing()
    summary = AuditSummary.of(result)
    warnings = "; ".join(warning.sentence for warning in shown_warnings(result, result.group))
    return "".join(headline(AuditFacts.of(summary))), warnings and f"Warnings: {warnings}", summary.bars(summary.main)
