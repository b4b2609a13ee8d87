"""The level of the evidence of a result, and the text of a verdict at that level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from classwise.papers.claims import Answer, Verdict
from classwise.papers.scales import CIFAR, Name
from classwise.training.recipe_settings import ModelSettings

CONFIRMING = 3
"""Smallest number of trainings of each model for which a claim is confirmed or refuted at full scale."""
NOT_TESTED = "not tested"
NO_EVIDENCE = "smoke run, no evidence"
_OBSERVED: dict[Answer, str] = {"contradicted": "not observed"}
_FINAL: dict[Answer, str] = {"supported": "confirmed", "contradicted": "refuted"}
_WIDTHS = {0.25: "quarter width", 0.5: "half width"}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The level at which a result was obtained.

    Each sequence has the distinct values over all models of the result, in increasing order; it is empty for a result
    without trainings.

    Attributes:
        scale: name of the scale.
        trainings: number of independent trainings (seeds) of each model, the smallest over the models.
        data: names of the data sets.
        train_images: numbers of training images, including the validation split.
        epochs: numbers of epochs.
        networks: names of the networks.
        widths: width factors of the networks.
        test_images: numbers of test images of the audits.
        attacks: names of the attacks of the audits, each with its threat, as in ``pgd in Linf:8/255``.
    """

    scale: Name
    trainings: int = 0
    data: Sequence[str] = ()
    train_images: Sequence[int] = ()
    epochs: Sequence[int] = ()
    networks: Sequence[str] = ()
    widths: Sequence[float] = ()
    test_images: Sequence[int] = ()
    attacks: Sequence[str] = ()

    @property
    def settings(self) -> str:
        """Number of trainings, images and epochs, and the network, as in ``1 training, 5,000 images, 12 epochs``.

        The data set and the network are named unless they are CIFAR-10 and a PreActResNet-18.
        """
        return ", ".join([_trainings(self.trainings), *self._budget()]) if self.trainings else ""

    def details(self, verdict: Verdict) -> str:
        """The settings of a verdict in parentheses, with the trainings that its interval covers; empty without any."""
        if not self.trainings:
            return ""
        fixed = verdict.trainings < self.trainings
        trainings = _trainings(self.trainings if fixed else verdict.trainings)
        parts = [f"{trainings}, intervals for fixed models" if fixed else trainings]
        return f" ({', '.join([*parts, *([] if self.scale == 'full' else self._budget())])})"

    def _budget(self) -> list[str]:
        parts = []
        if self.train_images:
            of = "" if tuple(self.data) == (CIFAR,) else f" of {' and '.join(self.data)}"
            parts.append(f"{_several(self.train_images)} images{of}")
        if self.epochs:
            parts.append(f"{_several(self.epochs)} epoch{'' if tuple(self.epochs) == (1,) else 's'}")
        if len(self.networks) > 1:
            parts.append(f"{len(self.networks)} networks")
        elif self.networks and self.networks[0] != ModelSettings().name:
            parts.append(self.networks[0])
        if len(self.widths) > 1:
            parts.append(f"width {min(self.widths):g} to {max(self.widths):g}")
        elif self.widths and self.widths[0] != 1:
            parts.append(_WIDTHS.get(self.widths[0], f"width {self.widths[0]:g}"))
        return parts


def verdict_text(verdict: Verdict, evidence: Evidence, *, short: bool = False) -> str:
    """Text of a verdict: what the evidence says, and the level at which it was obtained.

    At a reduced scale a claim is *supported*, *not observed* or *inconclusive*. *Confirmed* and *refuted* require the
    full scale and an interval over at least three trainings of each model.

    Args:
        verdict: verdict on a claim.
        evidence: level of the result that has the verdict.
        short: whether to omit the settings in parentheses.

    Example:
        >>> from classwise.papers.claims import Verdict
        >>> from classwise.papers.evidence import Evidence, verdict_text
        >>> budget = {"data": ["cifar10"], "train_images": [5000], "epochs": [12], "widths": [0.25]}
        >>> evidence = Evidence(scale="reduced", trainings=1, **budget)
        >>> verdict_text(Verdict(claim="kdd21/C8", answer="contradicted", estimand="rank of class 3"), evidence)
        'not observed at reduced scale (1 training, 5,000 images, 12 epochs, quarter width)'
    """
    if not verdict.estimand:
        return NOT_TESTED
    if verdict.basis == "computation":
        return f"{verdict.answer} by exact computation"
    if verdict.basis == "printed numbers":
        return f"{verdict.answer} by the printed numbers"
    if evidence.scale == "smoke":
        return NO_EVIDENCE
    details = "" if short else evidence.details(verdict)
    if evidence.scale == "reduced":
        return f"{_OBSERVED.get(verdict.answer, verdict.answer)} at reduced scale{details}"
    final = _FINAL if verdict.trainings >= CONFIRMING else {}
    return f"{final.get(verdict.answer, verdict.answer)} at full scale{details}"


def conclusive(verdict: Verdict, evidence: Evidence) -> Answer:
    """The answer of a verdict; "inconclusive" for a smoke run, which is no evidence, unless the test is exact."""
    if evidence.scale == "smoke" and verdict.basis == "experiment":
        return "inconclusive"
    return verdict.answer


def _trainings(count: int) -> str:
    return f"{count} training{'' if count == 1 else 's'}"


def _several(values: Sequence[int]) -> str:
    """One number, or the smallest and the largest."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
