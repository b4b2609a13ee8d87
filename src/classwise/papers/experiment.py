"""The interface of an experiment: from trained models, audits and images at one scale to findings."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import nn

from classwise.auditing.evaluation.evaluation import Tensors
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, Precision
from classwise.core.errors import ClasswiseError, DataNotFoundError
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.config import Spec, configurable, parse_spec
from classwise.data.derived import only_classes
from classwise.data.images import Images
from classwise.data.sets.loading import load_data
from classwise.data.splits import stratified_subset
from classwise.papers.claims import Measurement, Test
from classwise.papers.declared import DeclaredTest
from classwise.papers.scales import DEFAULT_SCALES, NAMES, Name, Scale, medium, on_data_set
from classwise.papers.store import Store
from classwise.papers.user_inputs import UserInputs
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Table
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe

SEEDS_APART = 100
"""Difference of the seeds of two repetitions; within a repetition, the seeds of an experiment are smaller."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that an experiment declares.

    Args:
        recipe: recipe name.
        overrides: dotted recipe fields to values, applied after those of the scale.
        data: data set; empty for that of the scale.
        start: name of the declared training that provides the initial weights; empty for random ones.
        teacher: name of the declared training that labels the unlabelled images; empty without self-training.
        images: description of derived training images, such as ``without one class``; empty for those of the scale.
    """

    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    start: str = ""
    teacher: str = ""
    images: str = ""


Trainings = Mapping[str, Training]
"""Trainings by the name of their model."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Audits of a trained model, as an experiment declares them for the forecast of its cost.

    Args:
        attacks: labels to attack specs; empty for a forward pass without attack.
        images: the test images, those for attacks that cost thousands of passes, or the training images.
        weights: number of evaluated weights of the model, such as epochs; or of evaluations of the same weights.
    """

    attacks: Mapping[str, Spec]
    images: Literal["test", "few", "train"] = "test"
    weights: int = 1


class Requested(NamedTuple):
    """A training that an experiment requested: its recipe at the scale, its data set and the number of its images."""

    declared: Training
    recipe: Recipe
    data: str
    images: int


@dataclass(frozen=True)
class Requests:
    """What an experiment requested of a store.

    Attributes:
        trainings: trainings by their store keys.
        test_images: numbers of test images of the audits.
        attacks: names of the attacks of the audits, each with its threat.
    """

    trainings: dict[str, Requested] = field(default_factory=dict)
    test_images: set[int] = field(default_factory=set)
    attacks: set[str] = field(default_factory=set)


class Context:
    """Source of the models, audits and images of an experiment at one scale.

    Args:
        scale: data, network and budget.
        store: store of trainings and audits.
        device: PyTorch device.
        progress: progress listener.
        inputs: models and images of the user, for an experiment that takes them.
        requests: receives the requested trainings and audits.
        last_weights: whether the weights of the last epoch are used in place of the selected ones.
    """

    def __init__(
        self,
        scale: Scale,
        store: Store,
        *,
        device: str = "cpu",
        progress: Progress | None = None,
        inputs: UserInputs | None = None,
        requests: Requests | None = None,
        last_weights: bool = False,
    ) -> None:
        self.inputs = inputs or UserInputs()
        self.scale = scale
        self.store = store
        self.device = device
        self.progress: Progress = progress or NullProgress()
        self.requests = requests or Requests()
        self.last_weights = last_weights

    def for_data_sets(self, names: Sequence[str]) -> tuple[dict[str, Context], dict[str, str]]:
        """Create a context for each available data set of this run; all share the store and the record of requests.

        Args:
            names: data set names.

        Returns:
            Contexts by data set, and for each other data set the reason why it has none.

        Raises:
            ClasswiseError: if no data set is available.
        """
        available, absent, errors = dict[str, Context](), dict[str, str](), list[str]()
        for name in names:
            if self.scale.data_sets and name not in self.scale.data_sets:
                absent[name] = "left out of this run"
                continue
            own = self._at(on_data_set(self.scale, name))
            try:
                _ = own.train_images, own.test_images
            except ClasswiseError as error:
                absent[name] = "its files were not found" if isinstance(error, DataNotFoundError) else str(error)
                errors.append(str(error))
                self.progress.log(f"data set {name} is skipped: {error}")
                continue
            available[name] = own
        if not available:
            wanted = ", ".join(self.scale.data_sets or absent)
            raise ClasswiseError(f"none of the data sets {wanted} is available: {errors[0]}")
        return available, absent

    def repeated(self, repetition: int) -> Context:
        """Create a context with other seeds of all trainings; it shares the store and the record of requests.

        Args:
            repetition: number of the repetition; 0 for the seeds of the experiment itself.
        """
        return self._at(replace(self.scale, repetition=repetition))

    def with_last_weights(self) -> Context:
        """Create a context with the weights of the last epoch in place of the selected ones; it shares the requests."""
        return self._at(self.scale, last_weights=True)

    def with_threat(self, threat: str) -> Context:
        """Create a context with another threat of training and evaluation; it shares the requests."""
        return self._at(replace(self.scale, threat=threat))

    def _at(self, scale: Scale, **changes: Any) -> Context:
        names = ("device", "progress", "inputs", "requests", "last_weights")
        return Context(scale, self.store, **{name: getattr(self, name) for name in names} | changes)

    @cached_property
    def train_images(self) -> Images:
        """Training images of the scale, of the classes that have any."""
        return self._loaded[0]

    @cached_property
    def spare_images(self) -> Images | None:
        """As many further training images, stratified by class; None if the scale uses the whole training set."""
        if self.scale.train is None:
            return None
        whole = load_data(self.scale.data, split="train")
        if len(whole) == len(self.train_images):
            return None
        rest = whole.take(~torch.isin(whole.index, self.train_images.index))
        return rest.take(stratified_subset(rest.y, min(self.scale.train, len(rest))))

    @cached_property
    def test_images(self) -> Images:
        """Test images of the scale, of the classes that have training images."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Images, Images]:
        """Training and test images. A data set that is available in part has fewer of them, or fewer classes."""
        train, test = load_data(self.scale.data, split="train"), load_data(self.scale.data, split="test")
        present = torch.nonzero(train.class_counts()).flatten().tolist()
        if len(present) < train.num_classes:
            train, test = (only_classes(images, present) for images in (train, test))
        return _subset(train, self.scale.train), _subset(test, self.scale.test)

    @cached_property
    def few_images(self) -> Images:
        """Stratified subset of the test images for expensive attacks."""
        if self.scale.few is None or self.scale.few >= len(self.test_images):
            return self.test_images
        return self.test_images.take(stratified_subset(self.test_images.y, self.scale.few))

    def pgd(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Adapt a PGD spec to the data set, or to the number of steps of the scale with a step of 2 epsilon / steps."""
        steps = self.scale.attack_steps
        own = self.scale.evaluation if steps is None else {"steps": steps, "step_size": f"{2 / steps:g}eps"}
        return {**spec, **own}

    def train_all(
        self, declared: Mapping[str, Training], *, images: Mapping[str, Images] | None = None
    ) -> dict[str, Run]:
        """Train the declared models of one data set, or load them from the store.

        A model that labels or initialises another one comes before it.

        Args:
            declared: trainings by name, all on the data set of this context.
            images: derived training images by name, for the trainings that declare them.
        """
        trained: dict[str, Run] = {}
        for name, training in declared.items():
            trained[name] = self.train(
                training,
                start=trained[training.start] if training.start else None,
                teacher=trained[training.teacher] if training.teacher else None,
                unlabelled=self.spare_images if training.teacher else None,
                images=(images or {}).get(name),
            )
        return trained

    def train(
        self,
        training: Training,
        *,
        start: Run | None = None,
        teacher: Run | None = None,
        unlabelled: Images | None = None,
        images: Images | None = None,
    ) -> Run:
        """Train a model at this scale, or load the run from the store.

        Args:
            training: recipe and overrides.
            start: run that provides the initial weights.
            teacher: run that labels the unlabelled images.
            unlabelled: unlabelled images of self-training.
            images: training images; None for those of the scale.
        """
        data = self.train_images if images is None else images
        recipe = recipe_at(self.scale, training)
        trained = self.store.train(
            recipe,
            data,
            start=start,
            teacher=teacher,
            unlabelled=unlabelled,
            device=self.device,
            progress=self.progress,
        )
        self.requests.trainings[trained.path.name] = Requested(training, recipe, self.scale.data, len(data))
        return replace(trained, default="last") if self.last_weights else trained

    def audit_model(self, model: nn.Module, attacks: Mapping[str, Spec], *, images: Images | None = None) -> Audit:
        """Audit a model that was trained elsewhere, or load the audit from the store.

        Args:
            model: a module that maps images in [0, 1] to logits.
            attacks: labels to attack specs.
            images: test images; None for those of the scale.
        """
        chosen = self.test_images if images is None else images
        self.note_audit(chosen, attacks)
        return self.store.audit_model(
            model,
            chosen,
            attacks,
            self.scale.threat,
            precision=self.scale.precision,
            device=self.device,
            progress=self.progress,
        )

    def note_audit(self, images: Images, attacks: Mapping[str, Spec]) -> None:
        """Record the number of images of an audit, and its attacks with the threat of the scale."""
        self.requests.test_images.add(len(images))
        self.requests.attacks.update(f"{name_and_options(spec)[0]} in {self.scale.threat}" for spec in attacks.values())

    def audit(
        self,
        trained: Run,
        attacks: Mapping[str, Spec],
        *,
        few: bool = False,
        which: Which | None = None,
        early_stop: bool = False,
        surrogates: Sequence[Run] = (),
        images: Images | None = None,
        trace: Sequence[int] = (),
        save: Sequence[Tensors] = (),
        precision: Precision | None = None,
    ) -> Audit:
        """Audit a run at this scale, or load the audit from the store.

        An audit with an attack in the paper's arithmetic, which is float32, computes the gradients of all of its
        attacks in float32, so that the attacks are compared on the same network. The guards of audits do not run at
        smoke scale, whose numbers mean nothing.

        Args:
            trained: the run.
            attacks: labels to attack specs.
            few: whether to use `few_images` instead of `test_images`.
            which: the saved weights; None for the default of the run.
            early_stop: whether attacks stop at the first success.
            surrogates: runs whose paths the attack specs contain.
            images: test images; None for those of the scale.
            trace: indices of images whose confidences are recorded at every step.
            save: tensors to save for every image.
            precision: precision of the gradients; None for that of the attacks and the scale.
        """
        chosen = images if images is not None else self.few_images if few else self.test_images
        self.note_audit(chosen, attacks)
        if precision is None:
            exact = any(name_and_options(spec)[1].get("arithmetic") == "paper" for spec in attacks.values())
            precision = EXACT if exact else self.scale.precision
        return self.store.audit(
            trained,
            chosen,
            attacks,
            self.scale.threat,
            which=which,
            early_stop=early_stop,
            precision=precision,
            surrogates=surrogates,
            trace=trace,
            save=save,
            guards="off" if self.scale.name == "smoke" else "auto",
            device=self.device,
            progress=self.progress,
        )


def name_and_options(spec: Spec) -> tuple[str, Mapping[str, Any]]:
    """The name of an attack, and its options."""
    return parse_spec(spec) if isinstance(spec, str) else (str(spec["name"]), spec)


def recipe_at(scale: Scale, training: Training) -> Recipe:
    """The recipe of a training at a scale; epoch numbers of its schedules are rescaled.

    A repetition of the scale adds `SEEDS_APART` to the seed for each repetition before it. Experiments share trainings,
    and a recipe takes long to read, so each is read once in a process.

    Args:
        scale: data, network and budget.
        training: recipe and overrides; another data set than that of the scale adapts the scale to it.
    """
    scale = on_data_set(scale, training.data) if training.data else scale
    merged = {**scale.overrides, **training.overrides}
    key = json.dumps([training.recipe, scale.budget, scale.threat, scale.repetition, merged], default=repr)
    if key not in _RECIPES:
        recipe = Recipe.read(training.recipe, budget=scale.budget)
        epochs = recipe.epoch_overrides(merged.get("epochs", recipe.epochs))
        read = Recipe.read(recipe, {"threat": scale.threat, **epochs, **merged})
        _RECIPES[key] = Recipe.read(read, {"seed": read.seed + SEEDS_APART * scale.repetition})
    return _RECIPES[key]


_RECIPES: dict[str, Recipe] = {}


def _subset(images: Images, most: int | None) -> Images:
    """Stratified subset of ``most`` images; all if there are fewer, or if it is None."""
    return images if most is None or most >= len(images) else images.take(stratified_subset(images.y, most))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The output of an experiment; the runner builds a `Result` from it.

    Attributes:
        tables: measured numbers next to the printed ones.
        figures: pairs of a drawing and its caption.
        tests: tests of the claims, corrected jointly for multiple testing, and claims that are not tested.
        measurements: measured quantities for open questions, without verdicts.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Drawing, str]] = ()
    tests: Sequence[Test] = ()
    measurements: Sequence[Measurement] = ()


def pgd_of(scale: Scale) -> dict[str, Mapping[str, Any]]:
    """PGD with the number of steps of a scale, 20 by default."""
    steps = scale.evaluation.get("steps", 20) if scale.attack_steps is None else scale.attack_steps
    return {"PGD": {"name": "pgd", "steps": steps}}


@configurable
class Experiment(ABC):
    """Abstract base class of an experiment: it trains and audits models, analyses them, and tests claims of a paper.

    A subclass states its scales, trainings and attacks as keywords of its class statement. A subclass with parameters
    declares them as fields under `classwise.core.settings.config.configurable`; the entry of an item in ``PAPER.yaml``
    gives their values.

    Attributes:
        item: id of the item that the experiment reproduces, such as ``kdd21/T1``.
        tests: tests of claims that the entry of the item declares.
    """

    item: str
    tests: tuple[DeclaredTest, ...] = ()
    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES
    """The available scales by name; `medium` is derived from `full` for a subclass with trainings."""
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = {}
    """The attacks of the evaluation by scale; empty for PGD with the settings of the paper (`Context.pgd`)."""
    weights: ClassVar[Mapping[str, int]] = {}
    """Number of evaluated weights, or of evaluations, of the trainings for which it is not that of the saved epochs."""
    split: ClassVar[Literal["test", "validation"]] = "test"
    """The split of the evaluated images."""
    takes_models: ClassVar[bool] = False
    """Whether the user names the models and images of the experiment (`UserInputs`)."""
    pretrained: ClassVar[str] = ""
    """The data set whose standard model the user may name instead of training it; empty for none."""

    def __init_subclass__(
        cls,
        *,
        scales: Mapping[Name, Scale] | None = None,
        trainings: Trainings | Callable[[Scale], Trainings] | None = None,
        attacks: Mapping[Name, Mapping[str, Spec]] | None = None,
    ) -> None:
        super().__init_subclass__()
        given: dict[str, object] = {"scales": scales, "attacks": attacks}
        if trainings is not None:
            given["trainings"] = lambda _, scale: trainings(scale) if callable(trainings) else trainings
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)
        own = (cls.trainings, cls.conditional_trainings) != (Experiment.trainings, Experiment.conditional_trainings)
        if own and not cls.takes_models and "full" in cls.scales and "medium" not in cls.scales:
            known: dict[Name, Scale] = {**cls.scales, "medium": medium(cls.scales["full"])}
            cls.scales = {name: known[name] for name in NAMES if name in known}

    def trainings(self, scale: Scale) -> Trainings:
        """Declare the trainings of the experiment at a scale, by the name of the model.

        `run` requests exactly these, so the settings of an item can be compared with those of its paper without
        training anything. The keyword of the class statement is a mapping, or a function of the scale.

        Args:
            scale: data, network and budget.
        """
        return {}

    def conditional_trainings(self, scale: Scale) -> Trainings:
        """Declare the further trainings of `run` whose settings depend on results of others: at most these.

        Args:
            scale: data, network and budget.
        """
        return {}

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """Declare the audits of a declared training, for the forecast of the cost; `run` requests at most these.

        By default its weights are audited once, and those of each saved epoch, or `weights` times, under the declared
        attacks.

        Args:
            scale: scale adapted to the data set of the training.
            name: name of the training.
            training: the training.
        """
        weights = self.weights.get(name, 1 + len(training.overrides.get("checkpoint_epochs", ())))
        return [Evaluation(attacks=scale.entry(self.attacks) if self.attacks else pgd_of(scale), weights=weights)]

    @abstractmethod
    def run(self, context: Context) -> Findings:
        """Run the experiment.

        Args:
            context: source of trained models, audits and images at one scale.

        Returns:
            Tables, figures and tests of claims.
        """
