"""Options of sharded audits and curves, and the command lines of their shards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from classwise.cli import console
from classwise.cli.help import COMPUTE
from classwise.cli.options import check_device
from classwise.core.errors import ClasswiseError, IncompleteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from classwise.auditing.run.plan import Plan
    from classwise.cli.cluster import ClusterOptions


@dataclass(frozen=True)
class ShardOptions:
    """Options of an evaluation in shards.

    Raises:
        ClasswiseError: for a malformed ``--shard``, or options that exclude each other.
    """

    panel: ClassVar[str] = COMPUTE

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
            from classwise.auditing.run.partition import Shard

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

    def device(self, cluster: ClusterOptions, device: str, batch_size: int | None) -> str:
        """The device of this process; on a cluster it checks the arguments of shards, which may run elsewhere.

        Raises:
            ClasswiseError: if this machine does not have the device; on a cluster only without a batch size, for
                which the device is then needed.
        """
        try:
            return check_device(device)
        except ClasswiseError as error:
            if cluster.on in (None, "local"):
                raise
            if batch_size is None:
                raise ClasswiseError(f"{error}; give the batch size of the shards, as in --batch-size 512") from error
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
        else:
            console.echo(f"shard {self.shard}: {images:,} images in {folder}; merge with --shards")

    def place(self, folder: Path) -> Path:
        """The folder of the shard of an evaluation in ``folder``; the folder itself without ``--shard``."""
        from classwise.auditing.run.merging import shard_folder
        from classwise.auditing.run.partition import Shard

        return folder if self.shard is None else shard_folder(folder, Shard.parse(self.shard))


def run_tasks(
    words: Sequence[str],
    folder: Path,
    sharding: ShardOptions,
    cluster: ClusterOptions,
    is_finished: Callable[[Path], bool],
    of_shards: Mapping[str, object] | None = None,
) -> None:
    """Run the shards and their merge, and show the progress.

    Args:
        words: the command of the evaluation, see `command`.
        folder: its folder.
        sharding: the number of shards.
        cluster: where they run.
        is_finished: whether a folder contains a finished shard.
        of_shards: options of the shards only; those that are None are omitted.

    Raises:
        IncompleteError: if shards are not finished.
        ClasswiseError: if the merge fails.
    """
    from classwise.sweeps.sharded import run_shards

    assert sharding.shards is not None
    more = [word for option, value in (of_shards or {}).items() if value is not None for word in (option, str(value))]
    gpus = sharding.gpus_per_shard
    executor = cluster.executor(gpus)
    with console.resumable("continue with --resume"), console.progress() as listener:
        run_shards(
            words,
            folder,
            sharding.shards,
            executor,
            is_finished,
            of_shards=more,
            processes=max(gpus, 1),
            progress=listener,
        )


def options_of(plan: Plan) -> list[str]:
    """The options of shards whose default depends on the machine, so that all shards have the same."""
    return [f"--batch-size={plan.batch_size}", f"--precision={plan.precision.dtype}"]


def command(name: str, *groups: Any, **options: object) -> list[str]:
    """The words of a command that has the values of these options.

    Args:
        name: the command.
        *groups: instances of the dataclasses of options.
        **options: further options by name, such as ``threat="Linf:0.1"``; those that are None are omitted.

    Example:
        >>> from classwise.cli.inputs import AttackSelection, ModelSource
        >>> command("audit", ModelSource("runs/at"), AttackSelection(["fgsm"], batch_size=64), threat="L2:0.5")
        ['audit', 'runs/at', '--attack=fgsm', '--batch-size=64', '--threat=L2:0.5']
    """
    words = [name]
    for group in groups:
        hints = get_type_hints(type(group), include_extras=True)
        for field in fields(group):
            value = getattr(group, field.name)
            if field.default is MISSING:
                words.append(str(value))
            elif value != field.default and value is not None:
                words += _words(_declared(hints[field.name]), value)
    for option, value in options.items():
        if value is not None:
            words += _words(f"--{option.replace('_', '-')}", value)
    return words


def _declared(hint: Any) -> str:
    """The declaration of an option, such as ``--cascade/--no-cascade``."""
    info = next(each for each in get_args(hint)[1:] if hasattr(each, "param_decls"))
    # typer takes the first declaration of an annotation for the default.
    return str(next(each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)))


def _words(declared: str, value: Any) -> list[str]:
    on, _, off = declared.partition("/")
    if isinstance(value, bool):
        return [on if value else off]
    return [f"{on}={each}" for each in (value if isinstance(value, list) else [value])]
