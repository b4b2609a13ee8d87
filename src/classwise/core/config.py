"""Settings: frozen dataclasses that pydantic checks, written by users as mappings or short specs."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses
import yaml

from classwise.core import limits
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.registry import Registry

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def configurable(cls: type[T]) -> type[T]:
    """Make the class a frozen, keyword-only dataclass that validates its values and refuses unknown keys.

    Its constructor raises `ClasswiseError` for an invalid value.
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
    made: type[T] = decorated
    return made


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FRACTION = re.compile(r"([+-]?[0-9]{1,300})/([0-9]{1,300})")


def number(value: object) -> object:
    """Read ``"8/255"`` as the fraction that it is; leave everything else, and what is not finite, to pydantic."""
    if not isinstance(value, str) or len(value) > limits.SPEC_LENGTH:
        return value
    text = value.replace(" ", "")
    if _DECIMAL.fullmatch(text):
        read = float(text)
        return read if math.isfinite(read) else value
    fraction = _FRACTION.fullmatch(text)
    if fraction is None or int(fraction[2]) == 0:
        return value
    return int(fraction[1]) / int(fraction[2])


Number = Annotated[float, pydantic.Field(ge=-limits.NUMBER, le=limits.NUMBER), pydantic.BeforeValidator(number)]
"""A float that float32 can hold; in text also a fraction, such as ``8/255``."""
Positive = Annotated[Number, pydantic.Field(gt=0)]
NonNegative = Annotated[Number, pydantic.Field(ge=0)]
Share = Annotated[Number, pydantic.Field(ge=0, le=1)]
"""A fraction of a whole, in [0, 1]."""
Count = Annotated[int, pydantic.Field(ge=1, le=limits.COUNT)]
Seed = Annotated[int, pydantic.Field(ge=0, le=limits.SEED)]
ClassName = Annotated[str, pydantic.BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""A class by its name, or by its number, as text or not."""


_POSITIVE: pydantic.TypeAdapter[float] = pydantic.TypeAdapter(Positive)


def _step_size(value: object) -> object:
    if isinstance(value, str) and value.replace(" ", "").endswith("eps"):
        factor = number(value.replace(" ", "").removesuffix("eps") or "1")
        if not isinstance(factor, float) or factor <= 0:
            raise ValueError("a relative step size is a positive multiple of the radius, such as '0.25eps'")
        return value.replace(" ", "")
    return _POSITIVE.validate_python(value)


StepSize = Annotated[float | str, pydantic.BeforeValidator(_step_size)]
"""A step: absolute (``2/255``), or relative to each image's radius (``"0.25eps"``)."""


def relative_step(step_size: float | str) -> tuple[float, bool]:
    """The number in a step size, and whether it multiplies the radius."""
    if isinstance(step_size, str):
        factor = number(step_size.removesuffix("eps") or "1")
        assert isinstance(factor, float)
        return factor, True
    return step_size, False


def parse_spec(text: str, known: Container[str] = ()) -> tuple[str, dict[str, Any]]:
    """Split a spec such as ``"pgd:steps=20,step_size=2/255"`` into a name and its options.

    A path of a user's own (``"package.module:Class"``) may stand for the name, its options after one more colon; what
    is in ``known`` is a name and not a module. Options of a part within have its field's name and a dot before them:
    ``transfer:attack=pgd,attack.steps=20`` gives ``{"attack": {"name": "pgd", "steps": "20"}}``.

    Raises:
        ClasswiseError: if an option is not of the form ``key=value``, or the spec is too long or nests too deeply.
    """
    if len(text) > limits.SPEC_LENGTH:
        raise ClasswiseError(f"spec {text[:40]!r}... has {len(text)} letters; at most {limits.SPEC_LENGTH} are read")
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
            raise ClasswiseError(f"{text!r}: {item!r} has more than {limits.SPEC_DEPTH} parts inside each other")
        options[key.strip()] = value.strip()
    return name.strip(), _nested(options)


class _PlainLoader(yaml.SafeLoader):
    """YAML's null, booleans, numbers, text, lists and mappings; dates stay text, and every other tag is refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML keeps them in a class attribute
        first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
    }


def read_yaml(text: str, where: str) -> Any:
    """Read one YAML value of plain data.

    Args:
        text: the YAML.
        where: begins the line of an error.

    Raises:
        ClasswiseError: if it is not YAML, holds other tags or keys than plain ones, an integer beyond 64 bits, or more
            than `limits.YAML_VALUES` values or `limits.YAML_DEPTH` levels, aliases counted as what they stand for.
    """
    try:
        _check_expansion(text, where)
        value = yaml.load(text, Loader=_PlainLoader)  # noqa: S506  # it is a SafeLoader
    except yaml.YAMLError as error:
        raise ClasswiseError(f"{where} is not YAML of plain data: {error}") from error
    except ClasswiseError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:  # of a scalar with a tag it is not
        raise ClasswiseError(f"{where}: a value is not what its tag says ({error})") from error
    _check_plain(value, where)
    return value


def _check_expansion(text: str, where: str) -> None:
    """Walk through the events, without building a value, and count what aliases stand for."""
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
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
                raise ClasswiseError(f"{where} has more than {limits.YAML_DEPTH} collections inside each other")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if total > limits.YAML_VALUES:
            raise ClasswiseError(
                f"{where} has more than {limits.YAML_VALUES} values, aliases counted as what they stand for"
            )


def _check_plain(value: Any, where: str) -> None:
    """Refuse keys that are no names and integers that no setting can be."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str) and type(key) is not int:
                raise ClasswiseError(f"{where}: the key {key!r} should be a name")
            _check_plain(inner, where)
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner, where)
    elif type(value) is int and abs(value) > limits.INTEGER:
        raise ClasswiseError(f"{where}: an integer of {value.bit_length()} bits; integers have at most 64")


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """The options with ``a=name`` and ``a.key=value`` gathered in one mapping ``a``."""
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
    """The options as `parse_spec` reads them: those of a part within with its field's name and a dot before them."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        for inner, each in flat_options(value).items():
            flat[key if inner == "name" else f"{key}.{inner}"] = each
    return flat


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make the dataclass from a mapping.

    Raises:
        ClasswiseError: for an unknown key (with the nearest known one) or a value out of range; ``where`` begins the
            line.
    """
    if dataclasses.is_dataclass(cls):
        known = [field.name for field in dataclasses.fields(cls) if field.init]
        for key in values:
            if key not in known:
                raise unknown(f"{where} field", str(key), known)
    try:
        return pydantic.TypeAdapter(cls).validate_python(dict(values))
    except pydantic.ValidationError as error:
        raise _refusal(error, where) from None


def _refusal(error: pydantic.ValidationError, where: str) -> ClasswiseError:
    """The error that a class raised itself, or one line on the first invalid field."""
    cause = error.errors()[0].get("ctx", {}).get("error")
    return cause if isinstance(cause, ClasswiseError) else ClasswiseError(f"{where}: {explain(error)}")


def explain(error: pydantic.ValidationError) -> str:
    """The first complaint of pydantic in one line: the field, the value, what is wrong with it."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    message = first["msg"].removeprefix("Value error, ")
    return f"{field} = {first['input']!r}: {message}" if field else message


Spec = str | Mapping[str, Any]
"""How a user names a part: ``"pgd:steps=20"`` or ``{"name": "pgd", "steps": 20}``."""


def make(registry: Registry[T], spec: Spec | T) -> T:
    """Build the part that a spec names; a part that is built already is returned as it is.

    Raises:
        ClasswiseError: for an unknown name or field, or a bad value.
    """
    if isinstance(spec, str):
        name, options = parse_spec(spec, registry)
    elif isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ClasswiseError(f"{registry.kind} {dict(spec)!r} has no 'name'")
    else:
        return spec
    return build(registry.load(name), options, f"{registry.kind} {name!r}")


def describe(registry: Registry[T], part: T) -> dict[str, Any]:
    """Write a part as its complete spec, defaults included, from which `make` builds an equal part.

    A part whose fields are not all plain data has a method ``described`` that gives them as a spec has them.
    """
    assert dataclasses.is_dataclass(part)
    assert not isinstance(part, type)
    described = getattr(part, "described", None)
    fields = dataclasses.asdict(part) if described is None else described()
    return {"name": registry.name_of(type(part)), **fields}
