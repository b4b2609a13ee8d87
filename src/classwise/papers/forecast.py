"""Forecast of the cost of items: their declared trainings, and the time of these at a measured rate of passes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from classwise.data import DATA
from classwise.models import build_model
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Training, recipe_at
from classwise.papers.runner import scale_of
from classwise.papers.scales import on_data_set
from classwise.training.recipe import Recipe

TIMED_EQUIVALENTS = 3
"""Forward passes that cost as much as a forward pass and a backward pass to the weights."""


@dataclass(frozen=True)
class Forecast:
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


class Forecaster:
    """Forecasts at one scale; nothing is trained, and no data set is read.

    Args:
        scale: ``smoke``, ``reduced`` or ``full``.
        trainings: independent trainings of each model.
        rate: forward passes of one image per second, of a recipe and a data set; by default measured on a device.
        device: PyTorch device.

    Example:
        >>> from classwise.papers.forecast import Forecaster
        >>> forecaster = Forecaster("smoke", rate=lambda recipe, data: 3600.0)
        >>> forecaster.item("cfa23/F1")
        Forecast(trainings=0, epochs=0, passes=0, hours=0.0)
        >>> forecaster.item("kdd21/T1").trainings
        5
    """

    def __init__(
        self,
        scale: str,
        trainings: int = 1,
        *,
        device: str = "cpu",
        rate: Callable[[Recipe, str], float] | None = None,
    ) -> None:
        self.scale, self.trainings, self.device = scale, trainings, device
        self._rate = rate or (lambda recipe, data: passes_per_second(recipe, data, device))
        self._known: dict[tuple[str, str, int, str], float] = {}
        self.rates: dict[str, float] = {}
        """The measured rate of each network, by its description."""

    def item(self, name: str) -> Forecast:
        """The forecast of one item.

        Raises:
            ClasswiseError: if the id is unknown, or the experiment has no such scale.
        """
        return self._sum(self._planned(name).values())

    def together(self, names: Sequence[str]) -> Forecast:
        """The forecast of several items, whose shared trainings count once.

        Raises:
            ClasswiseError: as `item`.
        """
        return self._sum({key: training for name in names for key, training in self._planned(name).items()}.values())

    def _planned(self, name: str) -> dict[tuple[str, ...], _Planned]:
        """The trainings of an item, by what makes them the same in a store."""
        planned: dict[tuple[str, ...], _Planned] = {}
        base = scale_of(name, self.scale).on_device(self.device)
        for repetition in range(self.trainings):
            scale = dataclasses.replace(base, repetition=repetition)
            declared = experiment(name).trainings(scale)
            for training in declared.values():
                own = on_data_set(scale, training.data) if training.data else scale
                recipe = recipe_at(scale, training)
                published = DATA.load(own.data).sizes[0]  # of the training split
                images = min(published, own.train or published)
                rest = round(images * (1 - float(recipe.data.validation)))
                planned[recipe.digest(), own.data, *_inputs(training, declared)] = _Planned(recipe, own.data, rest)
        return planned

    def _sum(self, planned: Iterable[_Planned]) -> Forecast:
        trainings = list(planned)
        seconds = sum(training.passes / self._rate_of(training) for training in trainings)
        epochs = sum(training.recipe.epochs for training in trainings)
        return Forecast(len(trainings), epochs, sum(training.passes for training in trainings), seconds / 3600)

    def _rate_of(self, one: _Planned) -> float:
        if one.network not in self._known:
            self._known[one.network] = rate = self._rate(one.recipe, one.data)
            model = one.recipe.model
            options = "".join(f" ({key}={value})" for key, value in model.options.items())
            description = f"{model.name} of width {model.width:g}{options} on {one.data}, {one.recipe.precision.dtype}"
            self.rates[f"{description}, batch size {one.recipe.batch_size}"] = rate
        return self._known[one.network]


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
        **recipe.model.options,
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
