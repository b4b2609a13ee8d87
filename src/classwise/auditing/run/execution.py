"""The execution of a prepared audit: claim its folder, run the attacks, gather the rows, run the guards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, Decision, Engine, Finished, Job
from classwise.auditing.guards.budget import run_guards
from classwise.auditing.guards.evidence import SAMPLE, Evidence, InputScale, Memory, Probe, memory_of
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import EXAMPLES, examples_per_class
from classwise.auditing.outcomes.meta import CLEAN
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.outcomes.writer import OutcomeWriter
from classwise.auditing.run import batch_sizes
from classwise.auditing.run.audit_folder import ABOUT, earlier_audits, read_about, write_trace
from classwise.auditing.run.merging import SHARDS, Merged, is_finished, merge
from classwise.auditing.run.options import AuditOptions
from classwise.auditing.run.partition import Shard, balanced_order, part_of
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import Inputs
from classwise.auditing.run.record import RunRecord, environment_of
from classwise.auditing.run.result import Audit, about_of
from classwise.auditing.run.rows import attacked_rows, carried_rows, clean_rows, skipped_rows, trace_rows
from classwise.auditing.run.sampling import ROWS, Sampling
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.memory_format import share_format
from classwise.core.compute.precision import Precision
from classwise.core.compute.rng import CounterRNG, seeded
from classwise.core.compute.transfers import to_device
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import ResultFolder
from classwise.core.progress import interruption
from classwise.core.progress.listener import Progress
from classwise.core.progress.record import recorded
from classwise.data.images import Batch, Images
from classwise.data.loading import named_set
from classwise.data.stream import Stream
from classwise.models.base import bare, device_of
from classwise.stats.counts import IntArray

IMAGES_SHARE = 0.25
"""Largest share of a GPU's memory that the images of a piece may take, in their stored type."""


class _Features(nn.Module):
    """A module that returns the pooled features of a model instead of its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        share_format(self, model)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) features of images (N, C, H, W)."""
        features: Tensor = self.model.features(x)  # type: ignore[operator]  # `prepare` has checked that it exists
        return features.flatten(1)


class Execution:
    """A prepared audit, the processes that run it, and the folder that it is written into.

    Args:
        ready: the model, the images and the plan.
        folder: the audit's folder; None: rows are held in memory.
        processes: the processes that share the images; each attacks its share of every class.
        progress: receives the progress of this process.
        started: when the audit began, on the monotonic clock.
        max_time: seconds that it may take, after which no further image is started; None: no limit.
        shard: the shard that is attacked; None: all images.
        shards: number of the shards of which the audit is merged; None: it is not.

    Attributes:
        writer: collects rows, and has those of an interrupted audit.
        sample: the images for the guards, classes in turn.
        sample_threat: the threat of these images.
        traces: the traces, a frame for each attack.
        images: number of images, over all processes; None until all of them were read.
        facts: why gradients were not computed on a fused copy of the model, and why the steps of attacks were not CUDA
            graphs, by attack; without those where none was tried.
    """

    writer: OutcomeWriter
    _record: RunRecord

    def __init__(
        self,
        ready: Inputs,
        folder: Path | None,
        processes: ProcessGroup,
        progress: Progress,
        started: float,
        max_time: float | None = None,
        shard: Shard | None = None,
        shards: int | None = None,
    ) -> None:
        self.ready, self.plan, self.engine = ready, ready.plan, ready.plan.engine(ready.model)
        self.folder, self.processes, self.progress = folder, processes, progress
        self.started, self.max_time, self.shard, self.shards = started, max_time, shard, shards
        self.deadline = math.inf if max_time is None else started + max_time
        self.traces: list[pd.DataFrame] = []
        self.sample: Batch | None = None
        self.sample_threat = self.plan.threat
        self.images: int | None = None
        self.facts: dict[str, Any] = {}
        self._not_reduced: set[str] = set()
        self._copied: tuple[Images, Images] | None = None  # a piece and its copy on the device
        self._examples: set[int] = set()
        self._examples_taken = pd.Series(dtype=np.int64)

    @property
    def name(self) -> str:
        """Name of the audit: that of its folder."""
        return "audit" if self.folder is None else self.folder.resolve().name

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

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
        with self.claimed(resume=resume), recorded(folder, self.progress) as self.progress:
            is_shard = self.shard is not None
            saved = finished_audit(folder, self.plan, is_shard=is_shard) if resume and folder else None
            if saved is not None:
                self.plan = dataclasses.replace(self.plan, trace=())
            merged = self._merged()
            record = RunRecord(folder and folder / ABOUT, self._environment(merged.environment), self.started)
            record.prepared()
            with record.saved_on_failure():
                self._attack_all(merged.notes, record)
                saved = None if any(self.processes.all_gather(record.worked)) else saved
                self._gather()
                fingerprint = self._stream_fingerprint(
                    merged.data_hash or ("" if saved is None else saved.outcomes.meta.data_hash)
                )
                result: Audit | None = None
                if self.processes.is_main and saved is not None:  # nothing was left to do
                    result = dataclasses.replace(saved, group=group)
                elif self.processes.is_main:
                    evidence = self._evidence(self._outcomes(fingerprint), training_attack, merged.overwrites)
                    result = self._result(evidence, group, record)
                    if self.folder is not None:
                        write_trace(self.folder, result.trace)
                        about = about_of(result) | self._of_shards(finished=True)
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
        policy = self.processes.broadcast(self._policy() if self.processes.is_main else None)
        self.ready = dataclasses.replace(self.ready, meta=dataclasses.replace(self.ready.meta, policy=policy))
        if folder is None or not self.processes.is_main:
            yield
            return
        columns = [*outcome_files.COLUMNS, *self.ready.meta.groups]
        empty = about_of(Audit(Outcomes(pd.DataFrame(columns=columns), self.ready.meta), name=self.name))
        beside = [SHARDS] if self.shards else []
        about = ResultFolder(folder, "audit")
        with about.claimed(settings, resume=resume, beside=beside, **empty, **self._of_shards()):
            yield

    def _policy(self) -> str | None:
        """The digest of the policy that is recorded: the one in the folder, or the given one of a new audit.

        None if an audit of the same model and images without it precedes this one, or a shard does not have it.
        """
        policy, folder, reason = self.ready.meta.policy, self.folder, ""
        if folder is None:
            return policy
        if (folder / ABOUT).is_file():
            recorded = read_about(folder).get("policy")
            if policy not in (None, recorded):
                reason = f"{folder} contains an audit that was begun without it"
        else:
            recorded = policy
            if policy is not None and (earlier := earlier_audits(folder, self.ready.settings, policy)):
                reason, recorded = f"{earlier[0]} has evaluated this model on these images without it", None
        shards = (folder / SHARDS).glob(f"*/{ABOUT}")
        if recorded is not None and not all(read_about(shard.parent).get("policy") == recorded for shard in shards):
            reason, recorded = "a shard was begun without it", None
        if reason:
            self.progress.log(f"the policy is not recorded: {reason}")
        return recorded

    def _of_shards(self, *, finished: bool = False) -> dict[str, Any]:
        """The entries of ``audit.json`` on the shard that was attacked, or on the shards that were merged."""
        if self.shard is None or not finished:
            return {} if self.shards is None else {SHARDS: self.shards}
        about = {
            "finished": self.images is not None,
            "images": self.images,
            "overwrites": self.engine.passes.overwrites,
        }
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

    def _attack_all(self, notes: Sequence[str], record: RunRecord) -> None:
        """Attack every image of this process by every attack until the deadline.

        A request to stop (SIGINT or SIGTERM, see `classwise.core.progress.interruption`) takes effect after the next
        block of finished images; finished rows are written.

        Args:
            notes: those of other runs.
            record: the record of the run.
        """
        ready, processes = self.ready, self.processes
        processes.barrier()
        meta = dataclasses.replace(ready.meta, notes=tuple(dict.fromkeys((*ready.meta.notes, *notes))))
        self._record = record
        self.writer = OutcomeWriter(self.folder, meta, processes.rank, processes.world_size, record.written)
        processes.barrier()  # no process writes before all have read which file numbers are used
        if ready.meta.not_applicable:
            names = ", ".join(ready.meta.not_applicable)
            self.progress.log(f"not applicable: {names}; the model has no gradient: {ready.no_gradient}")
        if processes.world_size > 1:
            self.progress.log(
                f"{processes.world_size} processes share the images; the counts shown are those of the first process"
            )
        try:
            with interruption.deferred():
                self._attack_pieces()
        except interruption.STOPS as stop:
            self.writer.flush()
            if self.folder is not None:
                stop.add_note(f"{self.writer.count():,} outcomes are saved in {self.folder}")
            raise

    def _attack_pieces(self) -> None:
        images = 0
        for piece in self.ready.pieces:
            images += len(piece)
            order = balanced_order(piece.y.cpu())
            if self.sample is None:
                rows = order[:SAMPLE]
                self.sample, self.sample_threat = piece.batch(rows), self.plan.threat.of(rows)
            order = part_of(order, piece.y.cpu(), self.processes)
            self._clean(piece, order)
            self._choose_examples(piece, order)
            sampling = self.plan.sampling
            for label, attack in self.plan.suite.attacks.items():
                if sampling is None or label in sampling.first:
                    self._attack(label, attack, piece, order)
            if sampling is not None:
                self._sample(piece, order, sampling)
            self._trace(piece)
            if self.late:
                break
        else:
            self.images = images
        self.writer.flush()

    def _clean(self, piece: Images, order: Tensor) -> None:
        """Run the clean pass on the images that have no row yet."""
        index = piece.index.cpu().numpy()
        done = self.writer.rows(CLEAN, index)
        columns = {"label": piece.y} | {name: piece.columns[name].ids for name in self.writer.meta.groups}
        for name, values in columns.items():
            now = pd.Series(values.cpu().numpy(), index)[done.index]
            if not np.array_equal(now.to_numpy(), done[name].to_numpy(dtype=np.int64)):
                raise ClasswiseError(f"the folder contains an audit with other values of {name!r}; give another folder")
        todo = order[~np.isin(index[order.numpy()], done.index)]
        if len(todo):
            self.progress.start(CLEAN, len(todo))
        with self._record.phase(CLEAN), self._seeded(CLEAN, piece, todo):
            for rows in torch.split(todo, self.plan.batch_size):
                if self.late or not len(rows):
                    break
                self.processes.check()
                interruption.stop_point()
                batch = self._near(piece).batch(rows, self.engine.device)
                decision = self._decide(batch.x, batch.y)
                rows_of_batch = clean_rows(batch.index, batch.y, decision, self.plan.repeats.count)
                tensors = self._tensors(batch.index, batch.x, decision.logits, images=False)
                self.writer.add(self._grouped(rows_of_batch, piece, rows), tensors)
                self.progress.advance(len(rows))

    def _attack(self, label: str, attack: Attack, piece: Images, order: Tensor) -> None:
        """Run one attack on all images that need it, and write the rows of the others."""
        index = piece.index.cpu().numpy()
        own = _own_index(piece, order)
        done = self.writer.rows(label, own).index
        clean = self.writer.rows(CLEAN, own)
        clean = clean[~clean.index.isin(done)]
        attackable = clean
        if self.plan.early_stop:
            wrong = clean[~clean["correct"]]
            carried = carried_rows(label, wrong, self._epsilon(piece, wrong), attack.records)
            self.writer.add(self._regrouped(carried, wrong))
            attackable = clean[clean["correct"]]
        if self.plan.cascade:
            removed = self._removed_before(label, attackable.index.to_numpy(dtype=np.int64))
            self.writer.add(self._regrouped(skipped_rows(label, removed, self._epsilon(piece, removed)), removed))
            attackable = attackable[~attackable.index.isin(removed.index)]
        todo = order[np.isin(index[order.numpy()], attackable.index)]
        if len(todo):
            self.progress.start(label, len(todo))
        while len(todo):
            try:
                with self._record.phase(label), self._seeded(label, piece, todo):
                    self._attack_rows(label, attack, piece, todo)
            except torch.OutOfMemoryError as error:
                self._halve(error)
                todo = todo[~np.isin(index[todo.numpy()], self.writer.rows(label, index).index)]
            else:
                break
        unfused = self.engine.passes.unfused
        if unfused and "not_fused" not in self.facts:
            self.facts["not_fused"] = unfused
            self.progress.log(f"the model is not fused, so gradients take longer: {unfused}")
        if self.engine.not_compiled and "not_compiled" not in self.facts:
            self.facts["not_compiled"] = self.engine.not_compiled
            self.progress.log(f"passes are not compiled: {self.engine.not_compiled}")
        reason = self.engine.not_reduced(attack)
        if reason and label not in self._not_reduced:
            self._not_reduced.add(label)
            self.progress.log(f"{label} computes no smaller batches when few images are left: {reason}")
        reason = self.engine.not_graphed(attack)
        if reason and label not in self.facts.get("without_graphs", {}):
            self.facts.setdefault("without_graphs", {})[label] = reason
            self.progress.log(f"the steps of {label} are not CUDA graphs: {reason}")

    def _sample(self, piece: Images, order: Tensor, sampling: Sampling) -> None:
        """Run the other attacks on the samples of a design, which every process computes from the rows of all."""
        index = piece.index.cpu().numpy()
        own = _own_index(piece, order)

        def gathered(labels: Iterable[str], images: IntArray | None) -> pd.DataFrame:
            chosen = own if images is None else own[np.isin(own, images)]
            rows = pd.concat([self.writer.rows(label, chosen)[[*ROWS]] for label in labels])
            every: list[pd.DataFrame] = self.processes.all_gather(rows)
            return pd.concat(every, ignore_index=True)

        for images in sampling.samples(len(piece), piece.num_classes, gathered, self.progress.log):
            for label in sampling.second:
                attack = self.plan.suite.attacks[label]
                self._attack(label, attack, piece, order[np.isin(index[order.numpy()], images)])

    def _attack_rows(self, label: str, attack: Attack, piece: Images, todo: Tensor) -> None:
        jobs = self._jobs(piece, todo)
        # Closed at once, also after an exception, so that the model is restored.
        with contextlib.closing(self.engine.attack(attack, self.plan.threat, jobs, images=len(todo))) as blocks:
            for done in blocks:
                rows = todo[done.row.cpu()]
                threat = self.plan.threat.of(rows, done.x.device)
                frame = self._grouped(attacked_rows(label, done, threat, self.plan.repeats.count), piece, rows)
                tensors = self._tensors(done.index, done.x, done.logits, images=True) | self._examples_of(done)
                self.writer.add(frame, tensors)
                self.progress.advance(len(done.row))
                self.processes.check()
                interruption.stop_point()

    def _near(self, piece: Images) -> Images:
        """The images on the GPU, if they take a small part of its memory, so that no attack copies them again."""
        device = self.engine.device
        if device.type != "cuda" or piece.x.nbytes > IMAGES_SHARE * batch_sizes.memory_of(device):
            return piece
        if self._copied is None or self._copied[0] is not piece:
            self._copied = piece, piece.to(device)
        return self._copied[1]

    def _jobs(self, piece: Images, todo: Tensor) -> Iterator[Job]:
        """The images to attack; empty after the deadline, so that only started images are finished."""
        for rows in torch.split(todo, self.plan.batch_size):
            if self.late:
                return
            self.processes.check()
            batch = self._near(piece).batch(rows, self.engine.device)
            epsilon = self.plan.threat.of(rows).epsilon
            yield Job(batch.index, batch.x, batch.y, {"epsilon": epsilon} if isinstance(epsilon, Tensor) else {})

    def _epsilon(self, piece: Images, frame: pd.DataFrame) -> Any:
        """The radius of the rows of a frame: one number, or an array."""
        epsilon = self.plan.threat.epsilon
        if not isinstance(epsilon, Tensor):
            return epsilon
        return pd.Series(epsilon.cpu().numpy(), piece.index.cpu().numpy())[frame.index].to_numpy()

    def _removed_before(self, label: str, index: IntArray) -> pd.DataFrame:
        """The rows of the earlier attacks that succeeded on the images ``index``."""
        earlier = list(self.plan.suite.attacks)
        rows = [self.writer.rows(name, index) for name in earlier[: earlier.index(label)]]
        removed = [frame[frame["first_success"] == name] for name, frame in zip(earlier, rows, strict=False)]
        if not removed:
            return self.writer.rows(CLEAN, index).iloc[:0]
        return pd.concat(removed)

    def _halve(self, error: Exception) -> None:
        """Halve the batch size after an out-of-memory error; a repetition is then not bit-identical."""
        half = self.engine.batch_size // 2
        if half < SMALLEST_BATCH:
            raise ClasswiseError(
                f"the device has not enough memory for {self.engine.batch_size} images; use a device with more memory"
            ) from error
        note = f"batch size halved from {self.engine.batch_size} to {half} for lack of memory"
        self.progress.log(note)
        self.engine = self.plan.engine(self.ready.model, half)
        self.writer.meta = dataclasses.replace(self.writer.meta, notes=(*self.writer.meta.notes, note))

    def _decide(self, x: Tensor, y: Tensor) -> Decision:
        while True:
            try:
                return self.engine.decide(x, y)
            except torch.OutOfMemoryError as error:
                self._halve(error)

    def _seeded(self, label: str, piece: Images, todo: Tensor) -> contextlib.AbstractContextManager[None]:
        """Context of the passes of an attack, in which the generators that a random model uses are seeded."""
        first = piece.index.cpu()[todo[:1]]  # processes and shards begin with different images
        seeds = CounterRNG(self.plan.seed, "model").child(label).integers(first, (), 1 << 32)
        return seeded(int(seeds.sum()), self.engine.device)

    def _grouped(self, frame: pd.DataFrame, piece: Images, rows: Tensor) -> pd.DataFrame:
        """Add a column for each grouping of the images."""
        ids = {name: piece.columns[name].ids[rows].numpy() for name in self.writer.meta.groups}
        return frame.assign(**ids)

    def _regrouped(self, frame: pd.DataFrame, source: pd.DataFrame) -> pd.DataFrame:
        """Copy the groupings from other rows of the same images."""
        return frame.assign(**{name: source[name].to_numpy() for name in self.writer.meta.groups})

    def _tensors(self, index: Tensor, x: Tensor, logits: Tensor, *, images: bool) -> dict[str, tuple[Any, Any]]:
        """The tensors to save of finished images, by kind."""
        image, tensors = index.cpu().numpy(), dict[str, tuple[Any, Any]]()
        if "logits" in self.plan.save:
            tensors["logits"] = (image, logits.cpu().numpy())
        if "features" in self.plan.save:
            (features,) = Engine(_Features(self.ready.model), batch_size=self.engine.batch_size).predict([x])
            tensors["features"] = (image, features.cpu().numpy())
        if images and "images" in self.plan.save:
            tensors["images"] = (image, x.cpu().numpy())
        return tensors

    def _choose_examples(self, piece: Images, order: Tensor) -> None:
        """Choose the examples: the first images of each class that are correctly classified without attack."""
        share = examples_per_class(piece.shape, piece.num_classes, len(self.plan.suite.attacks))
        share = -(-share // self.processes.world_size)
        clean = self.writer.rows(CLEAN, _own_index(piece, order))
        if clean.empty:  # the deadline passed before the first image
            return
        right = clean[clean["correct"]].reset_index(drop=True).sort_values("index")
        place = right.groupby("label").cumcount() + right["label"].map(self._examples_taken).fillna(0)
        chosen = right[place < share]
        self._examples = set(chosen["index"])
        self._examples_taken = self._examples_taken.add(chosen["label"].value_counts(), fill_value=0)

    def _examples_of(self, done: Finished) -> dict[str, tuple[Any, Any]]:
        """The examples among finished images: pairs of clean and adversarial image, in half precision."""
        index = done.index.cpu()
        chosen = torch.tensor([image in self._examples for image in index.tolist()])
        if not chosen.any():
            return {}
        rows = to_device(chosen.nonzero().squeeze(1), done.x.device)
        pairs = torch.stack([done.x0[rows], done.x[rows]], dim=1).half().cpu()
        return {EXAMPLES: (index[chosen].numpy(), pairs.numpy())}

    def _trace(self, piece: Images) -> None:
        """Trace the requested images of a piece, in the first process."""
        rows = torch.isin(piece.index.cpu(), torch.tensor(self.plan.trace, dtype=torch.int64)).nonzero().squeeze(1)
        if not len(rows) or self.late or not self.processes.is_main:
            return
        batch = piece.batch(rows)
        threat = self.plan.threat.of(rows)
        for label, attack in self.plan.suite.attacks.items():
            self.traces.append(trace_rows(self.engine, label, attack, batch, threat))

    def _gather(self) -> None:
        """Gather the rows of all processes in the first process."""
        processes, writer = self.processes, self.writer
        if processes.world_size == 1:
            return
        notes = dict.fromkeys(note for own_notes in processes.all_gather(writer.meta.notes) for note in own_notes)
        others = processes.gather(None if writer.folder is not None else writer)
        if processes.is_main:
            writer.meta = dataclasses.replace(writer.meta, notes=tuple(notes))
            if writer.folder is not None:
                self.writer = OutcomeWriter(writer.folder, writer.meta)
            else:
                writer.merge(others[1:])

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

    def _outcomes(self, fingerprint: str) -> Outcomes:
        """The outcomes of all processes, whose number of images and ``fingerprint`` are known of a stream once read."""
        outcomes = self.writer.outcomes()
        if isinstance(self.ready.source, Stream):
            # A shard attacks some of the images that it reads.
            images = outcomes.meta.images if self.images is None else int(self.ready.source.class_counts().sum())
            meta = dataclasses.replace(outcomes.meta, data_hash=fingerprint, images=images)
            outcomes = Outcomes(outcomes.frame, meta)
        in_time = self.plan.sampling is not None and not self.late
        reason = "they are outside the sample" if in_time else "the time limit was reached"
        for label, count in outcomes.missing.items() if self.shard is None else ():
            self.progress.log(f"{label}: {count} images are not judged, {reason}")
        return outcomes

    def _evidence(self, outcomes: Outcomes, training_attack: Attack | None, overwrites: bool) -> Evidence:
        """The evidence for the guards; ``overwrites``: whether the model of a shard writes into its input."""
        ready = self.ready
        return Evidence(
            outcomes,
            self.plan.suite.attacks,
            was_training=ready.was_training,
            untrained=ready.untrained,
            no_gradient=ready.no_gradient,
            overwrites=overwrites or self.engine.passes.overwrites,
            training_attack=training_attack,
            probe=self._probe(outcomes.meta.data_hash),
        )

    def _probe(self, data_hash: str) -> Probe | None:
        """The model and a sample of images for the guards; None after the deadline."""
        if self.sample is None or self.late:
            return None
        known, full = named_set(self.ready.source), self.plan.guards == "full"
        return Probe(
            self.engine,
            Batch(*(tensor.to(self.engine.device) for tensor in self.sample)),
            self.sample_threat,
            self.plan.precision,
            None if known is None else InputScale(known.mean, known.std),
            gradients=not self.ready.no_gradient,
            memory=Memory() if full else memory_of(bare(self.ready.model), self.ready.meta.model_hash, data_hash),
        )

    def _result(self, evidence: Evidence, group: str | None, record: RunRecord) -> Audit:
        """Run the guards, or reuse those of a finished audit in the folder, and build the result."""
        mode, saved = self.plan.guards, _saved_guards(self.folder)
        if saved is None or not saved[1].covers(mode):
            if mode != "off":
                self.progress.log(f"guards: {mode}")
            seed = self.plan.seed % (1 << 32)
            with record.phase("guards"), seeded(seed, device_of(self.ready.model)):
                saved = run_guards(evidence, mode, late=evidence.probe is None)
        warnings, report = saved
        return Audit(
            outcomes=evidence.outcomes,
            warnings=warnings,
            group=group,
            name=self.name,
            path=self.folder,
            environment=record.environment(**self.facts),
            artifacts=self.writer.artifacts,
            trace=pd.concat(self.traces, ignore_index=True) if self.traces else None,
            guards=report,
        )

    def _environment(self, of_shards: Mapping[str, Any]) -> dict[str, Any]:
        """The environment of this run: command, versions, machine, model; of a merge also that of the shards."""
        facts = {**environment_of(self.ready.model), "max_time": self.max_time}
        facts |= {} if self.shards is None else {SHARDS: self.shards, **of_shards}
        several = {"processes": self.processes.world_size} if self.processes.world_size > 1 else {}
        return facts | several


def _own_index(piece: Images, order: Tensor) -> IntArray:
    """Indices of this process's images in a piece; a resumed audit also has rows of other processes."""
    index: IntArray = piece.index.cpu().numpy()[np.sort(order.numpy())]
    return index


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
