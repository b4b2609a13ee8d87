"""Example images of the worst class on a page: saved clean images, each with its adversarial example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from classwise.auditing.outcomes.artifacts import EXAMPLES
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.image_data import data_uri

MAX_EXAMPLES = 8
"""Maximum number of example images on a page."""


MAX_NAME = 60
"""Maximum number of characters of the name of an image in a caption."""


class Triple(NamedTuple):
    """An image, its adversarial example and their difference as data URIs, and a caption."""

    clean: str
    adversarial: str
    difference: str
    caption: str


class _Example(NamedTuple):
    attack: str
    pixels: NDArray[Any]
    prediction: str
    success: bool


def shortened(name: str) -> str:
    """The end of the name of an image, of at most `MAX_NAME` characters."""
    return name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}"


def thumbnails(audit: Audit, images: Sequence[int]) -> dict[int, str]:
    """Data URIs of clean images, by index; of those that the audit saved as examples."""
    clean = _examples(audit, CLEAN) if images else {}
    return {image: data_uri(np.asarray(clean[image], np.float32)) for image in images if image in clean}


def example_images(audit: Audit, summary: AuditSummary) -> tuple[list[Triple], float] | None:
    """Select saved examples of the worst class: misclassified ones first, then robust ones.

    A misclassified image is shown under the first attack that succeeded, a robust one under the last attack. The
    examples are the first images of the class whose clean prediction is correct; they are not representative.

    Returns:
        At most `MAX_EXAMPLES` images as of `triples`; None if no examples were saved.
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
            row = rows.loc[number]
            if number in clean and row["status"] == "ok" and not (number in examples and examples[number].success):
                prediction = outcomes.class_names[int(row["prediction"])]
                examples[number] = _Example(attack, images[number], prediction, not row["correct"])
    if not examples:
        return None
    chosen = sorted(examples, key=lambda number: (not examples[number].success, number))[:MAX_EXAMPLES]
    names = zip(outcomes.index.tolist(), outcomes.image_names, strict=True)
    named = {number: f" ({shortened(name)})" if name else "" for number, name in names}
    captions = [
        f"Image {number}{named[number]}, {attack}: {result} as {prediction}"
        for number in chosen
        for attack, _, prediction, success in [examples[number]]
        for result in ["misclassified" if success else "correctly classified"]
    ]
    of_clean = np.stack([clean[number] for number in chosen]).astype(np.float32)
    adversarial = np.stack([examples[number].pixels for number in chosen]).astype(np.float32)
    return triples(of_clean, adversarial, captions)


def triples(
    clean: NDArray[np.float32], adversarial: NDArray[np.float32], captions: Sequence[str]
) -> tuple[list[Triple], float]:
    """Encode images, their adversarial examples and their differences as data URIs.

    Differences are drawn around middle grey and amplified by one common factor; the largest becomes black or white.

    Args:
        clean: (N, C, H, W) in [0, 1].
        adversarial: (N, C, H, W) in [0, 1].
        captions: (N,).

    Returns:
        The encoded images, and the amplification factor.
    """
    change = adversarial - clean
    largest = float(np.abs(change).max(initial=0))
    factor = 0.5 / largest if largest else 1.0
    columns = ([data_uri(pixels) for pixels in images] for images in (clean, adversarial, 0.5 + factor * change))
    return [Triple(*row) for row in zip(*columns, captions, strict=True)], factor


def _examples(audit: Audit, attack: str) -> dict[int, NDArray[Any]]:
    """The saved examples of an attack by image index; empty if none were saved."""
    try:
        index, images = audit.artifacts.get(EXAMPLES, attack)
    except ClasswiseError:  # raised if none were saved
        return {}
    return dict(zip(index.tolist(), images, strict=True))
