"""Misclassified and homing matrices: of the images of i that are taken for j, how many come home without j?

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
"""In the run without a class: which of the images that were taken for it are right under attack."""


@dataclass(frozen=True, eq=False)
class Homing(AnalysisResult):
    """Counts of images by class (row) and the class that they were taken for (column).

    Attributes:
        class_names: one for each class.
        matrix: (C, C) int64, the confusion matrix of the base model under attack; the diagonal counts robust images.
        homing: (C, C) int64, those of ``matrix``, off the diagonal, that are robust for a model that was trained
            without the class of the column.
        runs: the folder of the model without each class; None where no image was taken for the class.
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
        off: IntArray = self.matrix * ~np.eye(len(self.matrix), dtype=np.bool_)
        return off

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair with a misclassified image, the most frequent first.

        Columns: ``truth`` and ``taken_for`` (names), ``misclassified`` and ``homing`` (counts), ``share`` (the second
        of the first) with ``low`` and ``high`` (Wilson; for new images and these models).
        """
        errors = self.misclassified
        truth, taken = np.nonzero(errors)
        count, home = errors[truth, taken], self.homing[truth, taken]
        low, high = wilson(home, count, self.alpha)
        names = np.asarray(self.class_names, dtype=object)
        columns = {
            "truth": names[truth],
            "taken_for": names[taken],
            "misclassified": count,
            "homing": home,
            "share": ratio(home, count),
            "low": low,
            "high": high,
        }
        frame = pd.DataFrame(columns).sort_values("misclassified", ascending=False, kind="stable")
        return frame.reset_index(drop=True)

    def figure(self) -> Drawing:
        """kdd21 Figure 4b: how many of the misclassified images come home, the diagonal hidden."""
        return heatmap(Confusion(self.homing, self.class_names, totals=self.matrix.sum(axis=1)), "errors")

    def misclassified_figure(self) -> Drawing:
        """kdd21 Figure 4a: the misclassified images, the diagonal hidden."""
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
    """Train without each class in turn, and attack again the images misclassified as it (kdd21 Definition 6.1).

    The recipe, the labels and the number of outputs are those of the run; only the training images of the class are
    left out. The cost is at most C trainings, one audit of the base model, and one attack on each of its misclassified
    images, on the model without the predicted class. A class that no image is misclassified as needs no training.
    All results are saved in ``out``, and a call that was killed is continued there.

    Args:
        run: the base run.
        out: a folder for the audit of the base run and the runs ``without-J``.
        data: the training images of the base run; None: those that its recipe names.
        test: the images to judge by; None: the test split of that data set.
        attack: one attack.
        which: which saved weights of a run are used; None: `Run.default_weights`.
        early_stop: as in `audit`, for both rounds alike.
        precision: how the attack's gradients are computed.
        batch_size: images on the device at once.
        seed: of the attack.
        device: where to train.
        progress: reports the progress.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if the base run is not finished, the data are of other classes, or ``out`` holds something else.
    """
    if not run.complete:
        raise ClasswiseError(f"{run.path} has {run.epochs_done} of {run.recipe.epochs} epochs; finish it before homing")
    folder = Path(out)
    data, test = _images_of(run, data, test)
    name, chosen = _single_attack(attack, run)
    base = audit(
        run.path if which is None else run.weights_file(which),
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
        fooled = rows["index"][(rows["prediction"] == label) & (rows["label"] != label)].to_numpy(dtype=np.int64)
        place = folder / f"without-{label}"
        runs.append(place if len(fooled) else None)
        if not len(fooled):
            continue
        again = _train(run.recipe, data.take(data.y != label), place, device, progress)
        part = test.take(torch.isin(test.index.cpu(), torch.tensor(fooled)).to(test.device))
        engine = Engine(
            again.model(which).to(device), precision=precision, batch_size=batch_size, early_stop=early_stop, seed=seed
        )
        threat = Threat.parse(str(again.recipe.threat))
        home = _saved(place / FILE, lambda: _robust(engine, chosen, part, threat))  # noqa: B023  # called at once
        counts[:, label] = np.bincount(part.y.cpu().numpy()[home], minlength=test.num_classes)
    return Homing(test.class_names, matrix, counts, tuple(runs), alpha)


def _images_of(run: Run, data: Images | None, test: Images | None) -> tuple[Images, Images]:
    """Training and test images: those given, or else those of the run's recipe.

    Raises:
        ClasswiseError: if their classes differ.
    """
    settings = run.recipe.data
    if data is None:
        data = training_images(settings)
    if test is None:
        test = load_data(settings.name, split="test", root=settings.root, **settings.options)
    if data.class_names != test.class_names:
        raise ClasswiseError(f"{data.name} and {test.name} have other classes; give images of one data set")
    return data, test


def _single_attack(attack: Attacks, run: Run) -> tuple[str, Attack]:
    """The label and the attack of a specification.

    Raises:
        ClasswiseError: if it names several attacks.
    """
    suite = parse_attacks(attack, norm_of(run.recipe.threat))
    if len(suite.attacks) != 1:
        raise ClasswiseError(f"homing is of one attack, not of {len(suite.attacks)}: {', '.join(suite.attacks)}")
    ((name, chosen),) = suite.attacks.items()
    return name, chosen


def _train(recipe: Recipe, data: Images, out: Path, device: str, progress: Progress | None) -> Run:
    """The run of a recipe in a folder: a new one, or the one that lies there, continued."""
    resume = (out / "recipe.yaml").is_file()
    return train(recipe, out=out, data=data, resume=resume, device=device, progress=progress)


def _robust(engine: Engine, attack: Attack, images: Images, threat: Threat) -> BoolArray:
    """(N,) whether the model classifies each image correctly under the attack."""
    found = []
    for index, x, y in images.to(engine.device).batches(engine.batch_size):
        (logits,) = engine.predict([engine.perturb(attack, x, y, threat, index=index)])
        found.append((logits.argmax(1) == y).cpu().numpy())
    return np.concatenate(found)


def _saved(path: Path, work: Callable[[], BoolArray]) -> BoolArray:
    """The content of a file, computed and written if the file is missing.

    The audit of the base run has checked that the settings are the same.
    """
    if not path.is_file():
        found = work()
        with replacing(path) as temporary:
            pd.DataFrame({"home": found}).to_parquet(temporary, index=False)
    return pd.read_parquet(path)["home"].to_numpy(dtype=np.bool_)
