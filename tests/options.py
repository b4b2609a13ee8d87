"""Options of commands in tests."""

from __future__ import annotations

from collections.abc import Sequence


def with_options(words: Sequence[str], *options: str) -> list[str]:
    """The words with options ``--name=value``, which replace those of the same names, but for ``--set``."""
    replaced = {option.partition("=")[0] for option in options} - {"--set", "--attack"}
    kept, skipped = list[str](), False
    for word in words:
        if not skipped and word.partition("=")[0] not in replaced:
            kept.append(word)
        skipped = not skipped and word in replaced
    return [*kept, *options]
