"""Markdown tables."""

from __future__ import annotations


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table with a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
