"""``classwise train``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from classwise.cli import console
from classwise.cli.help import DATA, TRAINING
from classwise.cli.options import (
    Budget,
    DataOptions,
    Device,
    Estimate,
    Json,
    Overrides,
    Resume,
    Root,
    check_device,
    grouped,
    integers,
    out_option,
    pairs,
)
from classwise.cli.trackers import TrackerOptions
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from classwise.training.finite_checks import OnNan
    from classwise.training.folder import Run
    from classwise.training.recipe import Recipe


@dataclass(frozen=True)
class RecipeOptions:
    """Changes of the recipe, and the seeds to train it with."""

    panel: ClassVar[str] = TRAINING
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="A data set's name, or a path.",
            show_default="that of the recipe",
            rich_help_panel=DATA,
        ),
    ] = None
    budget: Budget = None
    set: Overrides = None
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", help="Same as --set epochs=N.")] = None
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Same as --set seed=N.")] = None
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="0,1,2", help="Train one run per seed."),
    ] = None
    on_nan: Annotated[
        str,
        typer.Option(
            "--on-nan",
            metavar="stop|continue",
            help="Action if the loss or the weights are not finite.",
        ),
    ] = "stop"


@grouped
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name (see classwise recipes) or a YAML file.")
    ],
    changes: RecipeOptions,
    trackers: TrackerOptions,
    out: Annotated[
        Path | None,
        out_option("The run folder, with --seeds the parent folder.", "runs/RECIPE"),
    ] = None,
    root: Root = None,
    data_set: DataOptions = None,
    resume: Resume = False,
    estimate: Estimate = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train a classifier by a recipe into a run folder.

    For data with more than 20 classes, FAWA and the selection of the best epoch use the mean of the worst 20 % of the
    classes, for others the worst class. Fields: selection, averaging.worst, averaging.threshold.

    \b
    Examples:
        classwise train cfa-at --budget short --data cifar10 --out runs/cfa \\
            --set model.width=0.25
        classwise train at --data photos/ --data-set size=64 \\
            --set threat=Linf:8/255
        classwise train mine.yaml --seeds 0,1,2 --out runs/mine
        classwise train at --set attack=mypackage.attacks:Mine \\
            --set 'schedules=["mypackage.fair:Mine"]'
        torchrun --nproc-per-node 2 -m classwise train at --data cifar10 \\
            --device cuda
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.core.distributed import launched, local_device
    from classwise.training.finite_checks import parse_on_nan
    from classwise.training.recipe import Recipe

    wanted: dict[str, Any] = {**pairs(changes.set)}
    _change(wanted, "--data", "data.name", changes.data)
    _change(wanted, "--root", "data.root", root)
    _change(wanted, "--epochs", "epochs", changes.epochs)
    _change(wanted, "--seed", "seed", changes.seed)
    for key, value in pairs(data_set, "--data-set").items():
        _change(wanted, f"--data-set {key}=", f"data.options.{key}", value)
    if changes.seeds is not None and "seed" in wanted:
        raise ClasswiseError("--seed and --seeds are mutually exclusive; give one of them")
    plan, policy = Recipe.read(recipe, wanted, budget=changes.budget), parse_on_nan(changes.on_nan)
    folder = out or Path("runs") / plan.name
    folders = {plan.seed: folder}
    if changes.seeds is not None:
        folders = {number: folder / f"seed-{number}" for number in integers(changes.seeds, "--seeds")}
    with launched() as processes:
        device = check_device(local_device(device))
        if estimate:
            if processes.world_size > 1:
                raise ClasswiseError("--estimate times one process; run it without torchrun")
            _estimate(plan, len(folders), device, json)
            return
        with console.resumable("continue with --resume"):
            runs = _train_all(
                plan, folders, resume, device, policy, trackers if processes.is_main else TrackerOptions()
            )
    if not processes.is_main:
        return
    if json:
        console.show_json([_facts(run) for run in runs])
        return
    for run in runs:
        typer.echo(
            f"{run.path}: {run.recipe.name}, {run.epochs_done} epochs, saved weights {', '.join(run.saved_weights())}"
        )
    typer.echo(f"next: classwise audit {folder if len(runs) > 1 else runs[0].path}")


def _change(wanted: dict[str, Any], option: str, field: str, value: str | int | None) -> None:
    """Add the override of an option; None is an absent option.

    Raises:
        ClasswiseError: if ``--set`` asks for another value of the field.
    """
    if value is None:
        return
    if field in wanted and str(wanted[field]) != str(value):
        asked = f"{option}{value}" if option.endswith("=") else f"{option} {value}"
        raise ClasswiseError(f"{asked} and --set {field}={wanted[field]} differ; give one of them")
    wanted[field] = value


def _train_all(
    plan: Recipe, folders: dict[int, Path], resume: bool, device: str, on_nan: OnNan, trackers: TrackerOptions
) -> list[Run]:
    from classwise.training.train import train as train_one

    runs = []
    with console.progress() as listener:
        for seed, folder in folders.items():
            if len(folders) > 1:
                listener.log(f"seed {seed}: {folder}")
            changed = {"seed": seed}
            settings: dict[str, Any] = {"resume": resume, "device": device, "on_nan": on_nan}
            with trackers.logging(listener, f"seed-{seed}" if len(folders) > 1 else "") as logger:
                runs.append(train_one(plan, out=folder, progress=logger or listener, overrides=changed, **settings))
    return runs


def _facts(run: Run) -> dict[str, Any]:
    epochs = run.epochs
    last = epochs[epochs["epoch"] == epochs["epoch"].max()]
    return {
        "run": str(run.path),
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "epochs": run.epochs_done,
        "best_epoch": run.best_epoch(),
        "weights": {name: str(run.weights_file(name)) for name in run.saved_weights()},
        "last_epoch": last.drop(columns="epoch").to_dict("records"),
    }


def _estimate(plan: Recipe, runs: int, device: str, json: bool) -> None:
    """Time two steps in a temporary folder."""
    import torch

    from classwise.core.precision import slow_dtype_note
    from classwise.training.cost import estimate_training

    cost = estimate_training(plan, device=device)
    steps, passes, seconds = runs * cost.steps, runs * cost.passes, runs * cost.seconds
    if json:
        console.show_json({"runs": runs, "steps": steps, "passes": passes, "minutes": seconds / 60})
        return
    typer.echo(
        f"{plan.name}: {steps:,} steps, about {passes:,} forward and backward passes of one image, "
        f"{console.duration(seconds)} ({device}; without the validation at each epoch's end)"
    )
    if note := slow_dtype_note(plan.precision, torch.device(device)):
        typer.echo(note)
