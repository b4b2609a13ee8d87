"""Batches of images sampled with replacement, and with pseudo-labels of robust self-training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.progress.listener import NullProgress
from classwise.data import Images, load_data
from classwise.models.modes import frozen
from classwise.threat.ball import Threat
from classwise.training.batches import Batches, concatenated
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import mean
from classwise.training.train import train
from classwise.training.trainer import Trainer

from ..refusals import refused
from .killing import KillAt, Killed
from .on_digits import TINY
from .test_trainer import contents


@pytest.fixture
def trainer() -> Trainer:
    recipe = Recipe.read("cfol", TINY | {"data.augment": "crop", "data.subset": None, "batch_size": 40}, budget="short")
    return Trainer(recipe, load_data("digits", split="train", subset=40), Run(Path("unused")), "cpu", NullProgress())


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


SMALL: dict[str, Any] = {
    "model": {"name": "lenet"},
    "data.name": "digits",
    "data.subset": 100,
    "data.validation": 0.2,
    "data.augment": "none",
    "attack.steps": 1,
    "validation_attack.steps": 1,
    "threat": "Linf:0.1",
    "batch_size": 32,
    "epochs": 2,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("at", budget="short", out=tmp_path_factory.mktemp("teacher") / "run", overrides=SMALL, epochs=1)


@pytest.fixture(scope="module")
def others() -> Images:
    """Images of the test split, all labelled 0; the labels must not be used."""
    images = load_data("digits", split="test", subset=90)
    return Images(images.x, torch.zeros_like(images.y), ["nothing"], "others")


def with_teacher(teacher: Run, **more: Any) -> dict[str, Any]:
    return SMALL | {"data.unlabelled.teacher": str(teacher.path), "data.unlabelled.name": "digits"} | more


def says(recipe: str, out: Path, **more: Any) -> str:
    message = refused(train, recipe, out=out, **more)
    assert not out.exists()
    return message


def self_training(share: float, batch_size: int, others: Images) -> Trainer:
    """A trainer on 80 labelled images."""
    recipe = Recipe.read("rst", SMALL | {"data.unlabelled.fraction": share, "batch_size": batch_size}, budget="short")
    images = load_data("digits", split="train", subset=100)
    extra = Images(others.x, torch.arange(90) % 10, images.class_names)
    return Trainer(recipe, images, Run(Path("unused")), "cpu", NullProgress(), extra)


@pytest.mark.parametrize(("share", "batch_size", "extra"), [(0.5, 32, 16), (0.25, 32, 8), (0.9, 10, 9), (0.5, 5, 2)])
def test_a_batch_has_the_fraction_and_an_epoch_each_labelled_image_once(
    share: float, batch_size: int, extra: int, others: Images
) -> None:
    made = self_training(share, batch_size, others)
    feed, order, seen = made.batches, torch.arange(80), []
    for step in range(feed.steps):
        rows = feed.rows(order, 0, step, made.class_settings())
        labelled, pseudo = rows[rows < 80], rows[rows >= 80]
        seen.append(labelled)
        assert len(pseudo) == round(len(labelled) * extra / (batch_size - extra))
        assert step == feed.steps - 1 or len(rows) == batch_size
        assert int(pseudo.max()) < 80 + 90
    assert torch.equal(torch.cat(seen), order)


def test_all_images_of_a_batch_have_the_same_weight(others: Images) -> None:
    """TRADES on all: the loss is half the mean over labelled images and half the mean over pseudo-labelled ones."""
    made = self_training(0.5, 32, others)
    settings = made.class_settings()
    rows = made.batches.rows(torch.arange(80), 0, 0, settings)
    batch = made.batches.batch(rows, 0, 0, settings, 0.0)
    assert batch.y.tolist() == [*made.train.y[:16].tolist(), *((rows[16:] - 80) % 10).tolist()]
    assert len(set(made.batches.pool.index.tolist())) == 170  # each image draws for itself
    again = made.batches.batch(rows, 0, 1, settings, 0.0)  # and so does each time that a pseudo-labelled one is drawn
    assert torch.equal(again.index[:16], batch.index[:16])
    assert not set(again.index[16:].tolist()) & set(batch.index.tolist())
    model = EXACT.forward(made.model)
    with frozen(made.model):
        points = made.parts.objective.points(model, batch, made.parts.attack, settings, CounterRNG(0))
    step = made.parts.objective.step(model, batch, points, settings)
    loss = made.parts.reduction(step, batch, settings)
    each = (step.terms["clean"] + step.terms["robust"]).detach()
    assert made.parts.reduction is mean
    assert float(loss.detach()) == pytest.approx(float(each[:16].mean() / 2 + each[16:].mean() / 2), rel=1e-5)


@pytest.mark.slow
def test_a_resumed_run_does_not_need_the_teacher(
    teacher: Run, others: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = with_teacher(teacher)
    whole = train("rst", budget="short", out=tmp_path / "whole", overrides=overrides, unlabelled=others)
    with torch.no_grad():
        expected = teacher.model()(others.pixels()).argmax(1).tolist()
    assert json.loads(whole.pseudo_labels_file.read_text())["labels"] == expected
    assert sum(whole.environment["data"]["unlabelled"]["counts"]) == 90
    counts = whole.epochs.query("split == 'train'").groupby("epoch")["count"].sum().tolist()
    assert counts == [160, 160]
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        train("rst", budget="short", out=tmp_path / "cut", overrides=overrides, unlabelled=others, progress=KillAt(3))
    moved = Path(teacher.path).rename(tmp_path / "elsewhere")
    try:
        cut = train("rst", budget="short", out=tmp_path / "cut", overrides=overrides, unlabelled=others, resume=True)
        assert "started with other unlabelled images" in refused(
            train, "rst", budget="short", out=tmp_path / "cut", overrides=overrides, resume=True
        )
    finally:
        moved.rename(teacher.path)
    assert contents(cut) == contents(whole)


def test_incompatible_inputs_raise_errors_before_training(teacher: Run, others: Images, tmp_path: Path) -> None:
    out, overrides = tmp_path / "run", with_teacher(teacher)
    large = Images(torch.rand(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64), name="photos")
    message = says("rst", out, budget="short", overrides=overrides, unlabelled=large)
    assert message == "unlabelled images of 'photos' have shape 3x16x16, expected 1x8x8 as 'digits'"
    assert "nowhere" in says("rst", out, budget="short", overrides=overrides | {"data.unlabelled.teacher": "nowhere"})
    three = Images(others.x[:60], torch.arange(60) % 3, name="three")
    assert "10" in says(
        "rst", out, budget="short", overrides=overrides, data=three, unlabelled=others
    )  # the teacher has 10 classes
    assert "has no teacher" in says("at", out, budget="short", overrides=SMALL, unlabelled=others)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data.unlabelled.fraction": 1}, "fraction = 1"),
        ({"data.unlabelled.fractio": 0.5}, "did you mean 'data.unlabelled.fraction'?"),
        ({"batch_size": 1}, "batch_size = 1 is too small for a fraction of 0.5"),
    ],
)
def test_an_invalid_recipe_raises_an_error(overrides: dict[str, Any], message: str) -> None:
    assert message in refused(Recipe.read, "rst", overrides)


def test_the_recipe_has_the_settings_of_the_paper() -> None:
    recipe = Recipe.read("rst")
    assert recipe.data.unlabelled is not None
    assert (recipe.batch_size, recipe.data.unlabelled.of(256), recipe.epochs, recipe.lr_schedule) == (
        256,
        128,
        200,
        "cosine",
    )
    assert recipe.optimizer == {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
    assert Recipe.read(recipe.completed(Threat("Linf", 0.1))._plain()).data.unlabelled == recipe.data.unlabelled


def test_uint8_and_float_images_are_concatenated() -> None:
    images = Images(torch.full((2, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([0, 1]), index=torch.tensor([4, 7]))
    both = concatenated(images, Images(torch.full((1, 1, 1, 1), 0.5), torch.tensor([1])))
    assert both.x.flatten().tolist() == [1, 1, 0.5]
    assert both.index.tolist() == [4, 7, 8]
