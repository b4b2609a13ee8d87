"""Weight interpolation (WiSE-FT, Wortsman et al., CVPR 2022) between a model and its fine-tuned version."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from classwise.attacks import ATTACKS
from classwise.core.compute.precision import check_device
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import check_writable
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Spec, make
from classwise.data import Images
from classwise.models import load_model, save_weights
from classwise.threat.ball import Threat
from classwise.training.averaging import blend
from classwise.training.folder import Run, Which
from classwise.training.posthoc.validation import robust_counts, validation_split, writing_into
from classwise.training.selection import by_number_of_classes
from classwise.training.start_models import starts_of

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""The default interpolation coefficients."""


@dataclass(frozen=True)
class WeightInterpolation:
    """The result of `interpolate_weights`.

    Args:
        path: the file of the interpolated model.
        share: the selected interpolation coefficient, the weight of the fine-tuned model.
        tried: a row per coefficient and class: robust accuracy on the validation split, and the score.
    """

    path: Path
    share: float
    tried: pd.DataFrame


@checked
def interpolate_weights(
    run: str | Path | Run,
    *,
    which: Which | None = None,
    start: str | Path | None = None,
    shares: Sequence[float] = SHARES,
    data: Images | None = None,
    attack: Spec = "pgd:steps=10,step_size=0.25eps",
    out: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> WeightInterpolation:
    """Interpolate between the initial and the fine-tuned weights of a run, and save the best model.

    For each coefficient a, the weights are a * fine-tuned + (1 - a) * initial, including the statistics of batch
    normalisation. The selected model has the highest overall plus worst-class robust accuracy on the validation split
    of the run (the first of ties); with more than 20 classes, plus the mean of the worst fifth of the classes. No
    weight is trained.

    Args:
        run: the fine-tuning run, or its folder.
        which: the saved weights to use; None for `Run.default_weights`.
        start: the initial model, a run folder or a file of weights; None for the recipe's ``model.weights``.
        shares: the interpolation coefficients, each in [0, 1]: 0 is the initial model, 1 the fine-tuned one.
        data: the training images, if the run was trained on images instead of a named data set.
        attack: the attack on the validation split, with the radius of the run.
        out: the file to write; by default ``checkpoints/interpolated.safetensors`` of the run.
        device: the device to compute on.
        progress: receives progress.

    Returns:
        The file, the selected coefficient, and the accuracies for each coefficient.

    Raises:
        ClasswiseError: if the initial model is unknown, the run has no validation split, a start model was trained on
            it, the images differ from those of the run, the device does not exist, or the file is in the run folder and
            another process uses the folder.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = cw.train("at", data="digits", out=f"{folder}/at", overrides=small, epochs=2)
        ...     first = run.weights_file("last")
        ...     found = cw.interpolate_weights(run, start=first, shares=[0.5], attack="pgd:steps=2")
        >>> found.path.name, found.share
        ('interpolated.safetensors', 0.5)
    """
    run = run if isinstance(run, Run) else Run.open(run)
    check_device(device)
    shares = list(shares)
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ClasswiseError(f"shares = {shares} must be numbers from 0 to 1, such as 0.3,0.5,0.7")
    member, which = make(ATTACKS, attack), run.chosen_weights(which)
    before = start if start is not None else run.recipe.model.weights
    if before is None:
        raise ClasswiseError(f"{run.path} started from random weights; set start to the initial model")
    path = Path(out) if out is not None else run.weights_file("interpolated")
    check_writable(path)
    with writing_into(run, path):
        model = run.model(which)
        tuned = model.state_dict()
        initial = load_model(copy.deepcopy(model), weights=str(before)).state_dict()
        threat, listener = Threat.parse(str(run.recipe.threat)), progress or NullProgress()
        starts = [str(before), *starts_of(run, run.weights_file(which))]
        valid = validation_split(run, data, starts, listener).to(device)
        model = copy.deepcopy(model).to(device)
        best, chosen, rows = float("-inf"), shares[0], []
        listener.start("interpolation", len(shares))
        for share in shares:
            model.load_state_dict(blend(tuned, initial, share))
            counts = robust_counts(model, valid, member, threat, run.recipe)
            robust = torch.tensor(counts.accuracy, dtype=torch.float32)
            score = by_number_of_classes(robust, torch.tensor(counts.count))
            if score > best:
                best, chosen = score, share
            rows += [
                {"share": share, "score": score, "label": label, "class": name, "robust": value}
                for label, (name, value) in enumerate(zip(valid.class_names, robust.tolist(), strict=True))
            ]
            listener.advance(1)
        model.load_state_dict(blend(tuned, initial, chosen))
        about = {"recipe": run.recipe.name, "class_names": run.data["classes"]}
        save_weights(path, model, about | {"interpolation_of": which, "start": str(before), "share": chosen})
    return WeightInterpolation(path, chosen, pd.DataFrame(rows))
