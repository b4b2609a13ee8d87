"""An epoch in rows, numbers and a line of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from classwise.training.classes import ClassSettings

IN_FORCE = ("epsilon", "step_size", "beta", "clean_weight", "robust_weight", "sampling", "logit_margin")
"""The class settings that an epoch's rows hold, a number each; the law of targets comes on top, a list for a class."""


def epoch_rows(
    epoch: int, split: str, values: Mapping[str, Tensor], settings: ClassSettings, names: Sequence[str]
) -> list[dict[str, Any]]:
    """A row per class of what was measured on a split; what was not measured, or not set, is null.

    Args:
        epoch: from 0.
        split: ``"train"`` rows also hold the class settings.
        values: per-class numbers, (classes,) each; none: no rows.
        settings: the class settings in force.
        names: of the classes.
    """
    if not values:
        return []
    nothing: list[Any] = [None] * len(names)
    in_force = {name: getattr(settings, name) for name in (*IN_FORCE, "target")} if split == "train" else {}

    def column(tensor: Tensor | None) -> Sequence[float | None]:
        if tensor is None:
            return nothing
        return [None if value != value else value for value in tensor.double().tolist()]  # NaN

    target = in_force.get("target")
    table = {
        "count": [int(value) for value in values["count"].tolist()],
        **{name: column(values.get(name)) for name in ("clean", "robust")},
        **{name: column(in_force.get(name)) for name in IN_FORCE},
        "target": nothing if target is None else target.tolist(),
    }
    return [
        {"epoch": epoch, "split": split, "class": name, "label": label}
        | {key: cells[label] for key, cells in table.items()}
        for label, name in enumerate(names)
    ]


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What an epoch's rows hold, by split, quantity and class."""
    names = ("clean", "robust", *IN_FORCE)
    found = {f"{row['split']}/{name}/{row['class']}": row[name] for row in rows for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def summary(
    splits: Mapping[str, Mapping[str, Tensor]], names: Sequence[str], news: Mapping[str, Any] | None
) -> list[str]:
    """Overall and worst robust accuracy of each split, and what averaging decided, in words."""
    parts = []
    for split, values in splits.items():
        robust = values.get("robust")
        if robust is not None and not robust.isnan().all():
            weights = values["count"] / values["count"].sum()
            overall = float((robust.nan_to_num() * weights).sum())
            worst = int(robust.nan_to_num(nan=torch.inf).argmin())
            parts.append(f"{split} robust {overall:.1%}, worst {float(robust[worst]):.1%} ({names[worst]})")
    if news is not None:
        plain = ", no epoch has passed: the plain average is kept" if news["plain_average_kept"] else ""
        parts.append("average: " + ("admitted" if news["admitted"] else "refused") + plain)
    return parts
