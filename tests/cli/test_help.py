"""The help of every command: panels, defaults, 80 columns, and examples that the program accepts."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from classwise.cli.help import ADVANCED, COMMON, OTHER, default_text

from .conftest import Classwise
from .test_documents import COMMANDS, Command, check_values, commands_of, parse

OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option"
]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda part: part if isinstance(part, str) else part.opts[0])
def test_an_option_has_a_panel_a_metavar_and_one_sentence(name: str, option: Any) -> None:
    assert option.rich_help_panel in ((OTHER,) if option.name == "help_all" else (*COMMON, *ADVANCED))
    assert option.is_flag or option.metavar
    assert re.match(r"[A-Z]", option.help)
    assert option.help.endswith(".")
    assert "[" not in option.help, "a default is the option's show_default"
    if option.default not in (None, False, "", [], ()):
        assert default_text(option)


def examples_of(text: str) -> list[Command]:
    """The commands below ``Examples:``, up to an empty line."""
    lines = re.split(r"\n  Examples?:\n", text)[1].partition("\n\n")[0]
    return list(commands_of("help", textwrap.indent(textwrap.dedent(lines), "    ")))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, classwise: Classwise) -> None:
    said = classwise(*name.split(), "--help")
    assert max(map(len, said.out.splitlines())) <= 80
    assert len(said.out.splitlines()) <= 100, "two screens; declare HelpAll"
    usage, _, rest = said.out.partition("\n\n")
    assert usage.startswith(f"Usage: classwise {name} [OPTIONS]")
    assert "{" not in usage
    summary = rest.splitlines()[0].strip()
    assert summary.endswith(".")
    examples = examples_of(rest)
    assert examples
    for example in examples:
        parsed = parse(example)
        if not any("mypackage" in word for word in example.words):  # code of the reader
            check_values(*parsed)


def test_the_help_of_the_program_has_examples(classwise: Classwise) -> None:
    said = classwise("--help").out
    examples = list(
        commands_of("classwise", said.partition("Examples:")[2].partition("Options:")[0].replace("      ", "    "))
    )
    assert len(examples) == 4
    for example in examples:
        check_values(*parse(example))
    assert max(map(len, said.splitlines())) <= 80


def test_help_all_adds_the_advanced_panels_behind_the_common_ones(classwise: Classwise) -> None:
    common = ["Arguments", "Model", "Data", "Attack", "Output", "Compute"]
    said, complete = classwise("audit", "--help").out, classwise("audit", "--help-all").out
    assert re.findall(r"^(\w[\w ]*):$", said, re.MULTILINE) == [*common, "Options"]
    assert re.findall(r"^(\w[\w ]*):$", complete, re.MULTILINE) == [*common, *ADVANCED, "Options"]
    assert re.search(r"^Attack:\n  --attack .*\bpgd:steps=50\b", said, re.MULTILINE)
    for option in COMMANDS["audit"].params:
        assert option.param_type_name == "argument" or re.search(rf"^  {option.opts[0]}\b", complete, re.MULTILINE)
    assert re.search(r"--split NAME .* \[test\]$", said, re.MULTILINE)
    assert re.search(r"--data DATA .* \[the data of the run\]$", said, re.MULTILINE)
    assert "early-stop]" in complete


@pytest.mark.parametrize(("name", "default"), [("corruptions", "none"), ("curve", "the suite of the threat")])
def test_shared_options_are_described_for_their_command(name: str, default: str, classwise: Classwise) -> None:
    said = " ".join(classwise(name, "--help").out.split())
    assert re.search(rf"--attack \[LABEL=\]SPEC [^\[]*\[{default}\]", said)
    assert "several seeds" not in said, "only audit accepts a folder of seeds"


def test_help_imports_no_large_package() -> None:
    program = (
        "import sys, classwise.cli.app; print(*{'numpy', 'pandas', 'pydantic', 'torch', 'yaml'} & sys.modules.keys())"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
