"""The command line that a result records, without secrets."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from classwise.core.errors import printable

FROM_PYTHON = "called from Python"
"""The record of a result that no command line has made."""
LONGEST = 2000
"""The maximal length of a recorded word in characters."""
HIDDEN = "***"
"""The text in place of a secret."""
_NAME = (
    r"[\w.-]*(?:token|secret|password|passwd|pwd|passphrase|(?:api|access|private)[-_]?key|credentials?|signature|sig)"
)
_SECRETS = (
    (re.compile(r"(?<=://)[^/\s]*@"), f"{HIDDEN}@"),  # user and password of an address
    (re.compile(rf"(?i)({_NAME}|[?&]key)(=|%3D|:\s?)[^&\s,;]+"), rf"\1\2{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|eyJ)[\w.-]{10,}"), HIDDEN),
)
"""Patterns of secrets and what replaces them."""
_OPTION = re.compile(rf"(?i)-{{1,2}}{_NAME}")

_command = ContextVar("command", default=FROM_PYTHON)


def recorded_command() -> str:
    """The command line of the running command; `FROM_PYTHON` outside of one."""
    return _command.get()


@contextlib.contextmanager
def recorded(words: Sequence[str]) -> Iterator[None]:
    """Record a command line for the results of the block.

    Args:
        words: the arguments after the program's name.
    """
    before = _command.set(command_text(("classwise", *words)))
    try:
        yield
    finally:
        _command.reset(before)


def command_text(words: Sequence[str]) -> str:
    """A command as one line for a shell, with control characters escaped, and without secrets.

    Secrets are passwords in addresses, values of options and parameters whose name ends with a word such as ``token``
    or ``password``, and texts that begin like the tokens of known services. Very long words are cut.

    Example:
        >>> command_text(["classwise", "audit", "my model.pt", "--data", "https://me:abc@host/x.zip?token=1&size=2"])
        "classwise audit 'my model.pt' --data 'https://***@host/x.zip?token=***&size=2'"
    """
    options = ("", *words)
    hidden = (_OPTION.fullmatch(option) is not None for option in options)
    return " ".join(
        HIDDEN if secret else shlex.quote(printable(_shown(word))) for word, secret in zip(words, hidden, strict=False)
    )


def _shown(word: str) -> str:
    """A word without secrets, cut in the middle if it is very long."""
    shown = word if len(word) <= LONGEST else f"{word[: LONGEST // 2]} ... {word[-LONGEST // 2 :]}"
    for pattern, replacement in _SECRETS:
        shown = pattern.sub(replacement, shown)
    return shown
