"""`WorstClassVerdict`: the answer of a search for the worst class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorstClassVerdict:
    """The answer of a search for the worst class.

    Attributes:
        worst: class with the lowest estimate.
        possibly: classes that may be the worst; the true worst is among them with probability at least 1 - alpha.
        estimate: estimated accuracy of ``worst``, a fraction.
        low: lower end of the interval of the lowest class accuracy of these images, whichever class it is.
        high: upper end.
        settled: whether the search finished, so that ``worst`` is guaranteed up to ``tolerance``.
        unsettled: number of survivors that the whole suite did not attack.
        alpha: 1 minus the confidence.
        tolerance: how far (a fraction) the accuracy of ``worst`` may exceed that of the true worst class.
        new_images: lower and upper end of the interval of the lowest class accuracy for new images of the same classes.
    """

    worst: int
    possibly: tuple[int, ...]
    estimate: float
    low: float
    high: float
    settled: bool
    unsettled: int
    alpha: float
    tolerance: float
    new_images: tuple[float, float]

    def sentence(
        self, names: Sequence[str], population: str = "this test set", suite: str = "this suite and seed"
    ) -> str:
        """State the guarantee in a sentence.

        Args:
            names: (C,) class names.
            population: the images that the guarantee refers to.
            suite: the attacks that the guarantee refers to.
        """
        confidence = f"with {_number(100 * (1 - self.alpha))} % confidence (over the random order of the samples)"
        scope = f"on {population} under {suite}"
        listed = ", ".join(names[label] for label in self.possibly)
        if not self.settled:
            which = f"is {listed}" if len(self.possibly) == 1 else f"is one of {listed}"
            return f"{confidence} the worst class {which}, {scope}; the search was stopped before it was finished"
        worst = names[self.worst]
        points = f"{_number(100 * self.tolerance)} points"
        claim = f"no class is more than {points} below {worst}" if self.tolerance else f"no class is below {worst}"
        tie = f"; the worst may be any of {listed}" if len(self.possibly) > 1 else ""
        return f"{confidence} {claim}, {scope}{tie}"


def _number(value: float) -> str:
    return f"{value:.6g}"
