"""The attacks of an audit: a clean pass, then every attack, on images in memory or on the pieces of a stream."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from scipy import special
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import SMALLEST_BATCH, AttackInputs, Decision, Engine, Finished, Job
from classwise.auditing.guards.evidence import SAMPLE
from classwise.auditing.outcomes.artifacts import EXAMPLES, examples_per_class
from classwise.auditing.outcomes.files import REPEATS, REPORTED
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.outcomes.writer import OutcomeWriter
from classwise.auditing.run.batch_sizes import memory_of
from classwise.auditing.run.partition import balanced_order, part_of
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.sampling import ROWS, Sampling
from classwise.core import interruption
from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.core.memory_format import share_format
from classwise.core.progress import Progress
from classwise.core.rng import CounterRNG, seeded
from classwise.core.threat import Threat
from classwise.core.transfers import to_cpu, to_device
from classwise.data.images import Batch, Images
from classwise.stats.counts import IntArray
from classwise.stats.metrics import confidence_variance

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


class Runner:
    """Runs the clean pass and the attacks of one audit.

    Args:
        model: the classifier, which returns logits.
        plan: how images are attacked.
        writer: collects rows, and has those of an interrupted audit.
        progress: receives the progress.
        deadline: the time (`time.monotonic`) after which no further image is started; infinity: none.
        processes: the processes that share the images; each attacks its share of every class.
        phase: makes the context in which the clean pass or an attack is timed, from its label.

    Attributes:
        sample: the images for the guards, classes in turn.
        sample_radius: their radii, if the threat has one for each image.
        traces: the traces, a frame for each attack.
        images: number of images, over all processes; None until all of them were read.
        unfused: why gradients were not computed on a fused copy of the model; empty if they were, or none was wanted.
        not_graphed: why the steps of attacks were not CUDA graphs, by attack; without those where none was tried.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        writer: OutcomeWriter,
        progress: Progress,
        *,
        deadline: float,
        processes: ProcessGroup,
        phase: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.phase = phase
        self.model = model
        self.plan = plan
        self.writer = writer
        self.progress = progress
        self.deadline = deadline
        self.processes = processes
        self.engine = plan.engine(model)
        self.traces: list[pd.DataFrame] = []
        self.sample: Batch | None = None
        self.sample_radius: Tensor | None = None
        self.images: int | None = None
        self.unfused = ""
        self.not_graphed: dict[str, str] = {}
        self._not_reduced: set[str] = set()
        self._copied: tuple[Images, Images] | None = None  # a piece and its copy on the device
        self._examples: set[int] = set()
        self._examples_taken = pd.Series(dtype=np.int64)

    @property
    def overwrites(self) -> bool:
        """Whether the model writes into its input."""
        return self.engine.passes.overwrites

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def run(self, pieces: Iterable[Images]) -> None:
        """Attack every image by every attack until the deadline.

        A request to stop (SIGINT or SIGTERM, see `classwise.core.interruption`) takes effect after the next block of
        finished images; finished rows are written.
        """
        try:
            with interruption.deferred():
                self._run(pieces)
        except interruption.STOPS:
            self.writer.flush()
            raise

    def _run(self, pieces: Iterable[Images]) -> None:
        images = 0
        for piece in pieces:
            images += len(piece)
            order = balanced_order(piece.y.cpu())
            if self.sample is None:
                rows = order[:SAMPLE]
                self.sample, self.sample_radius = piece.batch(rows), self._radii(rows)
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
        labels = pd.Series(piece.y.cpu().numpy(), index)[done.index]
        if not np.array_equal(labels.to_numpy(), done["label"].to_numpy(dtype=np.int64)):
            raise ClasswiseError("the folder contains an audit of other images: the labels differ; give another folder")
        todo = order[~np.isin(index[order.numpy()], done.index)]
        self.progress.start(CLEAN, len(todo))
        with self.phase(CLEAN), self._seeded(CLEAN, piece, todo):
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
        self.progress.start(label, len(todo))
        while len(todo):
            try:
                with self.phase(label), self._seeded(label, piece, todo):
                    self._attack_rows(label, attack, piece, todo)
            except torch.OutOfMemoryError as error:
                self._halve(error)
                todo = todo[~np.isin(index[todo.numpy()], self.writer.rows(label, index).index)]
            else:
                break
        if self.engine.passes.unfused and not self.unfused:
            self.unfused = self.engine.passes.unfused
            self.progress.log(f"the model is not fused, so gradients take longer: {self.unfused}")
        reason = self.engine.not_reduced(attack)
        if reason and label not in self._not_reduced:
            self._not_reduced.add(label)
            self.progress.log(f"{label} computes no smaller batches when few images are left: {reason}")
        reason = self.engine.not_graphed(attack)
        if reason and label not in self.not_graphed:
            self.not_graphed[label] = reason
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
        blocks = self.engine.attack(attack, self.plan.threat, self._jobs(piece, todo), images=len(todo))
        # Closed at once, also after an exception, so that the model is restored.
        with contextlib.closing(cast("Generator[Finished, None, None]", blocks)):
            for done in blocks:
                rows = todo[done.row.cpu()]
                radius = self._radii(rows)
                threat = self.plan.threat if radius is None else self.plan.threat.with_epsilon(radius.to(done.x.device))
                frame = self._grouped(attacked_rows(label, done, threat, self.plan.repeats.count), piece, rows)
                tensors = self._tensors(done.index, done.x, done.logits, images=True) | self._examples_of(done)
                self.writer.add(frame, tensors)
                self.progress.advance(len(done.row))
                self.processes.check()
                interruption.stop_point()

    def _near(self, piece: Images) -> Images:
        """The images on the GPU, if they take a small part of its memory, so that no attack copies them again."""
        device = self.engine.device
        if device.type != "cuda" or piece.x.nbytes > IMAGES_SHARE * memory_of(device):
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
            radius = self._radii(rows)
            yield Job(batch.index, batch.x, batch.y, {} if radius is None else {"epsilon": radius})

    def _radii(self, rows: Tensor) -> Tensor | None:
        """(N,) radii of the rows of a piece; None if all images have the same radius."""
        epsilon = self.plan.threat.epsilon
        return epsilon.cpu()[rows] if isinstance(epsilon, Tensor) else None

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
        """Halve the batch size for lack of memory, which voids bit-identical repetition."""
        half = self.engine.batch_size // 2
        if half < SMALLEST_BATCH:
            raise ClasswiseError(
                f"the device has not enough memory for {self.engine.batch_size} images; use a device with more memory"
            ) from error
        note = f"batch size halved from {self.engine.batch_size} to {half} for lack of memory"
        self.progress.log(note)
        self.engine = self.plan.engine(self.model, half)
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
            (features,) = Engine(_Features(self.model), batch_size=self.engine.batch_size).predict([x])
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
        radius = self._radii(rows)
        threat = self.plan.threat if radius is None else self.plan.threat.with_epsilon(radius)
        for label, attack in self.plan.suite.attacks.items():
            self.traces.append(trace_rows(self.engine, label, attack, batch, threat))


def _own_index(piece: Images, order: Tensor) -> IntArray:
    """Indices of this process's images in a piece; a resumed audit also has rows of other processes."""
    index: IntArray = piece.index.cpu().numpy()[np.sort(order.numpy())]
    return index


def trace_rows(engine: Engine, label: str, attack: Attack, batch: Batch, threat: Threat) -> pd.DataFrame:
    """Record the confidences of images at every step of the first restart of an attack.

    Args:
        engine: an engine of the model.
        label: the attack's label.
        attack: the attack.
        batch: the images.
        threat: the ball; its radius is one number, or one for each image.

    Returns:
        A row for each image, step (0 is the initial point) and class: ``index``, ``attack``, ``iteration``, ``class``,
        ``confidence`` (softmax of float32 logits).
    """
    index, x, y = (tensor.to(engine.device) for tensor in batch)
    # As many rows as in the passes of the engine, so that the arithmetic is the same.
    pad = torch.arange(max(engine.batch_size, len(x)), device=engine.device) % len(x)
    epsilon = threat.epsilon
    ball = threat.with_epsilon(epsilon.to(engine.device)[pad]) if isinstance(epsilon, Tensor) else threat
    reference = engine.passes.reference(x)[pad] if attack.needs_reference else None
    restart = torch.zeros_like(pad)
    rng = CounterRNG(engine.seed, "attack")
    inputs = AttackInputs(x[pad], y[pad], index[pad], ball, rng, reference=reference, restart=restart)
    confidences = []
    with engine.forward_for(attack, x) as model:
        state = attack.start(model, inputs)
        for step in range(attack.length + 1):
            confidences.append(engine.passes.logits(state["x"])[: len(x)].double().softmax(1).cpu().numpy())
            if step < attack.length:
                state = attack.step(model, inputs, state)
    values = np.stack(confidences, axis=1)
    images, steps, classes = values.shape
    return pd.DataFrame(
        {
            "index": np.repeat(index.cpu().numpy(), steps * classes),
            "attack": pd.Series(label, index=range(values.size), dtype="string"),
            "iteration": np.tile(np.repeat(np.arange(steps), classes), images),
            "class": np.tile(np.arange(classes), images * steps),
            "confidence": values.reshape(-1),
        }
    )


OK, NAN, SKIPPED = "ok", "nan", "skipped"


def clean_rows(index: Tensor, y: Tensor, decision: Decision, passes: int = 1) -> pd.DataFrame:
    """Rows of the clean images, from their indices (N,), labels (N,) and the decision over a number of passes."""
    columns = _of_logits(decision.logits, y, decision.prediction) | {
        "index": _numpy(index),
        "epsilon": 0.0,
        "distance": 0.0,
        "iterations": 0,
        "forwards": passes,
        "backwards": 0,
    }
    if passes > 1:
        columns[REPEATS] = _numpy(decision.repeats)
    return _frame(columns, CLEAN)


def attacked_rows(attack: str, done: Finished, threat: Threat, passes: int = 1) -> pd.DataFrame:
    """Rows of images that an attack has finished; the radius of ``threat`` is one number or (N,).

    Args:
        attack: the attack's label.
        done: the images.
        threat: the threat.
        passes: number of passes of each decision.
    """
    epsilon = threat.epsilon
    tensors = {name: getattr(done, name) for name in ("index", "iterations", "forwards", "backwards")}
    tensors |= {"distance": threat.distance(done.x, done.x0), "logits": done.logits, "y": done.y}
    tensors |= {"prediction": done.prediction} | ({REPEATS: done.repeats} if passes > 1 else {})
    tensors |= {name: done.records[name] for name in REPORTED if name in done.records}
    tensors |= {"epsilon": epsilon} if isinstance(epsilon, Tensor) else {}
    measured = to_cpu({name: tensor.detach() for name, tensor in tensors.items()})
    of_logits = _of_logits(measured.pop("logits"), measured.pop("y"), measured.pop("prediction"))
    columns = {name: _numpy(tensor) for name, tensor in measured.items()}
    return _frame(of_logits | {"epsilon": epsilon} | columns, attack)


def carried_rows(attack: str, clean: pd.DataFrame, epsilon: Any, reported: Collection[str] = ()) -> pd.DataFrame:
    """Rows of images that are misclassified without attack: the clean image, with zero steps and passes.

    Args:
        attack: the attack's label.
        clean: the images' rows of the clean pass.
        epsilon: the radius, one number or one for each row.
        reported: the optional columns that the attack reports; they are 0, like the distance.
    """
    zeros = dict.fromkeys(("iterations", "forwards", "backwards", *(name for name in REPORTED if name in reported)), 0)
    return clean.assign(attack=attack, epsilon=epsilon, **zeros)


def skipped_rows(attack: str, removed: pd.DataFrame, epsilon: Any) -> pd.DataFrame:
    """Rows of images that a cascade skips, from the rows of the attacks that succeeded on them."""
    zeros = dict.fromkeys(("forwards", "backwards"), 0)
    frame = removed[["index", "label", "first_success"]]
    return frame.assign(attack=attack, epsilon=epsilon, correct=False, status=SKIPPED, **zeros)


def _frame(columns: dict[str, Any], attack: str) -> pd.DataFrame:
    first_success = np.array([attack, None], dtype=object)[columns["correct"].astype(np.int64)]
    return pd.DataFrame(columns | {"attack": attack, "first_success": first_success})


def _of_logits(logits: Tensor, y: Tensor, prediction: Tensor) -> dict[str, Any]:
    """The columns that are computed from float32 logits (N, C) and predictions (N,), each row from its own only."""
    values, label, predicted = _numpy(logits).astype(np.float64), _numpy(y), _numpy(prediction)
    rows = np.arange(len(label))
    valid = np.isfinite(values.max(axis=1))  # as in `classwise.models.logits.are_valid`
    values = np.where(valid[:, None], values, 0.0)
    confidence = special.softmax(values, axis=1)
    # As in torch.argmax, the first of equal logits ranks first.
    ranked = np.argsort(-values, axis=1, kind="stable")
    others = values.copy()
    others[rows, label] = -np.inf
    columns = {
        "prediction": predicted,
        "p_label": confidence[rows, label],
        "p_predicted": confidence[rows, predicted],
        "margin": values[rows, label] - others.max(axis=1),
        "confidence_variance": confidence_variance(confidence),
    }
    if values.shape[1] > 1:
        columns["runner_up"] = ranked[:, 1]
    known = {name: np.where(valid, column, np.nan) for name, column in columns.items()}
    correct = valid & (predicted == label)
    return known | {"label": label, "correct": correct, "status": np.where(valid, OK, NAN)}


def _numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return array
