"""Markdown tables, and the line that says where and when they were measured."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import torch


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table with a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def processor() -> str:
    """The number of cores and the model of the processor, such as ``2 cores of AMD EPYC (family 26, model 2)``."""
    names = Path("/proc/cpuinfo")
    text = names.read_text() if names.is_file() else ""
    found = [re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE) for name in ("model name", "cpu family", "model")]
    where = f"{os.cpu_count()} cores"
    if all(found):
        name, family, model = (match[1].strip() for match in found if match)
        where += f" of {name} (family {family}, model {model})"
    return where


def conditions() -> str:
    """Date, version of torch and processor, such as ``25 November 2026, torch 2.13.0+cpu, 2 cores of AMD EPYC``."""
    now = datetime.now(UTC)
    return f"{now.day} {now:%B %Y}, torch {torch.__version__}, {processor()}"
