"""Traces: the confidences of a few images at every step of an attack."""

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
    """Record the confidences of images at every step of the first restart of an attack.

    Args:
        engine: an engine of the model.
        label: the attack's label.
        attack: the attack.
        batch: the images.
        threat: the ball; its radius is one number, or one for each image.

    Returns:
        A row for each image, step (0 is the initial point) and class: ``index``, ``attack``, ``iteration``, ``class``,
        ``confidence`` (softmax of float32 logits).
    """
    index, x, y = (tensor.to(engine.device) for tensor in batch)
    # As many rows as in the passes of the engine, so that the arithmetic is the same.
    pad = torch.arange(max(engine.batch_size, len(x)), device=engine.device) % len(x)
    epsilon = threat.epsilon
    ball = threat.with_epsilon(epsilon.to(engine.device)[pad]) if isinstance(epsilon, Tensor) else threat
    reference = engine.passes.reference(x)[pad] if attack.needs_reference else None
    restart = torch.zeros_like(pad)
    rng = CounterRNG(engine.seed, "attack")
    inputs = AttackInputs(x[pad], y[pad], index[pad], ball, rng, reference=reference, restart=restart)
    confidences = []
    with engine.forward_for(attack, x) as model:
        state = attack.start(model, inputs)
        for step in range(attack.length + 1):
            confidences.append(engine.passes.logits(state["x"])[: len(x)].double().softmax(1).cpu().numpy())
            if step < attack.length:
                state = attack.step(model, inputs, state)
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
