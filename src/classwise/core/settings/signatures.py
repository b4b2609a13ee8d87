"""Checks of the signatures of functions and classes of a user, when they are defined or registered."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from classwise.core.errors import ClasswiseError


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Whether a callable accepts this number of positional arguments, and requires no others; True if unknown."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # functions in C have none
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def check_call(function: Callable[..., Any] | None, arguments: Sequence[str], what: str) -> None:
    """Check that a function can be called with positional arguments; None is no function.

    Args:
        function: the function.
        arguments: names of the arguments, for the message.
        what: the function in messages, such as ``metric 'x': the function``.

    Raises:
        ClasswiseError: if it cannot.
    """
    if function is not None and not accepts(function, len(arguments)):
        found = ", ".join(inspect.signature(function).parameters) or "none"
        raise ClasswiseError(f"{what} is called with ({', '.join(arguments)}), but its parameters are ({found})")


def check_methods(cls: type) -> None:
    """Check that the methods of a class can be called as those of its base classes that they override.

    Raises:
        ClasswiseError: if one cannot.
    """
    for name, method in vars(cls).items():
        if name.startswith("_") or not isinstance(method, types.FunctionType):
            continue
        declared = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
        if not isinstance(declared, types.FunctionType):
            continue
        parameters = [*inspect.signature(declared).parameters.values()]
        if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
            continue
        called = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
        keywords = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        try:
            inspect.signature(method).bind(*called, **keywords)
        except TypeError:
            names = ", ".join([*(parameter.name for parameter in called[1:]), *(f"{key}=" for key in keywords)])
            found = ", ".join([*inspect.signature(method).parameters][1:]) or "none"
            raise ClasswiseError(
                f"{cls.__module__}.{cls.__qualname__}.{name} is called with ({names}), but its parameters are ({found})"
            ) from None
