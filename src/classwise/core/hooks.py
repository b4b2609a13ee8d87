"""Functions of later layers that this one calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

hooks: dict[str, Callable[[Any], str]] = {}
"""``text`` and ``html`` render a result; the package registers them."""
