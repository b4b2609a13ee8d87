"""`train`: train a classifier by a recipe."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.distributed import ProcessGroup, process_group
from classwise.core.compute.precision import check_device, slow_dtype_note
from classwise.core.compute.rng import generators_restored
from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.core.files.storage import remove_stale_temporaries
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import checked
from classwise.data import Images
from classwise.models import build_model
from classwise.training.data_parallel import check_same_arguments
from classwise.training.finite_checks import OnNan
from classwise.training.folder import Run
from classwise.training.normalization import as_resumed, with_normalization
from classwise.training.recipe import Recipe
from classwise.training.setup import (
    check_code,
    check_folder,
    check_resumable,
    code_of_run,
    default_threat,
    model_spec,
    note_resumed,
    setup_notes,
    split_rows,
    training_images,
)
from classwise.training.start_models import check_start_models
from classwise.training.teacher import load_teacher, pseudo_labelled
from classwise.training.trainer import Trainer

SELECTS_LAST = (
    "selection = last, as these accuracies would favour an early epoch; validation images of their own "
    "(data.validation = the name of a split) or another selection change this"
)


@checked
def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    out: str | Path,
    data: str | os.PathLike[str] | Images | None = None,
    budget: str | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Progress | bool | None = None,
    overrides: Mapping[str, Any] | None = None,
    unlabelled: Images | None = None,
    distributed: bool = True,
    on_nan: OnNan = "stop",
    **fields: Any,
) -> Run:
    """Train a classifier by a recipe and write the run folder.

    If `torch.distributed` is initialised, all processes must pass the same arguments and share the folder. Each process
    computes its rows of every batch. The argument ``batch_size`` is then per process; the recipe in the run folder has
    the total. Such a run is equivalent to one process with the total batch size, and each can resume the other.

    Args:
        recipe: a recipe's name, a YAML file, a mapping or a `Recipe`.
        out: the run folder; it must not contain another run.
        data: a data set's name or a path, instead of the recipe's; or images, of which the run folder records only the
            name and the hash.
        budget: one of the recipe's budgets, such as ``"short"`` (at most 30 epochs); None for the full recipe.
        resume: continue the run in the folder; its recipe must be the same. A finished run needs no checkpoint.
        device: the device to train on, such as ``"cuda"``.
        progress: True shows a progress bar and log lines; or a listener, such as a logger of
            `classwise.training.loggers`.
        overrides: values by dotted recipe field, such as ``{"optimizer.lr": 0.05}``; applied after the budget.
        unlabelled: images to use instead of the recipe's ``data.unlabelled``.
        distributed: whether to use the processes of `torch.distributed`, if initialised.
        on_nan: what to do when the loss or the weights are not finite. ``"stop"``: raise an error before anything is
            saved (on a GPU within `classwise.training.finite_checks.STEPS_BETWEEN_CHECKS` steps). ``"continue"``: log
            the event ``not-finite`` once per epoch and continue.
        **fields: top-level recipe fields, such as ``epochs=30``.

    Returns:
        The finished run.

    Raises:
        ClasswiseError: if the recipe or the device is invalid (checked before data is read), the data do not fit the
            recipe, the start model was trained on validation images of this run, the folder contains another run or is
            in use, or the loss or the weights are not finite.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = cw.train("at", data="digits", out=f"{folder}/at", overrides=small, epochs=2)
        ...     model = run.model()
        >>> run.recipe.epochs, model.training
        (2, False)
    """
    all_overrides = {**(overrides or {}), **fields}
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    if data is not None:
        all_overrides["data.name"] = data.name if isinstance(data, Images) else data
    with (
        process_group(distributed=distributed) as processes,
        listening(progress, active=processes.is_main) as listener,
    ):
        complete = Recipe.read(recipe, all_overrides, budget=budget)
        if isinstance(data, Images) and isinstance(complete.data.validation, str):
            raise ClasswiseError(
                f"data.validation = {complete.data.validation!r}: a split is read from a data set's name or a path; "
                "give one as data, or a fraction of the images"
            )
        if isinstance(data, Images) and complete.data.imbalance is not None:
            raise ClasswiseError(
                f"data.imbalance = {complete.data.imbalance:g}: applies to a data set's name or a path; give "
                "classwise.data.long_tailed(images, imbalance) as data"
            )
        check_device(device)
        complete = complete.times_batch(processes.world_size)
        run = Run(Path(out))
        if not run.path.is_dir():
            check_folder(run, resume=resume)
        with owned(run.path) if processes.is_main else nullcontext():
            return _train(complete, run, data, unlabelled, resume, device, listener, processes, on_nan)


def _train(
    recipe: Recipe,
    run: Run,
    data: str | Images | None,
    unlabelled: Images | None,
    resume: bool,
    device: str,
    progress: Progress,
    processes: ProcessGroup,
    on_nan: OnNan,
) -> Run:
    """Train in this process; the main process owns the folder."""
    if recipe.model.sync_batch_norm and torch.device(device).type != "cuda":
        raise ClasswiseError(f"model.sync_batch_norm = true needs a GPU, not device {device!r}; use --device cuda")
    check_folder(run, resume=resume)
    if processes.is_main:
        remove_stale_temporaries(run.path)
    images = data if isinstance(data, Images) else training_images(recipe.data)
    resumed, start = run.recipe_file.is_file(), recipe.model.weights
    doubts = list[str]()
    if start is not None and Path(start).exists() and not run.state_file.is_file():
        doubts = check_start_models(run, recipe, images, split_rows(recipe, images)[1], [start])
    if recipe.selection == "auto" and resumed:
        recipe = dataclasses.replace(recipe, selection=run.recipe.selection)
    elif recipe.selection == "auto" and doubts:
        recipe = dataclasses.replace(recipe, selection="last")
        doubts.append(SELECTS_LAST)
    threat = recipe.parts.threat or default_threat(images)
    recipe = recipe.completed(threat, classes=int((images.class_counts() > 0).sum()))
    recipe = recipe.on(device, run.recipe if resumed else None)
    initial = list[str]()
    if resumed:
        recipe = as_resumed(recipe, run.recipe)
        check_resumable(run, recipe, images, processes)
        if not run.state_file.is_file() and run.complete and run.best_epoch() is not None:
            with generators_restored(device):
                check_code(run, code_of_run(recipe, build_model(**model_spec(recipe, images))))
            return run  # the checkpoint of a finished run may be deleted; the events are written last
    else:
        recipe, initial = with_normalization(recipe, images, device)
    written = run.recipe if resumed else recipe
    notes = setup_notes(recipe, images, threat, resumed=resumed)
    notes += initial
    notes += filter(None, [slow_dtype_note(recipe.precision, torch.device(device))])
    notes += doubts
    extra = pseudo_labelled(recipe, images, run, device, unlabelled)
    teacher = load_teacher(recipe, images, device)
    if processes.world_size > 1:
        check_same_arguments(
            processes, {"recipe": recipe.digest(), "data": images.fingerprint(), "folder": str(run.path)}
        )
        progress.log(f"{processes.world_size} processes, batch size {recipe.batch_size} in total")
    for note in notes:
        progress.log(note)
    with generators_restored(device), deterministic_algorithms(enabled=recipe.precision.deterministic):
        trainer = Trainer(recipe, images, run, device, progress, extra, processes, on_nan, teacher)
        if resumed:
            check_code(run, code_of_run(recipe, trainer.model, teacher))
        if resumed and processes.is_main:
            note_resumed(run, trainer.model, processes.world_size)
        trainer.fit()
    processes.barrier()
    return Run(run.path).with_recipe(written)
