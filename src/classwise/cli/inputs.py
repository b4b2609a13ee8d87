"""Options that select a model, images and attacks, shared by the commands that run attacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

import classwise as cw
from classwise.cli.help import DATA, EVALUATION, MODEL
from classwise.cli.options import DataOptions, Root, data_options, numbers, pairs
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from torch import nn

    from classwise.data.stream import Stream


_OPTIONS = ("model", "name", "weights", "data", "device", "mean", "std", "width", "outputs")
"""Arguments of `load_model` that are not settings of the model."""


@dataclass(frozen=True)
class ModelSource:
    """Options that select a model, not yet loaded.

    Raises:
        ClasswiseError: for an invalid combination of options.
    """

    panel: ClassVar[str] = MODEL
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run folder, a weights file that names its model, a zoo name, hf:FOLDER_OR_ID, timm:NAME, "
            "torchvision:NAME, robustbench:NAME/DATA/THREAT, FILE.onnx, or package.module:callable.",
        ),
    ]
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="A .safetensors, .pt or .pth file.")
    ] = None
    width: Annotated[float | None, typer.Option("--width", metavar="FACTOR", help="Width factor of a zoo model.")] = (
        None
    )
    mean: Annotated[
        str | None,
        typer.Option("--mean", metavar="A,B,C", help="Mean of each channel, with --std: input normalisation."),
    ] = None
    std: Annotated[str | None, typer.Option("--std", metavar="A,B,C", help="Standard deviation of each channel.")] = (
        None
    )
    model_set: Annotated[
        list[str] | None,
        typer.Option(
            "--model-set", metavar="KEY=VALUE", help="A setting of the model, such as depth=34. May be repeated."
        ),
    ] = None
    outputs: Annotated[
        str,
        typer.Option(
            "--outputs",
            metavar="auto|logits|probabilities|binary|binary-logits|binary-probabilities",
            help="What the model returns. auto is logits, and raises an error for probabilities or one output per "
            "image. binary is one output per image: the logit or the probability of class 1, determined from the first "
            "images.",
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        _ = self.normalisation
        pairs(self.model_set, "--model-set")
        if (self.mean is None) != (self.std is None):
            raise ClasswiseError("--mean and --std must be given together")

    @property
    def normalisation(self) -> dict[str, list[float] | None]:
        """``mean`` and ``std`` as numbers."""
        return {"mean": numbers(self.mean, "--mean"), "std": numbers(self.std, "--std")}

    @property
    def name(self) -> str:
        """The model's name in folder names."""
        if ":" in self.model and not Path(self.model).exists():
            return re.sub(r"[^\w.-]+", "-", self.model)
        return Path(self.model).stem.replace(":", "-")

    @property
    def scale(self) -> str:
        """What is said of the pixels that a network of the user gets without a normalisation; empty for others.

        If it misses one, the robust accuracy may fall and the clean one not, so that no guard finds it.
        """
        from classwise.models.loading.references import is_stored, parse_reference
        from classwise.models.loading.sources.functions import Function

        if self.mean or is_stored(self.model) or not isinstance(parse_reference(self.model)[0], Function):
            return ""
        unless = "if it was trained on normalised pixels and does not normalise them itself"
        return f"{self.model} gets pixels in [0, 1]; {unless}, give --mean and --std"

    def folder(self, run: cw.Run | None, place: str, name: str) -> Path:
        """The usual folder of a result: in this folder of the run, or in ``audits`` with the model's name."""
        if run is None:
            return Path("audits") / f"{self.name}-{name}"
        return run.path / place / (f"{name}-{Path(self.model).stem}" if Path(self.model).is_file() else name)

    def seed_runs(self) -> list[cw.Run]:
        """The runs in a folder of seeds; empty for anything else."""
        from classwise.models.loading.references import is_stored
        from classwise.training.folder import runs_in

        if not is_stored(self.model) or not runs_in(Path(self.model)):
            return []
        from classwise.auditing.run.seeds import seed_runs

        return seed_runs(self.model)

    def run(self, *, needed: bool) -> cw.Run | None:
        """The run of this folder or weights file.

        Raises:
            ClasswiseError: for a path or a name of nothing, or one without a run that is needed.
        """
        from classwise.models.loading.references import is_stored

        if not is_stored(self.model):
            return None
        path = Path(self.model)
        for folder in (path, path.parent.parent):
            if (folder / "recipe.yaml").is_file() and (path == folder or path.parent.name == "checkpoints"):
                return cw.Run.open(folder)
        return cw.Run.open(path) if needed and path.is_dir() else None

    def single_run(self, *, needed: bool) -> cw.Run | None:
        """`run`, for a command that takes one model.

        Raises:
            ClasswiseError: for a folder of the runs of several seeds, too.
        """
        if self.seed_runs():
            raise ClasswiseError(
                f"{self.model} contains a run per seed, and this command takes one run; name one of them"
            )
        return self.run(needed=needed)

    def load(self, images: cw.Images | Stream | None, device: str) -> nn.Module | str:
        """The model, or its path where the evaluation needs to know the run.

        Raises:
            ClasswiseError: if it cannot be read.
        """
        from classwise.models.loading.references import is_stored

        given = (self.weights, self.width, self.model_set or None, self.mean)
        if given == (None,) * 4 and self.outputs == "auto" and is_stored(self.model):
            return self.model
        from classwise.core.settings.config import read_yaml

        chosen: dict[str, Any] = {
            key: read_yaml(value, f"--model-set {key}={value}")
            for key, value in pairs(self.model_set, "--model-set").items()
        }
        for key in chosen:
            if key in _OPTIONS:
                raise ClasswiseError(
                    f"--model-set {key}: not a setting of the model; use --weights, --width, --mean, --std or --outputs"
                )
        chosen |= {**self.normalisation, "outputs": self.outputs}
        return cw.load_model(self.model, self.weights, data=images, device=device, width=self.width, **chosen)


@dataclass(frozen=True)
class ImageSource:
    """Options that select images without a corruption, not yet loaded."""

    panel: ClassVar[str] = DATA
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="A data set's name or a path.", show_default="the data of the run"),
    ] = None
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="The split to attack.")] = "test"
    subset: Annotated[
        int | None,
        typer.Option("--subset", metavar="N", help="Use N images, each class in its proportion.", show_default="all"),
    ] = None
    root: Root = None
    data_set: DataOptions = None

    def source(self, run: cw.Run | None) -> tuple[str, dict[str, Any]]:
        """The name or path of the data, and the options to read it with.

        Raises:
            ClasswiseError: if neither images nor a run is named.
        """
        chosen: dict[str, Any] = {}
        data, root = self.data, self.root
        own = None if run is None else run.recipe.data
        if own is not None and (data is None or Path(data) == Path(own.name)):
            data, root = own.name, root or own.root
            chosen |= own.options
        if data is None:
            raise ClasswiseError("--data is required, such as --data cifar10 or --data photos/")
        return data, {
            **chosen,
            **data_options(self.data_set),
            "root": root,
            "split": self.split,
            "subset": self.subset,
        }


@dataclass(frozen=True)
class DataSource(ImageSource):
    """Options that select images, not yet loaded.

    Raises:
        ClasswiseError: for a corruption without a severity, or the reverse.
    """

    corruption: Annotated[
        str | None,
        typer.Option(
            "--corruption",
            metavar="NAME",
            help="Corruption of the images, such as fog: published images for cifar10-c, cifar100-c and imagenet-c; "
            "for other data, it is computed.",
            rich_help_panel=EVALUATION,
        ),
    ] = None
    severity: Annotated[
        int | None,
        typer.Option(
            "--severity",
            metavar="N",
            min=1,
            max=5,
            help="Severity of the corruption, from 1 to 5.",
            rich_help_panel=EVALUATION,
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.corruption is None) != (self.severity is None):
            raise ClasswiseError("--corruption and --severity must be given together: --corruption fog --severity 3")

    def load(self, run: cw.Run | None, seed: int) -> cw.Images:
        """The images; those of the run if none are selected.

        Raises:
            ClasswiseError: if they cannot be read, or neither images nor a run is named.
        """
        if self.corruption is not None:
            opened = self.open(run, seed)
            return opened if isinstance(opened, cw.Images) else opened.load()
        source, options = self.source(run)
        return cw.load_data(source, seed=seed, **options)

    def open(self, run: cw.Run | None, seed: int) -> cw.Images | Stream:
        """As `load`, but many large images are decoded while they are used (`classwise.data.sets.loading.open_data`).

        Raises:
            ClasswiseError: as `load`.
        """
        from classwise.data.sets.loading import open_corrupted, open_data

        source, options = self.source(run)
        if self.corruption is not None and self.severity is not None:
            return open_corrupted(source, self.corruption, self.severity, seed=seed, **options)
        return open_data(source, seed=seed, **options)
