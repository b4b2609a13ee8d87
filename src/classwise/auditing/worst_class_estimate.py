"""`WorstClassEstimate`: the class of lowest accuracy, and the interval of the lowest class accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from classwise.stats.worst_class import Minimum


@dataclass(frozen=True)
class WorstClassEstimate:
    """The class (or group) of lowest accuracy under one attack.

    Its own interval, which does not account for its selection, is in the table of classes (`Audit.by_class`).

    Attributes:
        attack: the attack, or ``all``.
        name: name of the class.
        count: number of its images.
        possibly: names of the classes that may be the true worst class.
        minimum: estimates of the lowest class accuracy, whichever class it is: plug-in, split estimate, interval.

    Example:
        >>> import classwise as cw
        >>> labels = [0] * 100 + [1] * 100
        >>> outcomes = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0] * 150 + [1] * 50})
        >>> worst = cw.Audit(outcomes).worst_class("pgd")
        >>> worst.name, worst.accuracy, round(worst.low, 3), round(worst.high, 3)
        ('1', 0.5, 0.398, 0.615)
    """

    attack: str
    name: str
    count: int
    possibly: tuple[str, ...]
    minimum: Minimum

    @property
    def label(self) -> int:
        """Number of the class."""
        return self.minimum.label

    @property
    def accuracy(self) -> float:
        """Accuracy of the class on these images, biased low, since the class is selected for its low accuracy."""
        return self.minimum.plug_in

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval of the lowest class accuracy, whichever class it is, for new images."""
        return self.minimum.low

    @property
    def high(self) -> float:
        """Upper end of this interval (`classwise.stats.intervals.lowest_interval`)."""
        return self.minimum.high
