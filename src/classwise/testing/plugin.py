"""The pytest plugin: audits of `classwise.testing.assert_robust` are saved in pytest's cache.

It imports no torch and changes nothing else. ``pytest --cache-clear`` removes the audits; ``-p no:cacheprovider``
disables the cache, and ``-p no:classwise`` the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.testing.cache import pop_cache, push_cache

if TYPE_CHECKING:
    import pytest

NAME = "classwise"
"""Name of the folder in pytest's cache."""


def pytest_configure(config: pytest.Config) -> None:
    """Make pytest's cache known to `assert_robust`; its folder is created when an audit is written."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        push_cache(lambda: cache.mkdir(NAME))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget the cache of the session."""
    if getattr(config, "cache", None) is not None:
        pop_cache()
