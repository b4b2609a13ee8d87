"""`robustness_curve`: the smallest radius at which a suite of attacks succeeds, for every image.

These radii give the accuracy of every class at every radius (`classwise.auditing.curve.result`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

import pandas as pd
import torch
from pydantic import Field

from classwise.auditing.curve.bisection import Bisection, SavedBrackets
from classwise.auditing.curve.result import COLUMNS, RADII, Curve
from classwise.auditing.evaluation.evaluation import ON_COMMAND_LINE, Evaluation, Sharded
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.inputs import Model, usual_radius
from classwise.auditing.run.merging import (
    SHARDS,
    check_images,
    checked_folder,
    require_finished,
    same_hash,
    shards_in,
)
from classwise.auditing.run.partition import check_shards
from classwise.auditing.run.plan import Plan, chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare, with_recorded_code
from classwise.auditing.run.record import RunRecord, environment_of
from classwise.auditing.run.suite import Attacks, parse_attacks
from classwise.core.compute.distributed import process_group
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import ResultFolder
from classwise.core.progress import interruption
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings import limits
from classwise.core.settings.arguments import check, checked
from classwise.data.stream import as_data
from classwise.models.modes import evaluating
from classwise.threat.ball import Norm, Threat

Radius = Annotated[float, Field(gt=0, le=limits.RADIUS)]
Rounds = Annotated[int, Field(ge=1, le=30)]
ROUNDS = 6
"""The default number of halvings of the range; the final width of a bracket is 1/64 of the range."""
USUAL_TIMES = 2.0
"""The default end of the range, as a multiple of the usual radius of the data."""


@checked
@evaluates
def robustness_curve(
    model: Model,
    data: Any,
    norm: Norm = "Linf",
    attacks: Attacks | None = None,
    *,
    highest: Radius | None = None,
    rounds: Rounds = ROUNDS,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    distributed: bool = True,
    **options: Unpack[Sharded],
) -> Curve:
    """Find for every image the smallest radius at which one of the attacks succeeds.

    Args:
        model: as `audit` takes it.
        data: as `audit` takes it; each image is attacked several times, so a stream is held in memory piece by piece.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        attacks: as `audit` takes them; an image is robust at a radius if every attack fails at it.
        highest: the largest radius of the search; None: twice the data's usual one.
        rounds: how often the range is halved: an image's bracket ends at most ``highest / 2**rounds`` wide.
        out: a folder for the curve; each finished round of the search is written into it.
        resume: continue the search in ``out``, or load it if it has finished; it must have the same settings.
        progress: True shows a progress bar; or a listener.
        distributed: share the images among the processes of `torch.distributed`, as in `audit`.
        **options: see `Sharded`.

    Returns:
        The curve: a row for each image with its bracket, the radii between which its robust radius lies.

    Raises:
        ClasswiseError: as `audit` does; or for a range or a number of rounds that makes no sense.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> cw.robustness_curve(model, data, attacks="fgsm", highest=0.2, rounds=2).width
        0.05
    """
    started = time.monotonic()
    shards = options.get("shards")
    check_shards(options, out)
    folder = checked_folder(None if out is None else Path(out), "curve", merges=shards is not None)
    with process_group(distributed=distributed) as processes, contextlib.ExitStack() as stack:
        stack.enter_context(chosen_arithmetic(options.get("precision")))
        listener = stack.enter_context(listening(progress, active=processes.is_main))
        ready = _prepared(model, data, norm, attacks, highest, options)
        stack.enter_context(evaluating(ready.model))
        _report_limits(ready, listener)
        settings, loaded = ready.settings | {"rounds": rounds}, None
        if folder is not None and processes.is_main:
            loaded, ready = _claimed(folder, ready, settings, stack, resume=resume, merged=shards is not None)
        finished: Curve | None = processes.broadcast(loaded)
        if finished is not None:
            return finished
        of_run = {"processes": processes.world_size if processes.world_size > 1 else None, SHARDS: shards}
        facts = environment_of(ready.model) | {key: value for key, value in of_run.items() if value}
        marker = folder.marker if folder is not None and processes.is_main else None
        record = RunRecord(marker, facts, started)
        stack.enter_context(record.saved_on_failure())
        saved = SavedBrackets(None if folder is None else folder.path, processes, record.written)
        processes.barrier()  # every process reads the saved brackets before any process writes
        engine = ready.plan.engine(ready.model, classes=ready.meta.num_classes)
        search = Bisection(engine, ready.plan, processes, listener, saved)
        searched = ([] if shards else _brackets(search, ready, rounds)), ready.source.fingerprint()
        parts = processes.gather(searched)
        curve: Curve | None = None
        if processes.is_main:
            if shards is None or folder is None:
                frame, meta, duration = *_merged(parts, ready.meta), dict[str, float]()
            else:
                frame, meta, duration = _merged_shards(folder, shards, settings, ready)
            name = "curve" if folder is None else folder.path.resolve().name
            radius = float(cast("float", ready.plan.threat.epsilon))
            curve = Curve(frame, meta, radius, rounds, name, record.environment(**duration))
            if folder is not None:
                curve.write(folder.path)
                saved.remove()
        result: Curve = processes.broadcast(curve)
        return result


def claim_for_shards(
    model: Model,
    data: Any,
    norm: Norm = "Linf",
    attacks: Attacks | None = None,
    *,
    out: Path,
    highest: float | None = None,
    rounds: int = ROUNDS,
    resume: bool = False,
    **options: Unpack[Sharded],
) -> Plan:
    """Check all arguments of a sharded `robustness_curve`, and mark its folder with its settings.

    The arguments and errors are those of `robustness_curve`; ``shards`` is among them.

    Returns:
        The plan, whose batch size and precision all shards must have.
    """
    folder = checked_folder(out, "curve", merges=False)
    check_shards(options, out)
    check(robustness_curve, {"highest": highest, "rounds": rounds, **options})
    with chosen_arithmetic(options.get("precision")), contextlib.ExitStack() as stack:
        ready = _prepared(model, data, norm, attacks, highest, options)
        if folder is not None:
            _claimed(folder, ready, ready.settings | {"rounds": rounds}, stack, resume=resume, merged=True)
    return ready.plan


def _prepared(
    model: Model,
    data: Any,
    norm: Norm,
    attacks: Attacks | None,
    highest: float | None,
    options: Sharded,
) -> Inputs:
    """Read the model and the data of a search up to the radius ``highest``.

    Raises:
        ClasswiseError: if they do not fit each other, or no attack is applicable.
    """
    Threat(norm, 0.0)  # reports an unknown norm, such as 'Linf:8/255', before a missing radius
    source = as_data(data)
    ball = Threat(norm, USUAL_TIMES * usual_radius(source, norm) if highest is None else highest)
    suite = parse_attacks(attacks, norm)
    asked = cast("Evaluation", {**options, "cascade": True})
    ready = prepare(model, source, suite, ball, asked)
    return dataclasses.replace(ready, large_radius="") if highest is None else ready


def is_finished(folder: Path) -> bool:
    """Whether a folder contains the finished curve of a shard."""
    return ResultFolder(folder, "curve").marker.is_file() and (folder / RADII).is_file()


def _claimed(
    folder: ResultFolder,
    ready: Inputs,
    settings: Mapping[str, Any],
    stack: contextlib.ExitStack,
    *,
    resume: bool,
    merged: bool,
) -> tuple[Curve | None, Inputs]:
    """Own the folder until the stack is closed, and load the curve in it if its search is finished.

    Returns:
        The curve or None, and the inputs with the code that the folder records.

    Raises:
        ClasswiseError: if the folder has other contents, settings or code, or is in use.
    """
    finished = folder.path / RADII
    if finished.is_file() and not folder.marker.is_file():
        raise ClasswiseError(f"{folder.path} contains a curve without its settings; give another --out")
    beside = [SHARDS] if merged else []
    named = {**ON_COMMAND_LINE, "rounds": "--rounds"}
    claimed = folder.claimed(settings, resume=resume, beside=beside, options=named, code=ready.meta.code)
    resumed = stack.enter_context(claimed)
    ready = with_recorded_code(ready, folder, finished=finished.is_file())
    return Curve.load(folder.path) if resumed and finished.is_file() else None, ready


def _report_limits(ready: Inputs, listener: Progress) -> None:
    """Log the attacks that are not applicable, and the notes on the batch size and the radius."""
    if ready.meta.not_applicable:
        names = ", ".join(ready.meta.not_applicable)
        listener.log(f"not applicable: {names}; the model has no gradient: {ready.no_gradient}")
    ready.log_notes(listener)


def _brackets(search: Bisection, ready: Inputs, rounds: int) -> list[pd.DataFrame]:
    """Search the radii of the images of this process; returns a table for each piece of the data."""
    try:
        return [search.radii(number, piece, rounds) for number, piece in enumerate(ready.pieces)]
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(
            f"the device has no memory for {ready.plan.batch_size} images; use a smaller batch size"
        ) from error
    except interruption.STOPS as stop:
        if search.saved.folder is not None:
            stop.add_note(f"the finished rounds are saved in {search.saved.folder.parent}")
        raise


def _merged(parts: list[tuple[list[pd.DataFrame], str]], meta: Meta) -> tuple[pd.DataFrame, Meta]:
    """Merge the brackets of all processes in the order of the images, and complete the metadata.

    Raises:
        ClasswiseError: if the processes read different images.
    """
    if len({digest for _, digest in parts}) > 1:
        raise ClasswiseError("the processes have read different images; all need the same data in the same order")
    # A shard may have no images.
    frame = pd.concat([table for tables, _ in parts for table in tables] or [pd.DataFrame(columns=list(COLUMNS))])
    frame = frame.sort_values("index", kind="stable").reset_index(drop=True)
    return frame, dataclasses.replace(meta, data_hash=parts[0][1], images=len(frame))


def _merged_shards(
    folder: ResultFolder, count: int, settings: Mapping[str, Any], ready: Inputs
) -> tuple[pd.DataFrame, Meta, dict[str, float]]:
    """The radii of all images from the curves of the shards, the completed metadata, and the duration.

    Raises:
        ClasswiseError: if a shard has other settings or images.
        IncompleteError: if shards are not finished.
    """
    meta = ready.meta
    shards = shards_in(folder, count, settings, ready.code)
    require_finished(folder.path, {shard: is_finished(place.path) for shard, place in shards.items()})
    curves = {place.path: Curve.load(place.path) for place in shards.values()}
    check_images({place: curve.frame["index"].to_numpy() for place, curve in curves.items()}, shards)
    data_hash = same_hash({place: curve.meta.data_hash for place, curve in curves.items()}, meta.data_hash)
    frame = pd.concat([curve.frame for curve in curves.values() if len(curve.frame)])
    frame = frame.sort_values("index", kind="stable").reset_index(drop=True)
    meta = dataclasses.replace(meta, data_hash=data_hash, images=len(frame))
    seconds = sum(float(curve.environment.get("seconds", 0.0)) for curve in curves.values())
    return frame, meta, {"shard_seconds": round(seconds, 3)}
