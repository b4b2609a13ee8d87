"""Post-hoc logit adjustment: a constant per class, added to the logits of a trained classifier.

The constants equalise the robust accuracies on the validation split. The rule is ours; adding a constant per class is
Menon et al., ICLR 2021, who derive it from class frequencies.
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
from classwise.training.posthoc.validation import chosen_weights, robust_accuracy, validation_split, writing_into

RATES = (0.3, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15)
"""How far a round moves the constants for each unit of accuracy that a class lies below the mean."""


@dataclass(frozen=True)
class LogitAdjustment:
    """The result of `adjust_logits`.

    Args:
        path: the file of the model with the constants inside.
        constants: what each class's logit gained, (C,).
        rounds: a row per round and class: robust accuracy on the validation split before the round's change, and the
            constant then in force; the last round's rows are those of the saved model.
    """

    path: Path
    constants: Tensor
    rounds: pd.DataFrame


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
    """Add a constant to each logit of a trained classifier so that its classes are equally robust, and save the result.

    Each round attacks the run's own validation split and moves b_c by rate * (mean accuracy - accuracy of class c),
    accuracies as fractions, over the classes with images in the split; the constants of the others stay 0. The
    constants become part of the bias of the last layer; no weight is trained. This is the baseline for fair training.

    Args:
        run: the run, or its folder.
        which: which of its saved models; None for `Run.default_weights`.
        data: the training images, where the run was given them itself.
        attack: what the validation split is attacked with, at the run's radius.
        rates: how far each round moves.
        out: the file to write; by default ``checkpoints/adjusted.safetensors`` of the run.
        device: where to compute.
        progress: the progress display.

    Raises:
        ClasswiseError: if the run has no validation split, its images are others than these, or the model's last layer
            is not known or has no bias, or there is no such device; or if the file is for the run's folder and another
            process uses that.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    check_device(device)
    rates = list(rates)
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ClasswiseError(f"rates = {rates}: give one positive number a round, such as 0.3,0.15")
    member = make(ATTACKS, attack)
    which = chosen_weights(run, which)
    path = Path(out) if out is not None else run.weights_file("adjusted")
    check_writable(path)
    with writing_into(run, path):
        valid = validation_split(run, data).to(torch.device(device))
        model = copy.deepcopy(run.model(which)).to(device)
        bias = _bias(model)
        trained, names = bias.detach().clone(), valid.class_names
        threat, listener = Threat.parse(str(run.recipe.threat)), progress or NullProgress()
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
    """Save the model with the metadata of its run and the constants."""
    about = {
        "recipe": run.recipe.name,
        "class_names": run.data["classes"],
        "adjusted_from": which,
        "adjustment": [round(value, 6) for value in constants.tolist()],
    }
    save_weights(path, model, about)


def _bias(model: nn.Module) -> nn.Parameter:
    """The bias of the last layer: a constant added to it is one added to the logit."""
    network = bare(model)
    layer = network.classifier if isinstance(network, Classifier) else None
    if layer is None or layer.bias is None:
        kind = type(network).__name__
        raise ClasswiseError(
            f"{kind} has no last linear layer with a bias to hold the constants; use a model of the zoo"
        )
    return layer.bias
