"""Confidences of one image along the steps of an attack.

kdd21 Figures 3b-d; iclr21 Figures 5b-d and 5f-h: image 127 at the steps 1, 10 and 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, unknown
from classwise.reporting.figures.columns import Panel, column_panels
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray

STEPS = (1, 10, 20)


@dataclass(frozen=True, eq=False)
class Steps(AnalysisResult):
    """Confidences of one image at chosen steps of some attacks.

    Attributes:
        image: index of the image.
        label: its label.
        class_names: (C,) names.
        attacks: names of the attacks.
        steps: the steps; 0 is the start.
        confidences: (attacks, steps, C) softmax outputs.
    """

    image: int
    label: int
    class_names: tuple[str, ...]
    attacks: tuple[str, ...]
    steps: tuple[int, ...]
    confidences: FloatArray

    @property
    def fooled(self) -> pd.DataFrame:
        """Whether the image is misclassified: attacks (rows) by steps (columns)."""
        misclassified = self.confidences.argmax(axis=2) != self.label
        return pd.DataFrame(misclassified, index=list(self.attacks), columns=list(self.steps))

    @property
    def table(self) -> pd.DataFrame:
        """A row for each attack, step and class: ``attack``, ``step``, ``class``, ``confidence``."""
        axes = [self.attacks, self.steps, self.class_names]
        index = pd.MultiIndex.from_product(axes, names=["attack", "step", "class"])
        return pd.DataFrame({"confidence": self.confidences.reshape(-1)}, index=index).reset_index()

    def figure(self) -> Drawing:
        """kdd21 Figures 3b-d: a row of panels for each attack, a panel for each step."""
        panels = [
            Panel(f"{attack}, step {step}", self.confidences[a, s].tolist(), marked=[self.label])
            for a, attack in enumerate(self.attacks)
            for s, step in enumerate(self.steps)
        ]
        title = f"Confidences of image {self.image} ({self.class_names[self.label]}) under attack"
        return column_panels(title, self.class_names, panels, across=len(self.steps), highest=1.0)


def steps_of(audit: Audit, image: int, attacks: Sequence[str] = (), steps: Sequence[int] = STEPS) -> Steps:
    """Read the confidences of a traced image at some steps (kdd21 Figures 3b-d).

    Args:
        audit: an audit with ``trace=[image]``.
        image: index of the image.
        attacks: names of the attacks; empty: all traced attacks.
        steps: the steps; 0 is the start.

    Raises:
        ClasswiseError: if the image, an attack or a step was not traced.
    """
    trace = audit.trace
    if trace is None or trace.empty:
        raise ClasswiseError(f"image {image} was not traced; audit with trace=[{image}]")
    rows = trace[trace["index"] == image]
    if rows.empty:
        known = ", ".join(map(str, sorted(set(trace["index"]))[:8]))
        raise ClasswiseError(f"image {image} was not traced; traced images: {known}")
    names = tuple(attacks) or tuple(dict.fromkeys(rows["attack"]))
    confidences = []
    for name in names:
        trace_rows = rows[rows["attack"] == name]
        if trace_rows.empty:
            raise unknown("traced attack", name, list(dict.fromkeys(rows["attack"])))
        table = trace_rows.pivot_table(index="iteration", columns="class", values="confidence")
        missing = [step for step in steps if step not in table.index]
        if missing:
            raise ClasswiseError(f"{name!r} has no step {missing[0]}; its last is {int(table.index.max())}")
        confidences.append(table.loc[list(steps)].to_numpy(dtype=np.float64))
    outcomes = audit.outcomes
    label = int(outcomes.labels[np.searchsorted(outcomes.index, image)])
    return Steps(image, label, outcomes.class_names, names, tuple(steps), np.stack(confidences))
