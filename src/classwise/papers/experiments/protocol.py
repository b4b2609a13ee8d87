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
from classwise.papers.context import Context
from classwise.papers.scales import DEFAULT_SCALES, Name, Scale
from classwise.papers.store import Trained
from classwise.training.folder import Which

DEFENCES: Mapping[str, str] = {"Madry": "at", "TRADES": "trades", "MART": "mart", "HE": "he"}
"""Defences of the paper to our recipes."""
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
HYPERSPHERE_RECIPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Madry": ("at", {}),
    "HE": ("he", {"objective.criterion.margin": 0}),
    "HE-LIS": ("he-lis", {}),
    "HE-CMP": ("he-cmp", {}),
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


def train_defences(context: Context) -> dict[str, Trained]:
    """Train the four defences."""
    return {defence: context.train(recipe) for defence, recipe in DEFENCES.items()}


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


def defences_with_rst(context: Context) -> dict[str, Trained]:
    """Train the four defences of iclr21; the teacher of RST is the standard model, which labels `spare_images`."""
    supervised = {
        name: context.train(recipe) for name, recipe in (("Madry", "at"), ("TRADES", "trades"), ("MART", "mart"))
    }
    teacher = context.train("standard", {"seed": 1})
    return {**supervised, "RST": context.train("rst", teacher=teacher, unlabelled=context.spare_images)}


def unlabelled_note(context: Context) -> str:
    """Note on the source of the unlabelled images of RST."""
    return (
        UNLABELLED_NOTE
        if context.spare_images is not None
        else "RST: the unlabelled images are read from unlabelled.npz."
    )


def hypersphere_models(context: Context) -> dict[str, Trained]:
    """Train Madry's model and the three variants of hypersphere embedding."""
    return {name: context.train(recipe, overrides) for name, (recipe, overrides) in HYPERSPHERE_RECIPES.items()}
