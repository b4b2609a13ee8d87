"""The four defences of iclr21: adversarial training, TRADES, MART and robust self-training (RST)."""

from __future__ import annotations

from classwise.papers.experiment import Bench
from classwise.papers.store import Trained

STAND_IN = (
    "RST: as many further images of the training set, their labels taken away, stand in for the 500,000 unlabelled "
    "ones of another source that the method has."
)


def variants(bench: Bench) -> dict[str, Trained]:
    """The paper's four defences; RST's teacher is the standard model, which labels the images that the scale spares."""
    found = {name: bench.trained(recipe) for name, recipe in (("Madry", "at"), ("TRADES", "trades"), ("MART", "mart"))}
    teacher = bench.trained("standard", {"seed": 1})
    return {**found, "RST": bench.trained("rst", teacher=teacher, unlabelled=bench.spare_images)}


def note(bench: Bench) -> str:
    """What stands in for the unlabelled images."""
    return STAND_IN if bench.spare_images is not None else "RST: the unlabelled images are those of unlabelled.npz."
