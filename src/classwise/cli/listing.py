"""``classwise data | attacks | models | recipes | cite``: lists generated from the registries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import DATA as DATA_PANEL
from classwise.cli.options import Budget, DataOptions, Json, Overrides, Root, data_options, pairs
from classwise.core.errors import ClasswiseError, one_line, printable
from classwise.core.settings.description import summary

if TYPE_CHECKING:
    from classwise.core.settings.registry import Registry
    from classwise.data.sets.base import DataSet

WIDE = 0.1
"""Half-width of a 95 % interval of a class accuracy from which a data set is said to have few images."""


def data(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="A data set's name or a path.", show_default="list the names"),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="The split to show.", rich_help_panel=DATA_PANEL)
    ] = "test",
    subset: Annotated[
        int | None,
        typer.Option(
            "--subset",
            metavar="N",
            help="Use N images, each class in its proportion.",
            rich_help_panel=DATA_PANEL,
            show_default="all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of --subset.", rich_help_panel=DATA_PANEL)] = 0,
    root: Root = None,
    options: DataOptions = None,
    digest: Annotated[
        bool,
        typer.Option("--digest", help="Print only the SHA-256 of pixels and labels.", rich_help_panel=DATA_PANEL),
    ] = False,
    json: Json = False,
) -> None:
    """List the data sets, or show one or a path.

    \b
    Examples:
        classwise data
        classwise data photos/ --split train --data-set size=64
        classwise data photos/ --digest  # of the split test
        classwise data mnist --subset 300 --digest  # of these 300 images
    """  # noqa: D301  # \b keeps the lines of the example apart
    if source is None:
        given = {"--digest": digest, "--subset": subset, "--root": root, "--data-set": options, "--seed": seed}
        for option, value in (given | {"--split": split != "test"}).items():
            if value not in (None, False, 0, []):
                raise ClasswiseError(f"{option} needs the images: classwise data DATA {option}")
        _list_data(json)
        return
    chosen: dict[str, Any] = dict(data_options(options))
    images = cw.load_data(source, split=split, root=root, subset=subset, seed=seed, **chosen)
    if digest:
        if json:
            console.show_json({"digest": images.fingerprint()})
        else:
            typer.echo(images.fingerprint())
        return
    counts = images.class_counts().tolist()
    if json:
        facts = {"name": images.name, "split": images.split, "images": len(images), "shape": images.shape}
        facts |= {"columns": list(images.columns), "superclasses": list(images.superclass_names)}
        facts |= {"digest": images.fingerprint()}
        console.show_json(facts | {"counts": dict(zip(images.class_names, counts, strict=True))})
        return
    from classwise.data.derived import superclass_of
    from classwise.reporting.formatting import points
    from classwise.stats.intervals import proportion_interval

    channels, height, width = images.shape
    typer.echo(f"{images.name} {images.split}: {len(images):,} images, {channels}x{height}x{width}, {images.x.dtype}")
    parents = superclass_of(images) if images.superclasses is not None else {}
    rows = [
        (label, name, count, *([parents[name]] if parents else []))
        for label, (name, count) in enumerate(zip(images.class_names, counts, strict=True))
    ]
    console.show(["label", "class", "images", *(["superclass"] if parents else [])], rows)
    if images.columns:
        typer.echo(f"groupings: {', '.join(map(printable, images.columns))}")
    fewest = min(filter(None, counts), default=0)
    low, high = (float(end) for end in proportion_interval(fewest / 2, fewest))
    if images.split != "train" and (high - low) / 2 > WIDE:
        name = printable(images.class_names[counts.index(fewest)])
        typer.echo(
            f"few images: the 95 % interval of an accuracy of 50 % of {name} ({fewest} images) is ±"
            f"{points((high - low) / 2)} points; classwise plan computes how many images decide a question"
        )


def _list_data(json: bool) -> None:
    from classwise.data import DATA

    known = {name: DATA.load(name) for name in DATA}
    if json:
        console.show_json({name: _set_facts(cls) for name, cls in known.items()})
        return
    rows = [
        (name, "x".join(map(str, cls.shape)), len(cls.class_names), cls.threat, ", ".join(cls.splits))
        for name, cls in known.items()
    ]
    console.show(["name", "shape", "classes", "usual threat", "splits"], rows)


def _set_facts(cls: type[DataSet]) -> dict[str, Any]:
    """What the class of a data set states; its options with their meanings."""
    from classwise.cli import docstrings
    from classwise.data.sets.loading import options_of

    stated = ("class_names", "superclass_names", "shape", "mean", "std", "threat", "augment", "splits", "sizes")
    meanings = docstrings.meanings(cls)
    return {
        **{key: getattr(cls, key) for key in (*stated, "files", "source")},
        "options": {key: meanings.get(key, "") for key in options_of(cls)},
        "download": [file.url for file in cls.remote],
    }


def attacks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An attack or a suite.", show_default="list all")
    ] = None,
    json: Json = False,
) -> None:
    """List the attacks and suites, or show one.

    \b
    Examples:
        classwise attacks
        classwise attacks tpgd
        classwise attacks autoattack
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.attacks.suites import SUITES
    from classwise.cli import docstrings
    from classwise.core.settings.bibliography import line_of
    from classwise.core.settings.config import describe, make
    from classwise.training.citations import papers, sources

    if name is None:
        suites = {suite: f"A suite: {', '.join(next(iter(SUITES[suite].values())))}, in cascade." for suite in SUITES}
        found = {attack: summary(cw.ATTACKS.load(attack)) for attack in cw.ATTACKS} | suites
        if json:
            console.show_json({name: {"summary": summary} for name, summary in found.items()})
        else:
            console.show(["name", "description"], list(found.items()))
        return
    head, _, given = name.partition(":")
    if "=" in given:
        raise ClasswiseError(f"attacks {name}: give the name without settings: classwise attacks {head}")
    if name in SUITES:
        lines = [paper.line() for paper in papers(name)]
        if json:
            console.show_json({"name": name, "versions": SUITES[name], "sources": lines})
            return
        console.echo(*(f"source: {line}" for line in lines))
        rows = [(f"{name}:version={version}", ", ".join(specs)) for version, specs in SUITES[name].items()]
        console.show(["suite", "attacks, each on the survivors of those before it"], rows)
        return
    cls = cw.ATTACKS.load(name)
    lines = [line_of(source) for source in sources(cls)]
    made = make(cw.ATTACKS, name)
    described = describe(cw.ATTACKS, made)  # without the settings that older audits do not have
    fields = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]  # every attack is a dataclass
    defaults = {key: described.get(key, getattr(made, key)) for key in fields}
    settings = _settings(cw.ATTACKS, cls, defaults)
    if json:
        reported = {key: {"values": values, "meaning": meaning} for key, _, values, meaning in settings}
        facts = {"name": name, "summary": summary(cls), "norms": cls.norms, "sources": lines}
        console.show_json({**facts, "settings": defaults, "about": reported})
        return
    typer.echo(docstrings.summary(cls) or name)
    console.echo(f"norms: {', '.join(cls.norms)}", *(f"source: {line}" for line in lines))
    console.show(["setting", "default", "values", "description"], settings)
    example = vars(cls).get("example", name) if name in cw.ATTACKS else name  # not that of a registered base class
    typer.echo(f"as a spec: {example}")


def _settings(
    registry: Registry[Any], cls: type, defaults: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, str, str]]:
    """Key, default, accepted values and description of each setting, nested parts included."""
    from classwise.cli import docstrings

    meanings, values = docstrings.meanings(cls), docstrings.values(cls)
    rows: list[tuple[str, Any, str, str]] = []
    for key, value in defaults.items():
        inner = dict(value) if isinstance(value, Mapping) else {}
        shown = inner.pop("name") if inner else value
        rows.append((prefix + key, shown, values.get(key, ""), meanings.get(key, "")))
        rows += _settings(registry, registry.load(shown), inner, f"{prefix}{key}.") if inner else []
    return rows


def models(json: Json = False) -> None:
    """List the model zoo.

    Parameters are counted for ten classes of colour images. The options "from 128 pixels" are the default for images
    of at least this height and width, unless the weights or --model-set decide.

    \b
    Example:
        classwise models
    """  # noqa: D301  # \b keeps the lines of the example apart
    import torch

    from classwise.models import MODELS, build_model
    from classwise.models.base import LARGE_SIDE
    from classwise.models.loading.builder import options_for_size
    from classwise.models.loading.sources import SOURCES
    from classwise.models.loading.sources.functions import Function

    rows = []
    for name in MODELS:
        with torch.device("meta"):  # shapes only, no numbers
            built = build_model(name, num_classes=10, in_channels=3)
        count = sum(parameter.numel() for parameter in built.parameters())
        large = options_for_size(name, (3, LARGE_SIDE, LARGE_SIDE))
        rows.append((name, count, large, summary(MODELS.load(name))))
    if json:
        keys = ("parameters", "for_large_images", "summary")
        console.show_json({name: dict(zip(keys, facts, strict=True)) for name, *facts in rows})
        return
    console.show(
        ["name", "parameters", f"from {LARGE_SIDE} pixels", "description"],
        [
            (name, f"{count:,}", ", ".join(f"{key}={value}" for key, value in large.items()), about)
            for name, count, large, about in rows
        ],
    )
    forms = ", ".join([*(SOURCES.load(prefix).form for prefix in SOURCES), Function.form])
    console.echo(f"also accepted as a model: {forms}", err=True)


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show] [NAME]",
            help="A recipe's name or file; show prints it with all defaults.",
            show_default="list all",
        ),
    ] = None,
    budget: Budget = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List the recipes, or print one as YAML.

    The cost is per image and step, in forward passes. Recipes that distil a teacher are listed apart; their cost does
    not include the teacher's forward pass.

    \b
    Examples:
        classwise recipes
        classwise recipes show trades-awp
        classwise recipes cfa-at --budget short
        classwise recipes cfa-at --set epochs=60 > mine.yaml
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.attacks import ATTACKS
    from classwise.core.settings.config import describe, make
    from classwise.training.recipe import all_recipes
    from classwise.training.recipe_files import budgets_of
    from classwise.training.step_sizes import base_step, with_absolute_step

    wanted = pairs(overrides)
    names = list(words or ())
    given = " ".join(names)
    whole = names[:1] == ["show"]
    names = names[whole:]
    if len(names) > 1 or (whole and not names):
        raise ClasswiseError(f"recipes {given}: expected one recipe, such as classwise recipes show cfa-at")
    if not names:
        if wanted:
            raise ClasswiseError("--set requires the name of a recipe, such as classwise recipes at --set epochs=60")
        if budget is not None:
            raise ClasswiseError("--budget requires the name of a recipe, such as classwise recipes at --budget short")
        found = [(recipe, budgets_of(known)) for known, recipe in all_recipes().items()]
        if json:
            facts = {
                recipe.name: {
                    "summary": recipe.description,
                    "source": recipe.source,
                    "epochs": recipe.epochs,
                    "budgets": budgets,
                    "changes": recipe.changes,
                    "passes": dataclasses.asdict(recipe.parts.passes),
                    "teacher": recipe.distils,
                }
                for recipe, budgets in found
            }
            console.show_json(facts)
            return
        for distils, title in ((False, ""), (True, "Distillation from a teacher, which is usually larger:")):
            rows = [
                (recipe.name, recipe.epochs, recipe.parts.passes.equivalents, ", ".join(budgets), recipe.description)
                for recipe, budgets in found
                if recipe.distils == distils
            ]
            if title:
                typer.echo("")
            console.show(["name", "epochs", "cost", "budgets", "description"], rows, title)
        return
    recipe = cw.Recipe.read(names[0], wanted, budget=budget)
    if whole:  # with all defaults of all parts; a threat that depends on the data set stays null
        threat = recipe.parts.threat
        completed = recipe.completed(threat or cw.Threat("Linf", 0.0))
        steps = {field: base_step(getattr(recipe, field)) for field in ("attack", "validation_attack")}
        stated: dict[str, Any] = {
            field: {**getattr(completed, field), "step_size": step} for field, step in steps.items() if step is not None
        }
        recipe = dataclasses.replace(completed, threat=None if threat is None else str(threat), **stated)
    if json:
        console.show_json(dataclasses.asdict(recipe))
    else:
        typer.echo(recipe.yaml().rstrip())
        parts = recipe.parts
        asked = describe(ATTACKS, make(ATTACKS, with_absolute_step(recipe.attack, parts.threat)))
        used = describe(ATTACKS, parts.attack)
        changed = [f"attack.{field}: {value}" for field, value in used.items() if asked.get(field) != value]
        if changed:
            typer.echo(f"# in training, the objective sets {', '.join(changed)}")


def cite(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A recipe or its YAML file, a run folder, a part such as awp or ccm, an attack, a suite, "
            "or classwise.",
        ),
    ],
    json: Json = False,
) -> None:
    """Print BibTeX entries of a method, run or attack.

    A recipe of your own and a run begin with a comment: what the recipe is, or on which recipe it is based.

    \b
    Examples:
        classwise cite cfa-trades >> paper.bib
        classwise cite runs/cfa
        classwise cite autoattack >> paper.bib
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.training.citations import ITSELF, papers, recipe_of
    from classwise.training.recipe_files import recipe_names

    found = papers(name)
    if json:
        console.show_json([dataclasses.asdict(paper) for paper in found])
        return
    if name not in (ITSELF.key, *recipe_names()) and (recipe := recipe_of(name)):
        about = ". ".join(text.rstrip(".") for text in (recipe.description, recipe.source) if text)
        typer.echo(one_line(f"% {name}: {about or 'no description'}".replace("@", "")))  # @ begins an entry
    if not found:
        typer.echo(f"% {name}: no paper; a standard technique, or introduced by its code")
        return
    typer.echo("\n\n".join(paper.bibtex() for paper in found))
