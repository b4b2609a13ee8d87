"""Overall accuracies that others have published: RobustBench's ``model_info`` files.

They have no class-wise results, and classwise did not measure them, so they are listed apart and have no rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.names import checked_name

NORMS = ("Linf", "L2")
"""Names of the folders of RobustBench that have accuracies under AutoAttack."""


@dataclass(frozen=True)
class Published:
    """A published overall accuracy.

    Attributes:
        name: name of the model, that of the file.
        file: the file, with the folders that name data set and norm.
        data: name of the data set.
        threat: the threat, such as ``"Linf:8/255"``; only the radius if the folder does not name the norm.
        overall: published accuracy under AutoAttack, a fraction.
        clean: published accuracy without an attack, a fraction; None if the file has none.
        network: the architecture.
        extra_data: whether additional data were used for training; None if the file does not state it.
        external: robust accuracy that another evaluation found, if RobustBench lists one, a fraction.
        venue: where the method was published.
        link: address of the publication.
        note: RobustBench's footnote, and whether it marks the accuracy as unreliable.
    """

    name: str
    file: str
    data: str
    threat: str
    overall: float
    clean: float | None = None
    network: str = ""
    extra_data: bool | None = None
    external: float | None = None
    venue: str = ""
    link: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        checked_name(self.name, "row of a leaderboard")
        for field in ("overall", "clean", "external"):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= 1:
                raise ClasswiseError(f"{self.name!r}: {field} is {value}, expected a fraction from 0 to 1")


def published_in(content: Mapping[str, Any], path: Path) -> Published:
    """Read a ``model_info`` object of RobustBench.

    Raises:
        ClasswiseError: if it has no accuracy under AutoAttack, or an accuracy is no percentage.
    """
    folder = path.absolute().parent
    norm = folder.name if folder.name in NORMS else ""
    extra, unreliable = content.get("additional_data"), content.get("unreliable") is True
    overall = _share(content, "autoattack_acc", path)
    if overall is None:
        raise ClasswiseError(f"{path}: autoattack_acc is null; a published accuracy is a number in percent")
    return Published(
        name=path.stem,
        file=f"{folder.parent.name}/{norm}/{path.name}" if norm else path.name,
        data=_text(content, "dataset"),
        threat=":".join(filter(None, (norm, _text(content, "eps")))),
        overall=overall,
        clean=_share(content, "clean_acc", path),
        network=_text(content, "architecture"),
        extra_data=extra if isinstance(extra, bool) else None,
        external=_share(content, "external", path),
        venue=_text(content, "venue"),
        link=_text(content, "link"),
        note=" ".join(filter(None, ("Marked as unreliable." if unreliable else "", _text(content, "footnote")))),
    )


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    return "" if value is None else str(value)


def _share(content: Mapping[str, Any], key: str, path: Path) -> float | None:
    """A percentage, a number or its text, as a fraction; None for null."""
    value = content.get(key)
    if value is None:
        return None
    try:
        percent = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        percent = math.nan
    if not 0 <= percent <= 100:
        raise ClasswiseError(f"{path}: {key} is {value!r}, expected a percentage from 0 to 100")
    return percent / 100
