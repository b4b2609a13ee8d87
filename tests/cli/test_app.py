from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from .conftest import Classwise
from .test_documents import COMMANDS

HEAVY = ("torch", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "pyarrow", "jinja2", "yaml")


@pytest.mark.slow
def test_help_is_light() -> None:
    """Few modules, those of the interpreter's own start included, and no heavy one; they take most of the time."""
    code = (
        "import json, sys\n"
        "from classwise.cli import main\n"
        "for words in ('--help', 'train --help', 'papers run --help', '--version', ''):\n"
        "    main(words.split())\n"
        "print(json.dumps(list(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = json.loads(done.stderr.splitlines()[-1])
    assert len(modules) < 350
    assert not {name.partition(".")[0] for name in modules} & set(HEAVY)


def test_every_command_is_listed_in_whole_sentences(classwise: Classwise) -> None:
    listed = classwise("--help").out.partition("Get started:")[2]
    assert {*re.findall(r"^  ([a-z-]+)  ", listed, re.MULTILINE)} == {name.partition(" ")[0] for name in COMMANDS}
    assert "..." not in listed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "Missing argument"),
        (["train", "at", "--colour"], "No such option: --colour"),
        (["train", "at", "--epochs", "many"], "--epochs"),
        (["train", "at", "--epochs", "many"], "'many'"),
        (["audit", "runs/at", "--batch-size=0"], "0"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_words_are_one_line(classwise: Classwise, words: list[str], line: str) -> None:
    refusal = classwise(*words).refusal
    assert line in refusal
    assert "--help" in refusal
