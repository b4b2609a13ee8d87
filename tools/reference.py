"""Reference pages of the documentation, generated from the registered parts, the command line and the sources.

Each function returns Markdown, the text between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->`` of a page.
Those of checkpoints/README.md are written by `tools.model_cards`.

    python -m tools.reference attacks      # print one of them
    python -m tools.reference --write      # write all of them into their pages
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import json
import pkgutil
import re
import string
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from tools import model_cards

import classwise
import classwise.maite
from classwise.auditing.evaluation.evaluation import ATTACKS, OPTIONS, THREAT
from classwise.auditing.outcomes import files as outcome_files
from classwise.cli import docstrings, main
from classwise.cli.app import app
from classwise.cli.help import HELP_ALL
from classwise.core.errors import ClasswiseError
from classwise.core.settings.bibliography import PAPERS, line_of
from classwise.core.settings.config import describe, make, relative_step
from classwise.core.settings.description import summary
from classwise.core.settings.registry import Registry
from classwise.models.loading.checkpoints import STATE_DICT_KEYS
from classwise.stats.registry import all_metrics
from classwise.threat.ball import Threat
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.citations import sources
from classwise.training.classes.signals import MEASURED
from classwise.training.lr_schedules import MultiStep
from classwise.training.recipe import Recipe, all_recipes

REFERENCE = Path(__file__).parents[1] / "docs/reference"
FILES = (*sorted(REFERENCE.glob("*.md")), model_cards.FOLDER / "README.md")
"""The pages with generated texts."""
BASE_CLASSES = (
    "classwise.testing.assert_robust",
    "classwise.attacks.autoattack.AutoAttack",
    "classwise.attacks.external.ExternalAttack",
    "classwise.attacks.gradient.ascent.Ascent",
    "classwise.attacks.gradient.ascent.PGD",
    "classwise.training.loggers.base.Logger",
)
"""The names that docs/reference/base-classes.md documents, besides those of `SIGNATURES`."""
SIGNATURES = (
    "classwise.attacks.base.Attack",
    "classwise.attacks.engine.AttackInputs",
    "classwise.training.objectives.base.Objective",
    "classwise.training.objectives.base.TrainingBatch",
    "classwise.training.objectives.base.Step",
    "classwise.training.criteria.base.Criterion",
    "classwise.training.schedules.base.ClassSchedule",
    "classwise.training.schedules.base.Classes",
    "classwise.training.classes.signals.ClassSettings",
)
"""The base classes, and the classes that their methods receive and return."""
BLOCK = re.compile(r"(?<=<!-- generated: )([\w-]+) -->\n(.*?)\n?(?=<!-- end -->)", re.DOTALL)
"""A generated text of a page: its name in `PAGES`, and the text."""


def listed(*words: str) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main([*words, "--json"])
    if status:
        raise RuntimeError(f"classwise {' '.join(words)} --json: exit status {status}")
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; nothing if there are no rows."""
    body = [[str(cell).replace("|", "\\|").replace("\n", " ") or "-" for cell in row] for row in rows]
    if not body:
        return ""
    names = list(header)
    return "\n".join("| " + " | ".join(row) + " |" for row in (names, ["---"] * len(names), *body))


def sections(parts: Iterable[tuple[str, Iterable[str]]], level: int = 3) -> str:
    """A heading for each part, followed by its paragraphs; empty ones are omitted."""
    return "\n\n".join("\n\n".join([f"{'#' * level} `{name}`", *filter(None, blocks)]) for name, blocks in parts)


def attacks() -> str:
    """Every attack: summary, norms, settings and papers."""
    names = [name for name, about in listed("attacks").items() if "A suite" not in str(about)]
    facts = {name: listed("attacks", name) for name in names}
    settings = {
        name: [
            Setting(key, _value(found["settings"].get(key, "")), about["values"], about["meaning"])
            for key, about in found["about"].items()
            if not key.startswith("attack.")
        ]
        for name, found in facts.items()
    }
    return described(
        {
            name: (f"{_code(found['summary'])} Norms: {', '.join(found['norms'])}.", settings[name], found["sources"])
            for name, found in facts.items()
        }
    )


def evaluation() -> str:
    """Every option of an evaluation."""
    rows = []
    for option in {"threat": THREAT, "attacks": ATTACKS, **OPTIONS}.values():
        flag, unit = option.flag, option.unit
        if flag is not None and flag.per != 1 and flag.metavar:
            unit += f" ({flag.metavar.lower()})"
        named = flag is not None or option.name in ("shard", "shards")  # these have options of several commands
        word = f"`--{option.key.replace('_', '-')}`" if named else ""
        text = re.sub(r"``(.*?)``", r"`\1`", option.help)
        rows.append((f"`{option.name}`", word, f"`{option.default!r}`", unit, option.decides.value, text))
    return table(("option", "command line", "default", "unit", "decides", "description"), rows)


def suites() -> str:
    """Every suite: the attacks of each version, in order, and the papers."""
    names = [name for name, about in listed("attacks").items() if "A suite" in str(about)]
    parts = []
    for name in names:
        facts = listed("attacks", name)
        rows = [
            (f"`{name}:version={version}`", ", ".join(f"`{spec}`" for spec in specs))
            for version, specs in facts["versions"].items()
        ]
        parts.append((name, [table(("suite", "attacks, in order"), rows), _sources(facts["sources"])]))
    return sections(parts)


def recipes(*, distil: bool) -> str:
    """Every recipe with or without a teacher: what it does, what it changes, its cost without a teacher, its source."""
    rows = [
        (
            f"`{recipe.name}`",
            recipe.description,
            ", ".join(recipe.changes),
            recipe.parts.passes.equivalents,
            recipe.epochs,
            recipe.source,
        )
        for recipe in all_recipes().values()
        if recipe.distils == distil
    ]
    return table(("recipe", "what it does", "changes", "cost", "epochs", "source"), rows)


def published_settings() -> str:
    """The recipes with the settings of public code: network, radius, step size, learning rate, weight decay, epochs."""
    rows = []
    for recipe in all_recipes().values():
        parts: Any = recipe.parts
        if parts.threat != Threat("Linf", 0.031) and not recipe.name.endswith("-code"):
            continue
        steps = parts.lr_schedule if isinstance(parts.lr_schedule, MultiStep) else None
        drops = [str(round(at * recipe.epochs) + 1) for at in steps.milestones] if steps else [str(recipe.lr_schedule)]
        rate = f"{parts.optimizer.lr:g}" + (", Nesterov" if parts.optimizer.nesterov else "")
        size, relative = relative_step(parts.attack.step_size)
        step = f"{size * (parts.threat.epsilon if relative else 1):.2g}" + (" W_c" if relative else "")
        decay, radius = f"{parts.optimizer.weight_decay:g}", f"{parts.threat.epsilon:.4g}"
        rows.append((f"`{recipe.name}`", recipe.model.name, radius, step, rate, ", ".join(drops), decay, recipe.epochs))
    header = (
        "recipe",
        "network",
        "radius",
        "step size",
        "learning rate",
        "/ 10 from epoch",
        "weight decay",
        "epochs",
    )
    return table(header, rows)


def data_set_files() -> str:
    """Every named data set: its files, options and publications, and whether it is downloaded."""
    rows = []
    first: dict[str, str] = {}
    for name, facts in listed("data").items():
        options = "; ".join(f"`{key}`: {meaning.rstrip('.')}" for key, meaning in facts["options"].items())
        options, source = (_as_of(name, text, first) for text in (options, "; ".join(facts["source"])))
        rows.append((f"`{name}`", facts["files"], options, "yes" * bool(facts["download"]), source))
    return table(("name", "files", "options", "download", "source"), rows)


def _as_of(name: str, text: str, first: dict[str, str]) -> str:
    """A text, or the name of the row that had it before; ``first`` has the row of each text."""
    owner = first.setdefault(text, name)
    return text if owner == name or not text else f"as `{owner}`"


def data_sets() -> str:
    """Every named data set: shape, classes, images, usual threat, recommended augmentation and normalisation."""
    rows = []
    first: dict[str, str] = {}
    for name, facts in listed("data").items():
        mean, std = (", ".join(f"{value:g}" for value in facts[key]) for key in ("mean", "std"))
        rows.append(
            (
                f"`{name}`",
                " x ".join(map(str, facts["shape"])),
                len(facts["class_names"]),
                ", ".join(f"{split} {size:,}" for split, size in zip(facts["splits"], facts["sizes"], strict=True)),
                f"`{facts['threat']}`",
                f"`{facts['augment']}`",
                _as_of(name, f"{mean}; {std}", first),
            )
        )
    return table(("data set", "shape", "classes", "images", "usual threat", "augmentation", "mean; std"), rows)


def models() -> str:
    """Every network of the zoo with its number of parameters."""
    rows = []
    first: dict[str, str] = {}
    for name, about in listed("models").items():
        text, _, settings = about["summary"].partition(" Here ")
        owner = first.setdefault(text, name)
        description = about["summary"] if owner == name else f"As `{owner}`, with {settings}"
        large = ", ".join(f"`{key}={value}`" for key, value in about["for_large_images"].items())
        rows.append((f"`{name}`", f"{about['parameters']:,}", large, description))
    return table(("network", "parameters", "from 128 pixels", "description"), rows)


def state_dict_keys() -> str:
    """The keys of the state dict in checkpoints, in order of preference."""
    return ", ".join(f"`{key}`" for key in STATE_DICT_KEYS) + "."


def parts(registry: Registry[Any], *, summaries: bool = False) -> str:
    """Every part of a registry of training: settings and papers, and its summary if no other page has it."""
    found = {}
    for name in registry:
        cls = registry.load(name)
        text = _code(summary(cls)) if summaries else ""
        settings = []
        if isinstance(cls, type):
            meanings, values = docstrings.meanings(cls), docstrings.values(cls)
            settings = [
                Setting(key, _value(default), values.get(key, ""), meanings.get(key, ""))
                for key, default in _defaults(registry, name, cls).items()
            ]
        example = getattr(cls, "example", "")
        if any(not setting.default and setting.name in example for setting in settings):
            text = f"{text} Example: `{example}`.".strip()
        if not (text or settings):
            text = "No settings of its own."
        found[name] = (text, settings, [line_of(source) for source in sources(cls)])
    return described(found)


@dataclass(frozen=True)
class Setting:
    """A setting of a part.

    Args:
        name: the name.
        default: the default as code, or an empty text.
        values: the accepted values, or an empty text.
        meaning: the description, or an empty text.
    """

    name: str
    default: str
    values: str
    meaning: str

    @property
    def value(self) -> str:
        """The name with the default."""
        return f"`{self.name}`" if not self.default else f"`{self.name}={self.default.strip('`')}`"

    @property
    def about(self) -> tuple[str, str, str]:
        """What parts with the same setting share."""
        return (self.name, self.values, self.meaning)

    def line(self) -> str:
        """The setting as an entry of a list."""
        values = f" ({self.values})" if self.values else ""
        return f"- {self.value}{values}{f': {self.meaning}' if self.meaning else ''}"


def described(found: Mapping[str, tuple[str, Sequence[Setting], Sequence[str]]]) -> str:
    """A section for each part, of a text, settings and sources; a setting that several parts share is described once.

    The description is before the sections if at least five parts share it, otherwise with the first of them.
    """
    uses = Counter(setting.about for _, settings, _ in found.values() for setting in settings)
    frequent = [about for about, count in uses.items() if count >= 5 and len(about[2].split()) >= 4]
    before = [Setting(name, "", values, meaning).line() for name, values, meaning in frequent]
    blocks = ["Settings that many have, with their defaults below:", "\n".join(before)] if before else []
    first: dict[tuple[str, str, str], str] = {}
    parts = []
    for name, (text, settings, cited) in found.items():
        own: list[str] = []
        shared: dict[str, list[str]] = {"": []}
        for setting in settings:
            owner = "" if setting.about in frequent else first.setdefault(setting.about, name)
            if owner == name or len(setting.meaning.split()) < 4:
                own.append(setting.line())
            else:
                shared.setdefault(owner, []).append(setting.value)
        prefixes = {owner: f"as of `{owner}`: " if owner else "" for owner in shared}
        lines = [f"- {prefixes[owner]}{', '.join(values)}" for owner, values in shared.items() if values]
        parts.append((name, [text, "\n".join([*lines, *own]), _sources(cited)]))
    return "\n\n".join([*blocks, sections(parts)])


def losses() -> str:
    """Every objective: the loss of an image, and the passes of a step with PGD-10."""
    rows = [
        (
            f"`{name}`",
            summary(OBJECTIVES.load(name)),
            _passes(Recipe.read("at", {"objective": name, "attack": "pgd:steps=10"})),
        )
        for name in OBJECTIVES
    ]
    return table(("name", "loss of an image", "passes"), rows)


def summaries(registry: Registry[Any], about: str) -> str:
    """The summary of every part of a registry, in a table whose second column is headed by ``about``."""
    return table(("name", about), ((f"`{name}`", summary(registry.load(name))) for name in registry))


def schedule_table() -> str:
    """Every class schedule: what it does, what it changes, and the signals that it reads."""
    loaded = {name: SCHEDULES.load(name) for name in SCHEDULES}
    rows = [
        (
            f"`{name}`",
            _code(summary(cls)),
            ", ".join(cls.changes),
            ", ".join(f"`{signal}`" for signal in sorted(cls.reads)),
        )
        for name, cls in loaded.items()
    ]
    return table(("schedule", "what it does", "changes", "reads"), rows)


def signals() -> str:
    """Every signal that a class schedule or a weight averaging can read."""
    return table(("signal", "meaning"), ((f"`{name}`", meaning) for name, meaning in MEASURED.items()))


def update_table() -> str:
    """Every update and average of the weights: what it does, what it changes, and the passes of a step with PGD-10."""
    rows = []
    first: dict[str, str] = {}
    for field, registry in (("update", UPDATES), ("averaging", AVERAGERS)):
        for name in registry:
            cls = registry.load(name)
            asked = {field: name, "attack": "pgd:steps=10"}
            passes = " / ".join(_passes(Recipe.read(base, asked)) for base in ("at", "trades"))
            passes = _as_of(f"{field}: {name}", passes, first)
            rows.append((f"`{field}: {name}`", summary(cls), ", ".join(cls.changes), passes))
    return table(("part", "what it does", "changes", "passes (AT / TRADES)"), rows)


def _passes(recipe: Recipe) -> str:
    """Forward and backward passes of a step."""
    passes = recipe.parts.passes
    return f"{passes.forward} + {passes.to_image + passes.to_weights}"


def _defaults(registry: Registry[Any], name: str, cls: Any) -> dict[str, Any]:
    """The settings of a part with their defaults; None for those without a default."""
    try:
        found = describe(registry, make(registry, name))
    except ClasswiseError:
        required = [one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING]
        found = {**describe(registry, make(registry, cls.example)), **dict.fromkeys(required)}
    return {key: value for key, value in found.items() if key != "name"}


def commands() -> str:
    """The help text of every command; options that an earlier command has word for word are only named."""
    first: dict[str, str] = {}
    helps = _helps("classwise", typer.main.get_command(app))
    return sections(((name, [f"```text\n{_shortened(name, text, first)}\n```"]) for name, text in helps), level=2)


ENTRY = re.compile(r"^  (?! ).*\n(?:   .*\n)*", re.MULTILINE)
"""An argument or an option of a help text, with its description."""
GROUP = re.compile(rf"^(?!Usage|Examples?:)(\S[^\n]*:)\n((?:{ENTRY.pattern.removeprefix('^')})+)", re.MULTILINE)
"""A group of arguments or options of a help text: its heading and its entries."""


def _shortened(command: str, text: str, first: dict[str, str]) -> str:
    """A help text without its option --help, where entries that an earlier command has are only named.

    Args:
        command: the name of the command.
        text: its help text.
        first: the first command that has an entry, by the words of the entry; extended by those of this command.
    """

    def short(group: re.Match[str]) -> str:
        entries = [entry for entry in ENTRY.findall(group[2]) if not entry.startswith("  --help ")]
        owners = [first.setdefault(" ".join(entry.split()), command) for entry in entries]
        known: dict[str, list[str]] = {}
        own = ""
        for entry, owner in zip(entries, owners, strict=True):
            if owner != command and (owners.count(owner) > 1 or len(entry.split()) > 8):
                known.setdefault(owner, []).append(re.findall(r"--[\w-]+|[\[\]A-Z._]+", entry)[0])
            else:
                own += entry
        lines = (f"As for {owner}: {', '.join(names)}." for owner, names in known.items())
        wrapped = [textwrap.indent(textwrap.fill(line, 76, subsequent_indent="  "), "  ") for line in lines]
        return "\n".join([group[1], *wrapped, own]) if entries else ""

    return re.sub(r"\n{3,}", "\n\n", GROUP.sub(short, f"{text}\n")).strip()


def _helps(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """The help texts of the commands of a group, and of those of its groups."""
    for word, member in getattr(command, "commands", {}).items():
        whole = f"{name} {word}"
        with member.make_context(whole, [], resilient_parsing=True, terminal_width=78) as context:
            context.meta[HELP_ALL] = True
            yield whole, member.get_help(context).strip()
        yield from _helps(whole, member)


def columns() -> str:
    """The columns of the outcomes table, with the comments of their definition."""
    source = inspect.getsource(outcome_files)
    comments = dict(re.findall(r'^    "(\w+)": "\w+",  # (.*)$', source, re.MULTILINE))
    rows = [(f"`{name}`", kind, comments.get(name, "")) for name, kind in outcome_files.COLUMNS.items()]
    return table(("column", "type", "description"), rows)


def papers() -> str:
    """Every paper of the bibliography, by the label that the other pages cite."""
    return "\n".join(
        f"- {label}: {paper.title}, {paper.venue}."
        for label, paper in sorted((label, PAPERS[key]) for key, label in labels().items())
    )


@functools.cache
def labels() -> Mapping[str, str]:
    """The authors and the year of every paper by its key, with a letter where several papers have the same ones."""
    plain = {key: f"{paper.line().partition(f', {paper.title}')[0]}, {paper.year}" for key, paper in PAPERS.items()}
    several: dict[str, list[str]] = {}
    for key in sorted(PAPERS, key=lambda key: PAPERS[key].line()):
        several.setdefault(plain[key], []).append(key)
    return {
        key: label + (string.ascii_lowercase[at] if len(keys) > 1 else "")
        for label, keys in several.items()
        for at, key in enumerate(keys)
    }


def _sources(lines: Iterable[str]) -> str:
    """The sources of a part, with papers of the bibliography by their labels."""
    cited = []
    for line in lines:
        papers = [(paper.line(), labels()[key]) for key, paper in PAPERS.items() if line.startswith(paper.line())]
        cited += [label + line.removeprefix(whole) for whole, label in papers] or [line]
    return f"Source: {'; '.join(cited)}." if cited else ""


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"`{value['name']}`" if "name" in value else ""
    return "" if value is None or value == "" else f"`{value}`"


def _code(text: str) -> str:
    return text.replace("``", "`")


def metrics() -> str:
    """Every metric: its definition, what it is computed from, its unit and its direction."""
    printed = {"fraction": "percent", "fraction squared": "percent squared"}  # `about` names the printed unit
    rows = [
        (
            f"`{name}`",
            measure.about.removesuffix(f", in {printed.get(measure.unit)}").removesuffix(", in percentage points"),
            measure.reads,
            f"{measure.unit}, printed in {printed[measure.unit]}" if measure.unit in printed else measure.unit,
            "higher" if measure.higher_is_better else "lower",
        )
        for name, measure in all_metrics().items()
    ]
    return table(("metric", "definition", "computed from", "unit", "better"), rows)


def api(module: ModuleType) -> str:
    """The public names of a module: a table with links to their headings, then the documentation of each."""
    names = [name for name in module.__all__ if not name.startswith("_")]
    slugs = [name.lower() for name in names]
    anchors = [slug + f"-{slugs[:at].count(slug)}" * (slug in slugs[:at]) for at, slug in enumerate(slugs)]
    links = (f"[`{name}`](#{anchor})" for name, anchor in zip(names, anchors, strict=True))
    return _documented([f"{module.__name__}.{name}" for name in names], links)


def base_classes() -> str:
    """The names of `BASE_CLASSES`: a table, then the documentation of each."""
    return _documented(BASE_CLASSES, (f"`{path}`" for path in BASE_CLASSES))


def _documented(paths: Sequence[str], cells: Iterable[str]) -> str:
    """A table with a cell and the first sentence for each name, then a heading and its directive of autodoc."""
    values = [pkgutil.resolve_name(path) for path in paths]
    rows = [(cell, _code(_about(value))) for cell, value in zip(cells, values, strict=True)]
    parts = [(path.rpartition(".")[2], [_directive(path, value)]) for path, value in zip(paths, values, strict=True)]
    return f"{table(('name', 'what it is'), rows)}\n\n{sections(parts, level=2)}"


def _about(value: object) -> str:
    """The first sentence of a docstring."""
    if isinstance(value, Registry):
        return f"Every {value.kind} by its name."
    return re.split(r"(?<=\.) ", summary(value), maxsplit=1)[0]


def _directive(path: str, value: object) -> str:
    """The directive of autodoc that documents a value; of a module its name."""
    if inspect.ismodule(value):
        return f"The module `{value.__name__}`."
    if inspect.isclass(value):
        kind, options = "autoclass", "   :members:\n"
    else:
        kind, options = ("autofunction", "") if callable(value) else ("autodata", "   :no-value:\n")
    return f"```{{eval-rst}}\n.. {kind}:: {path}\n{options}```"


def signatures() -> str:
    """The base classes of attacks and of parts of training: fields, signatures of methods, docstrings."""
    return sections((path.rpartition(".")[2], [f"```py\n{_signature(path)}\n```"]) for path in SIGNATURES)


def _signature(path: str) -> str:
    """The source of a class without the bodies of its methods."""
    module, _, name = path.rpartition(".")
    source = inspect.getsource(pkgutil.resolve_name(path))
    lines, (tree,) = source.splitlines(), ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found, end = [f"# from {module} import {name}", *lines[: tree.lineno]], tree.lineno
    for node in tree.body:
        comments = [line for line in lines[end : node.lineno - 1] if line.startswith("    #:")]
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef):
            if node.name.startswith("_") and not _is_abstract(node):
                continue
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            separator = [""] if found[-1] else []
            found += [*separator, *lines[first - 1 : node.body[0].lineno - 1], *_docstring(node, 8)]
        elif isinstance(node, ast.Expr):
            found += [*_docstring(tree, 4), ""]
        else:
            found += [*comments, *lines[node.lineno - 1 : end]]
    return "\n".join(found)


def _is_abstract(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "abstractmethod" for decorator in node.decorator_list)


def _docstring(node: ast.FunctionDef | ast.ClassDef, indent: int) -> list[str]:
    """The lines of a docstring without examples and errors."""
    text = re.split(r"\n\n(?:Examples?|Raises):", ast.get_docstring(node) or "")[0]
    quoted = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
    return textwrap.indent(quoted, " " * indent).splitlines()


PAGES: Mapping[str, Callable[[], str]] = {
    "attacks": attacks,
    "suites": suites,
    "evaluation": evaluation,
    "recipes": lambda: recipes(distil=False),
    "distillation": lambda: recipes(distil=True),
    "published-settings": published_settings,
    "data-set-files": data_set_files,
    "data-sets": data_sets,
    "models": models,
    "state-dict-keys": state_dict_keys,
    "objectives": lambda: parts(OBJECTIVES),
    "criteria": lambda: parts(CRITERIA),
    "schedules": lambda: parts(SCHEDULES),
    "reductions": lambda: parts(REDUCTIONS),
    "updates": lambda: parts(UPDATES),
    "averagers": lambda: parts(AVERAGERS),
    "optimisers": lambda: parts(OPTIMISERS, summaries=True),
    "lr-schedules": lambda: parts(LR_SCHEDULES, summaries=True),
    "losses": losses,
    "criterion-table": lambda: summaries(CRITERIA, "loss"),
    "reduction-table": lambda: summaries(REDUCTIONS, "from the images' losses to one number"),
    "schedule-table": schedule_table,
    "signals": signals,
    "update-table": update_table,
    "metrics": metrics,
    "commands": commands,
    "columns": columns,
    "bibliography": papers,
    "signatures": signatures,
    "base-classes": base_classes,
    "api": lambda: api(classwise),
    "api-maite": lambda: api(classwise.maite),
    **{name: functools.partial(model_cards.card, name) for name in model_cards.NAMES},
}
"""The generated texts by name."""


def written(page: str) -> str:
    """A page with its generated texts, written again."""
    return BLOCK.sub(lambda found: f"{found[1]} -->\n{PAGES[found[1]]()}\n", page)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for page in FILES:
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for chosen in sys.argv[1:] or PAGES:
            if chosen not in PAGES:
                raise SystemExit(f"there is no text {chosen!r}; the texts are {', '.join(PAGES)}")
            print(PAGES[chosen](), end="\n\n")
