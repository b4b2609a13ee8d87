"""The normalisation in front of a network with initial weights: their own, that of the data, none, or as stated.

Weights fit images that are normalised as in their training. With another normalisation, fine-tuning starts from a
damaged model; the accuracy on the validation split shows it, and decides where the file of weights does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from classwise.attacks.engine import Engine
from classwise.core.compute.rng import generators_restored
from classwise.core.errors import ClasswiseError
from classwise.data import Images
from classwise.models import MODELS, build_model, load_model
from classwise.models.loading.loader import normalization_layer, states_its_model
from classwise.models.normalization import Normalized
from classwise.stats.paired import mcnemar
from classwise.training.recipe import Recipe
from classwise.training.setup import data_constants, network_spec, split_rows

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""
NONE: Constants = (0.0,), (1.0,)
EVALUATED = 1000
"""At least so many images decide: those of the validation split, and others from the training split."""
FALL, SIGNIFICANCE = 0.05, 0.001
"""Another normalisation is better if its accuracy is higher by so much, with a lower p-value of McNemar's test."""
_WAYS = (
    "set model.normalization=none for a network that normalises images itself, model.normalization=data for one that "
    "was trained with the constants of these data, or model.mean and model.std as in its training"
)


def with_normalization(recipe: Recipe, images: Images, device: str) -> tuple[Recipe, list[str]]:
    """Decide on the normalisation of a new run.

    Args:
        recipe: the complete recipe.
        images: its training images, before the validation split.
        device: where to evaluate initial weights.

    Returns:
        The recipe, which states the normalisation unless it is that of the data; and a note on the accuracy of initial
        weights under each normalisation, if there are any.

    Raises:
        ClasswiseError: if initial weights are significantly less accurate with the stated normalisation than with
            another one, or the recipe and the weights contradict each other.
    """
    settings, notes = recipe.model, list[str]()
    mean, std = data_constants(images)
    data: Constants = tuple(mean), tuple(std)
    with generators_restored(device):
        if settings.name not in MODELS and normalization_layer(build_model(**network_spec(recipe, images))) is not None:
            chosen = NONE  # the network has a layer of its own
        elif settings.weights is not None or settings.options.get("pretrained"):
            chosen, note = _of_weights(recipe, images, data, device)
            notes.append(note)
        else:
            return recipe, notes
    change: dict[str, Any] = {"normalization": settings.normalization, "mean": None, "std": None}
    if chosen == data:
        change["normalization"] = "data" if settings.normalization == "data" else "auto"
    elif chosen == NONE:
        change["normalization"] = "none"
    else:
        change = {"normalization": "auto", "mean": chosen[0], "std": chosen[1]}
    return dataclasses.replace(recipe, model=dataclasses.replace(settings, **change)), notes


def as_resumed(recipe: Recipe, before: Recipe) -> Recipe:
    """Return the recipe with the normalisation that was decided when its run started."""
    settings = recipe.model
    if settings.mean is not None or settings.normalization not in ("auto", "weights"):
        return recipe
    decided = {name: getattr(before.model, name) for name in ("normalization", "mean", "std")}
    return dataclasses.replace(recipe, model=dataclasses.replace(settings, **decided))


def _of_weights(recipe: Recipe, images: Images, data: Constants, device: str) -> tuple[Constants, str]:
    """The normalisation for initial weights, and a note on their accuracy."""
    settings, named = recipe.model, str(recipe.model.normalization)
    spec = network_spec(recipe, images)
    model = load_model(spec.pop("name"), settings.weights, device=device, **spec)
    layer = normalization_layer(model)
    candidates = {"none": NONE, "data": data}
    if layer is not None:
        candidates["weights"] = _numbers(layer.mean), _numbers(layer.std)
        if named == "none":
            raise ClasswiseError(f"the weights {settings.weights} have a normalisation; omit model.normalization=none")
    elif named == "weights" and not states_its_model(settings.weights):
        raise ClasswiseError(f"model.normalization=weights: {settings.weights} states none; {_WAYS}")
    else:
        model = layer = Normalized(model, *NONE).to(device)
        candidates |= {"weights": NONE} if states_its_model(settings.weights) else {}
    if settings.mean is not None and settings.std is not None:
        named, candidates["stated"] = "stated", (settings.mean, settings.std)
    train, valid = split_rows(recipe, images)
    others = max(0, EVALUATED - len(valid))
    part = images.take(torch.cat([valid, train[:: max(1, len(train) // max(1, others))][:others]]))
    correct = {}
    for name, constants in candidates.items():
        layer.mean, layer.std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in constants)
        engine = Engine(model, precision=recipe.precision, batch_size=max(32, recipe.batch_size))
        logits = torch.cat(list(engine.predict(batch.x for batch in part.batches(engine.batch_size))))
        correct[name] = logits.argmax(1).cpu() == part.y.cpu()
    if named == "auto":
        undecided = "data" if _better(correct["data"], correct["none"]) else "none"
        named = "weights" if "weights" in candidates else undecided
    shares = ", ".join(f"{rows.float().mean():.1%} with {name}" for name, rows in correct.items())
    measured = f"accuracy of the initial weights on {len(part)} images: {shares}"
    if any(_better(rows, correct[named]) for rows in correct.values()):
        raise ClasswiseError(f"the normalisation {named!r} does not fit the weights ({measured}); {_WAYS}")
    return candidates[named], f"normalisation: {named}; {measured}"


def _better(first: Tensor, second: Tensor) -> bool:
    """Whether an accuracy is higher by more than `FALL`, significantly; bool (N,): the correct images."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    return only_first - only_second > FALL * len(first) and bool(mcnemar(only_first, only_second) < SIGNIFICANCE)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.7g}") for value in values.flatten().tolist())
