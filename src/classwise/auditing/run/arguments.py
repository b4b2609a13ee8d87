"""`evaluates`: the options of `classwise.auditing.evaluation` as arguments of a function."""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from classwise.auditing.evaluation.option import Option, options_of
from classwise.auditing.evaluation.types import type_of
from classwise.core.compute.precision import Dtype, Precision
from classwise.core.settings.docstrings import docstring
from classwise.data.images import Group

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = {"torch": torch, "Precision": Precision, "Dtype": Dtype, "Group": Group}
"""The names in the types of options that need torch."""
_WIDTH = 120
"""Longest line of a docstring."""


def evaluates(function: F) -> F:
    """Give a function the options of a record, its last argument ``**options: Unpack[...]``, each by its name.

    So `help`, completion in notebooks and `classwise.core.settings.arguments.checked` know their names, types, defaults
    and descriptions.

    Example:
        >>> from typing import Unpack
        >>> from classwise.auditing.evaluation.evaluation import Computed
        >>> from classwise.auditing.run.arguments import evaluates
        >>> @evaluates
        ... def evaluate(model: object, **options: Unpack[Computed]) -> None: ...
        >>> list(inspect.signature(evaluate).parameters)
        ['model', 'device', 'precision', 'batch_size', 'seed']
    """
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    written = type("Written", (), {"__annotations__": {last.name: function.__annotations__.pop(last.name)}})
    (record,) = typing.get_args(typing.get_type_hints(written, function.__globals__)[last.name])
    options = options_of(record).values()
    parameters += [
        inspect.Parameter(option.name, last.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for option in options
    ]
    function.__annotations__ |= {option.name: type_of(option.type, _NAMES) for option in options}
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    before, entry, after = docstring(function).partition(f"    **{last.name}: see `{record.__name__}`.\n")
    if entry:
        function.__doc__ = "".join((before, *map(_entry, options), after))
    return function


def _entry(option: Option) -> str:
    """The entry of an option in the list of arguments of a docstring."""
    text = f"{option.name}: {option.help}"
    return textwrap.fill(text, _WIDTH - 4, initial_indent=" " * 4, subsequent_indent=" " * 8) + "\n"
