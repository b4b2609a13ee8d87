"""Forecast of the cost of items: their declared trainings, and the time of these at a measured rate of passes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from classwise.core.arguments import checked
from classwise.data import DATA
from classwise.models import build_model
from classwise.models.loading.builder import options_for_size
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Training, recipe_at
from classwise.papers.runner import scale_of
from classwise.papers.scales import on_data_set
from classwise.training.recipe import Recipe

TIMED_EQUIVALENTS = 3
"""Forward passes that cost as much as a forward pass and a backward pass to the weights."""


@dataclass(frozen=True)
class Cost:
    """Cost of the trainings of some items; audits come on top.

    Attributes:
        trainings: number of trainings; those that items share count once.
        epochs: their epochs in total.
        passes: forward passes of one image; a gradient of the activations counts as one, that of the weights as
            another.
        hours: time of the passes at the measured rates.
    """

    trainings: int
    epochs: int
    passes: int
    hours: float


@dataclass(frozen=True)
class Forecast:
    """Cost of items at a scale.

    Attributes:
        scale: name of the scale.
        device: PyTorch device.
        items: cost of each item.
        total: cost of all items, whose shared trainings count once.
        passes_per_second: forward passes of one image per second of each network, by its description.
    """

    scale: str
    device: str
    items: Mapping[str, Cost]
    total: Cost
    passes_per_second: Mapping[str, float]


@dataclass(frozen=True)
class _Planned:
    """A training with the data set and the number of images that it is for."""

    recipe: Recipe
    data: str
    images: int

    @property
    def passes(self) -> int:
        """Forward passes of one image; see `Forecast`."""
        return round(self.images * self.recipe.epochs * self.recipe.parts.passes.equivalents)

    @property
    def network(self) -> tuple[str, str, int, str]:
        """What determines the rate of passes."""
        return repr(self.recipe.model), self.data, self.recipe.batch_size, repr(self.recipe.precision)

    @property
    def description(self) -> str:
        """Description of the network."""
        model = self.recipe.model
        options = "".join(f" ({key}={value})" for key, value in model.options.items())
        description = f"{model.name} of width {model.width:g}{options} on {self.data}, {self.recipe.precision.dtype}"
        return f"{description}, batch size {self.recipe.batch_size}"


@checked
def forecast(
    names: str | Sequence[str],
    scale: str,
    trainings: int = 1,
    *,
    device: str = "cpu",
    rate: Callable[[Recipe, str], float] | None = None,
) -> Forecast:
    """Forecast the cost of items at a scale; nothing is trained, and no data set is read.

    Args:
        names: item ids such as ``kdd21/T1``.
        scale: ``smoke``, ``reduced`` or ``full``.
        trainings: independent trainings of each model.
        device: PyTorch device.
        rate: forward passes of one image per second, of a recipe and a data set; by default measured on the device.

    Raises:
        ClasswiseError: if an id is unknown, or an experiment has no such scale.

    Example:
        >>> import classwise as cw
        >>> found = cw.papers.forecast(["cfa23/F1", "kdd21/T1"], "smoke", rate=lambda recipe, data: 3600.0)
        >>> found.items["cfa23/F1"]
        Cost(trainings=0, epochs=0, passes=0, hours=0.0)
        >>> found.total.trainings
        5
    """
    measure = rate or (lambda recipe, data: passes_per_second(recipe, data, device))
    items = [names] if isinstance(names, str) else names
    planned = {name: _planned(name, scale, trainings, device) for name in items}
    together = {key: training for declared in planned.values() for key, training in declared.items()}
    networks = {training.network: training for training in together.values()}
    rates = {network: measure(training.recipe, training.data) for network, training in networks.items()}

    def cost(declared: Iterable[_Planned]) -> Cost:
        found = list(declared)
        seconds = sum(training.passes / rates[training.network] for training in found)
        epochs = sum(training.recipe.epochs for training in found)
        return Cost(len(found), epochs, sum(training.passes for training in found), seconds / 3600)

    return Forecast(
        scale=scale,
        device=device,
        items={name: cost(declared.values()) for name, declared in planned.items()},
        total=cost(together.values()),
        passes_per_second={training.description: rates[network] for network, training in networks.items()},
    )


def _planned(name: str, scale: str, trainings: int, device: str) -> dict[tuple[str, ...], _Planned]:
    """The trainings of an item, by what makes them the same in a store."""
    planned: dict[tuple[str, ...], _Planned] = {}
    base = scale_of(name, scale).on_device(device)
    for repetition in range(trainings):
        repeated = dataclasses.replace(base, repetition=repetition)
        declared = experiment(name).trainings(repeated)
        for training in declared.values():
            own = on_data_set(repeated, training.data) if training.data else repeated
            recipe = recipe_at(repeated, training)
            published = DATA.load(own.data).sizes[0]  # of the training split
            images = min(published, own.train or published)
            rest = round(images * (1 - float(recipe.data.validation)))
            planned[recipe.digest(), own.data, *_inputs(training, declared)] = _Planned(recipe, own.data, rest)
    return planned


def _inputs(training: Training, declared: Mapping[str, Training]) -> tuple[str, ...]:
    """What distinguishes trainings of one recipe: derived images, and the trainings that start and teach it."""
    others = (declared[name].recipe if name else "" for name in (training.start, training.teacher))
    return (training.images, *others)


def passes_per_second(recipe: Recipe, data: str, device: str = "cpu") -> float:
    """Measure the rate of passes of a recipe's network: forward passes of one image per second.

    Times a forward and a backward pass of one batch of random images: the fastest of three.

    Args:
        recipe: a recipe.
        data: name of the data set, which gives the shape of the images and the classes.
        device: PyTorch device.
    """
    images = DATA.load(data)
    model = build_model(
        recipe.model.name,
        num_classes=len(images.class_names),
        in_channels=images.shape[0],
        width=recipe.model.width,
        **{**options_for_size(recipe.model.name, images.shape), **recipe.model.options},
    ).to(device)
    precision = recipe.precision.on(torch.device(device))
    precision.prepare(model)
    forward = precision.forward(model)
    x = torch.rand(recipe.batch_size, *images.shape, device=device)
    y = torch.zeros(recipe.batch_size, dtype=torch.long, device=device)
    seconds = math.inf
    for _ in range(3):  # the first one also allocates
        begin = time.perf_counter()
        torch.autograd.backward(functional.cross_entropy(forward(x), y))
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        seconds = min(seconds, time.perf_counter() - begin)
    return TIMED_EQUIVALENTS * recipe.batch_size / seconds
