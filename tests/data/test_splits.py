from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from classwise.data import load_split, save_split, stratified_split, stratified_subset
from tests.refusals import check_refused

COUNTS = st.lists(st.integers(2, 40), min_size=1, max_size=6)


def labels(counts: list[int]) -> torch.Tensor:
    """Labels with these counts, the classes interleaved."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return y[torch.argsort(torch.arange(len(y)) * 7919 % 101, stable=True)]


@pytest.mark.slow
@given(COUNTS, st.floats(0.01, 0.74), st.integers(0, 5))
@example([12], 0.37500000000000006, 0)  # more than 4.5 images, which float32 rounds to 4.5
def test_split_is_a_partition_with_the_exact_share_of_each_class(counts: list[int], share: float, seed: int) -> None:
    y = labels(counts)
    rest, held = stratified_split(y, share, seed)
    assert torch.equal(torch.sort(torch.cat([rest, held])).values, torch.arange(len(y)))
    assert torch.equal(held, torch.sort(held).values)
    assert torch.bincount(y[held]).tolist() == [max(1, round(share * count)) for count in counts]


@given(COUNTS, st.data())
def test_subset_keeps_the_proportions_within_one_image(counts: list[int], data: st.DataObject) -> None:
    y = labels(counts)
    count = data.draw(st.integers(1, len(y)))
    rows = stratified_subset(y, count)
    assert len(set(rows.tolist())) == len(rows) == count
    found = torch.bincount(y[rows], minlength=len(counts)).tolist()
    for got, all_of_class in zip(found, counts, strict=True):
        assert abs(got - count * all_of_class / len(y)) < 1


def test_largest_remainders_by_hand() -> None:
    # 5 of 10 images, classes of 6, 3, 1: exact parts 3, 1.5, 0.5; the tie goes to the lower class
    y = labels([6, 3, 1])
    assert torch.bincount(y[stratified_subset(y, 5)], minlength=3).tolist() == [3, 2, 0]


def test_pinned_choice() -> None:
    y = torch.arange(20) % 2
    assert stratified_split(y, 0.2, seed=0)[1].tolist() == PINNED_SPLIT
    assert stratified_subset(y, 4, seed=1).tolist() == PINNED_SUBSET


PINNED_SPLIT = [0, 3, 14, 17]
PINNED_SUBSET = [6, 7, 12, 13]


def test_seed_and_order_matter_as_they_should() -> None:
    y = torch.arange(1000) % 10
    first, second = stratified_split(y, 0.1, seed=0)[1], stratified_split(y, 0.1, seed=1)[1]
    assert not torch.equal(first, second)
    assert not torch.equal(stratified_subset(y, 100, seed=0), first), "a subset is not the validation part"


def test_larger_subsets_contain_smaller_ones() -> None:
    y = torch.arange(1000) % 10
    assert set(stratified_subset(y, 50).tolist()) < set(stratified_subset(y, 200).tolist())


@pytest.mark.parametrize(
    ("message", "split", "labels", "amount"),
    [
        *(("between 0 and 1", stratified_split, [0, 0], share) for share in (0.0, 1.0, -0.1, 2.0, float("nan"))),
        ("class 1: all of its images .1. would be held out", stratified_split, [0, 0, 1], 0.5),
        ("subset of 0", stratified_subset, [0, 0, 1], 0),
        ("subset of 4", stratified_subset, [0, 0, 1], 4),
    ],
)
def test_bad_amounts(message: str, split: Callable[..., object], labels: list[int], amount: float) -> None:
    check_refused(message, split, torch.tensor(labels), amount)


def test_saved_and_loaded(tmp_path: Path) -> None:
    rest, held = stratified_split(torch.arange(30) % 3, 0.2)
    file = tmp_path / "split.json"
    save_split(file, {"train": rest, "valid": held}, fingerprint="abc")
    found = load_split(file, fingerprint="abc")
    assert list(found) == ["train", "valid"]
    assert torch.equal(found["train"], rest)
    assert torch.equal(found["valid"], held)
    check_refused("other data", load_split, file, fingerprint="other")


def test_bad_split_files(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    check_refused("cannot read", load_split, file)
    for text in ("{", "[]", '{"schema_version": 1}'):
        file.write_text(text)
        check_refused("is damaged", load_split, file)
    file.write_text(json.dumps({"schema_version": 99, "fingerprint": "", "parts": {}}))
    check_refused("newer", load_split, file)
