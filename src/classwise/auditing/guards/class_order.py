"""The guard of the order of the classes, which reads the clean predictions."""

from __future__ import annotations

import numpy as np

from classwise.auditing.guards.evidence import Evidence, Guard, GuardWarning, Result, Undecided, percent, undecided
from classwise.auditing.outcomes.table import CLEAN
from classwise.stats.class_order import (
    MOST_CLASSES,
    ClassOrder,
    below_chance,
    explains_best,
    images_needed,
    likely_order,
    occurring_classes,
)

SHOWN = 3
"""Number of moved classes that the warning names."""


def class_order(evidence: Evidence) -> Result:
    """The classes of the data and the outputs of the model are in different orders, or the model is below chance."""
    frame = evidence.outcomes.frame
    rows = frame[(frame["attack"] == CLEAN) & frame["prediction"].notna()]
    labels, predictions = (rows[name].to_numpy(dtype=np.int64) for name in ("label", "prediction"))
    too_few = len(labels) < images_needed()
    found = likely_order(labels, predictions, evidence.outcomes.class_names)
    if found is not None:
        return GuardWarning(_sentence(evidence, found), found.accuracy.value)
    low = below_chance(labels, predictions)
    if low is not None:
        what = f"The clean accuracy ({percent(low.accuracy)}) is significantly below chance ({percent(low.expected)})"
        reason = "no other order of the classes explains the predictions far better"
        if too_few:
            reason = f"{images_needed()} images are needed to find the order of the classes"
        return GuardWarning(f"{what}; {reason}: check labels, class names and preprocessing.", low.accuracy)
    if occurring_classes(labels, predictions) > MOST_CLASSES:
        return Undecided(f"of more than {MOST_CLASSES:,} classes only usual orders are tested")
    if too_few and not explains_best(labels, predictions):
        return undecided(images_needed(), len(labels))
    return None


def _sentence(evidence: Evidence, found: ClassOrder) -> str:
    """The warning about another order: which, the accuracy in it, and what to do."""
    moved = np.flatnonzero(found.order != np.arange(len(found.order)))
    pairs = [
        f"{evidence.name_of(int(label))} -> {evidence.name_of(int(found.order[label]))}" for label in moved[:SHOWN]
    ]
    more = f" and {len(moved) - SHOWN:,} more" if len(moved) > SHOWN else ""
    which = f"{found.name}: {', '.join(pairs)}{more}".removeprefix(": ")
    accuracy, low, high = (percent(share) for share in found.accuracy)
    what = f"The classes of the data and the outputs of the model are in different orders, likely {which}"
    gain = f"with it the clean accuracy of {found.images:,} other images is {accuracy} (95 % interval {low} to {high})"
    return f"{what}; {gain} instead of {percent(found.present)}: correct the order of the classes, e.g. with classes=."


GUARDS: dict[str, Guard] = {"class-order": class_order}
