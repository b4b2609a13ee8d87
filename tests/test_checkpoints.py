"""The trained checkpoints of the project are complete, small, in half precision, and trained; their cards are true."""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from scipy.stats import binomtest

from classwise.core.errors import ClasswiseError
from classwise.data import load_data
from classwise.models import load_model

FOLDER = Path(__file__).parents[1] / "checkpoints"
SHARED = Path(__file__).parents[1] / ".." / "shared" / "data"
PARAMETERS = {"cifar10-at": 701_018, "fashion-mnist-at": 312_202}
CLEAN = {"cifar10-at": 0.55, "fashion-mnist-at": 0.7}


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_a_checkpoint_is_small_and_contains_its_model_name(name: str) -> None:
    file = FOLDER / f"{name}.safetensors"
    assert file.stat().st_size < 2_000_000
    with safe_open(file, framework="pt") as opened:
        stored = {opened.get_tensor(key).dtype for key in opened.keys()}  # noqa: SIM118  # not a mapping
    assert stored <= {torch.float16, torch.int64}
    model = load_model(file)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_a_checkpoint_is_trained(name: str) -> None:
    data = name.removesuffix("-at")
    try:
        images = load_data(data, split="test", root=SHARED if data == "cifar10" else None, subset=200, download=False)
    except ClasswiseError:
        pytest.skip(f"the data set {data} is not available")
    with torch.no_grad():
        right = load_model(FOLDER / f"{name}.safetensors")(images.pixels()).argmax(1) == images.y
    assert float(right.float().mean()) > CLEAN[name]


def sections() -> dict[str, str]:
    """The model cards by the names of the checkpoints."""
    found = re.split(r"^## `(.*)`$", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_checkpoint_has_a_card_with_its_digest() -> None:
    assert set(sections()) == {file.stem for file in FOLDER.glob("*.safetensors")}
    for name, card in sections().items():
        digest = hashlib.sha256((FOLDER / f"{name}.safetensors").read_bytes()).hexdigest()
        assert f"- SHA-256: `{digest}`\n" in card
        for target in re.findall(r"\]\(([^)#]+)", card):
            assert (FOLDER / target).exists(), target


def rows(file: str) -> list[dict[str, str]]:
    with (FOLDER.parent / "docs/results" / file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.parametrize("name", ["cifar10-at", "fashion-mnist-at", "mnist-trades"])
def test_the_accuracies_of_a_card_are_those_of_the_recorded_outcomes(name: str) -> None:
    """The last attacks, by plain counting and SciPy, with Sidak's correction for ten classes."""
    images, robust, clean = (Counter[int]() for _ in range(3))
    if name == "mnist-trades":
        outcomes = [(int(row["label"]), int(row["stage"]), 1) for row in rows("two-phase/mnist-trades.csv")]
        misclassified, last = 0, 3
    else:
        file = f"worst-class/{name}{'-apgd' * (name == 'cifar10-at')}.csv"
        outcomes = [(int(row["label"]), row["outcome"], int(row["images"])) for row in rows(file)]  # type: ignore[misc]
        misclassified, last = "clean", "robust"  # type: ignore[assignment]
    for label, outcome, number in outcomes:
        images[label] += number
        clean[label] += number * (outcome != misclassified)
        robust[label] += number * (outcome == last)
    listed = [line.strip("| ").split(" | ") for line in sections()[name].splitlines() if line.startswith("|")][2:-1]
    assert len(listed) == len(images) == 10
    for label, cells in enumerate(listed):
        assert cells[1] == f"{images[label]:,}"
        for cell, correct in ((cells[2], clean[label]), (cells[4], robust[label])):
            test = binomtest(correct, images[label]).proportion_ci(confidence_level=0.95**0.1, method="exact")
            found = [float(number) for number in re.findall(r"[\d.]+", cell)]
            share = correct / images[label]
            assert found == pytest.approx([100 * share, 100 * test.low, 100 * test.high], abs=0.051)
