"""How a model does on the held-out images at an epoch's end, class by class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.losses import cross_entropy, divergence, margin
from classwise.data import Images
from classwise.team import Team
from classwise.threat import Threat
from classwise.training.recipe import Recipe
from classwise.training.sharing import Share

T = TypeVar("T")


@dataclass(frozen=True)
class Outputs:
    """What a model says of images, a row each.

    Args:
        clean: logits on the images, (N, classes).
        attacked: logits at the final point of the attack, (N, classes).
        robust: whether that point is classified rightly, bool (N,).
        soft: sigmoid((p_y - max other) / 0.1) there, (N,).
    """

    clean: Tensor
    attacked: Tensor
    robust: Tensor
    soft: Tensor


def outputs(
    model: nn.Module, images: Images, attack: Attack, threat: Threat, recipe: Recipe, between: Callable[[], None]
) -> Outputs:
    """The model at the attack's final points; batch, precision and seed are the recipe's, starts are fixed.

    ``between`` is called after each batch, and may raise.
    """
    engine = Engine(model, compute=recipe.compute, batch=max(32, recipe.batch_size), stop="never", seed=recipe.seed)
    batches = list(images.batches(engine.batch))
    predicted = []
    with _closing(engine.predict(batch.x for batch in batches)) as blocks:
        for logits in blocks:
            predicted.append(logits)
            between()
    clean = torch.cat(predicted)
    attacked = torch.zeros_like(clean)
    robust = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    soft = torch.zeros(len(images), device=images.device)
    jobs = [Job(batch.index, batch.x, batch.y) for batch in batches]
    with _closing(engine.attack(attack, threat, jobs)) as results:
        for done in results:
            robust[done.row] = ~done.broken
            attacked[done.row] = done.logits
            soft[done.row] = torch.sigmoid(margin(done.logits.softmax(1), done.y) / 0.1)
            between()
    return Outputs(clean, attacked, robust, soft)


def _closing(blocks: Iterator[T]) -> AbstractContextManager[Generator[T]]:
    """Whatever ends the loop over the blocks, the model is then as it was found."""
    return closing(cast("Generator[T]", blocks))


def shared_outputs(
    model: nn.Module,
    images: Images,
    attack: Attack,
    threat: Threat,
    recipe: Recipe,
    team: Team,
    between: Callable[[], None],
) -> Outputs:
    """`outputs`, of which each process works out its share of the images, and all see all."""
    if team.size == 1:
        return outputs(model, images, attack, threat, recipe, between)
    share = Share(team, len(images))
    rows = torch.arange(len(images))[share.rows]
    mine = outputs(model, images.take(rows), attack, threat, recipe, between)
    whole = {field.name: getattr(mine, field.name) for field in dataclasses.fields(mine)}
    whole = {name: share.whole(value.float()).to(value.dtype) for name, value in whole.items()}
    return Outputs(**whole)


def summed_up(said: Outputs, y: Tensor, classes: int, reads: AbstractSet[str]) -> dict[str, Tensor]:
    """Per-class means: ``count``, ``clean`` and ``robust`` accuracy, and what of ``valid.*`` somebody reads.

    Args:
        said: what the model says of the held-out images.
        y: their labels, int64 (N,).
        classes: how many classes there are.
        reads: the signals that a schedule or an average reads.

    Returns:
        Each (classes,), NaN for a class without images; ``confidence`` is (classes, classes).
    """
    count = torch.bincount(y, minlength=classes).float()
    measured = {
        "clean": (said.clean.argmax(1) == y).float(),
        "robust": said.robust.float(),
        "loss": cross_entropy(said.clean, y),
        "divergence": divergence(said.clean, said.attacked),
        "soft": said.soft,
    }
    wanted = {
        name: value for name, value in measured.items() if name in ("clean", "robust") or f"valid.{name}" in reads
    }
    if "valid.average_confidence" in reads:
        wanted["confidence"] = said.attacked.float().softmax(1)
    found = {"count": count}
    for name, value in wanted.items():
        total = torch.zeros(classes, *value.shape[1:], device=y.device).index_add_(0, y, value)
        number = count.view(-1, *[1] * (value.ndim - 1))
        found[name] = torch.where(number > 0, total / number, torch.nan)
    return found
