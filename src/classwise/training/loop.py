"""The training loop: inner maximisation, update, per-class sums, epoch end, checkpoint."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classwise import interruption
from classwise.attacks.engine import Engine
from classwise.compute import check_device
from classwise.data import Images, stratified_split
from classwise.draws import Draws
from classwise.environment import environment
from classwise.errors import UserError, unknown
from classwise.models import build_model, load_model
from classwise.models.fusion import affine_norms
from classwise.models.modes import frozen
from classwise.ownership import owned
from classwise.progress import Measured, Progress, Silent
from classwise.storage import remove_stale_temporaries, write_text
from classwise.team import Team, joined
from classwise.training.averaging import Average
from classwise.training.beginning import check_folder, check_same, doubts, model_spec, training_images, usual_threat
from classwise.training.chronicle import epoch_rows, numbers, summary
from classwise.training.classes import ALWAYS, MEASURED, ClassSettings, ClassSums
from classwise.training.feeding import Feed
from classwise.training.finite import FiniteLoss, OnNan, all_finite, checked_policy, likely_cause, not_finite
from classwise.training.folder import SCHEMA_VERSION, Run, Which
from classwise.training.objectives.base import Step
from classwise.training.objectives.standard import Standard
from classwise.training.recipe import Parts, Recipe
from classwise.training.record import Record
from classwise.training.reductions.base import per_image
from classwise.training.schedules.base import Classes, ClassSchedule
from classwise.training.selection import WithinError
from classwise.training.sharing import Share, agreed, sharing_buffers, synchronised
from classwise.training.state import load_state, save_state
from classwise.training.unlabelled import keep, pseudo_labelled
from classwise.training.validating import shared_outputs, summed_up

CHECKPOINT_SECONDS = 300.0
"""A checkpoint is written at each epoch's end, and at the first step boundary after so many seconds."""


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    out: str | Path,
    data: str | os.PathLike[str] | Images | None = None,
    budget: str | None = None,
    resume: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    changes: Mapping[str, Any] | None = None,
    unlabelled: Images | None = None,
    alone: bool = False,
    on_nan: OnNan = "stop",
    **more: Any,
) -> Run:
    """Train a classifier by a recipe, into a run folder.

    Where `torch.distributed` is initialised, all its processes must call this with the same arguments, and see the same
    folder: they share each step. The recipe's ``batch_size`` is then that of each process, and the run's recipe holds
    that of all: it is the run of one process with that batch, and either can go on with what the other began.

    Args:
        recipe: a recipe's name, a YAML file, a mapping or a `Recipe`.
        out: the run folder; it must not hold another run.
        data: a data set's name or a path in place of the recipe's, or images (then the recipe records their name and
            hash only).
        budget: one of the recipe's budgets, such as ``"short"`` (30 epochs, or fewer); None for the recipe as it is
            written.
        resume: go on with the run that the folder holds; the recipe must be the same.
        device: where to train.
        progress: who is told how it goes.
        changes: dotted recipe fields to new values, such as ``{"optimizer.lr": 0.05}``; they come after the budget.
        unlabelled: images in place of those that the recipe's ``data.unlabelled`` names.
        alone: train in this process, whatever others there are.
        on_nan: ``"stop"``: stop at once, before anything is saved, when the loss or the weights are not finite (on a
            GPU within `classwise.training.finite.STEPS_BETWEEN_CHECKS` steps). ``"continue"``: continue, and record the
            event ``not-finite`` in each such epoch.
        **more: undotted recipe fields, such as ``epochs=30``.

    Returns:
        The finished run.

    Raises:
        UserError: for a bad recipe or device (before data is read), data that do not fit, a folder that holds another
            run or is in use, or a loss or weights that are not finite.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = cw.train("at", data="digits", out=f"{folder}/at", changes=small, epochs=2)
        ...     model = run.model()
        >>> run.recipe.epochs, model.training
        (2, False)
    """
    all_changes = {**(changes or {}), **more}
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    if not isinstance(data, str | Images | None):
        raise UserError(f"data should be a name, a path or Images, not {type(data).__name__}; see cw.Images(x, y)")
    if data is not None:
        all_changes["data.name"] = data.name if isinstance(data, Images) else data
    with joined(alone=alone) as team:
        listener = progress if progress is not None and team.first else Silent()
        plan = Recipe.read(recipe, all_changes, budget=budget)
        check_device(device)
        checked_policy(on_nan)
        plan = plan.times_batch(team.size)
        run = Run(Path(out))
        if not run.path.is_dir():
            check_folder(run, resume=resume)
        with owned(run.path) if team.first else nullcontext():
            return _train(plan, run, data, unlabelled, resume, device, listener, team, on_nan)


def _train(
    plan: Recipe,
    run: Run,
    data: str | Images | None,
    unlabelled: Images | None,
    resume: bool,
    device: str,
    progress: Progress,
    team: Team,
    on_nan: OnNan,
) -> Run:
    """The work of `train`, in one of its processes."""
    out = run.path
    if plan.model.sync_batch_norm and torch.device(device).type != "cuda":
        raise UserError(f"model.sync_batch_norm = true needs GPUs, and the device is {device}; leave it out")
    check_folder(run, resume=resume)
    if team.first:
        remove_stale_temporaries(out)
    images = data if isinstance(data, Images) else training_images(plan.data)
    threat = plan.parts.threat or usual_threat(images)
    plan = plan.completed(threat)
    parts = plan.parts
    written = plan
    if run.recipe_file.is_file():
        check_same(run, plan, images, team)
        written = run.recipe
    extra = pseudo_labelled(plan, images, run, device, unlabelled)
    agreed(team, {"recipe": plan.digest(), "data": images.fingerprint(), "folder": str(out)} if team.size > 1 else {})
    if team.size > 1:
        progress.say(f"{team.size} processes share each step of {plan.batch_size} images")
    if plan.model.start is None and not run.recipe_file.is_file():
        for name in plan.fine_tuning():
            progress.say(f"{name!r} is meant to start from a robust model; give one, as in --set model.start=runs/at")
    if isinstance(parts.objective, Standard) and plan.selection != "last":
        progress.say(f"selection {plan.selection!r} is by robust accuracy, which standard training loses; set last")
    if not isinstance(parts.objective, Standard):
        inner = {"attack": parts.attack, "validation_attack": parts.validation_attack}
        for doubt in doubts(images, threat, inner):
            progress.say(doubt)
    with torch.random.fork_rng(devices=[] if device == "cpu" else None):
        Trainer(plan, parts, images, run, device, progress, extra, team, on_nan).run_all()
    team.meet()
    return Run(run.path).with_recipe(written)


class Trainer:
    """One training run in progress."""

    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        images: Images,
        run: Run,
        device: str,
        progress: Progress,
        extra: Images | None = None,
        team: Team | None = None,
        on_nan: OnNan = "stop",
    ) -> None:
        self.recipe = recipe
        self.parts = parts
        self.folder = run
        self.progress = progress
        self.team = team or Team()
        self.device = torch.device(device)
        self.on_nan = on_nan
        self.loss = FiniteLoss(self.device)
        self.draws = Draws(recipe.seed, "training")
        self.fingerprint = images.fingerprint()
        self.train, self.valid = self._split(images)
        self.feed = self._new_feed(extra)
        self.model = self._new_model(images)
        self.forward = recipe.compute.forward(self.model)
        self.optimizer = parts.optimizer.build(self.model)
        self.classes = Classes(images.class_names, self.train.class_counts())
        self.reads = frozenset(ALWAYS).union(parts.averaging.reads, *(part.reads for part in parts.schedules))
        self._check()
        self.epoch = 0
        self.step = 0
        self.average = Average()
        self.schedule_states = [schedule.start(self.classes) for schedule in parts.schedules]
        self.sums = self._new_sums()
        about = {
            "model": model_spec(recipe, self.train),
            "recipe": recipe.name,
            "class_names": list(images.class_names),
        }
        labels = None if self.valid is None else self.valid.y
        self.record = Record(run, parts.selection, recipe.epochs, labels, about, writes=self.team.first)
        self._saved: tuple[int, int] | None = None

    def run_all(self) -> None:
        """Train from the folder's state to the last epoch.

        A request to stop (SIGINT or SIGTERM, see `classwise.interruption`) waits for the end of the step, whose state
        is then saved. During validation it waits for the end of the batch, and the state after the epoch's last step is
        saved: a resumed run validates again. Of several processes the first one stops so, and the others with it.
        """
        try:
            with interruption.deferred():
                self._run_all()
        except interruption.STOPS as stop:
            stop.add_note(self._saved_text())
            raise

    def _run_all(self) -> None:
        if self.folder.state_file.is_file():
            load_state(self)
            self._saved = self.epoch, self.step
            self.progress.say(f"resuming at epoch {self.epoch + 1}, step {self.step}")
        else:
            if self.team.first:
                self._begin()
            self.schedule_states = [
                schedule.before_training(state, self._outputs)
                for schedule, state in zip(self.parts.schedules, self.schedule_states, strict=True)
            ]
        steps = self.feed.steps
        self.progress.begin("training", self.recipe.epochs * steps)
        self.progress.advance(self.epoch * steps + self.step)
        saved = time.monotonic()
        while self.epoch < self.recipe.epochs:
            started = time.monotonic()
            settings = self.class_settings()
            order = self.feed.order(self.epoch)
            while self.step < steps:
                if self.reacts:
                    settings = self.class_settings()
                self.train_step(self.feed.rows(order, self.epoch, self.step, settings), settings)
                if self.loss.due(self.step):
                    self._check_loss(settings)
                self.step += 1
                self.progress.advance(1)
                if self.step < steps:
                    if time.monotonic() - saved > CHECKPOINT_SECONDS:
                        self._checkpoint(settings)
                        saved = time.monotonic()
                    self._stop_point(functools.partial(self._checkpoint, settings))
            if self.reacts:  # also where the run was saved after the last step, and none was left
                settings = self.class_settings()
            self._check_finite(settings)
            self._end_epoch(settings, time.monotonic() - started)
            self.epoch += 1
            self.step = 0
            self.sums = self._new_sums()
            self._save_state()
            saved = time.monotonic()
            self._stop_point()

    def _stop_point(self, save: Callable[[], None] | None = None) -> None:
        """Stop between two steps or batches if that was requested; another process stops when the first one has."""
        if self.team.first:
            interruption.stop_point(save)

    def _saved_text(self) -> str:
        """How much of the run its folder holds."""
        if self._saved is None:
            return f"no step is saved in {self.folder.path}"
        epoch, step = self._saved
        if epoch == self.recipe.epochs:
            return f"the run in {self.folder.path} is complete"
        within = f" and {step} of {self.feed.steps} steps" if step else ""
        return f"{epoch} of {self.recipe.epochs} epochs{within} are saved in {self.folder.path}"

    @property
    def reacts(self) -> bool:
        """Whether a schedule changes its settings within an epoch."""
        return any(type(part).after_batch is not ClassSchedule.after_batch for part in self.parts.schedules)

    def _split(self, images: Images) -> tuple[Images, Images | None]:
        """The training and the validation split, on the device; the same for the same data, share and seed."""
        share = self.recipe.data.validation
        if share == 0:
            return images.to(self.device), None
        rest, held = stratified_split(images.y.cpu(), share, self.recipe.seed)
        return images.take(rest).to(self.device), images.take(held).to(self.device)

    def _new_feed(self, extra: Images | None) -> Feed:
        assert self.parts.threat is not None
        share = self.recipe.data.unlabelled
        more = 0 if share is None else share.of(self.recipe.batch_size)
        return Feed(
            self.train,
            None if extra is None else extra.to(self.device),
            self.recipe.batch_size - more,
            more,
            self.parts.augment,
            self.parts.threat,
            self.draws,
        )

    def _new_model(self, images: Images) -> nn.Module:
        torch.manual_seed(self.recipe.seed)
        spec = model_spec(self.recipe, images)
        model = build_model(**spec)
        start = self.recipe.model.start
        if start is not None and not self.folder.state_file.is_file():
            model = load_model(model, weights=start)
        if self.recipe.model.sync_batch_norm:
            model = synchronised(model, self.team, self.device)
        self.recipe.compute.prepare(model)
        return model.to(self.device)

    def _outputs(self) -> Tensor:
        """The network's outputs on the training images as they are, (N, C)."""
        engine = Engine(self.model, compute=self.recipe.compute, batch=max(32, self.recipe.batch_size))
        return torch.cat(list(engine.predict(batch.x for batch in self.train.batches(engine.batch))))

    def _new_sums(self) -> ClassSums:
        return ClassSums(len(self.classes), self.reads, self.device)

    def _check(self) -> None:
        for name in self.reads - MEASURED:
            raise unknown("signal", name, MEASURED)
        normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.model.modules())
        if normalised and self.recipe.batch_size == self.team.size:
            raise UserError(
                f"batch_size = 1: the batch normalisation of {self.recipe.model.name!r} has no statistics of one "
                "image; give at least 2"
            )

    def _begin(self) -> None:
        """A new folder: the recipe, the environment, the split."""
        write_text(self.folder.environment_file, json.dumps(self._environment(), indent=2) + "\n", checksum=True)
        held = [] if self.valid is None else self.valid.index.tolist()
        write_text(self.folder.path / "validation.json", json.dumps({"index": held}) + "\n", checksum=True)
        if self.feed.extra is not None:
            keep(self.folder, self.feed.extra)
        write_text(self.folder.recipe_file, self.recipe.yaml(), checksum=True)

    def _environment(self) -> dict[str, Any]:
        parts = {"train": self.train} if self.valid is None else {"train": self.train, "valid": self.valid}
        data = {
            "name": self.train.name,
            "fingerprint": self.fingerprint,
            "classes": list(self.classes.names),
            "counts": {name: part.class_counts().tolist() for name, part in parts.items()},
        }
        if (extra := self.feed.extra) is not None:
            data["unlabelled"] = {"name": extra.name, "counts": extra.class_counts().tolist()}
        processes = {"processes": self.team.size} if self.team.size > 1 else {}
        return {"schema_version": SCHEMA_VERSION, **environment(self.device), **processes, "data": data}

    def class_settings(self) -> ClassSettings:
        """The class settings of this epoch: the constants, then each schedule's changes in order."""
        assert self.parts.threat is not None
        ones = torch.ones(len(self.classes), device=self.device)
        settings = ClassSettings(epsilon=ones * self.parts.threat.epsilon)
        if self.parts.objective.regularised:
            settings = dataclasses.replace(settings, beta=ones * self.parts.objective.beta)  # type: ignore[attr-defined]
        for schedule, state in zip(self.parts.schedules, self.schedule_states, strict=True):
            settings = schedule.settings(state, settings, self.epoch)
        return settings

    def _borrowed(self) -> AbstractContextManager[object]:
        """While images are crafted: normalisation that knows its weights stand still. Compiled code cannot change."""
        return nullcontext() if self.recipe.compute.compile else affine_norms(self.model)

    def train_step(self, rows: Tensor, settings: ClassSettings) -> None:
        """One step on the images of those rows: craft, update, count, average."""
        parts, model = self.parts, self.model
        done = self.epoch * self.feed.steps + self.step
        progress = (done + 0.5) / (self.recipe.epochs * self.feed.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = parts.optimizer.lr * parts.rate.factor(progress)
        # For models that draw, such as those with dropout.
        torch.manual_seed(self.recipe.seed * 1_000_003 + done + (self.team.rank << 40))
        batch = self.feed.batch(rows, self.epoch, self.step, settings, progress)
        share = Share(self.team, len(rows))
        mine = share.of_batch(batch)
        taken: list[Step] = []
        reduced: list[Tensor] = []
        with sharing_buffers(share, model):
            model.train(self.recipe.craft == "train")
            with frozen(model), self._borrowed():
                points = parts.objective.points(
                    self.forward, mine, parts.attack, settings, self.draws.child("craft").at(self.epoch)
                )
            model.train()

            def loss() -> Tensor:
                taken.append(share.of_step(parts.objective.step(self.forward, mine, points, settings)))
                reduced.append(parts.reduction(taken[-1], batch, settings))
                return share.summing(reduced[-1], model)

            parts.update(model, self.optimizer, loss, progress)
        self.loss.add(reduced, self.step)
        step = taken[0]  # of the weights as they were; AWP's second pass is at others
        losses = per_image(step, batch, settings) if "train.loss" in self.reads else None
        self.sums.add(batch.y, step.clean_logits, step.robust_logits, losses)
        self.schedule_states = [
            schedule.after_batch(state, step, batch)
            for schedule, state in zip(parts.schedules, self.schedule_states, strict=True)
        ]
        self.average = parts.averaging.after_step(self.average, model.state_dict(), progress)

    def _check_loss(self, settings: ClassSettings) -> None:
        """Stop, or record, if the loss of a step was not finite.

        Raises:
            UserError: if it was, unless ``on_nan`` is ``"continue"``; the same in every process.
        """
        step = self.loss.first()
        if step is not None:
            self._not_finite("loss", step, settings)

    def _check_finite(self, settings: ClassSettings) -> None:
        """The same for the weights and statistics as well, before they are saved."""
        self._check_loss(settings)
        if not all_finite([*self.model.state_dict().values(), *self.average.weights.values()]):
            self._not_finite("weights", self.step - 1, settings)

    def _not_finite(self, what: str, step: int, settings: ClassSettings) -> None:
        place = f"epoch {self.epoch + 1}, step {step + 1} of {self.feed.steps}"
        if self.on_nan == "stop":
            raise not_finite(what, place, likely_cause(self.recipe, self.parts, settings), self.folder)
        known = [event for event in self.record.events if event["event"] == "not-finite"]
        if not any(event["epoch"] == self.epoch for event in known):
            self.record.tell(self.epoch, event="not-finite", what=what, step=step)
            if not known:
                self.progress.say(f"the {what} {'is' if what == 'loss' else 'are'} not finite at {place}; continuing")

    def _end_epoch(self, settings: ClassSettings, seconds: float) -> None:
        """Measure, let schedules and averager act, select, and write the epoch down."""
        measured = self.sums.signals()
        signals: dict[str, Tensor] = dict(measured)
        kept: dict[Which, nn.Module] = {"last": self.model}
        splits = {"train": {name.removeprefix("train."): value for name, value in measured.items()}}
        try:
            splits["valid"] = online = self._validate(self.model)
            signals |= {f"valid.{name}": value for name, value in online.items() if name != "scores"}
            began = self.epoch / self.recipe.epochs
            average = self.parts.averaging.after_epoch(self.average, self.model.state_dict(), signals, began)
            if average.weights:
                kept["average"] = self._averaged(average)
                splits["valid-average"] = self._validate(kept["average"])
        except interruption.STOPS:
            self._save_state()  # that of the epoch's last step: validation does not change it
            raise
        self.average = average
        if average.news is not None:
            self.record.tell(self.epoch, **average.news)
        spoken = splits.get("valid-average", online)
        if "confidence" in spoken:
            signals["valid.average_confidence"] = spoken["confidence"]
        self.schedule_states = [
            schedule.after_epoch(state, signals, self.epoch)
            for schedule, state in zip(self.parts.schedules, self.schedule_states, strict=True)
        ]
        if self.team.first:
            self._check_folder()
        for split, values in splits.items():
            self.record.rows += epoch_rows(self.epoch, split, values, settings, self.classes.names)
        for which, model in kept.items():
            self.record.keep(which, model, self.epoch)
            values = splits["valid" if which == "last" else "valid-average"]
            self.record.select("best" if which == "last" else "best-average", model, values, self.epoch)
        self.record.write()
        begun = f"epoch {self.epoch + 1}/{self.recipe.epochs}: {seconds:.0f} s"
        self.progress.say("; ".join([begun, *summary(splits, self.classes.names, self.average.news)]))
        if isinstance(self.progress, Measured):
            rate = {"learning rate": float(self.optimizer.param_groups[0]["lr"])}
            self.progress.measured(self.epoch, rate | numbers(self.record.of_epoch(self.epoch)))

    def _validate(self, model: nn.Module) -> dict[str, Tensor]:
        """Clean and robust accuracy of each class on the validation split, and what else is read.

        For a selection that compares epochs image by image also ``scores``, the soft score of each image.
        """
        if self.valid is None:
            return {}
        assert self.parts.threat is not None
        attack, threat = self.parts.validation_attack, self.parts.threat
        said = shared_outputs(model, self.valid, attack, threat, self.recipe, self.team, self._stop_point)
        found = summed_up(said, self.valid.y, len(self.classes), self.reads)
        if isinstance(self.parts.selection, WithinError):
            found["scores"] = said.soft
        return found

    def _averaged(self, average: Average) -> nn.Module:
        group = self.team.group(self.device) if self.recipe.model.sync_batch_norm else None
        model = copy.deepcopy(self.model, {id(group): group})  # a layer of the model may hold it
        model.load_state_dict(average.weights)
        return model

    def _checkpoint(self, settings: ClassSettings) -> None:
        """Save the state between two steps of an epoch."""
        self._check_finite(settings)
        self._save_state()

    def _save_state(self) -> None:
        if self.team.first:
            self._check_folder()
            save_state(self)
            self._saved = self.epoch, self.step

    def _check_folder(self) -> None:
        """Check that the folder still is the run's, so that no part of a run is written into a new one.

        Raises:
            UserError: if it was removed.
        """
        if not self.folder.recipe_file.is_file():
            raise UserError(f"{self.folder.path} was removed during training; start the run again")
