"""The batches of a run, where images are sampled with replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from classwise.core.progress.listener import NullProgress
from classwise.data import load_data
from classwise.training.batches import Batches
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.trainer import Trainer

from .on_digits import TINY


@pytest.fixture
def trainer() -> Trainer:
    recipe = Recipe.read("cfol", TINY | {"data.augment": "crop", "data.subset": None, "batch_size": 40}, budget="short")
    images = load_data("digits", split="train", subset=40)
    return Trainer(recipe, images, Run(Path("unused")), "cpu", NullProgress())


def test_an_image_that_is_sampled_twice_gets_different_random_numbers(trainer: Trainer) -> None:
    batches, settings = trainer.batches, trainer.class_settings()
    assert settings.sampling is not None
    rows = torch.zeros(16, dtype=torch.int64)
    made = [batches.batch(rows, epoch, step, settings, 0.0) for epoch, step in ((0, 0), (0, 1), (0, 0))]
    index = torch.cat([batch.index for batch in made[:2]])
    assert len(set(index.tolist())) == 32
    assert len({tuple(row) for row in made[0].x.flatten(1).tolist()}) > 8  # 81 crops are as likely
    assert torch.equal(made[0].x, made[2].x)


def test_in_the_order_of_the_epoch_random_numbers_depend_on_the_image_only(trainer: Trainer) -> None:
    batches: Batches = trainer.batches
    plain = trainer.class_settings().__class__(epsilon=trainer.class_settings().epsilon)
    rows = torch.tensor([3, 1, 2])
    first, second = batches.batch(rows, 0, 0, plain, 0.0), batches.batch(rows.flip(0), 0, 5, plain, 0.0)
    assert first.index.tolist() == batches.images.index[rows].tolist()
    assert torch.equal(first.x, second.x.flip(0))
