"""What a step is fed, where images are drawn with replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from classwise.data import load_data
from classwise.progress import Silent
from classwise.training.feeding import Feed
from classwise.training.folder import Run
from classwise.training.loop import Trainer
from classwise.training.recipe import Recipe

from .on_digits import TINY


@pytest.fixture
def trainer() -> Trainer:
    recipe = Recipe.read("cfol", TINY | {"data.augment": "crop", "data.subset": None, "batch_size": 40}, budget="short")
    images = load_data("digits", split="train", subset=40)
    return Trainer(recipe, recipe.parts, images, Run(Path("unused")), "cpu", Silent())


def test_an_image_that_is_drawn_twice_is_cropped_and_attacked_in_two_ways(trainer: Trainer) -> None:
    feed, settings = trainer.feed, trainer.class_settings()
    assert settings.sampling is not None
    rows = torch.zeros(16, dtype=torch.int64)
    batches = [feed.batch(rows, epoch, step, settings, 0.0) for epoch, step in ((0, 0), (0, 1), (0, 0))]
    index = torch.cat([batch.index for batch in batches[:2]])
    assert len(set(index.tolist())) == 32
    assert len({tuple(row) for row in batches[0].x.flatten(1).tolist()}) > 8  # 81 crops are as likely
    assert torch.equal(batches[0].x, batches[2].x)


def test_in_the_order_of_the_epoch_draws_hang_on_the_image_alone(trainer: Trainer) -> None:
    feed: Feed = trainer.feed
    plain = trainer.class_settings().__class__(epsilon=trainer.class_settings().epsilon)
    rows = torch.tensor([3, 1, 2])
    first, second = feed.batch(rows, 0, 0, plain, 0.0), feed.batch(rows.flip(0), 0, 5, plain, 0.0)
    assert first.index.tolist() == feed.images.index[rows].tolist()
    assert torch.equal(first.x, second.x.flip(0))
