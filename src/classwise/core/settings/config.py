"""Configuration: frozen dataclasses validated by pydantic, which users write as mappings or short specs."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses
import yaml

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.registry import Registry

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def configurable(cls: type[T]) -> type[T]:
    """Make the class a frozen, keyword-only dataclass that validates its values and rejects unknown keys.

    The constructor raises `ClasswiseError` for an invalid value.
    """
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    decorate: Callable[[type[T]], Any] = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)
    decorated: Any = decorate(cls)
    validate = decorated.__init__

    @functools.wraps(validate)
    def init(self: T, *args: Any, **values: Any) -> None:
        try:
            validate(self, *args, **values)
        except pydantic.ValidationError as error:
            raise _refusal(error, cls.__name__) from None

    decorated.__init__ = init
    result: type[T] = decorated
    return result


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FRACTION = re.compile(r"([+-]?[0-9]{1,300})/([0-9]{1,300})")


def number(value: object) -> object:
    """Read text such as ``"0.03"`` or ``"8/255"`` as a finite float; return any other value unchanged for pydantic."""
    if not isinstance(value, str) or len(value) > limits.SPEC_LENGTH:
        return value
    text = value.replace(" ", "")
    if _DECIMAL.fullmatch(text):
        decimal = float(text)
        return decimal if math.isfinite(decimal) else value
    fraction = _FRACTION.fullmatch(text)
    if fraction is None or int(fraction[2]) == 0:
        return value
    return int(fraction[1]) / int(fraction[2])


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")  # noqa: TRY004  # pydantic expects it
    return value


Number = Annotated[
    float,
    pydantic.Field(ge=-limits.NUMBER, le=limits.NUMBER),
    pydantic.BeforeValidator(number),
    pydantic.BeforeValidator(_no_bool),
]
"""A float in the range of float32; as text also a fraction such as ``8/255``."""
Positive = Annotated[Number, pydantic.Field(gt=0)]
NonNegative = Annotated[Number, pydantic.Field(ge=0)]
Share = Annotated[Number, pydantic.Field(ge=0, le=1)]
"""A fraction in [0, 1]."""
Integer = Annotated[int, pydantic.BeforeValidator(_no_bool)]
Count = Annotated[Integer, pydantic.Field(ge=1, le=limits.COUNT)]
Seed = Annotated[Integer, pydantic.Field(ge=0, le=limits.SEED)]
ClassName = Annotated[str, pydantic.BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""A class name, or a class number as an int or text."""


_POSITIVE: pydantic.TypeAdapter[float] = pydantic.TypeAdapter(Positive)


def _step_size(value: object) -> object:
    if isinstance(value, str) and value.replace(" ", "").endswith("eps"):
        factor = number(value.replace(" ", "").removesuffix("eps") or "1")
        if not isinstance(factor, float) or factor <= 0:
            raise ValueError("a relative step size is a positive multiple of the radius, such as '0.25eps'")
        return value.replace(" ", "")
    return _POSITIVE.validate_python(value)


StepSize = Annotated[float | str, pydantic.BeforeValidator(_step_size)]
"""A step size: absolute (``2/255``), or relative to each image's radius (``"0.25eps"``)."""


def relative_step(step_size: float | str) -> tuple[float, bool]:
    """Split a step size into its number and whether that multiplies the radius."""
    if isinstance(step_size, str):
        factor = number(step_size.removesuffix("eps") or "1")
        assert isinstance(factor, float)
        return factor, True
    return step_size, False


def parse_spec(text: str, known: Container[str] = ()) -> tuple[str, dict[str, Any]]:
    """Split a spec such as ``"pgd:steps=20,step_size=2/255"`` into a name and its options.

    The name may be an import path (``"package.module:Class"``), with options after a second colon. The options of a
    nested part are prefixed by the name of its field and a dot: ``transfer:attack=pgd,attack.steps=20`` gives
    ``{"attack": {"name": "pgd", "steps": "20"}}``.

    Args:
        text: the spec.
        known: registered names, which are never read as a module.

    Raises:
        ClasswiseError: if an option is not of the form ``key=value``, or the spec is too long or nests too deeply.
    """
    if len(text) > limits.SPEC_LENGTH:
        raise ClasswiseError(f"spec {text[:40]!r}... has {len(text)} characters; the limit is {limits.SPEC_LENGTH}")
    name, _, rest = text.partition(":")
    if rest and name not in known and "=" not in rest.partition(":")[0]:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ClasswiseError(f"{text!r}: {item!r} should be key=value, as in pgd:steps=20,step_size=2/255")
        if key.count(".") > limits.SPEC_DEPTH:
            raise ClasswiseError(f"{text!r}: {item!r} has more than {limits.SPEC_DEPTH} nested parts")
        options[key.strip()] = value.strip()
    return name.strip(), _nested(options)


if TYPE_CHECKING or not yaml.__with_libyaml__:
    from yaml import SafeLoader as _SafeLoader
else:
    from yaml import CSafeLoader as _SafeLoader  # libyaml: about ten times as fast


class _PlainLoader(_SafeLoader):
    """Loader of nulls, booleans, numbers, strings, lists and mappings; dates stay strings, other tags are refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # a class attribute of PyYAML
        first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in _SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
    }


def read_yaml(text: str, where: str) -> Any:
    """Read one YAML document of plain data.

    Args:
        text: the YAML text.
        where: the prefix of an error message.

    Raises:
        ClasswiseError: if the text is not YAML, or contains other tags or keys than plain ones, an integer of more
            than 64 bits, or more than `limits.YAML_VALUES` values (with aliases expanded) or `limits.YAML_DEPTH`
            nested collections.
    """
    try:
        _check_expansion(text, where)
        value = yaml.load(text, Loader=_PlainLoader)  # noqa: S506  # it is a SafeLoader
    except yaml.YAMLError as error:
        raise ClasswiseError(f"{where} is not YAML of plain data: {error}") from error
    except ClasswiseError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:  # a scalar with another type's tag
        raise ClasswiseError(f"{where}: a value does not match its YAML tag ({error})") from error
    _check_plain(value, where)
    return value


def _check_expansion(text: str, where: str) -> None:
    """Check the number of values with aliases expanded, from the parser's events, without building a value."""
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise ClasswiseError(f"{where}: the alias *{event.anchor} refers to a value that contains it")
            total += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, total))
            total += 1
            if len(open_) > limits.YAML_DEPTH:
                raise ClasswiseError(f"{where} has more than {limits.YAML_DEPTH} nested collections; use fewer")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if total > limits.YAML_VALUES:
            raise ClasswiseError(
                f"{where} has more than {limits.YAML_VALUES} values with its aliases expanded; use fewer"
            )


def _check_plain(value: Any, where: str) -> None:
    """Refuse keys that are neither strings nor integers, and integers of more than 64 bits."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str) and type(key) is not int:
                raise ClasswiseError(f"{where}: the key {key!r} should be a name")
            _check_plain(inner, where)
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner, where)
    elif type(value) is int and abs(value) > limits.INTEGER:
        raise ClasswiseError(f"{where}: an integer of {value.bit_length()} bits; integers may have at most 64")


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Gather the options ``a=name`` and ``a.key=value`` in one mapping ``a``."""
    nested: dict[str, Any] = {}
    for key, value in options.items():
        first, dot, rest = key.partition(".")
        if not dot:
            nested.setdefault(key, value)
        else:
            part = nested.get(first, options.get(first, {}))
            if isinstance(part, str):
                name, within = parse_spec(part)
                part = {"name": name, **within}
            nested[first] = {**part, rest: value}
    return {key: _nested(value) if isinstance(value, dict) else value for key, value in nested.items()}


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested options into the form that `parse_spec` reads, ``{"attack": "pgd", "attack.steps": 20}``."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        for inner, option in flat_options(value).items():
            flat[key if inner == "name" else f"{key}.{inner}"] = option
    return flat


def build(cls: type[T], values: Mapping[str, Any], where: str, field: str = "") -> T:
    """Build a dataclass from a mapping.

    Args:
        cls: the dataclass.
        values: values by field name.
        where: the prefix of an error message.
        field: the dotted field that the mapping is the value of, if it is nested.

    Raises:
        ClasswiseError: for an unknown key (the message suggests the nearest known one) or an invalid value.
    """
    if dataclasses.is_dataclass(cls):
        known = [field.name for field in dataclasses.fields(cls) if field.init]
        for key in values:
            if key not in known:
                raise unknown("field", str(key), known, f"{field}." if field else "", where)
    try:
        return pydantic.TypeAdapter(cls).validate_python(dict(values))
    except pydantic.ValidationError as error:
        raise _refusal(error, f"{where} field {field!r}" if field else where) from None


def _refusal(error: pydantic.ValidationError, where: str) -> ClasswiseError:
    """The `ClasswiseError` raised by a validator, or one that describes the first invalid field."""
    cause = error.errors()[0].get("ctx", {}).get("error")
    return cause if isinstance(cause, ClasswiseError) else ClasswiseError(f"{where}: {explain(error)}")


def explain(error: pydantic.ValidationError) -> str:
    """Describe the first error of pydantic in one line: the field, the value, and what is wrong."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "missing":  # the input is then all other fields
        return f"{field} is missing"
    message = first["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
    return f"{field} = {first['input']!r}: {message}" if field else message


Spec = str | Mapping[str, Any]
"""A part and its options: ``"pgd:steps=20"`` or ``{"name": "pgd", "steps": 20}``."""


def make(registry: Registry[T], spec: Spec | T) -> T:
    """Build the part of a spec; an instance is returned unchanged.

    Raises:
        ClasswiseError: for an unknown name or field, or an invalid value.
    """
    if isinstance(spec, str):
        name, options = parse_spec(spec, registry)
    elif isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ClasswiseError(f"{registry.kind} {dict(spec)!r} has no 'name'; state it beside the settings")
    else:
        return spec
    return build(registry.load(name), options, f"{registry.kind} {name!r}")


def spec_text(spec: Mapping[str, Any]) -> str:
    """Format the complete spec of a part in command-line syntax: ``pgd:steps=20,step_size=0.1eps``."""
    chosen = flat_options({key: value for key, value in spec.items() if key != "name"})
    options = ",".join(f"{key}={value}" for key, value in chosen.items() if value is not None)
    return f"{spec.get('name', '')}:{options}".removesuffix(":")


def describe(registry: Registry[T], part: T) -> dict[str, Any]:
    """Write a part as its complete spec, defaults included, from which `make` builds an equal part.

    A part whose fields are not all plain data has a method ``described`` that gives them as a spec has them.
    """
    assert dataclasses.is_dataclass(part)
    assert not isinstance(part, type)
    described = getattr(part, "described", None)
    fields = dataclasses.asdict(part) if described is None else described()
    return {"name": registry.name_of(type(part)), **fields}
