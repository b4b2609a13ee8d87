"""What a hostile case is, and what every case may use: a finished run, an audit of it, and files of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.options import with_options

Content = bytes | Callable[[Path], object]
"""The bytes of a file, or a function that writes it under the path that it is given."""

REFUSED = frozenset({2})
"""The statuses of a case that can only be refused."""
EITHER = frozenset({0, 1, 2, 3})
"""The statuses of a case that may be harmless; whatever succeeds must give right numbers."""
USER_CODE = frozenset({2, 4})
"""The statuses of a case whose own code fails."""


class Shared(NamedTuple):
    """Read-only inputs of all cases.

    Attributes:
        run: a finished training run on digits.
        audit: a finished audit of it.
        weights: the state dict of a LeNet for digits, as ``torch.save`` writes it.
        data: images as .npz, a part of digits' test split.
        trained: the weights of a PreActResNet-18 with a high clean accuracy on digits.
    """

    run: Path
    audit: Path
    weights: Path
    data: Path
    trained: Path


@dataclass(frozen=True)
class Case:
    """A command on hostile input.

    Attributes:
        name: unique among all cases.
        words: the command line; ``@run``, ``@audit``, ``@weights``, ``@data`` and ``@trained`` are replaced by the paths of `Shared`.
        files: written into the case's own folder, which is the working folder, before the command runs.
        statuses: the exit statuses that are right.
        reference: the words of a clean command that must print the same JSON if this one succeeds; None for no such.
        guard: a guard that must warn in the JSON of the audit; empty for none.
        check: finds contradictions in the JSON of a success; None for no check.
        around: makes a context in which the command runs, such as another state of torch.
        after: commands that are run in the same folder afterwards. They must succeed, and those with ``--json`` print the
            same numbers.
        call: calls the Python API in place of the command. Its exit status is that of a command with the same error, 1 for
            an AssertionError, and 0 if it returns.
        heavy: whether its files or its work take seconds; only ``make test-hostile`` runs it.
        optimise: the level of optimisation of an interpreter that is started for it; 0 for none.
    """

    name: str
    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    statuses: frozenset[int] = REFUSED
    reference: tuple[str, ...] | None = None
    guard: str = ""
    check: Callable[[Any], list[str]] | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    after: tuple[tuple[str, ...], ...] = ()
    call: Callable[[Shared], object] | None = None
    heavy: bool = False
    optimise: int = 0

    def command(self, shared: Shared) -> list[str]:
        """The words with the shared paths in them."""
        return [filled(word, shared) for word in self.words]


def filled(word: str, shared: Shared) -> str:
    """A word with the shared paths in it."""
    for key, path in shared._asdict().items():
        word = word.replace(f"@{key}", str(path))
    return word


QUICK = (
    "--epochs=1",
    "--set=threat=Linf:0.1",
    "--set=data.subset=120",
    "--set=data.validation=0.2",
    "--set=data.augment=none",
    "--set=model.name=small-cnn",
    "--set=model.width=0.1",
    "--set=batch_size=32",
    "--set=attack=pgd:steps=1",
    "--set=validation_attack=pgd:steps=1",
)
"""Changes that make a training on digits last about a second."""

ATTACK = "--attack=fgsm"
AUDIT = ("audit", "@run", "--subset=40", "--json")
"""An audit of the shared run, without an attack and an output folder yet."""
CLEAN_AUDIT = (*AUDIT, ATTACK)
"""The audit whose numbers a harmless variation must give."""


def audit(*words: str) -> tuple[str, ...]:
    """The words of an audit of the shared run into the folder ``out``."""
    return (*with_options((*AUDIT, "--out=out"), *words),)


def train(*words: str, recipe: str = "at") -> tuple[str, ...]:
    """The words of a quick training into the folder ``out``."""
    budget = ("--budget=short",) if recipe == "at" else ()
    return (*with_options(("train", recipe, *budget, "--data=digits", "--out=out", *QUICK), *words),)


def small(text: object) -> str:
    """A value as a part of a case's name."""
    shown = ascii(text)
    return shown if len(shown) <= 48 else f"{shown[:36]}...({len(shown)})"
