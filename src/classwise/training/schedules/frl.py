"""FRL, fair robust learning (Xu et al., ICML 2021): a class error above the mean raises the class weight and radius."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.settings.config import Count, NonNegative, Positive, Share, configurable
from classwise.training.classes.signals import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class FRL(ClassSchedule):
    """Lagrange multipliers of the constraint that no class error exceeds the mean class error by over ``tolerance``.

    After each epoch, the violations g = e_c - mean e - tolerance are measured on the validation split, for the clean
    error e0 and the boundary error e1 (correct when clean, misclassified under attack). The updates are lam0 += rate
    g0, lam1 += boundary rate g1 and lam2 += margin_rate g1. lam0 and lam1 are clamped at 0, and each is rescaled to a
    sum of at most ``limit``. The weight of the clean term of class c is C (1/C + lam0_c - mean lam0), initially 1; that
    of the robust term uses lam1. (The reduction ``normalised`` divides by the weights of the batch.) The radius is
    eps_c clip(exp(2 lam2_c), min_radius_factor, max_radius_factor); the step size is a quarter of the largest radius.
    "Reweight" is margin_rate = 0. "Remargin" is boundary = 0; it retains the clean weights, since a radius does not
    correct clean errors. The multipliers of a class without validation images do not change.

    Args:
        tolerance: the allowed excess of a class error over the mean, a fraction: 0.07, or 0.1 for reweight.
        rate: the step size of lam0, r1 in the paper.
        boundary: the step size of lam1 in multiples of ``rate``; 0 leaves the robust weights unchanged.
        margin_rate: the step size of lam2, r2 in the paper; 0 leaves the radii and step sizes unchanged.
        halve_every: number of epochs after which ``rate`` is halved, repeatedly.
        limit: the largest sum of lam0, and of lam1.
        min_radius_factor: the smallest factor of a radius.
        max_radius_factor: the largest factor of a radius.
    """

    source = ("xu2021robust, algorithm 2",)
    changes = ("radius", "weight")
    example = "frl:tolerance=0.07"

    tolerance: Share = 0.07
    rate: NonNegative = 0.05
    boundary: NonNegative = 2.0
    margin_rate: NonNegative = 0.2
    halve_every: Count = 40
    limit: Share = 0.5
    min_radius_factor: Positive = 0.98
    max_radius_factor: Positive = 3.0

    reads = frozenset({"valid.clean", "valid.robust"})
    needs = frozenset({"beta"})
    fine_tunes = True

    @property
    def weighted_terms(self) -> frozenset[Term]:
        """The clean term, which the constraint on clean errors needs."""
        return frozenset({"clean"})

    def start(self, classes: Classes) -> State:
        """All multipliers are 0."""
        zeros = torch.zeros(len(classes), device=classes.device)
        return {"clean": zeros, "robust": zeros.clone(), "margin": zeros.clone()}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the multipliers by the violations."""
        clean, robust = signals["valid.clean"].float(), signals["valid.robust"].float()
        clean_violation, boundary_violation = self._violation(1 - clean), self._violation(clean - robust)
        rate = self.rate * 0.5 ** (epoch // self.halve_every)
        return {
            "clean": self._limited(state["clean"] + rate * clean_violation),
            "robust": self._limited(state["robust"] + self.boundary * rate * boundary_violation),
            "margin": state["margin"] + self.margin_rate * boundary_violation,
        }

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Weights, radii and step sizes of the epoch."""
        after = apply_class_weights(before, self._weights(state["clean"]), ("clean",))
        after = apply_class_weights(after, self._weights(state["robust"]), ("robust",))
        if self.margin_rate == 0:
            return after
        assert before.epsilon is not None
        radii = before.epsilon * (2 * state["margin"]).exp().clamp(self.min_radius_factor, self.max_radius_factor)
        return dataclasses.replace(after, epsilon=radii, step_size=(radii.amax() / 4).expand(len(radii)))

    def _violation(self, error: Tensor) -> Tensor:
        """Violation of the constraint by each class, (C,); 0 where the error is NaN."""
        return (error - error.nanmean() - self.tolerance).nan_to_num(nan=0.0)

    def _limited(self, multipliers: Tensor) -> Tensor:
        """Clamp the multipliers at 0 and rescale them to a sum of at most ``limit``."""
        multipliers = multipliers.clamp_min(0)
        total = multipliers.sum()
        return torch.where(total > self.limit, multipliers * (self.limit / total.clamp_min(1e-12)), multipliers)

    @staticmethod
    def _weights(multipliers: Tensor) -> Tensor:
        """Compute C (1/C + lam_c - mean lam), (C,), with sum C."""
        return 1 + len(multipliers) * multipliers - multipliers.sum()
