"""Misclassified and homing matrices: of the images of i misclassified as j, how many are robust without class j?

kdd21 section 6.1, Definition 6.1 and Figure 4; iclr21 Figure 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from classwise.analysis.base import AnalysisResult
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine
from classwise.auditing.audit import audit
from classwise.auditing.audit_folder import ABOUT
from classwise.auditing.suite import Attacks, norm_of, parse_attacks
from classwise.core.errors import ClasswiseError
from classwise.core.precision import FAST, Precision
from classwise.core.progress import Progress
from classwise.core.storage import replacing
from classwise.core.threat import Threat
from classwise.data.images import Images
from classwise.data.loading import load_data
from classwise.reporting.figures.heatmap import Confusion, heatmap
from classwise.reporting.svg import Drawing
from classwise.stats.counts import BoolArray, IntArray, ratio
from classwise.stats.intervals import wilson
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe
from classwise.training.setup import training_images
from classwise.training.train import train

ATTACK = "pgd:steps=20,step_size=0.1eps"
FILE = "homing.parquet"
"""File in the run without a class: which of the images misclassified as it are correct under attack."""


@dataclass(frozen=True, eq=False)
class Homing(AnalysisResult):
    """Counts of images by label (row) and prediction of the base model under attack (column).

    Attributes:
        class_names: (C,) names.
        matrix: (C, C) int64, the confusion matrix of the base model under attack; the diagonal counts robust images.
        homing: (C, C) int64, the misclassified images of ``matrix`` that are robust for a model trained without the
            class of the column.
        runs: the folder of the model without each class; None if no image was misclassified as the class.
        alpha: 1 minus the coverage of the intervals.
    """

    class_names: tuple[str, ...]
    matrix: IntArray
    homing: IntArray
    runs: tuple[Path | None, ...]
    alpha: float = 0.05

    @property
    def misclassified(self) -> IntArray:
        """(C, C) ``matrix`` with zeros on the diagonal: kdd21 Figure 4a."""
        errors: IntArray = self.matrix * ~np.eye(len(self.matrix), dtype=np.bool_)
        return errors

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair of classes with a misclassified image, the most frequent first.

        Columns: ``truth`` and ``taken_for`` (names of the label and the prediction), ``misclassified`` and ``homing``
        (counts), ``share`` (homing over misclassified) with ``low`` and ``high`` (Wilson; for new images and these
        models).
        """
        errors = self.misclassified
        truth, predicted = np.nonzero(errors)
        count, homing = errors[truth, predicted], self.homing[truth, predicted]
        low, high = wilson(homing, count, self.alpha)
        names = np.asarray(self.class_names, dtype=object)
        columns = {
            "truth": names[truth],
            "taken_for": names[predicted],
            "misclassified": count,
            "homing": homing,
            "share": ratio(homing, count),
            "low": low,
            "high": high,
        }
        frame = pd.DataFrame(columns).sort_values("misclassified", ascending=False, kind="stable")
        return frame.reset_index(drop=True)

    def figure(self) -> Drawing:
        """kdd21 Figure 4b: the homing images, without the diagonal."""
        return heatmap(Confusion(self.homing, self.class_names, totals=self.matrix.sum(axis=1)), "errors")

    def misclassified_figure(self) -> Drawing:
        """kdd21 Figure 4a: the misclassified images, without the diagonal."""
        return heatmap(Confusion(self.matrix, self.class_names), "errors")


def homing(
    run: Run,
    *,
    out: str | Path,
    data: Images | None = None,
    test: Images | None = None,
    attack: Attacks = ATTACK,
    which: Which | None = None,
    early_stop: bool = False,
    precision: Precision = FAST,
    batch_size: int = 128,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
    alpha: float = 0.05,
) -> Homing:
    """Train without each class in turn, and attack the images misclassified as it again (kdd21 Definition 6.1).

    The recipe, the labels and the number of outputs are those of the run; only the training images of the class are
    excluded. The cost is at most C trainings, one audit of the base model, and one attack on each of its misclassified
    images, on the model without the predicted class. A class that no image is misclassified as requires no training.
    All results are saved in ``out``; calling again with the same folder resumes an interrupted call.

    Args:
        run: the base run.
        out: folder for the audit of the base run and the runs ``without-J``.
        data: the training images of the base run; None: those of its recipe.
        test: the images to attack; None: the test split of the data set of the recipe.
        attack: the attack; exactly one.
        which: which saved weights of a run are used; None: `Run.default_weights`.
        early_stop: as in `audit`, for the audit and the repeated attack.
        precision: precision of the attack's gradients.
        batch_size: images per batch on the device.
        seed: seed of the attack.
        device: device of the trainings and attacks.
        progress: receives the progress.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if the base run is not finished, the classes of the data differ, or ``out`` has other contents.
    """
    if not run.complete:
        raise ClasswiseError(
            f"{run.path}: {run.epochs_done} of {run.recipe.epochs} epochs are finished; homing requires a finished run"
        )
    folder = Path(out)
    data, test = _images_of(run, data, test)
    name, chosen = _single_attack(attack, run)
    base = audit(
        run.path if which is None else run.weights_file(run.chosen_weights(which)),
        test,
        run.recipe.threat,
        {name: chosen},
        early_stop=early_stop,
        precision=precision,
        batch_size=batch_size,
        seed=seed,
        out=folder / "base",
        resume=(folder / "base" / ABOUT).is_file(),
        device=device,
        progress=progress,
    ).outcomes
    rows = base.rows(name)
    matrix = base.confusion(name)
    counts, runs = np.zeros_like(matrix), list[Path | None]()
    for label in range(test.num_classes):
        errors = rows["index"][(rows["prediction"] == label) & (rows["label"] != label)].to_numpy(dtype=np.int64)
        path = folder / f"without-{label}"
        runs.append(path if len(errors) else None)
        if not len(errors):
            continue
        without = _train(run.recipe, data.take(data.y != label), path, device, progress)
        images = test.take(torch.isin(test.index.cpu(), torch.tensor(errors)).to(test.device))
        model = without.model(which).to(device)
        engine = Engine(model, precision=precision, batch_size=batch_size, early_stop=early_stop, seed=seed)
        threat = Threat.parse(str(without.recipe.threat))
        robust = _saved(path / FILE, lambda: _robust(engine, chosen, images, threat))  # noqa: B023  # called at once
        counts[:, label] = np.bincount(images.y.cpu().numpy()[robust], minlength=test.num_classes)
    return Homing(test.class_names, matrix, counts, tuple(runs), alpha)


def _images_of(run: Run, data: Images | None, test: Images | None) -> tuple[Images, Images]:
    """Training and test images: the arguments, or those of the run's recipe where an argument is None.

    Raises:
        ClasswiseError: if their classes differ.
    """
    settings = run.recipe.data
    if data is None:
        data = training_images(settings)
    if test is None:
        test = load_data(settings.name, split="test", root=settings.root, **settings.options)
    if data.class_names != test.class_names:
        raise ClasswiseError(f"{data.name} and {test.name} have different classes; pass images of one data set")
    return data, test


def _single_attack(attack: Attacks, run: Run) -> tuple[str, Attack]:
    """The name and the attack of a specification.

    Raises:
        ClasswiseError: if it contains several attacks.
    """
    suite = parse_attacks(attack, norm_of(run.recipe.threat))
    if len(suite.attacks) != 1:
        raise ClasswiseError(f"homing requires one attack, got {len(suite.attacks)}: {', '.join(suite.attacks)}")
    ((name, chosen),) = suite.attacks.items()
    return name, chosen


def _train(recipe: Recipe, data: Images, out: Path, device: str, progress: Progress | None) -> Run:
    """Train a recipe in a folder, or resume the run in it."""
    resume = (out / "recipe.yaml").is_file()
    return train(recipe, out=out, data=data, resume=resume, device=device, progress=progress)


def _robust(engine: Engine, attack: Attack, images: Images, threat: Threat) -> BoolArray:
    """(N,) whether the model classifies each image correctly under the attack."""
    correct = []
    for index, x, y in images.to(engine.device).batches(engine.batch_size):
        (logits,) = engine.predict([engine.perturb(attack, x, y, threat, index=index)])
        correct.append((logits.argmax(1) == y).cpu().numpy())
    return np.concatenate(correct)


def _saved(path: Path, compute: Callable[[], BoolArray]) -> BoolArray:
    """Read a file, after computing and writing it if it is missing.

    The audit of the base run has already checked that the settings are the same.
    """
    if not path.is_file():
        robust = compute()
        with replacing(path) as temporary:
            pd.DataFrame({"home": robust}).to_parquet(temporary, index=False)
    return pd.read_parquet(path)["home"].to_numpy(dtype=np.bool_)
