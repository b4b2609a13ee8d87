from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from classwise.cli import docstrings
from classwise.core.errors import DataNotFoundError
from classwise.core.settings.config import make
from classwise.data import AUGMENTATIONS, DATA, load_data, named_set
from classwise.data.sets.base import DataSet
from classwise.data.sets.cifar import Cifar10, Cifar100
from classwise.data.sets.loading import options_of
from classwise.data.sets.mnist import FashionMnist, Mnist
from classwise.papers import catalogue
from classwise.threat.ball import Threat
from tests.data.refusals import refused
from tests.data.writers import PICTURES, png, write_cifar10, write_mnist, write_parquet


@pytest.mark.parametrize("name", DATA)
def test_facts_of_every_set(name: str) -> None:
    known = DATA.load(name)
    assert issubclass(known, DataSet)
    assert known.name == name
    assert len(set(known.class_names)) == len(known.class_names) >= 2
    assert len(known.mean) == len(known.std) == known.shape[0]
    assert all(0 < value < 1 for value in (*known.mean, *known.std))
    assert Threat.parse(known.threat) == Threat.parse(name)
    assert make(AUGMENTATIONS, known.augment)
    assert "test" in known.splits
    assert len(known.sizes) == len(known.splits)
    assert min(known.sizes) >= 1
    assert known.files
    assert isinstance(known.source, tuple)
    assert all(", " in line and line.rstrip()[-4:].isdecimal() for line in known.source), "authors, title, venue, year"
    assert known.source
    assert set(options_of(known)) <= set(docstrings.meanings(known))
    assert len(known.logits) == (len(known.class_names) if known.parent_logits else 0)
    assert all(remote.digest.split(":")[0] in ("md5", "sha256") for remote in known.remote)
    if known.superclasses is not None:
        assert len(known.superclasses) == len(known.class_names)
        assert set(known.superclasses) == set(range(len(known.superclass_names)))


@pytest.mark.parametrize("name", DATA)
def test_images_of_every_set_that_can_be_loaded(name: str) -> None:
    known = DATA.load(name)
    options: dict[str, Any] = {"corruption": "fog", "severity": 1} if "corruption" in options_of(known) else {}
    for split, size in zip(known.splits, known.sizes, strict=True):
        try:
            images = load_data(name, split=split, download=False, **options)
        except DataNotFoundError:
            pytest.skip(f"{name} ({split}) is not on this machine")
        assert (images.class_names, images.shape, images.split) == (known.class_names, known.shape, split)
        assert 1 <= len(images) <= size
        assert 0 <= int(images.y.min()) <= int(images.y.max()) < len(known.class_names)
        assert named_set(images) is known
        assert torch.equal(images.x, load_data(name, split=split, download=False, **options).x)


@pytest.mark.parametrize("name", DATA)
def test_unknown_split_and_option(name: str) -> None:
    refused("unknown split", name, split="tset")
    refused("has no option 'size'", name, size=3)


def test_digits_are_scikit_learns_scaled_to_bytes() -> None:
    train, test = load_data("digits", split="train"), load_data("digits")
    assert (len(train), len(test), test.shape) == (1258, 539, (1, 8, 8))
    rows = torch.cat([train.index, test.index])
    assert torch.equal(torch.sort(rows).values, torch.arange(1797)), "a partition"
    bunch = load_digits()
    for part in (train, test):
        original = bunch.images[part.index.numpy()]
        assert np.array_equal(part.x[:, 0].numpy(), np.round(original * 255 / 16))
        assert np.array_equal(part.y.numpy(), bunch.target[part.index.numpy()])
    shares = test.class_counts() / (train.class_counts() + test.class_counts())
    assert (shares - 0.3).abs().max() < 0.005
    pixels = train.pixels().double()
    assert tuple(pixels.mean((0, 2, 3)).tolist()) == pytest.approx(DATA.load("digits").mean, abs=5e-5)
    assert tuple(pixels.std((0, 2, 3)).tolist()) == pytest.approx(DATA.load("digits").std, abs=5e-5)


@pytest.mark.parametrize(("name", "printed"), [("cifar10", "CIFAR-10"), ("stl10", "STL-10")])
def test_superclasses_are_those_of_the_papers(name: str, printed: str) -> None:
    """Table 2 of kdd21, with the names and labels of its classes, and the superclasses of iclr21."""
    known = DATA.load(name)
    assert known.superclasses is not None
    groups: dict[str, dict[str, int]] = {title: {} for title in known.superclass_names}
    for label, parent in enumerate(known.superclasses):
        groups[known.superclass_names[parent]][known.class_names[label]] = label
    stated = catalogue.printed("kdd21/T2")["superclasses"][printed]
    assert groups == {title.lower(): labels for title, labels in stated.items()}
    first_version = catalogue.paper("iclr21").superclasses[printed]
    assert {title.lower(): labels for title, labels in first_version.items()} == {
        title: list(labels.values()) for title, labels in groups.items()
    }


def test_cifar100_has_twenty_superclasses_of_five() -> None:
    assert np.bincount(Cifar100.superclasses).tolist() == [5] * 20
    children: dict[str, list[str]] = {name: [] for name in Cifar100.superclass_names}
    for name, parent in zip(Cifar100.class_names, Cifar100.superclasses, strict=True):
        children[Cifar100.superclass_names[parent]].append(name)
    # A few lines of the table on the data set's own page
    assert children["aquatic_mammals"] == ["beaver", "dolphin", "otter", "seal", "whale"]
    assert children["people"] == ["baby", "boy", "girl", "man", "woman"]
    assert children["trees"] == ["maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"]
    assert children["vehicles_2"] == ["lawn_mower", "rocket", "streetcar", "tank", "tractor"]
    assert list(Cifar100.class_names) == sorted(Cifar100.class_names)


def test_cifar100_table_agrees_with_the_files(shared: Path) -> None:
    images = load_data(shared / "cifar100-test-subset.parquet")
    assert images.superclasses == Cifar100.superclasses
    assert images.superclass_names == Cifar100.superclass_names
    shortened = [name.removesuffix("_tree") for name in Cifar100.class_names]  # as that file calls them
    assert list(images.class_names) == shortened


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_layouts_of_mnist(only_here: Path, name: str, folder: str, zipped: bool) -> None:
    write_mnist(only_here / "data" / folder, zipped=zipped)
    images = load_data(name)
    assert (images.name, images.num_classes, images.y.tolist()) == (name, 10, [3, 9])


def test_files_in_a_folder_of_no_name_must_be_the_right_ones(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(only_here / "flat")
    refused(r"mnist .* is not in", "mnist", root=only_here / "flat", download=False)
    monkeypatch.setitem(Mnist.labels, "test", hashlib.sha256(bytes([3, 9])).hexdigest())
    assert load_data("mnist", root=only_here / "flat").y.tolist() == [3, 9]
    refused(r"fashion-mnist .* is not in", "fashion-mnist", root=only_here / "flat", download=False)


def test_known_labels_are_those_of_the_official_files(shared: Path) -> None:
    for split, labels in Mnist.labels.items():
        assert (
            hashlib.sha256(load_data("mnist", root=shared, split=split).y.byte().numpy().tobytes()).hexdigest()
            == labels
        )
    assert set(Mnist.labels.values()).isdisjoint(FashionMnist.labels.values())


def test_layouts_of_cifar10(only_here: Path) -> None:
    write_cifar10(only_here / "a" / "cifar-10-batches-py")
    for root in (only_here / "a", only_here / "a" / "cifar-10-batches-py"):
        images = load_data("cifar10", root=root)
        assert (images.name, images.class_names, images.superclasses) == (
            "cifar10",
            Cifar10.class_names,
            Cifar10.superclasses,
        )
    square = [png(np.zeros((32, 32, 3), np.uint8))] * 2
    write_parquet(only_here / "b" / "cifar10-test.parquet", square, label=[9, 3])
    write_parquet(only_here / "c" / "cifar10" / "test-00000-of-00001.parquet", square, column="img", label=[9, 3])
    for root in (only_here / "b", only_here / "c"):
        images = load_data("cifar10", root=root)
        assert (images.y.tolist(), images.class_names) == ([9, 3], Cifar10.class_names)


def test_layout_of_cifar100(only_here: Path) -> None:
    folder = only_here / "cifar-100-python"
    folder.mkdir()
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [99, 0], b"coarse_labels": [13, 4]}
    (folder / "test").write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "train").write_bytes(b"")
    images = load_data("cifar100", root=only_here)
    assert [images.class_names[label] for label in images.y] == ["worm", "apple"]
    assert images.superclass_names[(images.superclasses or ())[99]] == "non-insect_invertebrates"


def test_files_of_another_set_are_refused(only_here: Path) -> None:
    file = only_here / "cifar10-test.parquet"
    square = [png(np.zeros((32, 32, 3), np.uint8))] * 2
    wrong = ["airplane", "car", *Cifar10.class_names[2:]]
    write_parquet(file, square, names={"label": wrong}, label=[0, 1])
    refused("class 'car', expected 'automobile'", "cifar10", root=only_here)
    write_parquet(file, square, names={"label": [*Cifar10.class_names, "boat"]}, label=[0, 1])
    refused("11 classes, expected 10", "cifar10", root=only_here)
    write_parquet(file, [png(PICTURES[0])], label=[0])
    refused(r"images of shape \(3, 5, 7\), expected \(3, 32, 32\)", "cifar10", root=only_here)


@pytest.mark.slow
def test_shared_cifar10(shared: Path) -> None:
    images = load_data("cifar10", root=shared, subset=100, seed=3)
    assert images.class_counts().tolist() == [10] * 10
    assert images.split == "test"
