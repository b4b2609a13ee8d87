"""Classes alternate, so that a stopped audit has similar numbers of images of each."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from classwise.auditing.run.partition import balanced_order


def test_classes_alternate() -> None:
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    assert balanced_order(y).tolist() == [0, 3, 4, 1, 5, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_every_prefix_is_balanced_by_class(labels: list[int]) -> None:
    y = torch.tensor(labels)
    order = balanced_order(y)
    assert sorted(order.tolist()) == list(range(len(labels)))
    smallest = int(torch.bincount(y)[torch.unique(y)].min())
    first = y[order][: smallest * len(set(labels))]
    assert set(torch.bincount(first)[torch.unique(y)].tolist()) == {smallest}
