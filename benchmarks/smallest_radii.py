"""Which attack finds the smallest radii? The optimality of each attack by class, for each checkpoint.

For every image and every attack, a bisection finds the smallest radius at which the attack succeeds, between 0 and
twice the usual radius; see `classwise.auditing.curve.optimality`.

Environment variables: ``CLASSWISE_DATA`` is the data folder, ``IMAGES`` the number of test images (200), ``MODEL`` one
of the checkpoints (all), and ``KEEP`` the folder of the curves, with which an interrupted run is resumed. Delete that
folder after a change of an attack.
"""

from __future__ import annotations

import os

from benchmarks.measurements import CHECKPOINTS, KEEP, MODELS, of_checkpoints
from benchmarks.tables import table
from classwise.auditing.curve.optimality import optimality
from classwise.auditing.curve.result import Curve
from classwise.auditing.curve.search import robustness_curve
from classwise.data import load_data
from classwise.models import load_model

ATTACKS = ("pgd", "apgd-ce", "pma", "apgd-t", "cr", "fab-t")
ROUNDS = 6


def curves(name: str, count: int) -> dict[str, Curve]:
    """The curve of each attack on a checkpoint.

    Raises:
        ClasswiseError: if the data set is not in the data folder.
    """
    data = load_data(MODELS[name].data, split="test", subset=count, download=False)
    model = load_model(CHECKPOINTS / f"{name}.safetensors")
    highest = 2 * MODELS[name].linf
    found = {}
    for attack in ATTACKS:
        out = KEEP / f"curve-{name}-{attack}-{count}"
        found[attack] = robustness_curve(
            model, data, "Linf", attack, highest=highest, rounds=ROUNDS, out=out, resume=out.exists()
        )
    return found


def run(*, quick: bool) -> str:
    count = 20 if quick else int(os.environ.get("IMAGES", "200"))

    def section(name: str) -> str:
        found = curves(name, count)
        frame = optimality(found)
        rows = [
            [str(group), str(row.pop("n")), *(f"{value:.3f}" for value in row.values())]
            for group, row in zip(frame.index, frame.to_dict("records"), strict=True)
        ]
        rows.append(["passes of an image", "", *(f"{passes(curve):,.0f}" for curve in found.values())])
        title = f"Optimality by class, {name}, radii up to {2 * MODELS[name].linf:.3g}"
        return table(title, ["class", "images", *found], rows)

    return of_checkpoints(section)


def passes(curve: Curve) -> float:
    """The mean number of forward and backward passes of an image."""
    return float((curve.frame["forwards"] + curve.frame["backwards"]).mean())
