"""Traces: how the confidences of a few images move, step by step, while they are attacked."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data.images import Batch


def trace_rows(engine: Engine, label: str, attack: Attack, batch: Batch, threat: Threat) -> pd.DataFrame:
    """Follow the first start of an attack on some images to its last step.

    Returns:
        A row for each image, step (0 is the start) and class: ``index``, ``attack``, ``iteration``, ``class``,
        ``confidence`` (softmax of float32 logits).
    """
    index, x, y = (tensor.to(engine.device) for tensor in batch)
    # As many rows as in the engine's own passes, so that the arithmetic is the same.
    pad = torch.arange(max(engine.batch_size, len(x)), device=engine.device) % len(x)
    epsilon = threat.epsilon
    ball = threat.with_epsilon(epsilon.to(engine.device)[pad]) if isinstance(epsilon, Tensor) else threat
    reference = engine.passes.logits(x)[pad] if attack.needs_reference else None
    restart = torch.zeros_like(pad)
    rng = CounterRNG(engine.seed, "attack")
    case = AttackInputs(x[pad], y[pad], index[pad], ball, rng, reference=reference, restart=restart)
    confidences = []
    with engine.forward_for(attack) as model:
        state = attack.start(model, case)
        for step in range(attack.length + 1):
            confidences.append(engine.passes.logits(state["x"])[: len(x)].double().softmax(1).cpu().numpy())
            if step < attack.length:
                state = attack.step(model, case, state)
    values = np.stack(confidences, axis=1)
    images, steps, classes = values.shape
    return pd.DataFrame(
        {
            "index": np.repeat(index.cpu().numpy(), steps * classes),
            "attack": pd.Series(label, index=range(values.size), dtype="string"),
            "iteration": np.tile(np.repeat(np.arange(steps), classes), images),
            "class": np.tile(np.arange(classes), images * steps),
            "confidence": values.reshape(-1),
        }
    )
