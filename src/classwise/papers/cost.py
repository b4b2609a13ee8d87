"""Forecast of the cost of items: their trainings and evaluations, in passes, operations, hours and disk space."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from classwise.auditing.run.cost import estimate
from classwise.core.compute.operations import operations_of
from classwise.core.compute.rates import RATES, Kind, Rates
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import checked
from classwise.data import DATA
from classwise.data.images import Images
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Evaluation, Training, recipe_at
from classwise.papers.networks import network_of, on_meta
from classwise.papers.runner import scale_of
from classwise.papers.scales import NAMES, Scale, on_data_set
from classwise.training.averaging import NoAverage
from classwise.training.folder import saved_names
from classwise.training.recipe import Recipe

TIMED_EQUIVALENTS = 3
"""Forward passes that cost as much as a forward pass and a backward pass to the weights."""
CPU_BATCH = 16
"""Largest number of images of a timed pass on a CPU."""
CPU_OPERATIONS = 2e9
"""Operations of a timed forward pass on a CPU, about, where fewer images suffice."""
_COUNT, _SIDE = 32, 2
"""Number, width and height of the images on which the passes of an attack are counted."""


@dataclass(frozen=True)
class Cost:
    """Cost of some items. Validation during training and the guards of audits come on top.

    Attributes:
        trainings: number of trainings at most; those that items share count once.
        epochs: their epochs in total.
        passes: forward passes of one image of the trainings; a gradient of the activations counts as one, that of the
            weights as another.
        evaluation_passes: passes of the evaluations, as if every image were robust.
        pflop: floating-point operations of all passes, in 10^15.
        gigabytes: size of the weights and of the training states, in 10^9 bytes.
        hours: time of all passes, one after the other.
    """

    trainings: int
    epochs: int
    passes: int
    evaluation_passes: int
    pflop: float
    gigabytes: float
    hours: float


@dataclass(frozen=True)
class Forecast:
    """Cost of items at a scale.

    Attributes:
        scale: name of the scale.
        device: the device of the hours.
        items: cost of each item.
        added: cost that each item adds to those before it, in the given order.
        total: cost of all items, whose shared trainings and evaluations count once.
        passes_per_second: forward passes of one image per second of each network in training, by its description.
    """

    scale: str
    device: str
    items: Mapping[str, Cost]
    added: Mapping[str, Cost]
    total: Cost
    passes_per_second: Mapping[str, float]


class _Speed(NamedTuple):
    """Passes of one image per second in training and in evaluation."""

    training: float
    evaluation: float


class _Network(NamedTuple):
    """Operations of a forward pass of one image, and bytes of the weights and buffers."""

    operations: float
    size: int


Key = tuple[str, ...]
"""What makes trainings the same in a store, except for the epochs whose weights they save."""


@dataclass(frozen=True)
class _Planned:
    """A training with its data set, the number of its images, and the passes of its evaluations by their settings."""

    recipe: Recipe
    data: str
    images: int
    evaluations: Mapping[str, int]

    @property
    def passes(self) -> int:
        """Forward passes of one image; see `Cost`."""
        return round(self.images * self.recipe.epochs * self.recipe.parts.passes.equivalents)

    @property
    def evaluation_passes(self) -> int:
        """Passes of the evaluations."""
        return sum(self.evaluations.values())

    @property
    def operations(self) -> float:
        """Floating-point operations of all passes."""
        return (self.passes + self.evaluation_passes) * _network(self.recipe, self.data).operations

    def seconds(self, speed: _Speed) -> float:
        """Time of all passes."""
        return self.passes / speed.training + self.evaluation_passes / speed.evaluation

    @property
    def size(self) -> int:
        """Bytes of the weights and of the training state: model, optimiser and average."""
        copies = len(saved_names(self.recipe)) + 2 + (not isinstance(self.recipe.parts.averaging, NoAverage))
        return copies * _network(self.recipe, self.data).size

    @property
    def network(self) -> str:
        """Description of the network, which determines the rate of passes."""
        model = self.recipe.model
        options = "".join(f" ({key}={value})" for key, value in model.options.items())
        return f"{model.name} of width {model.width:g}{options} on {self.data}, {self.recipe.precision.dtype}"


@checked
def forecast(
    names: str | Sequence[str],
    scale: str,
    trainings: int | None = None,
    *,
    data_sets: Sequence[str] = (),
    device: str = "cpu",
    rate: Callable[[Recipe, str], float] | None = None,
    rates: Rates | None = None,
    progress: Progress | None = None,
) -> Forecast:
    """Forecast the cost of items at a scale; nothing is trained, and no data set is read.

    Args:
        names: item ids such as ``kdd21/T1``.
        scale: ``smoke``, ``small``, ``reduced``, ``medium`` or ``full``.
        trainings: independent trainings of each model; None for those of the scale.
        data_sets: the data sets to which items on several of them are limited; empty for all.
        device: PyTorch device.
        rate: forward passes of one image per second, of a recipe and a data set; by default measured on the device.
        rates: measured rates of another device (`classwise.core.compute.rates.RATES`), for the hours on it; nothing is
            timed. A float32 training takes the float32 passes of attacks.
        progress: progress listener.

    Raises:
        ClasswiseError: if an id is unknown, an experiment has no such scale or data set, an item on a single data set
            is limited to some, or an item evaluates models of the user.

    Example:
        >>> import classwise as cw
        >>> found = cw.papers.forecast(["cfa23/F1", "kdd21/T1"], "smoke", rate=lambda recipe, data: 3600.0)
        >>> found.items["cfa23/F1"].trainings, found.total.trainings
        (0, 5)
    """
    items = [names] if isinstance(names, str) else names
    planned = {name: _planned(name, scale, trainings, data_sets) for name in items}
    for name, found in planned.items():
        if experiment(name).takes_models and not found:
            raise ClasswiseError(
                f"{name} evaluates models of yours at scale {scale!r}, without a forecast; classwise audit MODEL "
                "--data DIR --estimate forecasts an audit"
            )
    together = _distinct(planned.values())
    networks = {training.network: training for training in together}
    listener = progress or NullProgress()
    listener.start("networks timed" if rates is None else "networks", len(networks))

    def speed(training: _Planned) -> _Speed:
        if rates is not None:
            clock = rates.clock_of(_network(training.recipe, training.data).operations)
            training_pass: Kind = "decision" if training.recipe.precision.dtype == "float32" else "training"
            kinds: tuple[Kind, Kind] = (training_pass, "gradient")
            return _Speed(*(1 / clock(kind, 1, lambda: None) for kind in kinds))
        measured = (rate or (lambda recipe, data: passes_per_second(recipe, data, device)))(
            training.recipe, training.data
        )
        return _Speed(measured, measured)

    speeds = {}
    for network, training in networks.items():
        speeds[network] = speed(training)
        listener.advance(1)

    def cost(found: Sequence[_Planned]) -> Cost:
        return Cost(
            trainings=len(found),
            epochs=sum(training.recipe.epochs for training in found),
            passes=sum(training.passes for training in found),
            evaluation_passes=sum(training.evaluation_passes for training in found),
            pflop=sum(training.operations for training in found) / 1e15,
            gigabytes=sum(training.size for training in found) / 1e9,
            hours=sum(training.seconds(speeds[training.network]) for training in found) / 3600,
        )

    added, before = dict[str, Cost](), cost([])
    for place, name in enumerate(planned):
        so_far = cost(_distinct([*planned.values()][: place + 1]))
        added[name] = Cost(**{key: value - getattr(before, key) for key, value in dataclasses.asdict(so_far).items()})
        before = so_far

    return Forecast(
        scale=scale,
        device=device if rates is None else rates.device,
        items={name: cost(_distinct([declared])) for name, declared in planned.items()},
        added=added,
        total=cost(together),
        passes_per_second={network: speeds[network].training for network in networks},
    )


@checked
def plan(papers: Sequence[str], scale: str) -> list[str]:
    """The runnable items of papers in an order in which a store trains each model once.

    Items that save more epochs than others need come first; the others are in the order of the papers.

    Args:
        papers: names of papers; empty for all.
        scale: name of a scale; items without it are left out.

    Raises:
        ClasswiseError: if a paper or the scale is unknown.

    Example:
        >>> import classwise as cw
        >>> cw.papers.plan(["kdd21"], "full")[:2]
        ['kdd21/F1', 'kdd21/T1']
    """
    if scale not in NAMES:
        raise unknown("scale", scale, NAMES)
    items = [
        item.id
        for name in papers or catalogue.papers()
        for item in catalogue.paper(name).items
        if scale in item.scales and not experiment(item.id).takes_models
    ]
    planned = {name: _planned(name, scale, 1) for name in items}
    saved = {
        name: max((len(training.recipe.checkpoint_epochs) for training in found.values()), default=0)
        for name, found in planned.items()
    }
    return sorted(items, key=lambda name: -saved[name])


def _distinct(items: Iterable[Mapping[tuple[Key, tuple[int, ...]], _Planned]]) -> list[_Planned]:
    """The trainings that a store runs, each with the evaluations of all items that request it.

    A training that saves more epochs than another one replaces it.
    """
    saved: dict[Key, dict[tuple[int, ...], _Planned]] = {}
    evaluations: dict[Key, dict[str, int]] = {}
    for declared in items:
        for (key, epochs), training in declared.items():
            saved.setdefault(key, {})[epochs] = training
            evaluations.setdefault(key, {}).update(training.evaluations)
    found = []
    for key, runs in saved.items():
        largest = [epochs for epochs in runs if not any(set(epochs) < set(other) for other in runs)]
        found += [dataclasses.replace(runs[epochs], evaluations={}) for epochs in largest[1:]]
        found.append(dataclasses.replace(runs[largest[0]], evaluations=evaluations[key]))
    return found


def _planned(
    name: str, scale: str, trainings: int | None, data_sets: Sequence[str] = ()
) -> dict[tuple[Key, tuple[int, ...]], _Planned]:
    """The trainings of an item, by what makes them the same in a store, and by the epochs that they save."""
    planned: dict[tuple[Key, tuple[int, ...]], _Planned] = {}
    one, base = experiment(name), scale_of(name, scale, data_sets)
    for repetition in range(trainings or base.trainings):
        repeated = dataclasses.replace(base, repetition=repetition)
        declared = {**one.trainings(repeated), **one.conditional_trainings(repeated)}
        for row, training in declared.items():
            if data_sets and training.data not in data_sets:
                continue
            own = on_data_set(repeated, training.data) if training.data else repeated
            recipe = recipe_at(repeated, training)
            published = DATA.load(own.data).sizes[0]  # of the training split
            images = min(published, own.train or published)
            rest = round(images * (1 - float(recipe.data.validation)))
            evaluations: dict[str, int] = {}
            for evaluation in one.evaluations(own, row, training):
                weights = max(evaluation.weights, 2 if own.last_weights and recipe.selection != "last" else 1)
                evaluations |= _evaluated(dataclasses.replace(evaluation, weights=weights), own)
            epochs = recipe.checkpoint_epochs
            key = dataclasses.replace(recipe, checkpoint_epochs=()).digest(), own.data, *_inputs(training, declared)
            planned[key, epochs] = _Planned(recipe, own.data, rest, evaluations)
    return planned


def _evaluated(evaluation: Evaluation, scale: Scale) -> dict[str, int]:
    """Passes of an evaluation of one model, by its settings."""
    train, test = DATA.load(scale.data).sizes
    most = {"train": scale.train, "test": scale.test, "few": scale.few}[evaluation.images]
    images = min(train if evaluation.images == "train" else test, most or train)
    settings = json.dumps(dict(evaluation.attacks), sort_keys=True, default=str)
    passes = _attack_passes(settings, scale.threat, len(DATA.load(scale.data).class_names))
    return {f"{settings} {images} {evaluation.weights}": round(passes * images * evaluation.weights)}


@cache
def _attack_passes(attacks: str, threat: str, classes: int) -> float:
    """Passes of a robust image under all of some attacks, counted on a linear model."""
    images = Images(
        torch.full((_COUNT, 3, _SIDE, _SIDE), 0.5), torch.arange(_COUNT) % classes, [*map(str, range(classes))]
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * _SIDE**2, classes)).requires_grad_(requires_grad=False)
    named = json.loads(attacks)
    if not named:
        return 1.0
    cost = estimate(
        model, images, threat, named, trained=False, rates=RATES["h100"], cascade=False, early_stop=False, guards="off"
    )
    return (cost.forwards + cost.backwards) / _COUNT


_NETWORKS: dict[tuple[str, str], _Network] = {}


def _network(recipe: Recipe, data: str) -> _Network:
    """Operations and size of the network of a recipe."""
    key = repr(recipe.model), data
    if key not in _NETWORKS:
        model, image = on_meta(recipe.model, data)
        operations = operations_of(model, image)
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        _NETWORKS[key] = _Network(operations, size)
    return _NETWORKS[key]


def _inputs(training: Training, declared: Mapping[str, Training]) -> tuple[str, ...]:
    """What distinguishes trainings of one recipe: derived images, and the trainings that start and teach it."""
    others = (declared[name].recipe if name else "" for name in (training.start, training.teacher))
    return (training.images, *others)


def passes_per_second(recipe: Recipe, data: str, device: str = "cpu") -> float:
    """Measure the rate of passes of a recipe's network: forward passes of one image per second.

    Times a forward and a backward pass of one batch of random images, after one that also allocates. On a CPU the batch
    is small, since larger ones are hardly faster.

    Args:
        recipe: a recipe.
        data: name of the data set, which gives the shape of the images and the classes.
        device: PyTorch device.
    """
    model = network_of(recipe.model, data).to(device)
    precision = recipe.precision.on(torch.device(device))
    precision.prepare(model)
    forward = precision.forward(model)
    size = recipe.batch_size
    if torch.device(device).type == "cpu":
        most = int(CPU_OPERATIONS / _network(recipe, data).operations)
        size = min(size, CPU_BATCH, max(2, most))  # batch normalisation needs two images
    x = torch.rand(size, *DATA.load(data).shape, device=device)
    y = torch.zeros(size, dtype=torch.long, device=device)
    for _ in range(2):
        begin = time.perf_counter()
        torch.autograd.backward(functional.cross_entropy(forward(x), y))
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        seconds = time.perf_counter() - begin
    return TIMED_EQUIVALENTS * size / seconds
