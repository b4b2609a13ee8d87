"""Post-hoc logit adjustment: a constant per class is added to the logits of a trained classifier.

The constants equalise the class-wise robust accuracy on the validation split. This rule is ours; Menon et al., ICLR
2021, compute the constants from class frequencies.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.core.arguments import checked
from classwise.core.config import Spec, make
from classwise.core.errors import ClasswiseError
from classwise.core.precision import check_device
from classwise.core.progress import NullProgress, Progress
from classwise.core.storage import check_writable
from classwise.core.threat import Threat
from classwise.data import Images
from classwise.models import save_weights
from classwise.models.base import Classifier, bare
from classwise.training.folder import Run, Which
from classwise.training.posthoc.validation import robust_accuracy, validation_split, writing_into
from classwise.training.start_models import interpolated_with, starts_of

RATES = (0.3, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15)
"""The step size of each round: change of a constant per unit of accuracy below the mean."""


@dataclass(frozen=True)
class LogitAdjustment:
    """The result of `adjust_logits`.

    Args:
        path: the file of the adjusted model.
        constants: the constant added to the logit of each class, (C,).
        rounds: a row per round and class: robust accuracy on the validation split and the constant, both before the
            update of the round; the rows of the last round are those of the saved model.
    """

    path: Path
    constants: Tensor
    rounds: pd.DataFrame


@checked
def adjust_logits(
    run: str | Path | Run,
    *,
    which: Which | None = None,
    data: Images | None = None,
    attack: Spec = "pgd:steps=8,step_size=0.25eps",
    rates: Sequence[float] = RATES,
    out: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LogitAdjustment:
    """Equalise the class-wise robust accuracy of a trained classifier by a constant per logit, and save the model.

    Each round attacks the validation split of the run and adds rate * (mean accuracy - accuracy of class c) to b_c,
    with accuracies as fractions, over the classes with images in the split; the other constants are 0. The constants
    are added to the bias of the last layer; no weight is trained. This is a baseline for fair training.

    Args:
        run: the run, or its folder.
        which: the saved weights to use; None for `Run.default_weights`.
        data: the training images, if the run was trained on images instead of a named data set.
        attack: the attack on the validation split, with the radius of the run.
        rates: the step size of each round.
        out: the file to write; by default ``checkpoints/adjusted.safetensors`` of the run.
        device: the device to compute on.
        progress: receives progress.

    Returns:
        The file, the constants, and the accuracies of each round.

    Raises:
        ClasswiseError: if the run has no validation split, a start model was trained on it, the images differ from
            those of the run, the last layer of the model is unknown or has no bias, the device does not exist, or the
            file is in the run folder and another process uses the folder.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = cw.train("at", data="digits", out=f"{folder}/at", overrides=small, epochs=1)
        ...     found = cw.adjust_logits(run, attack="pgd:steps=2", rates=[0.3])
        >>> found.path.name, len(found.constants)
        ('adjusted.safetensors', 10)
    """
    run = run if isinstance(run, Run) else Run.open(run)
    check_device(device)
    rates = list(rates)
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ClasswiseError(f"rates = {rates} must be positive numbers, one per round, such as 0.3,0.15")
    member = make(ATTACKS, attack)
    which = run.chosen_weights(which)
    path = Path(out) if out is not None else run.weights_file("adjusted")
    check_writable(path)
    with writing_into(run, path):
        threat, listener = Threat.parse(str(run.recipe.threat)), progress or NullProgress()
        starts = starts_of(run, run.weights_file(which))
        valid = validation_split(run, data, starts, listener).to(torch.device(device))
        model = copy.deepcopy(run.model(which)).to(device)
        bias = _bias(model)
        trained, names = bias.detach().clone(), valid.class_names
        constants, rows = torch.zeros_like(trained), []
        listener.start("logit adjustment", len(rates) + 1)
        for turn, rate in enumerate([*rates, 0.0]):
            robust = robust_accuracy(model, valid, member, threat, run.recipe)
            columns = (names, robust.tolist(), constants.tolist())
            rows += [
                {"round": turn, "label": label, "class": name, "robust": share, "adjustment": constant}
                for label, (name, share, constant) in enumerate(zip(*columns, strict=True))
            ]
            constants = constants + rate * (robust.nanmean() - robust).nan_to_num(0.0)
            with torch.no_grad():
                bias.copy_(trained + constants)
            listener.advance(1)
        _save(run, which, model, constants, path)
    return LogitAdjustment(path, constants.cpu(), pd.DataFrame(rows))


def _save(run: Run, which: Which, model: nn.Module, constants: Tensor, path: Path) -> None:
    """Save the model with the metadata of the run and the constants."""
    start = interpolated_with(run.weights_file(which))
    metadata = {
        **({} if start is None else {"start": start}),
        "recipe": run.recipe.name,
        "class_names": run.data["classes"],
        "adjusted_from": which,
        "adjustment": [round(value, 6) for value in constants.tolist()],
    }
    save_weights(path, model, metadata)


def _bias(model: nn.Module) -> nn.Parameter:
    """Return the bias of the last layer; a constant added to it is added to the logit."""
    network = bare(model)
    layer = network.classifier if isinstance(network, Classifier) else None
    if layer is None or layer.bias is None:
        kind = type(network).__name__
        raise ClasswiseError(f"{kind} has no known last linear layer with a bias; use a model of the zoo")
    return layer.bias
