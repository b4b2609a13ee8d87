"""The execution of a prepared audit: claim its folder, run the attacks, gather the rows, run the guards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH
from classwise.auditing.guards.budget import run_guards
from classwise.auditing.guards.evidence import Evidence, InputScale, Memory, Probe, memory_of
from classwise.auditing.guards.report import GuardReport
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.outcomes.writer import OutcomeWriter
from classwise.auditing.run.audit_folder import ABOUT, read_about, write_trace
from classwise.auditing.run.merging import SHARDS, Merged, is_finished, merge
from classwise.auditing.run.partition import Shard
from classwise.auditing.run.plan import AuditOptions, Plan
from classwise.auditing.run.preparation import Inputs
from classwise.auditing.run.record import RunRecord, environment_of
from classwise.auditing.run.result import Audit, AuditWarning, about_of
from classwise.auditing.run.runner import Runner
from classwise.auditing.run.sampling import Sampling
from classwise.core import interruption
from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.precision import Precision
from classwise.core.progress import Progress
from classwise.core.progress_record import recorded
from classwise.core.rng import seeded
from classwise.core.storage import ResultFolder
from classwise.data.loading import named_set
from classwise.data.stream import Stream
from classwise.models.base import bare, device_of


@dataclass(frozen=True)
class Execution:
    """A prepared audit, the processes that run it, and the folder that it is written into.

    Args:
        ready: the model, the images and the plan.
        folder: the audit's folder; None: rows are held in memory.
        processes: the processes that share the images.
        progress: receives the progress of this process.
        started: when the audit began, on the monotonic clock.
        max_time: seconds that it may take; None: no limit.
        shard: the shard that is attacked; None: all images.
        shards: number of the shards of which the audit is merged; None: it is not.
    """

    ready: Inputs
    folder: Path | None
    processes: ProcessGroup
    progress: Progress
    started: float
    max_time: float | None = None
    shard: Shard | None = None
    shards: int | None = None

    @property
    def name(self) -> str:
        """Name of the audit: that of its folder."""
        return "audit" if self.folder is None else self.folder.resolve().name

    def run(self, *, resume: bool, group: str | None, training_attack: Attack | None) -> Audit:
        """Run the audit in all processes and return its result in each.

        Args:
            resume: whether the folder may contain this audit already.
            group: the grouping that tables use in place of the class.
            training_attack: the attack of the model's training, if known.

        Raises:
            ClasswiseError: if the folder cannot be claimed, or the processes have different settings or images.
            IncompleteError: if it is merged of shards that are not finished.
        """
        self.ready.log_notes(self.progress)
        settings = self.ready.settings
        _check_same_settings(self.processes.all_gather(settings))
        folder = self.folder if self.processes.is_main else None
        with self.claimed(resume=resume), recorded(folder, self.progress) as progress:
            is_shard = self.shard is not None
            saved = finished_audit(folder, self.ready.plan, is_shard=is_shard) if resume and folder else None
            merged = self._merged()
            record = RunRecord(folder and folder / ABOUT, self._environment(merged.environment), self.started)
            record.prepared()
            with record.saved_on_failure():
                runner = self._attack(merged.notes, progress, record, trace=saved is None)
                saved = None if any(self.processes.all_gather(record.worked)) else saved
                writer = self._gathered(runner.writer)
                fingerprint = self._stream_fingerprint(
                    merged.data_hash or ("" if saved is None else saved.outcomes.meta.data_hash)
                )
                result: Audit | None = None
                if self.processes.is_main and saved is not None:  # nothing was left to do
                    result = dataclasses.replace(saved, group=group)
                elif self.processes.is_main:
                    outcomes = self._outcomes(runner, writer, fingerprint)
                    evidence = self._evidence(runner, outcomes, training_attack, overwrites=merged.overwrites)
                    result = self._result(runner, evidence, writer.artifacts, group, record)
                    if self.folder is not None:
                        write_trace(self.folder, result.trace)
                        about = about_of(result) | self._of_shards(runner)
                        ResultFolder(self.folder, "audit").write(**about, settings=settings)
                shared: Audit = self.processes.broadcast(result)
                return shared

    @contextlib.contextmanager
    def claimed(self, *, resume: bool) -> Iterator[None]:
        """Own the audit's folder, from the first process.

        Raises:
            ClasswiseError: if it contains something else, or this audit although ``resume`` is false.
        """
        folder, settings = self.folder, self.ready.settings
        if folder is None or not self.processes.is_main:
            yield
            return
        columns = [*outcome_files.COLUMNS, *self.ready.meta.groups]
        empty = about_of(Audit(Outcomes(pd.DataFrame(columns=columns), self.ready.meta), name=self.name))
        beside = [SHARDS] if self.shards else []
        about = ResultFolder(folder, "audit")
        with about.claimed(settings, resume=resume, beside=beside, **empty, **self._of_shards()):
            yield

    def _of_shards(self, runner: Runner | None = None) -> dict[str, Any]:
        """The entries of ``audit.json`` on the shard that was attacked, or on the shards that were merged."""
        if self.shard is None or runner is None:
            return {} if self.shards is None else {SHARDS: self.shards}
        about = {"finished": runner.images is not None, "images": runner.images, "overwrites": runner.overwrites}
        return {"shard": {**about, "attacks": self.ready.meta.applicable}}

    def _merged(self) -> Merged:
        """Merge the shards, from the first process, unless the audit is complete.

        Raises:
            IncompleteError: if shards are not finished.
            ClasswiseError: if they do not belong to this audit, or the folder contains an audit without shards.
        """
        folder = self.folder
        if self.shards is None or folder is None or not self.processes.is_main:
            return Merged()
        about = read_about(folder)
        if about.get("complete"):
            return Merged()
        if SHARDS not in about:
            raise ClasswiseError(f"{folder} contains an audit without shards; omit --shards to continue it")
        return merge(folder, self.shards, self.ready.meta, self.ready.settings)

    def _attack(self, notes: Sequence[str], progress: Progress, record: RunRecord, *, trace: bool) -> Runner:
        """Run the clean pass and every attack on the images of this process.

        Args:
            notes: those of other runs.
            progress: receives the progress.
            record: the record of the run.
            trace: whether images are traced.
        """
        ready, processes = self.ready, self.processes
        processes.barrier()
        meta = dataclasses.replace(ready.meta, notes=tuple(dict.fromkeys((*ready.meta.notes, *notes))))
        writer = OutcomeWriter(self.folder, meta, processes.rank, processes.world_size, record.written)
        processes.barrier()  # no process writes before all have read which file numbers are used
        if ready.meta.not_applicable:
            names = ", ".join(ready.meta.not_applicable)
            self.progress.log(f"not applicable: {names}; the model has no gradient: {ready.no_gradient}")
        if processes.world_size > 1:
            self.progress.log(
                f"{processes.world_size} processes share the images; the counts shown are those of the first process"
            )
        runner = Runner(
            ready.model,
            ready.plan if trace else dataclasses.replace(ready.plan, trace=()),
            writer,
            progress,
            deadline=math.inf if self.max_time is None else self.started + self.max_time,
            processes=processes,
            phase=record.phase,
        )
        try:
            runner.run(ready.pieces)
        except interruption.STOPS as stop:
            if self.folder is not None:
                stop.add_note(f"{writer.count():,} outcomes are saved in {self.folder}")
            raise
        return runner

    def _gathered(self, writer: OutcomeWriter) -> OutcomeWriter:
        """The writer with the rows of all processes, in the first process; elsewhere the writer of the process."""
        processes = self.processes
        if processes.world_size == 1:
            return writer
        notes = dict.fromkeys(note for own_notes in processes.all_gather(writer.meta.notes) for note in own_notes)
        others = processes.gather(None if writer.folder is not None else writer)
        if not processes.is_main:
            return writer
        meta = dataclasses.replace(writer.meta, notes=tuple(notes))
        if writer.folder is not None:
            return OutcomeWriter(writer.folder, meta)
        writer.meta = meta
        writer.merge(others[1:])
        return writer

    def _stream_fingerprint(self, expected: str = "") -> str:
        """Hash of the images of a stream, which is known once they were read; empty for images in memory.

        Raises:
            ClasswiseError: if the processes have read different images, or others than the shards.
        """
        source = self.ready.source
        if not isinstance(source, Stream):
            return ""
        fingerprints = self.processes.all_gather(source.fingerprint())
        if len({fingerprint for fingerprint in fingerprints if fingerprint}) > 1:
            raise ClasswiseError("the processes have read different images; all need the same stream in the same order")
        if expected and fingerprints[0] not in ("", expected):
            contents = "the folder contains an audit of" if self.shards is None else "the shards have read"
            raise ClasswiseError(f"{contents} other images; all need the same stream in the same order")
        return str(fingerprints[0])

    def _outcomes(self, runner: Runner, writer: OutcomeWriter, fingerprint: str) -> Outcomes:
        """The outcomes of all processes, whose number of images and ``fingerprint`` are known of a stream once read."""
        outcomes = writer.outcomes()
        if isinstance(self.ready.source, Stream):
            # A shard attacks some of the images that it reads.
            images = outcomes.meta.images if runner.images is None else int(self.ready.source.class_counts().sum())
            meta = dataclasses.replace(outcomes.meta, data_hash=fingerprint, images=images)
            outcomes = Outcomes(outcomes.frame, meta)
        in_time = self.ready.plan.sampling is not None and not runner.late
        reason = "they are outside the sample" if in_time else "the time limit was reached"
        for label, count in outcomes.missing.items() if self.shard is None else ():
            self.progress.log(f"{label}: {count} images are not judged, {reason}")
        return outcomes

    def _evidence(
        self, runner: Runner, outcomes: Outcomes, training_attack: Attack | None, *, overwrites: bool
    ) -> Evidence:
        """The evidence for the guards."""
        ready = self.ready
        return Evidence(
            outcomes,
            ready.plan.suite.attacks,
            was_training=ready.was_training,
            untrained=ready.untrained,
            no_gradient=ready.no_gradient,
            overwrites=overwrites or runner.overwrites,
            training_attack=training_attack,
            probe=_probe(runner, ready, outcomes.meta.data_hash),
        )

    def _result(
        self,
        runner: Runner,
        evidence: Evidence,
        artifacts: Artifacts,
        group: str | None,
        record: RunRecord,
    ) -> Audit:
        """Run the guards, or reuse those of a finished audit in the folder, and build the result."""
        facts = dict[str, Any]()
        if runner.unfused:
            facts["not_fused"] = runner.unfused
        if runner.not_graphed:
            facts["without_graphs"] = runner.not_graphed
        mode, saved = self.ready.plan.guards, _saved_guards(self.folder)
        if saved is None or not saved[1].covers(mode):
            if mode != "off":
                self.progress.log(f"guards: {mode}")
            seed = self.ready.plan.seed % (1 << 32)
            with record.phase("guards"), seeded(seed, device_of(self.ready.model)):
                saved = run_guards(evidence, mode, late=evidence.probe is None)
        warnings, report = saved
        return Audit(
            outcomes=evidence.outcomes,
            warnings=warnings,
            group=group,
            name=self.name,
            path=self.folder,
            environment=record.environment(**facts),
            artifacts=artifacts,
            trace=pd.concat(runner.traces, ignore_index=True) if runner.traces else None,
            guards=report,
        )

    def _environment(self, of_shards: Mapping[str, Any]) -> dict[str, Any]:
        """The environment of this run: command, versions, machine, model; of a merge also that of the shards."""
        facts = {**environment_of(self.ready.model), "max_time": self.max_time}
        facts |= {} if self.shards is None else {SHARDS: self.shards, **of_shards}
        several = {"processes": self.processes.world_size} if self.processes.world_size > 1 else {}
        return facts | several


def with_saved_choices(options: AuditOptions, folder: Path | None) -> AuditOptions:
    """The options with the batch size and the precision of the audit in a folder, or of its shards, unless given.

    Both depend on the machine by default, and rows depend on both.
    """
    if folder is None:
        return options
    abouts = (path / ABOUT for path in (folder, *sorted((folder / SHARDS).glob("*-of-*"))))
    first = next((path.parent for path in abouts if path.is_file()), None)
    settings = {} if first is None else read_about(first).get("settings", {})
    batch_size, precision = settings.get("batch_size"), settings.get("precision")
    if options.get("batch_size") is None and isinstance(batch_size, int) and batch_size >= SMALLEST_BATCH:
        options = {**options, "batch_size": batch_size}
    if options.get("precision") is None and isinstance(precision, Mapping):
        options = {
            **options,
            "precision": Precision(**{"search": "float32", **precision}),
        }  # without: a search in float32
    return options


def _check_same_settings(settings: Sequence[Mapping[str, Any]]) -> None:
    """Check that all processes run the same audit.

    Raises:
        ClasswiseError: naming the first process and setting that differ.
    """
    for rank, other in enumerate(settings):
        for key, value in settings[0].items():
            if other[key] != value:
                first, differing = json.dumps(value)[:80], json.dumps(other[key])[:80]
                raise ClasswiseError(
                    f"all processes need the same {key}; process {rank} has {differing}, process 0 has {first}"
                )


def finished_audit(folder: Path, plan: Plan, *, is_shard: bool = False) -> Audit | None:
    """The audit in a folder if nothing of a plan is left to do; else None.

    Args:
        folder: the folder, whose audit has the settings of the plan.
        plan: the plan, whose guards, trace and sampling the audit must have.
        is_shard: whether the folder is that of a shard.
    """
    try:
        saved = Audit.load(folder)
    except IncompleteError:
        return None
    # A record that is not complete, beside complete outcomes, is that of a process that was stopped before the guards.
    noted = read_about(folder).get("complete") == saved.complete
    finished = noted and (is_finished(folder) if is_shard else saved.finished)
    guarded = saved.guards is not None and saved.guards.covers(plan.guards)
    same = Sampling.of_meta(saved.outcomes.meta) == plan.sampling and (saved.trace is not None or not plan.trace)
    return saved if finished and guarded and same and saved.environment else None


def _saved_guards(folder: Path | None) -> tuple[tuple[AuditWarning, ...], GuardReport] | None:
    """The guards of the complete audit in a folder; else None."""
    about = {} if folder is None else read_about(folder)
    if not about.get("guards") or not about.get("complete"):
        return None
    return tuple(AuditWarning(*warning) for warning in about["warnings"]), GuardReport.read(about["guards"])


def _probe(runner: Runner, ready: Inputs, data_hash: str) -> Probe | None:
    """The model and a sample of images for the guards; None after the deadline."""
    if runner.sample is None or runner.late:
        return None
    threat = runner.plan.threat
    if runner.sample_radius is not None:
        threat = threat.with_epsilon(runner.sample_radius)
    sample = type(runner.sample)(*(tensor.to(runner.engine.device) for tensor in runner.sample))
    known = named_set(ready.source)
    scale = None if known is None else InputScale(known.mean, known.std)
    memory = (
        Memory() if runner.plan.guards == "full" else memory_of(bare(ready.model), ready.meta.model_hash, data_hash)
    )
    return Probe(
        runner.engine,
        sample,
        threat,
        runner.plan.precision,
        scale,
        gradients=not ready.no_gradient,
        memory=memory,
    )
