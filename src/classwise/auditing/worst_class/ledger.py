"""The ledger of a search: what is known of every image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import CLEAN
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images
from classwise.stats.counts import BoolArray, IntArray


@dataclass(frozen=True)
class SurvivorCounts:
    """(C,) each: images, those right without an attack, those that survive the first attack."""

    images: IntArray
    clean: IntArray
    survivors: IntArray


@dataclass
class Ledger:
    """What is known of every image, by its place in the data."""

    index: list[IntArray] = field(default_factory=list)
    label: list[IntArray] = field(default_factory=list)
    _columns: dict[str, IntArray] = field(default_factory=dict)

    def add(self, piece: Images) -> IntArray:
        """Note the images of a piece; returns their places."""
        begin = sum(len(block) for block in self.index)
        self.index.append(piece.index.cpu().numpy())
        self.label.append(piece.y.cpu().numpy())
        # stage: -1 robust so far, 0 wrong when clean, k adversarial under attack k.
        for name, value in (("stage", -1), ("settled", 0), ("forwards", 0), ("backwards", 0)):
            before = self._columns.get(name, np.empty(0, dtype=np.int64))
            self._columns[name] = np.concatenate([before, np.full(len(piece), value)])
        return np.arange(begin, begin + len(piece))

    def __getitem__(self, name: str) -> IntArray:
        return self._columns[name]

    def table(self) -> pd.DataFrame:
        """All of it, a row for each image in the order of the data."""
        columns = {"index": np.concatenate(self.index), "label": np.concatenate(self.label)}
        return pd.DataFrame(columns | self._columns)

    def restore(self, places: IntArray, saved: pd.DataFrame) -> None:
        """Take over what is saved of the images of the last piece.

        Raises:
            ClasswiseError: if it is of other images.
        """
        rows = saved.iloc[places[0] : places[-1] + 1]
        for name, own in (("index", self.index[-1]), ("label", self.label[-1])):
            if not np.array_equal(rows[name].to_numpy(), own):
                raise ClasswiseError("the folder holds a search on other images; give another folder")
        for name, column in self._columns.items():
            column[places] = rows[name].to_numpy()

    def counts(self, mask: BoolArray, classes: int) -> IntArray:
        """(C,) images of each class in a mask over all images."""
        return np.bincount(np.concatenate(self.label)[mask], minlength=classes)

    def frame(self, attacks: list[str]) -> pd.DataFrame:
        """The table of `WorstClass.images`, by image number."""
        names = np.array([CLEAN, *attacks, None], dtype=object)  # -1 is the last: no attack succeeded
        table = pd.DataFrame(
            {
                "index": np.concatenate(self.index),
                "label": np.concatenate(self.label),
                "first_success": pd.array(names[self["stage"]], dtype="string"),
                "settled": self["settled"] > 0,
                "forwards": self["forwards"],
                "backwards": self["backwards"],
            }
        )
        return table.sort_values("index", kind="stable").reset_index(drop=True)
