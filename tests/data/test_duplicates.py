"""Duplicates: images of equal pixels and labels are counted and omitted, in memory and in streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import classwise as cw
from classwise.data.duplicates import Duplicates, content_hashes
from classwise.data.images import Column
from classwise.data.stream import Stream

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(6, 1, 4, 4, generator=GENERATOR)
Y = torch.tensor([0, 0, 1, 1, 2, 2])
ROWS = torch.tensor([0, 1, 0, 2, 3, 2, 2, 4, 5, 1])
"""Images 0 and 1 occur twice, image 2 three times, the others once."""


def test_hashes_depend_on_pixels_and_labels_only() -> None:
    hashes = content_hashes(X, Y)
    assert len(set(hashes.tolist())) == 6
    assert content_hashes(X[ROWS], Y[ROWS]).tolist() == hashes[ROWS].tolist()
    assert content_hashes(X.to(memory_format=torch.channels_last), Y).tolist() == hashes.tolist()
    assert not set(content_hashes(X, Y + 1).tolist()) & set(hashes.tolist())
    moved = X.clone()
    moved[:, 0, 0, 0] = torch.nextafter(moved[:, 0, 0, 0], torch.tensor(2.0))
    assert not set(content_hashes(moved, Y).tolist()) & set(hashes.tolist())


@pytest.mark.parametrize("blocks", [1, 3, 10])
def test_effective_numbers_are_those_of_kish(blocks: int) -> None:
    duplicates = Duplicates()
    for rows in ROWS.chunk(blocks):
        duplicates.add(X[rows], Y[rows])
    assert duplicates.distinct == 6
    assert duplicates.images.tolist() == [4, 4, 2]
    np.testing.assert_allclose(duplicates.effective, [16 / 8, 16 / 10, 2])
    assert duplicates.effective_overall == pytest.approx(100 / (4 + 4 + 9 + 3))


def test_nothing_has_no_duplicates() -> None:
    duplicates = Duplicates()
    assert (duplicates.distinct, duplicates.effective_overall) == (0, 0.0)
    assert duplicates.effective.tolist() == []


def stacked(data: Any) -> tuple[list[int], Tensor]:
    batches = list(data.batches(4))
    return torch.cat([batch.index for batch in batches]).tolist(), torch.cat([batch.x for batch in batches])


def test_the_first_of_each_content_remains() -> None:
    images = cw.Images(X[ROWS], Y[ROWS], columns={"place": Column.of("abcdefghij")}).unique()
    assert images.index.tolist() == [0, 1, 3, 4, 7, 8]
    assert images.columns["place"].ids.tolist() == [0, 1, 3, 4, 7, 8]
    assert torch.equal(images.x, X)
    assert images.unique() is images


def test_streams_omit_duplicates_of_all_batches() -> None:
    loader = DataLoader(TensorDataset(X[ROWS], Y[ROWS]), batch_size=3)
    stream = Stream(loader, name="loader", class_names=tuple("abc"))
    unique = stream.unique()
    index, x = stacked(unique)
    assert index == [0, 1, 3, 4, 7, 8]
    assert torch.equal(x, X)
    assert unique.class_counts().tolist() == [2, 2, 2]
    assert stacked(stream)[0] == list(range(10))
    assert stream.fingerprint() != unique.fingerprint()
    stacked(plain := Stream(TensorDataset(X, Y), name="plain", class_names=tuple("abc")))
    assert plain.fingerprint() == unique.fingerprint()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()


def sampled() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(range(6), replacement=True, num_samples=60, generator=generator)
    drawn = torch.tensor(list(sampler))
    return DataLoader(TensorDataset(X[drawn], Y[drawn]), batch_size=8)


@pytest.mark.parametrize("source", [lambda: (X.repeat(10, 1, 1, 1), Y.repeat(10)), sampled], ids=["pair", "loader"])
def test_an_audit_warns_of_duplicates_and_is_that_of_the_images_without(source: Any) -> None:
    warned = cw.audit(model(), source(), "Linf:0.01", "fgsm")
    (sentence,) = (warning.sentence for warning in warned.warnings if warning.name == "duplicates")
    assert sentence.startswith("6 of 60 images are different, and the others are duplicates; intervals are too narrow")
    unique = cw.audit(model(), source(), "Linf:0.01", "fgsm", unique=True)
    expected = cw.audit(model(), (X, Y), "Linf:0.01", "fgsm")
    assert "duplicates" not in {warning.name for warning in (*unique.warnings, *expected.warnings)}
    assert unique.by_class.reset_index(drop=True).equals(expected.by_class.reset_index(drop=True))
    assert unique.outcomes.meta.images == 6
    assert unique.outcomes.meta.settings["unique"] is True


def test_radii_of_images_go_with_the_first_of_each_content() -> None:
    radii = torch.linspace(0.01, 0.1, 10)
    found = cw.audit(model(), (X[ROWS], Y[ROWS]), ("Linf", radii), "fgsm", unique=True)
    rows = found.outcomes.frame[found.outcomes.frame["attack"] == "fgsm"].sort_values("index")
    assert rows["index"].tolist() == [0, 1, 3, 4, 7, 8]
    np.testing.assert_allclose(rows["epsilon"], radii[rows["index"].tolist()], rtol=1e-6)


def test_curves_and_searches_omit_duplicates() -> None:
    many = X.repeat(4, 1, 1, 1), Y.repeat(4)
    curve = cw.robustness_curve(model(), many, attacks="fgsm", highest=0.1, rounds=1, unique=True)
    assert len(curve.frame) == 6
    found = cw.find_worst_class(model(), many, "Linf:0.01", ["fgsm", "pgd:steps=2"], unique=True)
    assert found.by_class["n"].tolist() == [2, 2, 2]
