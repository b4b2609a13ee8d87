"""Multiplication of class weights into the class settings."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from classwise.training.classes.signals import ClassSettings, Term

BOTH: tuple[Term, ...] = ("clean", "robust")


def apply_class_weights(before: ClassSettings, weights: Tensor, terms: tuple[Term, ...] = BOTH) -> ClassSettings:
    """Return the settings with the weights of ``terms`` multiplied by ``weights``, (C,)."""
    products = {}
    for term in terms:
        weight: Tensor | None = getattr(before, f"{term}_weight")
        products[f"{term}_weight"] = weights if weight is None else weight * weights
    return dataclasses.replace(before, **products)
