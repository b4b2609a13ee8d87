"""`WorstClassEstimate`: the class of lowest accuracy, with its intervals."""

from __future__ import annotations

from dataclasses import dataclass

from classwise.stats.worst_class import Minimum


@dataclass(frozen=True)
class WorstClassEstimate:
    """The class (or group) of lowest accuracy under one attack.

    Attributes:
        attack: the attack, or ``all``.
        label: number of the class.
        name: name of the class.
        count: number of its images.
        accuracy: its accuracy. It is biased low, since the class is selected for its low accuracy.
        low: lower end of the 95 % interval of the accuracy of this class.
        high: upper end.
        possibly: names of the classes that may be the true worst class.
        minimum: accuracy of the true worst class, whichever it is: plug-in and split estimate, and an interval.
    """

    attack: str
    label: int
    name: str
    count: int
    accuracy: float
    low: float
    high: float
    possibly: tuple[str, ...]
    minimum: Minimum
