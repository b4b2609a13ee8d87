"""The precision of gradients that an audit has if none was asked for: bfloat16, unless it fails or is slower."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import value_and_gradient
from classwise.auditing.run.plan import Plan
from classwise.core.compute.precision import FLOAT32, precision_of
from classwise.core.compute.rng import generators_restored
from classwise.core.errors import ClasswiseError, first_line
from classwise.models.modes import evaluating

WORTHWHILE = 50_000
"""Steps of single images, at most, from which the precisions are timed: 2,500 images of PGD-20, 8 of AutoAttack."""
TIMED_ROUNDS = 3
FASTER = 1.25
"""Ratio of times from which float32 is chosen, so that a repetition chooses it again."""
LEAST_SECONDS = 0.005
"""Duration of a bfloat16 pass from which it is not mostly overhead."""


def in_float32_if_needed(plan: Plan, model: nn.Module, x: Tensor) -> tuple[Plan, str]:
    """The plan, in float32 if a model fails in bfloat16, such as an int8 one, and no precision was asked for; and why.

    Args:
        plan: the plan.
        model: the model, on its device.
        x: one image (1, C, H, W) on that device.

    Raises:
        ClasswiseError: if the model fails in bfloat16 and that was asked for.
    """
    if plan.precision.dtype != "bfloat16":
        return plan, ""
    try:
        with evaluating(model), torch.no_grad(), generators_restored(x.device):
            plan.precision.forward(model)(x)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # code of the user, which has succeeded in float32
        reason = f"the model fails in bfloat16 ({first_line(error)})"
        if precision_of(plan.asked["precision"]) is not None:
            raise ClasswiseError(f"{reason}; use precision=float32") from error
        return replace(plan, precision=FLOAT32), f"gradients are computed in float32: {reason}"
    return plan, ""


def in_float32_if_faster(
    plan: Plan, model: nn.Module, x: Tensor, attacks: Iterable[Attack], images: int | None
) -> tuple[Plan, str]:
    """The plan, in float32 if that is clearly faster for the model on this CPU and no precision was asked for; and why.

    Some networks, such as those with depthwise convolutions, are slower in bfloat16 on processors that multiply it.
    Several processes do not measure, since each could choose another precision.

    Args:
        plan: the plan.
        model: the model, on its device, whose logits have gradients.
        x: images (N, C, H, W) on that device, of which gradients are timed.
        attacks: the attacks.
        images: number of images of the audit; None: unknown.
    """
    steps = (images or 0) * sum(attack.total_length for attack in attacks)
    automatic = plan.asked["precision"] is None and plan.precision.dtype == "bfloat16" and x.device.type == "cpu"
    alone = not (dist.is_available() and dist.is_initialized())
    if not (automatic and alone and steps >= WORTHWHILE):
        return plan, ""
    lower, exact = (seconds(replace(plan, precision=precision), model, x) for precision in (plan.precision, FLOAT32))
    if lower < max(FASTER * exact, LEAST_SECONDS):
        return plan, ""
    note = "gradients are computed in float32: bfloat16 is slower for this model on this processor"
    return replace(plan, precision=FLOAT32), note


def seconds(plan: Plan, model: nn.Module, x: Tensor) -> float:
    """The shortest of some gradient passes of images (N, C, H, W), in the precision of a plan.

    It is the time of the process on the processor, so that other processes do not decide the precision.
    """
    passes, times = plan.engine(model, len(x)).passes, list[float]()
    with generators_restored(x.device), passes.for_gradients(x, precise=False) as forward, forward.arithmetic():
        for _ in range(1 + TIMED_ROUNDS):  # the first one warms up
            begun = time.process_time()
            value_and_gradient(forward, x, lambda logits: logits.sum(1))
            times.append(time.process_time() - begun)
    return min(times[1:])
