"""The documents agree with the package."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tools.result_charts import CHARTS, DRAWN
from tools.result_pages import PAGES, RESULTS, recorded_board

import classwise
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.auditing.guards.budget import GUARDS
from classwise.cli import main
from classwise.cli.demo import SMALL
from classwise.core.settings.config import make
from classwise.data import CORRUPTIONS, load_data
from classwise.data.duplicates import content_hashes
from classwise.papers import catalogue
from classwise.reporting import formatting
from classwise.reporting.evidence.build import verify
from classwise.training.recipe import Recipe
from classwise.training.train import train
from tests.auditing.test_guards import digits_network
from tests.cli.test_documents import commands_of
from tests.documents import DOCUMENTS, ROOT, blocks, name_of
from tests.refusals import check_refused

REFERENCE = ROOT / "docs" / "reference"


def code_blocks(document: Path, language: str) -> list[str]:
    return [block.text for block in blocks(document) if block.language == language]


def test_every_guard_has_a_page_and_a_line_of_the_index() -> None:
    index = (REFERENCE / "guards.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`([a-z-]+)`\]\(guards/\1\.md\) \|", index, re.MULTILINE) == list(GUARDS)
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (REFERENCE / "guards").iterdir()}
    assert set(pages) == set(GUARDS)
    for name, page in pages.items():
        assert page.startswith(f"# `{name}`\n")
        for part in ("Check", "Why it matters", "What to do", "Cost"):
            assert f"**{part}.** " in page, (name, part)


def cells(page: Path, heading: str = "") -> list[list[str]]:
    """The rows of the tables of a page, or of those below one heading."""
    text = page.read_text(encoding="utf-8")
    part = text.partition(f"{heading}\n")[2].partition("\n### ")[0] if heading else text
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]


def test_the_page_of_methods_repeats_the_printed_and_the_measured_numbers() -> None:
    text = (REFERENCE / "methods.md").read_text(encoding="utf-8")
    page = ROOT / "docs/results/archive/defences.md"
    compared = cells(page, "### Each method minus AT, in points, on the same images")
    for name, overall, worst, *_ in compared[2:]:
        assert f" {name}: {overall.split()[0]}, {worst.split()[0]}" in text
    named = {row[0].strip("`"): row[1] for row in cells(REFERENCE / "methods.md") if len(row) == 3}
    recipes = {"AT": "at", "TRADES": "trades", "FAT": "fat", "FRL": "frl", "AT + EMA": "at-ema"}
    recipes |= {f"{base} + CFA": f"cfa-{base.lower()}" for base in ("AT", "TRADES", "FAT")}
    for row in catalogue.printed_rows("cfa23/T1"):
        if row["method"] in recipes:
            average, worst = row["aa_best"]
            assert named[recipes[row["method"]]] == f"{average:g} / {worst:g}"


def test_files_above_200_kb_have_a_reason() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    large = {name for name in listed.split("\0") if (ROOT / name).is_file() and (ROOT / name).stat().st_size > 200_000}
    reasons = {row[0].strip("`"): row[1] for row in cells(ROOT / "CONTRIBUTING.md", "## Data in git") if len(row) == 2}
    assert large == {name for name, reason in reasons.items() if "/" in name and reason}


def test_every_corruption_is_described() -> None:
    page = (REFERENCE / "data.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Corruptions: (.*?), with", page, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(CORRUPTIONS)


@pytest.mark.parametrize("document", [*DOCUMENTS, *sorted(RESULTS.rglob("*.md"))], ids=name_of)
def test_links_have_targets(document: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8")):
        found = (document.parent / target).resolve() if target else document
        built = found.is_relative_to(RESULTS) and str(found.relative_to(RESULTS)) in PAGES
        assert target.startswith("https://") or found.exists() or built, target
        if heading and found.suffix == ".md":
            assert heading in headings(found), f"{target}#{heading}"


def headings(document: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and Sphinx name them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain]
    counts = [anchors[:place].count(anchor) for place, anchor in enumerate(anchors)]
    return {f"{anchor}-{count}" if count else anchor for anchor, count in zip(anchors, counts, strict=True)}


@pytest.mark.parametrize("name", DRAWN)
def test_the_charts_of_results_are_those_of_the_committed_data(name: str) -> None:
    """To draw them again: ``python -m tools.result_charts``."""
    assert DRAWN[name]().standalone() == (CHARTS / f"{name}.svg").read_text(encoding="utf-8")


def test_the_page_of_the_board_has_the_ranks_of_the_recorded_audits() -> None:
    """With pairs of images, which its JSON file does not have."""
    text = (RESULTS / "board" / "README.md").read_text(encoding="utf-8")
    for table in recorded_board().tables:
        for _, row in table.frame.iterrows():
            ranks = f"{row['rank']} ({row['rank']}–{row['rank_high']})" if len(table.entries) > 1 else f"{row['rank']}"
            shares = {name: formatting.bare_percent(row[name]) for name in ("worst", "overall", "clean")}
            assert f"| {row['model']} | {ranks} | {row['worst_class']}, {shares['worst']} % [" in text
            assert re.search(rf"\| {row['model']} \|.*\| {shares['overall']} % \[.*\| {shares['clean']} % \|\n", text)


def test_the_charts_of_results_have_the_numbers_of_the_pages() -> None:
    titles = {name: re.findall("<title>(.*?)</title>", (CHARTS / f"{name}.svg").read_text("utf-8")) for name in DRAWN}
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for paper in catalogue.OWN:
        marks = "".join(row[1][0] for row in cells(RESULTS / "README.md", f"### {paper}") if row[0][:1] == "C")
        for verdict, mark in {"supported": "✓", "not observed": "✕", "inconclusive": "?", "not tested": "–"}.items():
            assert f"{paper}, {verdict}: {marks.count(mark)}" in titles["claims"]
    shares = [row[4].partition(" ")[0] for row in cells(RESULTS / "interval-coverage.md")[2:]]
    counts = [sum(share.startswith(str(level)) for share in shares) for level in range(94, 99)]
    counts.append(len(shares) - sum(counts))
    assert f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}](charts/coverage.svg)" in text
    assert [int(title.rpartition(" ")[2]) for title in titles["coverage"]] == counts
    assert {title.partition(": ")[2].partition(" ")[0] for title in titles["speed"][:4]} == {"2.1", "3.4", "3.9", "5.2"}
    signed = [title for title in titles["strength"] if re.search(r"interval (−\S+ to −|\+\S+ to \+)", title)]
    assert [title.partition(",")[0] for title in signed] == ["cw"]  # C&W for Linf against the library nearest to it


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_compiles_and_names_exist(document: Path) -> None:
    for block in code_blocks(document, "python"):
        compile(block, document.name, "exec")
        for name in re.findall(r"\bcw\.(\w+)", block):
            assert getattr(classwise, name) is not None


def test_the_examples_of_extending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = ROOT / "docs" / "how-to" / "extend.md"
    attack, external, measure, _, stripes = code_blocks(document, "python")
    space: dict[str, Any] = {}
    exec(compile(measure, document.name, "exec"), space)
    assert space["top_error"](np.array([[3, 1], [2, 4]])) == Fraction(1, 5)
    (tmp_path / "mine.py").write_text(attack)
    (tmp_path / "theirs.py").write_text(external.replace("import torchattacks", ""))  # imported when it is called
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    focal: Attack = make(ATTACKS, "mine:FocalPGD:gamma=1,steps=50")
    assert focal.length == 50
    assert make(ATTACKS, "external:build=theirs:attack").length == 1
    (tmp_path / "stripes.py").write_text(stripes)
    images = load_data("stripes:Stripes", bright=7)
    assert (len(images), images.class_names, int(images.x.max())) == (10, ("horizontal", "vertical"), 7)
    for name in ("mine", "theirs", "stripes"):
        sys.modules.pop(name)


@pytest.mark.slow
def test_the_examples_of_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both policies fit their audits, whose reports are verified; the generated parts pass."""
    document = ROOT / "docs" / "how-to" / "evidence.md"
    monkeypatch.chdir(tmp_path)
    for block in (*blocks(document), *blocks(ROOT / "docs" / "tutorials" / "audit.md")):
        if block.file is not None:
            text = block.text.replace("steps=10", "steps=2")
            Path(block.file).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "examples" / "evidence", tmp_path, dirs_exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        parts = runpy.run_path("inspect_parts.py")["evidence"]
    assert parts.verdict == "passed"
    assert parts.facts["criteria_recorded"]
    monkeypatch.syspath_prepend(str(tmp_path))
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path("digits_net.py", run_name="__main__")
    statuses = []
    for command in commands_of(document.name, document.read_text(encoding="utf-8")):
        if command.whole and "audits/at" not in command.words:
            margin = "--attack=pgd:steps=20,objective=margin"
            quick = ["--attack=pgd:steps=20", margin] if command.words[0] == "audit" else []
            statuses.append(main([*command.words, *quick]))
    sys.modules.pop("digits_net")
    assert statuses == [0, 0, 0, 0]
    assert verify("digits-evidence").differences == []


def test_the_example_of_masked_gradients() -> None:
    """PGD is no better than its random start, a guard says so, and attacks without the masked gradient succeed."""
    document = ROOT / "docs" / "how-to" / "gradient-masking.md"
    (block,) = (block for block in blocks(document) if block.file == "masked.py")
    space: dict[str, Any] = {"network": digits_network()}
    exec(compile(block.text.replace('cw.load_model("runs/at")', "network"), document.name, "exec"), space)
    data = load_data("digits", split="test", subset=100)
    transfer = make(ATTACKS, {"name": "transfer", "surrogate": space["copy"]()})
    attacks: list[Any] = ["pgd:steps=20", "square:steps=500,rescale_schedule=true", transfer]
    result = classwise.audit(space["defended"]().eval(), data, "Linf:0.1", attacks)
    accuracy = result.by_attack["overall"]
    assert accuracy["pgd"] > accuracy["clean"] - 0.1
    assert max(accuracy["square"], accuracy["transfer"]) < accuracy["pgd"] - 0.3
    assert {"zero-gradients", "black-box-stronger"} <= {warning.name for warning in result.warnings}


def test_the_training_loop_of_the_guide() -> None:
    """It is short, it trains, and CCM changes the radii."""
    document = ROOT / "docs" / "how-to" / "own-loop.md"
    example, lightning = code_blocks(document, "python")
    assert max(len(block.splitlines()) for block in (example, lightning)) <= 30
    space: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, document.name, "exec"), space)
    assert len(printed.getvalue().splitlines()) >= 2
    assert space["loss"].settings().epsilon.unique().numel() > 1
    assert len(space["audit"].by_class) == 10
    hashes = [set(content_hashes(space[name].x, space[name].y).tolist()) for name in ("train", "valid", "test")]
    assert [len(content) for content in hashes] == [len(space[name]) for name in ("train", "valid", "test")]
    assert not hashes[0] & hashes[1]
    assert not hashes[2] & (hashes[0] | hashes[1])
    assert space["audit"].outcomes.meta.split == "test"


def test_no_example_validates_on_test_images() -> None:
    """What `end_epoch` measures is read from the split of the training images."""
    found = []
    for document in sorted((ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"^```.*?^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for name in re.findall(r"\.end_epoch\(\w+, (\w+)\)", block):
                (line,) = re.findall(rf"^(?:\w+, )*{name}\b[^=\n]* = .*$", block, re.MULTILINE)
                source = re.search(r"stratified_split\((\w+)\.y", line)
                if source is not None:
                    (line,) = re.findall(rf"^{source[1]}, .* = .*$", block, re.MULTILINE)
                position = line.partition(" = ")[0].split(", ").index(source[1] if source else name)
                found.append(re.findall(r"load_data\(([^)]*)\)", line)[position])
    assert len(found) >= 2
    assert all('split="train"' in arguments for arguments in found), found


def test_the_method_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is short, its test passes, and a training run has the expected weights."""
    document = ROOT / "docs" / "tutorials" / "write-a-defence.md"
    files = {block.file: block.text for block in blocks(document)}
    method, test = files["catchup.py"], files["test_catchup.py"]
    assert len(method.splitlines()) < 40
    assert len(files["pairing.py"].splitlines()) <= 20
    (tmp_path / "catchup.py").write_text(method)
    (tmp_path / "catchup.yaml").write_text(code_blocks(document, "yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {}
    exec(compile(test, document.name, "exec"), space)
    space["test_weights_by_hand"]()
    small = {"model": {"name": "lenet", "width": 0.5}, "data.subset": 200, "data.validation": 0.2, "batch_size": 80}
    attacks = dict.fromkeys(("attack", "validation_attack"), "pgd:steps=2,step_size=0.5eps")
    overrides: dict[str, Any] = small | attacks | {"threat": "Linf:0.05", "epochs": 2}
    run = train("catchup.yaml", budget="short", out="runs/catchup", data="digits", overrides=overrides)
    assert run.recipe.schedules == ({"name": "catchup:CatchUp", "rate": 2.0},)
    on_digits = re.search(r"--data digits (.*?)\n```", document.read_text(encoding="utf-8"), re.DOTALL)
    assert on_digits is not None
    assert dict(re.findall(r"--set (\S+)=(\S+)", on_digits[1])) == {
        field: value for field, value in SMALL.items() if field not in ("data.name", "attack.step_size")
    }
    first, second = (run.epochs.query(f"split == 'train' and epoch == {epoch}") for epoch in range(2))
    assert (first["clean_weight"] == 1).all()
    robust = first["robust"].to_numpy(float)
    wanted = np.exp(2 * (robust.mean() - robust))
    assert second["robust_weight"].to_numpy(float) == pytest.approx(10 * wanted / wanted.sum(), rel=1e-5)
    check_refused("rate = -1", Recipe.read, "catchup.yaml", {"schedules.0.rate": -1})
    sys.modules.pop("catchup")


def test_one_version_everywhere() -> None:
    assert metadata.version("classwise") == classwise.__version__ if _installed() else True
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    place = project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{classwise.__version__}"\n' in (ROOT / place).read_text(encoding="utf-8")
    assert f"`{place}`" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == classwise.__version__
    assert classwise.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _installed() -> bool:
    return any(found.metadata["Name"] == "classwise" for found in metadata.distributions())


def test_constraints_pin_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin) for pin in pins)
    names = {_normal(pin.partition("==")[0]) for pin in pins}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.findall(r"^(?:dependencies|test|dev|peers) = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    wanted = {_normal(name) for table in tables for name in re.findall(r'^\s*"([A-Za-z0-9_.-]+)', table, re.MULTILINE)}
    assert len(wanted) > 20
    assert wanted <= names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
