"""What an annotation accepts as an argument: a validator of pydantic, and its description in words."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Number
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, get_args, get_origin

import pydantic

from classwise.core.settings.limits import impossible_path

BY_CONTENT = object()
"""In ``Annotated``: the function itself checks every value, such as each label, with messages of its own."""


class PathError(ValueError):
    """A path that no file system accepts; the message is the reason."""


@dataclass(frozen=True)
class Accepted:
    """What an annotation accepts.

    Attributes:
        schema: a type for pydantic; `Any` if nothing is checked.
        text: what is accepted, as in ``must be {text}``.
    """

    schema: Any
    text: str

    @functools.cached_property
    def adapter(self) -> pydantic.TypeAdapter[Any]:
        """The validator of pydantic."""
        return pydantic.TypeAdapter(self.schema, config=pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True))


def accepted(hint: Any) -> Accepted:
    """What an annotation accepts: its values, and their description."""
    outer, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return _union(hint.__constraints__) if hint.__constraints__ else accepted(hint.__bound__ or Any)
    if hint is Any or hint is object:
        return Accepted(Any, "anything")
    if hint is None or hint is types.NoneType:
        return Accepted(None, "None")
    if outer is Annotated and BY_CONTENT in hint.__metadata__:
        return Accepted(Any, "anything")
    if outer is Annotated:
        return _annotated(accepted(parts[0]), hint.__metadata__)
    if outer is Union or outer is types.UnionType:
        return _union(parts)
    if outer is Literal:
        return Accepted(hint, _listed([repr(part) for part in parts]))
    if hint in _SCALARS:
        return Accepted(Annotated[hint, pydantic.BeforeValidator(_scalar)], _SCALARS[hint])
    kind = outer or hint
    if kind is Callable:
        return _satisfying(callable, "a function")
    if not isinstance(kind, type):
        return Accepted(Any, "anything")
    if kind is type:
        return _satisfying(inspect.isclass, "a class")
    if issubclass(kind, tuple) and parts and parts[-1] is not ...:
        items = types.GenericAlias(tuple, tuple(accepted(part).schema for part in parts))
        return _items(items, f"a tuple of {len(parts)} values", tuple)
    if kind in _LISTS:
        item = accepted(parts[0] if parts else Any)
        text = "a list" if item.schema is Any else f"a list of {_PLURALS.get(item.text) or f'values, each {item.text}'}"
        return _items(types.GenericAlias(list, (item.schema,)), text, kind)
    if issubclass(kind, Mapping):
        return _mapping(*(accepted(part) for part in parts or (Any, Any)))
    if getattr(kind, "_is_protocol", False):
        methods = [name for name in vars(kind) if not name.startswith("_")]
        return _satisfying(functools.partial(_has, methods), f"an object with {_listed(methods, 'and')}")
    if issubclass(kind, os.PathLike):
        return _satisfying(_is_path, "a path")
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    return _satisfying(functools.partial(_is_instance, kind), _CLASSES.get(kind.__name__, f"{article} {kind.__name__}"))


_SCALARS = {bool: "True or False", int: "an integer", float: "a number", str: "text"}
_ARRAY_SCALARS = (bool, int, float, complex, str, bytes)
_PLURALS = {"an integer": "integers", "a number": "numbers", "text": "text", "anything": "values"}
_CLASSES = {"ndarray": "an array", "Tensor": "a tensor", "Module": "a torch.nn.Module", "device": "a torch.device"}
_LISTS = (list, tuple, Sequence, Iterable, Collection)


def _annotated(base: Accepted, metadata: Sequence[Any]) -> Accepted:
    """Add the words and the ranges of ``Annotated`` to a type."""
    words = next((entry for entry in metadata if isinstance(entry, str)), "")
    rules = [entry for entry in metadata if not isinstance(entry, str)]
    bounds = {
        name: getattr(rule, name)
        for entry in rules
        for rule in getattr(entry, "metadata", [entry])
        for name in ("ge", "gt", "le", "lt")
        if getattr(rule, name, None) is not None
    }
    schema = base.schema
    if bounds:
        rules.insert(0, pydantic.AfterValidator(_not_nan))
    if rules:
        schema = functools.reduce(lambda inner, rule: Annotated[inner, rule], rules, schema)
    return Accepted(schema, words or base.text + _range(bounds))


def _range(bounds: Mapping[str, float]) -> str:
    """The range of a number in words: `` from 0 to 1``."""
    shown = {name: f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for name, bound in bounds.items()}
    if shown.keys() == {"ge", "le"}:
        return f" from {shown['ge']} to {shown['le']}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    text = " and ".join(f"{word} {shown[name]}" for name, word in words.items() if name in shown)
    return f" {text}" if text else ""


def _union(parts: Sequence[Any]) -> Accepted:
    """Any of several types; classes are tried before scalars."""
    modules = {part: (get_origin(part) or part).__module__ for part in parts}
    array = any(module.startswith("numpy._typing") for module in modules.values())
    if array:  # `numpy.typing.ArrayLike` and other types
        own = ("numpy", "typing_extensions", "collections")
        parts = [part for part in parts if part not in _ARRAY_SCALARS and not modules[part].startswith(own)]
    kinds = [accepted(part) for part in parts]
    if array:
        kinds.insert(0, _satisfying(_is_array, "an array of numbers"))
    if any(kind.schema is Any for kind in kinds):
        return Accepted(Any, "anything")
    plain = [kind for kind in kinds if kind.schema is not None]
    words = list(dict.fromkeys(kind.text for kind in plain))
    ordered = sorted(plain, key=lambda kind: kind.text in _SCALARS.values())
    schema: Any = Union[tuple(kind.schema for kind in ordered)]  # noqa: UP007  # of a tuple
    if len(plain) > 1:
        schema = Annotated[schema, pydantic.Field(union_mode="left_to_right")]
    if "a path" in words:
        schema = Annotated[schema, pydantic.AfterValidator(_possible_path)]
    if len(plain) == len(kinds):
        return Accepted(schema, _listed(words))
    return Accepted(Optional[schema], f"{_listed(words)}, or None")  # noqa: UP045  # of a variable


def _listed(words: Sequence[str], last: str = "or") -> str:
    comma = "," if any(" or " in word or " and " in word for word in words) else ""
    return f"{comma} {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _satisfying(condition: Callable[[Any], bool], text: str) -> Accepted:
    """Values that satisfy a condition, unchanged."""

    def check(value: Any) -> Any:
        if not condition(value):
            raise ValueError(text)
        return value

    return Accepted(Annotated[Any, pydantic.AfterValidator(check)], text)


def _items(schema: Any, text: str, kind: type) -> Accepted:
    """Lists, tuples and arrays whose items are of a type; the value is passed on if no item changes.

    Other iterables, where they are accepted, are passed on with their items unread.
    """
    unread = (Set,) if kind is Collection else (Iterable,) if kind is Iterable else ()

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        array = hasattr(value, "tolist") and hasattr(value, "ndim") and not getattr(value, "is_meta", False)
        if isinstance(value, str | bytes | bytearray | memoryview | type) or (array and value.ndim == 0):
            raise ValueError(text)
        if not array and not isinstance(value, Sequence):
            if isinstance(value, unread):
                return value
            raise ValueError(text)
        if get_args(schema) == (Any,):
            return value
        values = value.tolist() if array else value
        items = validate(tuple(values) if get_origin(schema) is tuple else list(values))
        if not array and isinstance(value, kind) and all(map(operator.is_, items, values)):
            return value
        return tuple(items) if kind is tuple else items

    return Accepted(Annotated[schema, pydantic.WrapValidator(check)], text)


def _mapping(key: Accepted, item: Accepted) -> Accepted:
    text = "a mapping" if item.schema is Any else f"a mapping to {_PLURALS.get(item.text, item.text)}"

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(text)  # noqa: TRY004  # pydantic expects it
        items = validate(dict(value))
        same = all(after is value[name] for name, after in items.items() if name in value)
        return value if same and items.keys() == value.keys() else items

    schema = types.GenericAlias(dict, (key.schema, item.schema))
    return Accepted(Annotated[schema, pydantic.WrapValidator(check)], text)


def _scalar(value: Any) -> Any:
    """A NumPy scalar, or an array or tensor without dimensions, as a Python number; any other value unchanged."""
    plain = getattr(value, "shape", None) == () and callable(getattr(value, "item", None))
    if not plain or getattr(value, "is_meta", False):
        return value
    return value.detach().item() if hasattr(value, "detach") else value.item()


def _is_instance(kind: type, value: Any) -> bool:
    return isinstance(value, kind)


def _has(methods: Sequence[str], value: Any) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in methods)


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)


def _is_array(value: Any) -> bool:
    """Whether a value is a number or an array of numbers, of which some may be missing."""
    import numpy as np

    if value is None or isinstance(value, str | bytes | bytearray | Mapping | Set):
        return False
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError):  # ragged, or a tensor elsewhere than in memory
        return False
    if array.dtype.kind == "O":
        return all(element is None or isinstance(element, Number) for element in array.flat)
    return array.dtype.kind in "biuf"


def _not_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("not a number")
    return value


def _possible_path(value: Any) -> Any:
    if (isinstance(value, str) or _is_path(value)) and (reason := impossible_path(value)):
        raise PathError(reason)
    return value
