"""Recipes as text: the files of the package, `extends`, budgets, and changes by dotted field."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from classwise.core import limits
from classwise.core.config import parse_spec, read_yaml
from classwise.core.errors import ClasswiseError, unknown

UNCHANGED = "unchanged"
"""The key of a recipe's own part of a budget that lists the fields which the budget leaves as the recipe has them."""


def recipe_names() -> list[str]:
    """The names of the recipes of the package, sorted."""
    return sorted(_stems(_folder()))


def budget_names() -> list[str]:
    """The names of the budgets of the package, sorted."""
    return sorted(_stems(_folder() / "budgets"))


def budgets_of(source: str) -> list[str]:
    """The names of the budgets that a recipe has, sorted.

    Args:
        source: a recipe's name, or its YAML file.

    Raises:
        ClasswiseError: if there is no such recipe, or its file is damaged.
    """
    return sorted(take_budgets(read_values(source)))


def read_values(source: str, depth: int = 0) -> dict[str, Any]:
    """The fields of a recipe as its file has them, with those of the recipe that it extends.

    Args:
        source: a recipe's name, or its YAML file.
        depth: how many recipes extend each other down to this one.

    Raises:
        ClasswiseError: if there is no such recipe, or its file is damaged.
    """
    if depth > limits.EXTENDS:
        raise ClasswiseError(
            f"recipe {source!r}: more than {limits.EXTENDS} recipes extend each other, perhaps in a circle"
        )
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        values = read_yaml(_read_file(path), f"recipe {source!r}")
    elif source in recipe_names():
        values = copy.deepcopy(_of_package(f"{source}.yaml"))
    else:
        raise unknown_recipe(source)
    if not isinstance(values, dict):
        raise ClasswiseError(f"recipe {source!r} should be a mapping of fields to values")
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ClasswiseError(f"recipe {source!r}: extends = {base!r} should be the name of a recipe or of its file")
    merged = read_values(base, depth + 1)
    for key, value in values.items():
        inherited = merged.get(key)
        both = isinstance(value, dict) and isinstance(inherited, dict)
        merged[key] = {**inherited, **value} if both and key in _MERGED else value  # type: ignore[dict-item]
    return merged


_MERGED = ("data", "model", "precision", "budgets")
"""The fields that a recipe inherits item by item from the one that it extends."""


def unknown_recipe(name: str, kind: str = "recipe", known: Sequence[str] = ()) -> ClasswiseError:
    """The error for a name that is no recipe; a name such as ``at-short`` is a recipe on a budget.

    Args:
        name: the name.
        kind: what was asked for.
        known: accepted names beside those of the recipes.
    """
    method, _, budget = name.rpartition("-")
    if method in recipe_names() and budget in budget_names():
        return ClasswiseError(f"unknown {kind} {name!r}; use {method} with --budget {budget}")
    return unknown(kind, name, {*recipe_names(), *known})


def take_budgets(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the budgets from a recipe's fields, and return the recipe's own part of each.

    Raises:
        ClasswiseError: if they are not a mapping from names to mappings of dotted fields to values.
    """
    found = values.pop("budgets", None) or {}
    if not isinstance(found, Mapping):
        raise ClasswiseError(f"recipe field 'budgets' = {found!r} should map budgets to changes of fields")
    for budget, own in found.items():
        wrong = own is not None and not (isinstance(own, Mapping) and all(isinstance(path, str) for path in own))
        if wrong or not isinstance(budget, str):
            raise ClasswiseError(
                f"recipe field 'budgets': {budget!r}: {own!r} should map a budget to changes of fields"
            )
    return {budget: dict(own or {}) for budget, own in found.items()}


def apply_budget(values: dict[str, Any], budget: str, budgets: Mapping[str, Mapping[str, Any]], kind: type) -> None:
    """Change a recipe's fields to those on a budget: first what all recipes change, then the recipe's own part.

    The name becomes ``NAME-BUDGET``; in a description or source that is text, ``{name}`` is the recipe's name.

    Args:
        values: the fields; they are changed in place.
        budget: its name.
        budgets: the recipe's own part of each of its budgets.
        kind: the dataclass of recipes.

    Raises:
        ClasswiseError: if the recipe has no such budget, or a field of the budget does not exist.
    """
    name = str(values.get("name", "custom"))
    if not budgets:
        raise ClasswiseError(
            f"recipe {name!r} has no budgets, so not {budget!r}; give the name of a recipe, or extend one"
        )
    if budget not in budgets:
        raise unknown("budget", budget, budgets)
    own = dict(budgets[budget])
    unchanged = own.pop(UNCHANGED, None) or []
    shared = _shared(budget)
    if not isinstance(unchanged, list) or not all(path in list(shared) for path in unchanged):
        raise ClasswiseError(
            f"recipe {name!r}: budgets.{budget}.{UNCHANGED} = {unchanged!r} should list fields of "
            f"the budget: {', '.join(shared)}"
        )
    for path, value in ({path: shared[path] for path in shared if path not in unchanged} | own).items():
        filled = (
            value.replace("{name}", name) if path in ("description", "source") and isinstance(value, str) else value
        )
        change(values, path, filled, kind)
    values["name"] = f"{name}-{budget}"


def change(values: dict[str, Any], path: str, value: Any, kind: type) -> None:
    """Set a dotted field of a recipe's fields.

    Args:
        values: the fields; they are changed in place.
        path: the field, such as ``optimizer.lr`` or ``schedules.0.start_epoch``.
        value: its new value.
        kind: the dataclass of recipes.

    Raises:
        ClasswiseError: if there is no such field.
    """
    if path.count(".") > limits.SPEC_DEPTH:
        raise ClasswiseError(f"recipe field {path!r}: more than {limits.SPEC_DEPTH} fields inside each other")
    defaults = {item.name: item.default for item in dataclasses.fields(kind)}
    head, *rest = path.split(".")
    if head not in defaults:
        near = difflib.get_close_matches(head, defaults, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(defaults)}"
        raise ClasswiseError(f"unknown recipe field {path!r}; {hint}")
    default = defaults[head]
    if dataclasses.is_dataclass(default):
        given = values.get(head, {})
        node = {**dataclasses.asdict(default), **given} if isinstance(given, Mapping) else given  # type: ignore[arg-type]
    else:
        node = values.get(head, default)
    values[head] = _put(node, rest, value, path)


def read_value(path: str, value: Any) -> Any:
    """The value of a change; text is read as YAML.

    Raises:
        ClasswiseError: if the text is too long, or no YAML.
    """
    if not isinstance(value, str):
        return value
    if len(value) > limits.RECIPE_BYTES:
        raise ClasswiseError(
            f"--set {path}: the value has {len(value)} letters; at most {limits.RECIPE_BYTES} are read"
        )
    return read_yaml(value, f"--set {path}={value}")


def _put(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    """A copy of the node with one place inside it changed; a part written as a spec is opened."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, str):
        name, options = parse_spec(node)
        node = {"name": name, **options}
    if isinstance(node, Mapping):
        return {**node, key: _put(node.get(key), rest, value, path)}
    if isinstance(node, Sequence):
        if not (key.isascii() and key.isdigit() and len(key) < 10) or int(key) >= len(node):
            raise ClasswiseError(f"recipe field {path!r}: the list has no item {key}; items are 0 to {len(node) - 1}")
        items = list(node)
        items[int(key)] = _put(items[int(key)], rest, value, path)
        return items
    raise ClasswiseError(f"recipe field {path!r}: there is nothing inside {node!r}")


def _shared(budget: str) -> dict[str, Any]:
    """What a budget changes in every recipe; nothing of a budget that only a recipe of the user's own has."""
    if budget not in budget_names():
        return {}
    return copy.deepcopy(_of_package(f"budgets/{budget}.yaml"))


@functools.cache
def _of_package(file: str) -> dict[str, Any]:
    """The fields in a file of the package; they must not be changed."""
    found: dict[str, Any] = read_yaml(_folder().joinpath(file).read_text(encoding="utf-8"), f"recipe file {file!r}")
    return found


def _folder() -> Traversable:
    return resources.files("classwise") / "recipes"


def _stems(folder: Traversable) -> Iterator[str]:
    return (file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _read_file(path: Path) -> str:
    """The text of a recipe file of at most `limits.RECIPE_BYTES`."""
    try:
        found = path.is_file()
        if found:
            with path.open("rb") as file:
                content = file.read(limits.RECIPE_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise ClasswiseError(f"cannot read the recipe {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    if not found:
        raise ClasswiseError(f"there is no recipe file {str(path)!r}")
    if len(content) > limits.RECIPE_BYTES:
        raise ClasswiseError(f"recipe {str(path)!r} is larger than {limits.RECIPE_BYTES >> 10} KiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClasswiseError(f"recipe {str(path)!r} is not UTF-8 text (byte {error.start})") from error
