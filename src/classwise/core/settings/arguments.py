"""Validation of the arguments of public functions by their annotations.

`checked` decorates a function or a class. Every argument is validated by pydantic in strict mode before the body runs:
True and False are no numbers, text is no number, and floats are no integers. NumPy scalars count as Python numbers. An
annotation states what is accepted, so a new argument or option needs no other code: its type; its range as in
``Annotated[int, pydantic.Field(ge=1)]``; and, where the type alone would be unclear, the words of the error message as
in ``Annotated[Any, "images"]``. Data and models are neither copied nor iterated.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import pydantic

from classwise.core.errors import ArgumentError, ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.accepted import Accepted, PathError, accepted
from classwise.core.settings.ambient_state import known_state

F = TypeVar("F", bound=Callable[..., Any])

BatchSize = Annotated[int, pydantic.Field(ge=32, le=limits.COUNT)]
"""Images on the device at once; results repeat bit for bit only from 32 on."""
Level = Annotated[float, pydantic.Field(gt=0, lt=1)]
"""A confidence level, or 1 minus one."""
Distance = Annotated[float, pydantic.Field(gt=0, lt=1)]
"""A distance between accuracies, a fraction."""
Seconds = Annotated[float, pydantic.Field(gt=0)]


def checked(target: F) -> F:
    """Validate the arguments of a function, or of the constructor and the public methods of a class, at each call.

    The signature and the docstring are unchanged. Names that are imported for type checking only are not validated.

    Raises:
        ClasswiseError: when the function is called, for an unknown or missing argument, or a value that the annotation
            does not accept: the argument, the value, and what is accepted, in one line.

    Example:
        >>> from classwise.core.settings.arguments import checked
        >>> @checked
        ... def rate(share: Annotated[float, pydantic.Field(ge=0, le=1)]) -> float:
        ...     return share
        >>> rate("8")
        Traceback (most recent call last):
            ...
        classwise.core.errors.ArgumentError: rate(): share = '8': must be a number from 0 to 1
    """
    if not isinstance(target, type):
        label = target.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
        return typing.cast("F", _wrapped(target, label))
    for name, member in list(vars(target).items()):
        label = target.__name__ if name == "__init__" else f"{target.__name__}.{name}"
        if isinstance(member, classmethod | staticmethod) and not name.startswith("_"):
            setattr(target, name, type(member)(_wrapped(member.__func__, label)))
        elif inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(target, name, _wrapped(member, label))
    return target


def _wrapped(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    arguments = Arguments(function, label)

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        with known_state():
            positional, named = arguments.bound(args, values)
            return function(*positional, **named)

    call.arguments = arguments  # type: ignore[attr-defined]
    return call


def check(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Validate some of the arguments of a `checked` function, by their names, without calling it.

    Raises:
        ClasswiseError: for an unknown argument or an invalid value.
    """
    arguments: Arguments = function.arguments  # type: ignore[attr-defined]
    arguments.require_known(values)
    for name, value in values.items():
        arguments.validated(name, value)


class Arguments:
    """The arguments that a function accepts.

    Args:
        function: the function.
        label: its name in messages.
    """

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.label = label
        self.signature = inspect.signature(function)
        self._function = function
        self._accepted: dict[str, Accepted] = {}
        parameters = self.signature.parameters.values()
        self._known = {parameter.name for parameter in parameters} - {"self", "cls"}
        self._any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [parameter.name for parameter in parameters if parameter.kind in positional]
        self._rest = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL]

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotation of each argument by its name."""
        function: Any = inspect.unwrap(self._function)
        written = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        hints: dict[str, Any] = {}
        for name, hint in written.items():
            owner = types.SimpleNamespace(__annotations__={name: hint})
            try:
                found = typing.get_type_hints(owner, function.__globals__, _Names(function.__globals__), True)[name]
            except AttributeError:  # of a module that is imported for type checking only
                found = Any
            hints[name] = found
        return hints

    def bound(self, args: tuple[Any, ...], values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The validated positional and keyword arguments of a call.

        Raises:
            ClasswiseError: for an unknown or missing argument, or an invalid value.
        """
        self.require_known(values)
        if len(args) > len(self._positional) and not self._rest:
            most = ", ".join(name for name in self._positional if name in self._known) or "none"
            raise ClasswiseError(
                f"{self.label}(): too many positional arguments; at most {most}: pass the others by name"
            )
        try:
            self.signature.bind(*args, **values)
        except TypeError as error:
            raise ClasswiseError(f"{self.label}(): {error}") from None
        names = itertools.chain(self._positional, itertools.repeat(*self._rest)) if self._rest else self._positional
        return (
            [self.validated(name, value) for name, value in zip(names, args, strict=False)],
            {name: self.validated(name, value) for name, value in values.items()},
        )

    def require_known(self, names: Iterable[str]) -> None:
        """Refuse unknown keyword arguments, unless the function takes any.

        Raises:
            ClasswiseError: with the nearest known name.
        """
        if self._any_keyword:
            return
        for name in names:
            if name not in self._known:
                raise unknown(f"argument of {self.label}():", name, self._known)

    def validated(self, name: str, value: Any) -> Any:
        """The value of an argument, with NumPy scalars as Python numbers.

        Raises:
            ClasswiseError: if the annotation does not accept it.
        """
        if name not in self._accepted:
            self._accepted[name] = accepted(self.hints.get(name, Any))
        kind = self._accepted[name]
        if kind.schema is Any:
            return value
        try:
            return kind.adapter.validate_python(value)
        except pydantic.ValidationError as error:
            causes = [detail.get("ctx", {}).get("error") for detail in error.errors(include_url=False)]
            for cause in causes:
                if isinstance(cause, ClasswiseError):
                    raise cause from None
            why = next((f"; {cause}" for cause in causes if isinstance(cause, PathError)), "")
            raise ArgumentError(f"{self.label}(): {name} = {shown(value)}: must be {kind.text}{why}") from None


class _Names(dict[str, Any]):
    """Names for the evaluation of annotations: `Any` for those that a module imports for type checking only."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        if name in self._module or hasattr(builtins, name):
            raise KeyError(name)
        return Any


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxlong = 40


def shown(value: Any) -> str:
    """A value on one line of limited length, for messages."""
    try:
        return " ".join(_REPR.repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        return f"a value of type {type(value).__name__} that is too long"
