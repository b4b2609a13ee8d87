"""The command line: it parses, calls the library and prints. Nothing heavy is imported before a command runs."""

from __future__ import annotations

from classwise.cli.app import main

__all__ = ["main"]
