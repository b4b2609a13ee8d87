"""The loop of an audit: every attack on every image, piece by piece, until all rows are written or time is over."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, Engine, Job, StepsLeft
from classwise.auditing.guards.budget import early_warnings
from classwise.auditing.guards.evidence import SAMPLE, Evidence
from classwise.auditing.outcomes.artifacts import EXAMPLES, Examples
from classwise.auditing.outcomes.files import NAME, Columns
from classwise.auditing.outcomes.meta import CHANGED_NOTE, CLEAN
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.outcomes.writer import OutcomeWriter, Tensors
from classwise.auditing.run import batch_sizes
from classwise.auditing.run.partition import balanced_order, part_of
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import Inputs
from classwise.auditing.run.record import RunRecord
from classwise.auditing.run.rows import attacked_rows, carried_rows, clean_rows, skipped_rows, trace_rows
from classwise.auditing.run.sampling import ROWS, Sampling
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.memory_format import share_format
from classwise.core.compute.rng import CounterRNG, seeded
from classwise.core.compute.transfers import to_device
from classwise.core.errors import ClasswiseError
from classwise.core.progress import interruption
from classwise.core.progress.listener import Progress, expect
from classwise.data.duplicates import Duplicates
from classwise.data.image_names import or_none
from classwise.data.images import Batch, Images
from classwise.stats.counts import IntArray
from classwise.threat.ball import Threat

logger = logging.getLogger(__name__)

IMAGES_SHARE = 0.25
"""Largest share of a GPU's memory that the images of a piece may take, in their stored type."""

Block = tuple[Columns, Tensors]
"""The rows of some images under one attack, and their tensors to save."""


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


@dataclass(frozen=True)
class Attacked:
    """What the loop knows beside the rows.

    Attributes:
        engine: the engine at the end, whose batch size may be smaller than at the beginning.
        images: number of images, over all processes; None unless all of them were read.
        duplicates: how often each image occurs, for the guards.
        sample: the images for the guards, classes in turn, and their threat; None without images.
        traces: the traces, a frame for each attack.
        facts: why gradients were not computed on a fused copy of the model, and why the steps of attacks were not CUDA
            graphs, by attack; without those where none was tried.
    """

    engine: Engine
    images: int | None
    duplicates: Duplicates
    sample: tuple[Batch, Threat] | None
    traces: list[pd.DataFrame]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Piece:
    """A piece of the images.

    Attributes:
        images: the images, on the device if they take a small part of its memory.
        index: (N,) their indices.
        order: rows of the images of this process, classes in turn.
        columns: the label, the radius, the groups and, if there are any, the names of the images, (N,).
    """

    images: Images
    index: IntArray
    order: Tensor
    columns: Columns

    @property
    def own(self) -> IntArray:
        """Indices of the images of this process; a resumed audit also has rows of other processes."""
        own: IntArray = self.index[np.sort(self.order.numpy())]
        return own

    def rows(self, index: Any) -> Tensor:
        """The rows of this process's images with these indices, in the order of attack."""
        return self.order[np.isin(self.index[self.order.numpy()], index)]

    def values(self, index: Any, *names: str) -> dict[str, NDArray[Any]]:
        """Columns of the images with these indices, in their order."""
        places = self._places.get_indexer(index)
        return {name: self.columns[name][places] for name in names}

    @cached_property
    def _places(self) -> pd.Index[int]:
        return pd.Index(self.index)


class AttackLoop:
    """Attacks the images of this process, and writes their rows.

    Args:
        inputs: the model and the images.
        plan: how images are attacked.
        writer: collects rows, and has those of an interrupted audit.
        processes: the processes that share the images.
        progress: receives the progress of this process.
        record: the record of the run.
        deadline: time on the monotonic clock after which no image is started.
    """

    def __init__(
        self,
        inputs: Inputs,
        plan: Plan,
        writer: OutcomeWriter,
        processes: ProcessGroup,
        progress: Progress,
        record: RunRecord,
        deadline: float,
    ) -> None:
        self.inputs, self.plan = inputs, plan
        self.engine = plan.engine(inputs.model, classes=inputs.meta.num_classes)
        self.writer, self.processes, self.progress = writer, processes, progress
        self.record, self.deadline = record, deadline
        self._examples = Examples(len(plan.suite.attacks), inputs.meta.num_classes, processes.world_size)
        self._reasons: dict[str, dict[str, str]] = defaultdict(dict)
        self._has_warned = False

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def run(self) -> Attacked:
        """Attack every image by every attack until the deadline.

        A request to stop (see `classwise.core.progress.interruption`) takes effect after the next block of finished
        images; finished rows are written.
        """
        images, complete, duplicates = 0, False, Duplicates()
        sample: tuple[Batch, Threat] | None = None
        traces: list[pd.DataFrame] = []
        not_traced = {*self.plan.asked["trace"]}
        try:
            with interruption.deferred():
                for piece in self.inputs.pieces:
                    images += len(piece)
                    if self.plan.asked["guards"] != "off":
                        duplicates.add(piece.x, piece.y)
                    order = balanced_order(piece.y.cpu())
                    if sample is None:
                        sample = piece.batch(order[:SAMPLE]), self.plan.threat.of(order[:SAMPLE])
                    self._attack_piece(piece, part_of(order, piece.y.cpu(), self.processes))
                    traces += self._traces(piece)
                    not_traced -= {*piece.index.tolist()} if not_traced else set()
                    if self.late:
                        break
                else:
                    complete = True
                    if not_traced and self.processes.is_main:
                        logger.warning("trace: the data have no image with the index %d", min(not_traced))
                self.writer.flush()
        except interruption.STOPS as stop:
            self.writer.flush()
            if self.writer.folder is not None:
                stop.add_note(f"{self.writer.count():,} outcomes are saved in {self.writer.folder}")
            raise
        facts = {kind: found.get("", found) for kind, found in self._reasons.items() if kind != "not_reduced"}
        return Attacked(self.engine, images if complete else None, duplicates, sample, traces, facts)

    def _attack_piece(self, images: Images, order: Tensor) -> None:
        """Run all passes on the images of this process in a piece."""
        values = {"label": images.y, "epsilon": torch.as_tensor(self.plan.threat.epsilon, dtype=torch.float64)}
        values |= {name: images.columns[name].ids for name in self.writer.meta.groups}
        columns = {name: tensor.cpu().expand(len(images)).numpy() for name, tensor in values.items()}
        if images.image_names is not None:
            columns[NAME] = or_none(images.image_names)
        index, device = images.index.cpu().numpy(), self.engine.device
        if device.type == "cuda" and images.x.nbytes <= IMAGES_SHARE * batch_sizes.memory_of(device):
            images = images.to(device)  # so that no attack copies them again
        piece = _Piece(images, index, order, columns)
        is_new = not len(self.writer.rows(CLEAN, piece.own))
        self._clean(piece)
        if is_new and not self._has_warned and self.plan.asked["guards"] != "off" and self.plan.suite.attacks:
            self._warn(piece)
        sampling = self.plan.sampling
        for label in self.plan.suite.attacks if sampling is None else sampling.first:
            self._attack(label, piece, piece.own)
        if sampling is not None:
            self._sample(piece, sampling)

    def _clean(self, piece: _Piece) -> None:
        """Run the clean pass on the images that have no row yet, and choose the examples among them."""
        done = self.writer.rows(CLEAN, piece.index)
        for name, values in piece.values(done.index, "label", *self.writer.meta.groups).items():
            if not np.array_equal(values, done[name].to_numpy(dtype=np.int64)):
                raise ClasswiseError(f"the folder contains an audit with other values of {name!r}; give another folder")
        self._write(CLEAN, piece, piece.rows(np.setdiff1d(piece.own, done.index)), self._clean_blocks)
        self._examples.add(self.writer.rows(CLEAN, piece.own))

    def _warn(self, piece: _Piece) -> None:
        """Log the warnings that need no attack, so that a long audit can be stopped before the first one."""
        self._has_warned = True
        rows = self.writer.rows(CLEAN, piece.own).reset_index(drop=True)
        if not len(rows):  # the time limit was reached
            return
        outcomes, inputs = Outcomes(rows, self.writer.meta), self.inputs
        attacks = self.plan.suite.attacks
        evidence = Evidence(outcomes, attacks, untrained=inputs.untrained, labels=inputs.class_labels)
        for warning in early_warnings(evidence):
            self.progress.log(f"warning: {warning}")

    def _clean_blocks(self, piece: _Piece, todo: Tensor) -> Generator[Block]:
        """Evaluate images without attack, batch by batch."""
        for job in self._jobs(piece, todo):
            decision = self.engine.decide(job.x, job.y)
            rows = clean_rows(job.index, job.y, decision, self.plan.repeats.count)
            yield rows, self._tensors(job.index, job.x, decision.logits)

    def _attack(self, label: str, piece: _Piece, index: IntArray) -> None:
        """Run one attack on those of the images ``index`` that need it, and write the rows of the others."""
        attack, clean = self.plan.suite.attacks[label], self.writer.rows(CLEAN, index)
        todo = clean[~clean.index.isin(self.writer.rows(label, index).index)]
        if self.plan.early_stop:
            wrong = todo[~todo["correct"]]
            epsilon = piece.values(wrong.index, "epsilon")["epsilon"]
            self._add(piece, carried_rows(label, wrong, epsilon, attack.records))
            todo = todo[todo["correct"]]
        earlier = [*itertools.takewhile(lambda name: name != label, self.plan.suite.attacks)]
        if self.plan.cascade and earlier:
            rows = {name: self.writer.rows(name, todo.index.to_numpy(dtype=np.int64)) for name in earlier}
            removed = pd.concat([frame[frame["first_success"] == name] for name, frame in rows.items()])
            epsilon = piece.values(removed.index, "epsilon")["epsilon"]
            self._add(piece, skipped_rows(label, removed, epsilon))
            todo = todo[~todo.index.isin(removed.index)]
        self._write(label, piece, piece.rows(todo.index), partial(self._attack_blocks, attack=attack, label=label))
        engine, not_reduced = self.engine, f"{label} computes no smaller batches when few images are left"
        reasons = (
            ("not_fused", "", engine.passes.unfused, "the model is not fused, so gradients take longer"),
            ("not_compiled", "", engine.not_compiled, "passes are not compiled"),
            ("not_reduced", label, engine.not_reduced(attack), not_reduced),
            ("without_graphs", label, engine.not_graphed(attack), f"the steps of {label} are not CUDA graphs"),
        )
        for kind, of, reason, text in reasons:
            if reason and of not in self._reasons[kind]:
                self._reasons[kind][of] = reason
                self.progress.log(f"{text}: {reason}")
        if changes := engine.changes(attack):
            self._note(f"{CHANGED_NOTE}by attack {label!r} ({changes}), and restored")

    def _attack_blocks(self, piece: _Piece, todo: Tensor, label: str, attack: Attack) -> Generator[Block]:
        """Attack images; blocks are in the order in which images finish."""
        jobs = self._jobs(piece, todo)
        # Closed at once, also after an exception, so that the model is restored.
        steps_left = StepsLeft(partial(expect, self.progress))
        blocks = self.engine.attack(attack, self.plan.threat, jobs, images=len(todo), steps_left=steps_left)
        with contextlib.closing(blocks):
            for done in blocks:
                threat = self.plan.threat.of(todo[done.row.cpu()], done.x.device)
                rows = attacked_rows(label, done, threat, self.plan.repeats.count)
                yield rows, self._tensors(done.index, done.x, done.logits, clean=done.x0)

    def _sample(self, piece: _Piece, sampling: Sampling) -> None:
        """Run the other attacks on the samples of a design, which every process computes from the rows of all."""
        own = piece.own

        def gathered(labels: Iterable[str], images: IntArray | None) -> pd.DataFrame:
            chosen = own if images is None else own[np.isin(own, images)]
            rows = pd.concat([self.writer.rows(label, chosen)[[*ROWS]] for label in labels])
            every: list[pd.DataFrame] = self.processes.all_gather(rows)
            return pd.concat(every, ignore_index=True)

        for sample in sampling.samples(len(piece.index), piece.images.num_classes, gathered, self.progress.log):
            for label in sampling.second:
                self._attack(label, piece, own[np.isin(own, sample)])

    def _jobs(self, piece: _Piece, todo: Tensor) -> Iterator[Job]:
        """The images to attack; none after the deadline, so that only started images are finished."""
        for rows in torch.split(todo, self.plan.batch_size):
            if self.late:
                return
            self.processes.check()
            batch = piece.images.batch(rows, self.engine.device)
            epsilon = self.plan.threat.of(rows).epsilon
            yield Job(batch.index, batch.x, batch.y, {"epsilon": epsilon} if isinstance(epsilon, Tensor) else {})

    def _write(
        self, label: str, piece: _Piece, todo: Tensor, blocks: Callable[[_Piece, Tensor], Generator[Block]]
    ) -> None:
        """Write the rows of the images of an attack; after an out-of-memory error, go on with half the batch size."""
        if len(todo):
            self.progress.start(label, len(todo))
        while len(todo):
            first = torch.from_numpy(piece.index[todo[:1].numpy()])  # processes and shards begin with different images
            seed = int(CounterRNG(self.plan.asked["seed"], "model").child(label).integers(first, (), 1 << 32).sum())
            seeds = seeded(seed, self.engine.device)
            try:
                with self.record.phase(label), seeds, contextlib.closing(blocks(piece, todo)) as found:
                    for rows, tensors in found:
                        self._add(piece, rows, tensors)
                        self.progress.advance(len(rows["index"]))
                        self.processes.check()
                        interruption.stop_point()
            except torch.OutOfMemoryError as error:
                self._halve(error)
                todo = piece.rows(np.setdiff1d(piece.index[todo.numpy()], self.writer.rows(label, piece.index).index))
            else:
                break

    def _add(self, piece: _Piece, rows: Columns, tensors: Tensors | None = None) -> None:
        """Add rows with the names of the images and a column for each of their groupings."""
        names = [name for name in (NAME, *self.writer.meta.groups) if name in piece.columns]
        self.writer.add({**rows, **piece.values(rows["index"], *names)}, tensors)

    def _halve(self, error: Exception) -> None:
        """Halve the batch size after an out-of-memory error; a repetition is then not bit-identical."""
        half = self.engine.batch_size // 2
        if half < SMALLEST_BATCH:
            raise ClasswiseError(
                f"the device has not enough memory for {self.engine.batch_size} images; use a device with more memory"
            ) from error
        note = f"batch size halved from {self.engine.batch_size} to {half} for lack of memory"
        self.progress.log(note)
        self.engine = self.plan.engine(self.inputs.model, half, self.inputs.meta.num_classes)
        self._note(note)

    def _note(self, note: str) -> None:
        """Add a note to the metadata, once."""
        notes = dict.fromkeys((*self.writer.meta.notes, note))
        self.writer.meta = dataclasses.replace(self.writer.meta, notes=tuple(notes))

    def _tensors(self, index: Tensor, x: Tensor, logits: Tensor, clean: Tensor | None = None) -> Tensors:
        """The tensors to save of finished images, by kind.

        Args:
            index: indices of the images.
            x: the images.
            logits: their logits.
            clean: the clean images, of images that were attacked.
        """
        image, tensors = index.cpu().numpy(), dict[str, tuple[Any, Any]]()
        if "logits" in self.plan.asked["save"]:
            tensors["logits"] = image, logits.cpu().numpy()
        if "features" in self.plan.asked["save"]:
            (features,) = Engine(_Features(self.inputs.model), batch_size=self.engine.batch_size).predict([x])
            tensors["features"] = image, features.cpu().numpy()
        if clean is None:
            return tensors
        if "images" in self.plan.asked["save"]:
            tensors["images"] = image, x.cpu().numpy()
        chosen = self._examples.among(image, x.shape[1:])
        if chosen.any():
            rows = to_device(torch.from_numpy(chosen.nonzero()[0]), x.device)
            pairs = torch.stack([clean[rows], x[rows]], dim=1).half().cpu()
            tensors[EXAMPLES] = image[chosen], pairs.numpy()
        return tensors

    def _traces(self, piece: Images) -> list[pd.DataFrame]:
        """Trace the requested images of a piece, in the first process."""
        rows = (
            torch.isin(piece.index.cpu(), torch.tensor(self.plan.asked["trace"], dtype=torch.int64))
            .nonzero()
            .squeeze(1)
        )
        if not len(rows) or self.late or not self.processes.is_main:
            return []
        batch, threat = piece.batch(rows), self.plan.threat.of(rows)
        return [
            trace_rows(self.engine, label, attack, batch, threat) for label, attack in self.plan.suite.attacks.items()
        ]
