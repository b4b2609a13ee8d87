"""``classwise train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import DATA, TRAINING
from classwise.cli.options import (
    Budget,
    DataOptions,
    Device,
    Estimate,
    Json,
    Overrides,
    RatesName,
    Resume,
    Root,
    check_device,
    data_options,
    grouped,
    integers,
    measured_rates,
    out_option,
    pairs,
)
from classwise.cli.trackers import TrackerOptions
from classwise.core.errors import ClasswiseError, quoted

if TYPE_CHECKING:
    from classwise.core.compute.rates import Rates


@grouped
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name (see classwise recipes) or a YAML file.")
    ],
    trackers: TrackerOptions,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="A data set's name, or a path.",
            show_default="that of the recipe",
            rich_help_panel=DATA,
        ),
    ] = None,
    budget: Budget = None,
    set: Overrides = None,  # noqa: A002  # the name of the option
    subset: Annotated[
        int | None,
        typer.Option(
            "--subset",
            metavar="N",
            help="Same as --set data.subset=N: use N images, each class in its proportion.",
            show_default="all",
            rich_help_panel=DATA,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", help="Same as --set epochs=N.", rich_help_panel=TRAINING),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Same as --set seed=N.", rich_help_panel=TRAINING)
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="0,1,2", help="Train one run per seed.", rich_help_panel=TRAINING),
    ] = None,
    on_nan: Annotated[
        str,
        typer.Option(
            "--on-nan",
            metavar="stop|continue",
            help="Action if the loss or the weights are not finite.",
            rich_help_panel=TRAINING,
        ),
    ] = "stop",
    out: Annotated[
        Path | None,
        out_option("The run folder, with --seeds the parent folder.", "runs/NAME[-BUDGET], the recipe's name"),
    ] = None,
    root: Root = None,
    data_set: DataOptions = None,
    resume: Resume = False,
    estimate: Estimate = False,
    rates: RatesName = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train a classifier by a recipe into a run folder.

    On CIFAR-10 this takes hours on a CPU, also with --budget short. --estimate prints the time before any work;
    --subset and --epochs shorten a first try.

    For data with more than 20 classes, FAWA and the selection of the best epoch use the mean of the worst 20 % of the
    classes, for others the worst class. Fields: selection, averaging.worst, averaging.threshold.

    \b
    Examples:
        classwise train cfa-at --budget short --data cifar10 --out runs/cfa \\
            --set model.width=0.25 --estimate
        classwise train cfa-at --budget short --data cifar10 --out runs/tiny \\
            --set model.width=0.25 --subset 2000 --epochs 12
        classwise train at --data photos/ --data-set size=64 \\
            --set threat=Linf:8/255
        classwise train mine.yaml --seeds 0,1,2 --out runs/mine
        classwise train at --set attack=mypackage.attacks:Mine \\
            --set 'schedules=["mypackage.fair:Mine"]'
        torchrun --nproc-per-node 2 -m classwise train at --data cifar10 \\
            --device cuda
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.core.compute.distributed import launched, local_device
    from classwise.training.finite_checks import parse_on_nan

    wanted: dict[str, Any] = {**pairs(set)}
    _change(wanted, "--data", "data.name", data)
    _change(wanted, "--root", "data.root", root)
    _change(wanted, "--subset", "data.subset", subset)
    _change(wanted, "--epochs", "epochs", epochs)
    _change(wanted, "--seed", "seed", seed)
    for key, value in data_options(data_set).items():
        _change(wanted, f"--data-set {key}=", f"data.options.{key}", value)
    if seeds is not None and "seed" in wanted:
        raise ClasswiseError("--seed and --seeds are mutually exclusive; give one of them")
    plan, policy = cw.Recipe.read(recipe, wanted, budget=budget), parse_on_nan(on_nan)
    measured = measured_rates(rates, estimate=estimate)
    folder = out or Path("runs") / plan.name
    folders = {plan.seed: folder}
    if seeds is not None:
        folders = {number: folder / f"seed-{number}" for number in integers(seeds, "--seeds")}
    with launched() as processes:
        device = check_device(local_device(device))
        if estimate:
            if processes.world_size > 1:
                raise ClasswiseError("--estimate times one process; run it without torchrun")
            _estimate(plan, len(folders), device, measured, json)
            return
        if seeds is not None and cw.Run(folder).recipe_file.is_file():
            raise ClasswiseError(f"{folder} contains a run; give another --out for the runs of --seeds")
        used = trackers if processes.is_main else TrackerOptions()
        runs = []
        with console.resumable("continue with --resume", saved=resume), console.progress() as listener:
            for number, place in folders.items():
                if len(folders) > 1:
                    listener.log(f"seed {number}: {place}")
                with used.logging(listener, "" if seeds is None else f"seed-{number}") as logger:
                    runs.append(
                        cw.train(
                            plan,
                            out=place,
                            resume=resume,
                            device=device,
                            on_nan=policy,
                            overrides={"seed": number},
                            progress=logger or listener,
                        )
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
    typer.echo(f"next: classwise audit {quoted(folder if len(runs) > 1 else runs[0].path)}")


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


def _facts(run: cw.Run) -> dict[str, Any]:
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


def _estimate(plan: cw.Recipe, runs: int, device: str, rates: Rates | None, json: bool) -> None:
    """Time two steps in a temporary folder, or predict them by rates."""
    import torch

    from classwise.core.compute.precision import slow_dtype_note
    from classwise.training.cost import estimate_training

    cost = estimate_training(plan, device=device, rates=rates)
    steps, passes, seconds = runs * cost.steps, runs * cost.passes, runs * cost.seconds
    timed_on = str(rates or device)
    if json:
        facts = {"runs": runs, "steps": steps, "passes": passes, "minutes": seconds / 60, "device": timed_on}
        console.show_json(facts)
        return
    typer.echo(
        f"{plan.name}: {steps:,} steps, about {passes:,} forward and backward passes of one image, "
        f"{console.duration(seconds)} ({timed_on}; without the validation at each epoch's end)"
    )
    if rates is None and (note := slow_dtype_note(plan.precision, torch.device(device))):
        typer.echo(note)
