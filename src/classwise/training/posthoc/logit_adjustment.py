"""Post-hoc logit adjustment: a constant per class is added to the logits of a trained classifier.

The constants equalise the class-wise robust accuracy on the validation split. This rule is ours; Menon et al., ICLR
2021, compute the constants from class frequencies.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.core.compute.precision import check_device
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import check_writable
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Spec, make
from classwise.data import Images
from classwise.models import save_weights
from classwise.models.base import Classifier, bare
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from classwise.threat.ball import Threat
from classwise.training.folder import Run, Which
from classwise.training.posthoc.validation import check_predictions, robust_counts, validation_split, writing_into
from classwise.training.start_models import interpolated_with, starts_of

RATES = (0.3, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15)
"""The step size of each round: change of a constant per unit of accuracy below the mean."""


@dataclass(frozen=True)
class LogitAdjustment:
    """The result of `adjust_logits`.

    Args:
        path: the file of the adjusted model.
        constants: the constant added to the logit of each class, (C,).
        classes: a row per class with its label, class, n, adjustment and robust accuracy on the validation split:
            ``before`` without constants; ``fitted`` with those of the file, too high, since the same images chose
            them; ``robust`` cross-fitted, so that no image is attacked under constants that it chose (NaN without
            folds). ``before_low`` and ``before_high`` cover all classes simultaneously at 95 %, for new images.
            ``robust_low`` and ``robust_high`` are the same intervals of the counts added over the folds: for the mean
            accuracy under the constants of the folds, not for those of the file. They are approximate for both, and
            too short for those of the file where some classes have few images or small changes of a constant move
            many images.
        rounds: a row per round and class: robust accuracy on the validation split and the constant, both before the
            update of the round; the rows of the last round are those of the saved model.
    """

    path: Path
    constants: Tensor
    classes: pd.DataFrame
    rounds: pd.DataFrame


@checked
def adjust_logits(
    run: str | Path | Run,
    *,
    which: Which | None = None,
    data: Images | None = None,
    attack: Spec = "pgd:steps=8,step_size=0.25eps,objective=margin",
    rates: Sequence[float] = RATES,
    folds: int = 5,
    out: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LogitAdjustment:
    """Equalise the class-wise robust accuracy of a trained classifier by a constant per logit, and save the model.

    Each round attacks the validation split of the run and adds rate * (mean accuracy - accuracy of class c) to b_c,
    with accuracies as fractions, over the classes with images in the split; the other constants are 0. The constants
    are added to the bias of the last layer; no weight is trained. This is a baseline for fair training.

    The constants equalise the classes under the attack that fits them. Another attack may find another class weaker:
    docs/reference/frontier.md.

    Accuracies on images that chose the constants are too high. In cross-fitting, the images of each fold are attacked
    with constants fitted on the other folds; this takes len(rates) more attacks on the split for each fold.

    Args:
        run: the run, or its folder.
        which: the saved weights to use; None for `Run.default_weights`.
        data: the training images, if the run was trained on images instead of a named data set.
        attack: the attack on the validation split, with the radius of the run.
        rates: the step size of each round.
        folds: the folds of cross-fitting, 2 or more, stratified by class; 0 for none. A split with fewer images per
            class has as many folds as its largest class has images.
        out: the file to write; by default ``checkpoints/adjusted.safetensors`` of the run.
        device: the device to compute on.
        progress: receives progress.

    Returns:
        The file, the constants, and the accuracies by class and by round.

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
        ...     found = cw.adjust_logits(run, attack="pgd:steps=2", rates=[0.3], folds=0)
        >>> found.path.name, len(found.constants)
        ('adjusted.safetensors', 10)
    """
    run = run if isinstance(run, Run) else Run.open(run)
    check_device(device)
    rates = list(rates)
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ClasswiseError(f"rates = {rates} must be positive numbers, one per round, such as 0.3,0.15")
    if folds < 0 or folds == 1:
        raise ClasswiseError(f"folds = {folds} must be 2 or more, or 0 for no cross-fitting")
    member = make(ATTACKS, attack)
    which = run.chosen_weights(which)
    path = Path(out) if out is not None else run.weights_file("adjusted")
    check_writable(path)
    with writing_into(run, path):
        threat, listener = Threat.parse(str(run.recipe.threat)), progress or NullProgress()
        starts = starts_of(run, run.weights_file(which))
        valid = validation_split(run, data, starts, listener).to(torch.device(device))
        model = copy.deepcopy(run.model(which)).to(device)
        check_predictions(model, valid, run.recipe)
        folds = min(folds, int(valid.class_counts().max()))
        listener.start("logit adjustment", (len(rates) + 1) * (1 + folds * (folds > 1)))
        fit = _Fit(model, lambda images: robust_counts(model, images, member, threat, run.recipe), rates, listener)
        robust = fit.cross_fitted(valid, folds) if folds > 1 else None
        constants, counts = fit.rounds(valid)
        _save(run, which, model, constants[-1], path)
    columns = {"label": range(valid.num_classes), "class": valid.class_names}
    rounds = [
        pd.DataFrame({"round": turn, **columns, "robust": each_round.accuracy, "adjustment": added.cpu()})
        for turn, (added, each_round) in enumerate(zip(constants, counts, strict=True))
    ]
    classes = pd.DataFrame({**columns, "n": counts[0].count, "adjustment": constants[-1].cpu()})
    classes = classes.assign(**_with_interval("before", counts[0]), fitted=counts[-1].accuracy)
    classes = classes.assign(**_with_interval("robust", robust))
    return LogitAdjustment(path, constants[-1].cpu(), classes, pd.concat(rounds, ignore_index=True))


class _Fit:
    """Fits the constants of a model to images.

    Args:
        model: the model; only the bias of its last layer changes.
        attack: counts the images that the model classifies correctly under the attack.
        rates: the step size of each round.
        progress: receives a step after each attack.
    """

    def __init__(
        self, model: nn.Module, attack: Callable[[Images], ClassCounts], rates: Sequence[float], progress: Progress
    ) -> None:
        self._bias = _bias(model)
        self._trained = self._bias.detach().clone()
        self._attack, self._rates, self._progress = attack, rates, progress

    def rounds(self, images: Images) -> tuple[list[Tensor], list[ClassCounts]]:
        """Fit, and return the constants before each round and after the last, with the counts under each."""
        constants, counts = self._constants(images)
        return constants, [*counts, self._counts(images, constants[-1])]

    def cross_fitted(self, images: Images, folds: int) -> ClassCounts:
        """Return the counts of each fold under the constants of the other folds, added."""
        fold = _folds(images.y, folds)
        parts = []
        for number in range(folds):
            constants, _ = self._constants(images.take((fold != number).nonzero().flatten()))
            parts.append(self._counts(images.take((fold == number).nonzero().flatten()), constants[-1]))
        return functools.reduce(operator.add, parts)

    def _constants(self, images: Images) -> tuple[list[Tensor], list[ClassCounts]]:
        """Return the constants before each round and after the last, and the counts of each round."""
        constants, counts = [torch.zeros_like(self._trained)], []
        for rate in self._rates:
            counts.append(self._counts(images, constants[-1]))
            robust = torch.tensor(counts[-1].accuracy, dtype=self._trained.dtype, device=self._trained.device)
            constants.append(constants[-1] + rate * (robust.nanmean() - robust).nan_to_num(0.0))
        return constants, counts

    def _counts(self, images: Images, constants: Tensor) -> ClassCounts:
        with torch.no_grad():
            self._bias.copy_(self._trained + constants)
        counts = self._attack(images)
        self._progress.advance(1)
        return counts


def _folds(labels: Tensor, folds: int) -> Tensor:
    """Number of the fold of each image, (N,): the images of each class take turns."""
    fold = torch.empty_like(labels)
    for label in range(int(labels.max()) + 1):
        rows = (labels == label).nonzero().flatten()
        fold[rows] = torch.arange(len(rows), device=labels.device) % folds
    return fold


def _with_interval(name: str, counts: ClassCounts | None) -> dict[str, Any]:
    """Columns of an accuracy and its simultaneous 95 % interval; NaN without counts."""
    if counts is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    low, high = class_intervals(counts, simultaneous=True)
    return {name: counts.accuracy, f"{name}_low": low, f"{name}_high": high}


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
