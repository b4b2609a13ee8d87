"""Options of sharded audits and curves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from classwise.cli import console
from classwise.cli.help import CLUSTER
from classwise.cli.options import check_device
from classwise.core.errors import ClasswiseError, IncompleteError

if TYPE_CHECKING:
    from classwise.auditing.evaluation.evaluation import Evaluation
    from classwise.auditing.run.plan import Plan
    from classwise.cli.cluster import ClusterOptions


@dataclass(frozen=True)
class ShardOptions:
    """Options of an evaluation in shards.

    Raises:
        ClasswiseError: for a malformed ``--shard``, or options that exclude each other.
    """

    panel: ClassVar[str] = CLUSTER

    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="N",
            help="Run the evaluation in N shards with --on, and merge them; without --on, merge shards that were run "
            "with --shard.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="K/N", help="Run shard K of N only; --shards N merges them.", show_default="all images"
        ),
    ] = None
    gpus_per_shard: Annotated[
        int,
        typer.Option(
            "--gpus-per-shard",
            metavar="N",
            min=0,
            help="GPUs of each shard with --on and --device cuda; several start torchrun.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        if self.shard is not None:
            from classwise.auditing.evaluation.shard import Shard

            Shard.parse(self.shard)

    def check(self, cluster: ClusterOptions, device: str, **of_whole: object) -> None:
        """Check that the options fit each other.

        Args:
            cluster: where the shards run.
            device: their device.
            **of_whole: options of the whole evaluation, which do not apply to a shard.

        Raises:
            ClasswiseError: naming the first option that does not apply; if the cluster cannot be reached.
        """
        if self.shard is not None and self.shards is not None:
            raise ClasswiseError("--shard runs one shard and --shards all of them; give one of the two")
        if self.shards is None or cluster.on is None:
            for option, value in {**cluster.given, "gpus_per_shard": self.gpus_per_shard}.items():
                if value:
                    needed = "--shards" if self.shards is None else "--on"
                    raise ClasswiseError(
                        f"--{option.replace('_', '-')} requires {needed}, as in --shards 40 --on local"
                    )
        elif "RANK" in os.environ:
            raise ClasswiseError("--on starts the processes of the shards; omit torchrun")
        elif self.gpus_per_shard and device == "cpu":
            raise ClasswiseError(f"--gpus-per-shard {self.gpus_per_shard} requires --device cuda")
        else:
            cluster.executor(self.gpus_per_shard).check()
        for option, value in of_whole.items():
            if value and self.shard is not None:
                raise ClasswiseError(
                    f"--{option.replace('_', '-')} applies to all images, and --shard runs a part of them; give it to "
                    "the command with --shards, which merges the shards"
                )

    @property
    def arguments(self) -> dict[str, Any]:
        """The given options, as arguments of `classwise.auditing.run.audit.audit`."""
        return {name: value for name, value in (("shard", self.shard), ("shards", self.shards)) if value is not None}

    def device(self, cluster: ClusterOptions, device: str, options: Evaluation) -> str:
        """The device of this process; on a cluster it checks the arguments of shards, which may run elsewhere.

        Raises:
            ClasswiseError: if this machine does not have the device; on a cluster only without a batch size and a
                precision, for which the device is then needed.
        """
        try:
            return check_device(device)
        except ClasswiseError as error:
            if cluster.on in (None, "local"):
                raise
            if None in (options["batch_size"], options["precision"]):
                raise ClasswiseError(
                    f"{error}; give those of the shards, as in --batch-size 512 --precision bfloat16"
                ) from error
        return "cpu"

    def conclude(self, folder: Path, images: int, *, finished: bool = True, json: bool) -> None:
        """Print a line on the shard in a folder.

        Raises:
            IncompleteError: if it is not finished.
        """
        if not finished:
            raise IncompleteError(f"shard {self.shard} is not finished; repeat the command with --resume")
        if json:
            console.show_json({"shard": self.shard, "images": images, "folder": str(folder)})
            return
        place = self.place(folder.absolute().parent.parent)
        merge = "merge" if place == folder.absolute() else f"move it to {self.place(Path('DIR'))} and merge, in DIR,"
        console.echo(f"shard {self.shard}: {images:,} images in {folder}; {merge} with --shards")

    def place(self, folder: Path) -> Path:
        """The folder of the shard of an evaluation in ``folder``; the folder itself without ``--shard``."""
        from classwise.auditing.evaluation.shard import Shard
        from classwise.auditing.run.merging import shard_folder

        return folder if self.shard is None else shard_folder(folder, Shard.parse(self.shard))


def run_tasks(
    function: str,
    arguments: Mapping[str, Any],
    folder: Path,
    sharding: ShardOptions,
    cluster: ClusterOptions,
    is_finished: Callable[[Path], bool],
    of_shards: Mapping[str, Any] | None = None,
) -> None:
    """Run the shards and their merge, and show the progress.

    Args:
        function: the command of the evaluation, ``audit`` or ``curve``.
        arguments: its options by name.
        folder: its folder.
        sharding: the number of shards.
        cluster: where they run.
        is_finished: whether a folder contains a finished shard.
        of_shards: options of the shards only.

    Raises:
        IncompleteError: if shards are not finished.
        ClasswiseError: if the merge fails.
    """
    from pydantic_core import to_jsonable_python

    from classwise.sweeps.executors.sharded import run_shards

    assert sharding.shards is not None
    gpus = sharding.gpus_per_shard
    executor = cluster.executor(gpus)
    with console.resumable("continue with --resume"), console.progress() as listener:
        run_shards(
            function,
            to_jsonable_python(arguments),  # paths as text
            folder,
            sharding.shards,
            executor,
            is_finished,
            of_shards=of_shards or {},
            processes=max(gpus, 1),
            progress=listener,
        )


def options_of(plan: Plan) -> dict[str, Any]:
    """The options of shards whose default depends on the machine, so that all shards have the same."""
    return {"batch_size": plan.batch_size, "precision": plan.precision.dtype}
