"""`audit`: attack a model on every image, and say class by class what is left."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from classwise.attacks.engine import SMALLEST_BATCH
from classwise.auditing import parts
from classwise.auditing.artifacts import checked_kinds
from classwise.auditing.cost import estimate
from classwise.auditing.folders import check_place, claim, settings_of
from classwise.auditing.guards import SAMPLE, Evidence, Probe, Scale, run_guards
from classwise.auditing.meta import Meta
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.plan import Group, Model, group_name, prepare, training_attack_of
from classwise.auditing.result import ABOUT, Audit, folder_for, read_about, write_about
from classwise.auditing.runner import Runner
from classwise.auditing.suite import Attacks, norm_of, parse_attacks
from classwise.auditing.writer import OutcomeWriter
from classwise.core import interruption
from classwise.core.distributed import ProcessGroup, process_group
from classwise.core.environment import environment
from classwise.core.errors import ClasswiseError
from classwise.core.ownership import owned
from classwise.core.precision import FAST, Precision
from classwise.core.progress import Progress, Silent
from classwise.core.threat import Threat
from classwise.data.images import Images
from classwise.data.loading import named_set
from classwise.data.stream import Stream
from classwise.models.loading.loader import is_stored
from classwise.training.folder import runs_in

__all__ = ["Audit", "audit", "estimate"]


@torch.inference_mode(mode=False)
def audit(
    model: Model,
    data: Any,
    threat: Threat | str | None = None,
    attacks: Attacks | None = None,
    *,
    cascade: bool | None = None,
    early_stop: bool = True,
    group: Group | None = None,
    precision: Precision = FAST,
    batch_size: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    save: str | Sequence[str] = (),
    trace: Sequence[int] = (),
    max_time: float | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    name: str = "audit",
    distributed: bool = True,
) -> Audit:
    """Attack a model on every image, and say class by class what is left.

    Where `torch.distributed` is initialised, all its processes must call this with the same settings: they share the
    images, and the outcomes are those of one process, bit for bit. All of them get the result.

    Args:
        model: a module that maps images in [0, 1] to logits (N, C), a run folder, or whatever else `load_model` reads.
            It is evaluated in evaluation mode and left as it was.
        data: `Images`, a pair (x, y), a Dataset, a DataLoader, or an iterable of (x, y), which is streamed.
        threat: the ball, such as ``"Linf:8/255"``; its radius may be a tensor, one for each image in memory. None: the
            usual one of a data set that is known by name.
        attacks: see `classwise.auditing.suite.parse_attacks`; None: its `DEFAULT_SPECS`. Attacks that need gradients
            are not applicable to a model that has none: they have no rows, ``all`` is over the other attacks, and the
            guard ``no-gradient`` names them.
        cascade: an attack sees only what those before it left standing; cheaper, and tells nothing of each alone.
            None: only where ``attacks`` has a named suite, such as ``autoattack``.
        early_stop: stop attacking an image at the first success. False: every attack runs all its steps on every image
            and the last iterate counts, as confusion and confidence figures need.
        group: judge by groups in place of classes: ``"superclass"``, a column of the data, or a value for each image.
        precision: how gradients are computed; success is decided in float32.
        batch_size: images on the device at once, at least 32; results repeat bit for bit at one batch size. None: 128,
            or of images above 64 x 64 pixels as many as fit, which is logged; ``resume`` takes the batch of the audit
            in ``out``.
        seed: of the attacks' draws.
        out: a folder for the audit, written in blocks as rows come; of a run folder, its ``audits/<name>``.
        resume: go on with the audit in ``out``, which must have the same settings.
        save: ``"logits"``, ``"features"``, ``"images"``: tensors to keep of every image that is attacked.
        trace: numbers of images whose confidences are followed step by step.
        max_time: seconds after which no further image is begun. If images are left, the result is incomplete: its
            tables have bounds in place of estimates, and ``resume`` continues it.
        device: where to run; None: where the model is. A module is moved there.
        progress: who is told how it goes.
        name: what the audit is called.
        distributed: share the images among the processes of `torch.distributed`; False: this process only.

    Returns:
        The audit, its guards run.

    Raises:
        ClasswiseError: for attacks, threat or data that cannot be read, a model that does not fit the data, or a
            folder that holds something else or is in use; all before any attack.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=64)
        >>> model = cw.load_model("small-cnn", data=data, width=0.25)  # or any nn.Module
        >>> audit = cw.audit(model, data, threat="Linf:0.1", attacks=["pgd:steps=5", "fgsm"])
        >>> audit.names
        ('clean', 'pgd', 'fgsm', 'all')
        >>> audit.by_class.shape  # a row per class
        (10, 7)
    """
    if not isinstance(model, nn.Module) and is_stored(str(model)) and runs_in(Path(model)):
        raise ClasswiseError(
            f"{model} holds a run of each seed; audit_seeds audits all of them, audit one by its folder"
        )
    with process_group(distributed=distributed) as processes, contextlib.ExitStack() as stack:
        started = time.monotonic()
        listener = progress if progress is not None and processes.is_main else Silent()
        suite, kinds = parse_attacks(attacks, norm_of(threat)), checked_kinds(save)
        cascade = suite.cascade if cascade is None else cascade
        if max_time is not None and not max_time > 0:
            raise ClasswiseError(f"max_time = {max_time}: give the seconds that the audit may take, above 0")
        settings: dict[str, Any] = {
            "early_stop": early_stop,
            "cascade": cascade,
            "precision": precision,
            "batch_size": batch_size,
            "seed": seed,
        }
        settings |= {"save": kinds, "trace": tuple(int(number) for number in trace)}
        folder = None if out is None else folder_for(Path(out), name)
        if folder is not None:
            check_place(folder, "audit", ABOUT, f"outcomes/{parts.name(0)}")
        if batch_size is None and resume and folder is not None:
            settings["batch_size"] = _recorded_batch(folder)
        ready = prepare(model, data, suite, threat, group=group, device=device, **settings)
        if ready.note:
            listener.log(ready.note)
        decided = settings_of(ready.plan, ready.meta)
        _same_everywhere(processes.all_gather(decided))
        if folder is not None and processes.is_main:
            stack.enter_context(owned(folder))
            empty = Audit(_nothing(ready.meta), name=name)
            claim(
                folder,
                "audit",
                ABOUT,
                decided,
                resume=resume,
                read=lambda: read_about(folder).get("settings", {}),
                write=lambda: write_about(folder, empty, settings=decided),
            )
        processes.barrier()
        writer = OutcomeWriter(folder, ready.meta, processes.rank, processes.world_size)
        processes.barrier()  # nobody writes before everybody has seen which numbers are taken
        if ready.meta.not_applicable:
            names = ", ".join(ready.meta.not_applicable)
            listener.log(f"not applicable: {names}; the model has no gradient: {ready.no_gradient}")
        if processes.world_size > 1:
            listener.log(
                f"{processes.world_size} processes share the images; what is counted here is the part of the first"
            )
        deadline = float("inf") if max_time is None else started + max_time
        runner = Runner(
            ready.model, ready.plan, writer, listener, deadline=deadline, sample_size=SAMPLE, processes=processes
        )
        try:
            runner.run(ready.pieces)
        except interruption.STOPS as stop:
            if folder is not None:
                stop.add_note(f"{writer.count():,} outcomes are saved in {folder}")
            raise

        writer = _together(writer, processes)
        if isinstance(ready.source, Stream):
            read = processes.all_gather(ready.source.fingerprint())
            if len({each for each in read if each}) > 1:
                raise ClasswiseError("the processes read other images of the stream; give all of them the same order")
        if not processes.is_main:
            result: Audit = processes.broadcast(None)
            return result
        outcomes = writer.outcomes()
        if isinstance(ready.source, Stream):
            images = outcomes.meta.images if runner.images is None else runner.images
            meta = dataclasses.replace(outcomes.meta, data_hash=read[0], images=images)
            outcomes = Outcomes(outcomes.frame, meta)
        for label, count in outcomes.missing.items():
            listener.log(f"{label}: {count} images are not judged, the time limit was reached")
        probe = _probe(runner, ready.source, gradients=not ready.no_gradient)
        if probe is not None:
            listener.log(f"guards: a sample of {len(probe.batch.x)} images")
        evidence = Evidence(
            outcomes,
            ready.plan.suite.attacks,
            was_training=ready.was_training,
            untrained=ready.untrained,
            no_gradient=ready.no_gradient,
            overwrites=runner.engine.passes.overwrites,
            training_attack=training_attack_of(model),
            probe=probe,
        )
        facts = {"seconds": round(time.monotonic() - started, 3), "max_time": max_time}
        if processes.world_size > 1:
            facts["processes"] = processes.world_size
        result = Audit(
            outcomes=outcomes,
            warnings=run_guards(evidence),
            group=group_name(group),
            name=name,
            path=folder,
            environment=environment(runner.engine.device) | facts,
            artifacts=writer.artifacts,
            trace=pd.concat(runner.traces, ignore_index=True) if runner.traces else None,
        )
        if folder is not None:
            result.write_trace(folder)
            write_about(folder, result, settings=decided)
        processes.broadcast(result)
        return result


def _same_everywhere(settings: Sequence[Mapping[str, Any]]) -> None:
    """See that all processes were asked for the same audit.

    Raises:
        ClasswiseError: if they were not.
    """
    for rank, other in enumerate(settings):
        for key, value in settings[0].items():
            if other[key] != value:
                mine, theirs = json.dumps(value), json.dumps(other[key])
                raise ClasswiseError(f"process {rank} has another {key}: {theirs[:80]}, not {mine[:80]}")


def _together(writer: OutcomeWriter, processes: ProcessGroup) -> OutcomeWriter:
    """The first process's recorder with the rows of all; the others' as they are."""
    if processes.world_size == 1:
        return writer
    notes = dict.fromkeys(note for each in processes.all_gather(writer.meta.notes) for note in each)
    others = processes.gather(None if writer.folder is not None else writer)
    if not processes.is_main:
        return writer
    meta = dataclasses.replace(writer.meta, notes=tuple(notes))
    if writer.folder is not None:
        return OutcomeWriter(writer.folder, meta)
    writer.meta = meta
    writer.merge(others[1:])
    return writer


def _probe(runner: Runner, source: Images | Stream, *, gradients: bool) -> Probe | None:
    """The model and a sample for the guards; None when the time is up."""
    if runner.sample is None or runner.late:
        return None
    threat = runner.plan.threat
    if runner.sample_radius is not None:
        threat = threat.with_epsilon(runner.sample_radius)
    sample = type(runner.sample)(*(tensor.to(runner.engine.device) for tensor in runner.sample))
    known = named_set(source) if isinstance(source, Images) else None
    scale = None if known is None else Scale(known.mean, known.std)
    return Probe(runner.engine, sample, threat, runner.plan.precision, scale, gradients=gradients)


def _recorded_batch(folder: Path) -> int | None:
    """The batch of the audit in a folder; None without one."""
    batch = read_about(folder).get("settings", {}).get("batch_size") if (folder / ABOUT).is_file() else None
    return batch if isinstance(batch, int) and batch >= SMALLEST_BATCH else None


def _nothing(meta: Meta) -> Outcomes:
    columns = [*parts.COLUMNS, *meta.groups]
    return Outcomes(pd.DataFrame(columns=columns), meta)
