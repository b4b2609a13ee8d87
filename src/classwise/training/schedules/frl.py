"""Fair robust learning (Xu et al., ICML 2021): errors of a class above the average raise its weights and its radius."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.config import Count, NonNegative, Positive, Share, configurable
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class FRL(ClassSchedule):
    """Multipliers of the constraint that no class errs by more than ``tolerance`` above the mean of the classes.

    After each epoch, on the validation split, the clean error e0 and the boundary error e1 (right when clean, wrong
    under attack) of class c violate by g = e_c - mean e - tolerance. Then lam0 += rate g0, lam1 += boundary rate g1 and
    lam2 += margin_rate g1; lam0 and lam1 are clamped at 0 and each rescaled to a sum of at most ``limit``. The clean
    term of class c weighs 1/C + lam0_c - mean lam0, times C so that all weights are 1 at first (the reduction
    ``normalised`` divides by the weights of the batch); the robust term likewise by lam1. The radius becomes
    eps_c clip(exp(2 lam2_c), narrowest, widest), and every step of the attack a quarter of the largest radius.
    "Reweight" is margin_rate 0, "remargin" is boundary 0: the clean weights stay, since a radius does not correct
    clean errors. The multipliers of a class without validation images do not change.

    Args:
        tolerance: how far above the mean an error may be, a fraction: 0.07; 0.1 where only the weights change.
        rate: r1 of the paper.
        boundary: the rate of lam1, in multiples of ``rate``; 0 leaves the robust weights alone.
        margin_rate: r2 of the paper; 0 leaves radii and steps alone.
        halve_every: epochs after which ``rate`` halves, each time.
        limit: the largest sum of lam0, and of lam1.
        narrowest: the smallest factor of a radius.
        widest: the largest factor of a radius.
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
    narrowest: Positive = 0.98
    widest: Positive = 3.0

    reads = frozenset({"valid.clean", "valid.robust"})
    needs_beta = True
    fine_tunes = True

    @property
    def weighs(self) -> frozenset[Term]:
        """The clean term: a constraint on clean errors needs one."""
        return frozenset({"clean"})

    def start(self, classes: Classes) -> State:
        """No constraint binds yet."""
        zeros = torch.zeros(len(classes), device=classes.device)
        return {"clean": zeros, "robust": zeros.clone(), "margin": zeros.clone()}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """One step of the multipliers along the violations."""
        clean, robust = signals["valid.clean"].float(), signals["valid.robust"].float()
        errs, crosses = self._violation(1 - clean), self._violation(clean - robust)
        rate = self.rate * 0.5 ** (epoch // self.halve_every)
        return {
            "clean": self._limited(state["clean"] + rate * errs),
            "robust": self._limited(state["robust"] + self.boundary * rate * crosses),
            "margin": state["margin"] + self.margin_rate * crosses,
        }

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The weights, radii and steps of this epoch."""
        del epoch
        after = apply_class_weights(before, self._weights(state["clean"]), ("clean",))
        after = apply_class_weights(after, self._weights(state["robust"]), ("robust",))
        if self.margin_rate == 0:
            return after
        assert before.epsilon is not None
        radii = before.epsilon * (2 * state["margin"]).exp().clamp(self.narrowest, self.widest)
        return dataclasses.replace(after, epsilon=radii, step_size=(radii.amax() / 4).expand(len(radii)))

    def _violation(self, error: Tensor) -> Tensor:
        """How far each error is above the mean and the tolerance; 0 where it is not known."""
        return (error - error.nanmean() - self.tolerance).nan_to_num(nan=0.0)

    def _limited(self, multipliers: Tensor) -> Tensor:
        """None below 0, all together at most the limit."""
        multipliers = multipliers.clamp_min(0)
        total = multipliers.sum()
        return torch.where(total > self.limit, multipliers * (self.limit / total.clamp_min(1e-12)), multipliers)

    @staticmethod
    def _weights(multipliers: Tensor) -> Tensor:
        """C times the paper's 1/C + lam_c - mean lam; they sum to C."""
        return 1 + len(multipliers) * multipliers - multipliers.sum()
