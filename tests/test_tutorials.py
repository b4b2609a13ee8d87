"""Every code block of the tutorials runs, in order, in a temporary folder.

Blocks in ``py`` are code of another library, which `tests/attacks/test_peers.py` runs where it is installed.

The outputs shown have the form of the real ones. Numbers and spacing are not compared, since they depend on the version
of torch. The outputs to show are printed by ``python -m tests.test_tutorials docs/tutorials/audit.md``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from classwise.cli import main
from tests.documents import DOCS, TUTORIALS, Block, blocks, name_of

MODULES = ("digits_net", "six_nets", "mine", "catchup", "test_catchup", "hinge", "smoothed", "pairing", "parts_net")
"""Modules that the pages write and import."""
SMALLER: Mapping[str, Mapping[str, str]] = {
    "audit": {"range(20)": "range(10)"},
    "compare": {"range(10)": "range(2)", '"pgd:steps=20", out': '"pgd:steps=4", out'},
    "from-robustbench": {" --subset 100": " --subset 20"},
    "own-network": {
        '(("train", 80), ("val", 60), ("test", 100))': '(("train", 40), ("val", 10), ("test", 20))',
        "range(30)": "range(10)",
        "--epochs 20": "--epochs 2",
        ".low >= 0.2": ".high >= 0",
        " --attack apgd-t:targets=4": "",
        "--require 'any(clean).high >= 0'": "",
        "'any(all).high >= 0'": "'any(all).low >= -1'",
    },
    "train": {"epochs: 40": "epochs: 1", "validation: 0.2}": "validation: 0.2, subset: 200}"},
    "worst-class": {
        " --out": " --subset 60 --out",
        "square:steps=500": "square:steps=50",
        'split="test")': 'split="test", subset=60)',
    },
    "write-a-defence": {"--data digits": "--data digits --epochs 1"},
}
"""Text in whose place a test has other text, so that a page takes seconds."""
QUICK = [
    "--set=data.subset=120",
    "--set=model.width=0.1",
    "--set=attack=pgd:steps=2",
    "--set=validation_attack=pgd:steps=2",
]
UNCHECKED = ("own-network", "train", "write-a-defence")
"""Pages whose outputs have another form with these changes."""


@contextlib.contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    """Change into a folder; modules that come from it are forgotten afterwards."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)
        for name in MODULES:
            sys.modules.pop(name, None)


def run_command(line: str, quick: bool) -> None:
    """Run a line of a shell block in this process: ``classwise ...``, or ``python FILE``."""
    program, *words = shlex.split(line, comments=True)
    if program == "python":
        runpy.run_path(words[0], run_name="__main__")
        return
    assert program == "classwise", line
    extra = QUICK if quick and words[0] == "train" else []
    assert main([*words, *extra]) == 0, line


def run_block(block: Block, space: dict[str, Any], quick: bool) -> None:
    """Write a block that is a file, or run one."""
    if block.file is not None:
        Path(block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.text, "block", "exec"), space)
    elif block.language == "shell":
        for line in block.text.replace("\\\n", " ").splitlines():
            run_command(line, quick)
    else:
        assert block.language in ("text", "py"), block


def run_page(page: Path, smaller: Mapping[str, str], quick: bool = True) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in the working directory; yields each with the output of the page up to it."""
    space: dict[str, Any] = {"Path": Path}
    printed = io.StringIO()
    for block in blocks(page):
        text = block.text
        for old, new in smaller.items():
            text = text.replace(old, new)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            run_block(block._replace(text=text), space, quick)
        yield block, printed.getvalue()


def form(line: str) -> str:
    """A line up to the first semicolon, without its numbers and spacing; a list of numbers is one."""
    masked = " ".join(re.sub(r"[-+]?\d[\d.,]*(?:e-?\d+)?|\bnan\b", "#", line.partition(";")[0]).split())
    return re.sub("#(?: #)+", "#", masked)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network of the first tutorial and its weights, which others use."""
    folder = tmp_path_factory.mktemp("network")
    block = next(block for block in blocks(TUTORIALS[0]) if block.file == "digits_net.py")
    with working_directory(folder):
        Path("digits_net.py").write_text(block.text, encoding="utf-8")
        runpy.run_path("digits_net.py", run_name="__main__")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_the_blocks_of_a_tutorial_run(page: Path, trained: Path, tmp_path: Path) -> None:
    if "`digits_net.py` and `digits.pt`" in page.read_text(encoding="utf-8"):
        for file in ("digits_net.py", "digits.pt"):
            (tmp_path / file).write_bytes((trained / file).read_bytes())
    with working_directory(tmp_path):
        for block, printed in run_page(page, SMALLER.get(page.stem, {}), quick=page.stem != "own-network"):
            if block.language == "text" and page.stem not in UNCHECKED:
                real = {form(line) for line in printed.splitlines()}
                for line in block.text.splitlines():
                    assert form(line) in real, (line, printed)


def test_every_tutorial_has_commands_and_outputs() -> None:
    assert len(TUTORIALS) == 10
    for page in TUTORIALS:
        languages = {block.language for block in blocks(page)}
        assert "shell" in languages, page.name
        assert "text" in languages, page.name


def test_the_first_page_shows_lines_of_the_tutorials() -> None:
    pages = {line for page in TUTORIALS for line in page.read_text(encoding="utf-8").splitlines()}
    shown = [
        line for block in blocks(DOCS / "index.md") if block.language == "console" for line in block.text.splitlines()
    ]
    assert sum(line.startswith("$ ") for line in shown) == 3
    assert [line for line in shown if line.removeprefix("$ ") not in pages] == []


def test_what_is_smaller_is_in_the_tutorials() -> None:
    texts = {page.stem: page.read_text(encoding="utf-8") for page in TUTORIALS}
    assert [(page, old) for page, changes in SMALLER.items() for old in changes if old not in texts[page]] == []


if __name__ == "__main__":
    page = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, working_directory(Path(folder)):
        first = next(block for block in blocks(TUTORIALS[0]) if block.file == "digits_net.py")
        run_block(first, {}, quick=False)
        run_command("python digits_net.py", quick=False)
        before = ""
        for block, printed in run_page(page, {}, quick=False):
            print(f"--- {block.language} {block.file or ''}\n{printed.removeprefix(before)}")
            before = printed
