"""Which images of the worst class a page shows: kept examples, each with the twin that broke it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from classwise.auditing.artifacts import EXAMPLES
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.findings import Findings
from classwise.reporting.image_data import MOST, ExampleImages


class _Example(NamedTuple):
    attack: str
    pixels: NDArray[Any]
    prediction: str
    success: bool


def example_images(audit: Audit, findings: Findings) -> ExampleImages | None:
    """Kept examples of the worst class: first those that an attack broke, then those that stand.

    An image is shown under the first attack that broke it; one that stands, under the last attack that tried. They are
    the first images of the class that were right when clean, not the most telling ones. None if nothing was kept.
    """
    clean = _examples(audit, CLEAN)
    if not clean:
        return None
    outcomes = audit.outcomes
    members = outcomes.index[outcomes.grouping(audit.group).ids == findings.worst]
    examples: dict[int, _Example] = {}
    for attack in outcomes.attacks:
        if attack == CLEAN:
            continue
        images, rows = _examples(audit, attack), outcomes.rows(attack).set_index("index")
        for number in np.intersect1d(members, list(images)).tolist():
            if number in clean and not (number in examples and examples[number].success):
                examples.update(_example(number, attack, images[number], rows.loc[number], outcomes.class_names))
    chosen = sorted(examples, key=lambda number: (not examples[number].success, number))[:MOST]
    if not chosen:
        return None
    return ExampleImages(
        clean=np.stack([clean[number] for number in chosen]).astype(np.float32),
        adversarial=np.stack([examples[number].pixels for number in chosen]).astype(np.float32),
        captions=[_caption(number, examples[number]) for number in chosen],
    )


def _example(
    number: int, attack: str, pixels: NDArray[Any], row: pd.Series[Any], class_names: tuple[str, ...]
) -> dict[int, _Example]:
    if row["status"] != "ok":
        return {}
    return {number: _Example(attack, pixels, class_names[int(row["prediction"])], not row["correct"])}


def _caption(number: int, example: _Example) -> str:
    return f"Image {number}, {example.attack}: {'taken for' if example.success else 'still'} {example.prediction}"


def _examples(audit: Audit, attack: str) -> dict[int, NDArray[Any]]:
    """The kept examples under an attack, by image number; none where none were kept."""
    try:
        index, images = audit.artifacts.get(EXAMPLES, attack)
    except ClasswiseError:  # that is how the store says that it has none
        return {}
    return dict(zip(index.tolist(), images, strict=True))
