"""The rows of outcomes: of clean images, of attacked images, and of images that an attack does not run on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Decision, Engine, Finished
from classwise.auditing.outcomes.files import REPEATS, REPORTED, Columns
from classwise.auditing.outcomes.meta import CLEAN
from classwise.core.compute.rng import CounterRNG
from classwise.core.compute.transfers import to_cpu
from classwise.data.images import Batch
from classwise.stats.metrics import confidence_variance
from classwise.threat.ball import Threat

OK, NAN, SKIPPED = "ok", "nan", "skipped"


def clean_rows(index: Tensor, y: Tensor, decision: Decision, passes: int = 1) -> Columns:
    """Rows of the clean images, from their indices (N,), labels (N,) and the decision over a number of passes."""
    columns = {**_of_logits(decision.logits, y, decision.prediction), "index": _numpy(index)}
    if passes > 1:
        columns[REPEATS] = _numpy(decision.repeats)
    others = {"epsilon": 0.0, "distance": 0.0, "iterations": 0, "forwards": passes, "backwards": 0}
    return _finished_rows(columns, others, CLEAN)


def attacked_rows(attack: str, done: Finished, threat: Threat, passes: int = 1) -> Columns:
    """Rows of images that an attack has finished; the radius of ``threat`` is one number or (N,).

    Args:
        attack: the attack's label.
        done: the images.
        threat: the threat.
        passes: number of passes of each decision.
    """
    epsilon = threat.epsilon
    tensors = {name: getattr(done, name) for name in ("index", "iterations", "forwards", "backwards")}
    tensors |= {"distance": threat.distance(done.x, done.x0), "logits": done.logits, "y": done.y}
    tensors |= {"prediction": done.prediction} | ({REPEATS: done.repeats} if passes > 1 else {})
    tensors |= {name: done.records[name] for name in REPORTED if name in done.records}
    tensors |= {"epsilon": epsilon} if isinstance(epsilon, Tensor) else {}
    measured = to_cpu({name: tensor.detach() for name, tensor in tensors.items()})
    columns = _of_logits(measured.pop("logits"), measured.pop("y"), measured.pop("prediction"))
    columns = {**columns, **{name: _numpy(tensor) for name, tensor in measured.items()}}
    return _finished_rows(columns, {} if "epsilon" in measured else {"epsilon": epsilon}, attack)


def carried_rows(
    attack: str, clean: pd.DataFrame, epsilon: NDArray[np.float64], reported: Collection[str] = ()
) -> Columns:
    """Rows of images that are misclassified without attack: the clean image, with zero steps and passes.

    Args:
        attack: the attack's label.
        clean: the images' rows of the clean pass.
        epsilon: the radius of each image.
        reported: the optional columns that the attack reports; they are 0, like the distance.
    """
    zeros = ("iterations", "forwards", "backwards", *(name for name in REPORTED if name in reported))
    values = {"attack": attack, "epsilon": epsilon, **dict.fromkeys(zeros, 0)}
    return {str(name): clean[name].to_numpy() for name in clean} | _filled(values, len(clean))


def skipped_rows(attack: str, removed: pd.DataFrame, epsilon: NDArray[np.float64]) -> Columns:
    """Rows of images that a cascade skips, from the rows of the attacks that succeeded on them."""
    values = {"attack": attack, "epsilon": epsilon, "correct": False, "status": SKIPPED, "forwards": 0, "backwards": 0}
    kept = ("index", "label", "first_success")
    return {name: removed[name].to_numpy() for name in kept} | _filled(values, len(removed))


def _filled(values: Mapping[str, Any], rows: int) -> dict[str, NDArray[Any]]:
    """The values as columns; one number or text is repeated in all rows."""
    return {
        name: np.full(rows, value, dtype=object if isinstance(value, str) else None) for name, value in values.items()
    }


def _finished_rows(columns: Columns, others: Mapping[str, Any], attack: str) -> Columns:
    """Columns with values of all rows, and with the attack that has succeeded."""
    correct = columns["correct"]
    first_success = np.array([attack, None], dtype=object)[correct.astype(np.int64)]
    return {**columns, **_filled({**others, "attack": attack}, len(correct)), "first_success": first_success}


def _of_logits(logits: Tensor, y: Tensor, prediction: Tensor) -> Columns:
    """The columns that are computed from float32 logits (N, C) and predictions (N,), each row from its own only."""
    values, label, predicted = _numpy(logits).astype(np.float64), _numpy(y), _numpy(prediction)
    rows = np.arange(len(label))
    valid = np.isfinite(values.max(axis=1))  # as in `classwise.models.logits.are_valid`
    values = np.where(valid[:, None], values, 0.0)
    confidence = special.softmax(values, axis=1)
    others = values.copy()
    others[rows, label] = -np.inf
    columns = {
        "prediction": predicted,
        "p_label": confidence[rows, label],
        "p_predicted": confidence[rows, predicted],
        "margin": values[rows, label] - others.max(axis=1),
        "confidence_variance": confidence_variance(confidence),
    }
    if values.shape[1] > 1:
        # As in torch.argmax, the first of equal logits ranks first, also of classes that are excluded by -inf.
        others = np.maximum(values, np.finfo(values.dtype).min)
        others[rows, others.argmax(axis=1)] = -np.inf
        columns["runner_up"] = others.argmax(axis=1)
    known = columns if valid.all() else {name: np.where(valid, column, np.nan) for name, column in columns.items()}
    correct = valid & (predicted == label)
    return known | {"label": label, "correct": correct, "status": np.where(valid, OK, NAN).astype(object)}


def _numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return array


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
    reference = engine.passes.reference(x)[pad] if attack.needs_reference else None
    restart = torch.zeros_like(pad)
    ball, rng = threat.of(pad, engine.device), CounterRNG(engine.seed, "attack")
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
