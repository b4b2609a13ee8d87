"""The plan of a sweep: recipes x budgets x data x overrides x seeds, models x data, and the audits of each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml

from classwise.core.errors import ClasswiseError, DataNotFoundError, did_you_mean, unknown
from classwise.core.settings import limits
from classwise.core.settings.config import Seed, build, configurable, read_yaml
from classwise.data import DATA
from classwise.sweeps.cells import Cell, slug
from classwise.sweeps.settings import AuditSettings, Models, ModelSettings, build_audits, data_source
from classwise.training.folder import saved_names
from classwise.training.recipe import Recipe
from classwise.training.setup import training_images

MOST_CELLS = 100_000
"""Maximum number of cells of a plan, before ``exclude``."""
LONGEST_LABEL = 60
"""Number of characters from which the overrides of a cell are named by a hash."""
FULL = "full"
"""The budget of the recipe itself."""
_OWN_AXES = {"seed": "seeds", "data.name": "data"}
"""The fields of a recipe that the plan sets itself, and its fields for them."""


@configurable
class Pattern:
    """A partial match of cells: those that agree in every given field.

    Args:
        recipe: the recipe, as the plan names it.
        model: the model, as the plan names it.
        budget: the budget.
        seed: the seed.
        data: the data, as the plan names it.
        overrides: overridden fields and their values.
    """

    recipe: str | None = None
    model: str | None = None
    budget: str | None = None
    seed: Seed | None = None
    data: str | None = None
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """The given fields."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value not in (None, {})}

    def matches(self, point: Mapping[str, Any]) -> bool:
        """Whether a point of the plan agrees in every given field."""
        fields = all(value == point.get(name) for name, value in self.given.items() if name != "overrides")
        overrides = point.get("overrides", {})
        return fields and all(name in overrides and overrides[name] == value for name, value in self.overrides.items())


def _patterns(value: object) -> object:
    if not isinstance(value, Sequence) or not all(isinstance(pattern, Mapping | Pattern) for pattern in value):
        raise ClasswiseError(f"plan: exclude = {value!r} must be a list of partial cells, such as [{{seed: 0}}]")
    return tuple(pattern if isinstance(pattern, Pattern) else build(Pattern, pattern, "exclude") for pattern in value)


@configurable
class Plan:
    """The plan of a sweep: its cells, without those that ``exclude`` matches.

    The cells that are trained are all combinations of ``recipes``, ``budgets``, ``data``, ``overrides`` and ``seeds``;
    those that are only audited are all combinations of ``models`` and ``data``.

    Args:
        recipes: names of recipes, or their YAML files.
        models: models that are audited without a training; the text of one, or its settings.
        budgets: budgets of the recipes; ``full`` is the recipe itself.
        seeds: seeds of training.
        data: names of data sets, or paths; empty: those of the recipes. ``models`` need at least one.
        set: overrides of recipe fields in all cells, which their names do not contain. In their text, and in that of
            ``overrides``, ``{seed}`` is the seed of the cell.
        overrides: overrides of recipe fields, one mapping for each variant of a method.
        audits: the audits of every cell by name, each with options of ``classwise audit``.
        exclude: partial matches of cells to leave out.

    Raises:
        ClasswiseError: for an unknown field, an invalid value, or neither recipes nor models.

    Example:
        >>> without = [{"recipe": "trades", "seed": 1}]
        >>> plan = Plan.read({"recipes": ["at", "trades"], "seeds": [0, 1], "exclude": without})
        >>> [cell.name for cell in plan.cells()]
        ['at-cifar10-seed0', 'at-cifar10-seed1', 'trades-cifar10-seed0']
    """

    recipes: tuple[str, ...] = ()
    models: Models = ()
    budgets: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] = (FULL,)
    seeds: Annotated[tuple[Seed, ...], pydantic.Field(min_length=1)] = (0,)
    data: tuple[str, ...] = ()
    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Annotated[tuple[dict[str, Any], ...], pydantic.Field(min_length=1)] = ({},)
    audits: Annotated[dict[str, AuditSettings], pydantic.BeforeValidator(build_audits)] = dataclasses.field(
        default_factory=lambda: {"audit": AuditSettings()}
    )
    exclude: Annotated[tuple[Pattern, ...], pydantic.BeforeValidator(_patterns)] = ()

    def __post_init__(self) -> None:
        if not self.recipes and not self.models:
            raise ClasswiseError("plan: recipes or models must be given, such as recipes: [at]")
        if self.models and not self.data:
            raise ClasswiseError("plan: models need data, such as data: [cifar10]")
        if self.models and not self.audits:
            raise ClasswiseError("plan: models need audits, such as audits: {full: {attack: autoattack}}")

    @staticmethod
    def read(source: str | Path | Mapping[str, Any] | Plan) -> Plan:
        """Read a plan from a YAML file or a mapping; relative files of recipes and data are in the working folder.

        Raises:
            ClasswiseError: if the file cannot be read, a field is unknown (with the nearest known one), or a value is
                invalid.
        """
        if isinstance(source, Plan):
            return source
        if isinstance(source, Mapping):
            return build(Plan, source, "plan")
        values = read_yaml(_text(Path(source)), f"plan {str(source)!r}")
        if not isinstance(values, Mapping):
            raise ClasswiseError(f"plan {str(source)!r} must be a mapping of fields to values, such as recipes: [at]")
        return build(Plan, values, "plan")

    def yaml(self) -> str:
        """Return the plan as YAML, with absolute paths for files of recipes and data; `read` accepts it."""
        values = {
            "recipes": [recipe_source(recipe) for recipe in self.recipes],
            "models": [
                given if len(given) > 1 else given["model"] for given in map(ModelSettings.options, self.models)
            ],
            "budgets": [*self.budgets],
            "seeds": [*self.seeds],
            "data": [data_source(data) for data in self.data],
            "set": self.set,
            "overrides": [*self.overrides],
            "audits": {name: audit.given() for name, audit in self.audits.items()},
            "exclude": [self._absolute(pattern.given) for pattern in self.exclude],
        }
        text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
        return text

    def _absolute(self, pattern: Mapping[str, Any]) -> dict[str, Any]:
        """A pattern with absolute paths, as those of `yaml`."""
        models = {model.key: model.name or model.source for model in self.models}
        known = {"recipe": recipe_source, "model": models.__getitem__, "data": data_source}
        return {name: known[name](value) if name in known else value for name, value in pattern.items()}

    def cells(self) -> list[Cell]:
        """Expand the plan, and check every recipe, reference to a model and audit.

        Raises:
            ClasswiseError: if a recipe, a model, a budget, data, an override or an audit is invalid, an exclusion
                matches no cell, no cell is left, or two cells have the same name.
        """
        axes: tuple[Sequence[Any], ...] = (self.recipes, self.budgets, self.data or (None,), self.overrides, self.seeds)
        count = math.prod(map(len, axes)) + len(self.models) * len(self.data)
        if count > MOST_CELLS:
            raise ClasswiseError(f"the plan has {count:,} cells; at most {MOST_CELLS:,} are accepted")
        names = ("recipe", "budget", "data", "overrides", "seed")
        points = [dict(zip(names, values, strict=True)) for values in itertools.product(*axes)]
        pairs = itertools.product(self.models, self.data)
        points += [{"model": model.key, "data": data, "settings": model} for model, data in pairs]
        for pattern in self.exclude:
            if not any(pattern.matches(point) for point in points):
                raise ClasswiseError(f"plan: exclude {json.dumps(pattern.given)} matches no cell")
        left = [point for point in points if not any(pattern.matches(point) for pattern in self.exclude)]
        if not left:
            raise ClasswiseError("the plan excludes all of its cells; remove a pattern of exclude")
        usual = {} if self.data else {name: Recipe.read(recipe_source(name)).data.name for name in self.recipes}
        cells = [
            self._audited(point["settings"], point["data"]) if "model" in point else self._trained(**point, usual=usual)
            for point in left
        ]
        _check_names(cells)
        self._check(cells)
        return cells

    def _trained(
        self,
        *,
        recipe: str,
        budget: str,
        data: str | None,
        overrides: Mapping[str, Any],
        seed: int,
        usual: Mapping[str, str],
    ) -> Cell:
        both = {**self.set, **overrides}
        for name, axis in _OWN_AXES.items():
            if name in both:
                raise ClasswiseError(f"plan: {name} is not an override; use the field {axis} of the plan")
        source = recipe_source(recipe)
        images = data_source(usual[recipe] if data is None else data)
        parts = [slug(Path(recipe).stem if _is_file(recipe) else recipe)]
        parts += [] if budget == FULL else [slug(budget)]
        parts += [_named(images), *filter(None, [label(overrides)])]
        method, audits = "-".join(parts), self._options()
        return Cell(f"{method}-seed{seed}", method, source, budget, images, seed, _seeded(both, seed), audits)

    def _audited(self, model: ModelSettings, data: str) -> Cell:
        images, settings = data_source(data), model.options()
        name = f"{model.label}-{_named(images)}"
        source = settings.pop("model")
        return Cell(name, name, data=images, audits=self._options(), model=source, model_settings=settings)

    def _options(self) -> dict[str, dict[str, Any]]:
        return {name: audit.given() for name, audit in self.audits.items()}

    def _check(self, cells: Sequence[Cell]) -> None:
        """Check the recipe and the audits of each cell; seeds do not matter."""
        methods = {cell.method: cell for cell in cells}
        for cell in methods.values():
            recipe = None if cell.model else read_recipe(cell)
            known = DATA.load(cell.data).threat if cell.data in DATA else None
            usual = known if recipe is None else recipe.threat or known
            if usual is None and (recipe is not None or any(audit.threat is None for audit in self.audits.values())):
                where = "the plan" if recipe is not None else "its audits"
                raise ClasswiseError(f"cell {cell.name}: {cell.data!r} has no default threat; set threat in {where}")
            saved = [] if recipe is None else saved_names(recipe)
            for name, audit in self.audits.items():
                if audit.which is not None and recipe is None:
                    raise ClasswiseError(
                        f"cell {cell.name}: audit {name!r}: the field which applies only to cells that are trained"
                    )
                if audit.which is not None and audit.which not in saved:
                    error = unknown("weights", audit.which, saved)
                    raise ClasswiseError(f"cell {cell.name}: audit {name!r}: {error}")
                audit.check(str(audit.threat or usual))


def _check_names(cells: Sequence[Cell]) -> None:
    """Check that the names of cells are unique.

    Raises:
        ClasswiseError: naming the first field in which two cells of one name differ.
    """
    known: dict[str, Cell] = {}
    for cell in cells:
        other = known.setdefault(cell.name, cell)
        if other is cell:
            continue
        differs = next((key for key, value in vars(cell).items() if value != vars(other)[key]), None)
        if differs is None:
            raise ClasswiseError(f"plan: the cell {cell.name} occurs twice; give each value once")
        was, now = (json.dumps(vars(side)[differs]) for side in (other, cell))
        advice = "set the name of one model" if cell.model else "rename one"
        raise ClasswiseError(f"plan: two cells have the name {cell.name}: {differs} {was} and {now}; {advice}")


def read_recipe(cell: Cell) -> Recipe:
    """Read the recipe of a cell.

    Raises:
        ClasswiseError: naming the cell, if the recipe is invalid.
    """
    overrides = {**cell.override_texts(), "data.name": cell.data, "seed": cell.seed}
    try:
        return Recipe.read(cell.recipe, overrides, budget=None if cell.budget == FULL else cell.budget)
    except ClasswiseError as error:
        raise ClasswiseError(f"cell {cell.name}: {error}") from error


def check_data(plan: Plan) -> None:
    """Open the images of every method's training and audits, so that no training precedes a missing split or grouping.

    Data sets that tasks will download are left out.

    Raises:
        ClasswiseError: naming the cell, if images cannot be read, or have no such split or grouping.
    """
    opened = set[str]()
    for cell in {cell.method: cell for cell in plan.cells()}.values():
        training = None if cell.model else read_recipe(cell).data
        for name, audit in {"": None, **plan.audits}.items():
            part = training if audit is None else (audit.data, audit.split, audit.subset, audit.options["group"])
            if part is None or (key := repr((cell.data, training, part))) in opened:
                continue
            opened.add(key)
            try:
                if audit is not None:
                    audit.images(cell.data, training, download=False)
                elif training is not None:
                    training_images(training, download=False)
            except DataNotFoundError:
                continue
            except ClasswiseError as error:
                what = f"audit {name}" if name else "training"
                raise ClasswiseError(f"cell {cell.name}, {what}: {error}") from error


def with_digest(cell: Cell) -> Cell:
    """The cell, with the SHA-256 of the settings of a recipe that is a file, so that a change of it is found."""
    return dataclasses.replace(cell, recipe_sha256=read_recipe(cell).digest()) if _is_file(cell.recipe) else cell


def recipe_source(recipe: str) -> str:
    """A recipe's name, or the absolute path of its file."""
    return str(Path(recipe).absolute()) if _is_file(recipe) else recipe


def _is_file(recipe: str) -> bool:
    return Path(recipe).suffix in (".yaml", ".yml")


def _named(images: str) -> str:
    return slug(Path(images).stem if Path(images).is_absolute() else images)


def label(overrides: Mapping[str, Any]) -> str:
    """A readable label of overrides, such as ``width0.25``; a hash of those that would be too long.

    The label depends on these overrides alone, so the names of cells do not change when a plan grows.
    """
    text = "-".join(f"{_field(name)}{_value(value)}" for name, value in overrides.items())
    return text if len(text) <= LONGEST_LABEL else f"set-{_hash(dict(overrides))}"


def _field(name: str) -> str:
    """The last part of a field of the model, the data or the optimiser; the whole name of any other field."""
    head, _, rest = name.partition(".")
    if head in ("model", "data", "optimizer") and rest:
        return slug(head if rest == "name" else rest)
    return slug(name)


def _value(value: Any) -> str:
    if not isinstance(value, str | int | float | bool | None):
        return f"-{_hash(value)}"
    text = slug(str(value))
    return text if text[:1].isdigit() else f"-{text}"


def _seeded(value: Any, seed: int) -> Any:
    """An override with the seed in the place of ``{seed}``."""
    if isinstance(value, Mapping):
        return {key: _seeded(item, seed) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_seeded(item, seed) for item in value]
    return value.replace("{seed}", str(seed)) if isinstance(value, str) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _text(path: Path) -> str:
    """Read the file of a plan.

    Raises:
        ClasswiseError: if it cannot be read, is too large, or is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ClasswiseError(f"plan file {str(path)!r} does not exist{did_you_mean(path)}") from error
    except (OSError, ValueError) as error:
        raise ClasswiseError(f"cannot read the plan {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    if len(content) > limits.RECIPE_BYTES:
        raise ClasswiseError(
            f"plan {str(path)!r} is larger than {limits.RECIPE_BYTES >> 10} KiB; split it into several plans"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClasswiseError(f"plan {str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
