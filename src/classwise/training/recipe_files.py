"""Recipe files: recipes of installed packages, `extends`, budgets, and overrides by dotted field.

An installed package adds its recipes by an entry point of the group ``classwise.recipes``, whose value is the package
that contains the YAML files.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError, did_you_mean, unknown
from classwise.core.settings import limits
from classwise.core.settings.config import parse_spec, read_yaml
from classwise.core.settings.registry import with_installed, yaml_files

UNCHANGED = "unchanged"
"""The key in a recipe's ``budgets`` that lists the fields which the budget does not change."""


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package and of installed packages, sorted.

    Raises:
        ClasswiseError: if an installed package has no such files, or two packages have a recipe of the same name.
    """
    return sorted(_recipes())


def budget_names() -> list[str]:
    """Return the names of the budgets of the package, sorted."""
    return sorted(yaml_files(_folder() / "budgets"))


def budgets_of(source: str) -> list[str]:
    """Return the names of the budgets of a recipe, sorted.

    Args:
        source: a recipe's name, or its YAML file.

    Raises:
        ClasswiseError: if the recipe does not exist, or its file is invalid.
    """
    return sorted(take_budgets(read_values(source)))


def read_values(source: str, depth: int = 0) -> dict[str, Any]:
    """Read the fields of a recipe, merged with those of the recipe that it extends.

    The description and the source are its own (`derived`).

    Args:
        source: a recipe's name, or its YAML file.
        depth: the number of recipes that extend this one, directly or not.

    Raises:
        ClasswiseError: if the recipe does not exist, or its file is invalid.
    """
    if depth > limits.EXTENDS:
        raise ClasswiseError(f"recipe {source!r}: more than {limits.EXTENDS} levels of extends, perhaps a cycle")
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        values = read_yaml(_read_file(path), f"recipe {source!r}")
    elif source in _recipes():
        values = copy.deepcopy(_values_of(source))
    else:
        raise unknown_recipe(source)
    if not isinstance(values, dict):
        raise ClasswiseError(f"recipe {source!r} must be a mapping of fields to values")
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ClasswiseError(f"recipe {source!r}: extends = {base!r} must be the name of a recipe or a recipe file")
    merged = read_values(base, depth + 1)
    derived(merged, str(merged.get("name", base)))
    for key, value in values.items():
        inherited = merged.get(key)
        both = isinstance(value, dict) and isinstance(inherited, dict)
        merged[key] = {**inherited, **value} if both and key in _MERGED else value  # type: ignore[dict-item]
    return merged


def derived(values: dict[str, Any], base: str) -> None:
    """Replace the description and the source of a recipe, which describe other settings than those of ``values``."""
    values |= {"description": f"Based on {base}, with other settings.", "source": ""}


_MERGED = ("data", "model", "precision", "budgets")
"""Fields that are merged item by item with those of the extended recipe."""


def unknown_recipe(name: str, kind: str = "recipe", known: Sequence[str] = ()) -> ClasswiseError:
    """Return the error for an unknown recipe, with a hint for names such as ``at-short``.

    Args:
        name: the name.
        kind: what the name should denote, for the message.
        known: accepted names besides those of the recipes.
    """
    method, _, budget = name.rpartition("-")
    if method in recipe_names() and budget in budget_names():
        return ClasswiseError(f"unknown {kind} {name!r}; use {method} with --budget {budget}")
    return unknown(kind, name, {*recipe_names(), *known})


def take_budgets(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the budgets from a recipe's fields, and return the overrides of each.

    Raises:
        ClasswiseError: if they are not a mapping from names to mappings of dotted fields to values.
    """
    budgets = values.pop("budgets", None) or {}
    if not isinstance(budgets, Mapping):
        raise ClasswiseError(f"recipe field 'budgets' = {budgets!r} must map budgets to overrides of fields")
    for budget, own in budgets.items():
        wrong = own is not None and not (isinstance(own, Mapping) and all(isinstance(path, str) for path in own))
        if wrong or not isinstance(budget, str):
            raise ClasswiseError(
                f"recipe field 'budgets': {budget!r}: {own!r} must map a budget to overrides of fields"
            )
    return {budget: dict(own or {}) for budget, own in budgets.items()}


def apply_budget(values: dict[str, Any], budget: str, budgets: Mapping[str, Mapping[str, Any]], kind: type) -> None:
    """Apply a budget to a recipe's fields: the overrides for all recipes, then those of the recipe.

    The name becomes ``NAME-BUDGET``; ``{name}`` in the description or source is replaced by the recipe's name.

    Args:
        values: the fields, modified in place.
        budget: the name of the budget.
        budgets: the recipe's overrides for each of its budgets.
        kind: the dataclass of recipes.

    Raises:
        ClasswiseError: if the recipe has no such budget, or a field of the budget does not exist.
    """
    name = str(values.get("name", "custom"))
    if not budgets:
        raise ClasswiseError(f"recipe {name!r} has no budget {budget!r}; use a recipe of the package, or extend one")
    if budget not in budgets:
        raise unknown("budget", budget, budgets)
    own = dict(budgets[budget])
    unchanged = own.pop(UNCHANGED, None) or []
    shared = copy.deepcopy(_shared(budget))
    if not isinstance(unchanged, list) or not all(path in list(shared) for path in unchanged):
        raise ClasswiseError(
            f"recipe {name!r}: budgets.{budget}.{UNCHANGED} = {unchanged!r} must list fields of "
            f"the budget: {', '.join(shared)}"
        )
    for path, value in ({path: shared[path] for path in shared if path not in unchanged} | own).items():
        filled = (
            value.replace("{name}", name) if path in ("description", "source") and isinstance(value, str) else value
        )
        override(values, path, filled, kind)
    values["name"] = f"{name}-{budget}"


def override(values: dict[str, Any], path: str, value: Any, kind: type) -> None:
    """Set a dotted field of a recipe.

    Args:
        values: the fields, modified in place.
        path: the field, such as ``optimizer.lr`` or ``schedules.0.start_epoch``.
        value: the new value.
        kind: the dataclass of recipes.

    Raises:
        ClasswiseError: if the field does not exist.
    """
    if path.count(".") > limits.SPEC_DEPTH:
        raise ClasswiseError(f"recipe field {path!r}: more than {limits.SPEC_DEPTH} nested fields")
    defaults = {item.name: item.default for item in dataclasses.fields(kind)}
    head, *rest = path.split(".")
    if head not in defaults:
        raise unknown("field", head, defaults, owner="recipe")
    default = defaults[head]
    if dataclasses.is_dataclass(default):
        given = values.get(head, {})
        node = {**dataclasses.asdict(default), **given} if isinstance(given, Mapping) else given  # type: ignore[arg-type]
    else:
        node = values.get(head, default)
    values[head] = _put(node, rest, value, path)


OF_A_RUN = re.compile(
    r"(name|description|source|seed|precision|checkpoint_epochs|data\.(name|root|subset|subset_seed|imbalance|options))(\..*)?"
)
"""The dotted fields that are chosen for a run; all others are settings of the method."""


def override_all(values: dict[str, Any], overrides: Mapping[str, Any], kind: type, base: str) -> None:
    """Set dotted fields of a recipe, in order; if settings of the method change, the recipe is `derived`.

    Args:
        values: the fields, modified in place.
        overrides: values by dotted field; text is parsed as YAML.
        kind: the dataclass of recipes.
        base: what the fields are without the overrides, such as ``trades with budget short``.

    Raises:
        ClasswiseError: if a field does not exist.
    """
    before = dict(values)
    for path, value in overrides.items():
        override(values, path, read_value(path, value), kind)
    settings = [path for path in overrides if not OF_A_RUN.fullmatch(path)]
    stated = before.get("description") or before.get("source")
    if stated and any(_json_at(before, path) != _json_at(values, path) for path in settings):
        texts = {key: values[key] for key in ("description", "source") if key in overrides}
        derived(values, base)
        values |= texts


def _json_at(values: Any, path: str) -> str:
    """The value of a dotted field as JSON, in which lists and tuples are equal; that of None if it does not exist."""
    for key in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(key)
        else:
            listed = isinstance(values, list | tuple) and key.isdecimal() and int(key) < len(values)
            values = values[int(key)] if listed else None
    return json.dumps(values, default=str, skipkeys=True)


def read_value(path: str, value: Any) -> Any:
    """Return the value of an override; text is parsed as YAML.

    Raises:
        ClasswiseError: if the text is too long or invalid YAML.
    """
    if not isinstance(value, str):
        return value
    if len(value) > limits.RECIPE_BYTES:
        raise ClasswiseError(
            f"--set {path}: the value has {len(value)} characters; at most {limits.RECIPE_BYTES} are accepted"
        )
    return read_yaml(value, f"--set {path}={value}")


def _put(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    """Return a copy of the node with one nested value replaced; a spec is parsed into a mapping."""
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
            example = ".".join([*path.split(".")[: -len(keys)], "0", *rest])
            known = f"items are 0 to {len(node) - 1}, as in {example!r}" if node else "it is empty"
            raise ClasswiseError(f"recipe field {path!r}: the list has no item {key}; {known}")
        items = list(node)
        items[int(key)] = _put(items[int(key)], rest, value, path)
        return items
    raise ClasswiseError(f"recipe field {path!r}: {node!r} has no fields")


@functools.cache
def _shared(budget: str) -> dict[str, Any]:
    """The overrides of a budget for all recipes, which must not be modified; none if the package does not define it."""
    return _read(_folder() / "budgets" / f"{budget}.yaml") if budget in budget_names() else {}


@functools.cache
def _values_of(name: str) -> dict[str, Any]:
    """The fields of a recipe by its name; they must not be modified."""
    return _read(_recipes()[name])


def _read(file: Traversable) -> dict[str, Any]:
    """Read the fields in a file of a package."""
    values: dict[str, Any] = read_yaml(file.read_text(encoding="utf-8"), f"recipe file {file.name!r}")
    return values


@functools.cache
def _recipes() -> dict[str, Traversable]:
    """The files of recipes by name, of this package and of installed packages."""
    return with_installed("recipe", yaml_files(_folder()), "classwise.recipes")


def _folder() -> Traversable:
    return resources.files("classwise") / "recipes"


def _read_file(path: Path) -> str:
    """Read a recipe file of at most `limits.RECIPE_BYTES`."""
    try:
        exists = path.is_file()
        if exists:
            with path.open("rb") as file:
                content = file.read(limits.RECIPE_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise ClasswiseError(f"cannot read the recipe {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    if not exists:
        place = "" if path.is_absolute() else f" in the working directory {Path.cwd()}"
        raise ClasswiseError(f"recipe file {str(path)!r} does not exist{place}{did_you_mean(path)}")
    if len(content) > limits.RECIPE_BYTES:
        raise ClasswiseError(f"recipe {str(path)!r} is larger than {limits.RECIPE_BYTES >> 10} KiB; use a smaller file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClasswiseError(
            f"recipe {str(path)!r} is not UTF-8 text (byte {error.start}); convert it to UTF-8"
        ) from error
