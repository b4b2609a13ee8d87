"""The models and attacks that experiments share: defences, PGD and Temperature-PGD with the papers' settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.artifacts import Kind
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.data.images import Images
from classwise.papers.context import Context
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.store import Trained
from classwise.training.folder import Which

DEFENCES: Mapping[str, str] = {"Madry": "at", "TRADES": "trades", "MART": "mart", "HE": "he"}
"""The paper's defences, and our recipes for them."""
CAR, CAT = 1, 3
"""The classes of CIFAR-10 that the papers find most robust and most vulnerable."""
PGD: Mapping[str, Any] = {"name": "pgd", "steps": 20, "step_size": "0.1eps"}
"""kdd21 A.2: step 0.003 at 0.031, a tenth of the radius to a hundredth of it."""
_FULL = USUAL["full"].with_changes(model__name="wrn-34-10")
SCALES: Mapping[Name, Scale] = {
    "smoke": USUAL["smoke"],
    "laptop": USUAL["laptop"],
    "full": Scale(**{**vars(_FULL), "few": 2000, "about": "WideResNet-34-10 on CIFAR-10, each by its own recipe"}),
}
HARDEST = (3, 4)
"""The classes of CIFAR-10 that the paper finds hit hardest."""
FAMILY = "T-PGD"
UNLABELLED_NOTE = (
    "RST: as many further images of the training set, their labels taken away, stand in for the 500,000 unlabelled "
    "ones of another source that the method has."
)
HYPERSPHERE_RECIPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Madry": ("at", {}),
    "HE": ("he", {"objective.criterion.margin": 0}),
    "HE-LIS": ("he-lis", {}),
    "HE-CMP": ("he-cmp", {}),
}
"""Appendix G: the hypersphere without an angular margin."""


def under_pgd(
    context: Context,
    trained: Trained,
    *,
    which: Which | None = None,
    save: Sequence[Kind] = (),
    images: Images | None = None,
) -> Audit:
    """A run on the test images, or others, under the paper's PGD; ``save`` as in `classwise.audit`."""
    return context.audited(trained, {"PGD": context.pgd(PGD)}, which=which, save=save, images=images)


def defended(context: Context) -> dict[str, Trained]:
    """The four defences, trained."""
    return {defence: context.trained(recipe) for defence, recipe in DEFENCES.items()}


def tpgd(inverse: float) -> dict[str, Any]:
    """Temperature-PGD at one 1/T, in the paper's arithmetic."""
    return {**PGD, "name": "tpgd", "inverse_temperature": inverse, "arithmetic": "paper"}


def temperature_grid(context: Context) -> dict[str, dict[str, Any]]:
    """PGD and Temperature-PGD at each 1/T of the paper's grid; the name of each of these is its 1/T."""
    return {"PGD": context.pgd(PGD), **{f"{inverse:g}": context.pgd(tpgd(inverse)) for inverse in TEMPERATURES}}


def at_temperatures(
    context: Context, models: Mapping[str, Trained], temperatures: Sequence[float]
) -> dict[str, Outcomes]:
    """Models under PGD and under Temperature-PGD at each 1/T, a family of attacks."""
    attacks = {"PGD": context.pgd(PGD), **{f"{inverse:g}": context.pgd(tpgd(inverse)) for inverse in temperatures}}
    families = {FAMILY: tuple(f"{inverse:g}" for inverse in temperatures)}
    found = {}
    for name, trained in models.items():
        table = context.audited(trained, attacks).outcomes
        found[name] = Outcomes(table.frame, dataclasses.replace(table.meta, families=families))
    return found


def defences_with_rst(context: Context) -> dict[str, Trained]:
    """The paper's four defences; RST's teacher is the standard model, which labels the images that the scale spares."""
    found = {
        name: context.trained(recipe) for name, recipe in (("Madry", "at"), ("TRADES", "trades"), ("MART", "mart"))
    }
    teacher = context.trained("standard", {"seed": 1})
    return {**found, "RST": context.trained("rst", teacher=teacher, unlabelled=context.spare_images)}


def unlabelled_note(context: Context) -> str:
    """What stands in for the unlabelled images."""
    return (
        UNLABELLED_NOTE
        if context.spare_images is not None
        else "RST: the unlabelled images are those of unlabelled.npz."
    )


def hypersphere_models(context: Context) -> dict[str, Trained]:
    """Madry's model and the three on the hypersphere, trained."""
    return {name: context.trained(recipe, overrides) for name, (recipe, overrides) in HYPERSPHERE_RECIPES.items()}
