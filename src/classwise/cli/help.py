"""Help in panels: commands by task, options by subject. It is plain text, since rich takes long to import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMON = ("Question", "Model", "Data", "Training", "Attack", "Output", "Compute")
"""The panels of common options, in the order of the help; an option names its panel as ``rich_help_panel``."""
QUESTION, MODEL, DATA, TRAINING, ATTACK, OUTPUT, COMPUTE = COMMON
ADVANCED = ("Evaluation details", "Records", "Experiment trackers", "Shards and clusters")
EVALUATION, RECORDS, TRACKERS, CLUSTER = ADVANCED
"""The panels of other options, which follow; a command with ``--help-all`` leaves them out of ``--help``."""
OTHER, COMMANDS = "Options", "Commands"
HELP_ALL = "help_all"
"""The parameter ``--help-all``; true in ``meta`` of a context whose help has all panels."""


def _print_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_print_all,
        is_eager=True,
        help=f"Show all options, also: {', '.join(ADVANCED)}.",
        rich_help_panel=OTHER,
    ),
]
"""The option of a command whose help is longer than two screens."""


class PanelCommand(TyperCommand):
    """A command whose help shows its options in `COMMON` and `ADVANCED` panels; options of one value are given once."""

    def make_parser(self, ctx: Any) -> Any:
        """A parser that refuses a second value of an option, which would replace the first one."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, order = parse(args)
            for option in order:
                is_switch = getattr(option, "is_flag", False) and not option.secondary_opts
                single = option.param_type_name == "option" and not (option.multiple or option.count or is_switch)
                if single and order.count(option) > 1:
                    ctx.fail(f"{option.opts[0]} is given {order.count(option)} times; give it once")
            return values, rest, order

        parser.parse_args = parse_once
        return parser

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line: ``[OPTIONS] MODEL``."""
        arguments = [parameter.metavar for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        return ["[OPTIONS]", *map(str, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options of each panel with their defaults in brackets."""
        _write_parameters(self.get_params(ctx), ctx, formatter)


class PanelGroup(TyperGroup):
    """A group of commands whose help shows them in the panels that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        _write_parameters(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each panel with the first sentence of their help."""
        panels: dict[str, list[tuple[str, str]]] = {}
        indent = max(map(len, self.commands))
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            summary = command.get_short_help_str(formatter.width - indent - 4)
            panels.setdefault(command.rich_help_panel or COMMANDS, []).append((name.ljust(indent), summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class DefaultGroup(PanelGroup):
    """A group whose first command runs where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the group."""
        return super().parse_args(ctx, args if args[:1] in ([], ["--help"], ["-h"]) else self._named(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The command, and its words."""
        return super().resolve_command(ctx, self._named(args))

    def _named(self, args: list[str]) -> list[str]:
        return args if args[0] in self.commands else [next(iter(self.commands)), *args]


def _write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *COMMON, *ADVANCED, OTHER)}
    parameters = list(parameters)
    left_out = ADVANCED if HELP_ALL not in ctx.meta and any(part.name == HELP_ALL for part in parameters) else ()
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, help_text = record[0], parameter.help or record[1]
        panel = getattr(parameter, "rich_help_panel", None) or OTHER
        if parameter.param_type_name == "argument":
            panel, names = "Arguments", parameter.metavar
        default = default_text(parameter)
        sections[panel].append((names, f"{help_text} [{default}]" if default else help_text))
    for name, rows in sections.items():
        if rows and name not in left_out:
            with formatter.section(name):
                formatter.write_dl(rows, col_max=26)


def default_text(parameter: Any) -> str:
    """The default of a parameter: its ``show_default`` if that is a text, else its value; empty for none.

    Args:
        parameter: an option or an argument.
    """
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if isinstance(value, bool):
        names = parameter.opts if value else parameter.secondary_opts
        return str(names[0].lstrip("-")) if parameter.secondary_opts else ""
    return "" if value is None or value == [] else str(value)
