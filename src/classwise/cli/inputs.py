"""The options that name a model, images and attacks, and how these are read; shared by the commands that attack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli.options import DataOptions, Device, Root, numbers, pairs
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from torch import nn

    from classwise.core.threat import Threat
    from classwise.data.images import Images
    from classwise.training.folder import Run


@dataclass(frozen=True)
class ModelSource:
    """A model, named but not yet read.

    Raises:
        ClasswiseError: for values that are wrong whatever the model is.
    """

    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, a weights file that names its model, a zoo name, or package.module:callable; for "
            "audit, also a folder of the runs of several seeds."
        ),
    ]
    weights: Annotated[Path | None, typer.Option("--weights", help="A .safetensors, .pt or .pth file.")] = None
    width: Annotated[float | None, typer.Option("--width", help="The model's width factor.")] = None
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="A,B,C", help="With --std: the normalisation the weights expect.")
    ] = None
    std: Annotated[str | None, typer.Option("--std", metavar="A,B,C", help="The deviation of each channel.")] = None
    model_set: Annotated[
        list[str] | None,
        typer.Option("--model-set", metavar="KEY=VALUE", help="A setting of the model, such as depth=34."),
    ] = None

    def __post_init__(self) -> None:
        _ = self.normalisation
        pairs(self.model_set, "--model-set")
        if (self.mean is None) != (self.std is None):
            raise ClasswiseError("--mean and --std go together; give both or neither")

    @property
    def normalisation(self) -> dict[str, list[float] | None]:
        """``mean`` and ``std`` as numbers."""
        return {"mean": numbers(self.mean, "--mean"), "std": numbers(self.std, "--std")}

    @property
    def name(self) -> str:
        """A name for folders."""
        return Path(self.model).stem.replace(":", "-")

    def seed_runs(self) -> list[Run]:
        """The runs in a folder of seeds; empty for anything else."""
        from classwise.models.loading.loader import is_stored
        from classwise.training.folder import runs_in

        if not is_stored(self.model) or not runs_in(Path(self.model)):
            return []
        from classwise.auditing.seeds import seed_runs

        return seed_runs(self.model)

    def run(self, *, needed: bool) -> Run | None:
        """The run whose folder, or one of whose weights files, this is.

        Raises:
            ClasswiseError: for a path or a name of nothing, or one without a run that is needed.
        """
        from classwise.models.loading.loader import is_stored
        from classwise.training.folder import Run

        if not is_stored(self.model):
            return None
        path = Path(self.model)
        for folder in (path, path.parent.parent):
            if (folder / "recipe.yaml").is_file() and (path == folder or path.parent.name == "checkpoints"):
                return Run.open(folder)
        return Run.open(path) if needed and path.is_dir() else None

    def single_run(self, *, needed: bool) -> Run | None:
        """`run`, for a command that takes one model.

        Raises:
            ClasswiseError: for a folder of the runs of several seeds, too.
        """
        if self.seed_runs():
            raise ClasswiseError(
                f"{self.model} holds a run of each seed, and this command takes one; name one of the runs"
            )
        return self.run(needed=needed)

    def load(self, images: Images, device: str) -> nn.Module | str:
        """The model; the path itself where that is enough, so that an evaluation knows the run behind it.

        Raises:
            ClasswiseError: if it cannot be read.
        """
        bare = self.weights is None and self.width is None and not self.model_set and self.mean is None
        if bare and Path(self.model).exists():
            return self.model
        from classwise.core.config import read_yaml
        from classwise.models import load_model

        chosen: dict[str, Any] = {
            key: read_yaml(value, f"--model-set {key}={value}")
            for key, value in pairs(self.model_set, "--model-set").items()
        }
        for key in chosen:
            if key in ("model", "name", "weights", "data", "device", "mean", "std", "width", "container"):
                raise ClasswiseError(
                    f"--model-set {key}: not an option of a model; see --weights, --width, --mean and their like"
                )
        chosen |= self.normalisation
        return load_model(self.model, self.weights, data=images, device=device, width=self.width, **chosen)


@dataclass(frozen=True)
class DataSource:
    """Images, named but not yet read."""

    data: Annotated[
        str | None, typer.Option("--data", help="A data set's name, or a path; of a run folder, the run's own data.")
    ] = None
    split: Annotated[str, typer.Option("--split", help="The split to attack.")] = "test"
    subset: Annotated[
        int | None, typer.Option("--subset", metavar="N", help="Only N images, classes in proportion.")
    ] = None
    root: Root = None
    data_set: DataOptions = None

    def load(self, run: Run | None, seed: int) -> Images:
        """The images; those of a run where none are named.

        Raises:
            ClasswiseError: if they cannot be read, or neither images nor a run is named.
        """
        from classwise.data.loading import load_data

        chosen: dict[str, Any] = {}
        data, root = self.data, self.root
        if data is None:
            if run is None:
                raise ClasswiseError("give the images to attack, as in --data cifar10 or --data photos/")
            data, root = run.recipe.data.name, root or run.recipe.data.root
            chosen |= run.recipe.data.options
        chosen |= pairs(self.data_set, "--data-set")
        return load_data(data, split=self.split, root=root, subset=self.subset, seed=seed, **chosen)


@dataclass(frozen=True)
class AttackOptions:
    """The attacks, their random numbers, and where they run."""

    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="SPEC", help="Such as pgd:steps=50; may be repeated. Else the default suite."),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="The seed of the attacks and of --subset.")] = 0
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Images on the device at once. [128, or as many large images as fit]"),
    ] = None
    device: Device = "cpu"

    @property
    def suite(self) -> list[str] | None:
        """The specs; None for the default suite."""
        return self.attack or None


def threat_of(text: str | None, run: Run | None) -> Threat | None:
    """The threat that is asked for, else that of the run; None for neither.

    Raises:
        ClasswiseError: for a threat that cannot be read.
    """
    from classwise.core.threat import Threat

    if text is None and run is not None:
        text = run.recipe.threat
    return None if text is None else Threat.parse(text)
