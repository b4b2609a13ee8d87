"""The threat of a table of outcomes: the norm with the radius, or with the radii of all images."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.core.errors import ClasswiseError
from classwise.core.threat_text import PER_IMAGE, parse_threat
from classwise.stats.counts import FloatArray

UNSTATED = "not stated"
"""The text of a field that an audit does not record, such as the threat of predictions made elsewhere."""


class FieldValue(NamedTuple):
    """The value of a field in one audit.

    Attributes:
        key: equal for audits that agree.
        text: the value for error messages.
        stated: whether the audit records the field.
    """

    key: Any
    text: str
    stated: bool = True


def threat_of(frame: pd.DataFrame, meta: Meta, labels: Collection[str]) -> FieldValue:
    """The threat of the rows of some attacks; that of the metadata if the rows have no radii."""
    rows = frame[frame["attack"].isin([label for label in labels if label != CLEAN])]
    rows = rows.drop_duplicates("index").sort_values("index")
    radii: FloatArray = rows["epsilon"].to_numpy(dtype=np.float64)
    if not len(radii) or np.isnan(radii).any():
        return stated_threat(meta.threat)
    norm = meta.norm or str(meta.threat).partition(":")[0]
    rounded = np.array([float(f"{radius:.6g}") for radius in np.unique(radii)])  # float32 and float64 radii agree
    if len(np.unique(rounded)) == 1:
        radius = float(rounded[0])
        return FieldValue((norm, radius), _radius_text(norm, radius))
    key = (norm, tuple(zip(rows["index"].tolist(), (f"{radius:.6g}" for radius in radii), strict=True)))
    mean = f"{radii.mean():.6g}"
    return FieldValue(key, f"{norm}:{PER_IMAGE}, {rounded[0]:.6g} to {rounded[-1]:.6g}, mean {mean}")


def stated_threat(text: str | None) -> FieldValue:
    """The norm with the radius from the text of a threat, or the text itself if it is not a norm ball."""
    if text is None:
        return FieldValue(None, UNSTATED, stated=False)
    try:
        norm, epsilon = parse_threat(text)
    except ClasswiseError:
        return FieldValue(text, text)
    radius = float(f"{epsilon:.6g}")
    return FieldValue((norm, radius), _radius_text(norm, radius))


def _radius_text(norm: str, radius: float) -> str:
    levels = radius * 255
    in_levels = norm == "Linf" and levels >= 1 and abs(levels - round(levels)) < 1e-3
    return f"{norm}:{round(levels)}/255" if in_levels else f"{norm}:{radius:.6g}"
