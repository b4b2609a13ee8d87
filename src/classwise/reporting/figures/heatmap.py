"""Confusion matrices: percent of each true class, or numbers of errors; optionally grouped by superclass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import sparse

from classwise.reporting import formatting
from classwise.reporting.figures.layout import is_narrow, title_lines
from classwise.reporting.svg import NARROW, Box, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.confusion import misclassified
from classwise.stats.counts import IntArray, ratio

Kind = Literal["rates", "errors", "homing", "control"]

MAX_CLASSES = 24
"""Maximum number of classes that fit on a page; see `Confusion.condensed`."""
NAME_LETTERS = 16
MAX_SHADE = 0.55
"""Opacity of the darkest cell, on which text has a contrast of 4.5:1 in both themes."""


@dataclass(frozen=True)
class Confusion:
    """Counts by true class (row) and prediction (column).

    Attributes:
        matrix: (C, C) int64 counts, dense or (for many classes) sparse.
        names: names of the C classes.
        groups: superclass of each class, or None.
        group_names: one name per superclass.
        totals: (C,) images per class, if some are not counted in the matrix; None: the row sums.
        of_superclasses: whether the rows are superclasses, so that errors within one are on the diagonal.
    """

    matrix: IntArray | sparse.csr_array
    names: tuple[str, ...]
    groups: tuple[int, ...] | None = None
    group_names: tuple[str, ...] = ()
    totals: IntArray | None = None
    of_superclasses: bool = False

    @property
    def images(self) -> IntArray:
        """Images per class (C,)."""
        return np.asarray(self.matrix.sum(axis=1)) if self.totals is None else self.totals

    @property
    def dense(self) -> IntArray:
        """The counts as a dense array (C, C)."""
        return _as_array(self.matrix)

    @property
    def wrong(self) -> int:
        """Number of misclassified images, over all classes."""
        return int(self.matrix.sum() - self.matrix.diagonal().sum())

    def row(self, label: int) -> IntArray:
        """Counts (C,) of the predictions on images of one class."""
        counts: IntArray = self._dense(np.asarray([label]), np.arange(len(self.names)))[0]
        return counts

    def grouped(self) -> Confusion:
        """Reorder the classes so that those of a superclass are adjacent; the order within it is unchanged."""
        if self.groups is None:
            return self
        order = np.argsort(self.groups, kind="stable")
        return self._take(order)

    def condensed(self, most: int = MAX_CLASSES) -> tuple[Confusion, str]:
        """Reduce the matrix to at most ``most`` rows.

        Classes are aggregated into superclasses if there are any; otherwise the classes with the most errors remain.

        Returns:
            The reduced matrix, and a sentence on what was omitted (empty if nothing was).
        """
        if len(self.names) <= most:
            return self, ""
        if self.groups is not None and len(self.group_names) <= most:
            member = np.eye(len(self.group_names), dtype=np.int64)[list(self.groups)]
            note = (
                f"The {len(self.names)} classes are aggregated into their {len(self.group_names)} superclasses; errors "
                "within a superclass count as the diagonal."
            )
            counts, totals = member.T @ (self.matrix @ member), member.T @ self.images
            return Confusion(counts, self.group_names, totals=totals, of_superclasses=True), note
        errors = np.asarray(self.matrix.sum(axis=1)) - self.matrix.diagonal()
        selected = np.sort(np.argsort(-errors, kind="stable")[:most])
        shown = self._take(selected)
        omitted = int(self.matrix[selected].sum() - shown.matrix.sum())
        note = (
            f"The matrix shows the {most} of {len(self.names)} classes with the most errors; "
            f"{formatting.count(omitted)} of their images are predicted as a class that is not shown."
        )
        return shown, note

    def _take(self, rows: IntArray) -> Confusion:
        names = tuple(self.names[row] for row in rows)
        groups = None if self.groups is None else tuple(self.groups[row] for row in rows)
        return Confusion(self._dense(rows, rows), names, groups, self.group_names, self.images[rows])

    def _dense(self, rows: IntArray, columns: IntArray) -> IntArray:
        """Selected rows and columns of the matrix as a dense array."""
        if not isinstance(self.matrix, np.ndarray):
            return _as_array(self.matrix[rows][:, columns])
        block: IntArray = self.matrix[rows][:, columns]
        return block


def _as_array(matrix: IntArray | sparse.csr_array) -> IntArray:
    dense: IntArray = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return dense


class _Grid(NamedTuple):
    """Position of the cells in pixels: left and top end, side of a cell, and the size and the angle of the names."""

    left: float
    top: float
    cell: float
    size: float
    letters: int
    angle: float

    @staticmethod
    def of(names: Sequence[str], top: float, width: float | None) -> _Grid:
        """Fit the cells to 380 pixels below ``top``; the narrow layout to its width, with upright names."""
        narrow = is_narrow(width)
        letters = 12 if narrow else NAME_LETTERS
        room = max(width_of(shorten(name, letters), 10.5 if narrow else 12) for name in names)
        if width is not None and narrow:
            cell = float(np.clip((width - room - 34) / len(names), 10, 38))
            return _Grid(room + 30, top + room + 28, cell, min(10.5, cell), letters, -90)
        cell = float(np.clip(380 / len(names), 15, 38))
        return _Grid(room + 30, top + 0.72 * room + 32, cell, 12 if cell >= 22 else 10.5, letters, -45)

    def labels(self, names: Sequence[str]) -> Iterator[Mark]:
        """Names of the rows and columns."""
        for place, name in enumerate(names):
            short, middle = shorten(name, self.letters), self.cell * (place + 0.5)
            shift = 0 if self.angle == -45 else 0.35 * self.size
            yield Label(self.left - 8, self.top + middle + 4, short, "text", self.size, "end")
            yield Label(self.left + middle + shift, self.top - 7, short, "text", self.size, angle=self.angle)


def heatmap(
    confusion: Confusion,
    kind: Kind,
    *,
    under: str = "",
    width: float | None = None,
    attack: str = "",
    labels: Mapping[str, int] | None = None,
) -> Drawing:
    """Draw a confusion matrix, true classes as rows and predictions as columns; empty cells are blank.

    Args:
        confusion: the counts; classes of one superclass should be adjacent (`Confusion.grouped`).
        kind: ``"rates"``: percent of each true class. ``"errors"``: numbers of misclassified images, without the
            diagonal; ``"homing"`` and ``"control"``: those of them that another model classifies correctly.
        under: condition of the predictions for the title, such as ``under pgd``.
        width: width in pixels that the drawing should not exceed; None: that of a page. See `layout.STACKED`.
        attack: the attack of the predictions.
        labels: the numbers of the classes by name; cells link to their images. None: without links.
    """
    names, number = confusion.names, len(confusion.names)
    counts = confusion.dense
    images = confusion.images
    values = ratio(counts, images[:, None]) if kind == "rates" else misclassified(counts)
    most = 1.0 if kind == "rates" else max(float(np.nanmax(values, initial=0)), 1.0)
    heading = f"{_TITLES.get(kind, 'Confusion matrix')}{f' {under}' if under else ''}: {_UNITS[kind]}"
    least = min(NARROW, width or NARROW)
    marks, below = title_lines(heading, least)
    grid = _Grid.of(names, below, width)
    left, top, cell = grid.left, grid.top, grid.cell
    side = number * cell
    tail = 2.0 if is_narrow(width) else max(0.72 * (left - 30) - cell / 2, 12)  # room for the last slanted name
    drawing = Drawing(max(left + side + tail, least), top + side + 8, heading, marks)
    marks.append(Label(left + side / 2, below + 12, "predicted class", "text-soft", 11, "middle"))
    marks.append(Label(11, top + side / 2, "true class", "text-soft", 11, "middle", angle=-90))
    marks.extend(grid.labels(names))
    marks.append(Box(left, top, side, side, "cell"))
    for row, column in np.argwhere(counts > 0) if kind == "rates" else np.argwhere(np.nan_to_num(values) > 0):
        corner = (left + column * cell, top + row * cell, cell)
        inner = _cell(float(values[row, column]), most, corner, kind)
        right = "classified within the superclass" if confusion.of_superclasses else "classified correctly"
        ending = right if row == column else f"misclassified as {names[column]}"
        title = _hover_text(names[row], int(counts[row, column]), int(images[row]), ending)
        title += _CORRECT.get(kind, "").format(names[column])
        cells = {} if labels is None else {"group": labels[names[row]], "predicted": labels[names[column]]}
        marks.append(Group(inner, title, images=cells and {"attack": attack, **cells}))
    gaps = [cell * step for step in range(number + 1)]
    marks.extend(Line([(left + gap, top), (left + gap, top + side)], "gap-line") for gap in gaps)
    marks.extend(Line([(left, top + gap), (left + side, top + gap)], "gap-line") for gap in gaps)
    marks.extend(_blocks(confusion, left, top, cell))
    return drawing


_CORRECT: Mapping[Kind, str] = {
    "homing": ", but classified correctly by the model without {}",
    "control": ", but classified correctly by the model with another seed",
}
_TITLES: Mapping[Kind, str] = {"homing": "Homing matrix", "control": "Control of the homing matrix"}
_UNITS: Mapping[Kind, str] = {
    "rates": "percent of each true class",
    "errors": "number of misclassified images",
    "homing": "errors that a model without the predicted class classifies correctly",
    "control": "errors that a model with another seed classifies correctly",
}


def _cell(value: float, most: float, place: tuple[float, float, float], kind: Kind) -> list[Mark]:
    x, y, cell = place
    # An exponent below 1 makes rare confusions visible.
    shade = max(0.04, MAX_SHADE * (value / most) ** 0.7)
    marks: list[Mark] = [Box(x, y, cell, cell, "heat" if kind == "rates" else "heat-error", shade)]
    if cell >= 20:
        text = _short_percent(value) if kind == "rates" else f"{value:.0f}"
        size = 11 if len(text) < 4 and cell >= 24 else 9.5
        marks.append(Label(x + cell / 2, y + cell / 2 + 4, text, "text", size, "middle"))
    return marks


def _short_percent(share: float) -> str:
    return "<1" if share < 0.005 else f"{100 * share:.0f}"


def _hover_text(name: str, count: int, images: int, ending: str) -> str:
    share = formatting.percent(count / images) if images else formatting.NONE
    return f"{name}: {formatting.count(count)} of {formatting.count(images)} ({share}) {ending}"


def _blocks(confusion: Confusion, left: float, top: float, cell: float) -> list[Mark]:
    """A frame around each superclass on the diagonal; errors inside it are within the superclass."""
    if confusion.groups is None:
        return []
    groups = np.asarray(confusion.groups)
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    ends = np.append(starts[1:], len(groups))
    marks: list[Mark] = []
    for start, end in zip(starts, ends, strict=True):
        a, b = cell * float(start), cell * float(end)
        corners = [(left + a, top + a), (left + b, top + a), (left + b, top + b), (left + a, top + b)]
        marks.append(Line(corners, "divider", closed=True))
    return marks
