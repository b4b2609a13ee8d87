"""Misclassified and homing matrices: of the images of i misclassified as j, how many are robust without class j?

kdd21 section 6.1, Definition 6.1 and Figure 4; iclr21 Figure 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from classwise.analysis.base import AnalysisResult
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import Precision, fastest
from classwise.core.errors import ClasswiseError
from classwise.core.files.parquet_files import read_parquet
from classwise.core.files.storage import replacing
from classwise.core.progress.listener import Progress
from classwise.data.images import Images
from classwise.data.sets.loading import load_data
from classwise.reporting.figures.heatmap import Confusion, Kind, heatmap
from classwise.reporting.svg import Drawing
from classwise.stats.confusion import confusion
from classwise.stats.counts import BoolArray, IntArray, ratio
from classwise.stats.intervals import Estimate, proportion_interval
from classwise.stats.paired import paired_interval, paired_p_value
from classwise.threat.ball import Threat
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe
from classwise.training.setup import training_images
from classwise.training.train import train

ATTACK = "pgd:steps=20,step_size=0.1eps"
FILE = "homing.parquet"
"""File in a run without a class, or in the control: which of the base model's errors are correct under attack."""


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
        control: (C, C) int64, the misclassified images of ``matrix`` that are robust for a model trained with all
            classes and another seed; None without a control.
        beyond: (C, C) int64, the images of ``homing`` that are not robust for the control; None without a control.
    """

    class_names: tuple[str, ...]
    matrix: IntArray
    homing: IntArray
    runs: tuple[Path | None, ...]
    alpha: float = 0.05
    control: IntArray | None = None
    beyond: IntArray | None = None

    @property
    def misclassified(self) -> IntArray:
        """(C, C) ``matrix`` with zeros on the diagonal: kdd21 Figure 4a."""
        errors: IntArray = self.matrix * ~np.eye(len(self.matrix), dtype=np.bool_)
        return errors

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair of classes with a misclassified image, the most frequent first.

        Columns: ``truth`` and ``taken_for`` (names of the label and the prediction), ``misclassified`` and ``homing``
        (counts), ``share`` (homing over misclassified) with ``low`` and ``high`` (`proportion_interval`; for new images
        and these models). With a control also ``control`` (count), ``difference`` (share of homing images minus that of
        the control) with ``difference_low`` and ``difference_high``, and ``p`` (McNemar test that the shares are
        equal), which agree (`classwise.stats.paired.paired_interval`).
        """
        errors = self.misclassified
        truth, predicted = np.nonzero(errors)
        count, homing = errors[truth, predicted], self.homing[truth, predicted]
        low, high = proportion_interval(homing, count, self.alpha)
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
        if self.control is not None and self.beyond is not None:
            control, only_homing = self.control[truth, predicted], self.beyond[truth, predicted]
            only_control = control - (homing - only_homing)
            below, above = paired_interval(only_homing, only_control, count, self.alpha)
            columns |= {
                "control": control,
                "difference": ratio(homing - control, count),
                "difference_low": below,
                "difference_high": above,
                "p": paired_p_value(only_homing, only_control),
            }
        frame = pd.DataFrame(columns).sort_values("misclassified", ascending=False, kind="stable")
        return frame.reset_index(drop=True)

    def difference(self, alpha: float = 0.05) -> Estimate:
        """Share of homing images among all misclassified ones, minus the share that is robust for the control.

        A model with another seed is also robust on some errors of the base model. The difference is what the removal
        of the predicted class adds. The images are paired; the interval (`classwise.stats.paired.paired_interval`) is
        for new images and these models.

        Args:
            alpha: 1 minus the coverage.

        Raises:
            ClasswiseError: without a control.
        """
        if self.control is None or self.beyond is None:
            raise ClasswiseError("the homing matrix has no control; pass control=SEED to homing")
        count, gained = int(self.misclassified.sum()), int(self.beyond.sum())
        lost = int(self.control.sum()) - (int(self.homing.sum()) - gained)
        low, high = (float(end) for end in paired_interval(gained, lost, count, alpha))
        return Estimate((gained - lost) / count if count else math.nan, low, high)

    def figure(self) -> Drawing:
        """kdd21 Figure 4b: the homing images, without the diagonal."""
        return self._counts_figure(self.homing, "homing")

    def control_figure(self) -> Drawing:
        """The misclassified images that are robust for the control, without the diagonal.

        Raises:
            ClasswiseError: without a control.
        """
        if self.control is None:
            raise ClasswiseError("the homing matrix has no control; pass control=SEED to homing")
        return self._counts_figure(self.control, "control")

    def _counts_figure(self, counts: IntArray, kind: Kind) -> Drawing:
        return heatmap(Confusion(counts, self.class_names, totals=self.matrix.sum(axis=1)), kind)

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
    precision: Precision | None = None,
    batch_size: int = 128,
    seed: int = 0,
    control: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    alpha: float = 0.05,
) -> Homing:
    """Train without each class in turn, and attack the images misclassified as it again (kdd21 Definition 6.1).

    The recipe, the labels and the number of outputs are those of the run; only the training images of the class are
    excluded. The cost is at most C trainings, one audit of the base model, and one attack on each of its misclassified
    images, on the model without the predicted class. A class that no image is misclassified as requires no training.

    Any other model is robust on some of these images. ``control`` is one with all classes (`Homing.difference`).

    All results are saved in ``out``; calling again with the same folder resumes an interrupted call.

    Args:
        run: the base run.
        out: folder for the audit of the base run and the runs ``without-J`` and ``control-SEED``.
        data: the training images of the base run; None: those of its recipe.
        test: the images to attack; None: the test split of the data set of the recipe.
        attack: the attack; exactly one.
        which: which saved weights of a run are used; None: `Run.default_weights`.
        early_stop: as in `audit`, for the audit and the repeated attack.
        precision: precision of the attack's gradients; None: the fastest on the device.
        batch_size: images per batch on the device.
        seed: seed of the attack.
        control: seed of the training of the control; None for no control.
        device: device of the trainings and attacks.
        progress: receives the progress.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if the base run is not finished or has the seed of the control, the classes of the data differ,
            or ``out`` has other contents.
    """
    if not run.complete:
        raise ClasswiseError(
            f"{run.path}: {run.epochs_done} of {run.recipe.epochs} epochs are finished; homing requires a finished run"
        )
    if control == run.recipe.seed:
        raise ClasswiseError(f"control = {control}: must differ from the seed of the base run")
    folder, precision = Path(out), precision or fastest(torch.device(device))
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
    errors = base.rows(name)[["index", "label", "prediction"]].query("label != prediction")
    errors = errors.astype(np.int64).reset_index(drop=True)
    engine = partial(Engine, precision=precision, batch_size=batch_size, early_stop=early_stop, seed=seed)
    retry = _Retry(run, data, test, chosen, which, engine, device, progress, precision.deterministic)
    home, runs = _without_each_class(retry, errors, folder)

    def counted(which: BoolArray) -> IntArray:
        return confusion(errors["label"][which], errors["prediction"][which], test.num_classes)

    matrices = Homing(test.class_names, base.confusion(name), counted(home), runs, alpha)
    if control is None:
        return matrices
    again = retry.robust(dataclasses.replace(run.recipe, seed=control), data, folder / f"control-{control}", errors)
    return dataclasses.replace(matrices, control=counted(again), beyond=counted(home & ~again))


@dataclass(frozen=True)
class _Retry:
    """Training of another model than that of ``run``, and the attack on its errors."""

    run: Run
    data: Images
    test: Images
    attack: Attack
    which: Which | None
    engine: Callable[[nn.Module], Engine]
    device: str
    progress: Progress | None
    deterministic: bool

    def robust(self, recipe: Recipe, data: Images, out: Path, errors: pd.DataFrame) -> BoolArray:
        """Whether the errors (rows) of the base model are correct for a model trained on ``data``, under the attack."""
        if errors.empty:
            return np.zeros(0, dtype=np.bool_)
        resume = (out / "recipe.yaml").is_file()
        trained = train(recipe, out=out, data=data, resume=resume, device=self.device, progress=self.progress)
        indices = torch.tensor(errors["index"].to_numpy())
        images = self.test.take(torch.isin(self.test.index.cpu(), indices).to(self.test.device))
        engine, threat = self.engine(trained.model(self.which).to(self.device)), Threat.parse(str(recipe.threat))
        with deterministic_algorithms(enabled=self.deterministic):
            found = _saved(out / FILE, images, lambda: _robust(engine, self.attack, images, threat))
        return found[errors["index"]].to_numpy(dtype=np.bool_)


def _without_each_class(retry: _Retry, errors: pd.DataFrame, folder: Path) -> tuple[BoolArray, tuple[Path | None, ...]]:
    """Whether each error is correct for the model without its predicted class; and the folders of the models."""
    home, runs = np.zeros(len(errors), dtype=np.bool_), list[Path | None]()
    for label in range(retry.test.num_classes):
        as_label, path = (errors["prediction"] == label).to_numpy(), folder / f"without-{label}"
        runs.append(path if as_label.any() else None)
        if as_label.any():
            data = retry.data.take(retry.data.y != label)
            home[as_label] = retry.robust(retry.run.recipe, data, path, errors[as_label])
    return home, tuple(runs)


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


def _robust(engine: Engine, attack: Attack, images: Images, threat: Threat) -> BoolArray:
    """(N,) whether the model classifies each image correctly under the attack."""
    correct = []
    for index, x, y in images.to(engine.device).batches(engine.batch_size):
        (logits,) = engine.predict([engine.perturb([attack], x, y, threat, index=index)])
        correct.append((logits.argmax(1) == y).cpu().numpy())
    return np.concatenate(correct)


def _saved(path: Path, images: Images, compute: Callable[[], BoolArray]) -> pd.Series[bool]:
    """Read a file, after computing and writing it if it is missing: a value for each image index.

    The audit of the base run has already checked that the settings are the same.
    """
    if not path.is_file():
        robust = compute()
        with replacing(path) as temporary:
            pd.DataFrame({"index": images.index.cpu().numpy(), "home": robust}).to_parquet(temporary, index=False)
    with path.open("rb") as file:
        table: pd.DataFrame = read_parquet(file, str(path)).to_pandas()
    return table.set_index("index")["home"]
