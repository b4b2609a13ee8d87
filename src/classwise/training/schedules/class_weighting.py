"""Multiplication of class weights into the class settings."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from classwise.training.classes.signals import ClassSettings, Term

BOTH: tuple[Term, ...] = ("clean", "robust")


def apply_class_weights(before: ClassSettings, weights: Tensor, terms: tuple[Term, ...] = BOTH) -> ClassSettings:
    """Return the settings with the weights of ``terms`` multiplied by ``weights``.

    Args:
        before: the settings of the earlier schedules; a weight of None is 1.
        weights: (C,), not rescaled: with a mean of 1 over the classes with images, the learning rate keeps its meaning.
        terms: the terms of the loss, ``"clean"`` and ``"robust"`` by default.

    Example:
        >>> import torch
        >>> found = apply_class_weights(ClassSettings(clean_weight=torch.tensor([2.0, 1.0])), torch.tensor([1.5, 0.5]))
        >>> found.clean_weight.tolist(), found.robust_weight.tolist()
        ([3.0, 0.5], [1.5, 0.5])
    """
    products = {}
    for term in terms:
        weight: Tensor | None = getattr(before, f"{term}_weight")
        products[f"{term}_weight"] = weights if weight is None else weight * weights
    return dataclasses.replace(before, **products)
