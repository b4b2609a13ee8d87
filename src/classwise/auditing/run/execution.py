"""The execution of a prepared audit: claim its folder, attack the images, run the guards and build the result."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from classwise.auditing.guards.budget import run_guards
from classwise.auditing.guards.evidence import Evidence, Memory, Probe, Training, memory_of
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.outcomes.writer import OutcomeWriter
from classwise.auditing.run.audit_folder import ABOUT, guards_in, read_about, write_trace
from classwise.auditing.run.claim import Claim, finished_audit
from classwise.auditing.run.loop import Attacked, AttackLoop
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.record import RunRecord, environment_of
from classwise.auditing.run.result import Audit, about_of
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.rng import seeded
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import ResultFolder
from classwise.core.progress.listener import Progress
from classwise.core.progress.record import recorded
from classwise.data.images import Batch
from classwise.data.sets.loading import named_set
from classwise.data.stream import Stream
from classwise.models.base import bare, device_of
from classwise.models.logits import fitted_images_of
from classwise.models.modes import evaluating
from classwise.models.normalization import InputScale


def execute(
    claim: Claim,
    started: float,
    max_time: float | None,
    *,
    resume: bool,
    group: str | None,
    training: Training | None,
) -> Audit:
    """Run a prepared audit in all processes and return its result in each.

    Args:
        claim: the audit and its folder.
        started: when it began, on the monotonic clock.
        max_time: seconds that it may take, after which no further image is started; None: no limit.
        resume: whether the folder may contain this audit already.
        group: the grouping that tables use in place of the class.
        training: how the model was trained, if known.

    Raises:
        ClasswiseError: if the folder cannot be claimed, or the processes have different settings or images.
        IncompleteError: if it is merged of shards that are not finished.
    """
    inputs, processes, folder = claim.inputs, claim.processes, claim.main_folder
    plan, deadline = inputs.plan, math.inf if max_time is None else started + max_time
    inputs.log_notes(claim.progress)
    with (
        evaluating(inputs.model),
        claim.held(resume=resume) as meta,
        recorded(folder, claim.progress) as progress,
    ):
        saved = finished_audit(folder, plan, is_shard=claim.shard is not None) if resume and folder else None
        claim.check_code(finished=saved is not None)
        if saved is not None:
            plan = plan.with_options(trace=())
        merged = claim.merged(meta)
        environment = {**environment_of(inputs.model), "max_time": max_time}
        environment |= {**claim.of_shards, **merged.environment} if claim.shards else {}
        environment |= {"processes": processes.world_size} if processes.world_size > 1 else {}
        record = RunRecord(folder and folder / ABOUT, environment, started)
        record.prepared()
        with record.saved_on_failure():
            processes.barrier()
            notes = tuple(dict.fromkeys((*meta.notes, *merged.notes)))
            meta_of_rows = dataclasses.replace(meta, notes=notes)
            writer = OutcomeWriter(claim.folder, meta_of_rows, processes.rank, processes.world_size, record.written)
            processes.barrier()  # no process writes before all have read which file numbers are used
            if meta.not_applicable:
                names = ", ".join(meta.not_applicable)
                progress.log(f"not applicable: {names}; the model has no gradient: {inputs.no_gradient}")
            if processes.world_size > 1:
                several = f"{processes.world_size} processes share the images"
                progress.log(f"{several}; the counts shown are those of the first process")
            loop = AttackLoop(inputs, plan, writer, processes, progress, record, deadline)
            attacked = loop.run()
            if any(processes.all_gather(record.worked)):  # something was left to do
                saved = None
            writer = _gathered(writer, processes)
            data_hash = _stream_hash(
                claim, merged.data_hash or ("" if saved is None else saved.outcomes.meta.data_hash)
            )
            result: Audit | None = None
            if saved is not None:
                progress.log(f"loaded from {folder}, a finished audit")
                result = dataclasses.replace(saved, group=group)
            elif processes.is_main:
                finish = _Finish(claim, plan, writer, attacked, record, progress, loop.late)
                result = finish.result(data_hash, group, training, overwrites=merged.overwrites)
            shared: Audit = processes.broadcast(result)
            return shared


def _gathered(writer: OutcomeWriter, processes: ProcessGroup) -> OutcomeWriter:
    """The writer with the rows of all processes, in the first one."""
    if processes.world_size == 1:
        return writer
    notes = dict.fromkeys(note for own_notes in processes.all_gather(writer.meta.notes) for note in own_notes)
    others = processes.gather(None if writer.folder is not None else writer)
    if processes.is_main:
        writer.meta = dataclasses.replace(writer.meta, notes=tuple(notes))
        if writer.folder is not None:
            return OutcomeWriter(writer.folder, writer.meta)
        writer.merge(others[1:])
    return writer


def _stream_hash(claim: Claim, expected: str) -> str:
    """Hash of the images of a stream, which is known once they were read; empty for images in memory.

    Args:
        claim: the audit.
        expected: the hash of the shards or of an earlier run; empty if it is unknown.

    Raises:
        ClasswiseError: if the processes have read different images, or others than expected.
    """
    source = claim.inputs.source
    if not isinstance(source, Stream):
        return ""
    hashes = claim.processes.all_gather(source.fingerprint())
    if len({found for found in hashes if found}) > 1:
        raise ClasswiseError("the processes have read different images; all need the same stream in the same order")
    if expected and hashes[0] not in ("", expected):
        contents = "the folder contains an audit of" if claim.shards is None else "the shards have read"
        raise ClasswiseError(f"{contents} other images; all need the same stream in the same order")
    return str(hashes[0])


@dataclass(frozen=True)
class _Finish:
    """Builds and records the result of an audit, in the first process.

    Args:
        claim: the audit.
        plan: how it attacked the images.
        writer: the rows of all processes.
        attacked: what the loop knows beside the rows.
        record: the record of the run.
        progress: receives the progress.
        late: whether the deadline has passed.
    """

    claim: Claim
    plan: Plan
    writer: OutcomeWriter
    attacked: Attacked
    record: RunRecord
    progress: Progress
    late: bool

    def result(self, data_hash: str, group: str | None, training: Training | None, *, overwrites: bool) -> Audit:
        """Run the guards, and write the record of the audit.

        Args:
            data_hash: hash of the images of a stream.
            group: the grouping that tables use in place of the class.
            training: how the model was trained, if known.
            overwrites: whether the model writes into its input, as a shard has recorded.
        """
        outcomes = self._outcomes(data_hash)
        overwrites |= self.attacked.engine.passes.overwrites
        warnings, report = self._guards(outcomes, training, overwrites=overwrites)
        traces, folder = self.attacked.traces, self.claim.folder
        audit = Audit(
            outcomes=outcomes,
            warnings=warnings,
            group=group,
            name=self.claim.name,
            path=folder,
            environment=self.record.environment(**self.attacked.facts),
            artifacts=self.writer.artifacts,
            trace=pd.concat(traces, ignore_index=True) if traces else None,
            guards=report,
        )
        if folder is not None:
            write_trace(folder, audit.trace)
            about = about_of(audit) | (self._of_shard() or self.claim.of_shards)
            ResultFolder(folder, "audit").write(**about, settings=self.claim.inputs.settings)
        return audit

    def _of_shard(self) -> dict[str, Any]:
        """The entry of ``audit.json`` on the shard that was attacked."""
        if self.claim.shard is None:
            return {}
        images, meta = self.attacked.images, self.claim.inputs.meta
        overwrites = self.attacked.engine.passes.overwrites
        about = {"finished": images is not None, "images": images, "overwrites": overwrites}
        return {"shard": {**about, "attacks": meta.applicable}}

    def _outcomes(self, data_hash: str) -> Outcomes:
        """The table of all rows; the number of images and the hash of a stream are known once it was read."""
        outcomes, source = self.writer.outcomes(), self.claim.inputs.source
        if isinstance(source, Stream):
            # A shard attacks some of the images that it reads.
            images = outcomes.meta.images if self.attacked.images is None else int(source.class_counts().sum())
            outcomes = Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta, data_hash=data_hash, images=images))
        in_time = self.plan.sampling is not None and not self.late
        reason = "they are outside the sample" if in_time else "the time limit was reached"
        for label, count in outcomes.missing.items() if self.claim.shard is None else ():
            self.progress.log(f"{label}: {count} images are not judged, {reason}")
        return outcomes

    def _guards(
        self, outcomes: Outcomes, training: Training | None, *, overwrites: bool
    ) -> tuple[tuple[AuditWarning, ...], GuardReport]:
        """The results of the guards, or those of a finished audit in the folder."""
        mode, inputs = self.plan.asked["guards"], self.claim.inputs
        about = {} if self.claim.folder is None else read_about(self.claim.folder)
        warnings, report = guards_in(about)
        if report is not None and about.get("complete") and report.covers(mode):
            return warnings, report
        if mode != "off":
            self.progress.log(f"guards: {mode}")
        probe = None if self.late else self._probe(outcomes.meta.data_hash)
        evidence = Evidence(
            outcomes,
            self.plan.suite.attacks,
            was_training=inputs.was_training,
            untrained=inputs.untrained,
            no_gradient=inputs.no_gradient,
            overwrites=overwrites,
            duplicates=self.attacked.duplicates,
            fitted=self.attacked.duplicates.count_among(fitted_images_of(inputs.model)),
            training=training,
            labels=inputs.class_labels,
            probe=probe,
        )
        with self.record.phase("guards"), seeded(self.plan.asked["seed"] % (1 << 32), device_of(inputs.model)):
            return run_guards(evidence, mode, late=probe is None)

    def _probe(self, data_hash: str) -> Probe | None:
        """The model and a sample of images for the guards; None without images."""
        if self.attacked.sample is None:
            return None
        engine, inputs, (batch, threat) = self.attacked.engine, self.claim.inputs, self.attacked.sample
        known, full = named_set(inputs.source), self.plan.asked["guards"] == "full"
        return Probe(
            engine,
            Batch(*(tensor.to(engine.device) for tensor in batch)),
            threat,
            self.plan.precision,
            None if known is None else InputScale(known.mean, known.std),
            gradients=not inputs.no_gradient,
            outputs=inputs.meta.num_classes,
            memory=Memory() if full else memory_of(bare(inputs.model), inputs.meta.model_hash, data_hash),
        )
