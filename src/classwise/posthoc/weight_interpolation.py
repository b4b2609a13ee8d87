"""Weight interpolation (WiSE-FT, Wortsman et al., CVPR 2022) between a model and its fine-tuned version."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.auditing.evaluation.evaluation import Computed
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.plan import chosen_arithmetic
from classwise.auditing.run.suite import Choice
from classwise.core.errors import ClasswiseError
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import checked
from classwise.data.stream import as_data
from classwise.models import load_model, save_weights
from classwise.models.base import bare
from classwise.models.loading.references import is_stored
from classwise.models.logits import AdjustedLogits, as_logits
from classwise.models.modes import evaluating
from classwise.posthoc.fitting import FitInputs, FitTarget, check_model_is_storable, data_of, fit_inputs
from classwise.threat.ball import ThreatLike
from classwise.training.averaging import blend
from classwise.training.folder import Which
from classwise.training.selection import by_number_of_classes

SHARES = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)
"""The default interpolation coefficients, with the initial and the fine-tuned model themselves."""


@dataclass(frozen=True)
class WeightInterpolation:
    """The result of `interpolate_weights`.

    Args:
        model: the interpolated model, a copy.
        share: the selected interpolation coefficient, the weight of the fine-tuned model.
        tried: a row per coefficient and class: robust accuracy on the images of the fit, and the score.
        path: the file of the interpolated model; None if none was written.
    """

    model: nn.Module = field(repr=False)
    share: float
    tried: pd.DataFrame
    path: Path | None = None


@checked
@evaluates
def interpolate_weights(
    model: Model,
    start: Model | None = None,
    data: Any = None,
    threat: ThreatLike | None = None,
    *,
    which: Which | None = None,
    shares: Sequence[float] = SHARES,
    attack: Choice = "pgd:steps=10,step_size=0.25eps",
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[Computed],
) -> WeightInterpolation:
    """Interpolate between the weights of an initial and a fine-tuned model, and select the best interpolation.

    For each coefficient a, the weights are a * fine-tuned + (1 - a) * initial, including the statistics of batch
    normalisation. The selected model has the highest overall plus worst-class robust accuracy on the images (the first
    of ties); with more than 20 classes, plus the mean of the worst fifth of the classes. No weight is trained.

    Accuracies on the images that select a coefficient are too high: audit the interpolated model on other images.

    Args:
        model: the fine-tuned model: any that `classwise.audit` takes, such as a module; or a run or its folder, which
            is evaluated on its validation split.
        start: the initial model, of the same architecture: a run folder or a file of weights, which are loaded into a
            copy of the fine-tuned model, or any other model. None: the ``model.weights`` of the run's recipe.
        data: the images, as `classwise.audit` takes them, neither training images nor those of a later audit. With a
            run: its training images, if it was trained on images instead of a named data set.
        threat: the ball of the attack, such as ``"Linf:8/255"``. None: that of the run, or the usual one of a named
            data set.
        which: the saved weights of a run to use; None for `Run.default_weights`.
        shares: the interpolation coefficients, each in [0, 1]: 0 is the initial model, 1 the fine-tuned one.
        attack: the attack on the images.
        out: the file to write (safetensors). None: no file; with a run, its ``checkpoints/interpolated.safetensors``.
        progress: True shows a progress bar; or a listener.
        **options: see `Computed`.

    Returns:
        The interpolated model, the selected coefficient, and the accuracies for each coefficient.

    Raises:
        ClasswiseError: as `classwise.audit` does; if the initial model is unknown or of another architecture, or has
            no weights; for a model with a logit adjustment; for a model without a run and without images; if the run
            has no validation split, a start model was trained on it, or the images differ from those of the run; if
            the model cannot be saved in ``out``; or if the file is in the run folder and another process uses the
            folder.

    Example:
        >>> import copy
        >>> import classwise as cw
        >>> images = cw.load_data("digits", split="train", subset=60)  # better: images of no training
        >>> tuned = cw.load_model("small-cnn", data=images, width=0.1)  # or any nn.Module
        >>> start = copy.deepcopy(tuned)
        >>> found = cw.interpolate_weights(tuned, start, images, "Linf:0.1", shares=[0.3, 0.5], attack="pgd:steps=2")
        >>> found.share, found.tried["share"].nunique()
        (0.3, 2)
    """
    shares = list(shares)
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ClasswiseError(f"shares = {shares} must be numbers from 0 to 1, such as 0.3,0.5,0.7")
    target = FitTarget.of(model, data, which, out, "interpolated")
    run, path = target.run, target.path
    start = run.recipe.model.weights if run is not None and start is None else start
    if start is None:
        raise ClasswiseError(
            "start is required for a model that is not a run; give the initial model"
            if run is None
            else f"{run.path} started from random weights; give the initial model as start (--start)"
        )
    with target.writing(), listening(progress) as listener, chosen_arithmetic(options.get("precision")):
        data = as_data(data) if run is None else data
        tuned = _copy(_module(model, data) if run is None else run.model(target.which))
        initial = _weights_of_start(start, tuned, None if run is not None else data)
        stored = [os.fspath(start)] if isinstance(start, str | os.PathLike) else []
        inputs = fit_inputs(target, tuned, data, threat, attack, options, listener, stored)
        share, tried = _selected(inputs, initial, shares, listener)
        if path is not None:
            save_weights(path, inputs.model, _metadata(target, stored, inputs, share))
    return WeightInterpolation(inputs.model, share, pd.DataFrame(tried), path)


def _selected(
    inputs: FitInputs, initial: Mapping[str, Tensor], shares: Sequence[float], progress: Progress
) -> tuple[float, list[dict[str, Any]]]:
    """Set the weights of the best interpolation; return its coefficient, and a row per coefficient and class."""
    model = inputs.model
    tuned = {name: value.detach().clone() for name, value in model.state_dict().items()}
    initial = {name: value.to(tuned[name].device) for name, value in initial.items()}
    best, chosen, rows = float("-inf"), shares[0], []
    progress.start("interpolation", len(shares))
    with evaluating(model):
        for share in shares:
            model.load_state_dict(blend(tuned, initial, share))
            counts = inputs.robust_counts(model)
            robust = torch.tensor(counts.accuracy, dtype=torch.float32)
            score = by_number_of_classes(robust, torch.tensor(counts.count))
            if score > best:
                best, chosen = score, share
            rows += [
                {"share": share, "score": score, "label": label, "class": name, "robust": value}
                for label, (name, value) in enumerate(zip(inputs.images.class_names, robust.tolist(), strict=True))
            ]
            progress.advance(1)
    model.load_state_dict(blend(tuned, initial, chosen))
    return chosen, rows


def _copy(model: nn.Module) -> nn.Module:
    """A copy of a model whose weights can be interpolated.

    Raises:
        ClasswiseError: for a logit adjustment, or a model without a state dict of its weights.
    """
    if isinstance(model, AdjustedLogits):
        raise ClasswiseError("the model has a logit adjustment; interpolate first, and adjust the interpolated model")
    check_model_is_storable(model)
    return copy.deepcopy(model)


def _module(model: Model, data: Any) -> nn.Module:
    """A model as a module that returns logits."""
    return load_model(model, data=data) if isinstance(model, str | os.PathLike) else as_logits(model)


def _weights_of_start(start: Any, tuned: nn.Module, data: Any) -> Mapping[str, Tensor]:
    """The state dict of the initial model, with the names of the fine-tuned one.

    Raises:
        ClasswiseError: if the models have other tensors.
    """
    if isinstance(start, str | os.PathLike) and (data is None or is_stored(start)):
        initial = load_model(copy.deepcopy(tuned), weights=start)
    else:
        initial = _module(start, data)
    if isinstance(initial, AdjustedLogits):
        raise ClasswiseError("the initial model has a logit adjustment; give the weights that it was fitted to")
    own, others = tuned.state_dict(), initial.state_dict()
    for name in {**own, **others}:
        shapes = [tuple(weights[name].shape) if name in weights else "missing" for weights in (own, others)]
        if shapes[0] != shapes[1]:
            raise ClasswiseError(
                f"the initial model has another architecture ({type(bare(initial)).__name__}) than the fine-tuned one "
                f"({type(bare(tuned)).__name__}): {name} is {shapes[1]} in the first and {shapes[0]} in the second"
            )
    return others


def _metadata(target: FitTarget, start: Sequence[str], inputs: FitInputs, share: float) -> dict[str, Any]:
    """The metadata of the file: of the run, the start, the images and the coefficient."""
    of_run = {} if target.run is None else {"recipe": target.run.recipe.name, "interpolation_of": target.which}
    return {**of_run, **({"start": start[0]} if start else {}), **data_of(inputs), "share": share}
