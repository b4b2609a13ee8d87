"""Evidence and measurements as raw numbers, and the expected texts, independent of the package."""

from __future__ import annotations

from dataclasses import dataclass

from classwise.papers.claims import Measurement
from classwise.papers.result import Evidence
from classwise.papers.scales import Name


@dataclass(frozen=True)
class RawEvidence:
    """Level of a result: scale, seeds of each model, and the budget of its models; all empty without trainings."""

    scale: Name
    trainings: int = 0
    data: tuple[str, ...] = ()
    images: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    networks: tuple[str, ...] = ()
    widths: tuple[float, ...] = ()

    def evidence(self) -> Evidence:
        return Evidence(
            scale=self.scale,
            trainings=self.trainings,
            data=self.data,
            train_images=self.images,
            epochs=self.epochs,
            networks=self.networks,
            widths=self.widths,
            test_images=(100, 1000),
        )

    @property
    def budget(self) -> list[str]:
        words = []
        if self.images:
            text = " to ".join(f"{one:,}" for one in dict.fromkeys((min(self.images), max(self.images))))
            words.append(f"{text} images" + ("" if self.data == ("cifar10",) else f" of {' and '.join(self.data)}"))
        if self.epochs:
            text = " to ".join(str(one) for one in dict.fromkeys((min(self.epochs), max(self.epochs))))
            words.append(f"{text} epoch" if text == "1" else f"{text} epochs")
        if self.networks and self.networks != ("preactresnet18",):
            words.append(self.networks[0] if len(self.networks) == 1 else f"{len(self.networks)} networks")
        if self.widths and self.widths != (1.0,):
            known: dict[tuple[float, ...], str] = {(0.25,): "quarter width", (0.5,): "half width"}
            text = " to ".join(f"{one:g}" for one in dict.fromkeys((min(self.widths), max(self.widths))))
            words.append(known.get(self.widths, f"width {text}"))
        return words

    @property
    def settings(self) -> str:
        return ", ".join([number_of_trainings(self.trainings), *self.budget]) if self.trainings else ""

    def text(self, answer: str, basis: str, trainings: int, *, short: bool = False) -> str:
        """Expected text of a verdict: the words of the answer depend on the level of the evidence."""
        if basis != "experiment":
            return f"{answer} by {'exact computation' if basis == 'computation' else 'the printed numbers'}"
        if self.scale == "smoke":
            return "smoke run, no evidence"
        final = self.scale == "full" and trainings in {3, 4, 5, 6, 7, 8, 9, 10}
        words = {
            "supported": "confirmed" if final else "supported",
            "contradicted": "not observed" if self.scale == "reduced" else "refuted" if final else "contradicted",
            "inconclusive": "inconclusive",
        }
        text = f"{words[answer]} at {self.scale} scale"
        if short or not self.trainings:
            return text
        about = [number_of_trainings(max(trainings, self.trainings))]
        about += ["intervals for fixed models"] if trainings < self.trainings else []
        return f"{text} ({', '.join(about + (self.budget if self.scale == 'reduced' else []))})"


def number_of_trainings(count: int) -> str:
    return "1 training" if count == 1 else f"{count} trainings"


@dataclass(frozen=True)
class RawMeasurement:
    """A measurement for an open question; NaN ends without an interval."""

    question: str
    value: float
    low: float
    high: float
    unit: str

    @property
    def quantity(self) -> str:
        return f"quantity of {self.question}"

    def measurement(self) -> Measurement:
        return Measurement(
            question=self.question,
            quantity=self.quantity,
            value=self.value,
            low=self.low,
            high=self.high,
            unit=self.unit,
            population="new images of a kind",
        )
