"""Post-hoc logit adjustment: a constant per class is added to the logits of a trained classifier.

The constants equalise the class-wise robust accuracy on images of the fit. This rule is ours; Menon et al., ICLR
2021, compute the constants from class frequencies.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
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
from classwise.data import Images
from classwise.data.duplicates import content_hashes
from classwise.models import save_weights
from classwise.models.logits import AdjustedLogits
from classwise.models.modes import evaluating
from classwise.posthoc.fitting import FitInputs, FitTarget, data_of, fit_inputs
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from classwise.threat.ball import ThreatLike
from classwise.training.folder import Which
from classwise.training.start_models import interpolated_with

RATES = (0.3, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15)
"""The step size of each round: change of a constant per unit of accuracy below the mean."""
FEW_IMAGES = 20
"""Images of a class below which the constants are said to be uncertain: its accuracy is known to about 20 points."""


@dataclass(frozen=True)
class LogitAdjustment:
    """The result of `adjust_logits`.

    Args:
        model: the adjusted model, a `classwise.models.AdjustedLogits` around the given one, whose weights it shares.
        constants: the constant added to the logit of each class, (C,).
        classes: a row per class with its label, class, n, adjustment and robust accuracy on the images of the fit:
            ``before`` without constants; ``fitted`` with those of the model, too high, since the same images chose
            them; ``robust`` cross-fitted, so that no image is attacked under constants that it chose (NaN without
            folds). ``before_low`` and ``before_high`` cover all classes simultaneously at 95 %, for new images.
            ``robust_low`` and ``robust_high`` are the same intervals of the counts added over the folds: for the mean
            accuracy under the constants of the folds, not for those of the model. They are approximate for both, and
            too short for those of the model where some classes have few images or small changes of a constant move
            many images.
        rounds: a row per round and class: robust accuracy on the images of the fit and the constant, both before the
            update of the round; the rows of the last round are those of the adjusted model.
        path: the file of the adjusted model; None if none was written.
    """

    model: nn.Module = field(repr=False)
    constants: Tensor
    classes: pd.DataFrame
    rounds: pd.DataFrame
    path: Path | None = None


@checked
@evaluates
def adjust_logits(
    model: Model,
    data: Any = None,
    threat: ThreatLike | None = None,
    *,
    which: Which | None = None,
    attack: Choice = "pgd:steps=8,step_size=0.25eps,objective=margin",
    rates: Sequence[float] = RATES,
    folds: int = 5,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[Computed],
) -> LogitAdjustment:
    """Equalise the class-wise robust accuracy of a trained classifier by a constant per logit.

    Each round attacks the images and adds rate * (mean accuracy - accuracy of class c) to b_c, with accuracies as
    fractions, over the classes with images; the other constants are 0. No weight is trained. This is a baseline for
    fair training.

    The constants equalise the classes under the attack that fits them. Another attack may find another class weaker:
    see the page frontier of the documentation.

    Accuracies on images that chose the constants are too high: audit the adjusted model on other images. In
    cross-fitting, the images of each fold are attacked with constants fitted on the other folds; this takes
    len(rates) more attacks for each fold, on the images of the others.

    Args:
        model: any model that `classwise.audit` takes, such as a module; or a run or its folder, which is adjusted on
            its validation split.
        data: the images of the fit, as `classwise.audit` takes them, neither training images nor those of a later
            audit. With a run: its training images, if it was trained on images instead of a named data set.
        threat: the ball of the attack, such as ``"Linf:8/255"``. None: that of the run, or the usual one of a named
            data set.
        which: the saved weights of a run to use; None for `Run.default_weights`.
        attack: the attack on the images.
        rates: the step size of each round.
        folds: the folds of cross-fitting, 2 or more, stratified by class; 0 for none. With fewer images per class
            there are as many folds as the largest class has images.
        out: the file to write (safetensors). None: no file; with a run, its ``checkpoints/adjusted.safetensors``.
            `load_model`, and ``--weights`` of the commands, read the adjustment with the weights.
        progress: True shows a progress bar; or a listener.
        **options: see `Computed`.

    Returns:
        The adjusted model, the constants, and the accuracies by class and by round.

    Raises:
        ClasswiseError: as `classwise.audit` does; for a model without a run and without images; if the run has no
            validation split, a start model was trained on it, or the images differ from those of the run; if the
            model cannot be saved in ``out``; or if the file is in the run folder and another process uses the folder.

    Example:
        >>> import classwise as cw
        >>> images = cw.load_data("digits", split="train", subset=60)  # better: images of no training
        >>> model = cw.load_model("small-cnn", data=images, width=0.1)  # or any nn.Module
        >>> found = cw.adjust_logits(model, images, "Linf:0.1", attack="pgd:steps=2", rates=[0.3], folds=0)
        >>> x = images.pixels(slice(0, 4))
        >>> len(found.constants), bool((found.model(x) - model(x) - found.constants).abs().max() < 1e-5)
        (10, True)
    """
    rates = list(rates)
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ClasswiseError(f"rates = {rates} must be positive numbers, one per round, such as 0.3,0.15")
    if folds < 0 or folds == 1:
        raise ClasswiseError(f"folds = {folds} must be 2 or more, or 0 for no cross-fitting")
    target = FitTarget.of(model, data, which, out, "adjusted")
    with target.writing(), listening(progress) as listener, chosen_arithmetic(options.get("precision")):
        network = model if target.run is None else target.run.model(target.which)
        inputs = fit_inputs(target, network, data, threat, attack, options, listener)
        per_class = inputs.images.class_counts()
        if (fewest := int(per_class[per_class > 0].min())) < FEW_IMAGES:
            name = inputs.images.class_names[per_class.tolist().index(fewest)]
            listener.log(
                f"the constants are fitted on few images ({fewest} of {name}) and may cost more than they gain; "
                "hold out more (data.validation of the training)"
            )
        folds = min(folds, int(per_class.max()))
        listener.start("logit adjustment", (len(rates) + 1) * (1 + folds * (folds > 1)))
        with evaluating(inputs.model):
            fit = _Fit(inputs.model, inputs.images, inputs.robust_counts, rates, listener)
            robust = fit.cross_fitted(inputs.images, folds) if folds > 1 else None
            constants, counts = fit.rounds(inputs.images)
        fit.set(constants[-1])
        if target.path is not None:
            save_weights(target.path, fit.model, _metadata(target, inputs, constants[-1]))
    columns = {"label": range(inputs.images.num_classes), "class": inputs.images.class_names}
    rounds = [
        pd.DataFrame({"round": turn, **columns, "robust": each_round.accuracy, "adjustment": added.cpu()})
        for turn, (added, each_round) in enumerate(zip(constants, counts, strict=True))
    ]
    classes = pd.DataFrame({**columns, "n": counts[0].count, "adjustment": constants[-1].cpu()})
    classes = classes.assign(**_with_interval("before", counts[0]), fitted=counts[-1].accuracy)
    classes = classes.assign(**_with_interval("robust", robust))
    return LogitAdjustment(fit.model, constants[-1].cpu(), classes, pd.concat(rounds, ignore_index=True), target.path)


class _Fit:
    """Fits the constants of a model to images.

    Args:
        model: maps images to logits; if these are adjusted already, the constants are added to those.
        images: the images of the fit.
        attack: counts the images that a model classifies correctly under the attack.
        rates: the step size of each round.
        progress: receives a step after each attack.

    Attributes:
        model: the adjusted model.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        attack: Callable[[nn.Module, Images], ClassCounts],
        rates: Sequence[float],
        progress: Progress,
    ) -> None:
        self._before = torch.zeros(images.num_classes, device=images.device)
        hashes = torch.from_numpy(content_hashes(images.x, images.y).copy())
        if isinstance(model, AdjustedLogits):
            self._before = model.logit_adjustment.clone()
            hashes = torch.cat([model.fitted_images.cpu(), hashes])
            model = model.model
        self.model = AdjustedLogits(model, self._before, hashes).to(images.device)
        self._attack, self._rates, self._progress = attack, rates, progress

    def set(self, constants: Tensor) -> None:
        """Set the constants of the model."""
        self.model.logit_adjustment.copy_(self._before + constants)

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
        constants, counts = [torch.zeros_like(self._before)], []
        for rate in self._rates:
            counts.append(self._counts(images, constants[-1]))
            robust = torch.tensor(counts[-1].accuracy, dtype=self._before.dtype, device=self._before.device)
            constants.append(constants[-1] + rate * (robust.nanmean() - robust).nan_to_num(0.0))
        return constants, counts

    def _counts(self, images: Images, constants: Tensor) -> ClassCounts:
        self.set(constants)
        counts = self._attack(self.model, images)
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


def _metadata(target: FitTarget, inputs: FitInputs, constants: Tensor) -> dict[str, Any]:
    """The metadata of the file: of the run, the images and the constants."""
    of_run: dict[str, Any] = {}
    if target.run is not None and target.which is not None:
        start = interpolated_with(target.run.weights_file(target.which))
        of_run = {} if start is None else {"start": start}
        of_run |= {"recipe": target.run.recipe.name, "adjusted_from": target.which}
    return {**of_run, **data_of(inputs), "adjustment": [round(value, 6) for value in constants.tolist()]}
