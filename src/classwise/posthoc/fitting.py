"""The model and the images of a post-hoc method, checked as those of an audit, and the robust accuracy on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import pydantic
import torch
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.attacks.base import Attack
from classwise.attacks.engine import Job
from classwise.auditing.evaluation.evaluation import Computed, Evaluation
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import prepare
from classwise.auditing.run.suite import Choice, norm_of, parse_attacks
from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.core.files.storage import check_writable, read_json
from classwise.core.progress.listener import Progress
from classwise.data import Images
from classwise.data.stream import as_data
from classwise.models.base import bare, device_of
from classwise.models.functions import FunctionModel
from classwise.models.loading.references import is_stored
from classwise.models.loading.sources.onnx_files import OnnxModel
from classwise.models.logits import SelectedLogits, are_valid
from classwise.models.weights import check_storable
from classwise.stats.counts import ClassCounts
from classwise.threat.ball import ThreatLike
from classwise.training.folder import Run, Which
from classwise.training.setup import training_images, validation_images
from classwise.training.start_models import check_start_models, starts_of


@dataclass(frozen=True)
class FitInputs:
    """The model and the images of a fit.

    Attributes:
        model: maps images to logits, one for each class of the images; on the device.
        images: the images, on the device.
        plan: how they are attacked.
    """

    model: nn.Module
    images: Images
    plan: Plan

    @property
    def attack(self) -> Attack:
        """The only attack."""
        (attack,) = self.plan.suite.attacks.values()
        return attack

    def robust_counts(self, model: nn.Module, images: Images | None = None) -> ClassCounts:
        """Count the images of each class, and those that are correctly classified under the attack.

        Args:
            model: the model, on the device.
            images: some of the images; None: all.
        """
        images = self.images if images is None else images
        engine = self.plan.engine(model)
        count = images.class_counts()
        correct = torch.zeros_like(count)
        jobs = [Job(batch.index, batch.x, batch.y) for batch in images.batches(engine.batch_size)]
        for done in engine.attack(self.attack, self.plan.threat, jobs, images=len(images)):
            correct.index_add_(0, done.y, (~done.success).to(correct.dtype))
        return ClassCounts(count.cpu().numpy(), correct.cpu().numpy())


@dataclass(frozen=True)
class FitTarget:
    """What is fitted, and where it is saved.

    Attributes:
        run: the run; None for any other model.
        which: the saved weights of the run.
        path: the file to write, or None.
    """

    run: Run | None
    which: Which | None
    path: Path | None

    @staticmethod
    def of(model: object, data: object, which: Which | None, out: str | Path | None, name: str) -> FitTarget:
        """Read the arguments of a fit; of a run, the file is by default its weights ``name``.

        Raises:
            ClasswiseError: if a folder contains no run, the run does not have the weights, or the file cannot be
                written; for a model that is no run, with the name of weights or without images.
        """
        run, path = run_of(model, data), None if out is None else Path(out)
        if run is not None:
            which, path = run.chosen_weights(which), path or run.weights_file(name)
        elif which is not None:
            raise ClasswiseError(f"which = {which!r} applies to runs only, and the model is not a run; omit it")
        elif data is None:
            raise ClasswiseError(
                "data is required for a model that is not a run folder; give images that it was not trained on, and "
                "that are not audited afterwards"
            )
        if path is not None:
            check_writable(path)
        return FitTarget(run, which, path)

    def writing(self) -> AbstractContextManager[None]:
        """Lock the run folder while a file is written into it; no lock for a file elsewhere.

        Raises:
            ClasswiseError: on entry, if another process uses the folder.
        """
        inside = self.run and self.path and self.path.resolve().is_relative_to(self.run.path.resolve())
        return owned(self.run.path) if self.run is not None and inside else nullcontext()


def fit_inputs(
    target: FitTarget,
    model: Model,
    data: Any,
    threat: ThreatLike | None,
    attack: Choice,
    options: Computed,
    progress: Progress,
    starts: Sequence[str] = (),
) -> FitInputs:
    """Read a model and images, and check that they fit each other, as `classwise.audit` does.

    Args:
        target: the run, whose validation images, threat and options are used; and whether weights are saved.
        model: as `classwise.audit` takes it.
        data: as `classwise.audit` takes it; a stream is read into memory. Of a run: its training images, or None.
        threat: the ball, of one radius; None: that of the run, or the usual one of a named data set.
        attack: the attack.
        options: the options of the computation.
        progress: receives notes.
        starts: models that must not have been trained on the validation images of a run, besides its own.

    Raises:
        ClasswiseError: as `classwise.audit`; for several attacks or radii, or if the logits are not finite, as of
            weights that overflow; as `validation_split`; or if the weights cannot be saved.
    """
    if target.run is not None:
        starts = [*starts, *starts_of(target.run, target.run.weights_file(target.which or ""))]
        data = validation_split(target.run, data, starts, progress)
        threat = target.run.recipe.threat if threat is None else threat
        options = options_of_run(target.run, options)
    suite = parse_attacks([attack], norm_of(threat))
    if len(suite.attacks) != 1:
        raise ClasswiseError(f"attack {attack!r} is a suite of {len(suite.attacks)} attacks; give one of them")
    source = as_data(data)
    images = source if isinstance(source, Images) else source.load()
    ready = prepare(model, images, suite, threat, cast("Evaluation", {**_stated(options), "early_stop": False}))
    if isinstance(ready.model, SelectedLogits):
        raise ClasswiseError(f"{ready.note}; give images of all classes of the model")
    if isinstance(ready.plan.threat.epsilon, Tensor):
        raise ClasswiseError("threat: a fit has one radius for all images")
    ready.log_notes(progress)
    (piece,) = ready.pieces
    if piece.split == "test":
        progress.log("fitted on the split 'test': accuracies on it are no test of the result; better fit on another")
    found = FitInputs(ready.model, piece.to(device_of(ready.model)), ready.plan)
    _check_logits(found)
    if target.path is not None:
        check_model_is_storable(found.model)
    return found


def _stated(options: Computed) -> Computed:
    """The options that are not None."""
    return cast("Computed", {name: value for name, value in options.items() if value is not None})


def _check_logits(inputs: FitInputs) -> None:
    """Check that a model predicts a class of every image.

    Raises:
        ClasswiseError: if its logits are not finite.
    """
    engine = inputs.plan.engine(inputs.model)
    images = (batch.x for batch in inputs.images.batches(engine.batch_size))
    if not are_valid(torch.cat(list(engine.predict(images)))).all():
        raise ClasswiseError("the logits of the model are NaN or infinite on images of the fit; use other weights")


def check_model_is_storable(model: nn.Module) -> None:
    """Check that a file can hold the weights of a model, before a fit.

    Raises:
        ClasswiseError: for a function, an ONNX file, or weights that are no dense tensors.
    """
    network = bare(model)
    if isinstance(network, FunctionModel | OnnxModel):
        kind = "an ONNX file" if isinstance(network, OnnxModel) else "a function"
        raise ClasswiseError(
            f"the weights of {kind} cannot be saved in another file; omit out, and use the result's model"
        )
    check_storable(model.state_dict())


def data_of(inputs: FitInputs) -> dict[str, Any]:
    """The entries of a file's metadata on the images of its fit."""
    images = inputs.images
    return {
        "class_names": list(images.class_names),
        "fitted_on": {"data": images.name, "split": images.split, "fingerprint": images.fingerprint()},
    }


def run_of(model: object, data: object) -> Run | None:
    """The run of a run or its folder; None for any other model.

    Raises:
        ClasswiseError: for a folder that contains no run, if no images are given, or the runs of several seeds.
    """
    if isinstance(model, Run):
        return model
    if not isinstance(model, str | os.PathLike) or not is_stored(model) or not Path(model).is_dir():
        return None
    folder = Run(Path(model))
    return Run.open(folder.path) if data is None or folder.recipe_file.is_file() else None


def options_of_run(run: Run, options: Computed) -> Computed:
    """The options of a computation: those of the recipe where they are not given."""
    recipe = run.recipe
    of_run: Computed = {
        "device": "cpu",
        "precision": recipe.precision,
        "batch_size": max(32, recipe.batch_size),
        "seed": recipe.seed,
    }
    return {**of_run, **_stated(options)}


def validation_split(run: Run, data: Images | None, starts: Sequence[str], progress: Progress) -> Images:
    """Return the validation images of a run: those held out of its training images, or the split that it names.

    Args:
        run: the run.
        data: its training images; None to load those of its recipe.
        starts: models that must not have been trained on the split, see `check_start_models`.
        progress: receives notes on starts that cannot be checked.

    Raises:
        ClasswiseError: if the run has no validation split, the images differ from those of the run, or a start was
            trained on the split.
    """
    if isinstance(run.recipe.data.validation, str):
        if data is not None:
            raise ClasswiseError(f"{run.path} has the validation split {run.recipe.data.validation!r}; omit data")
        return validation_images(run.recipe.data, run)
    index = read_json(run.path / "validation.json", kind=_Validation)["index"]
    if not index:
        raise ClasswiseError(f"{run.path} has no validation split; train with data.validation = 0.02 or more")
    images = training_images(run.recipe.data) if data is None else data
    if not isinstance(images, Images) or images.fingerprint() != run.data["fingerprint"]:
        raise ClasswiseError(
            f"{run.path} was trained on other images; pass them as data=, or give a file of its weights in place of "
            "the run to use others"
        )
    rows = torch.isin(images.index.cpu(), torch.tensor(index)).nonzero().flatten()
    for note in check_start_models(run, run.recipe, images, rows, list(dict.fromkeys(starts))):
        progress.log(note)
    return images.take(rows)


class _Validation(TypedDict):
    index: list[Annotated[int, pydantic.Field(ge=0)]]
