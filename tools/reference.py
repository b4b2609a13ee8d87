"""Reference pages of the documentation, generated from the registered parts, the command line and the sources.

Each function returns Markdown. `tools.sphinx_reference` inserts it into the pages while the site is built, so nothing
that is generated is under version control.

    python -m tools.reference attacks      # print one of them
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from classwise.auditing import outcome_files
from classwise.cli import docstrings, main
from classwise.cli.app import app
from classwise.core.bibliography import PAPERS, line_of
from classwise.core.config import describe, make
from classwise.core.description import summary
from classwise.core.errors import ClasswiseError
from classwise.core.registry import Registry
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.citations import sources


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


def sections(parts: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A heading for each part, followed by its paragraphs; empty ones are omitted."""
    return "\n\n".join("\n\n".join([f"## `{name}`", *filter(None, blocks)]) for name, blocks in parts)


def attacks() -> str:
    """Every attack: summary, norms, settings and papers."""
    return sections((name, _attack(name)) for name, about in listed("attacks").items() if "A suite" not in str(about))


def _attack(name: str) -> list[str]:
    facts = listed("attacks", name)
    rows = [
        (f"`{key}`", _value(facts["settings"].get(key, "")), about["values"], about["meaning"])
        for key, about in facts["about"].items()
    ]
    settings = table(("setting", "default", "values", "description"), rows)
    return [facts["summary"], f"Norms: {', '.join(facts['norms'])}.", settings, _sources(facts["sources"])]


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


def recipes() -> str:
    """Every recipe: what it does, what it changes, its cost and source."""
    rows = [
        (
            f"`{name}`",
            facts["summary"],
            ", ".join(facts["changes"]),
            facts["epochs"],
            ", ".join(facts["budgets"]),
            facts["source"],
        )
        for name, facts in listed("recipes").items()
    ]
    return table(("recipe", "what it does", "changes", "epochs", "budgets", "source"), rows)


def data_sets() -> str:
    """Every named data set: shape, classes, splits, usual threat and normalisation."""
    rows = [
        (
            f"`{name}`",
            " x ".join(map(str, facts["shape"])),
            len(facts["class_names"]),
            ", ".join(facts["splits"]),
            f"`{facts['threat']}`",
            ", ".join(f"{value:g}" for value in facts["mean"]),
            ", ".join(f"{value:g}" for value in facts["std"]),
        )
        for name, facts in listed("data").items()
    ]
    return table(("data set", "shape", "classes", "splits", "usual threat", "mean", "std"), rows)


def models() -> str:
    """Every network of the zoo with its number of parameters."""
    rows = [(f"`{name}`", f"{about['parameters']:,}", about["summary"]) for name, about in listed("models").items()]
    return table(("network", "parameters", "description"), rows)


def parts(registry: Registry[Any]) -> str:
    """Every part of a registry of training: summary, example, settings and papers."""
    return sections((name, _part(registry, name)) for name in registry)


def _part(registry: Registry[Any], name: str) -> list[str]:
    cls = registry.load(name)
    blocks = [_code(summary(cls))]
    if getattr(cls, "example", ""):
        blocks.append(f"Example: `{cls.example}`.")
    if isinstance(cls, type):
        meanings, values = docstrings.meanings(cls), docstrings.values(cls)
        rows = [
            (f"`{key}`", _value(default), values.get(key, ""), meanings.get(key, ""))
            for key, default in _defaults(registry, name, cls).items()
        ]
        blocks.append(table(("setting", "default", "values", "description"), rows))
    return [*blocks, _sources([line_of(source) for source in sources(cls)])]


def _defaults(registry: Registry[Any], name: str, cls: Any) -> dict[str, Any]:
    """The settings of a part with their defaults; those of its example if it has settings without a default."""
    try:
        found = describe(registry, make(registry, name))
    except ClasswiseError:
        found = describe(registry, make(registry, cls.example))
    return {key: value for key, value in found.items() if key != "name"}


def commands() -> str:
    """The help text of every command."""
    program: Any = typer.main.get_command(app)
    parts = []
    for name, command in program.commands.items():
        with command.make_context(f"classwise {name}", [], resilient_parsing=True) as context:
            parts.append((f"classwise {name}", [f"```text\n{command.get_help(context).strip()}\n```"]))
    return sections(parts)


def columns() -> str:
    """The columns of the outcomes table, with the comments of their definition."""
    source = inspect.getsource(outcome_files)
    comments = dict(re.findall(r'^    "(\w+)": "\w+",  # (.*)$', source, re.MULTILINE))
    rows = [(f"`{name}`", kind, comments.get(name, "")) for name, kind in outcome_files.COLUMNS.items()]
    return table(("column", "type", "description"), rows)


def papers() -> str:
    """Every paper of the bibliography."""
    return "\n".join(f"- {paper.line()}." for paper in sorted(PAPERS.values(), key=lambda paper: paper.line()))


def _sources(lines: Iterable[str]) -> str:
    cited = list(lines)
    return f"Source: {'; '.join(cited)}." if cited else ""


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"`{value['name']}`" if "name" in value else ""
    return "" if value is None or value == "" else f"`{value}`"


def _code(text: str) -> str:
    return text.replace("``", "`")


PAGES: Mapping[str, Callable[[], str]] = {
    "attacks": attacks,
    "suites": suites,
    "recipes": recipes,
    "data-sets": data_sets,
    "models": models,
    "objectives": lambda: parts(OBJECTIVES),
    "criteria": lambda: parts(CRITERIA),
    "schedules": lambda: parts(SCHEDULES),
    "reductions": lambda: parts(REDUCTIONS),
    "updates": lambda: parts(UPDATES),
    "averagers": lambda: parts(AVERAGERS),
    "optimisers": lambda: parts(OPTIMISERS),
    "lr-schedules": lambda: parts(LR_SCHEDULES),
    "commands": commands,
    "columns": columns,
    "papers": papers,
}
"""The generated texts by name; the argument of the directive ``generated``."""


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PAGES:
        print(PAGES[chosen](), end="\n\n")
