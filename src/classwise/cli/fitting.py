"""What the commands have in common that change a trained model without training: its model, images and options."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli.evaluation import Flags, threat_of
from classwise.cli.help import COMPUTE
from classwise.cli.inputs import ImageSource, ModelSource
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from torch import nn

FIT_OPTIONS = ("threat", "unique", "batch_size", "precision", "device")
"""The options of an evaluation that these commands have."""
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Seed of the attack and of --subset.",
        show_default="that of the run, or 0",
        rich_help_panel=COMPUTE,
    ),
]


@dataclass(frozen=True)
class FitSource(ImageSource):
    """Options that select the images of a fit."""

    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="The images to fit on: a data set's name or a path. Audit the result on others.",
            show_default="the validation split of the run",
        ),
    ] = None
    split: Annotated[
        str,
        typer.Option("--split", metavar="NAME", help="The split to fit on, which is neither trained on nor audited."),
    ] = "val"


@dataclass(frozen=True)
class FitArguments:
    """The model and the images of a fit, as the functions take them.

    Attributes:
        model: the run folder, or the model.
        data: the images; None for a run.
        threat: the threat of the option.
        options: the further options.
        images: what the images are, for the titles of tables.
    """

    model: Path | nn.Module | str
    data: cw.Images | None
    threat: cw.Threat | None
    options: dict[str, Any]
    images: str


def fit_arguments(
    model: ModelSource, data: FitSource, asked: Flags, seed: int | None, out: Path | None
) -> FitArguments:
    """Load the model and the images; of a run nothing, since the functions do.

    Raises:
        ClasswiseError: for options that do not apply to a run, a model without ``--data`` or ``--out``, or as
            `ModelSource.load` and `load_data`.
    """
    from classwise.models.loading.references import is_stored

    threat = threat_of(getattr(asked, "threat", None), None)
    options: dict[str, Any] = {name: value for name, value in asked.options.items() if value is not None}
    options |= {} if seed is None else {"seed": seed}
    run = Path(model.model)
    if is_stored(model.model) and run.is_dir() and (data.data is None or (run / "recipe.yaml").is_file()):
        _refuse(run, model, data)
        return FitArguments(run, None, threat, options, "the validation split")
    if out is None:
        raise ClasswiseError(
            "--out is required for a model that is not a run folder, such as --out adjusted.safetensors"
        )
    source, settings = data.source(None)
    images = cw.load_data(source, seed=seed or 0, **settings)
    network = model.load(images, str(options.get("device", "cpu")))
    return FitArguments(network, images, threat, options, f"{len(images):,} images of the fit")


def _refuse(run: Path, *groups: ModelSource | FitSource) -> None:
    """Refuse the options of a model and of images for a run, which states them.

    Raises:
        ClasswiseError: naming the option.
    """
    for group in groups:
        for field in fields(group):
            if field.default is not MISSING and getattr(group, field.name) != field.default:
                raise ClasswiseError(
                    f"--{field.name.replace('_', '-')} does not apply to the run {run}, whose validation split is "
                    "used; to fit on other images, name a file of its weights, such as "
                    f"{run / 'checkpoints' / 'last.safetensors'}"
                )
