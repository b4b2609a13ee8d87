"""Long tails: the counts of the literature, nested choices, and images that keep their index."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import classwise as cw
from classwise.data import Images, load_data, long_tailed, named_set
from classwise.data.splits import long_tailed_subset
from classwise.training.recipe import Recipe
from classwise.training.setup import training_images
from tests.refusals import check_refused

PUBLISHED = {
    10: [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500],
    50: [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
    100: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
}
"""The images of each class of CIFAR-10-LT, by imbalance."""
TOTALS = {10: 19_573, 50: 12_608, 100: 10_847}
"""The images of CIFAR-100-LT, by imbalance."""


@pytest.mark.parametrize("imbalance", PUBLISHED)
def test_the_class_counts_of_long_tailed_cifar(imbalance: int) -> None:
    y = torch.arange(50_000) * 7919 % 10
    assert torch.bincount(y[long_tailed_subset(y, imbalance)]).tolist() == PUBLISHED[imbalance]
    y = torch.arange(50_000) * 7919 % 100
    counts = torch.bincount(y[long_tailed_subset(y, imbalance)])
    assert (int(counts.sum()), int(counts[0]), int(counts[-1])) == (TOTALS[imbalance], 500, 500 // imbalance)


def test_whole_numbers_lose_no_image() -> None:
    """60 * 8^(-k/3) is 60, 30, 15 and 7.5; in floating point 8^(-1/3) may be below 1/2."""
    y = torch.arange(240) % 4
    assert torch.bincount(y[long_tailed_subset(y, 8)]).tolist() == [60, 30, 15, 7]


COUNTS = st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(lambda counts: sum(map(bool, counts)) > 1)


@given(COUNTS, st.data(), st.integers(0, 3))
def test_a_long_tail_is_exponential_and_nested(counts: list[int], data: st.DataObject, seed: int) -> None:
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    y = y[torch.argsort(torch.arange(len(y)) * 7919 % 101, stable=True)]
    present = [label for label, count in enumerate(counts) if count]
    smallest = min(counts[label] for label in present)
    low, high = sorted(data.draw(st.floats(1, smallest)) for _ in range(2))
    found = {imbalance: long_tailed_subset(y, imbalance, seed).tolist() for imbalance in (low, high)}
    assert set(found[high]) <= set(found[low])
    for imbalance, rows in found.items():
        assert rows == sorted(set(rows))
        kept = torch.bincount(y[rows], minlength=len(counts)).tolist()
        assert [label for label, count in enumerate(kept) if count] == present
        for place, label in enumerate(present):
            exact = smallest / imbalance ** (place / (len(present) - 1))
            assert exact - 1 < kept[label] <= exact + 1e-6


def test_images_keep_their_index_and_a_named_set_its_constants() -> None:
    images = load_data("digits", split="train")
    tail = long_tailed(images, 10)
    rows = torch.searchsorted(images.index, tail.index)
    assert torch.equal(images.index[rows], tail.index)
    assert torch.equal(tail.x, images.x[rows])
    assert torch.equal(tail.y, images.y[rows])
    assert tail.name == "digits, imbalance 10"
    assert named_set(tail) is named_set(images) is not None
    assert torch.equal(long_tailed(images, 10).index, tail.index)
    assert not torch.equal(long_tailed(images, 10, seed=1).index, tail.index)
    assert torch.equal(long_tailed(images, 1).class_counts(), images.class_counts().amin().expand(10))


def test_impossible_imbalances() -> None:
    images = Images(torch.zeros(5, 1, 1, 1), torch.tensor([0, 0, 0, 1, 1]), ["a", "b", "none"], name="five")
    check_refused("imbalance 3: must be 1 to 2, the number of images of the smallest class", long_tailed, images, 3)
    check_refused("imbalance 0.5: must be 1 to 2", long_tailed, images, 0.5)
    check_refused("needs at least two classes with images, found 1", long_tailed, images.take([0, 1]), 2)


def test_a_recipe_trains_on_a_long_tail_of_its_subset(tmp_path: Path) -> None:
    recipe = Recipe.read("at", {"data.name": "digits", "data.subset": 200, "data.imbalance": 5, "data.subset_seed": 3})
    subset = load_data("digits", split="train", subset=200, seed=3)
    assert torch.equal(training_images(recipe.data).index, long_tailed(subset, 5, 3).index)
    assert recipe.digest() != Recipe.read(recipe, {"data.imbalance": None}).digest()
    applies = "data.imbalance = 5: applies to a data set's name or a path"
    check_refused(applies, cw.train, recipe, data=subset, out=tmp_path / "run")
    check_refused("imbalance = 0: Input should be greater than or equal to 1", Recipe.read, "at", {"data.imbalance": 0})


def test_a_folder_of_images(tmp_path: Path) -> None:
    for label in ("ant", "bee", "cat"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for number in range(8):
            Image.new("L", (4, 4), number).save(tmp_path / "train" / label / f"{number}.png")
    tail = training_images(Recipe.read("at", {"data.name": str(tmp_path), "data.imbalance": 4}).data)
    assert tail.class_counts().tolist() == [8, 4, 2]
    assert tail.image_names is not None
    assert [name.split("/")[-2] for name in tail.image_names] == ["ant"] * 8 + ["bee"] * 4 + ["cat"] * 2
