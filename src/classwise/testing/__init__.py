"""Robustness in tests: `assert_robust`, and the pytest plugin that caches its audits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classwise.testing.robustness import assert_robust as assert_robust

__all__ = ["assert_robust"]


def __getattr__(name: str) -> Any:
    """Import `assert_robust` on first use, so that pytest starts without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'classwise.testing' has no attribute {name!r}")
    from classwise.testing.robustness import assert_robust

    return assert_robust
