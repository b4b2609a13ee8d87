"""Every command of README and docs is one that the program accepts; those of docs also run, on digits."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES
from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.run.suite import parse_attacks
from classwise.cli.app import app
from classwise.cli.options import pairs
from classwise.models import AdjustedLogits, save_weights
from classwise.papers import catalogue
from classwise.threat.ball import Threat
from classwise.training.citations import papers as papers_behind
from classwise.training.recipe import Recipe
from tests.data.writers import write_cifar10, write_mnist
from tests.documents import DOCUMENTS, FENCED, SHELL, TUTORIALS, blocks, name_of

from ..options import with_options
from .conftest import QUICK, Classwise

PLACEHOLDERS = {"BEFORE", "COMMAND", "FOLDER", "MODEL", "NAME", "PATH", "RECIPE", "RUN"}
PROGRAM: Any = typer.main.get_command(app)


def commands_below(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands by their words, such as ``papers run``; those of groups, and not the groups themselves."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


COMMANDS: Mapping[str, Any] = dict(commands_below(PROGRAM))


class Command(NamedTuple):
    """A command as a document prints it.

    Args:
        document: the name of the document.
        words: what follows ``classwise``.
        whole: whether it is on its own line, rather than within a sentence, where arguments may be left out.
        processes: whether ``torchrun`` starts it.
    """

    document: str
    words: tuple[str, ...]
    whole: bool = True
    processes: bool = False


def commands_of(name: str, text: str) -> Iterator[Command]:
    """The commands of a document: those on lines of their own (indented, or between plain fences), then the others."""
    text = re.sub(r"\\\n\s*", "", text)  # lines that continue the one before
    outside = FENCED.sub("", text)
    lines = [line for language, block in FENCED.findall(text) if language in SHELL for line in block.splitlines()]
    lines += re.findall(r"^    (\S.*)$", outside, re.MULTILINE)
    for line in lines:
        program = re.match(r"classwise |torchrun .*?-m classwise ", line)
        if program is None:
            continue
        words = shlex.split(line[program.end() :].replace("$(git rev-parse HEAD)", "0123abc"), comments=True)
        end = next((place for place, word in enumerate(words) if word in ("|", "||", "&&", ">", ">>")), len(words))
        yield Command(name, tuple(words[:end]), processes=line.startswith("torchrun"))
    for line in re.findall(r"(?<!# )`classwise\s([^`]*)`", outside):  # not the headings of the page of commands
        yield Command(name, tuple(shlex.split(line)), whole=False)


PRINTED = [
    command
    for document in DOCUMENTS
    for command in commands_of(name_of(document), document.read_text(encoding="utf-8"))
    if command.words[0] != "COMMAND"
]


def parse(command: Command) -> tuple[str, dict[str, Any]]:
    """The name and the parameters, as the program itself reads them; nothing runs.

    Raises:
        Exception: that of the program, for an unknown command or option or a value of another type.
    """
    known = {option for parameter in PROGRAM.params for option in parameter.opts}
    words = list(command.words)
    while words[0] in known:
        words.pop(0)
    if words[0] in PLACEHOLDERS:
        return words[0], {}
    name = words.pop(0)
    group = PROGRAM.commands.get(name)
    if words and hasattr(group, "commands"):
        found, _, words = group.resolve_command(typer.Context(group), words)
        name = f"{name} {found}"
    assert name in COMMANDS, f"{name!r} is not a command"
    chosen = [word for word in words if word not in ("--help", "--help-all")]
    try:
        with COMMANDS[name].make_context(name, chosen) as context:
            return name, dict(context.params)
    except Exception as error:
        if command.whole or type(error).__name__ != "MissingParameter":
            raise
        return name, {}


def check_values(name: str, given: Mapping[str, Any]) -> None:
    """Read the values that a command reads before any work; paths and code of the reader's own are passed over.

    Raises:
        ClasswiseError: for a value that the command would refuse.
    """
    if name in ("audit", "curve", "worst-class"):
        for spec in given.get("attack") or ():
            registered = spec.partition(":")[0].rpartition("=")[2] in {*ATTACKS, *SUITES}
            if registered and "build=" not in spec and "surrogate=" not in spec:
                parse_attacks(spec)
    if given.get("threat"):
        Threat.parse(given["threat"])
    for text in given.get("fail_if") or ():
        (ChangeThreshold if name == "compare" else Threshold).parse(text)
    read: dict[str, Callable[[str], object]] = {
        "cite": papers_behind,
        "papers list": catalogue.paper,
        "papers page": catalogue.paper,
        "papers show": catalogue.find,
        "papers run": catalogue.find,
    }
    names = {given.get("name"), *(given.get("names") or ())} - PLACEHOLDERS - {None}
    for argument in names if name in read else ():
        if "/" not in argument or name != "cite":  # a run of the reader
            read[name](argument)
    recipe = {"train": given.get("recipe"), "recipes": (given.get("words") or [None])[-1]}.get(name)
    if recipe is not None and recipe not in PLACEHOLDERS and not recipe.endswith(".yaml"):
        Recipe.read(recipe, pairs(given["set" if name == "train" else "overrides"]), budget=given["budget"])


@pytest.mark.parametrize("command", PRINTED, ids=lambda command: f"{command.document}: {' '.join(command.words)}")
def test_the_program_accepts_the_command(command: Command) -> None:
    name, given = parse(command)
    check_values(name, given)


def test_commands_are_found() -> None:
    assert len(PRINTED) > 50
    assert sum(command.processes for command in PRINTED) >= 2
    assert {command.document for command in PRINTED if command.whole} >= {
        "README.md",
        "reference/data.md",
        "reference/frontier.md",
        "tutorials/audit.md",
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("audit runs/mine --nosuch", "No such option"),
        ("train at --epochs many", "valid integer"),
        ("nosuch", "'nosuch' is not a command"),
        ("train at --budget nosuch", "nosuch"),
        ("train at --set optimizer.nosuch=1", "nosuch"),
        ("audit runs/mine --attack pgd:nosuch=1", "nosuch"),
        ("audit runs/mine --fail-if 'cat(all).nosuch < 0.2'", "nosuch"),
        ("papers show kdd21/T99", "T99"),
        ("recipes show nosuch", "nosuch"),
        ("cite nosuch", "nosuch"),
        ("audit", "Missing parameter: model"),
    ],
)
def test_a_command_that_the_program_refuses_fails(line: str, reason: str) -> None:
    (command,) = commands_of("page.md", f"    classwise {line}\n")
    with pytest.raises(Exception, match=reason):
        check_values(*parse(command))


def test_options_named_in_sentences_exist() -> None:
    known = {
        option
        for command in (PROGRAM, *COMMANDS.values())
        for part in command.params
        for option in (*part.opts, *part.secondary_opts)
    }
    for document in DOCUMENTS:
        for option in re.findall(r"`(--[a-z-]+)[^`]*`", document.read_text(encoding="utf-8")):
            assert option in known | {"--help"}, (document.name, option)


SMALLER = {
    "apgd-ce:eot_iter=4": "apgd-ce:steps=2,eot_iter=2",
    "autoattack": "pgd:steps=1",
    "checkpoint_epochs=[10, 20, 30]": "checkpoint_epochs=[1]",
    "cifar10": "digits",
    "cifar10-c": "digits",
    "data.imbalance=50": "data.imbalance=3",
    "docs/results/papers": "runs/papers",
    "kdd21/T3": "cfa23/F1",
    "long=pgd:steps=50": "long=pgd:steps=3",
    "mine:FocalPGD:gamma=1,steps=50": "mine:FocalPGD:gamma=1,steps=2",
    "small": "smoke",
    "square": "square:steps=2",
    "square:steps=50,eot_iter=4": "square:steps=2,eot_iter=2",
    "runs/epochs/checkpoints/epoch-20.safetensors": "runs/epochs/checkpoints/epoch-1.safetensors",
    "size=64": "size=16",
}
"""Words in whose place a test has others, so that a command takes a second."""
NOT_RUN = {
    "evidence": "depends on the accuracy of the training; tests/test_docs.py runs it",
    "--policy": "requires all images and its attacks; tests/test_docs.py runs an example",
    "nets:build": "is the classifier of the README, whose example tests/cli/test_readme.py runs",
    "adjusted=docs/results/real-size/seed-0/AT+adjusted/audits/pgd": "reads results; tools/gallery.py compares these",
    "digits_net:build": "is trained in a tutorial; tests/test_docs.py and tests/test_tutorials.py run it",
    "--robustbench": "needs an audit under AutoAttack; tests/reporting/test_robustbench.py makes such an object",
    "--robustbench-info": "the same",
    "model.weights=model.pt": "needs weights of the network; tests/training/test_normalization.py has some",
    "--device": "needs a GPU; tests/gpu has audits and trainings there",
    "--shard": "is one of many; tests/sweeps/test_sharded.py merges some",
    "--shards": "starts many processes; the same",
    "--settle": "runs AutoAttack on enough images for a sample; tests/auditing/test_two_phase.py has a small one",
    "benz20/P1.2": "needs trained models and a folder of images; tests/papers/experiments/test_pretrained.py has them",
    "sweeps/robustbench": "needs published weights; tests/models/test_sources.py has stand-ins",
    "--tensorboard": "needs an optional package; tests/training/test_loggers.py has it",
    "--mlflow": "the same",
    "absld": "needs a robust teacher; tests/training/test_distillation.py has one",
    "model.onnx": "needs an optional package; tests/integrations/test_models.py has it",
    "docs/results/papers": "reads results; tests/papers/test_committed_results.py compares these",
    "csv,tex,svg": "needs results of a paper; tests/papers/test_export.py has some",
    "audits/photos": "needs an audit of the same photos; tests/reporting/test_view.py has one",
    "MODEL": "is a placeholder",
    "sweep": "starts many processes; tests/sweeps/test_run.py has a small one",
    "top_error(all) > 5%": "needs an installed package; tests/test_extensions.py has one",
    "spatial:1": "needs attacks of its own; tests/auditing/test_threats.py has them",
}
TINY = {
    "threat": "Linf:0.1",
    "data.subset": 100,
    "data.validation": 0.2,
    "data.augment": "none",
    "model": {"name": "small-cnn", "width": 0.1},
    "batch_size": 32,
    "attack": "pgd:steps=2",
    "validation_attack": "pgd:steps=2",
}
LIBRARY = """
class MIFGSM:
    def __init__(self, model, eps):
        pass

    def __call__(self, images, labels):
        return images
"""
"""In place of the library whose attack a page uses; an object with ``eps`` would have to fit the radius of digits."""


def on_digits(command: Command) -> list[str]:
    """The words of a command that trains, attacks or adjusts a small network on few images."""
    name, *rest = (SMALLER.get(word, word) for word in command.words)
    attack = [] if "--attack" in rest else ["--attack=pgd:steps=1"]
    if name == "train":
        data = [] if "--data" in rest else ["--data=digits"]
        return with_options([name, *rest, *data], *QUICK[1:], "--epochs=1")
    if name in ("audit", "curve", "worst-class"):
        return with_options([name, *rest, *attack], "--subset=20")
    if name == "papers":
        return [name, *("smoke" if word == "full" else word for word in rest)]
    if name == "corruptions":
        few = [] if "--corruption" in rest else ["--corruption=fog", "--severity=1", "--out=corruptions"]
        return with_options([name, *rest, *few], "--subset=20")
    if name == "plan":  # at a number of images, rather than search for one
        return [name, *rest, *([] if "--images" in rest else ["--images=100"])]
    if name in ("interpolate-weights", "adjust-logits"):
        return with_options([name, *rest, *attack], "--folds=0" if name == "adjust-logits" else "--shares=0,0.5")
    return [name, *rest]


def write_photos(folder: Path) -> None:
    """A folder of images of two sizes by split and class, with a table of metadata of the test images."""
    for split, count in (("train", 60), ("val", 10), ("test", 10)):
        for place, name in enumerate(("cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((70 + number % 2, 80, 3), 40 + 100 * place + number, np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    rows = [f"{file.parent.name}/{file.name},{int(file.stem) % 2},day" for file in (folder / "test").rglob("*.png")]
    (folder / "test" / "metadata.csv").write_text("\n".join(["file_name,camera,light", *rows]), encoding="utf-8")


@pytest.fixture(scope="module")
def prepared(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents name: runs, an audit, images, weights."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("at", "cfa", "mine"):
        shutil.copytree(run_folder, folder / "runs" / name)
    digits = cw.load_data("digits", subset=40)
    cw.audit(run_folder, digits, "Linf:0.1", ["pgd:steps=1"], early_stop=False, out=folder / "audits" / "mine")
    np.savez(folder / "more.npz", x=digits.x.numpy(), y=np.zeros(len(digits), int))
    save_weights(folder / "weights.safetensors", cw.load_model("small-cnn", data=digits, width=0.1))
    write_photos(folder / "photos")
    for name in ("model", "tuned"):  # of the network in how-to/own-model.md
        layers = nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)
        torch.save(nn.Sequential(*layers).state_dict(), folder / f"{name}.pt")
    write_cifar10(folder / "data" / "cifar-10-batches-py")
    write_mnist(folder / "data" / "mnist")
    (folder / "torchattacks.py").write_text(LIBRARY, encoding="utf-8")
    return folder


@pytest.fixture
def workplace(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the prepared folder, which is the working directory; modules that come from it are forgotten."""
    place = tmp_path / "work"
    shutil.copytree(prepared, place)
    monkeypatch.chdir(place)
    yield place
    for name in ("catchup", "masked", "mine", "theirs", "torchattacks"):
        sys.modules.pop(name, None)


def write_files(document: Path) -> None:
    """Write each block that begins with the name of a file, as ``# mine.py``, into the working directory."""
    for block in blocks(document):
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")


RUN = [
    document
    for document in DOCUMENTS
    if any(command.document == name_of(document) and command.whole for command in PRINTED)
    and document.name != "README.md"
    and document not in TUTORIALS
]


@pytest.mark.slow
@pytest.mark.parametrize("document", RUN, ids=name_of)
def test_the_commands_of_docs_run(document: Path, classwise: Classwise, workplace: Path) -> None:
    """Those of the README: test_readme.py; those of the tutorials: test_tutorials.py."""
    write_files(document)
    for command in PRINTED:
        if (
            command.document == name_of(document)
            and command.whole
            and not (command.processes or {*command.words} & {*NOT_RUN})
        ):
            said = classwise(*on_digits(command))
            assert said.status in ((0, 1) if "--fail-if" in command.words else (0,)), (command.words, said.err)


SMALLER_PYTHON = {
    'cw.audit("timm:resnet18.a1_in1k", data, "Linf:4/255")\n': "",
    'load_data("cifar10", split="test")': 'load_data("digits", split="test", subset=20)',
    'load_data("cifar10")': 'load_data("digits", subset=20)',
    'budget="short"': "overrides=tiny, epochs=1",
    "size=64": "size=16",
    "import datasets\n": "",
    'datasets.load_from_disk("pets")': "{'test': [{'img': image, 'species': 0}] * 3, 'train': []}",
    "size=224, resize=256": "size=16",
    '"resnet18", data=test': '"small-cnn", data=test, width=0.1',
    '"Linf:4/255")': '"Linf:4/255", "pgd:steps=1")',
    '"cifar10-c", ': '"digits", corruptions=["fog"], severities=[1], load={"subset": 20}, ',
    "runs/standard": "runs/at",
    '), "Linf:8/255")': '), "Linf:8/255", "pgd:steps=1")',
    "steps=20": "steps=1",
    "module(x)[0]": "module(x)",
    "module.fc\n": "module.fc3\n",
}
"""Text in whose place a test has other text, so that a block takes a second."""
PYTHON = [
    (document, block.text)
    for document in DOCUMENTS
    for block in blocks(document)
    if block.language == "python" and block.file is None and document not in TUTORIALS and document.name != "README.md"
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "block"), PYTHON, ids=lambda part: name_of(part) if isinstance(part, Path) else "block"
)
def test_the_python_of_the_documents_runs(
    document: Path, block: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLASSWISE_DATA", "data")
    if "classwise.data" not in block:
        for text, other in SMALLER_PYTHON.items():
            block = block.replace(text, other)
    labels, predictions = [0, 0, 1, 1], [0, 1, 1, 1]
    names: dict[str, Any] = {
        "cw": cw,
        "tiny": TINY,
        "labels": labels,
        "p0": labels,
        "p1": predictions,
        "names": ["cat", "dog"],
    }
    names["data"] = cw.load_data("digits", subset=20)
    names["module"] = cw.load_model("small-cnn", data=names["data"], width=0.1)
    names["found"] = AdjustedLogits(names["module"], [0.1] * 10)  # of an adjustment: the constants are read
    names["found"].constants = names["found"].logit_adjustment
    names["image"] = Image.new("RGB", (20, 16))
    exec(compile(block, document.name, "exec"), names)


def test_what_is_replaced_or_not_run_is_in_the_documents() -> None:
    blocks = "".join(block for _, block in PYTHON)
    assert [text for text in SMALLER_PYTHON if text not in blocks] == []
    words = {word for command in PRINTED for word in command.words}
    assert [word for word in (*SMALLER, *NOT_RUN) if word not in words] == []
