"""Losses in training loops of users: the weights are those of the trainer."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.core.progress.listener import NullProgress
from classwise.training.class_wise_loss import ClassWiseLoss
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.trainer import Trainer

from ..refusals import check_refused, refused
from .on_digits import TINY

SMALL = TINY | {"epochs": 3, "data.subset": 120, "attack.steps": 1}
RECIPES = {
    "cfa-at": {"averaging.start_fraction": 0.0, "averaging.threshold": 0.01, "averaging.gate": "absolute"},
    "cfa-trades": {"averaging.start_fraction": 0.0, "averaging.gate": "relative"},
    "fair-tat": {},
    "wat": {},
}


def trainer_of(name: str, folder: Path, **fields: Any) -> Trainer:
    recipe = Recipe.read(name, SMALL | RECIPES.get(name, {}) | fields)
    images = cw.load_data("digits", split="train", subset=120)
    return Trainer(recipe.completed(cw.Threat("Linf", 0.1), 10), images, Run(folder), "cpu", NullProgress())


def loop(trainer: Trainer, model: nn.Module, loss: ClassWiseLoss, epochs: range) -> None:
    """A plain loop with the batches, the optimiser and the learning rates of a trainer that has not run."""
    parts, steps = trainer.parts, trainer.batches.steps
    optimizer = parts.optimizer.build(model)
    for epoch in epochs:
        order = trainer.batches.order(epoch)
        for step in range(steps):
            progress = (epoch * steps + step + 0.5) / (3 * steps)
            optimizer.param_groups[0]["lr"] = parts.optimizer.lr * parts.lr_schedule.factor(progress)
            rows = order[step * 48 : (step + 1) * 48]
            optimizer.zero_grad()
            loss(
                model, trainer.batches.pool.pixels(rows), trainer.batches.pool.y[rows], rows_index(trainer, rows)
            ).backward()
            optimizer.step()
        with torch.inference_mode():  # as Lightning does in validation
            loss.end_epoch(model, trainer.valid)


def rows_index(trainer: Trainer, rows: torch.Tensor) -> torch.Tensor:
    return trainer.batches.pool.index[rows]


def own(trainer: Trainer) -> ClassWiseLoss:
    return ClassWiseLoss(
        trainer.recipe, trainer.classes.counts, steps_per_epoch=trainer.batches.steps, class_names=trainer.classes.names
    )


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(value, other[name], rtol=1e-5, atol=1e-7) for name, value in one.items()
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_plain_loop_gives_the_bits_of_the_trainer(name: str, tmp_path: Path) -> None:
    """WAT reads losses on the validation images, whose last bit depends on the width of a pass on some processors."""
    trainer = trainer_of(name, tmp_path / "run")
    model, start = copy.deepcopy(trainer.model), copy.deepcopy(trainer.model.state_dict())
    loss = own(trainer)
    loop(trainer, model, loss, range(3))
    equal = close if name == "wat" else same
    assert not equal(dict(model.state_dict()), start)
    (tmp_path / "run").mkdir()
    trainer.fit()
    assert equal(dict(model.state_dict()), dict(trainer.model.state_dict()))
    assert same(loss.average, trainer.state.average.weights)
    assert bool(loss.average) == name.startswith("cfa")
    assert loss.epoch == 3
    for found, wanted in zip(loss.get_extra_state()["schedules"], trainer.state.schedules, strict=True):
        assert equal(found, wanted)


def test_the_state_dict_resumes_the_loss(tmp_path: Path) -> None:
    trainer = trainer_of("cfa-at", tmp_path / "run", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.0})
    whole, first, loss, half = copy.deepcopy(trainer.model), copy.deepcopy(trainer.model), own(trainer), own(trainer)
    loop(trainer, whole, loss, range(3))
    loop(trainer, first, half, range(1))
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    second = own(trainer)
    second.load_state_dict(torch.load(file, weights_only=True))
    loop(trainer, first, second, range(1, 3))
    assert same(dict(first.state_dict()), dict(whole.state_dict()))
    assert same(second.average, loss.average)
    assert not list(loss.parameters())


def test_images_without_an_index_have_random_numbers_of_their_own() -> None:
    loss = ClassWiseLoss("at", [4, 4], steps_per_epoch=2, threat="Linf:0.1")
    x, y = torch.rand(8, 1, 2, 2), torch.tensor([0, 1]).repeat(4)
    seen = []
    for _ in range(2):
        seen.append(loss._batch(x, y, None, loss.settings()).index)
        loss.batches += 1
    assert len({*torch.cat(seen).tolist()}) == 16


@pytest.mark.parametrize(
    ("recipe", "fields", "says"),
    [
        ("at-awp", {}, "recipe 'at-awp' cannot be used outside of classwise.train: its update is not plain"),
        ("at-ema-step", {}, "it averages weights after each step; set averaging.every = epoch"),
        ("he-cmp", {}, "a schedule evaluates the untrained network"),
        ("nuat", {}, "its objective has a memory of earlier steps"),
        ("absld", {}, "it distils a teacher; give teacher="),
        ("at", {"threat": None}, "recipe 'at' has no threat; give one, such as Linf:8/255"),
    ],
)
def test_recipes_that_need_the_trainer_are_refused(recipe: str, fields: dict[str, Any], says: str) -> None:
    check_refused(says, ClassWiseLoss, Recipe.read(recipe, fields), [5, 5], steps_per_epoch=1)


def test_missing_validation_images_and_class_sampling_are_refused() -> None:
    check_refused("steps_per_epoch = 0: must be", ClassWiseLoss, "at", [5, 5], steps_per_epoch=0, threat="Linf:0.1")
    assert "recipe 'cfa-at' reads valid.robust; give validation images, valid=" in refused(
        ClassWiseLoss("cfa-at", [5, 5], steps_per_epoch=1).end_epoch, nn.Identity()
    )
    for sampled in ("cfol", "robust-error-sampling"):
        check_refused("samples images by class; use classwise.train", ClassWiseLoss, sampled, [5, 5], steps_per_epoch=1)


def test_normalised_images_are_refused_at_the_start_of_an_epoch() -> None:
    loss = ClassWiseLoss("at", [4, 4], steps_per_epoch=2, threat="Linf:0.1")
    model, x, y = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(8, 1, 2, 2), torch.tensor([0, 1]).repeat(4)
    check_refused(
        "images of the loss: pixels range from .*; move the normalisation into the model", loss, model, 4 * x - 2, y
    )
    loss(model, x, y)
    loss(model, 4 * x - 2, y)  # only the first batch of an epoch is read


def test_a_teacher_is_evaluated_on_the_clean_images() -> None:
    teacher, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(8, 1, 2, 2)
    loss = ClassWiseLoss("absld", [4, 4], steps_per_epoch=1, teacher=teacher)
    batch = loss._batch(x, torch.tensor([0, 1]).repeat(4), None, loss.settings())
    assert batch.teacher_logits is not None
    assert torch.equal(batch.teacher_logits, teacher(x))
    assert not list(loss.parameters())


def test_the_attack_is_in_evaluation_mode_and_the_loss_in_training_mode() -> None:
    model, modes = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), list[bool]()
    model.register_forward_hook(lambda module, _, __: modes.append(module.training))
    recipe = Recipe.read("at", {"attack.steps": 3, "threat": "Linf:0.1"})
    for _ in range(2):
        ClassWiseLoss(recipe, [2, 2], steps_per_epoch=1)(model, torch.rand(4, 1, 2, 2), torch.tensor([0, 0, 1, 1]))
    assert modes == [False, False, False, True] * 2
