"""Models and attacks shared by experiments: defences, PGD and Temperature-PGD with the settings of the papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.artifacts import Kind
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.data.images import Images
from classwise.papers.context import Context, Training
from classwise.papers.scales import DEFAULT_SCALES, Name, Scale
from classwise.papers.store import Trained
from classwise.training.folder import Which

STANDARD = Training(recipe="standard", overrides={"seed": 1})
"""Standard training; its seed differs from that of the robust models, since it is also the substitute of transfer."""
AT = Training(recipe="at")
DEFENCES: Mapping[str, Training] = {
    "Madry": AT,
    "TRADES": Training(recipe="trades"),
    "MART": Training(recipe="mart"),
    "HE": Training(recipe="he"),
}
"""The four defences of kdd21."""
DEFENCES_WITH_RST: Mapping[str, Training] = {
    **{name: DEFENCES[name] for name in ("Madry", "TRADES", "MART")},
    "standard": STANDARD,
    "RST": Training(recipe="rst", teacher="standard"),
}
"""The four defences of iclr21, and the teacher of RST, which labels `Context.spare_images`."""
CAR, CAT = 1, 3
"""The most robust and the most vulnerable class of CIFAR-10 in the papers."""
PGD: Mapping[str, Any] = {"name": "pgd", "steps": 20, "step_size": "0.1eps"}
"""kdd21 A.2: step 0.003 at radius 0.031, here a tenth of the radius."""
_FULL = DEFAULT_SCALES["full"].with_overrides(model__name="wrn-34-10")
SCALES: Mapping[Name, Scale] = {
    "smoke": DEFAULT_SCALES["smoke"],
    "reduced": DEFAULT_SCALES["reduced"],
    "full": Scale(**{**vars(_FULL), "few": 2000, "about": "WideResNet-34-10 on CIFAR-10, each by its own recipe"}),
}
HARDEST = (3, 4)
"""The classes of CIFAR-10 with the largest drops in the paper."""
FAMILY = "T-PGD"
UNLABELLED_NOTE = (
    "RST: an equal number of further training images without labels replaces the 500,000 unlabelled images of another "
    "source that the method uses."
)
HYPERSPHERE: Mapping[str, Training] = {
    "Madry": AT,
    "HE": Training(recipe="he", overrides={"objective.criterion.margin": 0}),
    "HE-LIS": Training(recipe="he-lis"),
    "HE-CMP": Training(recipe="he-cmp"),
}
"""Appendix G: hypersphere embedding without an angular margin."""


def under_pgd(
    context: Context,
    trained: Trained,
    *,
    which: Which | None = None,
    save: Sequence[Kind] = (),
    images: Images | None = None,
) -> Audit:
    """Audit a run under the paper's PGD, on the test images or others; ``save`` as in `classwise.audit`."""
    return context.audit(trained, {"PGD": context.pgd(PGD)}, which=which, save=save, images=images)


def tpgd(inverse: float) -> dict[str, Any]:
    """Spec of Temperature-PGD at one 1/T, in the paper's arithmetic."""
    return {**PGD, "name": "tpgd", "inverse_temperature": inverse, "arithmetic": "paper"}


def temperature_grid(context: Context) -> dict[str, dict[str, Any]]:
    """Specs of PGD, and of Temperature-PGD at each 1/T of the paper's grid, named by 1/T."""
    return {"PGD": context.pgd(PGD), **{f"{inverse:g}": context.pgd(tpgd(inverse)) for inverse in TEMPERATURES}}


def audit_temperatures(
    context: Context, models: Mapping[str, Trained], temperatures: Sequence[float]
) -> dict[str, Outcomes]:
    """Audit models under PGD and under Temperature-PGD at each 1/T, which form a family of attacks."""
    attacks = {"PGD": context.pgd(PGD), **{f"{inverse:g}": context.pgd(tpgd(inverse)) for inverse in temperatures}}
    families = {FAMILY: tuple(f"{inverse:g}" for inverse in temperatures)}
    outcomes = {}
    for name, trained in models.items():
        table = context.audit(trained, attacks).outcomes
        outcomes[name] = Outcomes(table.frame, dataclasses.replace(table.meta, families=families))
    return outcomes


def train_with_rst(context: Context) -> dict[str, Trained]:
    """Train the four defences of iclr21; the teacher of RST is not one of them."""
    return {name: one for name, one in context.train_all(DEFENCES_WITH_RST).items() if name != "standard"}


def unlabelled_note(context: Context) -> str:
    """Note on the source of the unlabelled images of RST."""
    return (
        UNLABELLED_NOTE
        if context.spare_images is not None
        else "RST: the unlabelled images are read from unlabelled.npz."
    )
