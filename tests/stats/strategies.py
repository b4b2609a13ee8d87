"""Hypothesis strategies for class counts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from classwise.stats.counts import ClassCounts, PairedCounts

# Classes of very different sizes, some absent, with accuracies from 0 to 1.
_cell = st.one_of(st.just(0), st.integers(0, 12), st.integers(0, 1000))


@st.composite
def class_counts(draw: st.DrawFn, min_classes: int = 1, max_classes: int = 8) -> ClassCounts:
    cells = draw(st.lists(st.tuples(_cell, _cell), min_size=min_classes, max_size=max_classes))
    right, wrong = np.array(cells, dtype=np.int64).T
    return ClassCounts(right + wrong, right)


@st.composite
def some_counts(draw: st.DrawFn, max_classes: int = 8) -> ClassCounts:
    """Counts with at least one image."""
    counts = draw(class_counts(max_classes=max_classes))
    return counts + ClassCounts(np.eye(counts.num_classes, dtype=np.int64)[0], np.zeros(counts.num_classes, np.int64))


@st.composite
def paired_counts(draw: st.DrawFn, max_classes: int = 6) -> PairedCounts:
    """Paired counts with at least one image."""
    cells = draw(st.lists(st.tuples(_cell, _cell, _cell, _cell), min_size=1, max_size=max_classes))
    table = np.array(cells, dtype=np.int64)
    table[0, 0] += 1
    return PairedCounts(*table.T)
