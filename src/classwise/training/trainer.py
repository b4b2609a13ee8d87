"""The trainer: the loop over epochs and steps, validation, and checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from classwise.attacks.engine import Engine
from classwise.core.compute.compilation import Compiling
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.graphs import FEWEST_STEPS, refusal
from classwise.core.compute.memory_format import copy_of
from classwise.core.compute.rng import CounterRNG, seed_generators
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.progress import interruption
from classwise.core.progress.listener import Progress
from classwise.core.progress.record import recorded
from classwise.data import Images
from classwise.training.averaging import Average, Weights
from classwise.training.background import BackgroundWriter
from classwise.training.classes.signals import MEASURED, ClassSettings, ClassSums
from classwise.training.evaluation import Evaluation, class_means
from classwise.training.finite_checks import FiniteLossCheck, OnNan, all_finite, likely_cause, not_finite_error
from classwise.training.folder import Run, Which, epoch_weights
from classwise.training.graphed_step import GraphedStep, unsuitable
from classwise.training.history import History, epoch_line, epoch_rows
from classwise.training.loggers.base import Logger
from classwise.training.recipe import Recipe
from classwise.training.schedules.base import Classes, ClassSchedule
from classwise.training.selection import WithinError
from classwise.training.setup import build_batches, initial_model, split_images, write_first_files
from classwise.training.state import TrainState, write_state
from classwise.training.step import StepInputs, StepResult, TrainingStep
from classwise.training.teacher import check_teacher

CHECKPOINT_SECONDS = 60.0
"""The time between checkpoints within an epoch; a checkpoint is also written at the end of each epoch."""
QUICK_SECONDS = 3.0
"""The duration of a checkpoint above which the time between two grows in proportion, so that they take at most 5 %."""


class Trainer:
    """A training run: its parts, its state, and the loop over steps and epochs.

    Args:
        recipe: the complete recipe, with the threat of the run.
        images: the training images, before the validation split.
        run: the run folder.
        device: where to train.
        progress: receives progress and log lines.
        extra: the pseudo-labelled images of the recipe, or None.
        processes: the process group; None for this process only.
        on_nan: what to do when the loss or the weights are not finite, see `classwise.training.train.train`.
        teacher: the teacher of the objective, in evaluation mode and frozen, or None.

    Raises:
        ClasswiseError: if a schedule reads an unknown signal, or a batch of one image meets batch normalisation.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: Images,
        run: Run,
        device: str,
        progress: Progress,
        extra: Images | None = None,
        processes: ProcessGroup | None = None,
        on_nan: OnNan = "stop",
        teacher: nn.Module | None = None,
    ) -> None:
        self.recipe = recipe
        self.teacher = teacher
        self.parts = parts = recipe.parts
        self.run = run
        self.progress = progress
        self.processes = processes or ProcessGroup()
        self.device = torch.device(device)
        self.on_nan = on_nan
        self.loss_check = FiniteLossCheck(self.device)
        self.rng = CounterRNG(recipe.seed, "training")
        self.fingerprint = images.fingerprint()
        self.train, self.valid = split_images(recipe, images, run, self.device)
        self.batches = build_batches(recipe, self.train, extra, self.rng)
        self.model = initial_model(recipe, images, run, self.processes, self.device)
        self.optimizer = parts.optimizer.build(self.model)
        self.classes = Classes(images.class_names, self.train.class_counts())
        self.reads = parts.reads
        self._check()
        self._graphs = ""
        self._step = self._training_step()
        metadata = {
            "recipe": recipe.name,
            "class_names": list(images.class_names),
        }
        labels = None if self.valid is None else self.valid.y
        self.writer = BackgroundWriter(self.device)
        self.state = TrainState(
            model=self.model,
            optimizer=self.optimizer,
            average=Average(),
            schedules=[schedule.start(self.classes) for schedule in parts.schedules],
            sums=self._new_sums(),
            history=History(run, parts.selection, recipe.epochs, labels, metadata, self.processes.is_main, self.writer),
            memory=parts.objective.memory(len(self.batches.pool), images.shape, len(self.classes), self.device),
        )
        self._saved: tuple[int, int] | None = None
        self._evaluations: dict[Which, Evaluation] = {}

    def fit(self) -> None:
        """Train to the last epoch, from the state in the run folder if there is one.

        Signals to stop (see `classwise.core.progress.interruption`) take effect after the current step, whose state
        is saved. During validation they take effect after the current batch, and the state after the last step of the
        epoch is saved; a resumed run repeats the validation. In a distributed run, the main process handles the
        signals, and the other processes stop with it.
        """
        try:
            folder = self.run.path if self.processes.is_main else None
            exact = true_float32(self.device) if self.device.type == "cpu" else nullcontext()
            with interruption.deferred(), self.writer, exact, recorded(folder, self.progress) as progress:
                self._fit(progress)
        except interruption.STOPS as stop:
            stop.add_note(self._saved_text())
            raise

    def _fit(self, progress: Progress) -> None:
        self._start()
        state, steps = self.state, self.batches.steps
        if isinstance(self.progress, Logger):
            self.progress.log_recipe(self.run.path, self.recipe.yaml())
        if state.epoch < self.recipe.epochs:
            progress.start("training", self.recipe.epochs * steps)
            progress.advance(state.epoch * steps + state.step)
        saved, pause = time.monotonic(), CHECKPOINT_SECONDS
        while state.epoch < self.recipe.epochs:
            started = time.monotonic()
            settings = self.class_settings()
            order = self.batches.order(state.epoch)
            while state.step < steps:
                if self.updates_within_epoch:
                    settings = self.class_settings()
                self.train_step(self.batches.rows(order, state.epoch, state.step, settings), settings)
                if self.loss_check.due(state.step):
                    self._check_loss(settings)
                state.step += 1
                progress.advance(1)
                if state.step < steps:
                    if (before := time.monotonic()) - saved > pause:
                        self._checkpoint(settings)
                        saved = time.monotonic()
                        pause = CHECKPOINT_SECONDS * max(1.0, (saved - before) / QUICK_SECONDS)
                    self._stop_point(functools.partial(self._checkpoint, settings))
            if self.updates_within_epoch:  # also where the run was saved after the last step of the epoch
                settings = self.class_settings()
            self._check_finite(settings)
            self._end_epoch(settings, time.monotonic() - started)
            state.epoch += 1
            state.step = 0
            state.sums = self._new_sums()
            self._save_state()
            saved = time.monotonic()
            self._stop_point()

    def _start(self) -> None:
        """Load the state from the run folder; in a new folder, write the first files and initialise the schedules."""
        state = self.state
        if self.run.state_file.is_file():
            if self.teacher is not None:
                check_teacher(self.run, self.teacher)
            state.load(self.run.state_file, self.recipe.digest(), self.processes.world_size, self.device)
            self._saved = state.epoch, state.step
            finished = state.epoch == self.recipe.epochs
            self.progress.log(
                self._saved_text() if finished else f"resuming at epoch {state.epoch + 1}, step {state.step}"
            )
            return
        if self.processes.is_main:
            write_first_files(
                self.run,
                self.recipe,
                self.batches,
                self.valid,
                self.fingerprint,
                self.model,
                self.teacher,
                self.processes.world_size,
            )
            if self._graphs:
                self.run.note_environment(graphs=self._graphs)
            if self.recipe.model.weights is not None and self.valid is not None:
                correct = self._outputs(self.valid).argmax(1) == self.valid.y
                self.run.note_environment(initial_accuracy=float(correct.float().mean()))
            if self.teacher is not None:
                check_teacher(self.run, self.teacher)
        state.schedules = [
            schedule.before_training(schedule_state, lambda: self._outputs(self.train))
            for schedule, schedule_state in zip(self.parts.schedules, state.schedules, strict=True)
        ]

    def _stop_point(self, save: Callable[[], None] | None = None) -> None:
        """Stop between two steps or batches if requested; the other processes stop with the main process."""
        if self.processes.is_main:
            interruption.stop_point(save)

    def _saved_text(self) -> str:
        """Return a sentence on the saved progress of the run."""
        if self._saved is None:
            return f"no step is saved in {self.run.path}"
        epoch, step = self._saved
        if epoch == self.recipe.epochs:
            return f"the run in {self.run.path} is complete"
        within = f" and {step} of {self.batches.steps} steps" if step else ""
        return f"{epoch} of {self.recipe.epochs} epochs{within} are saved in {self.run.path}"

    @property
    def updates_within_epoch(self) -> bool:
        """Whether a schedule changes the class settings within an epoch."""
        return any(type(part).after_batch is not ClassSchedule.after_batch for part in self.parts.schedules)

    def _outputs(self, images: Images) -> Tensor:
        """Compute the outputs of the model on clean images, (N, C), in evaluation mode."""
        engine = Engine(self.model, precision=self.recipe.precision, batch_size=max(32, self.recipe.batch_size))
        return torch.cat(list(engine.predict(batch.x for batch in images.batches(engine.batch_size))))

    def _new_sums(self) -> ClassSums:
        return ClassSums(len(self.classes), self.reads, self.device)

    def _check(self) -> None:
        for name in self.reads - MEASURED.keys():
            raise unknown("signal", name, MEASURED)
        normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.model.modules())
        if normalised and self.recipe.batch_size == self.processes.world_size:
            raise ClasswiseError(
                f"batch_size = 1 is too small for the batch normalisation of {self.recipe.model.name!r}; use at least 2"
            )

    def _training_step(self) -> Callable[[StepInputs], StepResult]:
        """Return the training step, as CUDA graphs where possible and wanted.

        Raises:
            ClasswiseError: with ``precision.graphs = on``, if it is impossible.
        """
        recipe = self.recipe
        step = TrainingStep(recipe, self.model, self.optimizer, self.processes, self.rng, self.reads, self.teacher)
        if recipe.precision.compile == "on" or self.processes.world_size == 1:
            step.compile(self._compiling)
        if recipe.precision.graphs == "off" or (recipe.precision.graphs == "auto" and self.device.type != "cuda"):
            return step
        reason = unsuitable(recipe, self.device, self.processes)
        if not reason and recipe.precision.graphs == "auto" and self.batches.steps < FEWEST_STEPS:
            reason = f"an epoch has {self.batches.steps} steps, fewer than {FEWEST_STEPS}"
        if not reason:
            return GraphedStep(step, self.device, self._graphs_decided, recipe.epochs * self.batches.steps)
        self._graphs_decided(reason)
        return step

    def _compiling(self) -> Compiling | None:
        """Return which passes of training are compiled."""
        recipe = self.recipe
        images = recipe.epochs * self.batches.steps * recipe.batch_size
        size = -(-recipe.batch_size // self.processes.world_size)
        passes = images * recipe.parts.passes.forward
        return recipe.precision.compiling(self.device, size, passes, self._not_compiled)

    def _not_compiled(self, reason: str) -> None:
        """Note in the log and in the environment why passes are not compiled."""
        self.progress.log(f"passes are not compiled: {reason}")
        if self.processes.is_main and not self.run.complete:
            self.run.note_environment(not_compiled=reason)

    def _graphs_decided(self, reason: str) -> None:
        """Note in the log and in the environment whether training steps are CUDA graphs; if not, ``reason`` states why.

        Raises:
            ClasswiseError: if they are not, with ``precision.graphs = on``.
        """
        if reason and self.recipe.precision.graphs == "on":
            raise refusal(reason)
        self._graphs = reason or "used"
        if reason:
            self.progress.log(f"training steps are not CUDA graphs: {reason}")
        if self.processes.is_main and self.run.recipe_file.is_file() and not self.run.complete:
            self.run.note_environment(graphs=self._graphs)

    def class_settings(self) -> ClassSettings:
        """Return the class settings of the epoch."""
        return self.parts.class_settings(self.classes, self.state.schedules, self.state.epoch)

    def train_step(self, rows: Tensor, settings: ClassSettings) -> None:
        """Train one step on the images of ``rows``: inner maximisation, update, per-class sums, weight averaging."""
        parts, state = self.parts, self.state
        done = state.epoch * self.batches.steps + state.step
        progress = (done + 0.5) / (self.recipe.epochs * self.batches.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = parts.optimizer.lr * parts.lr_schedule.factor(progress)
        # For models with random layers, such as dropout.
        seed_generators(self.recipe.seed * 1_000_003 + done + (self.processes.rank << 40), self.device)
        batch = self.batches.batch(rows, state.epoch, state.step, settings, progress)
        if state.memory:
            batch = dataclasses.replace(batch, memory=state.memory, memory_rows=rows)
        step, losses = self._step(StepInputs(batch, settings, state.epoch, state.sums, done))
        self.loss_check.add(losses, state.step)
        state.schedules = [
            schedule.after_batch(schedule_state, step, batch)
            for schedule, schedule_state in zip(parts.schedules, state.schedules, strict=True)
        ]
        if parts.averaging.averages_steps:
            state.average = parts.averaging.after_step(state.average, self._weights, progress)

    def _check_loss(self, settings: ClassSettings) -> None:
        """Check that the losses are finite; raise an error or log an event if not.

        Raises:
            ClasswiseError: if a loss is not finite and ``on_nan`` is ``"stop"``; the same in every process.
        """
        if (step := self.loss_check.first()) is not None:
            self._not_finite("loss", step, settings)

    def _check_finite(self, settings: ClassSettings) -> None:
        """Check that the losses, weights and statistics are finite, before they are saved."""
        self._check_loss(settings)
        if not all_finite([*self.model.state_dict().values(), *self.state.average.weights.values()]):
            self._not_finite("weights", self.state.step - 1, settings)

    def _not_finite(self, what: str, step: int, settings: ClassSettings) -> None:
        epoch, history = self.state.epoch, self.state.history
        place = f"epoch {epoch + 1}, step {step + 1} of {self.batches.steps}"
        if self.on_nan == "stop":
            raise not_finite_error(what, place, likely_cause(self.recipe, self.parts, settings), self.run)
        known = [event for event in history.events if event["event"] == "not-finite"]
        if not any(event["epoch"] == epoch for event in known):
            history.log_event(epoch, event="not-finite", what=what, step=step)
            if not known:
                self.progress.log(f"the {what} {'is' if what == 'loss' else 'are'} not finite at {place}; continuing")

    def _end_epoch(self, settings: ClassSettings, seconds: float) -> None:
        """Validate, update the schedules and the weight averaging, select, and write the history."""
        state, epoch, history = self.state, self.state.epoch, self.state.history
        measured = state.sums.signals()
        signals: dict[str, Tensor] = dict(measured)
        models: dict[Which, nn.Module] = {"last": self.model}
        splits = {"train": {name.removeprefix("train."): value for name, value in measured.items()}}
        try:
            splits["valid"] = online = self._validate("last", self.model)
            signals |= {f"valid.{name}": value for name, value in online.items() if name != "scores"}
            progress = epoch / self.recipe.epochs
            average = self.parts.averaging.after_epoch(state.average, self.model.state_dict(), signals, progress)
            if average.weights:
                self._averaged.load_state_dict(average.weights)
                models["average"] = self._averaged
                splits["valid-average"] = self._validate("average", self._averaged)
        except interruption.STOPS:
            self._save_state()  # the state after the last step: validation does not change it
            raise
        self.writer.wait()
        state.average = average
        if average.event is not None:
            history.log_event(epoch, **average.event)
        if "confidence" in (averaged := splits.get("valid-average", online)):
            signals["valid.average_confidence"] = averaged["confidence"]
        state.schedules = [
            schedule.after_epoch(schedule_state, signals, epoch)
            for schedule, schedule_state in zip(self.parts.schedules, state.schedules, strict=True)
        ]
        if self.processes.is_main:
            self.run.check_exists()
        for split, values in splits.items():
            history.rows += epoch_rows(epoch, split, values, settings, self.classes.names)
        for which, model in models.items():
            history.save_model(which, model, epoch)
            if epoch + 1 in self.recipe.checkpoint_epochs:
                history.save_model(epoch_weights(which, epoch + 1), model, epoch)
            values = splits["valid" if which == "last" else "valid-average"]
            history.select("best" if which == "last" else "best-average", model, values, epoch)
        history.write()
        self.progress.log(epoch_line(epoch, self.recipe.epochs, splits, self.classes.names, average.event, seconds))
        if isinstance(self.progress, Logger):
            learning_rate = {"learning rate": float(self.optimizer.param_groups[0]["lr"])}
            self.progress.log_metrics(epoch, learning_rate | history.scalars(epoch))

    def _validate(self, which: Which, model: nn.Module) -> dict[str, Tensor]:
        """Compute the per-class means on the validation split, see `class_means`; empty without a validation split.

        For the selection `WithinError`, ``scores`` has the soft score of each image, (N,).
        """
        if self.valid is None:
            return {}
        assert self.parts.threat is not None
        if which not in self._evaluations:
            self._evaluations[which] = Evaluation(
                model, self.valid, self.parts.validation_attack, self.parts.threat, self.recipe, self.processes
            )
        outputs = self._evaluations[which](self._stop_point)
        means = class_means(outputs, self.valid.y, len(self.classes), self.reads)
        if isinstance(self.parts.selection, WithinError):
            means["scores"] = outputs.soft
        return means

    @functools.cached_property
    def _weights(self) -> Weights:
        """The tensors of the model, which steps modify in place."""
        return self.model.state_dict()

    @functools.cached_property
    def _averaged(self) -> nn.Module:
        """A copy of the model, for the averaged weights."""
        group = self.processes.group(self.device) if self.recipe.model.sync_batch_norm else None
        return copy_of(self.model, {id(group): group})  # synchronised batch normalisation shares the group

    def _checkpoint(self, settings: ClassSettings) -> None:
        """Save the state between two steps of an epoch."""
        self._check_finite(settings)
        self.writer.wait()
        self._save_state()

    def _save_state(self) -> None:
        if self.processes.is_main:
            self.run.check_exists()
            content = self.state.content(self.recipe.digest(), self.processes.world_size)
            self.writer.write(content, self._write_state)

    def _write_state(self, content: Mapping[str, Any]) -> None:
        write_state(self.run.state_file, content)
        self._saved = content["epoch"], content["step"]
