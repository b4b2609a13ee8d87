"""Example images of the worst class on a page: saved clean images, each with its adversarial example."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from classwise.auditing.outcomes.artifacts import EXAMPLES
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.audit_summary import AuditSummary
from classwise.reporting.image_data import MAX_EXAMPLES, ExampleImages


class _Example(NamedTuple):
    attack: str
    pixels: NDArray[Any]
    prediction: str
    success: bool


def example_images(audit: Audit, summary: AuditSummary) -> ExampleImages | None:
    """Select saved examples of the worst class: misclassified ones first, then robust ones.

    A misclassified image is shown under the first attack that succeeded, a robust one under the last attack. The
    examples are the first images of the class whose clean prediction is correct; they are not representative.

    Returns:
        At most `MAX_EXAMPLES` pairs of images; None if no examples were saved.
    """
    clean = _examples(audit, CLEAN)
    if not clean:
        return None
    outcomes = audit.outcomes
    members = outcomes.index[outcomes.grouping(audit.group).ids == summary.worst]
    examples: dict[int, _Example] = {}
    for attack in outcomes.attacks:
        if attack == CLEAN:
            continue
        images, rows = _examples(audit, attack), outcomes.rows(attack).set_index("index")
        for number in np.intersect1d(members, list(images)).tolist():
            if number in clean and not (number in examples and examples[number].success):
                examples.update(_example(number, attack, images[number], rows.loc[number], outcomes.class_names))
    chosen = sorted(examples, key=lambda number: (not examples[number].success, number))[:MAX_EXAMPLES]
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
    verdict = "misclassified" if example.success else "correctly classified"
    return f"Image {number}, {example.attack}: {verdict} as {example.prediction}"


def _examples(audit: Audit, attack: str) -> dict[int, NDArray[Any]]:
    """The saved examples of an attack by image index; empty if none were saved."""
    try:
        index, images = audit.artifacts.get(EXAMPLES, attack)
    except ClasswiseError:  # raised if none were saved
        return {}
    return dict(zip(index.tolist(), images, strict=True))
